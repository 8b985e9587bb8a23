"""Reading a topic: which node is asked for what, and what its answers mean.

A reader has one cursor for each queue. Without ``follow`` the queues come one after the other, each
up to where it ended when the reader began; with it all queues are asked at once and an answer is
waited for at the node (long poll). One answer is always asked for ahead of what is being consumed.

A node answers only below its own confirm offset, so a slave may have less than the master says of
the topic, and a master that has just started may have less confirmed than it had before. Then it is
asked again, and after some time another node is. Offsets that are gone end the reader with an
error, and so does what stays missing: no position is ever moved silently. ``timeout`` bounds the
time without progress, not the whole; the time that the caller takes for messages does not count.

Pure: no clock, socket or thread; see `producer` for how a shell drives such an object. Not here:
where queues begin and end (``twinlog.consumer.start_offsets``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from twinlog.errors import (
    CorruptionError,
    NotYetConfirmed,
    OffsetBeyond,
    OffsetGone,
    TwinlogError,
    Unavailable,
    UnknownTopic,
    UsageError,
)
from twinlog.filters.sql92 import Filter, parse_filter
from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.format.messages import Message, in_light_queue, messages_of
from twinlog.format.record import java_hash
from twinlog.session.link import error_of
from twinlog.session.reading import AS_CONFIGURED, Staleness, too_old
from twinlog.session.routing import Address, RoutingTable
from twinlog.session.session import ANY, MASTER, SLAVE
from twinlog.units import MiB
from twinlog.wire.frames import Frame, FrameError
from twinlog.wire.schema import check

ANSWER_BYTES: Final = 1 * MiB
"""Records asked for at a time: large enough that a request costs nothing per record, small enough
that the two answers a reader holds do not matter."""

ANSWER_RECORDS: Final = 65536

QUEUE_END: Final = (1 << 63) - 1
"""Beyond every queue offset."""

FOLLOW_WAIT_MS: Final = 10_000
"""How long a node keeps a question for records that do not exist yet."""

LAG_WAIT_MS: Final = 250
"""The same where the records exist elsewhere: short, because another node may be asked instead."""

SLAVE_SECONDS: Final = 10.0
"""How long a reader that wants a slave stays with the master before it looks for one again."""

STALLS_MAX: Final = 3
"""Answers without progress from a lagging node, before another node is asked."""

SHUN_SECONDS: Final = 30.0
"""How long advice to read from a node is not followed after that node could not serve."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What is read, and from whom.

    Attributes:
        topic: Name.
        read_from: ``any``, ``master``, ``slave`` or a node's name.
        tags: Only messages with one of these tags; empty: all.
        where: Only messages whose properties match; None: all.
        limit: At most this many messages; None: no limit.
        follow: Go on at the end.
        every: All queues are read: with ``follow`` also those that the topic gets meanwhile.
        timeout: Seconds without progress, where progress could be made.
        staleness: How old the data may be.
    """

    topic: str
    read_from: str = ANY
    tags: frozenset[str] = frozenset()
    where: Filter | None = None
    limit: int | None = None
    follow: bool = False
    every: bool = False
    timeout: float = 30.0
    staleness: Staleness = AS_CONFIGURED

    def __post_init__(self) -> None:
        """Check the limit; raises UsageError."""
        if self.limit is not None and self.limit < 0:
            text = f"the limit of a read is {self.limit}; it must be at least 0"
            raise UsageError(text, code="fields")

    def to_begin(self, seconds: float) -> float:
        """Return how long it may take to learn where queues begin, for a client of ``seconds``.

        A reader that follows may accept a year without progress, but not to learn where to begin.
        """
        return min(self.timeout, seconds) if self.follow else self.timeout


class Source(NamedTuple):
    """Who served the last answer of a read.

    Attributes:
        node: Name; empty before the first answer.
        role: ``master`` or ``slave``.
        age_ms: How old its data may be, ms: when it last heard from its master.
        settled: False: a master that has not heard from an in-sync member for some time; another
            node may have been elected meanwhile, so newer messages may exist there.
    """

    node: str = ""
    role: str = ""
    age_ms: int = 0
    settled: bool = True


NO_SOURCE: Final = Source()


def parse_where(text: str | None) -> Filter | None:
    """Return the filter that ``text`` stands for; None and blanks mean all.

    Raises:
        FilterError: It is not a filter.
    """
    if text:
        UsageError.check_text("where", text)
    return parse_filter(text) if text and not text.isspace() else None


def parse_tags(text: str | None) -> frozenset[str]:
    """Return the tags in ``"a || b"``, as RocketMQ writes a choice; ``*`` or none means all.

    Raises:
        UsageError: It holds bars and no tag.

    >>> sorted(parse_tags("paid || sent"))
    ['paid', 'sent']
    """
    if text:
        UsageError.check_text("tag", text)
    words = (text or "").split("||")
    tags = frozenset(word.strip() for word in words) - {""}
    if len(words) > 1 and not tags:
        raise UsageError(f"{text!r} names no tag", code="fields", hint="write tags as in 'a || b'")
    return frozenset() if "*" in tags else tags


@dataclass(slots=True)
class Cursor:
    """Progress in one queue: the next queue offset and, exclusive, the last.

    A ``new`` queue came while the topic was read: it is read from its start.
    """

    queue: int
    next: int
    stop: int | None
    asked: bool = False
    new: bool = False

    @property
    def done(self) -> bool:
        """Whether nothing is left of it."""
        return self.stop is not None and self.next >= self.stop


@dataclass(slots=True)
class ReaderCore:
    """See the module.

    Attributes:
        messages: Read and not yet consumed.
        unrouted: Another node must be chosen (`choose`) before anything is asked.
        last: Who gave the last answer.
    """

    settings: ReadSettings
    cursors: list[Cursor]
    table: RoutingTable
    started: float
    messages: deque[Message] = field(default_factory=deque[Message])
    unrouted: bool = True
    retry_at: float = 0.0
    last: Source = NO_SOURCE
    _asked: dict[int, Cursor] = field(default_factory=dict[int, Cursor])
    _progress: float = 0.0
    _stalls: int = 0
    _tried: set[Address] = field(default_factory=set[Address])
    _prefer: tuple[str, float] | None = None
    _shunned: dict[str, float] = field(default_factory=dict[str, float])
    _left: int | None = None
    _why: TwinlogError | None = None
    _hashes: list[int] | None = None
    _with_master: float | None = None
    _at: Address | None = None
    _damaged: dict[Address, TwinlogError] = field(default_factory=dict[Address, TwinlogError])
    _ages: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        """Begin."""
        self._progress = self.started
        self._left = self.settings.limit
        self._hashes = [java_hash(tag) for tag in sorted(self.settings.tags)] or None

    @property
    def done(self) -> bool:
        """Whether every message has been read; some may wait to be consumed."""
        return self._left == 0 or all(cursor.done for cursor in self.cursors)

    def choose(self, now: float) -> Address | None:
        """Return the node to ask, or None when none that the routing table knows will do.

        That is so too when each had its turn: asked again, it begins with the first.
        """
        self._at = self._choice(now)
        return self._at

    def _choice(self, now: float) -> Address | None:
        route, wanted = self.table.route, self.settings.read_from
        if wanted == MASTER and not self.settings.staleness.given:
            return self.table.master
        if wanted not in (ANY, SLAVE, MASTER):
            node = route.node(wanted) if route else None
            return node.address if node else None
        if self._prefer is not None and now < self._prefer[1] and route is not None:
            node = route.node(self._prefer[0])
            if node is not None and node.address and not self.table.suspected(node.address):
                return node.address
        first = self._slaves() if wanted == SLAVE else []
        found = list(dict.fromkeys([*first, *self.table.candidates()]))
        found = [address for address in found if address not in self._damaged] or found
        # Each node has its turn before one is asked again, those that were silent at the end: they
        # may answer by now, while those that do answer may have nothing but old data.
        found.sort(key=self.table.suspected)
        self._tried &= set(found)
        if len(self._tried) == len(found):
            self._tried.clear()
            return None
        return next(address for address in found if address not in self._tried)

    def _slaves(self) -> list[Address]:
        """Return the slaves, those that published themselves latest first."""
        nodes = self.table.route.nodes if self.table.route else ()
        slaves = sorted((node for node in nodes if node.role == "slave"), key=lambda n: n.age)
        return [node.address for node in slaves if node.address is not None]

    def routed(self, *, fresh: bool) -> None:
        """Say that the chosen node will be asked now, over a ``fresh`` connection or as before.

        What was asked over another connection will not be answered any more.
        """
        self.unrouted, self._stalls, self._with_master = False, 0, None
        if fresh:
            self._forget()

    def _forget(self) -> None:
        for cursor in self._asked.values():
            cursor.asked = False
        self._asked.clear()

    def wanted(self, now: float) -> list[tuple[Cursor, dict[str, object]]]:
        """Return the READ requests that should be under way and are not."""
        if self.unrouted or now < self.retry_at or self.done:
            return []
        open_ = [cursor for cursor in self.cursors if not cursor.done]
        if not self.settings.follow:
            open_ = open_[:1]
        return [(cursor, self._request(cursor)) for cursor in open_ if not cursor.asked]

    def _request(self, cursor: Cursor) -> dict[str, object]:
        wait = LAG_WAIT_MS if self._stalls else 0
        if self.settings.follow and not self._stalls:
            wait = FOLLOW_WAIT_MS
        count = ANSWER_RECORDS
        if cursor.stop is not None:
            count = min(count, cursor.stop - cursor.next)
        if self._left is not None and not self.settings.tags and not self.settings.where:
            count = min(count, self._left)
        return {
            "topic": self.settings.topic,
            "queue": cursor.queue,
            "offset": cursor.next,
            "max_bytes": ANSWER_BYTES,
            "max_records": count,
            "wait_ms": wait,
            "tags": self._hashes,
            "where": self.settings.where.text if self.settings.where else None,
            "epoch": self.table.epoch,
            "max_age_ms": self.settings.staleness.max_age_ms,
        }

    def on_asked(self, number: int, cursor: Cursor) -> None:
        """Say that the request for ``cursor`` went out under ``number``."""
        cursor.asked = True
        self._asked[number] = cursor

    def on_lost(self, now: float, why: TwinlogError, pause: float) -> None:
        """Take note that the node does not answer; another is chosen after ``pause`` seconds.

        Raises:
            TwinlogError: ``why``, when there was no progress for too long.
        """
        self._forget()
        self._leave(now)
        self.unrouted, self.retry_at = True, now + pause
        self._why = self._best_reason(why)
        self.expire(now)

    def _best_reason(self, why: TwinlogError) -> TwinlogError:
        """Return the most telling reason why there is no progress: damage, old data, or ``why``."""
        if self._damaged:
            return next(iter(self._damaged.values()))
        return too_old(self._ages, self.table) if self._ages else why

    def consumed(self, now: float) -> None:
        """Take note that the caller is through with what it was given.

        How long that took says nothing of the nodes: only from now on can there be no progress.
        """
        self._progress = max(self._progress, now)

    def expire(self, now: float) -> None:
        """Raise what kept the reader from progress, when that lasted too long."""
        if self._why is not None and now - self._progress >= self.settings.timeout:
            raise self._why

    def on_answer(self, number: int, frame: Frame, now: float, pause: float) -> None:
        """Take an answer; its messages are appended to `messages`.

        Args:
            number: As given to `on_asked`.
            frame: The answer.
            now: Seconds.
            pause: How long to wait before asking again a node that made no progress.

        Raises:
            TwinlogError: The reader has ended: gone, past the end, unknown, corrupt, denied, or no
                progress for too long.
            FrameError: The node left the rules of the wire.
        """
        cursor = self._asked.pop(number, None)
        if cursor is None:
            return
        cursor.asked = False
        if frame.is_error:
            error = error_of(frame)
            if not error.retryable and not self._passed_over(error):
                raise error
            self._stall(error, now, pause, move=True)
            return
        check(frame)
        fields = frame.fields
        node, role, age = str(fields["node"]), str(fields["role"]), _whole(fields, "age_ms")
        self.last = Source(node, role, age, fields.get("settled") is not False)
        if role == MASTER and self.settings.read_from == SLAVE:
            self._look_for_a_slave(now)
        self._grow(_whole(fields, "queues"))
        match fields["status"]:
            case "found":
                self._found(cursor, frame, now)
                self._redirect(fields.get("redirect"), now)
            case "none" if self.settings.follow or _whole(fields, "next") > cursor.next:
                cursor.next = max(cursor.next, _whole(fields, "next"))
                self._progressed(now)
            case _:
                self._without(cursor, fields, now, pause)

    def _grow(self, queues: int) -> None:
        """Begin with the queues that the topic has got meanwhile."""
        cursors = self.cursors
        if not (self.settings.follow and self.settings.every) or queues <= len(cursors):
            return
        if all(cursor.stop is None for cursor in cursors):
            known = range(len(cursors), queues)
            cursors.extend(Cursor(queue, 0, None, new=True) for queue in known)

    def _passed_over(self, error: TwinlogError) -> bool:
        """Say whether another copy can be asked instead of the damaged one."""
        if not isinstance(error, CorruptionError) or self._at is None:
            return False
        if self.settings.read_from not in (ANY, SLAVE):
            return False
        self._damaged[self._at] = error
        return any(address not in self._damaged for address in self.table.candidates())

    def _look_for_a_slave(self, now: float) -> None:
        """Leave the master, which was only a stopgap, after some time: slaves come back."""
        if self._with_master is None:
            self._with_master = now
        elif now - self._with_master >= SLAVE_SECONDS:
            self.table.forgive()
            self.unrouted = True

    def _found(self, cursor: Cursor, frame: Frame, now: float) -> None:
        following, cursor.new = _whole(frame.fields, "next"), False
        if following <= cursor.next:
            raise FrameError("fields", "READ answer: next does not move on")
        stop = QUEUE_END if cursor.stop is None else cursor.stop
        if self.settings.topic.startswith(LIGHT_PREFIX):
            there = (in_light_queue(one, self.settings.topic) for one in messages_of(frame.payload))
            found = [one for one in there if cursor.next <= one.queue_offset < stop]
        else:
            found = messages_of(frame.payload, cursor.next, stop)
        if self.settings.tags:
            found = [one for one in found if one.tag in self.settings.tags]
        where = self.settings.where
        if where is not None and "skipped" not in frame.fields:
            # a node that does not say so is too old to have filtered
            found = [one for one in found if where.matches(one.properties)]
        if self._left is not None:
            found = found[: self._left]
            self._left -= len(found)
        self.messages.extend(found)
        cursor.next = following
        self._progressed(now)

    def _progressed(self, now: float) -> None:
        self._progress, self._why, self._stalls = now, None, 0
        self._tried.clear()
        self._damaged.clear()
        self._ages.clear()

    def _redirect(self, value: object, now: float) -> None:
        """Follow the master's advice to read cold data elsewhere, unless the caller named one."""
        if self.settings.read_from != ANY or not isinstance(value, dict):
            return
        advice: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType]
        node = advice.get("node")
        if isinstance(node, str) and self._shunned.get(node, now) <= now:
            self._prefer = (node, now + _whole(advice, "valid_ms") / 1000)
            self.unrouted = True

    def _without(
        self, cursor: Cursor, fields: Mapping[str, object], now: float, pause: float
    ) -> None:
        """An answer without records: what is missing, and is it missing for good?"""
        topic, queue, status = self.settings.topic, cursor.queue, fields["status"]
        node, role = str(fields["node"]), fields["role"]
        here = f"{topic}/{queue}@{cursor.next} on {node}"
        match status:
            case "before-start" if cursor.new:
                cursor.next, cursor.new = _whole(fields, "start"), False
                self._progressed(now)
                return
            case "before-start":
                start = _whole(fields, "start")
                hint = f"the first that is kept is {start}; read on from there: {start}:"
                text = f"{here} is no longer kept"
                error: TwinlogError = OffsetGone(text, hint=hint, start=start, queue=queue)
                if role == MASTER or self.settings.read_from not in (ANY, SLAVE):
                    raise error
            case "past-end" if role == MASTER:
                end, text = _whole(fields, "end"), f"{here} lies past the end of the queue"
                error = OffsetBeyond(text, end=end, queue=queue)
            case "unknown-topic" | "unknown-queue" if role == MASTER:
                error = UnknownTopic.named(topic, str(status))
            case "above-confirm":
                confirm = _whole(fields, "confirm")
                error = NotYetConfirmed(f"{here} is not confirmed", confirm=confirm)
            case "stale":
                self._ages[node] = _whole(fields, "age_ms")
                error = too_old(self._ages, self.table)
            case _:
                error = Unavailable(f"{here} is not there yet ({status})")
        self._stall(error, now, pause, move=status in ("stale", "before-start"))

    def _stall(self, error: TwinlogError, now: float, pause: float, *, move: bool) -> None:
        self._why = self._best_reason(error) if error.code == "stale" else error
        self._stalls += 1
        self.retry_at = now + pause
        if move or self._stalls >= STALLS_MAX or error.code == "not-master":
            self.unrouted = True
            self._leave(now)
        self.expire(now)

    def _leave(self, now: float) -> None:
        """Leave the node that is asked: the one that was advised for some time, another for a turn.

        Who gave the advice is asked next: it can serve, only not as cheaply.
        """
        if self._prefer is not None and now < self._prefer[1]:
            kept = {name: until for name, until in self._shunned.items() if until > now}
            self._shunned = {**kept, self._prefer[0]: now + SHUN_SECONDS}
            self._prefer = None
        elif self._at is not None:
            self._tried.add(self._at)


def _whole(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0

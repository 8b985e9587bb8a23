"""The producer: records in, sections out, each stored once and in order, whatever happens between.

Records are encoded into the open section of their queue (a *lane*). A section closes when it is
full, when its linger has passed, or on flush; from then on its bytes never change, and every
attempt to send it sends the same. The node keeps the last sections of every lane, so an attempt
that had arrived after all is answered "duplicate", which is success here.

The order within a lane is kept through every failure. At most ``window`` sections of a lane are
under way. When one of them does not succeed, nothing more of the lane is sent until all answers are
in (or the connection is lost); then everything unanswered goes again, oldest first. What comes of
a section:

* stored, duplicate: done;
* refused for now (not the master, too few in sync, busy, full disk), unknown, connection lost:
  again, until the section's deadline;
* out of sequence behind a section that is to go again: again; as the first of its lane: the node
  has lost what it had acknowledged. Reported, and the lane begins a new producer epoch;
* refused for good (a bad record, no such topic): reported; later sections take its number;
* at the deadline: not stored if no attempt can have arrived, else unknown. Either way the lane
  begins a new producer epoch, so no late attempt of the old one can slip in between.

Pure: no clock, socket or thread. The shell calls `add`, `next_request`, `on_answer`, `on_lost`,
`expire`, and looks at `full`, `unrouted`, `retry_at`. Times are seconds of one monotonic clock,
handed in; only records carry wall time (ms).

Sources: protocol notes section 6; Kafka's idempotent producer (window of 5, resend in order).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from twinlog.errors import (
    OutcomeUnknown,
    OutOfSequence,
    RecordRefused,
    TwinlogError,
    Unavailable,
    from_code,
)
from twinlog.inner_batches import InnerEncoder
from twinlog.lane import Lane
from twinlog.link import error_of
from twinlog.outgoing import PROPERTIES_MAX, Section, State, checked_birth, property_text
from twinlog.producer_settings import SECTION_MAX, ProducerSettings, Statistics, Target
from twinlog.record import RecordEncoder, java_hash
from twinlog.session import backoff
from twinlog.shapes import check
from twinlog.units import KiB
from twinlog.wire import Frame, FrameError

FRAME_SIZE: Final = 256 * KiB
"""Small sections that wait at the same time share a frame up to this payload."""

FAILURES_MAX: Final = 1000
"""Sections without success that are kept for `collect`; the statistics count all of them."""

NO_LIGHT: Final = "messages of a batch topic go to no light queue"

RETRY_CODES: Final = frozenset(
    {"not-master", "not-enough-in-sync", "busy", "disk-full", "disk", "unavailable", "stopping"}
)
"""Refusals after which the same section may be stored later."""

_STORED, _DUPLICATE, _REFUSED, _UNKNOWN = range(4)


@dataclass(slots=True)
class Request:
    """One APPEND: its fields, its payload in pieces, and until when an answer is of use."""

    number: int
    fields: dict[str, object]
    pieces: list[memoryview | bytes]
    deadline: float


class ProducerCore:
    """See the module.

    Args:
        target: Where the records go.
        settings: How.
        wall_ms: Wall time for the records, ms since 1970.
        now: Monotonic seconds.
        random: Numbers from 0 to 1 for the jitter of retries.
    """

    def __init__(
        self,
        target: Target,
        settings: ProducerSettings,
        *,
        wall_ms: Callable[[], int],
        now: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self.target = target
        self.settings = settings
        self.statistics = Statistics()
        self.failures: list[Section] = []
        """Sections refused or unknown that nobody has collected yet."""
        self.unrouted = True
        """The master must be looked for before anything is sent."""
        self.refusal: TwinlogError | None = None
        """What the last node refused everything with."""
        self.retry_at = 0.0
        """Nothing is sent before this time."""
        self.due = False
        """A section has closed since the last `next_request`."""
        self._wall_ms, self._now, self._random = wall_ms, now, random
        self._batch = max(1, min(settings.batch, target.segment_size // 4))
        self._large = min(64 * KiB, target.message_size_max)
        self._lanes = [self._lane(queue) for queue in range(target.queues)]
        self._current = self._lanes[0]
        self._turn: deque[Lane] = deque()
        self._requests: dict[int, list[Section]] = {}
        self._number = 0
        self._attempt = 0
        self._bytes = 0
        self._crowded: Lane | None = None
        self._ended: TwinlogError | None = None
        self._earliest = math.inf

    def _lane(self, queue: int) -> Lane:
        target = self.target
        encoder = RecordEncoder(
            target.topic, queue, family=target.family, born_host=target.born_host
        )
        inner = InnerEncoder(encoder, target.message_size_max) if target.batch else None
        epoch = target.first_epoch if target.epoch is None else target.epoch
        return Lane(queue, encoder, epoch, inner)

    # ── records in ──────────────────────────────────────────────────────────────────────────────

    def add(
        self,
        body: bytes,
        key: str | None = None,
        tag: str | None = None,
        order_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        *,
        flags: int = 0,
        light: Sequence[str] = (),
        born_ms: int | None = None,
    ) -> Section:
        """Put one record into the open section of its queue and return that section.

        ``queue`` chooses the queue, else ``order_key`` does, else sections take turns; ``key``
        never does. The record's number in the section is ``section.count - 1`` right after.
        ``flags`` is the system flag of a body that is compressed already, ``light`` names light
        queues that the record also goes to, ``born_ms`` when it was born; None: now.

        Raises:
            RecordRefused: The record cannot be stored; nothing was added.
            TwinlogError: A section before it had no success, and the epoch was given.
        """
        if self._ended is not None:
            raise self._ended
        if queue is None and order_key is None:
            lane = self._current
        else:
            lane = self._chosen(order_key, queue)
        if key is None and tag is None and order_key is None and not properties and not light:
            text = b""
        else:
            text = property_text(key, tag, order_key, properties, light)
            if len(text) > PROPERTIES_MAX:
                raise too_many_properties(len(text))
        if len(body) > self._large:
            self._make_room(lane, len(body))
        now = self._wall_ms()
        born = now if born_ms is None else checked_birth(born_ms)
        section = lane.open
        if lane.inner is not None:
            if light:
                raise RecordRefused(NO_LIGHT, record=0, reason="light-queues")
            section = lane.open = section or self._begin(lane, now)
            size = lane.inner.add(body, text, sys_flag=flags, born_timestamp=born, key=key, tag=tag)
        elif section is None:
            section = self._begin(lane, now)
            text += section.mark
            size = lane.encoder.add(body, properties=text, sys_flag=flags, born_timestamp=born)
            section.first(size, len(text))
            lane.open = section
        else:
            size = lane.encoder.add(body, properties=text, sys_flag=flags, born_timestamp=born)
        section.count += 1
        section.size += size
        if section.size >= self._batch or now >= section.due:
            self._ripe(lane, section)
        return section

    def _chosen(self, order_key: str | None, queue: int | None) -> Lane:
        if queue is None:
            return self._lanes[abs(java_hash(order_key or "")) % len(self._lanes)]
        if not 0 <= queue < len(self._lanes):
            text = f"{self.target.topic} has queues 0 to {len(self._lanes) - 1}, not {queue}"
            raise RecordRefused(text, record=0, reason="queue")
        return self._lanes[queue]

    def _make_room(self, lane: Lane, size: int) -> None:
        """Refuse a body that is too large; close the open section if a large one would not fit."""
        limit = self.target.message_size_max
        if size > limit:
            text = f"the message has {size} bytes, at most {limit} fit"
            hint = "store large values elsewhere and send their address"
            raise RecordRefused(text, hint=hint, record=0, reason="size")
        if lane.open is not None and lane.open.size + size > SECTION_MAX - 64 * KiB:
            self._close(lane, lane.open)

    def _begin(self, lane: Lane, now_ms: int) -> Section:
        return Section(
            self.target.topic,
            lane.queue,
            producer=self.target.producer,
            epoch=lane.epoch,
            sequence=lane.sequence,
            due=now_ms + self.settings.linger * 1000,
        )

    def _ripe(self, lane: Lane, section: Section) -> None:
        """Close a section that is full or old; an old one goes on filling while it could not go."""
        if section.size >= self._batch or lane.load < self.settings.window:
            self._close(lane, section)

    def _close(self, lane: Lane, section: Section) -> None:
        lane.open = None
        if lane.inner is None:
            section.seal(lane.encoder.take())
        else:
            data, records, size, text = lane.inner.take(section.mark)
            section.first(size, text)
            section.seal(data, records)
        self.limit(section, self._now() + self.settings.timeout)
        lane.sequence += section.records
        lane.waiting.append(section)
        self._bytes += section.size
        self.statistics.records += section.count
        self.statistics.bytes += section.size
        self.statistics.sections += 1
        self.due = True
        if len(lane.waiting) == 1:
            self._turn.append(lane)
        elif len(lane.waiting) > self.settings.window:
            self._crowded = lane
        if lane is self._current:
            self._take_turns(lane)

    def _take_turns(self, lane: Lane) -> None:
        """Let the next queue with room in its window have the next section."""
        lanes, window = self._lanes, self.settings.window
        for step in range(1, len(lanes)):
            other = lanes[(lane.queue + step) % len(lanes)]
            if other.load < window:
                self._current = other
                return
        self._current = lanes[(lane.queue + 1) % len(lanes)]

    def close(self, section: Section) -> None:
        """Close one section, unless it is closed already."""
        lane = self._lanes[section.queue]
        if lane.open is section:
            self._close(lane, section)

    def close_all(self) -> None:
        """Close every open section: nothing waits for more records."""
        for lane in self._lanes:
            if lane.open is not None:
                self._close(lane, lane.open)

    def close_old(self) -> None:
        """Close the sections whose linger has passed."""
        now = self._wall_ms()
        for lane in self._lanes:
            if lane.open is not None and now >= lane.open.due:
                self._ripe(lane, lane.open)

    def linger_left(self) -> float | None:
        """Return the seconds until an open section has lingered enough; None: nothing to wait for.

        Sections that could not be sent then do not count.
        """
        window = self.settings.window
        open_ = [lane.open.due for lane in self._lanes if lane.open and lane.load < window]
        return max(0.0, (min(open_) - self._wall_ms()) / 1000) if open_ else None

    # ── how it stands ───────────────────────────────────────────────────────────────────────────

    @property
    def full(self) -> bool:
        """Whether the caller should wait before it adds more."""
        crowded = self._crowded
        if crowded is not None:
            if len(crowded.waiting) > self.settings.window:
                return True
            self._crowded = None
        return self._bytes >= self.settings.bytes_in_flight

    @property
    def idle(self) -> bool:
        """Whether every closed section has its final answer."""
        return self._bytes == 0

    @property
    def epoch(self) -> int:
        """The highest producer epoch that a lane has begun."""
        return max(lane.epoch for lane in self._lanes)

    @property
    def in_flight(self) -> int:
        """Requests that are sent and not answered."""
        return len(self._requests)

    @property
    def deadline(self) -> float:
        """A time before which no section's deadline passes; infinity when none is unanswered."""
        return self._earliest if self._bytes else math.inf

    def limit(self, section: Section, deadline: float) -> None:
        """Give a closed section a deadline of its own."""
        section.deadline = deadline
        self._earliest = min(self._earliest, deadline)

    # ── requests out, answers in ────────────────────────────────────────────────────────────────

    def next_request(self, now: float) -> Request | None:
        """Return the next APPEND to send, or None when nothing may go now.

        Its sections count as sent from here on; if it cannot be sent, call `on_lost`.
        """
        self.due = False
        if not self._turn or now < self.retry_at or self.unrouted:
            return None
        sections: list[Section] = []
        size = 0
        while self._turn:
            lane = self._turn[0]
            if not lane.may_send(self.settings.window):
                self._turn.popleft()
                continue
            section = lane.waiting[0]
            if sections and size + section.size > FRAME_SIZE:
                break
            lane.waiting.popleft()
            lane.sent.append(section)
            sections.append(section)
            size += section.size
            if lane.waiting:
                self._turn.rotate(-1)
            else:
                self._turn.popleft()
        return self._request(sections, now) if sections else None

    def _request(self, sections: list[Section], now: float) -> Request:
        self._number += 1
        left = min([section.deadline for section in sections]) - now
        for section in sections:
            self.statistics.resent += section.attempts > 0
            section.attempts += 1
            section.state = State.SENT
        self._requests[self._number] = sections
        self.statistics.requests += 1
        fields: dict[str, object] = {
            "ack": self.settings.acknowledge,
            "timeout_ms": max(1, int(left * 1000)),
            "sections": [section.row() for section in sections],
        }
        pieces: list[memoryview | bytes] = [memoryview(section.data) for section in sections]
        return Request(self._number, fields, pieces, now + left)

    def on_answer(self, number: int, frame: Frame, now: float) -> None:
        """Take the answer to request ``number``.

        Raises:
            FrameError: It does not fit the request; close the connection and call `on_lost`.
        """
        sections = self._requests.pop(number, None)
        if sections is None:
            return
        try:
            if frame.is_error:
                self._refused_all(sections, error_of(frame), now)
                return
            check(frame)
            rows = frame.fields["results"]
            assert isinstance(rows, list), "shapes.check"
            results: list[list[object]] = rows  # pyright: ignore[reportUnknownVariableType]
            if len(results) != len(sections):
                raise FrameError("fields", f"{len(results)} results for {len(sections)} sections")
        except FrameError:
            self._requests[number] = sections
            raise
        by = frame.fields.get("confirmed_by")
        names: list[object] = by if isinstance(by, list) else []  # pyright: ignore[reportUnknownVariableType]
        holders = tuple([str(name) for name in names])
        buffered, epoch = frame.fields.get("buffered") is True, _whole(frame.fields.get("epoch"))
        for section, row in zip(sections, results, strict=True):
            section.confirmed_by, section.buffered = holders, buffered
            section.master_epoch = epoch
            self._result(section, row, now)

    def _refused_all(self, sections: list[Section], error: TwinlogError, now: float) -> None:
        """One refusal for a whole request."""
        for section in sections:
            if isinstance(error, OutcomeUnknown):
                section.maybe = True
                self._repeat(section, now)
            else:
                self._refused(section, error, now)

    def _result(self, section: Section, row: list[object], now: float) -> None:
        lane = self._lanes[section.queue]
        if section not in lane.sent:
            return
        outcome = _whole(row[0])
        if outcome in (_STORED, _DUPLICATE):
            section.queue_offset, section.log_offset = _whole(row[1]), _whole(row[2])
            self.statistics.duplicates += outcome == _DUPLICATE
            self.statistics.acknowledged += section.count
            self._attempt = 0
            self.refusal = None
            self._finish(lane, section, State.STORED, now)
        elif outcome == _REFUSED:
            code, record = str(row[4]), _whole(row[6])
            facts = {"record": record, "reason": code} if record >= 0 else {}
            error = from_code(code, str(row[5]), retryable=code in RETRY_CODES, facts=facts)
            self._refused(section, error, now)
        else:
            section.maybe = True
            self._repeat(section, now)

    def _refused(self, section: Section, error: TwinlogError, now: float) -> None:
        """A definite no to this attempt; earlier ones may still have been stored."""
        lane = self._lanes[section.queue]
        if section not in lane.sent:
            return
        if error.retryable:
            self.refusal = error
            self.unrouted = self.unrouted or error.code == "not-master"
            self._repeat(section, now)
        elif not isinstance(error, OutOfSequence):
            section.error = error
            lane.gap = section.sequence if lane.gap is None else min(lane.gap, section.sequence)
            lane.held = True
            self._finish(lane, section, State.REFUSED, now)
        elif lane.gap is None and lane.first() is section:
            self._break(lane, error, now)
        else:
            self._repeat(section, now)

    def _repeat(self, section: Section, now: float) -> None:
        """Have a section sent again once the lane's other answers are in."""
        lane = self._lanes[section.queue]
        if section not in lane.sent:
            return
        lane.repeat(section)
        if now >= self.retry_at:
            self.retry_at = now + backoff(self._attempt, self._random())
            self._attempt += 1
        self._release(lane)

    def _release(self, lane: Lane) -> None:
        ready = lane.release()
        if lane.gap is not None and not lane.held:
            if lane.open is not None:
                self._close(lane, lane.open)
            lane.close_gap()
            ready = bool(lane.waiting)
        if ready and lane not in self._turn:
            self._turn.append(lane)

    def _finish(self, lane: Lane, section: Section, state: State, now: float) -> None:
        lane.sent.remove(section)
        if state is State.STORED:
            lane.stored(section)
        self._settle(section, state, now)
        self._release(lane)

    def _settle(self, section: Section, state: State, now: float) -> None:
        if section.error is not None and self.target.epoch is not None:
            self._ended = self._ended or section.error
        self._bytes -= section.size
        section.state, section.answered = state, now
        section.data = bytearray()
        if state is State.REFUSED:
            self.statistics.refused += section.count
        elif state is State.UNKNOWN:
            self.statistics.unknown += section.count
        if section.error is not None and len(self.failures) < FAILURES_MAX:
            self.failures.append(section)

    def _break(self, lane: Lane, error: TwinlogError, now: float) -> None:
        """Give up what the lane has not got answered and begin a new producer epoch."""
        if lane.open is not None:
            self._close(lane, lane.open)
        for section in lane.unanswered():
            maybe = section.maybe or section.state is State.SENT
            if isinstance(error, OutOfSequence) or not maybe:
                section.error = error
                self._settle(section, State.REFUSED, now)
            else:
                text = "the section may or may not be stored: no node answered in time"
                hint = "sending it again is safe when consumers can bear a duplicate"
                section.error = OutcomeUnknown(text, hint=hint, topic=section.topic)
                self._settle(section, State.UNKNOWN, now)
        lane.renew()

    def on_lost(self, now: float) -> None:
        """Take note that the connection ended: whatever was under way goes again."""
        self.unrouted = True
        for sections in list(self._requests.values()):
            for section in sections:
                section.maybe = True
                self._repeat(section, now)
        self._requests.clear()

    def postpone(self, now: float, error: TwinlogError) -> None:
        """Take note that no master could be reached because of ``error``; wait a little."""
        self.refusal = error
        self.retry_at = now + backoff(self._attempt, self._random())
        self._attempt += 1

    def expire(self, now: float) -> None:
        """Give up the sections whose deadline has passed, and with them their lane's later ones."""
        if now < self._earliest:
            return
        for lane in self._lanes:
            first = lane.first()
            if first is not None and now >= first.deadline:
                why = f": {self.refusal.text}" if self.refusal is not None else ""
                hint = self.refusal.hint if self.refusal is not None else None
                text = f"no node took the section in time{why}"
                self._break(lane, Unavailable(text, hint=hint), now)
        for number, sections in list(self._requests.items()):
            if all(section.done for section in sections):
                del self._requests[number]  # its answer would change nothing any more
        firsts = [lane.first() for lane in self._lanes]
        self._earliest = min((first.deadline for first in firsts if first), default=math.inf)

    def collect(self) -> list[Section]:
        """Return the sections that did not succeed since the last call."""
        found, self.failures = self.failures, []
        return found


def raised_for(failures: Sequence[Section]) -> TwinlogError | None:
    """Return what is raised for sections without success, None when there is none.

    The first of their errors, but unknown before not stored: whoever sees one error of many must
    not take what may be in the log for what is not.
    """
    errors = [section.error for section in failures if section.error is not None]
    unknown = (error for error in errors if isinstance(error, OutcomeUnknown))
    return next(unknown, errors[0] if errors else None)


def too_many_properties(size: int) -> RecordRefused:
    """Return the refusal of a record whose properties have ``size`` bytes."""
    text = f"the properties have {size} bytes, at most {PROPERTIES_MAX} fit"
    return RecordRefused(text, record=0, reason="properties")


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0

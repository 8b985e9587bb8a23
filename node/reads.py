"""Reads of one node: bounded by confirm, slices of the log, parked while nothing is new.

A read ends in one of three ways: an answer at once, a place among the parked readers (long poll),
or work for a thread because the data is no longer in memory (`Cold`). Which, is decided here;
threads and sockets are the client server's.

Rules:

* before the start, past the end and above confirm are three different answers, and no answer ever
  moves a reader's progress by itself: ``next`` is only what the reader may ask for next;
* a slave answers ``stale`` when it has not heard from its master for longer than ``staleness_max``;
* a parked reader is looked at again only when dispatch moved and its queue grew, and is answered
  ``none`` at its deadline at the latest.

Units: queue offsets are counts of records; ages and waits are seconds inside, ms on the wire.
Sources: protocol.md 1 and 9, replication.md G.12, architecture.md D14.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from node.limits import Limits, MiB
from replication.view import RoleView
from storage.epoch_history import Epoch
from storage.filtering import Sieve, sieve
from storage.reads import ReadResult, ReadStatus
from twinlog.errors import TwinlogError, UnknownTopic, UsageError

MAX_BYTES_DEFAULT = MiB
MAX_RECORDS_DEFAULT = 65_536
REDIRECT_SECONDS = 30
AGE_UNKNOWN_MS = 1 << 40
"""An age beyond every limit: 34 years."""
SKIPS_MAX = 64
"""Answers without a matching tag that one turn walks over before it lets others run."""
SIFTS_MAX = 2
"""The same for a filter over properties, which costs some microseconds for each record: together
about ten milliseconds. Then the reader is answered without records: ``next`` and ``skipped`` say
how far it came."""


class ReadAsker(Protocol):
    """Who waits for records: a client connection, or a test."""

    def read_answered(self, request: int, answer: ReadAnswer) -> None:
        """The answer of a parked read, or of one that was answered at once."""
        ...

    def read_failed(self, request: int, error: TwinlogError) -> None:
        """Nothing is served: the bytes are damaged, or the queue is no more."""
        ...

    @property
    def gone(self) -> bool:
        """Whether nobody hears an answer any more."""
        ...

    def broke(self, error: Exception) -> None:
        """A defect kept it from its answer; raises where that concerns the node."""
        ...

    async def taken(self) -> None:
        """Wait until every answer so far has left, or the asker is gone."""
        ...


class ReadStore(Protocol):
    """The part of the store this module uses."""

    @property
    def confirm(self) -> int:
        """The confirm offset."""
        ...

    @property
    def dispatched(self) -> int:
        """The dispatched offset."""
        ...

    def queue_range(self, topic: str, queue: int) -> tuple[int, int]:
        """First and next queue offset."""
        ...

    def read(
        self,
        topic: str,
        queue: int,
        queue_offset: int,
        *,
        max_bytes: int,
        max_records: int,
        tag_hashes: frozenset[int] | None = None,
        where: Sieve | None = None,
    ) -> ReadResult:
        """Records from a queue offset on, as slices of the log."""
        ...

    def fetched(self, result: ReadResult, outcome: ReadResult | Exception) -> ReadResult:
        """What may be served of a cold answer after its thread; raises what the reader is told."""
        ...


@dataclass(frozen=True, slots=True)
class Standing:
    """What a node is at the moment of an answer."""

    node: str
    role: str
    age_seconds: float
    """Infinite on a node that has not heard of a master."""
    redirect: str | None
    """An in-sync slave that serves cold data instead, on a master; None elsewhere."""
    epoch: int
    """Of the role; the promised one without a role."""

    @classmethod
    def of(cls, view: RoleView, node: str) -> Standing:
        """Return what the view of node ``node`` says."""
        age, redirect = view.age_seconds, None
        if view.role == "master":
            age = 0.0
            redirect = min((peer.name for peer in view.peers if peer.in_sync), default=None)
        return cls(node, view.role, float("inf") if age is None else age, redirect, view.epoch)

    def knows(self, epochs: Sequence[Epoch], confirm: int) -> bool:
        """Whether everything that was acknowledged before this moment lies below ``confirm``.

        A new master has it all, but knows what of it was confirmed only once the record that opens
        its epoch is: until then its confirm offset may be behind what clients were told. Of what
        a successor acknowledges, a master that has not heard of it knows nothing.

        Args:
            epochs: Of the node's log, oldest first.
            confirm: Its confirm offset, now or at the beginning of what is answered.
        """
        if self.role != "master" or not epochs:
            return False
        newest = epochs[-1]
        return newest.epoch == self.epoch and newest.start < confirm

    def doubted(self, error: TwinlogError) -> TwinlogError:
        """Return the error for what is not here; a node that is no master says so in it.

        Who asked it as the master then asks again: it may exist elsewhere.
        """
        if self.role != "master":
            error.facts = {**error.facts, "settled": False}
        return error

    @property
    def age_ms(self) -> int:
        """The age as the wire carries it; `AGE_UNKNOWN_MS` where there is none."""
        return round(min(self.age_seconds * 1000, AGE_UNKNOWN_MS))


@dataclass(slots=True, eq=False)
class ReadRequest:
    """One READ of a client."""

    asker: ReadAsker
    request: int
    topic: str
    queue: int
    offset: int
    max_bytes: int
    max_records: int
    tags: frozenset[int] | None
    where: Sieve | None
    deadline: float
    """Until when it may be parked; at or before its arrival: not at all."""
    skipped: int = 0
    """Records that were looked at and left out so far."""


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """Fields and payload of the answer to a READ."""

    fields: Mapping[str, object]
    slices: Sequence[memoryview]
    found: ReadResult | None = None
    """Where the slices came from, with what else it says of them: their CRC, what may be lent."""


@dataclass(frozen=True, slots=True)
class Cold:
    """The data lies outside the hot window: fetch it in a thread, then answer."""

    request: ReadRequest
    result: ReadResult


@dataclass(slots=True)
class ReadCounts:
    """What was served since the start; never falls."""

    records: dict[str, int] = field(default_factory=dict[str, int])
    size: dict[str, int] = field(default_factory=dict[str, int])
    parked: int = 0
    cold: int = 0
    stale: int = 0


def parse_read(
    asker: ReadAsker,
    request: int,
    fields: Mapping[str, object],
    limits: Limits,
    *,
    now: float,
) -> ReadRequest:
    """Return the read a client asks for, its wishes cut to the node's limits.

    Raises:
        UsageError: A field is missing or not of its kind, or ``where`` is no filter.
    """
    topic, queue, offset = fields.get("topic"), fields.get("queue"), fields.get("offset")
    if not isinstance(topic, str) or not isinstance(queue, int) or not isinstance(offset, int):
        raise UsageError("a read names topic, queue and offset", code="fields")
    wait = min(_whole(fields, "wait_ms", 0) / 1000, limits.long_poll_seconds_max)
    size = min(_whole(fields, "max_bytes", MAX_BYTES_DEFAULT), limits.response_size_max)
    return ReadRequest(
        asker=asker,
        request=request,
        topic=topic,
        queue=queue,
        offset=offset,
        max_bytes=max(size, 1),
        max_records=max(_whole(fields, "max_records", MAX_RECORDS_DEFAULT), 1),
        tags=_tags(fields.get("tags")),
        where=_where(fields.get("where")),
        deadline=now + wait,
    )


def _whole(fields: Mapping[str, object], name: str, default: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or value < 0:
        raise UsageError(f"{name} is a whole number", code="fields")
    return value


def _tags(value: object) -> frozenset[int] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise UsageError("tags is a list of hashes", code="fields")
    hashes: set[int] = set()
    for item in value:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(item, int):
            raise UsageError("tags is a list of hashes", code="fields")
        hashes.add(item)
    return frozenset(hashes) or None


def _where(value: object) -> Sieve | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise UsageError("where is a filter as text", code="fields")
    return sieve(value)


_STATUS = {
    ReadStatus.FOUND: "found",
    ReadStatus.NONE: "none",
    ReadStatus.BEFORE_START: "before-start",
    ReadStatus.PAST_END: "past-end",
    ReadStatus.ABOVE_CONFIRM: "above-confirm",
    ReadStatus.UNKNOWN_TOPIC: "unknown-topic",
    ReadStatus.UNKNOWN_QUEUE: "unknown-queue",
}


class Reads:
    """Answers the reads of a node and keeps those that wait for new records."""

    def __init__(
        self, store: ReadStore, standing: Callable[[], Standing], *, staleness_max: float
    ) -> None:
        self._store = store
        self._standing = standing
        self._staleness_max = staleness_max
        self._parked: dict[tuple[str, int], list[ReadRequest]] = {}
        self._seen = store.dispatched
        self.waiting = 0
        """Reads that are parked now."""
        self.counts = ReadCounts()

    def serve(self, request: ReadRequest, now: float) -> Cold | None:
        """Answer or park the read; a `Cold` is the caller's to finish with `finish`."""
        try:
            return self._serve(request, now)
        except TwinlogError as error:
            request.asker.read_failed(request.request, error)
        except Exception as error:
            request.asker.broke(error)  # parked reads of others are looked at in the same turn
        return None

    def _serve(self, request: ReadRequest, now: float) -> Cold | None:
        standing = self._standing()
        if standing.role != "master" and standing.age_seconds > self._staleness_max:
            self.counts.stale += 1
            self._reply(request, standing, "stale", None, ())
            return None
        result = self._look(request)
        for _ in range((SKIPS_MAX if request.where is None else SIFTS_MAX) - 1):
            if result.status is not ReadStatus.FOUND or result.count:
                break
            self._skip(request, result)
            result = self._look(request)
        if result.status is ReadStatus.NONE and request.deadline > now:
            self._park(request)
            return None
        if result.cold and result.count:
            self.counts.cold += 1
            return Cold(request, result)
        self._reply(request, standing, _STATUS[result.status], result, result.slices)
        return None

    def _skip(self, request: ReadRequest, result: ReadResult) -> None:
        """Go on behind records that were all left out."""
        request.skipped += result.next - request.offset
        request.offset = result.next

    def _look(self, request: ReadRequest) -> ReadResult:
        return self._store.read(
            request.topic,
            request.queue,
            request.offset,
            max_bytes=request.max_bytes,
            max_records=request.max_records,
            tag_hashes=request.tags,
            where=request.where,
        )

    def finish(self, cold: Cold, fetched: ReadResult | Exception) -> int:
        """Answer a cold read with what the thread brought; return its bytes.

        Raises:
            TwinlogError: Nothing of it may be served.
        """
        found = self._store.fetched(cold.result, fetched)
        self._reply(cold.request, self._standing(), "found", found, found.slices)
        return sum(len(piece) for piece in found.slices)

    def wake(self, now: float) -> list[Cold]:
        """Serve the parked readers whose queue grew; call after dispatch may have moved."""
        dispatched = self._store.dispatched
        if dispatched == self._seen or not self._parked:
            self._seen = dispatched
            return []
        self._seen = dispatched
        cold: list[Cold] = []
        for key in list(self._parked):
            waiting = self._parked[key]
            if not self._grew(key, waiting):
                continue
            del self._parked[key]
            self.waiting -= len(waiting)
            for request in waiting:
                found = self.serve(request, now)
                if found is not None:
                    cold.append(found)
        return cold

    def _grew(self, key: tuple[str, int], waiting: Sequence[ReadRequest]) -> bool:
        """Whether one of the readers has something to hear, be it that its topic is gone."""
        try:
            end = self._store.queue_range(*key)[1]
        except UnknownTopic:
            return True
        return any(request.offset < end for request in waiting)

    def expire(self, now: float) -> None:
        """Answer the parked readers whose time is over with ``none``."""
        for key in list(self._parked):
            due = [request for request in self._parked[key] if request.deadline <= now]
            for request in due:
                self._unpark(key, request)
                self.serve(request, now)

    def forget(self, asker: ReadAsker) -> None:
        """Drop the parked reads of a connection that is gone."""
        for key in list(self._parked):
            for request in [held for held in self._parked[key] if held.asker is asker]:
                self._unpark(key, request)

    def _park(self, request: ReadRequest) -> None:
        self.counts.parked += 1
        self.waiting += 1
        self._parked.setdefault((request.topic, request.queue), []).append(request)

    def _unpark(self, key: tuple[str, int], request: ReadRequest) -> None:
        held = self._parked[key]
        held.remove(request)
        self.waiting -= 1
        if not held:
            del self._parked[key]

    def _reply(
        self,
        request: ReadRequest,
        standing: Standing,
        status: str,
        result: ReadResult | None,
        slices: Sequence[memoryview],
    ) -> None:
        count = 0 if result is None else result.count
        if count:
            topic = request.topic
            size = sum(len(piece) for piece in slices)
            self.counts.records[topic] = self.counts.records.get(topic, 0) + count
            self.counts.size[topic] = self.counts.size.get(topic, 0) + size
        redirect = None
        if result is not None and result.cold and standing.redirect is not None:
            redirect = {"node": standing.redirect, "valid_ms": REDIRECT_SECONDS * 1000}
        fields: dict[str, object] = {
            "status": status,
            "next": request.offset if result is None else result.next,
            "start": 0 if result is None else result.start,
            "end": 0 if result is None else result.end,
            "count": count,
            "confirm": self._store.confirm,
            "age_ms": standing.age_ms,
            "node": standing.node,
            "role": standing.role,
            "redirect": redirect,
        }
        if result is None or not result.unsifted:  # without it the reader filters by itself
            fields["skipped"] = request.skipped + _left_out(request, result)
        request.asker.read_answered(request.request, ReadAnswer(fields, slices, result))


def _left_out(request: ReadRequest, result: ReadResult | None) -> int:
    """Return how many records of the last look were left out."""
    if result is None or result.status is not ReadStatus.FOUND:
        return 0
    return result.next - request.offset - result.count

"""Reads of one node: bounded by confirm, served as slices of the log, parked without new records.

A read ends in one of three ways: an answer at once, a place among the parked readers (long poll),
or work for a thread because some of the data must come from the disk (`Cold`). That is decided
here; threads and sockets belong to the client server.

Rules:

* before the start, past the end and above confirm are three different answers, and no answer ever
  moves a reader's progress by itself: ``next`` is only what the reader may ask for next;
* a slave answers ``stale`` when it has not heard from its master for longer than ``staleness_max``,
  or than the reader itself said it accepts (``max_age_ms``);
* a parked reader is checked again only when its queue grew, and is answered ``none`` at its
  deadline at the latest.

Units: queue offsets are counts of records; ages and waits are seconds inside, ms on the wire.
Rules: docs/protocol.md R52, R53.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from node.clients.freshness import Freshness
from node.clients.limits import Limits, MiB
from storage.read.filters import PropertyFilter, property_filter
from storage.read.result import ReadResult, ReadStatus
from twinlog.errors import (
    Busy,
    NotYetConfirmed,
    TwinlogError,
    UnknownTopic,
    UsageError,
)

if TYPE_CHECKING:
    from storage.reads import StoreReads

MAX_BYTES_DEFAULT = MiB
MAX_RECORDS_DEFAULT = 65_536
REDIRECT_SECONDS = 30
SKIPS_MAX = 64
"""Results without a matching tag that one turn skips before it lets others run."""
SIFTS_MAX = 2
"""The same for a filter over properties, which costs some microseconds for each record: together
about ten milliseconds. Then the reader is answered without records: ``next`` and ``skipped`` say
how far it came."""


class ReadAsker(Protocol):
    """Receives the answer to a read: a client connection, or a test."""

    def read_answered(self, request: int, answer: ReadAnswer) -> None:
        """The answer of a parked read, or of one that was answered at once."""
        ...

    def read_failed(self, request: int, error: TwinlogError) -> None:
        """The read failed: the bytes are damaged, or the queue no longer exists."""
        ...

    @property
    def gone(self) -> bool:
        """Whether the asker is gone: answers are dropped."""
        ...

    def broke(self, error: Exception) -> None:
        """A defect prevented the answer; raises if it concerns the whole node."""
        ...

    async def taken(self) -> None:
        """Wait until every answer so far was sent, or the asker is gone."""
        ...


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
    where: PropertyFilter | None
    deadline: float
    """Until when it may be parked; at or before its arrival: not at all."""
    age_max: float | None = None
    """How old the data may be, seconds, as the reader says; None: as the node is configured."""
    skipped: int = 0
    """Records that were examined and left out so far."""


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """Fields and payload of the answer to a READ."""

    fields: Mapping[str, object]
    slices: Sequence[memoryview]
    found: ReadResult | None = None
    """The read result with the slices, their CRC and what may be lent."""


@dataclass(frozen=True, slots=True)
class Cold:
    """The data is outside the hot window: fetch it in a thread, then answer."""

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
    """Parse a client's read, limited to the node's limits.

    Raises:
        UsageError: A field is missing or not of its kind, or ``where`` is not a filter.
    """
    topic, queue, offset = fields.get("topic"), fields.get("queue"), fields.get("offset")
    if not isinstance(topic, str) or not isinstance(queue, int) or not isinstance(offset, int):
        raise UsageError("a read names topic, queue and offset", code="fields")
    wait = min(whole_number(fields, "wait_ms", 0) / 1000, limits.long_poll_seconds_max)
    size = min(whole_number(fields, "max_bytes", MAX_BYTES_DEFAULT), limits.response_size_max)
    return ReadRequest(
        asker=asker,
        request=request,
        topic=topic,
        queue=queue,
        offset=offset,
        max_bytes=max(size, 1),
        max_records=max(whole_number(fields, "max_records", MAX_RECORDS_DEFAULT), 1),
        tags=_tags(fields.get("tags")),
        where=_where(fields.get("where")),
        deadline=now + wait,
        age_max=age_max(fields),
    )


def age_max(fields: Mapping[str, object]) -> float | None:
    """Return the largest age that a reader accepts, seconds; None: not given.

    Raises:
        UsageError: It is not a whole number of milliseconds.
    """
    if fields.get("max_age_ms") is None:
        return None
    return whole_number(fields, "max_age_ms", 0) / 1000


def whole_number(fields: Mapping[str, object], name: str, default: int) -> int:
    """Return a field of a request; ``default`` where it is left out.

    Raises:
        UsageError: It is not a whole number from 0 on.
    """
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


def _where(value: object) -> PropertyFilter | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise UsageError("where is a filter as text", code="fields")
    return property_filter(value)


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
        self, store: StoreReads, freshness: Callable[[], Freshness], *, staleness_max: float
    ) -> None:
        self._store = store
        self._freshness = freshness
        self._staleness_max = staleness_max
        self._parked: dict[tuple[str, int], list[ReadRequest]] = {}
        self._seen = store.dispatched
        self.waiting = 0
        """Reads that are parked now."""
        self.counts = ReadCounts()

    def serve(self, request: ReadRequest, now: float) -> Cold | None:
        """Answer or park the read; for a `Cold` the caller must call `finish` later."""
        try:
            return self._serve(request, now)
        except TwinlogError as error:
            request.asker.read_failed(request.request, error)
        except Exception as error:
            request.asker.broke(error)  # parked reads of others are looked at in the same turn
        return None

    def _serve(self, request: ReadRequest, now: float) -> Cold | None:
        self._store.check_open(request.topic)
        freshness = self._freshness()
        limit = self._staleness_max if request.age_max is None else request.age_max
        if freshness.role != "master" and not freshness.within(limit):
            self.counts.stale += 1
            self._reply(request, freshness, "stale", None, ())
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
        self._reply(request, freshness, _STATUS[result.status], result, result.slices)
        return None

    def _skip(self, request: ReadRequest, result: ReadResult) -> None:
        """Continue after records that were all left out."""
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
        """Answer a cold read with the thread's result; return its bytes.

        Raises:
            TwinlogError: Nothing of it may be served.
        """
        found = self._store.fetched(cold.result, fetched)
        request = cold.request
        if self._store.queue_range(request.topic, request.queue)[0] > request.offset:
            raise Busy("the messages went while they were read", hint="ask again")
        self._reply(cold.request, self._freshness(), "found", found, found.slices)
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
        """Whether there is an answer for one of the readers, even that its topic is gone."""
        try:
            end = self._store.queue_range(*key)[1]
        except UnknownTopic:
            return True
        except NotYetConfirmed:
            return False  # made again, and about to be looked at once more
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
        freshness: Freshness,
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
        if result is not None and result.cold and freshness.redirect is not None:
            redirect = {"node": freshness.redirect, "valid_ms": REDIRECT_SECONDS * 1000}
        fields: dict[str, object] = {
            "status": status,
            "next": request.offset if result is None else result.next,
            "start": 0 if result is None else result.start,
            "end": 0 if result is None else result.end,
            "count": count,
            "confirm": self._store.confirm,
            "age_ms": freshness.age_ms,
            "node": freshness.node,
            "role": freshness.role,
            "redirect": redirect,
        }
        if freshness.silent:
            fields["settled"] = False
        grown = self._store.grown()
        if request.topic in grown:  # who reads all queues begins with those that are new
            fields["queues"] = grown[request.topic]
        if result is None or not result.unsifted:  # without the count the reader filters by itself
            fields["skipped"] = request.skipped + _left_out(request, result)
        request.asker.read_answered(request.request, ReadAnswer(fields, slices, result))


def _left_out(request: ReadRequest, result: ReadResult | None) -> int:
    """Return how many records of the last result were left out."""
    if result is None or result.status is not ReadStatus.FOUND:
        return 0
    return result.next - request.offset - result.count

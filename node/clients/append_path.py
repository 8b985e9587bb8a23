"""The path of an append through the node: many requests in, one append to the log, answers out.

All requests that arrived in one turn of the loop are handed to the driver together, in the order in
which they arrived: neighbours with the same acknowledgement become one append, and so one
batch in the log and one frame to each slave. No task runs per request; an answer is a callback that
queues bytes on its connection.

Rules:

* a request that waited longer than `Limits.queue_wait_seconds` is refused ``busy``, nothing of it
  is written;
* after an append that took longer than `Limits.page_cache_busy_seconds` requests are refused
  ``busy`` for as long again;
* a section is answered by its own result; a reason that holds for the whole node (not the master,
  too few in sync, full disk, busy) is answered once, as an error of the request.

Units: bytes, seconds of the loop's clock (``now``), milliseconds where a name says ``_ms``.
Not here: sockets (`client_server`), checks of records (the kernels), whether this node may write
(`replication.core.replica`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol, cast

from node.clients.counts import ClientCounts
from node.clients.limits import Limits, MiB
from node.topics.quotas import Quotas
from storage.state.sections import Outcome, Section, SectionResult
from twinlog.errors import UsageError

if TYPE_CHECKING:
    from replication.driver.driver import Driver

ACKNOWLEDGEMENTS = frozenset({"written", "flushed", "replicated", "confirmed"})

TOGETHER_MAX = MiB
"""Bytes appended together: one batch of the log."""

TIMEOUT_MS_MAX = 600_000
SECTIONS_MAX = 4096
INT32_MAX = (1 << 31) - 1
"""Largest count of records and queue number: the kernels take no more, RocketMQ neither."""

NODE_WIDE = frozenset({"not-master", "not-enough-in-sync", "busy", "disk-full", "disk"})
"""Refusals that concern the node and not the section: answered as an error of the request."""

Reply = Callable[[list[SectionResult], str | None], None]


class Asker(Protocol):
    """Receives the answer to an append: a client connection, or a test."""

    def appended(self, request: int, size: int, results: Sequence[SectionResult], by: str) -> None:
        """Every section has its result; ``by`` names the nodes, or the memory, that have them."""
        ...

    def refused(self, request: int, size: int, code: str, text: str, wait_ms: int = 0) -> None:
        """Nothing of the request was written; ``wait_ms``: when it may be, if that is known."""
        ...


@dataclass(slots=True, eq=False)
class AppendRequest:
    """One request that waits for its turn."""

    asker: Asker
    request: int
    sections: Sequence[Section]
    size: int
    ack: str
    timeout_ms: int
    arrived: float


def parse_sections(fields: Mapping[str, object], payload: memoryview) -> list[Section]:
    """Return the sections an APPEND names, as views of its payload.

    Raises:
        UsageError: The fields are not a list of sections, or do not cover the payload exactly.

    >>> one = [["t", 0, 2, 5, 0, 0, 0]]
    >>> bytes(parse_sections({"sections": one}, memoryview(b"12345"))[0].data)
    b'12345'
    """
    given = fields.get("sections")
    listed = cast("list[object]", given) if isinstance(given, list) else []
    if len(listed) == 1:
        alone = _alone(listed[0], payload)
        if alone is not None:
            return [alone]
    if not 0 < len(listed) <= SECTIONS_MAX:
        raise UsageError(f"an append names 1 to {SECTIONS_MAX} sections", code="fields")
    sections: list[Section] = []
    at = 0
    for item in listed:
        section = _section(item, payload, at)
        at += len(section.data)
        sections.append(section)
    if at != len(payload):
        text = f"the sections have {at} bytes, the payload has {len(payload)}"
        raise UsageError(text, code="fields")
    return sections


def _alone(item: object, payload: memoryview) -> Section | None:
    """Return the only section of an append; None if it needs the full checks."""
    row = cast("list[object]", item) if type(item) is list else []
    if len(row) != 7:
        return None
    topic, queue, count, size, producer, epoch, sequence = row
    if (
        type(topic) is str
        and type(queue) is int
        and type(count) is int
        and type(producer) is int
        and type(epoch) is int
        and type(sequence) is int
        and 0 <= queue <= INT32_MAX
        and 0 < count <= INT32_MAX
        and 0 < len(payload) == size
        and producer >= 0
        and epoch >= 0
        and sequence >= 0
    ):
        return Section(topic, queue, count, payload, producer, epoch, sequence)
    return None


def _section(item: object, payload: memoryview, at: int) -> Section:
    row = cast("list[object]", item)[:7] if isinstance(item, list) else None
    match row:
        case [
            str() as topic,
            int() as queue,
            int() as count,
            int() as size,
            int() as producer,
            int() as producer_epoch,
            int() as sequence,
        ] if (
            0 <= queue <= INT32_MAX
            and 0 < count <= INT32_MAX
            and 0 < size <= len(payload) - at
            and min(producer, producer_epoch, sequence) >= 0
        ):
            data = payload[at : at + size]
            return Section(topic, queue, count, data, producer, producer_epoch, sequence)
        case _:
            text = "a section is [topic, queue, records, bytes, producer, producer epoch, sequence]"
            raise UsageError(text, code="fields")


def parse_terms(fields: Mapping[str, object], default: str) -> tuple[str, int]:
    """Return the requested acknowledgement and how long the client waits, in ms.

    Raises:
        UsageError: No such acknowledgement, or not a time.
    """
    ack = fields.get("ack") or default
    if not isinstance(ack, str) or ack not in ACKNOWLEDGEMENTS:
        names = ", ".join(sorted(ACKNOWLEDGEMENTS))
        raise UsageError(f"no acknowledgement is named {ack!r}; there are {names}", code="fields")
    timeout = fields.get("timeout_ms", 30_000)
    if not isinstance(timeout, int) or timeout <= 0:
        raise UsageError("timeout_ms is a whole number above 0", code="fields")
    return ack, min(timeout, TIMEOUT_MS_MAX)


class AppendPath:
    """Collects the appends of a turn and hands them to the driver.

    Invariant: every request that was added is answered exactly once, by `run` or by the driver's
    reply, in the order of the log for one acknowledgement.
    """

    def __init__(
        self,
        driver: Driver,
        limits: Limits,
        counts: ClientCounts,
        *,
        clock: Callable[[], float],
        waited: Callable[[float], None],
        quotas: Quotas | None = None,
    ) -> None:
        self._quotas = quotas
        self._driver = driver
        self._limits = limits
        self._counts = counts
        self._clock = clock
        self._waited = waited
        self._pending: list[AppendRequest] = []
        self._stalled_until = -inf
        self.waiting = 0
        """Requests handed to the driver and not yet answered."""

    @property
    def pending(self) -> bool:
        """Whether a run has something to do."""
        return bool(self._pending)

    def add(self, request: AppendRequest) -> None:
        """Add a request to the next run; its payload must stay valid until then."""
        self._pending.append(request)

    def run(self, now: float) -> None:
        """Append everything that was added, neighbours together."""
        pending, self._pending = self._pending, []
        together: list[AppendRequest] = []
        size = 0
        quotas = self._quotas if self._quotas is not None and self._quotas.active() else None
        for request in pending:
            if now < self._stalled_until and self._clock() < self._stalled_until:
                self._counts.limit_reached("page_cache_busy_seconds")
                text = "the last append waited for the page cache; ask again in a second"
                request.asker.refused(request.request, request.size, "busy", text)
                continue
            if now - request.arrived > self._limits.queue_wait_seconds:
                self._counts.limit_reached("queue_wait_seconds")
                waited = f"waited {now - request.arrived:.3f} s for the append path"
                request.asker.refused(request.request, request.size, "busy", waited)
                continue
            if quotas is not None and not _within(quotas, request, now):
                continue
            if together and not _joins(together[0], request, size):
                self._append(now, together)
                together, size = [], 0
            together.append(request)
            size += request.size
        if together:
            self._append(now, together)

    def _append(self, now: float, together: list[AppendRequest]) -> None:
        if self.waiting + len(together) > self._limits.producers_waiting_max:
            self._counts.limit_reached("producers_waiting_max")
            for request in together:
                request.asker.refused(
                    request.request,
                    request.size,
                    "busy",
                    f"{self.waiting} appends wait already (producers_waiting_max)",
                )
            return
        self.waiting += len(together)
        first = together[0]
        deadline = first.arrived + first.timeout_ms / 1000
        if len(together) == 1:
            sections = first.sections
        else:
            sections = [section for request in together for section in request.sections]
        began = self._clock()
        self._driver.append(
            now, sections, ack=first.ack, deadline=deadline, reply=self._reply(together)
        )
        ended, most = self._clock(), self._limits.page_cache_busy_seconds
        if ended - began > most:
            self._stalled_until = ended + most

    def _reply(self, together: list[AppendRequest]) -> Reply:
        def reply(results: list[SectionResult], by: str | None) -> None:
            self.waiting -= len(together)
            self._waited(self._clock() - together[0].arrived)
            at = 0
            for request in together:
                own = results[at : at + len(request.sections)]
                at += len(own)
                self._answer(request, own, by or "")

        return reply

    def _give_back(self, sections: Sequence[Section]) -> None:
        """What was not stored by this request does not count against a quota."""
        if self._quotas is not None and self._quotas.active():
            for section in sections:
                self._quotas.give_back(section)

    def _answer(self, request: AppendRequest, results: Sequence[SectionResult], by: str) -> None:
        """Answer one request; a reason that holds for the whole node becomes its error."""
        first = results[0]
        node_wide = first.outcome is Outcome.REFUSED and first.code in NODE_WIDE
        if node_wide and all(result.code == first.code for result in results):
            self._give_back(request.sections)
            request.asker.refused(request.request, request.size, first.code, first.text)
            return
        for section, result in zip(request.sections, results, strict=True):
            if result.outcome is Outcome.STORED:
                self._counts.appended(section.topic, section.count, len(section.data))
            elif result.outcome is not Outcome.UNKNOWN:
                self._give_back([section])
        request.asker.appended(request.request, request.size, results, by)


def _within(quotas: Quotas, request: AppendRequest, now: float) -> bool:
    """Whether the quotas of its topics allow a request; if not, it is answered."""
    over = quotas.admit(request.sections, now)
    if over is not None:
        wait_ms = round(over.retry_after * 1000)
        request.asker.refused(request.request, request.size, "quota", over.text, wait_ms)
    return over is None


def _joins(first: AppendRequest, request: AppendRequest, size: int) -> bool:
    """Whether a request may join the ones before it: same terms, and it fits into the batch."""
    return (
        first.ack == request.ack
        and first.timeout_ms == request.timeout_ms
        and size + request.size <= TOGETHER_MAX
    )

"""Delivers what waits, on the acting master: each message once, never early.

A *source* knows what waits, in *lines*: 18 delay levels, or one line of all that waits for a time
(`node.delivery.sources`). A delivery is one batch of copies and the row that says how far a line is
delivered, so they are in the log together or not at all: a master that has the copy has the row and
does not make it again, and what has no row is delivered by the next master.

Between two deliveries nothing runs: of each line the first message is known, and all are looked at
again when more was dispatched. Records that are not in memory are read in a thread, `AHEAD_MS`
before their time. `BATCH_BYTES` are copied a turn, so that sends go on beside a burst.

Time is the clock of leases, but never ahead of what the next record would be stamped with: the
store time of a copy is at or after its due time, whatever the wall clock does.

A batch that the log refuses is tried again; what cannot be read or delivered stays and holds its
line, and an event tells why. Nothing that waits is dropped.

Synchronous; part of `node.groups.service`, which knows the reign. Not here: what the copies look
like (`storage.messaging.copies`), which part of the log they hold (`storage.recovery.derived`).

Source: RocketMQ's ``ScheduleMessageService`` and ``TimerMessageStore`` poll, with their progress in
files beside the log: after a failover they repeat some, or lose some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from node.delivery.aside import PASSING, Aside
from node.groups.context import ANSWER_SECONDS
from storage.append.own_records import TOGETHER_MAX
from storage.messaging.copies import UNDELIVERABLE, Copy, deliveries
from storage.messaging.timers import Waiting
from storage.read.lookups import OffLoopLookup
from storage.state.sections import Outcome, Section, Together
from twinlog.errors import TwinlogError
from twinlog.format.group_rows import DelayRow, TimerRow
from twinlog.format.record import Record
from twinlog.units import MiB

if TYPE_CHECKING:
    from node.clients.lookups import Asked
    from node.groups.context import Context

BATCH_BYTES = MiB
"""Records of one batch, and of one turn."""
ROW_BYTES = 512
"""The record of the row, and more."""
AHEAD_MS = 1_000
"""Records that are not in memory are read that much ahead of their time."""
RETRY_SECONDS = 0.2
"""Pause after a refusal that passes."""
HELD_SECONDS = 5.0
"""Pause after one that does not, and after records that cannot be read."""


class Source(Protocol):
    """What waits, in lines; as the acting master has to see it.

    Attributes:
        lines: The numbers of the lines.
        held: Name of the event that tells that a line is held.
        ordered: Whether what comes into a line is never due before what waits there.
    """

    @property
    def lines(self) -> Sequence[int]: ...
    @property
    def held(self) -> str: ...
    @property
    def ordered(self) -> bool: ...

    @property
    def changes(self) -> int:
        """Another number when more was dispatched."""
        ...

    def due(self, line: int, until_ms: int, size: int) -> Sequence[Waiting]:
        """Return the first messages of a line that are due until then, of one batch.

        Raises:
            TwinlogError: They cannot be read now.
        """
        ...

    def first(self, line: int) -> Waiting | None:
        """Return the first message of a line; None when nothing is to be delivered. Raises so."""
        ...

    def row(self, line: int, passed: Sequence[Waiting]) -> DelayRow | TimerRow:
        """Return the row that says that the first messages of a line are delivered."""
        ...

    def added(self, record: Record, now_ms: int) -> Mapping[str, str]:
        """Return the properties that a copy has besides."""
        ...

    def place(self, line: int) -> Mapping[str, object]:
        """Return what an event says of the place where a line is held."""
        ...


@dataclass(slots=True)
class DeliveryCounts:
    """What happened since the start; never falls.

    Attributes:
        late: Given the seconds between the time of each delivery's first message and its confirm.
        delivered: Copies that are confirmed.
        undeliverable: Of those, copies of what had no destination.
        cancelled: Cancels that are confirmed.
    """

    late: Callable[[float], None]
    delivered: int = 0
    undeliverable: int = 0
    cancelled: int = 0


class Deliveries:
    """See the module.

    Args:
        context: The node.
        fetch: Has cold records fetched in a thread.
        source: What waits.
        counts: What is counted.
    """

    def __init__(
        self,
        context: Context,
        fetch: Callable[[Asked[Any], Any, Any], None],
        source: Source,
        counts: DeliveryCounts,
    ) -> None:
        self._context = context
        self._aside = Aside(context, fetch)
        self._source = source
        self.counts = counts
        self._first: dict[int, Waiting | None] = {}
        self._held: dict[int, float] = {}
        self._told: set[int] = set()
        self._fetched: dict[int, dict[int, memoryview]] = {}
        self._seen = -1
        self._woken = False
        self._not_before = 0.0

    # ── reigns ──────────────────────────────────────────────────────────────────────────────────

    def clear(self) -> None:
        """A reign has ended, or begins: nothing is known."""
        for known in (self._first, self._held, self._told, self._fetched):
            known.clear()
        self._seen, self._woken, self._not_before = -1, False, 0.0
        self._aside.clear()

    @property
    def _stirred(self) -> bool:
        return self._woken or self._seen != self._source.changes

    @property
    def ready(self) -> bool:
        """Whether `work` may have something to do whatever the time: more was dispatched."""
        if not self._stirred or self._aside.busy:
            return False
        return self._context.seconds() >= self._not_before

    def next_deadline(self, now: float) -> float:
        """Return when `work` has something to do, seconds of the loop's clock."""
        if self._aside.busy:
            return float("inf")
        if self._stirred:
            return max(now, self._not_before)
        now_ms, at = self._now_ms(now), float("inf")
        for line in self._first:
            wake = now + max(0, self._wake_ms(line) - now_ms) / 1000
            at = min(at, max(wake, self._held.get(line, 0.0)))
        return max(at, self._not_before)

    def _wake_ms(self, line: int) -> int:
        """Return when a line is looked at; 0: now."""
        first = self._first[line]
        if first is None:
            return 0
        there = first.offset in self._fetched.get(line, ())
        cold = not there and self._context.records.is_cold(first.at)
        return first.due - (AHEAD_MS if cold else 0)

    @property
    def _batch_bytes(self) -> int:
        """Copies that fit into one batch, beside the row."""
        most = self._context.driver.store.settings.batch_length_max
        return min(BATCH_BYTES, most - ROW_BYTES)

    def _now_ms(self, now: float) -> int:
        """Return the time that deliveries go by; see the module."""
        context = self._context
        wall_ms = context.wall_ms()
        stamp = max(wall_ms, context.records.timestamp)
        return min(context.clock.read(wall_ms, now), stamp)

    # ── deliveries ──────────────────────────────────────────────────────────────────────────────

    def work(self, now: float) -> None:
        """Deliver what is due, or read what is due soon; the rest in later turns."""
        if self._aside.busy or now < self._not_before:
            return
        if self._stirred:
            self._seen, self._woken = self._source.changes, False
            for line in self._source.lines:
                if line not in self._first or not self._source.ordered:
                    self._first[line] = None  # `_deliver` finds out what is first
        if not self._first:
            return
        now_ms, left = self._now_ms(now), BATCH_BYTES
        for line in sorted(self._first, key=self._wake_ms):
            if self._wake_ms(line) > now_ms or now < self._held.get(line, 0.0):
                continue
            left -= self._deliver(line, now, now_ms, left)
            if left <= 0 or self._aside.busy or now < self._not_before:
                return

    def _deliver(self, line: int, now: float, now_ms: int, room: int) -> int:
        """Deliver a batch of one line, or read what is due soon; return the bytes of the copies."""
        source, size = self._source, 0
        try:
            due = source.due(line, now_ms, room)
            found = due or source.due(line, now_ms + AHEAD_MS, room)
            pieces = self._read(line, found) if found else None
            if due and pieces is not None:
                size = self._append(line, due, pieces, now, now_ms)
            first = source.first(line)
        except TwinlogError as error:
            self._hold(line, now, error.code, str(error))
            return 0
        if first is None:
            self._first.pop(line, None)
        else:
            self._first[line] = first
        return size

    def _read(self, line: int, found: Sequence[Waiting]) -> list[memoryview] | None:
        """Return the records; None where a thread fetches some first."""
        fetched = self._fetched.get(line, {})
        pieces = [fetched.get(one.offset) for one in found]
        left = [one for one, piece in zip(found, pieces, strict=True) if piece is None]
        if left:
            records = self._context.records
            read = records.stretches([(one.at, one.size) for one in left])
            if isinstance(read, OffLoopLookup):
                self._get(line, found, left, read)
                return None
            rest = iter(read)
            return [next(rest) if piece is None else piece for piece in pieces]
        return [piece for piece in pieces if piece is not None]

    def _append(
        self,
        line: int,
        due: Sequence[Waiting],
        pieces: Sequence[memoryview],
        now: float,
        now_ms: int,
    ) -> int:
        """Append copies of what is due, and how far the line is delivered with them."""
        context, source = self._context, self._source
        copies, taken = deliveries(
            pieces, context.messaging.destination, family=context.family, sections=TOGETHER_MAX,
            size=self._batch_bytes, added=lambda record: source.added(record, now_ms),
        )  # fmt: skip
        lost = any(copy.topic == UNDELIVERABLE for copy in copies)
        if lost and context.messaging.destination(UNDELIVERABLE) is None:
            self._aside.create(now, UNDELIVERABLE, lambda made: self._created(now, made))
            return 0
        if self._send(line, due[:taken], copies, now):
            for one in due[:taken]:
                self._fetched.get(line, {}).pop(one.offset, None)
        return sum(len(copy.data) for copy in copies)

    def _send(
        self, line: int, passed: Sequence[Waiting], copies: Sequence[Copy], now: float
    ) -> bool:
        """Append a batch; return whether it is in the log."""
        refused: list[Together] = []

        def reply(done: Together, by: str | None) -> None:
            if done.outcome is Outcome.REFUSED:
                refused.append(done)
            elif done.outcome is Outcome.STORED:
                self._delivered(line, copies, passed[0].due)

        sections = [
            Section(one.topic, one.queue, one.records, one.data, own=True) for one in copies
        ]
        self._context.driver.append_rows(
            now, [self._source.row(line, passed)], sections=sections,
            deadline=now + ANSWER_SECONDS, reply=reply,
        )  # fmt: skip
        if not refused:
            self._held.pop(line, None)
            self._told.discard(line)
            return True
        if refused[0].code in PASSING:
            self._not_before = now + RETRY_SECONDS
        else:
            self._hold(line, now, refused[0].code, refused[0].text)
        return False

    def _hold(self, line: int, now: float, code: str, why: str) -> None:
        """What is first of a line cannot be delivered now: it stays, and is tried again later."""
        self._held[line] = now + HELD_SECONDS
        if line not in self._told:
            self._told.add(line)
            place = self._source.place(line)
            self._context.tell(self._source.held, "error", **place, code=code, why=why)

    def _delivered(self, line: int, copies: Sequence[Copy], due_ms: int) -> None:
        counts = self.counts
        for copy in copies:
            counts.delivered += copy.records
            if copy.topic == UNDELIVERABLE:
                counts.undeliverable += copy.records
                self._context.tell(
                    "undeliverable", "warning", delay_level=line, messages=copy.records,
                    topic=UNDELIVERABLE,
                )  # fmt: skip
        counts.late(max(0, self._context.wall_ms() - due_ms) / 1000)

    # ── what takes a while ──────────────────────────────────────────────────────────────────────

    def _created(self, now: float, made: bool) -> None:
        self._woken = True
        if not made:
            self._not_before = now + RETRY_SECONDS

    def _get(
        self,
        line: int,
        wanted: Sequence[Waiting],
        left: Sequence[Waiting],
        look: OffLoopLookup[list[memoryview]],
    ) -> None:
        """Have records fetched; `work` is called again when they are there."""

        def then(found: Sequence[memoryview]) -> None:
            known = self._fetched.get(line, {})
            known |= dict(zip((one.offset for one in left), found, strict=True))
            self._fetched[line] = {
                one.offset: known[one.offset] for one in wanted if one.offset in known
            }
            self._woken = True

        def failed(error: TwinlogError) -> None:
            self._woken = True
            self._hold(line, self._context.seconds(), error.code, str(error))

        records = self._context.records
        self._aside.fetch(look, lambda outcome: records.looked_at(look, outcome), then, failed)

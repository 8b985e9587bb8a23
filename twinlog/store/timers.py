"""RocketMQ's timed records, read only: which wait for which second.

Three files are beside the log of a store with the timer wheel on:

* ``timerwheel``: slots of 32 bytes, one for each second of two weeks: the second, positions of the
  first and the newest unit in the timer log, how many messages wait (a cancellation counts -1), a
  magic of 0;
* ``timerlog``: 52-byte units, each naming the unit before it in the same slot;
* ``config/timercheck``: how far the timer queue was read.

A slot that was delivered stays in the wheel until its place is taken again, so what is shown here
is what was entered, not what is still due.

Units: times in milliseconds, positions in bytes of the timer log, offsets in bytes of the log.

Not here: delivering anything, or deciding what is due; delay levels (``twinlog.store.delays``).

Sources: RocketMQ 5.3 (``TimerWheel``, ``TimerLog``, ``TimerCheckpoint``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twinlog.format.waiting.timers import CHECK, PRECISION_MS, SLOT, UNIT
from twinlog.store.files import FileSeries, LogFile, extents, head_of

CHAIN_MAX = 10_000_000
"""Units of one slot: a chain that is longer goes in a circle."""

UNIT_SIZE, SLOT_SIZE = UNIT.size, SLOT.size


@dataclass(frozen=True, slots=True)
class TimerCheck:
    """How far the timer was, by ``config/timercheck``."""

    last_read_time_ms: int
    last_flush_position: int
    last_queue_offset: int
    master_queue_offset: int
    state_version: int
    timestamp: int
    counter: int


@dataclass(frozen=True, slots=True)
class TimerUnit:
    """One record that waits, or, with bit 2 of ``magic``, one cancellation; bit 1: rolled on."""

    position: int
    size: int
    before: int
    magic: int
    write_time_ms: int
    delay_ms: int
    log_offset: int
    record_size: int
    topic_hash: int
    reserved: int

    @property
    def time_ms(self) -> int:
        """The second that it waits for."""
        return self.write_time_ms + self.delay_ms


@dataclass(frozen=True, slots=True)
class TimerSlot:
    """One second of the wheel that was used."""

    index: int
    time_ms: int
    first: int
    last: int
    count: int
    magic: int


class Timers:
    """The timer files below ``root``.

    Attributes:
        log: The timer log.
        wheel: The file of the wheel; None when it is missing or empty.
        check: How far the timer was; None when no file says it.

    Raises:
        OSError: A file exists and cannot be read.
    """

    def __init__(self, root: Path) -> None:
        self.log = FileSeries(root / "timerlog")
        path = root / "timerwheel"
        size = path.stat().st_size if path.is_file() else 0
        self.wheel = LogFile(path, 0, size) if size else None
        check = root / "config" / "timercheck"
        data = head_of(check, CHECK.size)
        self.check = TimerCheck(*_check_fields(data)) if len(data) >= CHECK.size else None

    def slots(self) -> Iterator[TimerSlot]:
        """Yield the slots in use in order of their time; holes of the file are not read."""
        found: list[TimerSlot] = []
        if self.wheel is None:
            return
        with self.wheel.path.open("rb") as opened:
            for start, end in extents(self.wheel, 0):
                first = start - start % SLOT.size
                opened.seek(first)
                data = opened.read(-(-(end - first) // SLOT.size) * SLOT.size)
                whole = data[: len(data) // SLOT.size * SLOT.size]
                for i, fields in enumerate(SLOT.iter_unpack(whole)):
                    if fields[0] > 0:
                        index = first // SLOT.size + i
                        found.append(TimerSlot(index, fields[0] * PRECISION_MS, *fields[1:]))
        yield from sorted(found, key=lambda slot: slot.time_ms)

    def chain(self, slot: TimerSlot) -> Iterator[TimerUnit]:
        """Yield the units of a slot, newest first, as far as the timer log still holds them."""
        position = slot.last
        for _ in range(CHAIN_MAX):
            unit = self.unit(position)
            if unit is None:
                return
            yield unit
            if unit.before >= position:  # positions only fall along a chain
                return
            position = unit.before

    def unit(self, position: int) -> TimerUnit | None:
        """Return the unit at a position of the timer log; None when none is there."""
        data = self.log.read(position, UNIT.size) if position >= 0 else b""
        if len(data) < UNIT.size:
            return None
        fields = UNIT.unpack(data)
        if fields[0] != UNIT.size or fields[2] | 0xF != 0xF:
            return None
        return TimerUnit(position, *fields)

    def close(self) -> None:
        """Drop the mappings."""
        self.log.close()


def _check_fields(data: bytes) -> tuple[int, ...]:
    return CHECK.unpack_from(data)

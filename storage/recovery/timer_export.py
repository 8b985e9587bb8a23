"""Exports for RocketMQ: what waits for a time, as its timer log, wheel and ``config/timercheck``.

A broker that opens the store delivers each waiting message once and none that was delivered:

* the timer log has one unit for each waiting message, in the order of their times, and every unit
  is chained to the slot of its second; what waits longer than two days is placed earlier and marked
  to be entered again, as RocketMQ does itself;
* RocketMQ goes on reading the timer topic after the record that the last unit names. So the last
  unit names the last record of the topic; it lies in a second before all others and marks nothing
  as waiting;
* ``timercheck`` says that everything before the first waiting second was delivered, and that the
  timer log and the timer topic were read to their ends.

A unit's reserved field has the time itself, in ms; RocketMQ does not look at it. Its hash of the
real topic, of which RocketMQ makes statistics, is 0: not said.

twinlog writes them at a clean stop and never reads them but at an adoption.

Not here: reading them (`twinlog.store.timers`), when they are written
(`storage.recovery.config_export`).

Sources: RocketMQ 5.3 (``TimerMessageStore.recover``, ``reviseQueueOffset``, ``doEnqueue``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from storage.disk.disk import Disk
from storage.messaging.timers import Waiting
from twinlog.format.log_file import file_name
from twinlog.format.waiting.timers import (
    BLANK,
    BLANK_MAGIC,
    CHECK,
    CHECK_SIZE,
    LOG_FILE_SIZE,
    PRECISION_MS,
    ROLL,
    ROLL_WINDOW_MS,
    SLOT,
    SLOTS,
    UNIT,
    out_ms,
)

LOG, WHEEL, TIMER_CHECK = "timerlog", "timerwheel", "config/timercheck"
_PIECE = 1 << 20


class LastRecord(NamedTuple):
    """The last record of the timer topic.

    Attributes:
        offset: Log offset of it.
        size: Its bytes.
        number: Its queue offset.
        second: The second it waits for, or waited, ms.
    """

    offset: int
    size: int
    number: int
    second: int


@dataclass(slots=True)
class TimerFiles:
    """What the files hold.

    Attributes:
        units: The timer log, without what fills its files; positions are as if files had no end.
        slots: By their number in the wheel: second, first and last unit, how many.
        check: ``config/timercheck``.
    """

    units: bytes
    slots: dict[int, tuple[int, int, int, int]]
    check: bytes


def timer_files(
    waiting: Iterable[Waiting], last: LastRecord, now_ms: int, *, file_size: int = LOG_FILE_SIZE
) -> TimerFiles:
    """Return the files for what waits.

    Args:
        waiting: In the order of their times.
        last: Of the timer topic.
        now_ms: Time of the newest record of the log.
        file_size: Of the timer log.
    """
    now = now_ms // PRECISION_MS * PRECISION_MS
    read: int | None = None
    slots: dict[int, tuple[int, int, int, int]] = {}
    made = bytearray()
    # A unit placed earlier may share its slot with others: seconds do not rise along the file.
    for one in waiting:
        second, magic = _slot(out_ms(one.due), now)
        read = second if read is None else min(read, second)
        at = _room(made, file_size)
        index = second // PRECISION_MS % SLOTS
        _, first, before, count = slots.get(index, (0, at, -1, 0))
        slots[index] = second // PRECISION_MS, first, at, count + 1
        write = now if second > now - ROLL_WINDOW_MS else second  # 32 bits from there to the slot
        made += UNIT.pack(
            UNIT.size, before, magic, write, second - write, one.at, one.size, 0, one.due
        )
    read = now if read is None else read
    _room(made, file_size)
    passed = min(read, last.second) - PRECISION_MS
    made += UNIT.pack(UNIT.size, -1, 1 | ROLL, passed, 0, last.offset, last.size, 0, 0)
    after = last.number + 1
    check = CHECK.pack(read, len(made), after, after, 0, now_ms, 1).ljust(CHECK_SIZE, b"\0")
    return TimerFiles(bytes(made), slots, check)


def _slot(second: int, now: int) -> tuple[int, int]:
    """Return the second in which RocketMQ looks at a unit, and its magic."""
    excess = second - now - ROLL_WINDOW_MS
    if excess < 0:
        return second, 1
    half = excess < ROLL_WINDOW_MS // 3
    return now + (ROLL_WINDOW_MS // 2 if half else ROLL_WINDOW_MS), 1 | ROLL


def _room(made: bytearray, file_size: int) -> int:
    """Return where the next unit goes; what is left of a file that is full is blank."""
    left = file_size - len(made) % file_size
    if left < UNIT.size + BLANK.size:
        made += BLANK.pack(left, 0, BLANK_MAGIC).ljust(left, b"\0")
    return len(made)


def timer_log_file_size(disk: Disk) -> int:
    """Return the size of the files of the timer log: what is there has it, as a broker demands."""
    sizes = [disk.size(f"{LOG}/{name}") for name in disk.list(LOG) if name.isdigit()]
    return sizes[0] if sizes and sizes[0] >= UNIT.size + BLANK.size else LOG_FILE_SIZE


def write_timer_files(disk: Disk, files: TimerFiles, file_size: int, op: str) -> None:
    """Replace the files durably.

    Raises:
        DiskError: They may be incomplete; a later call makes them whole.
    """
    if disk.exists(TIMER_CHECK):
        disk.remove(TIMER_CHECK, op + ".check.remove")  # nothing says that half of them is true
        disk.fsync_dir("config", op + ".check.dir")
    for name in disk.list(LOG):
        disk.remove(f"{LOG}/{name}", op + ".log.remove")
    disk.make_dir(LOG, op + ".log.make-dir")
    for path, start, end in _log_files(len(files.units), file_size):
        disk.create_sparse(path, file_size, op + ".log.create")
        for at in range(start, end, _PIECE):
            piece = memoryview(files.units)[at : min(at + _PIECE, end)]
            disk.write_at(path, at - start, piece, op + ".log")
        disk.fsync(path, op + ".log")
    disk.fsync_dir(LOG, op + ".log.dir")
    if disk.exists(WHEEL):
        disk.remove(WHEEL, op + ".wheel.remove")
    disk.create_sparse(WHEEL, SLOTS * SLOT.size, op + ".wheel.create")
    for index, slot in files.slots.items():
        disk.write_at(WHEEL, index * SLOT.size, SLOT.pack(*slot, 0), op + ".wheel")
    disk.fsync(WHEEL, op + ".wheel")
    disk.fsync_dir(".", op + ".dir")
    disk.write_file(TIMER_CHECK, files.check, op + ".check")


def _log_files(length: int, file_size: int) -> Iterator[tuple[str, int, int]]:
    for start in range(0, length, file_size):
        yield f"{LOG}/{file_name(start)}", start, min(start + file_size, length)

"""The settings of a store; each field with its unit and its purpose.

Values are checked when the settings object is made: a store never gets an invalid one.

Not here: where values come from (``node.config.config``), the store's owner
(`storage.marks.identity`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twinlog.errors import UsageError
from twinlog.format.batch_index import BATCH_LENGTH_MAX
from twinlog.format.key_index import INDEX_CELLS_DEFAULT, INDEX_SLOTS_DEFAULT

KiB = 1024
MiB = 1024 * KiB

SEGMENT_SIZE_MIN = 16 * KiB
SEGMENT_RESERVE = 1 * KiB
"""Bytes of a file that a batch must leave free: the epoch record at its head and the filler's 8
bytes."""

FLUSH_MODES = ("sync", "async", "async-buffered")
RECORD_OVERHEAD_MAX = 64 * KiB
"""Bytes that RocketMQ allows a record beyond its body: header, topic, properties."""

INDEX_SLOTS_MAX = 50_000_000
INDEX_CELLS_MAX = 100_000_000
"""Limits an index file to 2.2 GB: RocketMQ counts cells with a signed 32-bit number."""


HOUR_MS = 3_600_000

DAY_HOURS = 24


def utc_hour(wall_ms: int) -> int:
    """Return the hour of day of a time.

    >>> utc_hour(4 * 3_600_000 + 59 * 60_000)
    4
    """
    return wall_ms // HOUR_MS % DAY_HOURS


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """What a node keeps, and for how long.

    Attributes:
        keep_seconds: Age at which records may be deleted; None: never delete by age.
        keep_bytes: Largest log; None: no limit.
        hours: Hours of day in which expired files are deleted; None: any.
        disk_clean: Disk usage from which expired files are deleted at any hour.
        disk_force: Disk usage from which the oldest files are deleted whatever their age.
        disk_refuse: Disk usage from which writes are refused.
        look_seconds: How often to check.
        pause_seconds: Pause between two deletions.
        hold_seconds: How long a file waits for readers that hold it.
        archive: Only archived records are ever deleted.
        erase: Files are overwritten before they are removed.
        keep_cut_seconds: How long the side file of a cut is kept.
        absent_seconds: How long records that a slave lacks are kept after it was last heard.
        hour_of: Hour of day of a wall time in ms.
    """

    keep_seconds: float | None = 72 * 3600.0
    keep_bytes: int | None = None
    hours: tuple[int, ...] | None = (4,)
    disk_clean: float = 0.75
    disk_force: float = 0.85
    disk_refuse: float = 0.90
    look_seconds: float = 10.0
    pause_seconds: float = 0.1
    hold_seconds: float = 120.0
    archive: bool = False
    erase: bool = False
    keep_cut_seconds: float = 7 * 24 * 3600.0
    absent_seconds: float = 3600.0
    hour_of: Callable[[int], int] = utc_hour

    def __post_init__(self) -> None:
        if not 0 < self.disk_clean <= self.disk_force <= self.disk_refuse <= 1:
            raise UsageError(
                "disk_clean, disk_force and disk_refuse must rise, above 0 and at most 100 %",
                code="setting",
                setting="disk_clean",
            )
        if self.hours is not None and not all(0 <= hour < DAY_HOURS for hour in self.hours):
            raise UsageError("an hour of day is 0 to 23", code="setting", setting="delete_at")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings of one store.

    Attributes:
        segment_size: Bytes of a log file; the same in the whole group, fixed when the store is
        made.
        queue_segment_entries: Entries of a queue file (20 bytes each); RocketMQ's 300,000.
        flush: ``sync`` (group commit: one flush for all waiting sends), ``async``, or
            ``async-buffered`` (a master appends to memory first).
        flush_timeout_seconds: How long a send waits for the disk; then its outcome is unknown.
        flush_interval_seconds: How often an async flush checks for dirty pages.
        flush_pages_min: Dirty pages of 4 KiB from which an async flush begins.
        flush_thorough_seconds: After this long an async flush writes any dirty byte.
        flush_on_write: An async flush begins as soon as enough pages are dirty, and does not wait
            for the end of the interval.
        buffer_pool_bytes: Memory of ``async-buffered``.
        commit_interval_seconds: How long bytes stay only in that memory.
        commit_pages_min: Pages of 4 KiB in that memory from which they are committed at once.
        message_size_max: Largest body, bytes.
        batch_size_max: Sections of one turn are joined up to this many bytes; a larger section
            is a batch of its own.
        checkpoint_interval_seconds: Time between checkpoints: what a restart has to check again.
        checkpoint_bytes: Bytes between checkpoints: what a restart has to check again.
        control_bytes: Control records after the newest state snapshot, in bytes, about: what a
        start has to apply again.
        group_bytes: The same for records of what groups have consumed.
        quality: What an acknowledgement rests on: ``received`` (page cache) or ``durable``.
        store_host: (IP address, port) stamped into records.
        hot_bytes: Reads further before the end than this count as cold, and flushed pages there are
        released; 40 % of memory.
        warm: Populate whole files ahead of the writer, not only the pages it needs next.
        lock_memory: Pages ahead of the writer are locked in memory.
        key_index: Whether records can be found by key.
        index_slots: Slots of a new index file; 4 bytes of memory each for the newest file.
        index_cells: Cells of a new index file, one more than keys that fit; 20 bytes each.
        retention: What is kept and for how long; None keeps everything.
        scrub_bytes_per_second: How fast sealed files are compared with their entries; None: not.
        scrub_every_seconds: Between the begins of two passes over them.
    """

    segment_size: int = 1024 * MiB
    queue_segment_entries: int = 300_000
    flush: str = "async"
    flush_timeout_seconds: float = 5.0
    flush_interval_seconds: float = 0.5
    flush_pages_min: int = 4
    flush_thorough_seconds: float = 10.0
    flush_on_write: bool = False
    buffer_pool_bytes: int = 64 * MiB
    commit_interval_seconds: float = 0.2
    commit_pages_min: int = 4
    message_size_max: int = 4 * MiB
    batch_size_max: int = 1 * MiB
    checkpoint_interval_seconds: float = 1.0
    checkpoint_bytes: int = 64 * MiB
    control_bytes: int = 64 * MiB
    group_bytes: int = 4 * MiB
    quality: str = "received"
    store_host: tuple[str, int] = ("127.0.0.1", 0)
    hot_bytes: int = 1024 * MiB
    warm: bool = False
    lock_memory: bool = False
    key_index: bool = True
    index_slots: int = INDEX_SLOTS_DEFAULT
    index_cells: int = INDEX_CELLS_DEFAULT
    retention: RetentionSettings | None = None
    scrub_bytes_per_second: int | None = 16 * MiB
    scrub_every_seconds: float = 24 * 3600.0

    def __post_init__(self) -> None:
        if self.segment_size < SEGMENT_SIZE_MIN or self.segment_size % 4096:
            raise _refused("segment_size", "a multiple of 4 KiB, at least 16 KiB")
        if not 1 <= self.queue_segment_entries <= 100_000_000:
            raise _refused("queue_segment_entries", "1 to 100,000,000")
        if not 1 <= self.index_slots <= INDEX_SLOTS_MAX:
            raise _refused("index_slots", f"1 to {INDEX_SLOTS_MAX}")
        if not 2 <= self.index_cells <= INDEX_CELLS_MAX:
            raise _refused("index_cells", f"2 to {INDEX_CELLS_MAX}")
        if self.flush not in FLUSH_MODES:
            raise _refused("flush", '"sync", "async" or "async-buffered"')
        if self.buffer_pool_bytes < 4096 or self.buffer_pool_bytes % 4096:
            raise _refused("buffer_pool_bytes", "a multiple of 4 KiB")
        if self.quality not in ("received", "durable"):
            raise _refused("quality", '"received" or "durable"')
        if not 1 <= self.message_size_max <= BATCH_LENGTH_MAX - RECORD_OVERHEAD_MAX:
            raise _refused("message_size_max", "1 byte to 4 MiB")
        if not 4096 <= self.batch_size_max <= BATCH_LENGTH_MAX:
            raise _refused("batch_size_max", f"4096 to {BATCH_LENGTH_MAX} bytes")

    @property
    def huge_pages(self) -> bool:
        """Whether log files are filled in pages of 2 MiB: not if sends wait for flushes."""
        return self.flush != "sync" and self.quality != "durable"

    @property
    def batch_length_max(self) -> int:
        """Bytes of the longest batch, and so of the longest section."""
        return min(BATCH_LENGTH_MAX, self.segment_size - SEGMENT_RESERVE)

    @property
    def queue_file_size(self) -> int:
        """Bytes of a queue file."""
        return 20 * self.queue_segment_entries


def _refused(name: str, wanted: str) -> UsageError:
    return UsageError(f"{name} must be {wanted}", code="setting", setting=name)

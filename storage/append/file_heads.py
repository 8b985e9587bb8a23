"""The heads of the log's files: the record that opens an epoch, and the change to the next file.

A full file ends with a filler; the next one begins with an epoch record that repeats the epoch and
carries the crc32c of the old file's entries. Only a master that has opened its epoch may begin
files. The records at their heads differ in a few fields, so they are filled into a prepared
pattern.

A file change happens between two appends of a turn while the sender waits: nothing here takes
longer with the size or number of files, and the next file was made ahead (`storage.background`).

Not here: which sections follow the head (`storage.append.appender`), what a slave does with a
head (`storage.append.receiver`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from storage.log.commit_log import CommitLog
from storage.log.epoch_history import EpochPattern, EpochRecord, encode_epoch
from storage.settings import SEGMENT_RESERVE, StoreSettings
from twinlog import kernels
from twinlog.format.batch_index import KIND_EPOCH, BatchEntry
from twinlog.format.system_topics import SYSTEM_TOPIC_EPOCH


class FileHeads:
    """Opens epochs and files for a master; see the module's text.

    Args:
        log: The log.
        settings: The store's settings.
        numbers: The pending layer's next queue offsets; epoch records are numbered, too.
        next_number: The next queue offset of a (topic, queue).
    """

    def __init__(
        self,
        log: CommitLog,
        settings: StoreSettings,
        numbers: dict[tuple[str, int], int],
        next_number: Callable[[str, int], int],
    ) -> None:
        self._log = log
        self._settings = settings
        self._numbers = numbers
        self._next_number = next_number
        self._opening: EpochRecord | None = None
        self._pattern: EpochPattern | None = None

    def forget(self) -> None:
        """Drop the permission to begin files: the leadership has ended."""
        self._opening = self._pattern = None

    def open_epoch(self, value: EpochRecord, wall_ms: int) -> None:
        """Append the record that opens an epoch; from now on files may begin.

        Raises:
            DiskFull: Nothing was appended.
        """
        # The pattern of an older epoch must not fill this epoch's heads.
        before, self._opening, self._pattern = self._opening, value, None
        try:
            self._log.timestamp = max(self._log.timestamp, wall_ms)
            # No room: the file ends with a filler of the *new* epoch. A filler of the old epoch
            # would extend the history of an epoch that has another master (R10, mutant
            # filler_of_old_epoch).
            if self._log.room < SEGMENT_RESERVE or self._log.file_is_new:
                self.change()
            else:
                self._record(chain=0)
        except BaseException:
            self._opening = before
            raise
        # The filler may have opened the epoch, before the record: its start is what counts.
        again = replace(value, start=self._log.history.last_start)
        self._pattern = EpochPattern(again, self._settings.store_host)

    def after_next_head(self, length: int) -> int:
        """Return the log offset right after the head of the next file, for ``length`` bytes.

        -1 if that head cannot be known before the change: no pattern, a file without a batch, or
        unwritten batches in the memory pool.
        """
        log, pattern = self._log, self._pattern
        last = log.segments.last
        if pattern is None or last is None or not last.index.count or log.buffering:
            return -1
        return last.end + pattern.length if pattern.length + length <= last.size else -1

    def change(self) -> None:
        """End the file and begin the next one; continues where a failed attempt stopped.

        Raises:
            DiskFull: The log may end with a filler, or with a file that has no head yet.
        """
        log, opening = self._log, self._opening
        # Batches in the memory pool belong before the filler.
        log.commit("log.roll.commit")
        assert opening is not None
        if not log.file_is_new:
            if log.room:
                at = log.end
                log.fill_up(opening.epoch, "log.filler")
                # Does nothing if the epoch goes on.
                log.history.open(opening.epoch, at)
            log.next_file("log.roll")
        # R10, R40: the CRC of the old file's entries; a handshake compares it, and so proves whole
        # files without reading them.
        self._record(log.segments.chain_before(log.end) or 0)

    def _record(self, chain: int) -> None:
        log, value = self._log, self._opening
        assert value is not None
        at, stamp, epoch = log.end, log.timestamp, value.epoch
        number, data = self._next_number(SYSTEM_TOPIC_EPOCH, 0), None
        if self._pattern is not None and chain:
            data = self._pattern.fill(
                log_offset=at, queue_offset=number, store_timestamp=stamp, chain=chain
            )
        if data is None:
            # A repeated record names where the epoch began, not where the record is.
            fresh = epoch != log.history.last
            value = replace(value, start=at if fresh else log.history.last_start, chain=chain)
            data = encode_epoch(
                value, log_offset=at, queue_offset=number, store_timestamp=stamp,
                store_host=self._settings.store_host,
            )  # fmt: skip
        size = len(data)
        log.window(at, size)[:] = data
        entry = BatchEntry(at, size, 1, epoch, kernels.crc32c(data), stamp, KIND_EPOCH, log.flushed)
        log.add_one(entry.pack(), size, "log.epoch", lone=False)
        log.history.add(value)
        self._numbers[SYSTEM_TOPIC_EPOCH, 0] = number + 1

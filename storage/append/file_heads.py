"""The heads of the log's files: the record that opens an epoch, and the change to the next file.

A full file ends with a filler; the next one begins with an epoch record that repeats the epoch and
carries the crc32c of the old file's entries. Only a master that has opened its epoch may begin
files; what it writes at their heads differs little, so it is filled into a pattern.

A change lies between two appends of one turn, and its sender waits for it: nothing here grows with
the file or with the number of files, and the file itself was made ahead (`storage.background`).

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
        settings: Of the store.
        numbers: The pending layer's next queue offsets; the records here are numbered, too.
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
        """Drop the right to open files."""
        self._opening = self._pattern = None

    def open_epoch(self, value: EpochRecord, wall_ms: int) -> None:
        """Append the record that opens an epoch; from now on files may begin.

        Raises:
            DiskFull: Nothing was appended.
        """
        before, self._opening, self._pattern = self._opening, value, None
        try:
            self._log.timestamp = max(self._log.timestamp, wall_ms)
            if self._log.room < SEGMENT_RESERVE or self._log.file_is_new:
                self.change()
            else:
                self._record(chain=0)
        except BaseException:
            self._opening = before
            raise
        again = replace(value, start=self._log.history.last_start)
        self._pattern = EpochPattern(again, self._settings.store_host)

    def behind_next(self, length: int) -> int:
        """Return where ``length`` bytes may stand right after the head of the next file.

        -1 where it would not begin with the pattern, or where the change is not the next to do.
        """
        log, pattern = self._log, self._pattern
        last = log.segments.last
        if pattern is None or last is None or not last.index.count or log.buffering:
            return -1
        return last.end + pattern.length if pattern.length + length <= last.size else -1

    def change(self) -> None:
        """End the file, begin the next one; what an earlier attempt has done is not done again.

        Raises:
            DiskFull: The log may end with a filler, or with a file that has no head yet.
        """
        log, opening = self._log, self._opening
        log.commit("log.roll.commit")
        assert opening is not None
        if not log.file_is_new:
            if log.room:
                at = log.end
                log.fill_up(opening.epoch, "log.filler")
                log.history.open(opening.epoch, at)
            log.next_file("log.roll")
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

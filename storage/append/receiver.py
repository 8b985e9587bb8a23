"""A slave's way into the log: whole batches of the master, checked before they exist.

A call brings consecutive entries and their bytes, a filler as its first 8 bytes. It checks that the
batches continue the log and stay in their file, that a full file ends with a filler and a file
begins with an epoch record, that an epoch changes only in an epoch record that follows the history,
and that the stored bytes match each batch's CRC (R42). The bytes are placed beyond the end, checked
there, and only then the entries are written and the end moves.

A gap stores nothing. After another refusal the batches up to a file border or an epoch record
before the bad one may be stored; all others are not, and beyond the end there are only zeros. The
answer is always the store's end.

A single small batch of records, as single sends produce it, is checked and stored by one kernel
call (`Receiver.alone`); a batch that is unusual or wrong takes the general path.

Not here: sessions and acknowledgements (``replication.core.peer_checks``), control records
(`storage.store` looks at what this returns).
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.errors import BadBatch, Gap
from storage.log.commit_log import CommitLog
from storage.log.epoch_history import EpochRecord, decode_epoch, wrong_chain
from storage.log.segments import covered
from storage.settings import StoreSettings
from twinlog import kernels
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import (
    KIND_EPOCH,
    KIND_FILLER,
    KIND_REBUILT,
    KIND_RECORDS,
    BatchEntry,
)
from twinlog.format.log_file import BLANK
from twinlog.format.record import MAGIC_BLANK
from twinlog.format.system_topics import SYSTEM_TOPIC_META

ALONE_MAX = 64 * 1024
"""Largest batch, bytes, that `Receiver.alone` takes; with a larger one call overhead is
negligible."""

_META = SYSTEM_TOPIC_META.encode()


class Receiver:
    """Stores a master's batches; see the module's text."""

    def __init__(self, log: CommitLog, settings: StoreSettings) -> None:
        self._log = log
        self._settings = settings
        self._length_max = settings.batch_length_max
        self._alone_max = min(ALONE_MAX, self._length_max)

    def receive(self, entries: Sequence[BatchEntry], payload: memoryview) -> None:
        """Store batches that begin at the end.

        Raises:
            Gap: The first batch does not begin at the end, or a batch not where the one before
            ends.
            BadBatch: A batch breaks a rule.
            DiskFull: The end is where it was, or at a file border before.
        """
        log = self._log
        ready: list[BatchEntry] = []
        taken = 0
        _check_order(entries, log.end, len(payload))
        try:
            for entry in entries:
                if log.room == 0:
                    log.next_file("log.roll")
                size = covered(entry)
                data = payload[taken : taken + size]
                value = self._place(entry, data)
                taken += size
                ready.append(_own(entry, log.flushed))
                # Entries are written before the history learns the epoch: a failed write must leave
                # no epoch of which the log has no record.
                if value is not None:
                    self._write(ready)
                    log.history.add(value)
                elif entry.kind == KIND_FILLER:
                    self._write(ready)
                    log.history.open(entry.epoch, entry.start)
                if entry.epoch == 0:
                    log.history.adopt(entry.start)
            self._write(ready)
        except BaseException:
            # R8; also for a cancellation: placed bytes without entries must not stay.
            log.wipe("log.receive")
            raise

    def alone(self, entry: bytes, payload: memoryview) -> bool:
        """Fast path: store one small batch of records that continues the log.

        False: nothing is stored and the caller must use `receive`, which overwrites or zeroes the
        bytes that may have been placed beyond the end. Batches that may hold a control record
        always return False.

        Args:
            entry: As it travels.
            payload: Its bytes.

        Raises:
            DiskFull: The end is where it was.
        """
        log, length = self._log, len(payload)
        if not log.history.last:
            return False  # an empty log, or one whose newest bytes RocketMQ wrote (epoch 0)
        # One byte spare: only a filler may reach the end of its file.
        room = log.place_alone(length, 1) if 0 < length <= self._alone_max else None
        if room is None:
            return False
        place = (log.end, log.history.last, log.flushed)
        # `place` carries end, epoch and flushed: the kernel refuses a batch that does not continue
        # them.
        made = kernels.place_batch(entry, payload, room, place, _META)
        if made is None:
            return False
        packed, stamp = made
        log.add_one(packed, length, "log.receive")
        if stamp > log.timestamp:
            log.timestamp = stamp
        return True

    def _write(self, ready: list[BatchEntry]) -> None:
        self._log.add(ready, "log.receive")
        ready.clear()

    def _place(self, entry: BatchEntry, data: memoryview) -> EpochRecord | None:
        """Place and check one batch; returns the value of an epoch record, else None."""
        log = self._log
        last = log.segments.last
        assert last is not None
        reason = self._shape(entry, last.start)
        if reason is not None:
            raise self._bad(entry, reason)
        view = log.window(entry.start, len(data))
        view[:] = data
        # Over the bytes as placed, not as received: this also proves the copy.
        if kernels.crc32c(view) != entry.crc:
            raise self._bad(entry, "bytes do not match the batch's CRC")
        if entry.kind == KIND_FILLER:
            if BLANK.unpack(view) != (entry.length, MAGIC_BLANK):
                raise self._bad(entry, "a filler that is no blank record up to the file's end")
        elif entry.kind == KIND_EPOCH:
            return self._epoch(entry, view)
        return None

    def _shape(self, entry: BatchEntry, base: int) -> str | None:
        """Return what is wrong with an entry, judged without its bytes; None if nothing is."""
        stop = base + self._settings.segment_size
        epoch = self._log.history.last
        if (
            entry.kind == KIND_RECORDS
            and entry.epoch == epoch > 0
            and entry.start > base
            and BLANK.size <= entry.length <= self._length_max
            and entry.start + entry.length < stop
        ):
            return None
        # Epoch 0: RocketMQ wrote these records before the store was adopted. Their batches were
        # made by scanning, and their files begin without an epoch record.
        adopted = entry.epoch == 0 and entry.kind in (KIND_REBUILT, KIND_FILLER)
        if entry.kind not in (KIND_RECORDS, KIND_FILLER, KIND_EPOCH) and not adopted:
            return f"kind {entry.kind}"
        if entry.length <= 0 or entry.end > stop:
            return "the batch reaches beyond its file"
        # The common case first; the order of the checks below only decides which reason is named.
        if (entry.kind == KIND_FILLER) != (entry.end == stop):
            return "a file ends without a filler, or a filler ends before its file"
        if entry.length < BLANK.size:
            return "shorter than any batch"
        if entry.kind != KIND_FILLER and entry.length > self._length_max and not adopted:
            return "the batch is too long"
        if entry.start == base and entry.kind != KIND_EPOCH and not adopted:
            return "a file begins without an epoch record"
        # R10: only an epoch record begins an epoch, or the filler before the file that holds it.
        opens = entry.kind == KIND_EPOCH or (entry.kind == KIND_FILLER and entry.epoch > epoch)
        if not opens and entry.epoch != epoch:
            return f"epoch {entry.epoch} without its record, the log is in {epoch}"
        return None

    def _epoch(self, entry: BatchEntry, view: memoryview) -> EpochRecord:
        try:
            value = decode_epoch(view)
        except CorruptionError as error:
            raise self._bad(entry, str(error)) from None
        history = self._log.history
        if value.epoch != entry.epoch or entry.count != 1:
            raise self._bad(entry, "the record names another epoch than its entry")
        # The chain proves that the file before this head is the one the master had (R40).
        reason = history.refusal(value, entry.start) or wrong_chain(
            value, self._log.segments.chain_before(entry.start)
        )
        if reason is not None:
            raise self._bad(entry, reason)
        return value

    def _bad(self, entry: BatchEntry, reason: str) -> BadBatch:
        return BadBatch(entry.start, entry.length, reason)


# R9: entries differ between nodes in `flushed` only
def _own(entry: BatchEntry, flushed: int) -> BatchEntry:
    """Return a master's entry with the flushed offset of this node."""
    return BatchEntry(
        entry.start, entry.length, entry.count, entry.epoch, entry.crc, entry.store_timestamp,
        entry.kind, flushed,
    )  # fmt: skip


def _check_order(entries: Sequence[BatchEntry], end: int, size: int) -> None:
    """Check that the batches are consecutive from ``end`` on and are ``size`` bytes in all."""
    wanted = 0
    for entry in entries:
        if entry.start != end or entry.length <= 0:
            raise Gap(f"a batch at {entry.start}, the log goes on at {end}")
        end = entry.end
        wanted += covered(entry)
    if wanted != size:
        raise Gap(f"{size} bytes for batches of {wanted}")

"""Looking at old bytes again, and putting back what has changed.

A disk may return other bytes than it was given, years later or after a day. Damage that is not read
is not noticed, until the last good copy is gone. So the sealed files of the log are compared with
their batch index again and again (`StoreScrub.piece_job`), and each file's index with the check sum
that the head of the next file has of it. Nodes compare these heads in every handshake, so a file
that passes is the file that every other node has.

What differs is a *wound*: refused to every reader, written down durably, and put back from another
node's copy (`StoreScrub.repair_job`). A copy counts only if it has the length and the CRC of the
entry that this node wrote when the batch arrived; no other node's word is taken for it. The bytes
are on the disk before the finding ends, so a crash anywhere leaves a damaged batch with its
finding, or a whole one.

Only sealed files that are flushed and confirmed are looked at: nothing of them ever changes.

Units: log offsets in bytes. Not here: when and how fast, and where copies come from
(``replication.driver.scrubbing``); repairs of a store that no node runs (`storage.tools.repair`).
Rules: docs/protocol.md R65, R66.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage.damage import Damage, damage_of
from storage.errors import DiskError
from storage.jobs import Job
from storage.log.epoch_history import decode_epoch, wrong_chain
from storage.log.segment import log_path
from storage.log.segments import Segments, covered
from storage.marks.quarantine import end_finding
from storage.recovery.opened import Opened
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import KIND_EPOCH, BatchEntry
from twinlog.kernels import crc32c


@dataclass(frozen=True, slots=True)
class Piece:
    """What a look at one piece found.

    Attributes:
        end: Where the next piece begins.
        found: What differs.
    """

    end: int
    found: tuple[Damage, ...] = ()


@dataclass(frozen=True, slots=True)
class Repaired:
    """What became of a wound.

    Attributes:
        whole: The batch is as its entry says, on the disk; or retention or a cut has taken it.
        why: Why not; empty when no copy was given.
    """

    whole: bool
    why: str = ""


class StoreScrub:
    """The scrub of one open store.

    Args:
        opened: The store.
        derive_again: Makes the derived state again.
    """

    def __init__(self, opened: Opened, derive_again: Callable[[], None]) -> None:
        self._opened = opened
        self._derive_again = derive_again
        self._log = opened.log

    def begin(self) -> None:
        """From now on copies are looked for: damaged batches are wounds first."""
        self._opened.repairs = True

    @property
    def wounds(self) -> Sequence[Damage]:
        """Batches that wait to be repaired, oldest finding first."""
        return tuple(self._opened.wounds.values())

    @property
    def condemned(self) -> bool:
        """Whether the store is quarantined for more than its wounds."""
        return self._opened.condemned

    @property
    def sealed(self) -> tuple[int, int]:
        """Where the log's sealed files begin and end; equal without any."""
        log, opened = self._log, self._opened
        limit = min(opened.confirm, log.flushed)
        ends = [one.end for one in log.segments.all[:-1] if one.end <= limit]
        return log.start, ends[-1] if ends else log.start

    def doubt(self) -> None:
        """Have what is read from sealed files proven again, once each."""
        self._log.segments.doubt()

    def piece_job(self, at: int, max_bytes: int) -> Job:
        """Return a job that compares about ``max_bytes`` from batch border ``at`` on.

        Its result is a `Piece`. What it finds is a wound, or quarantines the store, when it is
        finished.
        """
        opened, segments, generation = self._opened, self._log.segments, self._opened.generation

        def work() -> Piece:
            try:
                return _look(segments, at, max_bytes)
            except IndexError:  # retention was there first
                return Piece(at)

        def apply(job: Job) -> None:
            if not isinstance(job.result, Piece) or generation != opened.generation:
                return
            for damage in job.result.found:
                if not opened.wound(damage) and not opened.only_copy:
                    opened.quarantine(damage)

        return Job("scrub", work, apply)

    def repair_job(self, damage: Damage, data: bytes | None) -> Job:
        """Return a job that ends a wound if it can, with another node's copy ``data`` of the batch.

        Without a copy it looks whether the batch is whole by now. Its result is a `Repaired`; the
        store leaves its quarantine with the last wound, if it was for nothing else.
        """
        opened, generation = self._opened, self._opened.generation

        def work() -> Repaired:
            with opened.guard:
                if generation != opened.generation:
                    return Repaired(False, "the log was cut meanwhile")
                repaired = self._repair(damage, data)
                if repaired.whole:
                    end_finding(opened.disk, damage.offset, "repair.finding")
                return repaired

        def apply(job: Job) -> None:
            if not isinstance(job.result, Repaired) or not job.result.whole:
                if isinstance(job.error, DiskError):
                    opened.run.note_io_error()
                return
            opened.wounds.pop(damage.offset, None)
            if not opened.wounds and not opened.condemned:
                opened.damage = None
                if opened.underived:
                    opened.underived = False
                    self._derive_again()

        return Job("repair", work, apply)

    def _repair(self, damage: Damage, data: bytes | None) -> Repaired:
        entry = self._entry(damage.offset)
        if entry is None or self._is_whole(entry):
            return Repaired(True)
        if data is None:
            return Repaired(False)
        if not is_copy(entry, data):
            return Repaired(False, "the copy is not what the batch's entry says")
        path = log_path(entry.start - entry.start % self._log.segments.size)
        base = entry.start - entry.start % self._log.segments.size
        self._opened.disk.write_at(path, entry.start - base, data, "repair.write")
        self._opened.disk.fsync(path, "repair.fsync")
        if not self.is_repaired(entry):
            return Repaired(False, "the disk returns other bytes than were written")
        return Repaired(True)

    def _entry(self, offset: int) -> BatchEntry | None:
        try:
            return self._log.segments.batch_at(offset)
        except IndexError:
            return None

    def is_repaired(self, entry: BatchEntry) -> bool:
        """Whether the bytes that were written are there."""
        return self._is_whole(entry)

    def _is_whole(self, entry: BatchEntry) -> bool:
        try:
            return not self._log.segments.scan(entry.start, 1)[1]
        except (DiskError, CorruptionError):
            return False

    def note(self, start: int) -> bool:
        """Treat the batch at ``start`` as damaged: a slave refused it; False: not repairable."""
        entry = self._entry(start)
        if entry is None or entry.start != start or self._opened.damage is not None:
            return False
        path = log_path(start - start % self._log.segments.size)
        return self._opened.wound(Damage(path, start, entry.length, "bytes do not have its CRC"))

    def give_up(self, damage: Damage) -> None:
        """Quarantine the store for a wound without a copy; the only copy goes on."""
        if not self._opened.only_copy:
            self._opened.quarantine(damage)


def is_copy(entry: BatchEntry, data: bytes) -> bool:
    """Whether ``data`` is what the batch's entry says: only then it may take the batch's place."""
    return len(data) == covered(entry) and crc32c(data) == entry.crc


def _look(segments: Segments, at: int, max_bytes: int) -> Piece:
    file = segments.at(at)
    try:
        end, found = segments.scan(at, max_bytes)
    except CorruptionError as error:  # nothing proves the rest of that file
        return Piece(file.end, (damage_of(error),))
    except DiskError as error:
        return Piece(file.end, (Damage(file.index.path, at, 0, f"cannot be read: {error}"),))
    if end == file.end and not found and (wrong := _wrong_head(segments, end)) is not None:
        found = [wrong]
    return Piece(end, tuple(damage_of(one) for one in found))


def _wrong_head(segments: Segments, border: int) -> CorruptionError | None:
    """Return what the head of the file at ``border`` says against the file before it."""
    try:
        entry = segments.batch_at(border)
        if entry.kind != KIND_EPOCH:
            return None  # the newest file is still empty, or RocketMQ wrote it
        value = decode_epoch(segments.fetch(entry.start, entry.end))
        wrong = wrong_chain(value, segments.chain_before(border))
    except IndexError:
        return None
    except CorruptionError:
        return None  # the head is damaged itself: found when its own file is looked at
    path = segments.at(border - 1).index.path
    if wrong is None:
        return None
    return CorruptionError(f"{path}: {wrong}", file=path, offset=border, what=wrong)

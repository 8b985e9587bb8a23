"""Which part of a log is valid after a stop: a plan, made from the files. Pure.

The walk visits batch entries, never records, from the file that holds the checkpointed flushed
offset to the first invalid batch; bytes are compared from a little before that offset on. Let F be
the largest flushed offset that the checkpoint or any valid entry names, entries after that batch
included. If the invalid batch begins at o:

* o < F: it was on the disk once, so this is *damage*. Nothing is cut, the store is quarantined
(R7).
* o >= F: this is the *torn tail*: it was never known to be on the disk, and the log is cut at o.

A batch is valid if its entry's CRC is right, it continues the batch before, its epoch is not lower,
it stays in its file, a full file ends with a filler and a file begins with an epoch record (except
in epoch 0, which RocketMQ wrote), and its bytes match its CRC.

Units: log offsets in bytes. Not here: reading files and carrying out the plan
(`storage.recovery.open`); rebuilding a lost index of a sealed file (`storage.tools.reindex`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage.damage import Damage
from twinlog.format.batch_index import KIND_EPOCH, KIND_FILLER, BatchEntry, is_zero
from twinlog.format.log_file import file_name

ENTRY_SIZE = 48


@dataclass(frozen=True, slots=True)
class Found:
    """One log file with its index, as found on the disk.

    Attributes:
        start: Log offset of the file's first byte.
        size: Bytes of the log file; 0 when it is missing.
        entries: The whole index file; empty when it is missing.
    """

    start: int
    size: int
    entries: bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """The valid part of a log.

    Attributes:
        end: End of the log.
        flushed: F, the largest flushed offset that the checkpoint or any valid entry names.
        counts: Number of valid entries, by the start of their file, from the walk's first file on.
        cut_batches: Batches with a valid entry beyond the end; they are cut.
        damage: Damage below F; then nothing may be changed.
    """

    end: int
    flushed: int
    counts: dict[int, int]
    cut_batches: int
    damage: Damage | None = None


Check = Callable[[BatchEntry], str | None]
"""Compares a batch's bytes with its entry; returns what is wrong, or None."""


def plan(
    files: Sequence[Found], *, segment_size: int, prove_from: int, flushed: int, check: Check
) -> Plan:
    """Walk the batches of ``files`` and decide where the log ends.

    Args:
        files: Log files, oldest first; the first one holds ``prove_from`` or begins after it, and
        everything below it is trusted.
        segment_size: Bytes of a log file.
        prove_from: Log offset; the bytes of batches that end at or below it are not compared.
        flushed: Flushed offset that the checkpoint names.
        check: See `Check`.
    """
    # Without a file the log is either empty (a replica that begins again has no file yet, and
    # nothing above its start is flushed) or lost as a whole.
    empty = prove_from if prove_from == flushed else 0
    walk = _Walk(segment_size, files[0].start if files else empty, prove_from, check)
    walk.flushed = max(walk.flushed, flushed)
    for file in files:
        if not walk.file(file):
            break
    for file in files:
        # Entries after the first invalid batch count for F: each names what was flushed when it was
        # written, which distinguishes a hole below flushed bytes from a torn tail (mutant
        # scan_tail).
        if file.start + segment_size > walk.end:
            walk.rest(file)
    damage = None
    # R7: bytes that were on the disk are gone. Cutting here could remove acknowledged records.
    if walk.end < walk.flushed:
        damage = walk.wrong or Damage(
            f"commitlog/{file_name(walk.end - walk.end % segment_size)}",
            walk.end,
            0,
            "the log ends before its flushed offset",
        )
    return Plan(walk.end, walk.flushed, walk.counts, walk.cut_batches, damage)


def wrong_length(held: int, size: int) -> str:
    """Say what is wrong with a log file of ``held`` bytes, not ``size``; 0: it is missing."""
    return f"log file has {held} bytes, not {size}" if held else "log file is missing"


class _Walk:
    """One walk; ``end`` is the end of the valid batches so far."""

    def __init__(self, segment_size: int, start: int, prove_from: int, check: Check) -> None:
        self._size = segment_size
        self._prove_from = prove_from
        self._check = check
        self._epoch = 0
        self.end = start
        self.flushed = 0
        self.counts: dict[int, int] = {}
        self.cut_batches = 0
        self.wrong: Damage | None = None

    def file(self, file: Found) -> bool:
        """Walk one file; returns whether to walk the next one."""
        base = file.start
        if file.size != self._size or base != self.end:
            held = file.size if base == self.end else 0
            what = wrong_length(held, self._size)
            return self._stop(f"commitlog/{file_name(self.end)}", 0, what)
        index = f"twinlog/batches/{file_name(base)}"
        for at in range(0, len(file.entries) - ENTRY_SIZE + 1, ENTRY_SIZE):
            self.counts[base] = at // ENTRY_SIZE
            entry = BatchEntry.unpack(file.entries, at)
            if entry is None:
                # Either may be the torn tail; `plan` decides that by F, not by how the entry looks.
                zero = is_zero(file.entries, at)
                what = "batch is missing" if zero else "batch index entry is damaged"
                return self._stop(index, 0, what)
            wrong = self._wrong(entry, base)
            if wrong is not None:
                return self._stop(f"commitlog/{file_name(base)}", entry.length, wrong)
            self.end, self._epoch = entry.end, entry.epoch
            self.flushed = max(self.flushed, entry.flushed)
            self.counts[base] = at // ENTRY_SIZE + 1
            if self.end == base + self._size:
                return True
        return self._stop(index, 0, "batch is missing")

    def _wrong(self, entry: BatchEntry, base: int) -> str | None:
        stop = base + self._size
        if entry.start != self.end:
            return f"entry names {entry.start}, the batch before ends at {self.end}"
        if entry.end > stop:
            return "batch reaches beyond its file"
        # R10; an old master's batch after a newer epoch would be two histories in one log.
        if entry.epoch < self._epoch:
            return "epoch is lower than that of the batch before"
        if (entry.kind == KIND_FILLER) != (entry.end == stop):
            return "a file ends without a filler, or a filler ends before its file"
        if entry.start == base and entry.kind != KIND_EPOCH and entry.epoch:
            return "a file begins without an epoch record"
        # Entry and bytes reach the disk in any order, so a valid entry alone proves nothing above
        # the flushed offset (mutant trust_entries).
        return self._check(entry) if entry.end > self._prove_from else None

    def _stop(self, path: str, length: int, what: str) -> bool:
        self.wrong = Damage(path, self.end, length, what)
        return False

    def rest(self, file: Found) -> None:
        """Read the entries beyond the end: what they prove, and how many a cut would remove."""
        for at in range(0, len(file.entries) - ENTRY_SIZE + 1, ENTRY_SIZE):
            if not any(file.entries[at : at + ENTRY_SIZE]):
                continue
            entry = BatchEntry.unpack(file.entries, at)
            if entry is not None and entry.start >= self.end:
                self.flushed = max(self.flushed, entry.flushed)
                self.cut_batches += 1

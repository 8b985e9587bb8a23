"""The commit log of a store directory, cut into pieces: runs of good records, blanks, damage.

Where does the log end? That depends on what the directory is:

* **ours** (it has ``twinlog/batches``): after the last batch that has an entry. A batch with a bad
  CRC below the highest flushed offset that any entry names is damage and cuts nothing; at or above
  it, it is the torn tail, and the log ends there.
* **RocketMQ's, not stopped cleanly** (``abort`` exists): where its recovery would stop: at the
  first bad record from the newest file on whose first record is old enough to be in the flushed
  queues.
* **RocketMQ's, stopped cleanly**: at the first bytes that are no record, unless something trusted
  says that records follow: a queue entry, or a later file that begins with a record. Then those
  bytes are damage. RocketMQ leaves old bytes after a cut, so bytes alone prove nothing.
* **raw**: the end of the last file; everything that parses is a run.

After damage the log continues at the next *trusted start*: a batch entry, a queue entry that points
at a record naming its own offset, or the beginning of the next file.

Pieces are found once, by the kernels, and kept; they are few unless much is damaged. Offsets are
log offsets, ends exclusive. Nothing is written.

Not here: queues and keys (`twinlog.store.queues`, `twinlog.store.key_index`), judging
(`twinlog.store.verify.check`).

Sources: RocketMQ 5.3 (``CommitLog.recoverNormally``, ``recoverAbnormally``); docs/protocol.md
R4 to R7 for the batch index.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from twinlog import kernels
from twinlog.format.batch_index import KIND_FILLER, BatchEntry, is_zero
from twinlog.format.checkpoint import Checkpoint
from twinlog.format.log_file import BLANK, file_name
from twinlog.kernels import codes
from twinlog.kernels.plain import MAGIC_V1, MAGIC_V2
from twinlog.store.damage import Damage, Harm
from twinlog.store.files import EMPTY, FileSeries, LogFile

_ENTRY_SIZE = 48


@dataclass(frozen=True, slots=True)
class Run:
    """Whole good records, back to back in one file."""

    file: LogFile
    offset: int
    end: int
    count: int


@dataclass(frozen=True, slots=True)
class Blank:
    """The end-of-file record; ``size`` is what it declares."""

    file: LogFile
    offset: int
    size: int


Piece = Run | Blank | Damage
Watch = Callable[[int], None]
"""Told the end of each log file that has been walked."""
Trusted = Callable[[int, int], Sequence[tuple[int, int]]]
"""Returns (log offset, size) of what queue entries point at in a span of the log, in order."""


def batch_entries(
    view: memoryview, written: int | None = None
) -> Iterator[tuple[int, BatchEntry | None]]:
    """Yield (index, entry) of a batch index file up to the last one that was written.

    None stands for an entry whose CRC is wrong. ``written``: after it are only zeros, if known.
    """
    written = len(bytes(view[:written]).rstrip(b"\0"))
    for i in range(-(-written // _ENTRY_SIZE)):
        if not is_zero(view, _ENTRY_SIZE * i):
            yield i, BatchEntry.unpack(view, _ENTRY_SIZE * i)
        else:
            yield i, None


def first_stamp(view: memoryview) -> int | None:
    """Return the store timestamp of a file's first record; None without a record."""
    if len(view) < 91 or int.from_bytes(view[4:8], "big", signed=True) not in (MAGIC_V1, MAGIC_V2):
        return None
    at = 68 if int.from_bytes(view[36:40], "big") & 0x10 else 56
    return int.from_bytes(view[at : at + 8], "big", signed=True)


class RocketLog:
    """The log of a directory that has no batch index.

    Args:
        series: Files of ``commitlog``.
        clean: Whether it was stopped cleanly.
        raw: Take everything that parses.
        checkpoint: RocketMQ's checkpoint, for the start of recovery after a crash.
        trusted: Asked once for each file in which damage is met.
        check_crc: Whether bodies are compared with their CRCs.
        watch: Told how far the walk is.
    """

    def __init__(
        self,
        series: FileSeries,
        *,
        clean: bool,
        raw: bool,
        checkpoint: Checkpoint,
        trusted: Trusted,
        check_crc: bool = True,
        watch: Watch | None = None,
    ) -> None:
        self._series = series
        self._odd = sorted(
            (start, f"{path.parent.name}/{path.name}", why)
            for start, path, why in series.odd
            if why != EMPTY
        )
        self._check_crc = check_crc
        self._watch = watch
        self._clean = clean
        self._raw = raw
        self._trusted_starts = trusted
        self._trusted: tuple[int, Sequence[tuple[int, int]]] = (-1, ())
        self.recovery_start = self._recovery_start(checkpoint)

    def pieces(self) -> list[Piece]:
        """Return the whole log in pieces, and fix its `end`."""
        found: list[Piece] = []
        before = self._series.start
        for file in self._series.files:
            if file.start > before:
                found.append(self._lost(before, file.start))
            if not self._file(file, found):
                break
            if self._watch is not None:
                self._watch(file.end)
            before = file.end
        else:
            for start, name, why in self._odd:
                if start == before:  # the log continues there, as far as is known
                    size = self._series.files[-1].size if self._series.files else 1
                    found.append(_no_file(name, start, size, why))
                    before += size
        if found and isinstance(last := found[-1], Damage) and last.what == NO_FILE:
            del found[-1]  # nothing of the log is after it
        return found

    def _lost(self, start: int, end: int) -> Damage:
        """Return what is missing between two files: nothing is known of what is no file there."""
        for at, name, why in self._odd:
            if start <= at < end:
                return _no_file(name, start, end - start, why)
        return _gap(start, end)

    def _recovery_start(self, checkpoint: Checkpoint) -> int:
        """Return the start of the file from which recovery after a crash would read."""
        for file in reversed(self._series.files):
            stamp = first_stamp(self._series.view(file))
            if stamp and stamp <= checkpoint.trusted_timestamp:
                return file.start
        return self._series.start

    def _file(self, file: LogFile, found: list[Piece]) -> bool:
        """Add the pieces of one file; False when the log ends in it."""
        view, at = self._series.view(file), file.start
        if file.start in self._series.unreadable:
            found.append(_unreadable(self._series, file))
            return True
        everything = self._series.last_written(file, file.start)
        while at < file.end:
            count, stop, code, _, _ = kernels.walk(
                view, at - file.start, file.size, check_crc=self._check_crc
            )
            if count:
                found.append(Run(file, at, file.start + stop, count))
            at = file.start + stop
            if code == codes.FINE:
                return True
            if code == codes.BLANK:
                found.append(Blank(file, at, BLANK.unpack_from(view, stop)[0]))
                return True
            go_on = self._go_on(file, at)
            written = max(everything, at)
            if go_on is None:
                if written > at:
                    found.append(self._end(found, file, at, written, code))
                return False
            length = go_on - at
            what = kernels.EXPLANATIONS[code]
            if written > at or go_on < file.end or not self._raw:
                found.append(Damage(log_name(file), at, length, what))
            at = go_on
        return True

    def _end(self, found: list[Piece], file: LogFile, at: int, written: int, code: int) -> Damage:
        """Return what the bytes after the last record are."""
        what, length = kernels.EXPLANATIONS[code], written - at
        if not self._clean:
            return Damage(log_name(file), at, length, f"recovery cuts here: {what}", Harm.TAIL)
        if not found:  # a log that was cut to nothing is rarer than a file that is not a log
            return Damage(log_name(file), at, length, what)
        text = "old bytes after the end of the log"
        return Damage(log_name(file), at, length, text, Harm.LEFTOVER)

    def _go_on(self, file: LogFile, at: int) -> int | None:
        """Return where records continue after bad bytes at ``at``; None when the log ends there."""
        if not self._clean and not self._raw and file.start >= self.recovery_start:
            return None
        covered = self._covering(file, at)
        for offset in self._starts_after(file, at):
            if self._begins_record(file, offset):
                return offset
        if covered is not None:
            return min(covered, file.end)
        later = any(
            first_stamp(self._series.view(f)) is not None
            for f in self._series.files
            if f.start >= file.end
        )
        return file.end if later or self._raw else None

    def _entries(self, file: LogFile) -> Sequence[tuple[int, int]]:
        """Return what is trusted in ``file``; that of one file at a time is kept."""
        if self._trusted[0] != file.start:
            self._trusted = file.start, self._trusted_starts(file.start, file.end)
        return self._trusted[1]

    def _covering(self, file: LogFile, at: int) -> int | None:
        """Return the end of the record that a queue entry places at ``at``."""
        entries = self._entries(file)
        i = bisect_right(entries, (at, 1 << 40)) - 1
        if i >= 0 and entries[i][0] <= at < sum(entries[i]):
            return sum(entries[i])
        return None

    def _starts_after(self, file: LogFile, at: int) -> Iterator[int]:
        entries = self._entries(file)
        for i in range(bisect_left(entries, (at + 1, 0)), len(entries)):
            yield entries[i][0]

    def _begins_record(self, file: LogFile, offset: int) -> bool:
        view, at = self._series.view(file), offset - file.start
        if at + 36 > len(view) or int.from_bytes(view[at + 28 : at + 36], "big") != offset:
            return False
        size = int.from_bytes(view[at : at + 4], "big")
        return at + size <= len(view) and kernels.walk(view, at, at + size)[0] == 1


NO_FILE = "a gap: no file holds these bytes"
"""What is wrong with a gap between two files."""


def _gap(start: int, end: int) -> Damage:
    return Damage(f"commitlog/{file_name(start)}", start, end - start, NO_FILE)


def _no_file(name: str, start: int, length: int, why: str) -> Damage:
    text = f"the file cannot be read: it is {why}"
    return Damage(name, start, length, text, Harm.UNREADABLE)


def log_name(file: LogFile) -> str:
    """Return the name of a log file with that of its folder."""
    return f"{file.path.parent.name}/{file.path.name}"


def _unreadable(series: FileSeries, file: LogFile) -> Damage:
    text = f"the file cannot be read: {series.unreadable[file.start]}"
    return Damage(log_name(file), file.start, file.size, text, Harm.UNREADABLE)


class TwinLog:
    """The log of a twinlog directory: what its batch index proves.

    Args:
        series: Files of ``commitlog``.
        batches: Files of ``twinlog/batches``, one for each log file and of its name.
        flushed: Everything below was flushed, as far as the checkpoint says.
        start: Where the log begins, as far as the checkpoint says.
        check_crc: Whether batches are compared with their CRCs.
        watch: Told how far the walk is.
    """

    def __init__(
        self,
        series: FileSeries,
        batches: FileSeries,
        *,
        flushed: int,
        start: int | None = None,
        check_crc: bool = True,
        watch: Watch | None = None,
    ) -> None:
        self._series = series
        self._check_crc = check_crc
        self._watch = watch
        self._start = start
        self.entries: dict[int, list[tuple[int, BatchEntry | None]]] = {
            file.start: list(
                batch_entries(
                    batches.view(file), batches.last_written(file, file.start) - file.start
                )
            )
            for file in batches.files
        }
        self.flushed = max(
            (e.flushed for entries in self.entries.values() for _, e in entries if e),
            default=0,
        )
        self.flushed = max(self.flushed, flushed)
        self.recovery_start = series.start

    def epochs(self) -> list[tuple[int, int]]:
        """Return (epoch, start) as the entries tell them."""
        found: list[tuple[int, int]] = []
        for file in self._series.files:
            for _, entry in self.entries.get(file.start, ()):
                if entry and (not found or found[-1][0] != entry.epoch):
                    found.append((entry.epoch, entry.start))
        return found

    def pieces(self) -> list[Piece]:
        """Return the whole log in pieces."""
        found: list[Piece] = []
        files = self._series.files
        before = min(self._begins(), self._series.start) if files else self._begins()
        indexed = [file.start for file in files if self.entries.get(file.start)]
        end = self._behind_all()
        for file in files:
            if file.start > before:
                found.append(_gap(before, file.start))
            last = end is None and (not indexed or file.start >= indexed[-1])
            if not self._file(file, found, last=last):
                return found
            before = max(
                [file.end, *(p.offset + p.length for p in found[-1:] if type(p) is Damage)]
            )
            if self._watch is not None:
                self._watch(file.end)
        if end is not None:
            harm = Harm.DAMAGE if before < self.flushed else Harm.TAIL
            found.append(replace(_gap(before, end), harm=harm))
        return found

    def _begins(self) -> int:
        """Where the log begins: where the checkpoint says, else with the first index."""
        if self._start is not None:
            return self._start
        return min([start for start, held in self.entries.items() if held], default=0)

    def _behind_all(self) -> int | None:
        """The end of what is indexed, where that is behind all files; else None."""
        newest = max([start for start, held in self.entries.items() if held], default=-1)
        if newest < self._series.end:
            return None
        return max([entry.end for _, entry in self.entries[newest] if entry], default=newest)

    def _file(self, file: LogFile, found: list[Piece], *, last: bool) -> bool:
        """Add the pieces of one file; False when the log ends in it."""
        entries = [entry for _, entry in self.entries.get(file.start, ()) if entry]
        at = file.start
        self._series.view(file)
        if at in self._series.unreadable:
            found.append(_unreadable(self._series, file))
            return True
        for entry in entries:
            if entry.end > file.end:
                torn = entry.start >= self.flushed
                text = "the file ends before what its batch index names"
                harm = Harm.TAIL if torn else Harm.DAMAGE
                length = entries[-1].end - at
                found.append(Damage(log_name(file), at, length, text, harm))
                return not torn
            if entry.start < at:
                text = "a batch index entry does not follow the one before"
                found.append(Damage(_batches_name(file), at, 0, text))
                continue
            if entry.start > at:
                text = "no good batch index entry names these bytes"
                found.append(Damage(_batches_name(file), at, entry.start - at, text))
            at = entry.end
            if not self._batch(file, entry, found):
                return False
        if at == file.end:
            return True
        return self._behind(file, at, found, last=last)

    def _behind(self, file: LogFile, at: int, found: list[Piece], *, last: bool) -> bool:
        """Add what is after the last entry of a file that is not full."""
        if not last:
            text = "no batch index entry names these bytes, though later files have entries"
            found.append(Damage(_batches_name(file), at, file.end - at, text))
            return True
        length = self._series.last_written(file, at) - at
        _, newest = (self.entries.get(file.start) or [(0, None)])[-1]
        if self.entries.get(file.start) and newest is None:
            harm = Harm.DAMAGE if at < self.flushed else Harm.TAIL
            text = "the last batch index entry does not match its CRC"
            found.append(Damage(_batches_name(file), at, length, text, harm))
        elif at < self.flushed:
            text = "flushed bytes that no batch index entry names"
            found.append(Damage(_batches_name(file), at, length, text))
        elif length:
            text = "an append that never finished: no batch index entry names these bytes"
            found.append(Damage(log_name(file), at, length, text, Harm.LEFTOVER))
        return False

    def _batch(self, file: LogFile, entry: BatchEntry, found: list[Piece]) -> bool:
        view = self._series.view(file)
        at = entry.start - file.start
        covered = BLANK.size if entry.kind == KIND_FILLER else entry.length
        checked = self._check_crc or entry.kind == KIND_FILLER
        if checked and kernels.crc32c(view[at : at + covered]) != entry.crc:
            torn = entry.start >= self.flushed
            text = "the batch does not match its CRC"
            if torn:
                text = f"recovery cuts here: {text}"
            harm = Harm.TAIL if torn else Harm.DAMAGE
            found.append(Damage(log_name(file), entry.start, entry.length, text, harm))
            return not torn
        if entry.kind == KIND_FILLER:
            found.append(Blank(file, entry.start, BLANK.unpack_from(view, at)[0]))
        elif found and isinstance(before := found[-1], Run) and before.end == entry.start:
            found[-1] = Run(before.file, before.offset, entry.end, before.count + entry.count)
        else:
            found.append(Run(file, entry.start, entry.end, entry.count))
        return True


def _batches_name(file: LogFile) -> str:
    return f"twinlog/batches/{file.path.name}"


def log_end(series: FileSeries, pieces: Sequence[Piece], *, ours: bool) -> int:
    """Return the log offset after the last piece that belongs to the log.

    A blank fills its file; but in the last file of a RocketMQ log it is not part of the log, as it
    would be overwritten.
    """
    end = series.start
    for piece in pieces:
        match piece:
            case Run():
                end = piece.end
            case Blank():
                end = piece.file.end if ours or piece.file.end < series.end else piece.offset
            case Damage():
                if piece.hides:
                    end = max(end, piece.offset + piece.length)
    return end

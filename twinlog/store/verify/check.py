"""Is a store directory sound?

`verify` reads every byte of the log once, through the kernels, and compares what depends on it:

* records: sizes, magic, body CRC, and that each names its own log offset;
* our batch index: each entry's CRC, borders, batch CRC, record count, epochs that never fall, and
  the chain from each file's head to the index before it;
* queues: each record's entry, each entry's record;
* RocketMQ's timer files and queue extensions (`twinlog.store.verify.timers`,
  `twinlog.store.verify.extensions`);
* the key index: every chain, slot and header (`twinlog.store.verify.key_chains`), and that its
  cells name the keys of the log (`twinlog.store.verify.keys_against_log`).

Files that cannot be judged are named with the reason (`twinlog.store.verify.side_files`).

A finding says what is wrong, where, and what can still be read. Its ``grade``:

* ``damage``: something that was written cannot be trusted any more;
* ``unreadable``: a file that could not be read, so nothing is known about it;
* ``note``: not as after a clean stop, but recovery puts it right (or it does no harm).

Units: ``offset`` is a log offset, ``position`` a byte in the named file; ends are exclusive.

Log files are looked at side by side when told so: the kernels let other threads run. `Checks.fast`
leaves out what is per byte: bodies and batches are not compared with their CRCs.

Not here: repairing anything, comparing two directories (`twinlog.store.verify.compare`).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

from twinlog import kernels
from twinlog.format.batch_index import KIND_FILLER, BatchEntry
from twinlog.kernels import codes
from twinlog.store.damage import Damage, Grade
from twinlog.store.epochs import broken_chains
from twinlog.store.files import EMPTY, LogFile
from twinlog.store.log import Run, TwinLog, log_name
from twinlog.store.marks import segment_size_of
from twinlog.store.queues import AnyQueue
from twinlog.store.reader import StoreReader
from twinlog.store.verify.extensions import check_extensions
from twinlog.store.verify.findings import FINDINGS_MAX, Finding, Judgement
from twinlog.store.verify.key_chains import odd_indexes, settled_indexes
from twinlog.store.verify.keys_against_log import READABLE, compare_index
from twinlog.store.verify.queues import Compared, compare_run, judge_queues
from twinlog.store.verify.side_files import look_beside, unchecked
from twinlog.store.verify.timers import check_timers

__all__ = [
    "FINDINGS_MAX",
    "JOBS_MAX",
    "Checks",
    "Finding",
    "Grade",
    "Judgement",
    "entry_fault",
    "short_files",
    "usual_length",
    "verify",
]

JOBS_MAX = 64
"""Log files that are looked at at the same time, at most."""


@dataclass(frozen=True, slots=True)
class Checks:
    """How to verify.

    Attributes:
        fast: Leave out the CRCs of bodies and batches.
        jobs: How many log files are looked at at the same time.
        progress: Called with how many bytes of the log have been looked at.
    """

    fast: bool = False
    jobs: int = 1
    progress: Callable[[int], None] | None = None


@dataclass(slots=True)
class _Part:
    """What one run of records says."""

    records: int = 0
    batches: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    queued: Compared = field(default_factory=Compared)

    def add(self, finding: Finding) -> None:
        """Keep a finding; those beyond `FINDINGS_MAX` of one run are dropped."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


def verify(store: StoreReader, checks: Checks | None = None) -> Judgement:
    """Check everything in the directory that ``store`` shows."""
    checks = checks or Checks()
    judgement = Judgement(store.start, store.end)
    _check_files(store, judgement)
    runs: list[Run] = []
    for piece in store.pieces():
        if isinstance(piece, Damage):
            judgement.add(_of_damage(store, piece))
        elif isinstance(piece, Run):
            runs.append(piece)
    whole, looked = _Part(), 0
    for run, part in zip(runs, _parts(store, runs, checks), strict=True):
        _join(whole, part, judgement)
        looked += run.end - run.offset
        if checks.progress is not None:
            checks.progress(looked)
    judgement.records, judgement.batches = whole.records, whole.batches
    judgement.entries = whole.queued.entries
    if isinstance(store.log, TwinLog):
        _check_epochs(store, store.log, judgement)
        _check_heads(store, store.log, judgement)
    judge_queues(store, whole.queued, judgement)
    look_beside(store, judgement)
    if not store.ours:
        for finding in (*check_extensions(store), *check_timers(store)):
            judgement.add(finding)
    judgement.unchecked.extend(unchecked(store))
    odd = list(odd_indexes(store))
    for name, position, text, grade in odd:
        judgement.add(Finding(grade, name, position, None, 0, text, READABLE))
    if not odd:
        for finding in compare_index(store, settled_indexes(store)):
            judgement.add(finding)
    return judgement


def _parts(store: StoreReader, runs: list[Run], checks: Checks) -> Iterator[_Part]:
    def look(run: Run) -> _Part:
        part = _Part()
        _check_run(store, run, part, check_crc=store.ours and not checks.fast)
        part.queued = compare_run(store, run)
        return part

    queues = store.stored_queues  # made once, before threads ask for it
    _ = store.trusted_queues  # before an entry is read: a running node may cover more by then
    if checks.jobs <= 1 or len(runs) <= 1 or not queues:
        yield from map(look, runs)
        return
    with ThreadPoolExecutor(min(checks.jobs, JOBS_MAX)) as pool:
        yield from pool.map(look, runs)


def _join(whole: _Part, part: _Part, judgement: Judgement) -> None:
    whole.records += part.records
    whole.batches += part.batches
    for finding in (*part.findings, *part.queued.findings):
        judgement.add(finding)
    whole.queued.join(part.queued)


def _check_files(store: StoreReader, judgement: Judgement) -> None:
    for stray in store.series.strays:
        text = "a file that is not part of a log; RocketMQ would not start"
        name = f"{stray.parent.name}/{stray.name}"
        judgement.add(Finding(Grade.NOTE, name, 0, None, 0, text, "everything"))
    told = {damage.offset for damage in store.damage if not damage.harm.readable}
    for start, path, state in store.series.odd:
        if start in told:
            continue
        if state == EMPTY:
            grade = Grade.NOTE if start >= store.end else Grade.DAMAGE
        else:
            grade = Grade.UNREADABLE
        name = f"{path.parent.name}/{path.name}"
        judgement.add(Finding(grade, name, 0, start, 0, f"it is {state}", "the other files"))
    _check_readable(store, judgement)
    for file, usual in short_files(store):
        text = f"it has {file.size} bytes, not {usual}; "
        text += "a node does not start" if store.ours else "RocketMQ would not start"
        grade = Grade.DAMAGE if store.ours else Grade.NOTE
        missing, readable = usual - file.size, f"everything below {file.end}"
        judgement.add(Finding(grade, log_name(file), file.size, None, missing, text, readable))
    if not store.ours:
        _check_lengths(store, judgement)
    for before, file in pairwise(store.series.files):
        if before.end > file.start:
            text = f"it begins before {before.path.name} ends: one of the two is not as it was"
            go_on = f"everything below {file.start}"
            length = min(before.end, file.end) - file.start
            place = (log_name(file), 0, file.start, length)
            judgement.add(Finding(Grade.DAMAGE, *place, text, go_on))


def _check_readable(store: StoreReader, judgement: Judgement) -> None:
    """Files beside the log that could not be read; those of the log itself are pieces of it."""
    for file in store.batches.files:
        store.batches.view(file)
        if why := store.batches.unreadable.get(file.start):
            name = f"twinlog/batches/{file.path.name}"
            text = f"the file cannot be read: {why}"
            judgement.add(Finding(Grade.UNREADABLE, name, 0, file.start, 0, text, "the log itself"))
    for _, odd, why in store.batches.odd:
        if why != EMPTY:
            name, text = f"twinlog/batches/{odd.name}", f"it is {why}"
            judgement.add(Finding(Grade.UNREADABLE, name, 0, None, 0, text, "the log itself"))
    for queue in store.stored_queues.values():
        for name, why in queue.unreadable():
            path = f"{queue.folder}/{queue.topic}/{queue.queue}/{name}"
            text = f"the file cannot be read: {why}"
            judgement.add(Finding(Grade.UNREADABLE, path, 0, None, 0, text, "the records"))


def usual_length(queues: Iterable[AnyQueue], kind: str) -> int:
    """Return the length that most queue files of a kind have, of several the greatest; 0: none."""
    found = Counter(
        size for queue in queues if queue.kind == kind for size in queue.lengths().values()
    )
    return max(found, key=lambda size: (found[size], size), default=0)


def short_files(store: StoreReader) -> list[tuple[LogFile, int]]:
    """Return the log files that are shorter than they should be, with the length of all.

    That is what the identity of a twinlog store says, else what most have. A file after the end of
    a twinlog log is rebuilt, and one that is being made may be short.
    """
    files = [] if store.marks.live else list(store.series.files)
    if store.ours:
        files = [file for file in files if file.start < store.end]
    found = Counter(file.size for file in files)
    usual = segment_size_of(store.root) if store.ours else 0
    usual = usual or max(found, key=lambda size: (found[size], size), default=0)
    return [(file, usual) for file in files if file.size < usual]


def _check_lengths(store: StoreReader, judgement: Judgement) -> None:
    """All queue files of a broker have one length."""
    queues = store.stored_queues.values()
    usual = {kind: usual_length(queues, kind) for kind in {queue.kind for queue in queues}}
    for queue in queues:
        for name, size in queue.lengths().items():
            if size != usual[queue.kind]:
                path = f"{queue.folder}/{queue.topic}/{queue.queue}/{name}"
                text = f"it has {size} bytes, other queue files {usual[queue.kind]}"
                text += "; RocketMQ would not start"
                judgement.add(Finding(Grade.NOTE, path, 0, None, 0, text, "the records"))


def _of_damage(store: StoreReader, damage: Damage) -> Finding:
    harm = damage.harm
    grade = harm.grade(written_now=store.running and not store.ours)
    readable = f"everything below {damage.offset}"
    if not harm.in_log:
        readable = "everything up to the end of the log"
    elif harm.hides and damage.offset + damage.length < store.end:
        readable += f" and from {damage.offset + damage.length} on"
    file = store.series.at(damage.offset)
    position = damage.offset - file.start if file else 0
    if damage.name.startswith("twinlog/") and isinstance(store.log, TwinLog) and file:
        good = [i for i, e in store.log.entries.get(file.start, ()) if e and e.end <= damage.offset]
        position = 48 * (good[-1] + 1 if good else 0)
    what = damage.what
    if harm.hides and harm.readable and damage.length:
        what += _first_bad(store, damage)
        readable += "; single records between, with --raw"
    place = (damage.name, position, damage.offset, damage.length)
    return Finding(grade, *place, what, readable, harm=harm)


def _first_bad(store: StoreReader, damage: Damage) -> str:
    """Name the record of a bad batch that can be seen to be bad; headers have no checksum."""
    if not store.ours or damage.name.startswith("twinlog/"):
        return ""
    view = store.series.read(damage.offset, damage.length)
    _, bad, code = kernels.verify_records(view, 0, len(view), damage.offset)
    return f": at {bad} {kernels.EXPLANATIONS[code]}" if code else ""


def _check_run(store: StoreReader, run: Run, part: _Part, *, check_crc: bool) -> None:
    """Check the records of a run, of our log batch by batch: what is in the cache is cheap."""
    log = store.log
    if not isinstance(log, TwinLog):
        _check_span(store, run, part, check_crc=check_crc)
        return
    for i, entry in log.entries.get(run.file.start, ()):
        if entry is None or not run.offset <= entry.start < run.end:
            continue
        batch = Run(run.file, entry.start, entry.end, entry.count)
        _check_span(store, batch, part, check_crc=check_crc)
        part.batches += 1
        if text := entry_fault(entry, store.series.read(entry.start, entry.length)):
            name = f"twinlog/batches/{run.file.path.name}"
            span = (48 * i, entry.start, entry.length)
            part.add(Finding(Grade.DAMAGE, name, *span, text, "the records themselves"))


def _check_span(store: StoreReader, run: Run, part: _Part, *, check_crc: bool) -> None:
    """Check that records name their own offsets; bodies too where batches prove them.

    Walking a RocketMQ log has compared the bodies already.
    """
    view, start = store.series.view(run.file), run.file.start
    at, end = run.offset - start, run.end - start
    while at < end:
        count, bad, code = kernels.verify_records(
            view, at, end, start + at, check_crc=check_crc, check_offsets=True
        )
        part.records += count
        if not code:
            return
        what = kernels.EXPLANATIONS[code]
        (size,) = struct.unpack_from(">i", view, bad - start)
        holds = code in (codes.OFFSET, codes.CRC) and 0 < size <= run.end - bad
        length = size if holds else run.end - bad
        readable = f"everything below {bad} and from {bad + length} on"
        place = (log_name(run.file), bad - start, bad, length)
        part.add(Finding(Grade.DAMAGE, *place, what, readable))
        part.records += holds
        at = bad - start + length


def _check_epochs(store: StoreReader, log: TwinLog, judgement: Judgement) -> None:
    """Check that epochs never fall from batch to batch."""
    epoch = 0
    for file in store.series.files:
        for i, entry in log.entries.get(file.start, ()):
            if entry is None:
                continue
            judgement.batches += entry.kind == KIND_FILLER
            if entry.epoch < epoch and not store.in_damage(entry.start):
                name = f"twinlog/batches/{file.path.name}"
                span = (48 * i, entry.start, entry.length)
                text = f"epoch {entry.epoch} follows epoch {epoch}"
                judgement.add(Finding(Grade.DAMAGE, name, *span, text, "the records themselves"))
            epoch = max(epoch, entry.epoch)


def _check_heads(store: StoreReader, log: TwinLog, judgement: Judgement) -> None:
    """Check that each file begins with an epoch record, and that it names the index before it."""
    for file, text in broken_chains(store.series, store.batches, log):
        if file.start < store.end and not store.in_damage(file.start):
            name = f"twinlog/batches/{file.path.name}"
            readable = "the records themselves"
            judgement.add(Finding(Grade.DAMAGE, name, 0, file.start, 0, text, readable))


def entry_fault(entry: BatchEntry, batch: memoryview) -> str:
    """Return what an entry says wrongly of its batch of records; "" when it describes it."""
    count, stop, _, stamp, _ = kernels.walk(batch, 0, len(batch), check_crc=False)
    if (count, stop) != (entry.count, entry.length):
        return f"the entry says {entry.count} records, the batch holds {count}"
    return "" if stamp == entry.store_timestamp else "the entry names another store time"

"""Is a store directory sound?

`verify` reads every byte of the log once, through the kernels, and compares what depends on it:

* records: sizes, magic, body CRC, and that each names its own log offset;
* our batch index: each entry's CRC, borders, batch CRC, record count, epochs that never fall, and
  the chain from each file's head to the index before it;
* queues: each record's entry, each entry's record;
* the key index: every chain, slot and header (`store_key_check`).

A finding says what is wrong, where, and what can still be read. Its ``grade``:

* ``damage``: something that was written cannot be trusted any more;
* ``unreadable``: a file that could not be read, so nothing is known about it;
* ``note``: not as after a clean stop, but recovery puts it right (or it hurts nobody).

Units: ``offset`` is a log offset, ``position`` a byte in the named file; ends are exclusive.

Log files are looked at side by side when told so: the kernels let other threads run. `Checks.fast`
leaves out what is per byte: bodies and batches are not compared with their CRCs.

Not here: repairing anything, comparing two directories (`store_compare`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum

from twinlog import kernels
from twinlog.inner_batches import is_inner_batch
from twinlog.kernels import codes
from twinlog.layout import BATCH_QUEUE_UNIT, KIND_FILLER, BatchEntry
from twinlog.record import Record
from twinlog.store_epochs import broken_chains
from twinlog.store_key_check import broken_indexes
from twinlog.store_log import Damage, Harm, Run, TwinLog
from twinlog.store_queues import AnyQueue, Entry, Queue
from twinlog.store_reader import StoreReader

FINDINGS_MAX = 1000
"""A directory with more findings is ruined; the rest is only counted."""

JOBS_MAX = 64
"""Log files that are looked at at the same time, at most."""


_Key = tuple[str, int]


class Grade(Enum):
    """How bad a finding is."""

    DAMAGE = "damage"
    UNREADABLE = "unreadable"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be; ``offset`` is None where no log offset applies."""

    grade: Grade
    file: str
    position: int
    offset: int | None
    length: int
    what: str
    readable: str


@dataclass(slots=True)
class Verdict:
    """What `verify` found in one directory."""

    start: int
    end: int
    records: int = 0
    batches: int = 0
    entries: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    more: int = 0

    @property
    def damaged(self) -> bool:
        """Whether anything that was written cannot be trusted."""
        return any(finding.grade is Grade.DAMAGE for finding in self.findings)

    @property
    def unreadable(self) -> bool:
        """Whether something could not be looked at."""
        return any(finding.grade is Grade.UNREADABLE for finding in self.findings)

    def add(self, finding: Finding) -> None:
        """Keep a finding, or only count it beyond `FINDINGS_MAX`."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.more += 1


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
    entries: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    named: dict[_Key, int] = field(default_factory=dict[_Key, int])
    missing: dict[_Key, int] = field(default_factory=dict[_Key, int])
    odd: set[_Key] = field(default_factory=set[_Key])


def verify(store: StoreReader, checks: Checks | None = None) -> Verdict:
    """Check everything in the directory that ``store`` shows."""
    checks = checks or Checks()
    verdict = Verdict(store.start, store.end)
    _check_files(store, verdict)
    runs: list[Run] = []
    for piece in store.pieces():
        if isinstance(piece, Damage):
            verdict.add(_of_damage(store, piece))
        elif isinstance(piece, Run):
            runs.append(piece)
    whole, looked = _Part(), 0
    for run, part in zip(runs, _parts(store, runs, checks), strict=True):
        _join(whole, part, verdict)
        looked += run.end - run.offset
        if checks.progress is not None:
            checks.progress(looked)
    verdict.records, verdict.batches = whole.records, whole.batches
    verdict.entries = whole.entries
    if isinstance(store.log, TwinLog):
        _check_epochs(store, store.log, verdict)
        _check_heads(store, store.log, verdict)
    _check_queues(store, whole, verdict)
    for name, position, text, damage in broken_indexes(store):
        grade = Grade.DAMAGE if damage else Grade.NOTE
        readable = "the records, through the log; repair builds the index again"
        verdict.add(Finding(grade, name, position, None, 0, text, readable))
    return verdict


def _parts(store: StoreReader, runs: list[Run], checks: Checks) -> Iterator[_Part]:
    def look(run: Run) -> _Part:
        part = _Part()
        _check_run(store, run, part, check_crc=store.ours and not checks.fast)
        _check_queued(store, run, part)
        return part

    queues = store.stored_queues  # made once, before threads ask for it
    if checks.jobs <= 1 or len(runs) <= 1 or not queues:
        yield from map(look, runs)
        return
    with ThreadPoolExecutor(min(checks.jobs, JOBS_MAX)) as pool:
        yield from pool.map(look, runs)


def _join(whole: _Part, part: _Part, verdict: Verdict) -> None:
    whole.records += part.records
    whole.batches += part.batches
    whole.entries += part.entries
    for finding in part.findings:
        verdict.add(finding)
    for to, of in ((whole.named, part.named), (whole.missing, part.missing)):
        for key, count in of.items():
            to[key] = to.get(key, 0) + count
    whole.odd |= part.odd


def _check_files(store: StoreReader, verdict: Verdict) -> None:
    for stray in store.series.strays:
        text = "a file that is no part of a log; RocketMQ would not start"
        name = f"commitlog/{stray.name}"
        verdict.add(Finding(Grade.NOTE, name, 0, None, 0, text, "everything"))
    _check_readable(store, verdict)
    before = None
    for file in store.series.files:
        if before is not None and before.end != file.start:
            text = "a gap: the file before it ends elsewhere than this one begins"
            name = f"commitlog/{file.path.name}"
            length = max(0, file.start - before.end)
            go_on = f"everything from {file.start} on"
            verdict.add(Finding(Grade.DAMAGE, name, 0, before.end, length, text, go_on))
        before = file


def _check_readable(store: StoreReader, verdict: Verdict) -> None:
    """Files beside the log that could not be read; those of the log itself are pieces of it."""
    for file in store.batches.files:
        store.batches.view(file)
        if why := store.batches.unreadable.get(file.start):
            name = f"twinlog/batches/{file.path.name}"
            text = f"the file cannot be read: {why}"
            verdict.add(Finding(Grade.UNREADABLE, name, 0, file.start, 0, text, "the log itself"))
    for queue in store.stored_queues.values():
        for name, why in queue.unreadable():
            path = f"{queue.folder}/{queue.topic}/{queue.queue}/{name}"
            text = f"the file cannot be read: {why}"
            verdict.add(Finding(Grade.UNREADABLE, path, 0, None, 0, text, "the records"))


def _of_damage(store: StoreReader, damage: Damage) -> Finding:
    if damage.harm is Harm.LEFTOVER:
        readable, grade = "everything up to the end of the log", Grade.NOTE
    elif damage.harm is Harm.TAIL:
        readable, grade = f"everything below {damage.offset}", Grade.DAMAGE
    else:
        grade = Grade.UNREADABLE if damage.harm is Harm.UNREADABLE else Grade.DAMAGE
        readable = f"everything below {damage.offset}"
        if damage.offset + damage.length < store.end:
            readable += f" and from {damage.offset + damage.length} on"
    file = store.series.at(damage.offset)
    position = damage.offset - file.start if file else 0
    if damage.name.startswith("twinlog/") and isinstance(store.log, TwinLog) and file:
        position = 48 * sum(
            1 for _, e in store.log.entries.get(file.start, ()) if e and e.end <= damage.offset
        )
    what = damage.what
    if damage.harm is Harm.DAMAGE and damage.length:
        what += _first_bad(store, damage)
        readable += "; single records between, with --raw"
    return Finding(grade, damage.name, position, damage.offset, damage.length, what, readable)


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
        if text := _entry_wrong(store, entry):
            name = f"twinlog/batches/{run.file.path.name}"
            span = (48 * i, entry.start, entry.length)
            part.findings.append(Finding(Grade.DAMAGE, name, *span, text, "the records themselves"))


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
        name = f"commitlog/{run.file.path.name}"
        part.findings.append(Finding(Grade.DAMAGE, name, bad - start, bad, length, what, readable))
        part.records += holds
        at = bad - start + length


def _check_epochs(store: StoreReader, log: TwinLog, verdict: Verdict) -> None:
    """Check that epochs never fall from batch to batch."""
    epoch = 0
    for file in store.series.files:
        for i, entry in log.entries.get(file.start, ()):
            if entry is None:
                continue
            verdict.batches += entry.kind == KIND_FILLER
            if entry.epoch < epoch and not _in_damage(store, entry.start):
                name = f"twinlog/batches/{file.path.name}"
                span = (48 * i, entry.start, entry.length)
                text = f"epoch {entry.epoch} follows epoch {epoch}"
                verdict.add(Finding(Grade.DAMAGE, name, *span, text, "the records themselves"))
            epoch = max(epoch, entry.epoch)


def _check_heads(store: StoreReader, log: TwinLog, verdict: Verdict) -> None:
    """Check that each file begins with an epoch record, and that it names the index before it."""
    for file, text in broken_chains(store.series, store.batches, log):
        if file.start < store.end and not _in_damage(store, file.start):
            name = f"twinlog/batches/{file.path.name}"
            readable = "the records themselves"
            verdict.add(Finding(Grade.DAMAGE, name, 0, file.start, 0, text, readable))


def _in_damage(store: StoreReader, offset: int) -> bool:
    return any(d.offset <= offset < d.offset + d.length for d in store.damage)


def _entry_wrong(store: StoreReader, entry: BatchEntry) -> str:
    view = store.series.read(entry.start, entry.length)
    count, stop, _, stamp, _ = kernels.walk(view, 0, len(view), check_crc=False)
    if (count, stop) != (entry.count, entry.length):
        return f"the entry says {entry.count} records, the batch holds {count}"
    return "" if stamp == entry.store_timestamp else "the entry names another store time"


def _check_queued(store: StoreReader, run: Run, part: _Part) -> None:
    """Compare what the queues' files hold for the records of a run with what they must hold."""
    queues = store.stored_queues
    for key, first, entries, each in _expected(store, run):
        queue = queues.get(key)
        count = len(entries) // each
        if queue is None:
            part.missing[key] = part.missing.get(key, 0) + count
            continue
        if isinstance(queue, Queue) != (each == 20):
            continue
        held = queue.stored(first, count)
        part.entries += len(held) // each
        part.named[key] = part.named.get(key, 0) + len(held) // each
        if held != entries[: len(held)]:
            part.odd.add(key)
        if len(held) < len(entries):
            part.missing[key] = part.missing.get(key, 0) + count - len(held) // each


def _check_queues(store: StoreReader, whole: _Part, verdict: Verdict) -> None:
    """Look at each entry of queues that hold something else than the log says, or more."""
    for key, queue in store.stored_queues.items():
        if key in whole.odd or whole.named.get(key, 0) != queue.held:
            _check_entry_by_entry(store, queue, verdict)
    _report_missing(store, whole.missing, verdict)


def _expected(store: StoreReader, run: Run) -> Iterator[tuple[tuple[str, int], int, bytes, int]]:
    """Yield (queue, where its entries begin, entries, size of one) of what a run must have.

    They begin at a queue offset, those of a batch queue at the log offset of the first.
    """
    view, start = store.series.view(run.file), run.file.start
    batched = frozenset(name.encode() for name in store.batch_topics)
    span = (view, run.offset - start, run.end - start, run.offset)
    for topic, number, first, entries in kernels.gather_queues(*span):
        if topic not in batched:
            yield (topic.decode("utf-8", "replace"), number), first, entries, 20
    for topic, number, _, _, units in kernels.gather_units(*span, batched) if batched else ():
        (first,) = struct.unpack_from(">q", units)
        yield (topic.decode(), number), first, units, BATCH_QUEUE_UNIT.size


def _report_missing(
    store: StoreReader, missing: Mapping[tuple[str, int], int], verdict: Verdict
) -> None:
    """Records without an entry: recovery adds them, except after a stop that claims to be clean."""
    grade = Grade.DAMAGE if store.clean and not store.ours else Grade.NOTE
    for (topic, number), count in sorted(missing.items()):
        folder = "batchconsumequeue" if topic in store.batch_topics else "consumequeue"
        name = f"{folder}/{topic}/{number}"
        text = f"{count} records of the log have no entry"
        verdict.add(Finding(grade, name, 0, None, 0, text, "all of them, through the log"))


def _tells_of(unit: Entry, record: Record) -> bool:
    """Whether a unit of a batch queue says of its record what the record says."""
    number = record.properties.get("INNER_NUM") if is_inner_batch(record) else "1"
    stored = record.queue_offset, record.store_timestamp, number
    return (unit.queue_offset, unit.store_timestamp, str(unit.count)) == stored


def _check_entry_by_entry(store: StoreReader, queue: AnyQueue, verdict: Verdict) -> None:
    """The slow way, for queues that do not simply follow the log (light and batch queues too)."""
    for entry in queue.entries(0):
        if entry.size == 0x7FFFFFFF or entry.log_offset < store.start:
            continue
        record = store.record_at(entry.log_offset)
        if (
            record is not None
            and record.size == entry.size
            and entry.tags_code
            in (
                record.tags_code,
                0,
            )
            and (isinstance(queue, Queue) or _tells_of(entry, record))
        ):
            continue
        if _in_damage(store, entry.log_offset):
            continue
        name, position = queue.place(entry.queue_offset) if isinstance(queue, Queue) else ("", 0)
        beyond = entry.log_offset >= store.end
        grade = Grade.NOTE if beyond and not store.clean else Grade.DAMAGE
        text = f"entry {entry.queue_offset} points at no such record"
        if beyond:
            text = f"entry {entry.queue_offset} points behind the end of the log"
        path = f"{queue.folder}/{queue.topic}/{queue.queue}/{name}".rstrip("/")
        readable = "the records, through the log"
        verdict.add(Finding(grade, path, position, entry.log_offset, entry.size, text, readable))

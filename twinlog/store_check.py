"""Is a store directory sound, and where do two of them part?

`verify` reads every byte of the log once, through the kernels, and compares what depends on it:

* records: sizes, magic, body CRC, and that each names its own log offset;
* our batch index: each entry's CRC, borders, batch CRC, record count, epochs that never fall, and
  the chain from each file's head to the index before it;
* queues: each record's entry, each entry's record.

A finding says what is wrong, where, and what can still be read. Its ``grade``:

* ``damage``: something that was written cannot be trusted any more;
* ``unreadable``: a file that could not be read, so nothing is known about it;
* ``note``: not as after a clean stop, but recovery puts it right (or it hurts nobody).

`compare` works on the bytes of two logs where both have them.

Units: ``offset`` is a log offset, ``position`` a byte in the named file; ends are exclusive.

Not here: repairing anything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from twinlog import kernels
from twinlog.kernels import codes
from twinlog.layout import KIND_FILLER, BatchEntry
from twinlog.store_epochs import broken_chains
from twinlog.store_log import Damage, Harm, Run, TwinLog
from twinlog.store_queues import AnyQueue, Queue
from twinlog.store_reader import StoreReader

FINDINGS_MAX = 1000
"""A directory with more findings is ruined; the rest is only counted."""

_CHUNK = 1 << 20


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


def verify(store: StoreReader) -> Verdict:
    """Check everything in the directory that ``store`` shows."""
    verdict = Verdict(store.start, store.end)
    _check_files(store, verdict)
    runs: list[Run] = []
    for piece in store.pieces():
        match piece:
            case Run():
                runs.append(piece)
                _check_run(store, piece, verdict)
            case Damage():
                verdict.add(_of_damage(store, piece))
            case _:
                pass
    if isinstance(store.log, TwinLog):
        _check_entries(store, store.log, verdict)
        _check_heads(store, store.log, verdict)
    _check_queues(store, runs, verdict)
    return verdict


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


def _check_run(store: StoreReader, run: Run, verdict: Verdict) -> None:
    """Check that the records of a run name their own offsets; bodies too where batches prove them.

    Walking a RocketMQ log has compared the bodies already.
    """
    view, start = store.series.view(run.file), run.file.start
    at, end = run.offset - start, run.end - start
    while at < end:
        count, bad, code = kernels.verify_records(
            view, at, end, start + at, check_crc=store.ours, check_offsets=True
        )
        verdict.records += count
        if not code:
            return
        what = kernels.EXPLANATIONS[code]
        (size,) = struct.unpack_from(">i", view, bad - start)
        holds = code in (codes.OFFSET, codes.CRC) and 0 < size <= run.end - bad
        length = size if holds else run.end - bad
        readable = f"everything below {bad} and from {bad + length} on"
        name = f"commitlog/{run.file.path.name}"
        verdict.add(Finding(Grade.DAMAGE, name, bad - start, bad, length, what, readable))
        verdict.records += holds
        at = bad - start + length


def _check_entries(store: StoreReader, log: TwinLog, verdict: Verdict) -> None:
    """Check what the batch index says beyond borders and batch CRCs."""
    epoch = 0
    for file in store.series.files:
        for i, entry in log.entries.get(file.start, ()):
            if entry is None:
                continue
            verdict.batches += 1
            text = _entry_wrong(store, entry, epoch)
            epoch = max(epoch, entry.epoch)
            if text and not _in_damage(store, entry.start):
                name = f"twinlog/batches/{file.path.name}"
                span = (48 * i, entry.start, entry.length)
                verdict.add(Finding(Grade.DAMAGE, name, *span, text, "the records themselves"))


def _check_heads(store: StoreReader, log: TwinLog, verdict: Verdict) -> None:
    """Check that each file begins with an epoch record, and that it names the index before it."""
    for file, text in broken_chains(store.series, store.batches, log):
        if file.start < store.end and not _in_damage(store, file.start):
            name = f"twinlog/batches/{file.path.name}"
            readable = "the records themselves"
            verdict.add(Finding(Grade.DAMAGE, name, 0, file.start, 0, text, readable))


def _in_damage(store: StoreReader, offset: int) -> bool:
    return any(d.offset <= offset < d.offset + d.length for d in store.damage)


def _entry_wrong(store: StoreReader, entry: BatchEntry, epoch: int) -> str:
    if entry.epoch < epoch:
        return f"epoch {entry.epoch} follows epoch {epoch}"
    if entry.kind == KIND_FILLER or entry.start >= store.end:
        return ""
    view = store.series.read(entry.start, entry.length)
    count, stop, _, stamp, _ = kernels.walk(view, 0, len(view), check_crc=False)
    if (count, stop) != (entry.count, entry.length):
        return f"the entry says {entry.count} records, the batch holds {count}"
    return "" if stamp == entry.store_timestamp else "the entry names another store time"


def _check_queues(store: StoreReader, runs: list[Run], verdict: Verdict) -> None:
    """Compare the queues' files with what the log says they must hold."""
    queues = store.stored_queues
    named: dict[tuple[str, int], int] = {}
    odd: set[tuple[str, int]] = set()
    missing: dict[tuple[str, int], int] = {}
    for run in runs:
        for key, first, entries in _expected(store, run):
            queue = queues.get(key)
            count = len(entries) // 20
            if not isinstance(queue, Queue):
                if queue is None:
                    missing[key] = missing.get(key, 0) + count
                continue
            held = queue.stored(first, count)
            verdict.entries += len(held) // 20
            named[key] = named.get(key, 0) + len(held) // 20
            if held != entries[: len(held)]:
                odd.add(key)
            if len(held) < len(entries):
                missing[key] = missing.get(key, 0) + count - len(held) // 20
    for key, queue in queues.items():
        if key in odd or named.get(key, 0) != queue.max - queue.min or not isinstance(queue, Queue):
            _check_entry_by_entry(store, queue, verdict)
    _report_missing(store, missing, verdict)


def _expected(store: StoreReader, run: Run) -> Iterator[tuple[tuple[str, int], int, bytes]]:
    view, start = store.series.view(run.file), run.file.start
    found = kernels.gather_queues(view, run.offset - start, run.end - start, run.offset)
    for topic, number, first, entries in found:
        yield (topic.decode("utf-8", "replace"), number), first, entries


def _report_missing(
    store: StoreReader, missing: Mapping[tuple[str, int], int], verdict: Verdict
) -> None:
    """Records without an entry: recovery adds them, except after a stop that claims to be clean."""
    grade = Grade.DAMAGE if store.clean and not store.ours else Grade.NOTE
    for (topic, number), count in sorted(missing.items()):
        name = f"consumequeue/{topic}/{number}"
        text = f"{count} records of the log have no entry"
        verdict.add(Finding(grade, name, 0, None, 0, text, "all of them, through the log"))


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Where two logs part.

    ``difference`` is the log offset of the first byte that differs where both have bytes; None when
    there is none. ``equal_to`` is the end of what is equal. ``consistent`` is what the two epoch
    histories promise to be equal; None where a side has no history.
    """

    start: int
    end_first: int
    end_second: int
    equal_to: int
    difference: int | None
    consistent: int | None


def compare(first: StoreReader, second: StoreReader) -> Comparison:
    """Compare the logs of two directories byte by byte, where both have them."""
    start = max(first.start, second.start)
    end = min(first.end, second.end)
    difference = _first_difference(first, second, start, end)
    return Comparison(
        start=start,
        end_first=first.end,
        end_second=second.end,
        equal_to=max(end, start) if difference is None else difference,
        difference=difference,
        consistent=consistent_point(first.epochs(), first.end, second.epochs(), second.end),
    )


def _first_difference(first: StoreReader, second: StoreReader, start: int, end: int) -> int | None:
    at = start
    while at < end:
        size = min(_CHUNK, end - at)
        one, two = first.series.read(at, size), second.series.read(at, size)
        size = min(len(one), len(two))
        if not size:
            return at
        if one[:size] != two[:size]:
            return at + _differs(one[:size], two[:size])
        at += size
    return None


def _differs(one: memoryview, two: memoryview) -> int:
    """Return the index of the first byte that differs; there is one."""
    low, high = 0, len(one)
    while high - low > 1:
        mid = (low + high) // 2
        low, high = (mid, high) if one[low:mid] == two[low:mid] else (low, mid)
    return low


def consistent_point(
    ours: list[tuple[int, int]], our_end: int, theirs: list[tuple[int, int]], their_end: int
) -> int | None:
    """Return up to where two epoch histories (epoch, start) promise equal bytes.

    None when a side has no history. 0 when they share no epoch.

    >>> consistent_point([(1, 0), (2, 80)], 140, [(1, 0), (2, 80), (3, 100)], 160)
    100
    """
    if not ours or not theirs:
        return None
    ends = [
        {
            entry: (history[i + 1][1] if i + 1 < len(history) else end)
            for i, entry in enumerate(history)
        }
        for history, end in ((ours, our_end), (theirs, their_end))
    ]
    shared = [entry for entry in ends[0] if entry in ends[1]]
    return min(ends[0][shared[-1]], ends[1][shared[-1]]) if shared else 0

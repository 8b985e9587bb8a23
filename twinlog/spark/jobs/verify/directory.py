"""verify: is every byte of a store what was written, and do queues and index follow the log?

Tasks *prove* ranges: every record whole, its CRC right, its own offset in it, the range filled
exactly; every batch of a twinlog store as its index entry says; every queue entry equal to what the
log says. When all ranges are proven and the sums per queue agree, the store is sound, and nothing
was read twice. When one is not, the store is *judged* by `twinlog.store.verify.check`, the same
code as ``twinlog log verify``: it names each fault, at the price of reading the store once more in
one task. So the answer never depends on how the work was cut.

Levels: ``structure`` skips CRCs, ``crc`` skips queues and index, ``full`` is everything. The key
index is checked on a proven log only.

Offsets are log offsets in bytes. Nothing is written.

Not here: repair (`twinlog.spark.jobs.rebuild.job`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from twinlog import kernels
from twinlog.format.batch_index import KIND_FILLER, BatchEntry
from twinlog.format.log_file import BLANK
from twinlog.kernels import codes
from twinlog.spark.directory.log_ranges import SPLIT_BYTES, LogRange, Plan, plan, pread
from twinlog.spark.engine.engine import Engine
from twinlog.spark.engine.report import Report, Rows, Value, Verdict
from twinlog.spark.jobs.verify.key_index import IndexCheck, ProvenLog, check_index
from twinlog.store.damage import Grade, Harm
from twinlog.store.epochs import broken_chains
from twinlog.store.files import FileSeries, store_root
from twinlog.store.log import TwinLog, batch_entries
from twinlog.store.queues import Queue
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import entry_fault
from twinlog.store.verify.check import verify as judge_store
from twinlog.store.verify.findings import Finding, Judgement

FINDINGS_SHOWN = 20
"""Findings in the report for people and machines; all are counted."""


class Level(Enum):
    """How much is checked."""

    STRUCTURE = "structure"
    CRC = "crc"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Proof:
    """What one range is.

    Attributes:
        start: Of the range.
        end: After its last record or blank; where the log continues.
        records: Records in it.
        queues: Entries compared, by (topic, queue).
        why: Why it is not proven; empty when it is.
        blank: Log offset of the blank that ends it; -1 without.
    """

    start: int
    end: int
    records: int
    queues: Mapping[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    why: str = ""
    blank: int = -1

    @property
    def records_end(self) -> int:
        """Where the last record of the range ends."""
        return self.blank if self.blank >= 0 else self.end


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """What to verify and how thoroughly."""

    path: Path
    level: Level = Level.FULL
    split_bytes: int = SPLIT_BYTES


def run(engine: Engine, settings: VerifySettings) -> Report:
    """Verify a store directory; every task must see it under the same path.

    Raises:
        UsageError: There is no store.
        TaskError: A task ended with an error that is no finding.
    """
    cut = plan(settings.path, settings.split_bytes)
    doubts = list(cut.doubts)
    proofs: list[Proof] = []
    if not doubts:
        proofs = engine.spread(partial(prove, level=settings.level), cut.splits)
        doubts += [proof.why for proof in proofs if proof.why]
        doubts += _between(settings.path, cut, proofs, settings.level)
    if doubts:
        (judgement,) = engine.spread(judge, [cut.root])
    else:
        judgement = _sound(settings.path, cut, proofs)
    index = IndexCheck()
    if settings.level is Level.FULL and not doubts:  # a judgement has looked at the index, too
        log = ProvenLog(cut.splits, [proof.records_end for proof in proofs])
        index = check_index(engine, settings.path, log, judgement.end)
    return report(settings, judgement, index, proven=not doubts)


def judge(root: str) -> Judgement:
    """Judge a whole store in one go."""
    with StoreReader(root) as store:
        return judge_store(store)


# ── proving one range ───────────────────────────────────────────────────────────────────────────


def prove(split: LogRange, level: Level) -> Proof:
    """Prove one range, or say why it is not proven."""
    try:
        data = split.read()
    except OSError as error:
        return Proof(split.start, split.start, 0, why=f"{split.file}: {error.strerror}")
    if len(data) < split.end - split.start:
        return Proof(split.start, split.start, 0, why=f"{split.file} has become shorter")
    length, blank = len(data), -1
    if split.open:
        _, length, code, _, _ = kernels.walk(data, 0, len(data), check_crc=False)
        if code == codes.BLANK:
            blank = split.start + length
            if BLANK.unpack_from(data, length)[0] != split.file_end - blank:
                return Proof(split.start, blank, 0, why="a blank of another size", blank=blank)
        elif code != codes.FINE and (rest := bytes(data[length:])).count(0) != len(rest):
            why = f"at {split.start + length}: {kernels.EXPLANATIONS[code]}"
            return Proof(split.start, split.start + length, 0, why=why)
    check = level is not Level.STRUCTURE
    records, bad, code = kernels.verify_records(
        data, 0, length, split.start, check_crc=check, check_offsets=True
    )
    if code:
        return Proof(split.start, bad, records, why=f"at {bad}: {kernels.EXPLANATIONS[code]}")
    why = _batches_wrong(split, data, level)
    queues: dict[tuple[str, int], int] = {}
    if not why and level is Level.FULL:
        queues, why = _compare_queues(split, data[:length])
    end = split.file_end if blank >= 0 else split.start + length
    return Proof(split.start, end, records, queues, why, blank)


def _batches_wrong(split: LogRange, data: memoryview, level: Level) -> str:
    """Compare the batches of a range with their index entries; empty when all hold."""
    index = FileSeries(store_root(split.root) / "twinlog" / "batches")
    file = index.at(split.base)
    if file is None or file.start != split.base:
        return ""
    for _, entry in batch_entries(index.view(file)):
        if entry is None or entry.end <= split.start or entry.start >= split.end:
            continue
        if wrong := _batch_wrong(entry, data, entry.start - split.start, level):
            return f"batch at {entry.start}: {wrong}"
    return ""


def _batch_wrong(entry: BatchEntry, data: memoryview, at: int, level: Level) -> str:
    if entry.kind == KIND_FILLER:
        fits = kernels.crc32c(data[at : at + BLANK.size]) == entry.crc
        return "" if fits else "the filler does not match its CRC"
    end = at + entry.length
    if level is not Level.STRUCTURE and kernels.crc32c(data[at:end]) != entry.crc:
        return "the batch does not match its CRC"
    return entry_fault(entry, data[at:end])


def _compare_queues(split: LogRange, data: memoryview) -> tuple[dict[tuple[str, int], int], str]:
    """Compare what the records say of queues with the queue files."""
    named: dict[tuple[str, int], int] = {}
    found = kernels.gather_queues(data, 0, len(data), split.start)
    for topic_bytes, number, first, entries in found:
        topic = topic_bytes.decode("utf-8", "replace")
        folder = store_root(split.root) / "consumequeue" / topic / str(number)
        if _stored(FileSeries(folder), 20 * first, len(entries)) != entries:
            return named, f"queue {number} of {topic} around {first} is not what the log says"
        named[topic, number] = named.get((topic, number), 0) + len(entries) // 20
    return named, ""


def _stored(series: FileSeries, at: int, length: int) -> bytes:
    out = bytearray()
    while length > 0:
        file = series.at(at)
        part = _part(file.path, at - file.start, min(length, file.end - at)) if file else b""
        if not part:
            break
        out += part
        at, length = at + len(part), length - len(part)
    return bytes(out)


def _part(path: Path, at: int, length: int) -> bytes:
    """Return bytes of a queue file; empty when it is gone."""
    try:
        return pread(path, at, length)
    except OSError:
        return b""


# ── putting together ────────────────────────────────────────────────────────────────────────────


def _between(path: Path, cut: Plan, proofs: Sequence[Proof], level: Level) -> list[str]:
    """Check what no single range can: that they tile, epochs, chains, sums per queue."""
    doubts: list[str] = []
    for proof, after in zip(proofs, cut.splits[1:], strict=False):
        if proof.end != after.start and not proof.why:
            doubts.append(f"the log ends at {proof.end} and continues at {after.start}")
    with StoreReader(path) as store:
        if isinstance(store.log, TwinLog):
            found = [e.epoch for es in store.log.entries.values() for _, e in es if e]
            if any(two < one for one, two in itertools.pairwise(found)):
                doubts.append("an epoch falls")
            doubts += [text for _, text in broken_chains(store.series, store.batches, store.log)]
        if level is not Level.FULL:
            return doubts
        named: dict[tuple[str, int], int] = {}
        for proof in proofs:
            for key, count in proof.queues.items():
                named[key] = named.get(key, 0) + count
        queues = store.stored_queues
        for key, queue in queues.items():
            if not isinstance(queue, Queue) or named.get(key, 0) != queue.max - queue.min:
                doubts.append(f"queue {key[1]} of {key[0]} has other entries than the log")
        doubts += [f"queue {n} of {topic} has no file" for topic, n in named.keys() - queues.keys()]
    return doubts


def _sound(path: Path, cut: Plan, proofs: Sequence[Proof]) -> Judgement:
    with StoreReader(path) as store:
        start, last_file = store.start, store.series.end
    end = start
    for proof in proofs:
        ends_here = proof.blank >= 0 and not cut.ours and proof.end == last_file
        if proof.records or proof.blank >= 0:
            end = proof.blank if ends_here else proof.end
    entries = sum(sum(proof.queues.values()) for proof in proofs)
    records = sum(proof.records for proof in proofs)
    return Judgement(start, end, records, cut.batches, entries)


def report(
    settings: VerifySettings,
    judgement: Judgement,
    index: IndexCheck,
    *,
    proven: bool,
) -> Report:
    """Put a judgement and what is wrong with the index into a report."""
    for finding in index.findings:
        judgement.add(finding)
    found = judgement.findings
    wrong = [finding for finding in found if finding.grade is not Grade.NOTE]
    damaged = judgement.damaged
    verdict = Verdict.DAMAGED if damaged else Verdict.FINE
    if not damaged and judgement.unreadable:
        verdict = Verdict.UNDECIDED
    word = {Verdict.DAMAGED: "damaged", Verdict.UNDECIDED: "unreadable"}.get(verdict, "sound")
    if verdict is Verdict.FINE and index.unseen:
        word = "sound; no key index"
    fields: dict[str, Value | Sequence[Value] | Mapping[str, Value]] = {
        "directory": str(settings.path),
        "state": word,
        "level": settings.level.value,
        "start": judgement.start,
        "end": judgement.end,
        "records": judgement.records,
        "batches": judgement.batches,
        "queue_entries": judgement.entries,
        "keys_without_index": index.unseen,
        "proven_in_parts": proven,
        "wrong": len(wrong) + judgement.more,
        "next": _next(settings.path, found, judgement),
    }
    rows: list[tuple[Value, ...]] = [
        (f.grade.value, f.file, f.position, f.offset, f.length, f.what, f.readable, cause(f))
        for f in found[:FINDINGS_SHOWN]
    ]
    headers = "GRADE FILE POSITION> OFFSET> LENGTH> WHAT READABLE LIKELY-CAUSE"
    head = (
        f"{settings.path} · {word} · {judgement.records} records, {judgement.entries} queue "
        f"entries, log {judgement.start}..{judgement.end}, {len(wrong) + judgement.more} wrong"
    )
    return Report("SparkVerify", head, fields, {"findings": Rows(headers, rows)}, verdict)


def cause(finding: Finding) -> str:
    """Return the likely cause of a finding, in a few words.

    >>> left = Finding(Grade.NOTE, "commitlog/0", 0, 0, 9, "old bytes", "", harm=Harm.LEFTOVER)
    >>> cause(left)
    'reappeared old record'
    """
    if finding.harm is not None:
        return finding.harm.likely_cause
    if finding.grade is Grade.UNREADABLE:
        return Harm.UNREADABLE.likely_cause
    if finding.file.startswith(("consumequeue", "index")):
        return "queue or index lags the log"
    return Harm.DAMAGE.likely_cause if finding.grade is Grade.DAMAGE else "crash"


def _next(path: Path, found: Sequence[Finding], judgement: Judgement) -> str:
    """Return the next command."""
    if any(f.grade is Grade.DAMAGE and f.file.startswith("commitlog") for f in found):
        return f"twinlog spark compare --path {path} --path OTHER"
    if any(f.file.startswith(("consumequeue", "index")) for f in found) or judgement.more:
        return f"twinlog spark rebuild --path {path} --check"
    return ""

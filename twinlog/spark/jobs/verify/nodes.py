"""verify over the wire: is every byte below confirm on each node what was written?

A task takes a range of one node's log and proves the batches that begin in it: the entry of the
node's batch index good, the batch's CRC as it says, its records whole, each at its own place and
with its own CRC, as many as the entry says. The ranges of a node must join without a gap and its
epochs never fall. A bad batch does not hide the ones after it.

So it is the node's disk that is judged, as the node itself reads it; the wire has CRCs of its own.
What is above confirm, queues and key index are checked on directories
(`twinlog.spark.jobs.verify.directory`).

Units: log offsets in bytes. Nothing is written.

Not here: comparing nodes (`twinlog.spark.jobs.verify.compare`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from twinlog import kernels
from twinlog.errors import TwinlogError, UsageError
from twinlog.format.batch_index import KIND_FILLER, BatchEntry
from twinlog.format.log_file import BLANK
from twinlog.kernels import codes
from twinlog.spark.directory.log_ranges import SPLIT_BYTES
from twinlog.spark.engine.engine import Engine
from twinlog.spark.engine.report import Report, Rows, Value, Verdict
from twinlog.spark.jobs.verify.directory import FINDINGS_SHOWN, Level
from twinlog.spark.jobs.verify.sides import Side, of_nodes
from twinlog.spark.nodes.remote_log import RemoteLog


@dataclass(frozen=True, slots=True)
class NodesSettings:
    """What to verify.

    Attributes:
        servers: Addresses of a cluster.
        node: Only this one; empty: every node that answers.
        level: ``structure`` or ``crc``.
        split_bytes: Of one piece of work.
    """

    servers: tuple[str, ...]
    node: str = ""
    level: Level = Level.CRC
    split_bytes: int = SPLIT_BYTES


@dataclass(frozen=True, slots=True)
class NodeRange:
    """The batches of one node that begin in ``start..end``; ``limit`` is its confirm offset."""

    side: Side
    start: int
    end: int
    limit: int


@dataclass(slots=True)
class Checked:
    """What one range is.

    Attributes:
        first: Where its first batch begins; -1 without one.
        end: Where its last one ends.
        epochs: Of the first and the last batch.
        findings: (log offset, length, what, likely cause).
        unread: Why not all of it could be read; empty normally.
    """

    node: str
    first: int = -1
    end: int = -1
    batches: int = 0
    records: int = 0
    epochs: tuple[int, int] = (0, 0)
    findings: list[tuple[int, int, str, str]] = field(
        default_factory=list[tuple[int, int, str, str]]
    )
    unread: str = ""


def run(engine: Engine, settings: NodesSettings) -> Report:
    """Verify the logs of running nodes.

    Raises:
        UsageError: The level is for directories, or there is no such node.
        SourceUnavailable: No node answers.
    """
    if settings.level is Level.FULL:
        hint = "leave --level out, or verify a node's directory: --path DIRECTORY"
        raise UsageError("queues and index are checked on directories", hint=hint)
    sides, absent = of_nodes(settings.servers)
    chosen = [side for side in sides if not settings.node or side.name == settings.node]
    if not chosen:
        names = ", ".join(side.name for side in sides)
        text = f"there is no node {settings.node} that answers"
        raise UsageError(text, code="unknown-node", hint=f"these answer: {names}")
    ranges = [
        NodeRange(side, at, min(at + settings.split_bytes, side.end), side.end)
        for side in chosen
        for at in range(side.start, side.end, settings.split_bytes)
    ]
    found = engine.spread(partial(check, level=settings.level), ranges)
    return _report(settings, chosen, found, [] if settings.node else absent)


def check(part: NodeRange, level: Level) -> Checked:
    """Prove the batches that begin in a range."""
    made = Checked(part.side.name)
    assert part.side.access is not None, "a node is asked"
    log: RemoteLog | None = None
    try:
        log = RemoteLog(part.side.access)
        for entry, data in _batches(log, part, made):
            _take(made, entry, data, level)
    except TwinlogError as error:
        made.unread = error.text
    finally:
        if log is not None:
            log.close()
    return made


def _batches(log: RemoteLog, part: NodeRange, made: Checked) -> Iterator[tuple[BatchEntry, bytes]]:
    """Yield the batches that begin in the range; an invalid entry ends it."""
    held, at = bytearray(), part.start
    entries: list[BatchEntry] = []
    for piece in log.read(part.start, part.limit):
        held += piece.data
        for place in range(0, len(piece.entries), 48):
            entry = BatchEntry.unpack(piece.entries, place)
            if entry is None:
                text = "an entry of the batch index does not match its CRC"
                made.findings.append((entries[-1].end if entries else at, 0, text, "bit rot"))
                return
            if entry.start < part.end:
                entries.append(entry)
        while entries:
            entry, size = entries[0], _covered(entries[0])
            if entry.start + size > at + len(held):
                break
            begin = entry.start - at
            yield entry, bytes(held[begin : begin + size])
            del entries[0]
            past = min(entry.end, at + len(held)) - at
            del held[:past]
            at += past
        if not entries and piece.end >= part.end:
            return
        if not entries:  # the end of a filler, or of a batch that began before the range
            at += len(held)
            held.clear()


def _covered(entry: BatchEntry) -> int:
    return BLANK.size if entry.kind == KIND_FILLER else entry.length


def _take(made: Checked, entry: BatchEntry, data: bytes, level: Level) -> None:
    """Prove one batch and count it."""
    if made.first < 0:
        made.first, made.epochs = entry.start, (entry.epoch, entry.epoch)
    elif entry.start != made.end:
        text = f"the batch index goes from {made.end} to {entry.start}"
        made.findings.append((made.end, entry.start - made.end, text, "lost entries"))
    if entry.epoch < made.epochs[1]:
        text = f"epoch {entry.epoch} behind epoch {made.epochs[1]}"
        made.findings.append((entry.start, entry.length, text, "a cut was missed"))
    made.end, made.epochs = entry.end, (made.epochs[0], entry.epoch)
    made.batches += 1
    made.records += entry.count
    crc = level is not Level.STRUCTURE
    if entry.kind != KIND_FILLER:
        records, bad, code = kernels.verify_records(
            data, 0, len(data), entry.start, check_crc=crc, check_offsets=True
        )
        if code:
            old = code == codes.OFFSET
            cause = "reappeared old record" if old else "bit rot"
            text = kernels.EXPLANATIONS[code]
            made.findings.append((bad, entry.end - bad, text, cause))
            return
        if records != entry.count:
            text = f"{records} records in a batch of {entry.count}"
            made.findings.append((entry.start, entry.length, text, "bit rot"))
            return
    if crc and kernels.crc32c(data) != entry.crc:
        text = "the batch does not match its CRC"
        made.findings.append((entry.start, entry.length, text, "bit rot"))


# ── putting together ────────────────────────────────────────────────────────────────────────────


def _joined(side: Side, parts: Sequence[Checked]) -> list[tuple[int, int, str, str]]:
    """Return what no single range can see: gaps between them, epochs that fall."""
    found: list[tuple[int, int, str, str]] = []
    at, epoch = side.start, 0
    if any(part.unread for part in parts):
        return found
    for part in parts:
        if part.first < 0:
            continue
        if part.first != at:
            text = f"the batch index goes from {at} to {part.first}"
            found.append((at, part.first - at, text, "lost entries"))
        if part.epochs[0] < epoch:
            text = f"epoch {part.epochs[0]} behind epoch {epoch}"
            found.append((part.first, 0, text, "a cut was missed"))
        at, epoch = part.end, part.epochs[1]
    if at != side.end and not any(part.findings for part in parts):
        found.append((at, side.end - at, "no batch index entry below confirm", "lost entries"))
    return found


def _report(
    settings: NodesSettings,
    sides: Sequence[Side],
    found: Sequence[Checked],
    absent: Sequence[str],
) -> Report:
    rows: list[tuple[Value, ...]] = []
    nodes: list[tuple[Value, ...]] = []
    wrong, unread = 0, len(absent)
    for side in sides:
        parts = [part for part in found if part.node == side.name]
        bad = sorted([f for part in parts for f in part.findings] + _joined(side, parts))
        lost = [part.unread for part in parts if part.unread]
        wrong, unread = wrong + len(bad), unread + len(lost)
        batches, records = sum(p.batches for p in parts), sum(p.records for p in parts)
        state = "damaged" if bad else "unread" if lost else "sound"
        nodes.append((side.name, side.start, side.end, batches, records, len(bad), state))
        rows += [(side.name, *one) for one in bad] + [(side.name, None, 0, t, "") for t in lost]
    nodes += [(name, None, None, 0, 0, 0, "not reached") for name in absent]
    verdict = Verdict.DAMAGED if wrong else Verdict.UNDECIDED if unread else Verdict.FINE
    word = {Verdict.DAMAGED: "damaged", Verdict.UNDECIDED: "not all read"}.get(verdict, "sound")
    fields: dict[str, Value | Sequence[Value] | Mapping[str, Value]] = {
        "servers": list(settings.servers),
        "state": word,
        "level": settings.level.value,
        "wrong": wrong,
        "next": f"twinlog spark compare --servers {','.join(settings.servers)}" if wrong else "",
    }
    tables = {
        "nodes": Rows("NODE START> END> BATCHES> RECORDS> WRONG> STATE", nodes),
        "findings": Rows("NODE OFFSET> LENGTH> WHAT LIKELY-CAUSE", rows[:FINDINGS_SHOWN]),
    }
    head = f"{len(nodes)} nodes · {word} · {sum(part.records for part in found)} records"
    return Report("SparkVerifyNodes", head, fields, tables, verdict)

"""``twinlog log``: look at the files of a store; no node is needed or asked.

The directory may be one of ours or RocketMQ's, live or a copy, stopped cleanly or not. What is
shown is what its recovery would keep; ``--raw`` shows everything that parses. Nothing is written.

Not here: reading (``twinlog.store_reader``), judging (``twinlog.store_check``), records as rows
(``log_dump``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

from cli import log_parts
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import table, text
from cli.log_dump import Item, Window, hex_lines, items
from cli.options import Output
from cli.parsing import PRIVATE
from cli.render import Answer, Cell, Size, Table, Time, columns
from twinlog.store_check import JOBS_MAX, Checks, Grade, Verdict
from twinlog.store_check import verify as verify_store
from twinlog.store_compare import compare as compare_stores
from twinlog.store_files import is_store, listed, log_folders
from twinlog.store_log import Damage, Harm, Run, Watch
from twinlog.store_reader import StoreReader
from twinlog.units import format_size

PROGRESS_MIN = 64 * 1024 * 1024
"""Smaller logs are verified before anybody asks how far it is."""
LINES = 500
"""Lines of a dump that go out in one write."""


def info(
    directory: Path,
    /,
    *,
    queues: bool = False,
    timers: bool = False,
    metadata: bool = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show the segments of a store.

    Args:
        directory: The data directory of a node, or a store of RocketMQ.
        queues: Every queue too, with its range.
        timers: RocketMQ's timer wheel too: which records wait for which second.
        metadata: The files below config too: topics, groups, consumer offsets.
    """
    with open_store(directory) as store:
        wanted = (
            (queues, log_parts.queues),
            (timers, log_parts.timers),
            (metadata, log_parts.metadata),
        )
        parts = [part(store) for asked, part in wanted if asked]
        rows = [_segment(store, at) for at in range(len(store.series.files))]
        kind = "twinlog" if store.ours else "RocketMQ"
        stop = "stopped cleanly" if store.clean else "not stopped cleanly"
        stop = "running" if store.running else stop
        flushed = store.marks.flushed if store.ours else None
        fields: dict[str, object] = {
            "directory": str(directory),
            "made_by": kind,
            "state": stop,
            "start": store.start,
            "end": store.end,
            "flushed": flushed,
            "segments": rows,
            **{part.name: part.items for part in parts},
        }
        head = f"{directory} · {kind} · {stop} · log {store.start}..{store.end}"
        context.printer.answer(
            Answer(
                kind="LogInfo",
                fields=fields,
                head=head,
                tables=[
                    Table(
                        columns("SEGMENT START> END> RECORDS> SIZE> OLDEST NEWEST FLUSHED CRC"),
                        [_segment_row(row) for row in rows],
                    ),
                    *[part.table for part in parts],
                ],
                items=rows,
                names=[str(row["segment"]) for row in rows],
            )
        )
    return Exit.OK


def _segment(store: StoreReader, number: int) -> dict[str, object]:
    file = store.series.files[number]
    pieces = list(store.pieces(file.start, file.end))
    runs = [piece for piece in pieces if isinstance(piece, Run)]
    harms = {piece.harm for piece in pieces if isinstance(piece, Damage)} - {Harm.LEFTOVER}
    if store.running and not store.ours:
        harms.discard(Harm.TAIL)  # a broker may be writing it
    state = "unreadable" if harms == {Harm.UNREADABLE} else "damaged" if harms else "ok"
    end = min(max(store.end, file.start), file.end)
    first = next(store.decode_run(runs[0]), None) if runs else None
    return {
        "segment": file.path.name,
        "start": file.start,
        "end": end,
        "records": sum(run.count for run in runs),
        "size": file.size,
        "oldest_ms": first.store_timestamp if first else None,
        "newest_ms": store.last_timestamp(runs[-1]) if runs else None,
        "flushed": end <= store.marks.flushed if store.ours else None,
        "crc": state,
    }


def _segment_row(row: dict[str, object]) -> tuple[Cell, ...]:
    oldest, newest, size = row["oldest_ms"], row["newest_ms"], row["size"]
    flushed = row["flushed"]
    return (
        str(row["segment"]),
        _whole(row["start"]),
        _whole(row["end"]),
        _whole(row["records"]),
        Size(_whole(size)),
        Time(oldest) if isinstance(oldest, int) else None,
        Time(newest) if isinstance(newest, int) else None,
        flushed if isinstance(flushed, bool) else None,
        str(row["crc"]),
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def epochs(directory: Path, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Show the epochs a store knows: who wrote which bytes.

    Args:
        directory: The data directory of a node, or a store of RocketMQ in controller mode.
    """
    with open_store(directory) as store:
        history, end = store.kept_epochs(), store.end
    ends = [start for _, start in history[1:]] + [end]
    found: list[dict[str, object]] = []
    rows: list[tuple[Cell, ...]] = []
    for (epoch, start), behind in zip(history, ends, strict=False):
        stop = max(min(behind, end), start)  # RocketMQ's file may know more than the log has
        found.append({"epoch": epoch, "start": start, "end": stop, "bytes": stop - start})
        rows.append((epoch, start, stop, Size(stop - start)))
    context.printer.answer(
        Answer(
            kind="LogEpochs",
            fields={"directory": str(directory), "epochs": found},
            tables=[Table(columns("EPOCH> START> END> BYTES>"), rows)],
            items=found,
            names=[str(item["epoch"]) for item in found],
        )
    )
    return Exit.OK


def dump(
    directory: Path,
    /,
    *,
    range_: str = "start:",
    raw: bool = False,
    bodies: bool = False,
    hex_: bool = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show every record of a store, in log order, with blanks and damage.

    Args:
        directory: The data directory of a node, or a store of RocketMQ.
        range_: Which records: 4096:8192 (log offsets), -100: (the last hundred), +100, @-1h: .
        raw: Everything that parses, also what recovery would drop.
        bodies: Bodies too, as base64.
        hex_: Every byte of each record too.
    """
    window = Window.parse(range_, context.wall_ms())
    with open_store(directory, raw=raw) as store:
        found = items(store, window, bodies=bodies, raw_bytes=hex_)
        if context.options.output is Output.JSONL:
            some = _stream(found, context)
        else:
            some = show(list(found), directory, context)
        if not some and _ruined(store):
            what = f"no record of {directory} can be read"
            raise Failure(Exit.DATA, what, hints=(f"see: twinlog log verify {directory}",))
    return Exit.OK


def _ruined(store: StoreReader) -> bool:
    """Whether there are bytes and not one record."""
    bad = any(damage.harm is not Harm.LEFTOVER for damage in store.damage)
    return bad and not any(isinstance(piece, Run) for piece in store.pieces())


def _stream(found: Iterator[Item], context: Context) -> bool:
    """Print one object a line, many lines at a time; whether there was a record."""
    some = False
    while block := list(islice(found, LINES)):
        some = some or any(item["kind"] == "Record" for item in block)
        context.printer.text("".join([json.dumps(i, ensure_ascii=False) + "\n" for i in block]))
    return some


def show(found: list[Item], directory: Path, context: Context, *, kind: str = "LogDump") -> bool:
    """Print records, blanks and damage as one answer; whether there was a record.

    As JSON lines nothing is no line.
    """
    if not found and context.options.output is Output.JSONL:
        return False
    records = [item for item in found if item["kind"] == "Record"]
    dumped = [(item, text(item, "hex")) for item in found]
    context.printer.answer(
        Answer(
            kind=kind,
            fields={"directory": str(directory), "items": found},
            tables=[
                Table(
                    columns("OFFSET> SIZE> TOPIC QUEUE> QUEUE_OFFSET> STORED KEYS TAG WHAT"),
                    [_dump_row(item) for item in found],
                )
            ],
            items=found,
            names=[f"log@{item['physical_offset']}" for item in records],
            tail="\n\n".join(
                "\n".join(hex_lines(held, _whole(item["physical_offset"])))
                for item, held in dumped
                if held
            ),
        )
    )
    return bool(records)


def _dump_row(item: Item) -> tuple[Cell, ...]:
    if item["kind"] != "Record":
        length = item["size"] if item["kind"] == "Blank" else item["length"]
        what = "blank" if item["kind"] == "Blank" else str(item["what"])
        return (_whole(item["offset"]), _whole(length), None, None, None, None, None, None, what)
    named = table(item["properties"])
    return (
        _whole(item["physical_offset"]),
        _whole(item["size"]),
        str(item["topic"]),
        _whole(item["queue_id"]),
        _whole(item["queue_offset"]),
        Time(_whole(item["store_timestamp"])),
        text(named, "KEYS"),
        text(named, "TAGS"),
        "record",
    )


def verify(
    directory: Path,
    /,
    *,
    fast: bool = False,
    jobs: int = 1,
    index_slots: int | None = None,
    index_cells: int | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Check every byte of a store against its checksums, and its queues against its log.

    Exit 0: sound. 65: damaged. 2: something could not be read.

    Args:
        directory: The data directory of a node, or a store of RocketMQ.
        fast: Leave out the checksums of bodies and batches.
        jobs: How many log files are looked at at the same time.
        index_slots: Hash slots of the key index files, where cells are not four for each.
        index_cells: Cells of the key index files; goes with --index-slots.
    """
    if not 1 <= jobs <= JOBS_MAX:
        raise Failure(Exit.USAGE, f"--jobs is {jobs}; it can be 1 to {JOBS_MAX}")
    capacity = index_capacity(index_slots, index_cells)
    size = _log_size(directory)
    told = size >= PROGRESS_MIN

    def walked(end: int) -> None:
        context.printer.status(f"reading the log: {format_size(end)} of {format_size(size)}")

    def looked(done: int) -> None:
        context.printer.status(f"checking: {format_size(done)} of {format_size(size)}")

    with open_store(directory, check_crc=not fast, watch=walked if told else None) as store:
        store.index_capacity = capacity
        verdict = verify_store(store, Checks(fast, jobs, looked if told else None))
    context.printer.clear_status()
    state = "damaged" if verdict.damaged else "unreadable" if verdict.unreadable else "sound"
    findings: list[dict[str, object]] = [
        {
            "grade": finding.grade.value,
            "file": finding.file,
            "position": finding.position,
            "offset": finding.offset,
            "length": finding.length,
            "what": finding.what,
            "readable": finding.readable,
        }
        for finding in verdict.findings
    ]
    context.printer.answer(_verified(directory, verdict, state, findings))
    if verdict.damaged:
        return Exit.DATA
    return Exit.UNDECIDED if verdict.unreadable else Exit.OK


def _verified(
    directory: Path, verdict: Verdict, state: str, findings: list[dict[str, object]]
) -> Answer:
    rows: list[tuple[Cell, ...]] = [
        (f.grade.value, f.file, f.position, f.offset, f.length, f.what, f.readable)
        for f in verdict.findings
    ]
    wrong = sum(finding.grade is not Grade.NOTE for finding in verdict.findings) + verdict.more
    head = (
        f"{directory} · {state} · {verdict.records} records, {verdict.entries} queue entries, "
        f"log {verdict.start}..{verdict.end}, {wrong} wrong"
    )
    return Answer(
        kind="LogVerify",
        fields={
            "directory": str(directory),
            "state": state,
            "start": verdict.start,
            "end": verdict.end,
            "records": verdict.records,
            "batches": verdict.batches,
            "queue_entries": verdict.entries,
            "findings": findings,
            "more_findings": verdict.more,
            "not_checked": [{"file": name, "reason": why} for name, why in verdict.unchecked],
        },
        head=head,
        tables=[Table(columns("GRADE FILE POSITION> OFFSET> LENGTH> WHAT READABLE"), rows)]
        if rows
        else (),
        tail="\n".join(_unchecked(verdict)),
        items=findings,
        names=[f.file for f in verdict.findings],
    )


def _unchecked(verdict: Verdict) -> list[str]:
    """One line for each reason why something was not judged."""
    found: dict[str, list[str]] = {}
    for name, why in verdict.unchecked:
        found.setdefault(why, []).append(name)
    return [f"not checked: {', '.join(names)} ({why})" for why, names in found.items()]


def compare(first: Path, second: Path, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Show where the logs of two stores part.

    Exit 0: no byte differs where both have bytes. 1: one does. 2: none that could be read does, or
    one log begins behind the end of the other.

    Args:
        first: The data directory of a node, or a store of RocketMQ.
        second: The other one.
    """
    with open_store(first) as one, open_store(second) as two:
        found = compare_stores(one, two)
        rows: list[tuple[Cell, ...]] = [
            (str(first), one.start, found.end_first),
            (str(second), two.start, found.end_second),
        ]
    unread, at = found.unread, found.equal_to
    equal = found.difference is None and unread is None and not found.apart
    word = f"equal up to {at}" if equal else f"first differing byte at {at}"
    if found.difference is None and unread is not None:
        word = f"equal up to {at}, which cannot be read; no other byte differs"
    if found.apart:
        word = "nothing to compare: no byte is in both logs"
    context.printer.answer(
        Answer(
            kind="LogCompare",
            fields={
                "first": str(first),
                "second": str(second),
                "equal": equal,
                "start": found.start,
                "first_end": found.end_first,
                "second_end": found.end_second,
                "equal_to": at,
                "first_difference": found.difference,
                "first_unread": unread,
                "consistent_point": found.consistent,
            },
            head=word,
            tables=[Table(columns("LOG START> END>"), rows)],
            names=[str(at)],
        )
    )
    if found.difference is not None:
        return Exit.NO
    return Exit.OK if equal else Exit.UNDECIDED


def index_capacity(slots: int | None, cells: int | None) -> tuple[int, int] | None:
    """Return what --index-slots and --index-cells say; None for RocketMQ's four cells a slot.

    Raises:
        Failure: One without the other, or below 1 (exit 64).
    """
    if (slots is None) != (cells is None):
        raise Failure(Exit.USAGE, "--index-slots and --index-cells go together")
    if slots is None or cells is None:
        return None
    for name, value in (("slots", slots), ("cells", cells)):
        if value < 1:
            raise Failure(Exit.USAGE, f"--index-{name} is {value}; it is 1 at least")
    return slots, cells


def _log_size(directory: Path) -> int:
    if not is_store(directory):
        return 0
    folders = log_folders(directory)
    return sum(size for folder in folders for _, size, _ in listed(folder))


def open_store(
    directory: Path, *, raw: bool = False, check_crc: bool = True, watch: Watch | None = None
) -> StoreReader:
    """Open a store for reading.

    Raises:
        Failure: There is no such directory, or it is no store (exit 66).
    """
    if is_store(directory):
        return StoreReader(directory, raw=raw, check_crc=check_crc, watch=watch)
    what = f"there is no directory {directory}"
    if directory.is_dir():
        what = f"{directory} is no store: it has no directory commitlog"
    elif directory.exists():
        what = f"{directory} is no store: it is a file, not a directory"
    raise Failure(Exit.MISSING, what, hints=("name the data directory of a node",))

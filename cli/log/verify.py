"""``twinlog log verify``: every byte of a store against its checksums, its queues against its log.

Nothing is written.

Not here: judging (``twinlog.store.verify.check``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cli.answer import Answer, Table
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields
from cli.log.directory import index_capacity, log_size, open_store
from cli.parsing import PRIVATE
from twinlog.store.damage import Grade
from twinlog.store.verify.check import JOBS_MAX, Checks, Judgement
from twinlog.store.verify.check import verify as verify_store
from twinlog.units import format_size

PROGRESS_MIN = 64 * 1024 * 1024
"""Smaller logs are verified before anybody asks how far it is."""
FINDINGS = "GRADE FILE POSITION> OFFSET> LENGTH> WHAT READABLE"


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
        directory: The data directory of a node, or a RocketMQ store.
        fast: Skip the checksums of bodies and batches.
        jobs: How many log files are checked at the same time.
        index_slots: Hash slots of the key index files, unless they have four cells per slot.
        index_cells: Cells of the key index files; goes with --index-slots.
    """
    if not 1 <= jobs <= JOBS_MAX:
        raise Failure(Exit.USAGE, f"--jobs is {jobs}; it can be 1 to {JOBS_MAX}")
    capacity = index_capacity(index_slots, index_cells)
    size = log_size(directory)
    shown = size >= PROGRESS_MIN

    def walked(end: int) -> None:
        context.printer.status(f"reading the log: {format_size(end)} of {format_size(size)}")

    def looked(done: int) -> None:
        context.printer.status(f"checking: {format_size(done)} of {format_size(size)}")

    with open_store(
        directory, check_crc=not fast, index_capacity=capacity, watch=walked if shown else None
    ) as store:
        judgement = verify_store(store, Checks(fast, jobs, looked if shown else None))
    context.printer.clear_status()
    context.printer.answer(_answer(directory, judgement))
    if judgement.damaged:
        return Exit.DATA
    return Exit.UNDECIDED if judgement.unreadable else Exit.OK


def _answer(directory: Path, judgement: Judgement) -> Answer:
    state = "damaged" if judgement.damaged else "unreadable" if judgement.unreadable else "sound"
    findings: list[Fields] = [
        {
            "grade": finding.grade.value,
            "file": finding.file,
            "position": finding.position,
            "offset": finding.offset,
            "length": finding.length,
            "what": finding.what,
            "readable": finding.readable,
        }
        for finding in judgement.findings
    ]
    wrong = sum(finding.grade is not Grade.NOTE for finding in judgement.findings) + judgement.more
    return Answer(
        kind="LogVerify",
        fields={
            "directory": str(directory),
            "state": state,
            "start": judgement.start,
            "end": judgement.end,
            "records": judgement.records,
            "batches": judgement.batches,
            "queue_entries": judgement.entries,
            "findings": findings,
            "more_findings": judgement.more,
            "not_checked": [{"file": name, "reason": why} for name, why in judgement.unchecked],
        },
        head=f"{directory} · {state} · {judgement.records} records, "
        f"{judgement.entries} queue entries, log {judgement.start}..{judgement.end}, {wrong} wrong",
        tables=[Table.of(FINDINGS, findings)] if findings else (),
        tail="\n".join(_unchecked(judgement)),
        items=findings,
        names=[finding.file for finding in judgement.findings],
    )


def _unchecked(judgement: Judgement) -> list[str]:
    """One line for each reason why something was not checked."""
    found: dict[str, list[str]] = {}
    for name, why in judgement.unchecked:
        found.setdefault(why, []).append(name)
    return [f"not checked: {', '.join(names)} ({why})" for why, names in found.items()]

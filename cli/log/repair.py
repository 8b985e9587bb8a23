"""``twinlog log repair`` and ``recover``: the two commands of ``log`` that write.

``repair`` shows its plan first, asks once, and keeps what it cuts below ``cut``. What nothing in
the directory can bring back is listed and left as it is; the exit code is 65 then, or 2 where it
could not be read, as ``verify`` has it. ``recover`` does what a node's start would do, and stops
the store cleanly. Both refuse a directory that is in use.

Not here: what is repaired and how (``storage.tools.repair``), recovery (``storage.tools.recover``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cli.answer import Answer, Table
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields
from cli.log.directory import index_capacity, open_store, require_free
from cli.options import Output
from cli.parsing import PRIVATE, Yes
from storage.errors import ForeignStore
from storage.settings import INDEX_CELLS_MAX, INDEX_SLOTS_MAX
from storage.tools.recover import disk_at
from storage.tools.recover import recover as recover_store
from storage.tools.repair import Repair, carry_out, plan_repair
from twinlog.store.damage import Grade
from twinlog.store.files import store_root


def repair(
    directory: Path,
    /,
    *,
    index_slots: int | None = None,
    index_cells: int | None = None,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Repair what follows from the log: queues, key index, batch index, marks, the torn tail.

    Exit 0: done, or nothing to do. 65: something is lost, and was left as it is. 2: something could
    not be read, so it is unknown whether it is lost.

    Args:
        directory: The data directory of a node, or a RocketMQ store; it must not be in use.
        index_slots: Slots of a key index that is built again, RocketMQ's maxHashSlotNum; default
            those of the index that is there, else 5000000.
        index_cells: Its cells, RocketMQ's maxIndexNum, where they are not four for each slot; goes
            with --index-slots.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    if index_slots is not None and not 1 <= index_slots <= INDEX_SLOTS_MAX:
        text = f"--index-slots is {index_slots}; it can be 1 to {INDEX_SLOTS_MAX}"
        raise Failure(Exit.USAGE, text)
    if index_cells is not None and not 2 <= index_cells <= INDEX_CELLS_MAX:
        text = f"--index-cells is {index_cells}; it can be 2 to {INDEX_CELLS_MAX}"
        raise Failure(Exit.USAGE, text)
    capacity = None if index_cells is None else index_capacity(index_slots, index_cells)
    require_free(directory)
    with open_store(directory, index_capacity=capacity) as reader:
        plan = plan_repair(reader, index_slots=index_slots)
        if dry_run or not plan.actions:
            return _answer(directory, plan, None, context)
        if context.options.output is Output.TABLE:
            for action in plan.actions:
                context.printer.note(f"{action.kind}: {action.path}: {action.what}")
        if not context.confirm(f"Repair {directory}?", yes=yes):
            return Exit.NO
        disk = disk_at(directory)
        folder = carry_out(disk, plan, reader=reader, wall_ms=context.wall_ms())
    return _answer(directory, plan, folder, context)


def _answer(directory: Path, plan: Repair, folder: str | None, context: Context) -> int:
    actions: list[Fields] = [
        {
            "action": action.kind.value,
            "path": action.path,
            "offset": action.offset,
            "length": action.length,
            "what": action.what,
        }
        for action in plan.actions
    ]
    lost: list[Fields] = [
        {
            "grade": one.grade.value,
            "file": one.file,
            "offset": one.offset,
            "length": one.length,
            "what": one.what,
        }
        for one in plan.lost
    ]
    damaged = any(finding.grade is Grade.DAMAGE for finding in plan.lost)
    word = "unreadable" if lost and not damaged else "lost"
    tables: list[Table] = []
    if actions:
        tables.append(Table.of("ACTION PATH OFFSET> SIZE>=length:size WHY=what", actions))
    if lost:
        tables.append(Table.of("FILE OFFSET> LENGTH> WHAT", lost, title=word))
    done = folder is not None
    count = f"{len(actions)} {'done' if done else 'to do'}, {len(lost)} {word}"
    kept_in = str(store_root(directory) / folder) if folder is not None else None
    context.printer.answer(
        Answer(
            kind="LogRepair",
            fields={
                "directory": str(directory),
                "end": plan.end,
                "done": done,
                "actions": actions,
                "lost": lost,
                "kept_in": kept_in,
            },
            head=f"{directory} · log ends at {plan.end} · {count}",
            tables=tables,
            tail=f"what was cut is in {kept_in}" if done else "",
            items=[*actions, *lost],
            names=[action.path for action in plan.actions],
        )
    )
    if damaged:
        return Exit.DATA
    return Exit.UNDECIDED if lost else Exit.OK


def recover(directory: Path, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Recover a twinlog store without a node and stop it cleanly.

    Then only zeros follow the end of the log, and RocketMQ may open the directory. Exit 65: the
    store is damaged, or another program changed it; its log was not changed.

    Args:
        directory: The data directory of a node that is not running.
    """
    require_free(directory)
    with open_store(directory):
        pass
    try:
        found = recover_store(disk_at(directory), wall_ms=context.wall_ms())
    except ForeignStore as error:
        code = Exit.USAGE if error.code == "not-ours" else Exit.DATA
        hints = (error.hint,) if error.hint else ()
        facts = ("nothing was changed",)
        raise Failure(code, f"{directory}: {error.text}", facts=facts, hints=hints) from None
    boot, behind = found.boot, found.end - found.confirm
    if boot.damage is not None and not found.clean:
        raise Failure(
            Exit.DATA,
            f"{boot.damage.file} is damaged at {boot.damage.offset}: {boot.damage.what}",
            facts=("the log was not changed; the store is marked as not stopped cleanly",),
            hints=(f"see what can be done: twinlog log repair {directory} --dry-run",),
        )
    head = f"{directory} · recovered · log ends at {found.end}, {boot.cut_bytes} B cut"
    if behind:
        head += f", {behind} B beyond the confirm offset"
    context.printer.answer(
        Answer(
            kind="LogRecover",
            fields={
                "directory": str(directory),
                "end": found.end,
                "confirm": found.confirm,
                "cut_bytes": boot.cut_bytes,
                "cut_batches": boot.cut_batches,
                "queues_rebuilt": boot.queues_rebuilt,
                "was_clean": boot.clean,
                "why_unclean": boot.why_unclean or None,
            },
            head=head,
            names=[str(directory)],
        )
    )
    return Exit.OK

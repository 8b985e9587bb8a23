"""``twinlog node snapshot`` and ``restore``: a node's directory kept, and made again.

Both work on files of this machine: they run where the node's data directory is.

Not here: how (``storage.tools.snapshot``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cli.answer import Answer
from cli.config_file import node_of
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields
from cli.parsing import PRIVATE
from storage.marks.identity import Who
from storage.tools.snapshot import Manifest, check_snapshot, restore_snapshot, take_snapshot
from twinlog.store.files import is_store
from twinlog.units import format_size


def snapshot(
    name: str, directory: Path, /, *, copy: bool = False, context: Annotated[Context, PRIVATE]
) -> int:
    """Keep a node's store in DIRECTORY while the node runs; for backups.

    Log files that are full and confirmed are linked where DIRECTORY is on the same file system, and
    cost no space until retention deletes them. A link does not survive the disk: keep a copy of
    DIRECTORY on another machine. No node can be started in it; node restore makes a data directory.

    Args:
        name: The node; its data directory must be on this machine.
        directory: Where to; it must not exist yet, or be empty.
        copy: Copy all files, link none.
    """
    config = context.config()
    data = node_of(config, name).data
    if not is_store(data):
        raise Failure(
            Exit.MISSING,
            f"{data}, the data directory of {name}, is not on this machine or is empty",
            hints=(f"run it on the machine of {name}",),
        )
    made, linked = take_snapshot(data, directory, now_ms=context.wall_ms(), links=not copy)
    head = (
        f"{name}: {len(made.files)} files, {format_size(made.size)}, of which "
        f"{format_size(linked)} are linked; the log up to {made.flushed}"
    )
    next_ = f"twinlog node restore {name} {directory} --dry-run"
    context.printer.answer(
        _answer("NodeSnapshot", made, directory, head, linked=linked, next_=next_)
    )
    return Exit.OK


def restore(
    name: str, directory: Path, /, *, dry_run: bool = False, context: Annotated[Context, PRIVATE]
) -> int:
    """Make a node's data directory from a snapshot, after comparing every file with its checksum.

    The data directory must not exist, or be empty. The node is recognized as an older copy of
    itself: it takes what it lacks from the master before it counts. Exit 65: the snapshot is
    damaged; nothing was written.

    Args:
        name: The node that the snapshot is of.
        directory: The snapshot.
        dry_run: Only compare the files.
    """
    config = context.config()
    data = node_of(config, name).data
    if dry_run:
        made = check_snapshot(directory)
        head = f"{directory}: all {len(made.files)} files are whole; {data} was not touched"
    else:
        who = Who(config.name, config.group, name, config.family)
        made = restore_snapshot(directory, data, who)
        head = f"{name}: {data} holds the log up to {made.flushed}"
    next_ = "" if dry_run else f"twinlog node start {name}"
    context.printer.answer(_answer("NodeRestore", made, directory, head, next_=next_))
    return Exit.OK


def _answer(
    kind: str, made: Manifest, directory: Path, head: str, *, linked: int = 0, next_: str = ""
) -> Answer:
    fields: Fields = {
        "node": made.who.node,
        "cluster": made.who.cluster,
        "directory": str(directory),
        "files": len(made.files),
        "bytes": made.size,
        "linked_bytes": linked,
        "flushed_offset": made.flushed,
        "confirm_offset": made.confirm,
        "taken_ms": made.taken_ms,
    }
    return Answer(kind=kind, fields=fields, head=head, names=[f"node/{made.who.node}"], next=next_)

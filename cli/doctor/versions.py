"""``twinlog version``: what is installed here; ``--check``: what every process of the cluster runs.

Exit 0: all are of this command's release, and the group uses everything that it knows. 1: an
upgrade is under way; everything works together. 2: a process is too old for the group, or does not
answer.

Not here: the rule (``replication.register.membership``), what a level is
(``twinlog.levels``).
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Annotated

from cli.answer import Answer, Table, columns
from cli.cluster.view import ClusterView, ask_coordinator, look
from cli.context import Context
from cli.failures import Exit
from cli.fields import Fields, table, text, whole
from cli.parsing import PRIVATE
from twinlog.errors import TwinlogError
from twinlog.levels import FIRST, LEVEL, LEVELS
from twinlog.wire.frames import Type

COLUMNS = "PROCESS RELEASE KNOWS>=level NOTE"

REBUILD = "python setup.py build_ext --inplace"
"""How a checkout gets its compiled kernels again."""


def version(*, check: bool = False, context: Annotated[Context, PRIVATE]) -> int:
    """Show version, Python, system and the kernels in use.

    Args:
        check: Show instead what every process of the cluster runs, and whether all may run
            together: exit 0 (one release), 1 (an upgrade is under way) or 2 (one is too old, or
            does not answer).
    """
    from twinlog import kernels

    try:
        number = installed("twinlog")
    except PackageNotFoundError:
        number = "unknown"
    if check:
        return check_cluster(context, number)
    which = kernels.which()
    fields = {
        "twinlog": number,
        "kernels": which,
        "rebuild": REBUILD,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    rows = [(name, value) for name, value in fields.items() if name != "rebuild"]
    note = "" if which == "compiled" else f"the compiled kernels are faster: {REBUILD}"
    context.printer.answer(
        Answer(
            kind="Version",
            fields=fields,
            tables=[Table(columns("PART VALUE"), rows)],
            tail=note,
            names=[number],
        )
    )
    return Exit.OK


def check_cluster(context: Context, release: str) -> int:
    """Show every process with its release and the highest level that it knows.

    Raises:
        Failure: As `look`.
    """
    view = look(context)
    level = whole(view.coordinator.state, "level") or FIRST
    items = [*_nodes(view, level), _coordinator(context, view, level)]
    items.append({"process": "this command", "release": release, "level": LEVEL, "note": None})
    known = [one for one in (whole(item, "level") for item in items) if one is not None]
    silent = any(item["level"] is None for item in items)
    old = any(one < level for one in known) or bool(_refused(view, level))
    usable = min(known)
    mixed = len({item["release"] for item in items}) > 1
    code, head = _verdict(silent=silent, old=old, mixed=mixed, behind=usable > level)
    added = [f"level {one}: {LEVELS[one]}" for one in LEVELS if level < one <= usable]
    fields: Fields = {
        "cluster": view.name,
        "verdict": head,
        "level": level,
        "usable_level": usable,
        "processes": items,
    }
    context.printer.answer(
        Answer(
            kind="Versions",
            fields=fields,
            head=f"{view.name} · level {level} · {head}",
            tables=[Table.of(COLUMNS, items)],
            tail=_next(view, level, usable, added, silent=silent, old=old),
            items=items,
            names=sorted({str(item["release"]) for item in items if item["release"]}),
        )
    )
    return code


def _verdict(*, silent: bool, old: bool, mixed: bool, behind: bool) -> tuple[int, str]:
    if old:
        return Exit.UNDECIDED, "a process is too old for the group"
    if silent:
        return Exit.UNDECIDED, "a process does not answer"
    if mixed:
        return Exit.NO, "releases differ, and run together"
    if behind:
        return Exit.NO, "one release; the group may go up a level"
    return Exit.OK, "one release"


def _next(
    view: ClusterView, level: int, usable: int, added: list[str], *, silent: bool, old: bool
) -> str:
    if old:
        return f"Run a release that knows level {level} where the note says so, and start it again."
    if silent or usable <= level:
        return ""
    gains = "; ".join(added)
    return (
        f"Every process knows {gains}. Until it is taken, each may go back to its old release:\n"
        f"twinlog cluster set level {usable}"
    )


def _nodes(view: ClusterView, level: int) -> list[Fields]:
    found: list[Fields] = []
    for node in view.nodes:
        knows = (whole(node.document, "level") or FIRST) if node.reachable else None
        item: Fields = {"process": node.name, "release": node.version, "level": knows}
        found.append({**item, "note": _note(knows, level) or (node.reason or None)})
    return found


def _coordinator(context: Context, view: ClusterView, level: int) -> Fields:
    item: Fields = {"process": "coordinator", "release": None, "level": None}
    try:
        own, _ = ask_coordinator(context, Type.CO_STATUS)
    except TwinlogError as error:
        return {**item, "note": str(error)}
    knows = whole(own, "level") or FIRST
    return {**item, "release": text(own, "twinlog"), "level": knows, "note": _note(knows, level)}


def _note(knows: int | None, level: int) -> str | None:
    if knows is not None and knows < level:
        return f"too old: the group is at level {level}"
    return None


def _refused(view: ClusterView, level: int) -> list[str]:
    """Return the nodes whose registered process does not know the level; normally none."""
    levels = table(view.coordinator.state.get("levels"))
    return [name for name in levels if (whole(levels, name) or FIRST) < level]

"""``twinlog node``: run one, list them, look at one, stop one.

Not here: what a node is made of (``node.node``), the processes of ``dev`` (``cli.dev``).
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from cli.answer import Answer, Cell, Table, columns
from cli.cluster.status import status_answer, status_table
from cli.cluster.view import NodeView, look
from cli.config import Overrides, overrides
from cli.config_file import node_of
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, table, tables
from cli.parsing import PRIVATE
from cli.watch import Watch, repeat
from twinlog.wire.frames import Type


def start(name: str, /, *, set_: Overrides = (), context: Annotated[Context, PRIVATE]) -> int:
    """Run one node of the cluster file in the foreground until it is stopped (Ctrl-C, TERM).

    The first lines say what it found on disk and where it listens.

    Args:
        name: Its name in the cluster file.
        set_: A setting as ``section.key=value``.
    """
    from cli.cluster.foreground import run_node

    given = overrides(set_)
    config = context.config(given)
    node_of(config, name)
    return run_node(config, name, context, given)


def list_nodes(*, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """List every node of the cluster, whether it answers or not.

    Args:
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _list(context), watch=watch)


def _list(context: Context) -> int:
    view = look(context)
    found = status_answer(view, context.wall_ms(), "NodeList")
    context.printer.answer(
        Answer(
            kind="NodeList",
            fields={"cluster": view.name, "nodes": found.fields["nodes"]},
            tables=[status_table(view)],
            items=found.items,
            names=found.names,
        )
    )
    return Exit.OK


def show(name: str, /, *, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """Show everything one node says about itself.

    Args:
        name: Its name.
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _show(name, context), watch=watch)


def _show(name: str, context: Context) -> int:
    view = look(context)
    node = view.node(name)
    fields: Fields = {**node.fields(), "status": dict(node.document)}
    shown = [Table(columns("FACT VALUE"), _facts(node))]
    peers = tables(node.document.get("peers"))
    if peers:
        keys = [key for key, value in peers[0].items() if not isinstance(value, (dict, list))]
        rows = [{key: peer.get(key) for key in keys} for peer in peers]
        heads = [key.upper().replace("_", "-") for key in keys]
        wide = [f"+{head}" if head in PEERS_WIDE else head for head in heads]
        shown.append(Table.of(" ".join(wide), rows))
    context.printer.answer(Answer(kind="Node", fields=fields, tables=shown, names=[f"node/{name}"]))
    return Exit.OK if node.reachable else Exit.UNDECIDED


PEERS_WIDE = {"ROLE", "FLUSHED", "LAG-SECONDS"}
"""Columns of the peers that only ``-o wide`` shows."""


def _facts(node: NodeView) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = [
        (key.replace("_", " "), _cell(value)) for key, value in node.fields().items()
    ]
    for key, value in node.document.items():
        plain = not isinstance(value, (dict, list, tuple))
        if plain and key not in node.fields() and key not in ("kind", "version", "node", "time"):
            rows.append((key.replace("_", " "), _cell(value)))
    retention = table(node.document.get("retention"))
    if retention:
        rows.append(("archived offset", _cell(retention.get("archived"))))
        rows.append(("retention waits for", _cell(retention.get("waits") or None)))
    folders = table(table(node.document.get("disk")).get("folders_passed_over"))
    rows += [("log folder passed over", f"{folder}: {why}") for folder, why in folders.items()]
    scrub = table(node.document.get("scrub"))
    if scrub:
        rows += [(f"scrub {head}", _cell(value)) for head, value in _scrub_facts(scrub)]
    return rows


def _scrub_facts(scrub: Fields) -> list[tuple[str, object]]:
    """Return what a person wants to know of a scrub."""
    last = table(scrub.get("last"))
    end, at, start = (scrub.get(key) for key in ("end", "at", "start"))
    progress = None
    if isinstance(at, int) and isinstance(end, int) and isinstance(start, int):
        progress = f"{max(at - start, 0)} of {end - start} bytes" if at < end else None
    where = f"{last['file']} at {last['offset']}" if last else None
    repaired = " (repaired)" if last and last.get("repaired") else ""
    return [
        ("enabled", "yes" if scrub.get("enabled") else "no"),
        ("progress", progress),
        ("passes", scrub.get("passes")),
        ("found", scrub.get("found")),
        ("repaired", scrub.get("repaired")),
        ("waits for copies", scrub.get("waiting")),
        ("last finding", f"{last['what']}{repaired}" if last else None),
        ("found in", where),
    ]


def scrub(
    name: str, /, *, start_: Annotated[bool, Parameter(name="--start")] = False,
    context: Annotated[Context, PRIVATE],
) -> int:  # fmt: skip
    """Show how far a node has compared its sealed log files with their check sums.

    A damaged batch is asked of the other nodes and replaced; nothing else has to be done. Exit 1:
    damage waits for a whole copy, or the node is quarantined.

    Args:
        name: Its name.
        start_: Begin now, without regard for the load, instead of when it is due.
    """
    view = look(context)
    node = view.node(name)
    if not node.reachable:
        raise Failure(
            Exit.UNDECIDED, f"{name} does not answer: {node.reason}",
            hints=(f"twinlog node show {name}",),
        )  # fmt: skip
    found = table(node.document.get("scrub"))
    if start_:
        found = table(
            context.ask(node.address, Type.ADMIN, {"op": "scrub"}, context.left()).get("scrub")
        )
    shown = Table(
        columns("FACT VALUE"), [(key, _cell(value)) for key, value in _scrub_facts(found)]
    )
    next_ = f"twinlog node scrub {name}" if start_ else ""
    context.printer.answer(
        Answer(
            kind="NodeScrub",
            fields={"node": name, "scrub": found},
            head=f"{name}: a scrub begins" if start_ else "",
            tables=[shown],
            names=[f"node/{name}"],
            next=next_,
        )
    )
    return Exit.NO if found.get("waiting") or node.quarantined is not None else Exit.OK


def _cell(value: object) -> Cell:
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def stop(
    name: str,
    /,
    *,
    now: bool = False,
    dry_run: bool = False,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"])] = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Stop a node cleanly, through the wire.

    A master hands over first if a slave can take over; else the cluster has none until it is back.
    A node that does not answer may run all the same: exit 2.

    Args:
        name: Its name.
        now: Do not wait for open requests.
        dry_run: Only say what would happen.
        yes: Do not ask.
    """
    view = look(context)
    node = view.node(name)
    if not node.reachable and not node.refused:
        raise Failure(
            Exit.UNDECIDED,
            f"{name} does not answer, so it is unknown whether it runs; nothing was changed",
            facts=(node.reason,),
            hints=(f"look on its machine, or at twinlog node show {name}",),
        )
    if not node.reachable:
        context.printer.note(f"{name} does not answer ({node.reason}); nothing to stop")
        context.printer.answer(_stopped(name, "not running"))
        return Exit.OK
    if node.master:
        context.printer.note(
            f"{name} is master of epoch {view.epoch}: "
            "it hands over first if a slave can take over, else writes stop until it is back."
        )
    if dry_run:
        context.printer.answer(_stopped(name, "would be stopped"))
        return Exit.OK
    if node.master and not context.confirm(f"Stop the master {name}?", yes=yes):
        return Exit.NO
    context.ask(node.address, Type.ADMIN, {"op": "stop", "now": now}, context.left())
    context.printer.answer(_stopped(name, "stopping"))
    return Exit.OK


def _stopped(name: str, outcome: str) -> Answer:
    return Answer(
        kind="NodeStop",
        fields={"node": name, "outcome": outcome},
        head=f"{name}: {outcome}",
        names=[f"node/{name}"],
        next="twinlog node list",
    )

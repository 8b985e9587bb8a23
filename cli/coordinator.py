"""``twinlog coordinator``: run it, look at it, let it adopt nodes that already have a log.

The coordinator decides who is master; while it is away traffic goes on and roles cannot change.

Not here: its rules (``replication.register``), its process (``replication.coordinator_service``).
"""

from __future__ import annotations

import getpass
from typing import Annotated

from cyclopts import Parameter

from cli.cluster_view import coordinator_of, look
from cli.config import Overrides, overrides
from cli.context import Context, Fields
from cli.failures import Exit, Failure
from cli.fields import flag, table, tables, text, texts, whole
from cli.parsing import PRIVATE
from cli.render import Answer, Cell, Table, columns
from twinlog.wire import Type


def start(*, set_: Overrides = (), context: Annotated[Context, PRIVATE]) -> int:
    """Run the coordinator in the foreground until it is told to stop (Ctrl-C, TERM).

    Args:
        set_: A setting as ``section.key=value``.
    """
    from cli.foreground import run_coordinator

    return run_coordinator(context.config(overrides(set_)), context)


def status(*, context: Annotated[Context, PRIVATE]) -> int:
    """Show whether the coordinator answers, and the group state it holds."""
    address = coordinator_of(context)[0]
    answer = context.ask(address, Type.CO_READ, {}, context.left(5.0))
    state = table(answer.get("state")) or answer
    in_sync = sorted(table(state.get("isr")))
    registered = table(state.get("reg"))
    replicas = texts(state.get("replicas")) or sorted(registered)
    rows: list[tuple[Cell, ...]] = [
        (
            f"{name}*" if name == text(state, "leader") else name,
            name in registered,
            name in in_sync,
            whole(table(state.get("priorities")), name),
        )
        for name in replicas
    ]
    fields: Fields = {"address": address, "state": state}
    context.printer.answer(
        Answer(
            kind="CoordinatorStatus",
            fields=fields,
            head=(
                f"coordinator at {address} · epoch {whole(state, 'epoch')} · "
                f"master {text(state, 'leader') or 'nobody'} · revision {whole(state, 'revision')}"
            ),
            tables=[Table(columns("NODE REGISTERED IN-SYNC PRIORITY>"), rows)],
            names=[f"node/{name}" for name in replicas],
        )
    )
    return Exit.OK


def adopt(
    *,
    to: str | None = None,
    dry_run: bool = False,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"])] = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Let an empty coordinator take nodes that already have a log.

    Shows every node's epoch and end first. The node with the newest epoch and the greatest end
    becomes master; what another node has beyond it is cut when it follows.

    Args:
        to: Take this node as master instead.
        dry_run: Only show what would happen.
        yes: Do not ask.
    """
    view = look(context)
    if view.leader:
        raise Failure(
            Exit.NO,
            f"the coordinator has a state already: epoch {view.epoch}, master {view.leader}",
            hints=("nothing needs adopting: twinlog cluster status",),
        )
    known = [node for node in view.nodes if node.reachable]
    missing = [node.name for node in view.nodes if not node.reachable]
    best = max(known, key=lambda node: (_last_epoch(node.document), node.end or 0), default=None)
    chosen = view.node(to) if to else best
    if chosen is None or not chosen.reachable:
        raise Failure(Exit.UNAVAILABLE, "no node answered, so there is nothing to adopt")
    rows: list[tuple[Cell, ...]] = [
        (node.name, _last_epoch(node.document), node.end, node.state) for node in view.nodes
    ]
    plan = Table(columns("NODE LAST-EPOCH> END> STATE"), rows)
    away = f" ({', '.join(missing)} did not answer: what they have is not counted)" * bool(missing)
    head = f"{chosen.name} becomes master of a new epoch at {chosen.end}{away}"
    fields: Fields = {"master": chosen.name, "end_offset": chosen.end, "missing": missing}
    if dry_run:
        fields["done"] = False
        context.printer.answer(Answer(kind="Adopt", fields=fields, head=head, tables=[plan]))
        return Exit.OK
    context.printer.note(head)
    if not context.confirm(f"Adopt {view.name} with {chosen.name} as master?", yes=yes):
        return Exit.NO
    operation: Fields = {
        "op": "adopt", "node": chosen.name, "who": user(), "why": "adopt",
    }  # fmt: skip
    answer = call(context, view.coordinator_address, operation)
    fields |= {"done": True, "epoch": whole(table(answer.get("state")), "epoch")}
    context.printer.answer(Answer(kind="Adopt", fields=fields, head=f"Done: {head}"))
    return Exit.OK


def _last_epoch(document: Fields | object) -> int | None:
    fields = table(document)
    epochs = tables(fields.get("epochs"))
    return whole(epochs[-1], "epoch") if epochs else whole(fields, "epoch")


def call(context: Context, address: str, operation: Fields) -> Fields:
    """Ask the coordinator to change its register.

    Raises:
        Failure: It refused (exit 69, with its reason); nothing was changed.
        OutcomeUnknown: It did not answer after it had got the request.
    """
    answer = context.ask(address, Type.CO_CALL, {"op": operation}, context.left())
    if flag(answer, "ok"):
        return answer
    hint = text(answer, "hint")
    raise Failure(
        Exit.UNAVAILABLE,
        text(answer, "text") or "the coordinator refused",
        facts=(f"the coordinator's answer: {text(answer, 'code') or 'refused'}",),
        hints=(hint,) if hint else (),
    )


def user() -> str:
    """Who is asking, for the history."""
    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError):
        return "user ?"

"""``twinlog coordinator``: run it, look at it, let it adopt nodes that already have a log.

The coordinator decides who is master; while it is away traffic goes on and roles cannot change.

Not here: its rules (``replication.register.register``), its process
(``replication.coordinator.process``).
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from cli.answer import Answer, Cell, Table, columns
from cli.cluster.orders import call, user
from cli.cluster.view import ask_coordinator, look
from cli.config import Overrides, overrides
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, table, text, texts, whole
from cli.parsing import PRIVATE
from cli.watch import Watch, repeat
from twinlog.wire.frames import Type


def start(*, number: int = 1, set_: Overrides = (), context: Annotated[Context, PRIVATE]) -> int:
    """Run the coordinator in the foreground until it is stopped (Ctrl-C, TERM).

    With its register in etcd (``kind = "etcd"``) several processes may run, each with an address
    of its own; one of them serves, and another takes over within seconds when it is gone.

    Args:
        number: Which of the addresses in the cluster file is this process's, from 1.
        set_: A setting as ``section.key=value``.
    """
    from cli.cluster.foreground import run_coordinator

    config = context.config(overrides(set_))
    most = len(config.coordinator.endpoints) if config.coordinator.etcd else 1
    if not 1 <= number <= most:
        hint = "name more addresses in [coordinator] endpoints"
        alone = "a coordinator with a file runs once" if not config.coordinator.etcd else hint
        raise Failure(Exit.USAGE, f"--number is {number}; it can be 1 to {most}", hints=(alone,))
    return run_coordinator(config, context, number)


def status(*, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """Show whether the coordinator answers, and the group state it holds.

    Args:
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _status(context), watch=watch)


def _status(context: Context) -> int:
    answer, address = ask_coordinator(context, Type.CO_READ)
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
    rows += [(name, name in registered, "learner", None) for name in texts(state.get("learners"))]
    own, _ = ask_coordinator(context, Type.CO_STATUS)
    fields: Fields = {
        "address": address,
        "read_only": text(own, "read_only"),
        "waiting_for": texts(own.get("waiting_for")),
        "state": state,
    }
    context.printer.answer(
        Answer(
            kind="CoordinatorStatus",
            fields=fields,
            head=(
                f"coordinator at {address} · epoch {whole(state, 'epoch')} · "
                f"master {text(state, 'leader') or 'none'} · revision {whole(state, 'revision')}"
                f" · in_sync_min {whole(state, 'min_isr')} · ack {text(state, 'ack') or '?'}"
            ),
            tables=[Table(columns("NODE REGISTERED IN-SYNC PRIORITY>"), rows)],
            names=[f"node/{name}" for name in replicas],
            tail=_trouble(own),
        )
    )
    return Exit.OK


def _trouble(own: Fields) -> str:
    """Why the coordinator makes no change, with the command that goes on; empty when it does."""
    alarm, waiting = text(own, "read_only"), texts(own.get("waiting_for"))
    if alarm is not None:
        return (
            f"It makes no change: {alarm}. Put the newer coordinator.sqlite back; "
            "if the alarm is false: twinlog coordinator clear-alarm"
        )
    if waiting:
        names = ", ".join(waiting)
        return (
            f"It makes no change before more than half of the replicas have reported: {names} "
            f"did not. For one that does not come back: twinlog coordinator vouch {waiting[0]}"
        )
    return ""


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
    best = max(known, key=lambda node: (node.last_epoch or 0, node.end or 0), default=None)
    chosen = view.node(to) if to else best
    if chosen is None or not chosen.reachable:
        raise Failure(Exit.UNAVAILABLE, "no node answered, so there is nothing to adopt")
    rows: list[tuple[Cell, ...]] = [
        (node.name, node.last_epoch, node.end, node.state) for node in view.nodes
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
    answer = call(context, view.coordinator.address, operation)
    fields |= {"done": True, "epoch": whole(table(answer.get("state")), "epoch")}
    context.printer.answer(Answer(kind="Adopt", fields=fields, head=f"Done: {head}"))
    return Exit.OK

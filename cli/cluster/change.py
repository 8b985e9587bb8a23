"""``twinlog cluster switchover`` and ``failover``: another master, planned or not.

Both show the plan first (who, at which offset, what it may cost), ask once, act, and show the
cluster afterwards.  A switchover is agreed with the master and loses nothing; a failover deposes a
master that is gone, through the coordinator, and what the old master had beyond the new one's end
was never confirmed and is cut when it returns.

Three outcomes: done (0), not done (any other), unknown (75): the request was sent and no
answer came.  An unknown outcome is never reported as one of the others.

Not here: the protocol (``replication``), the table (``status``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated

from cli.answer import Answer, Table, columns
from cli.cluster.orders import OrderRefused, call, need_coordinator, user
from cli.cluster.status import status_answer
from cli.cluster.unclean import best_lines, is_vacant, unclean_lines
from cli.cluster.view import ClusterView, NodeView, look
from cli.context import Context
from cli.failures import Exit, Failure, Interrupted
from cli.fields import Fields
from cli.parsing import PRIVATE, Yes
from twinlog.errors import OutcomeUnknown, TwinlogError
from twinlog.units import format_duration, format_size
from twinlog.wire.frames import Type

LOOK_SECONDS = 0.05
"""Pause between two looks while a change settles."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done, in the words the user sees before anything happens."""

    kind: str
    view: ClusterView
    old: str | None
    target: NodeView
    lines: tuple[str, ...]
    unclean: bool = False

    @property
    def register_epoch(self) -> int:
        """The newest epoch by the coordinator when the plan was made."""
        return self.view.coordinator.epoch

    def fields(self, done: bool, seconds: float | None = None, epoch: int | None = None) -> Fields:
        """The document of the change."""
        return {
            "cluster": self.view.name,
            "from": self.old,
            "to": self.target.name,
            "plan": list(self.lines),
            "done": done,
            "seconds": None if seconds is None else round(seconds, 3),
            "epoch": epoch,
        }


def switchover(
    *,
    to: str | None = None,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Hand mastership to a slave that is in sync; loses nothing.

    Args:
        to: The new master; default the in-sync slave that is furthest.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    view = look(context)
    master = view.master
    if master is None:
        raise Failure(
            Exit.UNAVAILABLE,
            "there is no master to hand over",
            hints=("make another node master: twinlog cluster failover",),
        )
    if to == master.name:
        context.printer.note(f"{to} is master already")
        context.printer.answer(status_answer(view, context.wall_ms(), "Switchover"))
        return Exit.OK
    need_coordinator(view)
    held = view.coordinator.maintenance
    able = [node for node in view.nodes if node.in_sync and node.name not in held]
    target = view.node(to) if to else _furthest(view, able)
    if target is None or not target.reachable or not target.in_sync:
        raise _not_in_sync(target)
    behind = format_size(target.lag_bytes or 0)
    plan = Plan(
        "Switchover",
        view,
        master.name,
        target,
        (
            f"{master.name} is master of epoch {view.epoch} at {master.end}; "
            f"{target.name} is in sync and {behind} behind.",
            "Nothing will be lost. Writes stop until the new master is confirmed, about 0.3 s.",
        ),
    )
    if not _agreed(plan, context, dry_run=dry_run, yes=yes):
        return Exit.OK if dry_run else Exit.NO
    started = time.monotonic()
    seconds = context.left() or 30.0
    request: Fields = {
        "op": "transfer", "to": target.name, "timeout_ms": int(seconds * 1000),
    }  # fmt: skip
    try:
        context.ask(master.address, Type.ADMIN, request, seconds)
    except OutcomeUnknown:
        context.printer.note(f"{master.name} did not answer; looking who is master now")
    return _settle(plan, context, started)


def _not_in_sync(target: NodeView | None) -> Failure:
    told = "no slave is in sync, so a switchover"
    if target is not None:
        told = f"{target.name} is not in sync, so a switchover to it"
    return Failure(
        Exit.UNAVAILABLE,
        f"{told} could lose records",
        facts=([target.reason] if target is not None and target.reason else []),
        hints=("wait until it is: twinlog cluster status",),
    )


def failover(
    *,
    to: str | None = None,
    unclean: str | None = None,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Depose the master and make another node master of a new epoch.

    For a master that is gone. Records that were confirmed are kept: only a node that is known to
    have all of them is elected. What the old master wrote without confirmation is cut when it
    returns.

    When no node is known to have everything, as after a power failure of all, it offers the node
    that has most, once every node has reported; the plan says what may be lost. With --unclean you
    choose a node yourself: it may lack confirmed records, and they are lost then.

    Args:
        to: The new master; default the in-sync node that is furthest.
        unclean: Make this node master although it may lack confirmed records.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    view = look(context)
    need_coordinator(view)
    if to is not None and view.master is not None and to == view.master.name == view.leader:
        context.printer.note(f"{to} is master already")
        context.printer.answer(status_answer(view, context.wall_ms(), "Failover"))
        return Exit.OK
    plan = plan_failover(view, to) if unclean is None else plan_unclean(view, unclean)
    if not _agreed(plan, context, dry_run=dry_run, yes=yes):
        return Exit.OK if dry_run else Exit.NO
    started = time.monotonic()
    try:
        order_failover(plan, context)
    except OrderRefused as refused:
        plan = _overtaken(plan, to or unclean, refused, context)
    return _settle(plan, context, started)


def _overtaken(plan: Plan, named: str | None, refused: OrderRefused, context: Context) -> Plan:
    """Return the plan with the node that became master by itself meanwhile, as was wanted.

    Raises:
        OrderRefused: There was a master when the plan was made, or it is not the ``named`` node.
    """
    if refused.code != "other-epoch" or plan.view.master is not None:
        raise refused
    view = look(context)
    leader = view.coordinator.leader
    if not leader or named not in (None, leader):
        raise refused
    context.printer.note(f"{leader} was elected meanwhile; this command changed nothing.")
    return replace(plan, target=view.node(leader))


def order_failover(plan: Plan, context: Context) -> None:
    """Ask the coordinator to carry the plan out; an order without an answer is no error yet.

    Raises:
        Failure: The coordinator refused, with its reason; nothing was changed.
    """
    operation: Fields = {
        "op": "unclean-elect" if plan.unclean else "failover",
        "to": plan.target.name,
        "epoch": plan.register_epoch,
        "who": user(),
        "why": "unclean failover" if plan.unclean else "failover",
    }  # fmt: skip
    try:
        call(context, plan.view.coordinator.address, operation)
    except OutcomeUnknown:
        context.printer.note("the coordinator did not answer; looking who is master now")


def plan_failover(view: ClusterView, to: str | None) -> Plan:
    """Choose who takes over, and say what it costs.

    Args:
        view: The cluster as it is.
        to: The operator's choice; None: the furthest of those that have everything.

    Raises:
        Failure: No node that has every confirmed record answers; nothing was changed.
    """
    if is_vacant(view):
        return Plan("Failover", view, None, *best_lines(view, to))
    old = view.leader
    in_sync = set(view.eligible)
    held = view.coordinator.maintenance
    able = [
        node for node in view.nodes
        if node.name in in_sync and node.reachable and node.name not in {old, *held}
    ]  # fmt: skip
    target = view.node(to) if to else _furthest(view, able)
    if target is None:
        if view.master is not None and view.master.name == old:
            raise _no_successor(view, view.master)
        away = [f"{n.name}: {n.reason or n.state}" for n in view.nodes if n.name in in_sync]
        raise Failure(
            Exit.UNAVAILABLE,
            "no other node of the in-sync set answers",
            facts=away,
            hints=(
                "start one of them: only they are known to have every confirmed record",
                *_unclean_hint(view),
            ),
        )
    if target.name not in in_sync:
        raise Failure(
            Exit.UNAVAILABLE,
            f"{target.name} is not in the in-sync set, so confirmed records could be lost",
            facts=(f"in sync are {', '.join(sorted(in_sync)) or 'none'}",),
            hints=(f"choose one of them: twinlog cluster failover --to {able[0].name}",)
            if able
            else (),
        )
    if not target.reachable:
        raise Failure(Exit.UNAVAILABLE, f"{target.name} does not answer", facts=(target.reason,))
    was = next((node for node in view.nodes if node.name == old), None)
    state = "is gone" if was is None or not was.reachable else "still answers and will be fenced"
    lines = [
        f"{old} was master of epoch {view.epoch} and {state}." if old
        else f"There is no master; the last epoch is {view.epoch}.",
        f"{target.name} is in the in-sync set and ends at {target.end}: "
        "nothing confirmed will be lost.",
    ]  # fmt: skip
    if old:
        lines.append(f"What {old} wrote without confirmation is cut when it returns.")
    return Plan("Failover", view, old, target, tuple(lines))


def _no_successor(view: ClusterView, master: NodeView) -> Failure:
    """Return the refusal while the master runs: what keeps the other nodes from taking over."""
    others = [node for node in view.nodes if node is not master]
    return Failure(
        Exit.UNAVAILABLE,
        f"{master.name} is master and answers, and no other node that has every confirmed record "
        "could take over",
        facts=[f"{node.name}: {node.reason or node.state}" for node in others],
        hints=("what keeps the others from it: twinlog cluster status",),
    )


def _unclean_hint(view: ClusterView) -> tuple[str, ...]:
    """The command that goes on without the members, where another node answers."""
    others = [node for node in view.nodes if node.name != view.leader]
    best = _furthest(view, others)
    if best is None:
        return ()
    return (f"if they are gone for good: twinlog cluster failover --unclean {best.name} --dry-run",)


def plan_unclean(view: ClusterView, to: str) -> Plan:
    """Plan the election of a node that may lack confirmed records, with the bound of the loss.

    Raises:
        Failure: It does not answer, or it is the master already; nothing was changed.
    """
    if to == view.leader:
        raise Failure(Exit.UNAVAILABLE, f"{to} is master already", facts=("nothing was changed",))
    if to in view.eligible:
        raise Failure(
            Exit.UNAVAILABLE,
            f"{to} has every confirmed record, so nothing need be lost",
            hints=(f"twinlog cluster failover --to {to}",),
        )
    target, lines = unclean_lines(view, to)
    return Plan("Failover", view, view.leader, target, lines, unclean=True)


def _furthest(view: ClusterView, nodes: list[NodeView]) -> NodeView | None:
    """The node with most of the log; among equals the coordinator's priority, then the name."""
    return max(
        (node for node in nodes if node.reachable),
        key=lambda node: (
            node.epoch or 0,
            node.end or 0,
            view.coordinator.priorities.get(node.name, 0),
            [-ord(letter) for letter in node.name],
        ),
        default=None,
    )


def _agreed(plan: Plan, context: Context, *, dry_run: bool, yes: bool) -> bool:
    for line in plan.lines:
        context.printer.note(line)
    if dry_run:
        rows = [(plan.old, plan.target.name, plan.view.epoch, plan.target.end)]
        context.printer.answer(
            Answer(
                kind=plan.kind,
                fields=plan.fields(False),
                tables=[Table(columns("FROM TO EPOCH> END>"), rows)],
                tail="Nothing was changed.",
                names=[f"node/{plan.target.name}"],
            )
        )
        return False
    question = f"Make {plan.target.name} master of {plan.view.name}?"
    if plan.kind == "Switchover":
        question = f"Switch the master of {plan.view.name} from {plan.old} to {plan.target.name}?"
    return context.confirm(question, yes=yes)


def _settle(plan: Plan, context: Context, started: float) -> int:
    """Wait until the target serves as master of a newer epoch, then show the cluster.

    Raises:
        Interrupted: Ctrl-C; the change was asked for and may still happen.
    """
    try:
        return _watch(plan, context, started)
    except KeyboardInterrupt:
        raise Interrupted(
            ("the change was asked for and may still happen: twinlog cluster status",)
        ) from None


def _watch(plan: Plan, context: Context, started: float) -> int:
    view: ClusterView | None = None
    while True:
        try:
            left = context.left()
        except Failure:
            left = 0.0
        if left == 0.0:
            break
        try:
            view = look(context)
        except (Failure, TwinlogError):
            view = None
        if view is not None and _is_done(plan, view):
            seconds = time.monotonic() - started
            found = status_answer(view, context.wall_ms(), plan.kind)
            fields = {**found.fields, **plan.fields(True, seconds, view.epoch)}
            context.printer.note(f"Done in {format_duration(seconds)}.")
            context.printer.answer(
                Answer(
                    kind=plan.kind,
                    fields=fields,
                    head=found.head,
                    tables=found.tables,
                    tail=found.tail,
                    names=[f"node/{plan.target.name}"],
                    next="twinlog cluster history",
                )
            )
            return Exit.OK
        time.sleep(LOOK_SECONDS)
    now = view.coordinator.leader if view is not None else None
    raise Failure(
        Exit.UNKNOWN,
        f"{plan.target.name} does not serve as master yet; it may still become so",
        facts=(f"the coordinator names {now or 'no node'}",),
        hints=("look again: twinlog cluster status",),
    )


def _is_done(plan: Plan, view: ClusterView) -> bool:
    master = view.master
    return (
        master is not None
        and master.name == plan.target.name
        and (master.epoch or 0) > plan.view.epoch
        and master.state == "active"
    )

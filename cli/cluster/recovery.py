"""``twinlog coordinator vouch``, ``clear-alarm`` and ``recover``: ways back of a stopped register.

A coordinator makes no change while it cannot know that its register is the newest: after its own
start until more than half of the replicas have reported, and once a member has shown it something
newer. An operator who knows more than the coordinator says so here; it is recorded.

Not here: the rules (``replication.register.register``).
"""

from __future__ import annotations

from typing import Annotated

from cli.answer import Table
from cli.cluster.orders import Order, carry_out, need_coordinator, user
from cli.cluster.view import NODE_SECONDS, ClusterView, NodeView, look
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, table, text, whole
from cli.parsing import PRIVATE, Yes
from replication.register.group_state import GroupState
from replication.register.operations import Recover, Voice, to_wire
from replication.register.recovery import conflict, is_ahead, is_on_branch, newest_first
from twinlog.wire.frames import Type


def vouch(
    *nodes: str,
    why: str = "",
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Say for replicas that cannot report that they have seen nothing newer than the coordinator.

    After its own start the coordinator makes no change until more than half of the replicas have
    reported. When one of them is gone for good, no other node can speak for it. A group of two
    needs this each time its coordinator restarts while one of the two is away.

    If a named node did see more, records that were confirmed after that may be lost.

    Args:
        nodes: Their names.
        why: Why you know; kept in the history.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    view = look(context)
    need_coordinator(view)
    members = view.coordinator.members
    strange = [name for name in nodes if name not in members]
    if strange or not nodes:
        raise Failure(
            Exit.USAGE,
            f"{', '.join(strange)} is not a member" if strange else "no node was named",
            facts=(f"members are {', '.join(members)}",),
        )
    waiting = list(view.coordinator.waiting_for)
    _refuse_if_newer(view)
    revision = view.coordinator.revision
    lines = [f"You say that {_named(nodes)} saw no change of the register after {revision}."]
    if not waiting:
        lines = ["The coordinator waits for no report: more than half of the replicas did."]
    elif answering := [name for name in nodes if name in waiting and view.node(name).reachable]:
        lines.append(f"{_named(answering)} answers, so it lost what it saw, or it just started.")
    lines.append("If that is wrong, records that were confirmed since may be lost.")
    order = Order(
        "Vouched",
        {"op": "vouch", "nodes": list(nodes), "who": user(), "why": why},
        tuple(lines),
        f"Vouch for {', '.join(nodes)}?",
        {"nodes": list(nodes), "waiting_for": waiting},
        (_seen(view),),
    )
    return carry_out(order, view, context, dry_run=dry_run, yes=yes)


def clear_alarm(
    *,
    why: str = "",
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Take back the alarm that made the coordinator read-only, when it was false.

    It is false when no node of the group has seen a newer register than the coordinator has: this
    command asks all of them first, and refuses while one does. Afterwards the coordinator waits for
    reports as after a start, so that a true alarm comes back at once.

    Args:
        why: What raised it; kept in the history.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    view = look(context)
    need_coordinator(view)
    alarm = view.coordinator.read_only
    if alarm is None:
        context.printer.note("the coordinator has no alarm; nothing to clear")
        return Exit.OK
    _refuse_if_newer(view)
    away = [node.name for node in view.nodes if not node.reachable]
    lines = [f"The alarm says: {alarm}.", "No node that answers has seen that."]
    if away:
        lines.append(f"{_named(away)} did not answer: if one of them has, the alarm comes back.")
    order = Order(
        "AlarmCleared",
        {"op": "clear-alarm", "who": user(), "why": why},
        tuple(lines),
        "Clear the alarm?",
        {"alarm": alarm, "unreachable": away},
        (_seen(view),),
    )
    return carry_out(order, view, context, dry_run=dry_run, yes=yes)


def recover(
    *,
    without: tuple[str, ...] = (),
    branch: int = 1,
    why: str = "",
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Make the coordinator's register again from what the nodes remember.

    For a coordinator whose disk was lost, or that was restored from an old copy and refuses every
    change. Each node keeps the newest state of the register that it has seen. With the word of all
    nodes nothing is forgotten; name those that cannot answer with --without: what only they saw is
    lost, and they count as members again only after they have copied the log.

    If the register was restored and went on in another way, there are two branches; both are shown,
    and nodes of the branch that is not taken must copy the log again.

    Args:
        without: A node that will not answer; may be repeated.
        branch: Which branch to take, by its number in the plan.
        why: What happened; kept in the history.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    view = look(context)
    need_coordinator(view)
    asked = [node for node in view.nodes if node.reachable and node.name not in without]
    shown = {node.name: promise_of(node, context) for node in asked}
    states = [(name, found[1]) for name, found in shown.items() if found[1] is not None]
    if not states:
        raise Failure(
            Exit.UNAVAILABLE,
            "no node that answers remembers a register",
            hints=("if the nodes only have logs: twinlog coordinator adopt",),
        )
    branches = _branches([state for _, state in states], _own(view))
    if not 1 <= branch <= len(branches):
        raise Failure(Exit.USAGE, f"there is no branch {branch}: there are {len(branches)}")
    if len(branches) > 1 and branch == 1 and not dry_run and yes:
        context.printer.note("there are two branches; the first one is taken")
    state = branches[branch - 1]
    voices = [voice for voice, _ in shown.values()]
    out = [voice.node for voice in voices if not is_on_branch(state, voice)]
    order = Order(
        "Recovered",
        to_wire(Recover(state, tuple(voices), tuple(without), user(), why)),
        _recovery_lines(branches, branch, out, without, voices),
        f"Recover the register of {view.name}?",
        {"revision": state.revision, "epoch": state.epoch, "without": list(without), "out": out},
        (_promises(view, shown),),
    )
    return carry_out(order, view, context, dry_run=dry_run, yes=yes)


def promise_of(node: NodeView, context: Context) -> tuple[Voice, GroupState | None]:
    """Ask a node what it has made durable about the register."""
    found = context.ask(node.address, Type.ADMIN, {"op": "promise"}, context.left(NODE_SECONDS))
    voice = Voice(
        node.name,
        text(found, "register_id") or "",
        whole(found, "revision") or 0,
        whole(found, "tag") or 0,
        whole(found, "promised") or 0,
        whole(found, "session") or 0,
        whole(found, "last_epoch") or 0,
    )
    state = table(found.get("state"))
    return voice, GroupState.from_json(state) if state else None


def _own(view: ClusterView) -> GroupState | None:
    """The coordinator's own state, None while it has no history."""
    return GroupState.from_json(view.coordinator.state) if view.coordinator.epoch else None


def _branches(states: list[GroupState], own: GroupState | None) -> list[GroupState]:
    """The newest state of each branch, the best branch first."""
    found: list[GroupState] = []
    for state in newest_first([*states, *([own] if own is not None else [])], own):
        if all(conflict(state, other) for other in found):
            found.append(state)
    return found


def _recovery_lines(
    branches: list[GroupState],
    branch: int,
    out: list[str],
    without: tuple[str, ...],
    voices: list[Voice],
) -> tuple[str, ...]:
    lines: list[str] = []
    for number, one in enumerate(branches, 1) if len(branches) > 1 else ():
        sets = ", ".join(sorted(one.isr)) or "no node"
        lines.append(
            f"Branch {number}: revision {one.revision}, epoch {one.epoch} of {one.leader or '-'}, "
            f"in sync {sets}."
        )
    state = branches[branch - 1]
    lines.append(
        f"The register goes on from revision {state.revision}, epoch {state.epoch}. The next epoch "
        "is above every one that a node has promised."
    )
    kept = [name for name in sorted({*state.isr, *state.elr}) if name not in (*out, *without)]
    if any(is_ahead(state, voice) for voice in voices):
        kept = []
        lines.append("A node saw a newer revision whose members no node remembers.")
    if kept:
        lines.append(f"{', '.join(kept)} hold every confirmed record, and one becomes master.")
    else:
        lines.append("No node is known to hold every confirmed record: see cluster failover then.")
    if out:
        lines.append(f"{', '.join(out)} followed another branch and must copy the log again.")
    if strange := [v.node for v in voices if v.register_id not in ("", state.register_id)]:
        lines.append(f"{', '.join(strange)} follow another register: delete their data folders.")
    if without:
        lines.append(
            f"{', '.join(without)} did not answer: what only they saw is lost, and they must copy "
            "the log again."
        )
    return tuple(lines)


def _promises(view: ClusterView, shown: dict[str, tuple[Voice, GroupState | None]]) -> Table:
    items: list[Fields] = []
    for node in view.nodes:
        item: Fields = {"node": node.name, "state": node.state, "end": node.end}
        item |= dict.fromkeys(("register", "revision", "promised", "last_epoch"))
        if node.name in shown:
            voice = shown[node.name][0]
            item |= {
                "register": voice.register_id[:8] or None,
                "revision": voice.revision,
                "promised": voice.promised,
                "last_epoch": voice.last_epoch,
            }
        items.append(item)
    return Table.of("NODE STATE REGISTER REVISION> PROMISED> LAST-EPOCH> END>", items)


def seen(node: NodeView) -> tuple[str | None, int]:
    """Return the register id and the newest revision that a node has seen; None, 0 for none."""
    return node.register_id or None, node.revision or 0


def _refuse_if_newer(view: ClusterView) -> None:
    """Refuse when a node has seen more than the coordinator has.

    Raises:
        Failure: Its register is old (exit 69), with who knows better.
    """
    revision = view.coordinator.revision or 0
    register = view.coordinator.register_id
    newer = [
        f"{node.name} has seen revision {seen(node)[1]}"
        for node in view.nodes
        if seen(node)[0] == register and seen(node)[1] > revision
    ]
    if newer:
        raise Failure(
            Exit.UNAVAILABLE,
            f"the coordinator's register is old: it ends at revision {revision}",
            facts=newer,
            hints=(
                "put the newer coordinator.sqlite back, and start the coordinator",
                "if it is lost: twinlog coordinator recover",
            ),
        )


def _seen(view: ClusterView) -> Table:
    seen_by: list[Fields] = [
        {"who": node.name, "state": node.state, "revision": node.revision} for node in view.nodes
    ]
    own: Fields = {"who": "coordinator", "state": "running", "revision": view.coordinator.revision}
    return Table.of("WHO STATE REVISION>", [*seen_by, own])


def _named(nodes: list[str] | tuple[str, ...]) -> str:
    return ", ".join(nodes)

"""``twinlog cluster add``, ``promote``, ``remove`` and ``set``: who belongs to the group, and its
facts.

The cluster file seeds members and facts at the group's first registration; from then on the
coordinator has the truth, and these commands are how it changes: one change at a time, each
recorded in ``twinlog cluster history``.

Not here: the rules (``replication.register.rules``).
"""

from __future__ import annotations

from typing import Annotated

from cli.cluster.orders import Order, carry_out, need_coordinator, user
from cli.cluster.view import ClusterView, look
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields
from cli.parsing import PRIVATE, Yes
from replication.register.membership import why_no_fact
from twinlog.levels import LEVELS

FACTS = {
    "in_sync_min": "min_isr",
    "ack": "ack",
    "failover": "failover",
    "after_power_loss": "after_power_loss",
    "level": "level",
}
"""Names of the settings file to names of the group state."""


def add(
    node: str,
    /,
    *,
    priority: int = 0,
    learner: bool = False,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Add a node to the group, as a full member or as a learner.

    A full member counts for nothing until it has caught up and joined the in-sync set. A learner
    copies the log and serves reads, and never counts: no write waits for it, and it is not elected.
    The node registers by itself within a second once it runs.

    Args:
        node: Its name in the cluster file.
        priority: Larger stands first when there is no master.
        learner: Add it as a learner; ``twinlog cluster promote`` makes it a full member.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    view = looked(context)
    members = view.coordinator.members
    if node in members:
        return nothing(view, context, f"{node} is a member already")
    if node in view.coordinator.learners:
        why = f"{node} is a learner already; a full member: twinlog cluster promote {node}"
        return nothing(view, context, why)
    if learner:
        return _add_learner(node, view, context, dry_run=dry_run, yes=yes)
    lines = (
        f"{node} becomes a member of {view.name}, beside {', '.join(members) or 'no other node'}.",
        "It copies the log from the master and joins the in-sync set once it has caught up.",
    )
    order = Order(
        "MemberAdded",
        _adding(node, priority),
        lines,
        f"Add {node} to {view.name}?",
        {"node": node, "priority": priority},
    )
    return carry_out(order, view, context, dry_run=dry_run, yes=yes)


def _add_learner(
    node: str, view: ClusterView, context: Context, *, dry_run: bool, yes: bool
) -> int:
    lines = (
        f"{node} becomes a learner of {view.name}: it copies the log and serves reads.",
        "No write waits for it, it is never elected, and no vote of the group needs it.",
    )
    order = Order(
        "LearnerAdded",
        _adding(node, 0, learner=True),
        lines,
        f"Add {node} to {view.name} as a learner?",
        {"node": node},
    )
    return carry_out(order, view, context, dry_run=dry_run, yes=yes)


def _adding(node: str, priority: int, *, learner: bool = False) -> Fields:
    who, op = user(), "add-replica"
    return {"op": op, "node": node, "priority": priority, "learner": learner, "who": who}


def promote(
    node: str,
    /,
    *,
    priority: int = 0,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Make a learner a full member.

    It counts for nothing until it has joined the in-sync set: at once if it is level, for it keeps
    its log and its link.

    Args:
        node: Its name.
        priority: Larger stands first when there is no master.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    view = looked(context)
    members, learners = view.coordinator.members, view.coordinator.learners
    if node in members:
        return nothing(view, context, f"{node} is a full member already")
    if node not in learners:
        raise Failure(
            Exit.MISSING,
            f"{node} is not a learner of {view.name}",
            facts=(f"its learners are {', '.join(learners) or 'none'}",),
            hints=(f"add it as a full member: twinlog cluster add {node}",),
        )
    lines = (
        f"{node} becomes a full member of {view.name}, beside {', '.join(members)}.",
        "It joins the in-sync set once it has every confirmed record; then writes wait for it, and "
        "it can be elected.",
    )
    order = Order(
        "LearnerPromoted",
        _adding(node, priority),
        lines,
        f"Make {node} a full member of {view.name}?",
        {"node": node, "priority": priority},
    )
    return carry_out(order, view, context, dry_run=dry_run, yes=yes)


def remove(
    node: str,
    /,
    *,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Remove a node from the group; its data stays where it is.

    The master cannot be removed, nor the last node that is known to have everything, nor one that
    ``in_sync_min`` needs.

    Args:
        node: Its name.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    view = looked(context)
    members = view.coordinator.members
    if node not in (*members, *view.coordinator.learners):
        return nothing(view, context, f"{node} is not a member; there are {', '.join(members)}")
    left = [name for name in members if name != node]
    least = view.coordinator.min_in_sync or 1
    lines = [f"{node} leaves {view.name}; members are then {', '.join(left)}."]
    if node in view.in_sync:
        count = len(view.in_sync) - 1
        lines.append(f"It is in sync now: {count} in sync remain, {least} are needed for writes.")
    lines.append(f"Its data is kept. Stop it, and take it out of the cluster file: {node}.")
    order = Order(
        "MemberRemoved",
        {"op": "remove-replica", "node": node, "who": user()},
        tuple(lines),
        f"Remove {node} from {view.name}?",
        {"node": node},
    )
    return carry_out(order, view, context, dry_run=dry_run, yes=yes)


def change(
    name: str,
    value: str,
    /,
    *,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Change a fact of the group that all members must agree on.

    ``in_sync_min``: members that must have a write before it is confirmed, the master included.
    ``ack``: what a member's acknowledgement says, ``received`` (in its page cache) or ``durable``
    (flushed). ``failover``: whether a master that is gone is replaced by a person (``manual``) or
    by the coordinator (``automatic``). ``after_power_loss``: ``wait`` for ``twinlog cluster
    failover`` when no node is known to have everything, or elect the ``best`` one. ``level``: what
    the log may hold, which only rises, once all nodes run a release that knows it (``twinlog
    version --check``). A node whose cluster file has another value goes by the group's.

    Args:
        name: ``in_sync_min``, ``ack``, ``failover``, ``after_power_loss`` or ``level``.
        value: The new value.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    if name not in FACTS:
        known = ", ".join(FACTS)
        raise Failure(
            Exit.USAGE,
            f"{name} is not a fact of the group",
            facts=(f"facts of the group are {known}; everything else is a setting of each node",),
            hints=("look at settings: twinlog config show",),
        )
    if why := why_no_fact(name, value):
        raise Failure(Exit.USAGE, why)
    view = looked(context)
    old = view.coordinator.state.get(FACTS[name])
    if str(old) == value:
        return nothing(view, context, f"{name} is {value} already")
    if name == "in_sync_min":
        _keep_candidates(view, int(value))
    order = Order(
        "GroupChanged",
        {"op": "change", "name": name, "value": value, "who": user()},
        (f"{name} becomes {value}; it was {old}.", _meaning(name, value, view)),
        f"Set {name} of {view.name} to {value}?",
        {"name": name, "from": old, "to": value},
    )
    return carry_out(order, view, context, dry_run=dry_run, yes=yes)


def _keep_candidates(view: ClusterView, least: int) -> None:
    """Refuse to take the last candidates away: with fewer in-sync nodes needed, the set suffices.

    While the set is too small, the nodes that left it may be elected (R25). Once it is large
    enough, its members may confirm alone, and only they may be.

    Raises:
        Failure: The set's members do not answer and others that have everything could lead (69).
    """
    register = view.coordinator
    others = [name for name in register.eligible if name not in register.in_sync]
    if view.master is not None or not others or least > len(register.in_sync):
        return
    raise Failure(
        Exit.UNAVAILABLE,
        f"there is no master, and then only {', '.join(register.in_sync)} could become it",
        facts=(f"now {', '.join(others)} could, too: every confirmed record is there",),
        hints=("elect a master first: twinlog cluster failover",),
    )


def _meaning(name: str, value: str, view: ClusterView) -> str:
    if name == "ack" and value == "received":
        return (
            "A confirmed record may be lost if all members of the in-sync set lose power at once, "
            "before their next flush."
        )
    if name == "level":
        gains = LEVELS[int(value)]
        return f"The log may hold {gains} then; releases that do not know them cannot take part."
    if name == "ack":
        return "Each confirmed write waits until every member of the in-sync set has flushed it."
    if name == "failover" and value == "automatic":
        return "A master that is gone is replaced within seconds, if a member has everything."
    if name == "failover":
        return "When the master is gone, writes stop until twinlog cluster failover."
    if name == "after_power_loss" and value == "best":
        return "Records that were confirmed may be lost without a person's decision."
    if name == "after_power_loss":
        return "Writes stop until a person decides: twinlog cluster failover."
    count = len(view.in_sync)
    if value.isdecimal() and int(value) > count:
        return f"{count} in sync now, so confirmed writes stop until {value} are."
    if value == "1":
        return f"{count} in sync now. A record may be confirmed on one node only, and lost with it."
    return f"{count} in sync now. A confirmed record is on {value} nodes at least."


def looked(context: Context) -> ClusterView:
    """The cluster, whose coordinator answers and whose group has begun.

    Raises:
        Failure: It has not, or the coordinator is away (exit 69).
    """
    view = look(context)
    need_coordinator(view)
    if view.coordinator.register_id and not view.coordinator.seeded:
        raise Failure(
            Exit.UNAVAILABLE,
            "the group has not begun: no node has registered",
            hints=("start its nodes: twinlog node start NAME",),
        )
    return view


def nothing(view: ClusterView, context: Context, why: str) -> int:
    """Answer that there is nothing to do, with the status."""
    from cli.cluster.status import status_answer

    context.printer.note(why)
    context.printer.answer(status_answer(view, context.wall_ms(), "ClusterStatus"))
    return Exit.OK

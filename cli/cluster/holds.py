"""``twinlog cluster pause``, ``resume`` and ``maintenance``: what must not happen by itself now.

Not here: what a hold keeps from happening (``replication.register.holds``), handing over
(``change``).
"""

from __future__ import annotations

from typing import Annotated

from cli.cluster.change import switchover
from cli.cluster.members import looked, nothing
from cli.cluster.orders import Order, carry_out, user
from cli.context import Context
from cli.failures import Exit, Failure
from cli.parsing import PRIVATE, Yes
from twinlog.units import UnitError, format_duration, parse_duration


def pause(
    *,
    for_: str = "1h",
    why: str = "",
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Pause automatic failover: a master that is gone keeps its role meanwhile.

    For work on the network or the machines that would look like a failure. If the master dies
    meanwhile, writes stop until it is back, the pause ends, or you call twinlog cluster failover.
    The pause ends by itself. A master that stops in order or starts again still hands over.

    Args:
        for_: How long, 10s to 30d.
        why: For the status and the history.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    try:
        seconds = round(parse_duration(for_))
    except UnitError as error:
        raise Failure(Exit.USAGE, f"--for: {error}", hints=(error.hint,)) from None
    view = looked(context)
    long = format_duration(seconds)
    order = Order(
        "FailoverPaused",
        {"op": "pause", "seconds": seconds, "who": user(), "why": why},
        (
            f"No node takes over from {view.leader or 'the master'} by itself for {long}.",
            "If it dies meanwhile, writes stop: twinlog cluster failover still works.",
        ),
        f"Pause automatic failover of {view.name} for {long}?",
        {"seconds": seconds},
    )
    return carry_out(order, view, context, dry_run=dry_run, yes=yes)


def resume(*, why: str = "", context: Annotated[Context, PRIVATE]) -> int:
    """End the pause of automatic failover now; harmless when it is not paused.

    Args:
        why: For the history.
    """
    view = looked(context)
    if view.coordinator.pause is None:
        return nothing(view, context, "automatic failover is not paused")
    order = Order(
        "FailoverResumed",
        {"op": "resume", "who": user(), "why": why},
        ("A master that is gone is replaced by itself again.",),
        f"Resume automatic failover of {view.name}?",
    )
    return carry_out(order, view, context, dry_run=False, yes=True)


def maintenance(
    node: str,
    /,
    *,
    off: bool = False,
    why: str = "",
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Take a node into maintenance: it hands over, and is not elected until it is released.

    It goes on as a slave, acknowledges, and may be stopped. It stays in maintenance over restarts.

    Args:
        node: Its name.
        off: Release it.
        why: For the status and the history.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    view = looked(context)
    if node not in view.coordinator.members:
        known = ", ".join(view.coordinator.members)
        raise Failure(Exit.MISSING, f"{node} is not a member; there are {known}")
    held = node in view.coordinator.maintenance
    leads = node == view.leader
    if held != off and (off or not leads):
        return nothing(
            view, context, f"{node} is {'not in maintenance' if off else 'in maintenance already'}"
        )
    lines = [f"{node} may be elected again."]
    if not off:
        lines = [f"{node} is not elected until: twinlog cluster maintenance {node} --off"]
        if leads:
            lines.append(f"{node} is master, and hands over to a slave that is in sync.")
    order = Order(
        "NodeReleased" if off else "NodeInMaintenance",
        {"op": "maintain", "node": node, "on": not off, "who": user(), "why": why},
        tuple(lines),
        f"Release {node}?" if off else f"Take {node} into maintenance?",
        {"node": node},
    )

    def hand_over() -> int:
        try:
            return switchover(yes=True, context=context)
        except Failure as failure:
            failure.facts = (f"{node} is in maintenance, and still master", *failure.facts)
            raise

    then = hand_over if leads and not off else None
    return carry_out(order, view, context, dry_run=dry_run, yes=yes, then=then)

"""Plans of a failover when no node is known to have every confirmed record.

Usually every member lost power at once. What such a failover may lose is said before it happens, as
far as anybody can know it, and it is recorded as unclean in ``twinlog cluster history``.

Not here: doing it (``cli.cluster.change``), the rule (``replication.register.vacancy``).
"""

from __future__ import annotations

from cli.cluster.view import ClusterView, NodeView
from cli.failures import Exit, Failure
from replication.register.group_state import GroupState
from replication.register.vacancy import best_of_all, missing_ends
from twinlog.units import format_size


def is_vacant(view: ClusterView) -> bool:
    """Whether the coordinator says that no node is known to have everything."""
    return bool(view.coordinator.state.get("vacant"))


def best_lines(view: ClusterView, to: str | None) -> tuple[NodeView, tuple[str, ...]]:
    """Return the node that holds all that still exists, and what its election costs.

    Raises:
        Failure: That is not known, or ``to`` is another node (exit 69); nothing was changed.
    """
    state = GroupState.from_json(view.coordinator.state)
    best = best_of_all(state)
    if best.name is None:
        raise Failure(Exit.UNAVAILABLE, best.text, hints=(best.hint,))
    if to not in (None, best.name):
        raise Failure(
            Exit.UNAVAILABLE,
            f"{to} has less than {best.name}",
            facts=tuple(f"{name} ends at {end.end}" for name, end in state.ends.items()),
            hints=(
                f"take {best.name}: twinlog cluster failover",
                f"what {to} lacks: twinlog cluster failover --unclean {to} --dry-run",
            ),
        )
    end = state.ends[best.name]
    return view.node(best.name), (
        f"No node is known to have every confirmed record; the last epoch is {state.epoch}.",
        f"All {len(state.replicas)} replicas have reported. {best.name} has the most: "
        f"it ends at {end.end}, in epoch {end.last_epoch}.",
        _lost_in_memory(state),
        "The election is recorded as unclean.",
    )


def unclean_lines(view: ClusterView, to: str) -> tuple[NodeView, tuple[str, ...]]:
    """Return the node that the operator insists on, and the bound of what is lost.

    Raises:
        Failure: It does not answer (exit 69), or there is no such node (66).
    """
    target = view.node(to)
    if not target.reachable:
        raise Failure(Exit.UNAVAILABLE, f"{to} does not answer", facts=(target.reason,))
    state = GroupState.from_json(view.coordinator.state)
    mine = target.end or 0
    lines = [f"{to} may lack confirmed records. It ends at {mine}."]
    known = _known_ends(view, state)
    known.pop(to, None)
    longer = {name: end for name, end in known.items() if end > mine}
    for name, end in sorted(longer.items()):
        size = format_size(end - mine)
        lines.append(f"{name} had up to {end}: {size} of that are lost if {to} does not have them.")
    shown = {node.name for node in view.nodes if node.reachable}
    unknown = [name for name in missing_ends(state) if name not in shown and name != to]
    if unknown:
        names = ", ".join(unknown)
        lines.append(f"{names} does not answer: what only it has is lost, however much that is.")
    elif not longer:
        lines.append(f"No other node is known to have more. {_lost_in_memory(state)}")
    lines.append("What others have beyond it is cut when they follow. Recorded as unclean.")
    return target, tuple(lines)


def _known_ends(view: ClusterView, state: GroupState) -> dict[str, int]:
    """The largest end of each replica that anybody knows: reported, registered, or shown now."""
    known = {name: reg.end for name, reg in state.reg.items()}
    for name, end in state.ends.items():
        known[name] = max(known.get(name, 0), end.end)
    for node in view.nodes:
        shown = max(node.end or 0, node.confirm or 0)
        if shown:
            known[node.name] = max(known.get(node.name, 0), shown)
    return known


def _lost_in_memory(state: GroupState) -> str:
    if state.ack == "durable":
        return "With ack = durable, only what a disk lost that reported no error can be missing."
    return (
        "Missing can be what was confirmed in the last moments before the power failure: what no "
        "member had flushed, 0.5 s of a busy log, up to 10 s of one with few writes."
    )

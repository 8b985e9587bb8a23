"""``twinlog cluster top``: what each node does now, and what it waits for.

Rates are differences of two statuses of a node, divided by the time that passed on its own clock. A
node that was started again between them has no rate yet.

Not here: asking (``view``), what is wrong (``health``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated

from cli.answer import Answer, Table
from cli.cluster.health import judge
from cli.cluster.status import headline
from cli.cluster.view import ClusterView, NodeView, look
from cli.context import Context
from cli.failures import Exit
from cli.fields import Fields, number, table, tables, text, whole
from cli.parsing import PRIVATE
from cli.watch import Watch, repeat

SPAN_SECONDS = 1.0
"""Over which the rates of the first picture are taken; later ones have the time between two."""

RATES = {
    "sent_per_second": "records_appended",
    "sent_bytes_per_second": "appended_bytes",
    "read_per_second": "records_read",
    "read_bytes_per_second": "read_bytes",
}
"""Each rate and the counter of the status document that it comes from."""

TOP = (
    "NODE ROLE SENT/S>=sent_per_second BYTES/S>=sent_bytes_per_second:size "
    "READ/S>=read_per_second +READ-BYTES/S>=read_bytes_per_second:size "
    "ACK>=round_trip_seconds:seconds WAITING>=unacknowledged_bytes:size LAG>=lag_bytes:size "
    "WAITS-FOR=waits_for"
)


def top(*, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """Show what each node does now, and what it waits for.

    SENT/S and READ/S are messages a second over the last second (with --watch: since the picture
    before). ACK is how long a slave's acknowledgements take, WAITING what was sent to it and is not
    acknowledged. WAITS-FOR names, on the master, the slaves that sends wait for.

    Args:
        watch: Show it again every 2 s, until Ctrl-C.
    """
    last: list[ClusterView] = []

    def show() -> int:
        if not last:
            last.append(look(context))
            time.sleep(SPAN_SECONDS)
        now = look(context)
        context.printer.answer(_answer(last.pop(), now))
        last.append(now)
        return Exit.OK

    return repeat(context, show, watch=watch)


def _answer(before: ClusterView, now: ClusterView) -> Answer:
    earlier = {node.name: node for node in before.nodes}
    items = [_item(earlier.get(node.name), node) for node in now.nodes]
    health = judge(now)
    return Answer(
        kind="ClusterTop",
        fields={"cluster": now.name, "health": health.grade.value, "nodes": items},
        head=headline(now, health),
        tables=[Table.of(TOP, items)],
        tail="\n".join(health.lines()),
        trouble=True,
        items=items,
        names=[f"node/{node.name}" for node in now.nodes],
    )


def _item(before: NodeView | None, now: NodeView) -> Fields:
    return {
        "node": f"{now.name}*" if now.master else now.name,
        "role": now.role,
        **rates(before.document if before is not None else {}, now.document),
        "round_trip_seconds": now.round_trip_seconds,
        "unacknowledged_bytes": now.unacknowledged_bytes,
        "lag_bytes": now.lag_bytes,
        "waits_for": waits_for(now),
    }


def rates(before: Mapping[str, object], now: Mapping[str, object]) -> Fields:
    """Return each of `RATES` between two statuses of one node; None: not known."""
    first, second = number(before, "uptime_seconds"), number(now, "uptime_seconds")
    old, new = table(before.get("counters")), table(now.get("counters"))
    found: Fields = {rate: None for rate in RATES}  # noqa: C420 - of any values
    if first is None or second is None or second <= first or before.get("pid") != now.get("pid"):
        return found
    for rate, counter in RATES.items():
        start, end = whole(old, counter), whole(new, counter)
        if start is not None and end is not None:
            found[rate] = round(max(0, end - start) / (second - first))
    return found


def waits_for(node: NodeView) -> str | None:
    """Return what a node waits for, in words; None: nothing, or it did not answer."""
    if not node.reachable or not node.master:
        return node.reason or None
    if node.admission is not None:
        return node.admission
    counts = table(node.document.get("counters"))
    waiting = whole(counts, "appends_waiting") or 0
    peers = [peer for peer in tables(node.document.get("peers")) if peer.get("in_sync")]
    slow = [text(peer, "name") or "?" for peer in peers if peer.get("slow")]
    late = [text(peer, "name") or "?" for peer in peers if whole(peer, "lag_bytes")]
    if names := ", ".join(slow or (late if waiting else [])):
        return f"{waiting} sends wait for {names}" if waiting else names
    return None

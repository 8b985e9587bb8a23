"""``twinlog cluster status`` and ``history``: what is, and what was.

The master is starred.  `-` says that a value does not apply, `?` that nobody could be asked.

Not here: changing who is master (``cluster_change``), asking (``cluster_view``).
"""

from __future__ import annotations

from typing import Annotated

from cli.cluster_view import ClusterView, NodeView, coordinator_of, look
from cli.context import Context, Fields
from cli.failures import Exit
from cli.fields import number, tables, text, texts, whole
from cli.parsing import PRIVATE
from cli.render import ABSENT, Answer, Cell, Seconds, Size, Table, Time, columns, rfc3339
from twinlog.wire import Type

STATUS = columns(
    "NODE ROLE STATE EPOCH> END> LAG> LAG-TIME> CONTACT> IN-SYNC> ADDRESS "
    "+FLUSHED> +CONFIRM> +VERSION +UPTIME> +WHY"
)


def status(*, context: Annotated[Context, PRIVATE]) -> int:
    """Show every node with its role, end, lag and last contact.

    LAG is bytes the slave lacks, LAG-TIME the age of the oldest of them, CONTACT the time since the
    master heard of it; an idle cluster and a dead link look different.
    """
    view = look(context)
    context.printer.answer(status_answer(view, context.wall_ms()))
    return Exit.OK


def status_answer(view: ClusterView, now_ms: int, kind: str = "ClusterStatus") -> Answer:
    """The picture of a cluster, for every format."""
    master = view.master
    document = view.status(rfc3339(now_ms))
    asked = {node.name: node for node in view.nodes}
    nodes = [{**asked[str(row["name"])].fields(), **row} for row in tables(document["nodes"])]
    fields: Fields = {
        **{key: value for key, value in document.items() if key not in ("kind", "version")},
        "group": view.group,
        "coordinator_address": view.coordinator_address or None,
        "revision": whole(view.coordinator, "revision"),
        "nodes": nodes,
    }
    return Answer(
        kind=kind,
        fields=fields,
        head=headline(view, text(document, "health") or "?"),
        tables=[Table(STATUS, [node_row(node) for node in view.nodes])],
        tail="\n".join(texts(document["reasons"])),
        items=nodes,
        names=[f"node/{node.name}" for node in view.nodes],
        next="twinlog message tail TOPIC" if master is not None else "twinlog cluster failover",
    )


def headline(view: ClusterView, health: str) -> str:
    """The line above the table."""
    master = f"master {view.master.name}" if view.master is not None else "no master"
    confirm = "?" if view.confirm is None else view.confirm
    return f"{view.name} · epoch {view.epoch} · {master} · confirmed {confirm} · {health}"


def node_row(node: NodeView) -> tuple[Cell, ...]:
    """One node as a row of the status table."""
    if not node.reachable:
        asked: Cell = ABSENT
        return (
            node.name, asked, node.state, asked, asked, asked, asked, asked,
            bool(node.in_sync), node.address, asked, asked, asked, asked, node.reason or None,
        )  # fmt: skip
    return (
        f"{node.name}*" if node.master else node.name,
        node.role,
        node.state,
        node.epoch,
        node.end,
        None if node.lag_bytes is None else Size(node.lag_bytes),
        None if node.lag_seconds is None else Seconds(node.lag_seconds),
        None if node.contact_seconds is None else Seconds(round(node.contact_seconds, 1)),
        node.in_sync,
        node.address,
        node.flushed,
        node.confirm,
        node.version,
        None if node.uptime_seconds is None else Seconds(node.uptime_seconds),
        node.reason or None,
    )


def history(*, count: int | None = None, context: Annotated[Context, PRIVATE]) -> int:
    """Show who was master in which epoch, since when, why, and what a returning node cut.

    Args:
        count: Only the last so many.
    """
    found = fetch_history(context)
    shown = found[-count:] if count else found
    rows: list[tuple[Cell, ...]] = []
    items: list[dict[str, object]] = []
    for one in shown:
        since = whole(one, "since_ms")
        lost = number(one, "lost")
        rows.append(
            (
                whole(one, "epoch"),
                None if since is None else Time(since),
                text(one, "master"),
                whole(one, "start"),
                text(one, "reason"),
                text(one, "by"),
                None if lost is None else Size(int(lost)),
            )
        )
        items.append(
            {
                "epoch": whole(one, "epoch"),
                "since": None if since is None else rfc3339(since),
                "master": text(one, "master"),
                "start_offset": whole(one, "start"),
                "reason": text(one, "reason"),
                "by": text(one, "by"),
                "lost_bytes": None if lost is None else int(lost),
            }
        )
    context.printer.answer(
        Answer(
            kind="ClusterHistory",
            fields={"epochs": items},
            tables=[Table(columns("EPOCH> SINCE MASTER START> REASON BY LOST>"), rows)],
            items=items,
            names=[f"epoch/{item['epoch']}" for item in items],
        )
    )
    return Exit.OK


def fetch_history(context: Context) -> list[dict[str, object]]:
    """The coordinator's list of epochs, oldest first."""
    address = coordinator_of(context)[0]
    answer = context.ask(address, Type.CO_HISTORY, {}, context.left())
    return tables(answer.get("history"))

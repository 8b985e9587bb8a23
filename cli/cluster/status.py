"""``twinlog cluster status``, ``health`` and ``history``: what is, what is wrong, what was.

The master is starred.  `-` says that a value does not apply, `?` that it could not be asked.

Not here: asking (``view``), judging (``health``), changing who is master (``change``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from cli.answer import ABSENT, Answer, Table, Time, rfc3339
from cli.cluster.health import Grade, Health, judge
from cli.cluster.view import ClusterView, NodeView, ask_coordinator, look
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, flag, number, tables, text, whole
from cli.parsing import PRIVATE
from cli.watch import Watch, repeat
from twinlog.wire.frames import Type

STATUS = (
    "NODE ROLE STATE +EPOCH> END>=end_offset LAG>=lag_bytes:size LAG-TIME>=lag_seconds:seconds "
    "CONTACT>=contact_seconds:seconds ACK>=round_trip_seconds:seconds IN-SYNC> "
    "+WAITING>=unacknowledged_bytes:size +ADDRESS +FLUSHED>=flushed_offset "
    "+CONFIRM>=confirm_offset +VERSION=twinlog +UPTIME>=uptime_seconds:seconds +WHY=reason"
)


INSECURE = "insecure: ports beyond loopback speak no TLS (insecure = true under [listen])"
"""The red line of a cluster that anybody on its network can read and change."""


def status(*, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """Show every node with its role, end, lag and last contact, and what is wrong.

    LAG is bytes the slave lacks, LAG-TIME the age of the oldest of them, CONTACT the time since the
    master heard of it; an idle cluster and a dead link look different. ACK is how long its
    acknowledgements take, which every confirmed write waits for.

    Args:
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _status(context), watch=watch)


def _status(context: Context) -> int:
    context.printer.answer(status_answer(look(context), context.wall_ms()))
    return Exit.OK


def health(*, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """Say whether the cluster works: exit 0 healthy, 1 degraded (it works), 2 unavailable.

    Each reason comes with the command that goes on.

    Args:
        watch: Say it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _health(context), watch=watch)


def _health(context: Context) -> int:
    try:
        view = look(context)
    except Failure as failure:
        if failure.exit is not Exit.UNAVAILABLE:
            raise
        context.printer.error(failure)
        return Exit.UNDECIDED
    found = judge(view)
    problems = [problem.fields() for problem in found.problems]
    context.printer.answer(
        Answer(
            kind="ClusterHealth",
            fields={
                "cluster": view.name,
                "health": found.grade.value,
                "master": view.master.name if view.master is not None else None,
                "epoch": view.epoch,
                "problems": problems,
            },
            head="\n".join([f"{view.name} is {found.grade.value}", *found.lines()]),
            tables=[Table.of("CODE TEXT COMMAND", problems)] if context.printer.machine else (),
            items=problems,
            names=[problem.code for problem in found.problems],
        )
    )
    return EXITS[found.grade]


EXITS = {Grade.HEALTHY: Exit.OK, Grade.DEGRADED: Exit.NO, Grade.UNAVAILABLE: Exit.UNDECIDED}


def status_answer(view: ClusterView, now_ms: int, kind: str = "ClusterStatus") -> Answer:
    """The picture of a cluster, for every format."""
    master, found = view.master, judge(view)
    nodes = [node.fields() for node in view.nodes]
    least = view.coordinator.min_in_sync
    insecure = any(flag(node.document, "insecure") for node in view.nodes)
    fields: Fields = {
        "cluster": view.name,
        "time": rfc3339(now_ms),
        "health": found.grade.value,
        "reasons": [problem.text for problem in found.problems],
        "problems": [problem.fields() for problem in found.problems],
        "epoch": view.epoch,
        "master": master.name if master is not None else None,
        "confirm_offset": master.confirm if master is not None else None,
        "in_sync_min": master.in_sync_min if master is not None else least,
        "coordinator": "answers" if view.coordinator.answers else "unreachable",
        "nodes": nodes,
        "group": view.group,
        "coordinator_address": view.coordinator.address or None,
        "revision": view.coordinator.revision,
        "insecure": insecure,
    }
    return Answer(
        kind=kind,
        fields=fields,
        head=headline(view, found),
        tables=[status_table(view)],
        tail="\n".join([*found.lines(), *([INSECURE] if insecure else [])]),
        trouble=True,
        items=nodes,
        names=[f"node/{node.name}" for node in view.nodes],
        next="" if found.problems else "twinlog message tail TOPIC",
    )


def headline(view: ClusterView, found: Health) -> str:
    """The line above the table."""
    master = f"master {view.master.name}" if view.master is not None else "no master"
    confirm = "?" if view.confirm is None else view.confirm
    return f"{view.name} · epoch {view.epoch} · {master} · confirmed {confirm} · {found.grade}"


def status_table(view: ClusterView) -> Table:
    """One row per node."""
    return Table.of(STATUS, [_row(view, node) for node in view.nodes])


def _row(view: ClusterView, node: NodeView) -> Fields:
    """The node's fields as a person sees them: starred when master, `?` for what was not asked."""
    fields = {**node.fields(), "node": node.name, "in_sync": node.in_sync}
    if not node.reachable:
        known = ("state", "address", "reason", "in_sync")
        fields |= {name: ABSENT for name in fields if fields[name] is None and name not in known}
    elif node.master:
        fields["node"] = f"{node.name}*"
    if node.name in view.coordinator.learners:
        fields["in_sync"] = "learner"
    if node.contact_seconds is not None:
        fields["contact_seconds"] = round(node.contact_seconds, 1)
    return fields


def history(
    *, count: int | None = None, watch: Watch = False, context: Annotated[Context, PRIVATE]
) -> int:
    """Show who was master in which epoch, since when, why, and what a returning node cut.

    Args:
        count: Only the last COUNT epochs.
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _history(context, count), watch=watch)


def _history(context: Context, count: int | None) -> int:
    found = fetch_history(context)
    items = [history_item(one) for one in (found[-count:] if count else found)]
    context.printer.answer(
        Answer(
            kind="ClusterHistory",
            fields={"epochs": items},
            tables=[Table.of(HISTORY, items)],
            items=items,
            names=[f"epoch/{item['epoch']}" for item in items],
        )
    )
    return Exit.OK


def history_item(entry: Mapping[str, object]) -> Fields:
    """One epoch, as the coordinator keeps it, in a history."""
    since, lost = whole(entry, "since_ms"), number(entry, "lost")
    return {
        "epoch": whole(entry, "epoch"),
        "since": None if since is None else Time(since),
        "master": text(entry, "master"),
        "start_offset": whole(entry, "start"),
        "reason": text(entry, "reason"),
        "by": text(entry, "by"),
        "lost_bytes": None if lost is None else int(lost),
    }


HISTORY = "EPOCH> SINCE MASTER START>=start_offset REASON BY LOST>=lost_bytes:size"


def fetch_history(context: Context) -> list[dict[str, object]]:
    """The coordinator's list of epochs, oldest first."""
    return tables(ask_coordinator(context, Type.CO_HISTORY)[0].get("history"))

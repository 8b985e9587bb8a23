"""``twinlog group reset`` and ``skip``: have messages handled again, or left out.

Both show the plan first, queue by queue; leases of the queues end, so what is being handled now may
be handled twice.

Not here: settings (`cli.group.changes`).
"""

from __future__ import annotations

import time
from typing import Annotated

from cli.answer import Answer, Table
from cli.cluster.patience import waiting_client
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, rows, tables, text, whole
from cli.group.answers import document
from cli.parsing import PRIVATE, Yes
from cli.topic import require
from twinlog.client.blocking import Client
from twinlog.consumer.start_offsets import parse_offsets
from twinlog.ranges import RangeError, parse_range
from twinlog.wire.frames import Type


def reset(
    name: str,
    /,
    *,
    topic: str,
    to: str,
    queue: int | None = None,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Have a group go on elsewhere: messages are handled again, or left out.

    All members of a ``broadcast`` group go on there, those that are away too.

    Args:
        name: Its name.
        topic: Of which topic.
        to: ``start``, ``end``, a queue offset, or a time as ``@2026-11-21T10:00Z`` or ``@-1h``.
        queue: Only this queue.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    with waiting_client(context) as client:
        lows = _lows(document(client, name), topic)
        wanted = _places(client, topic, to)
        if queue is not None:
            wanted = {queue: wanted[queue]} if queue in wanted else {}
        if not wanted:
            raise Failure(Exit.MISSING, f"topic {topic} has no queue {queue}")
        plan: list[Fields] = [
            {"topic": topic, "queue": number, "from": lows.get(number), "to": at}
            for number, at in sorted(wanted.items())
        ]
        positions = [[topic, one["queue"], one["to"]] for one in plan]
        return _move(
            client,
            name,
            "reset",
            plan,
            positions=positions,
            context=context,
            dry_run=dry_run,
            yes=yes,
        )


def skip(
    name: str,
    /,
    *,
    topic: str,
    queue: int,
    count: int = 1,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Leave out the next messages of one queue: those from the first unacknowledged one on.

    Args:
        name: Its name.
        topic: Of which topic.
        queue: Of which queue.
        count: How many.
        dry_run: Only show the plan.
        yes: Do not ask.
    """
    if count < 1:
        raise Failure(Exit.USAGE, f"--count is {count}; it must be at least 1")
    with waiting_client(context) as client:
        found = document(client, name)
        if text(found, "mode") == "broadcast":
            hints = (f"move all of its members: twinlog group reset {name}",)
            raise Failure(Exit.USAGE, f"the members of {name} have one position each", hints=hints)
        low = _lows(found, topic).get(queue)
        if low is None:
            text_ = f"{name} has not begun with queue {queue} of {topic}"
            hints = (f"see which it has: twinlog group show {name}",)
            raise Failure(Exit.MISSING, text_, hints=hints)
        end = client.offsets(topic)[queue][1]
        plan: list[Fields] = [
            {"topic": topic, "queue": queue, "from": low, "to": min(low + count, end)}
        ]
        # By its place, not by its number: repeated after a lost answer it skips nothing more.
        positions = [[topic, queue, plan[0]["to"]]]
        return _move(
            client,
            name,
            "skip",
            plan,
            positions=positions,
            context=context,
            dry_run=dry_run,
            yes=yes,
        )


def _lows(found: Fields, topic: str) -> dict[int, int]:
    """Return the position in each queue; of a broadcast group that of its last member."""
    lows: dict[int, int] = {}
    for one in tables(found.get("queues")):
        if one.get("topic") == topic:
            queue, low = whole(one, "queue") or 0, whole(one, "low") or 0
            lows[queue] = min(low, lows.get(queue, low))
    return lows


def _places(client: Client, topic: str, to: str) -> dict[int, int]:
    """Return the position in each queue that ``--to`` names."""
    require(client, topic)
    try:
        point = parse_range(f"{to}:").first
    except RangeError:
        hints = ("write start, end, a queue offset, @2026-11-21T10:00Z or @-1h",)
        raise Failure(Exit.USAGE, f'--to is "{to}", which is not a place', hints=hints) from None
    at_ms = point.at_ms(time.time_ns() // 1_000_000)
    fields: Fields = {"topic": topic, "queues": None, "at_ms": at_ms}
    found = parse_offsets(client.call("master", Type.OFFSETS, fields).fields)
    return {
        queue: min(max(point.offset(start, end, at), start), end)
        for queue, (start, end, at) in found.items()
    }


def _move(
    client: Client,
    name: str,
    what: str,
    plan: list[Fields],
    *,
    positions: list[list[object]],
    context: Context,
    dry_run: bool,
    yes: bool,
) -> int:
    moves = [_whole(one["to"]) - _whole(one["from"]) for one in plan if one["from"] is not None]
    again, out = sum(max(0, -move) for move in moves), sum(max(0, move) for move in moves)
    lines = [f"group {name}: {again} messages are handled again, up to {out} are left out"]
    table = Table.of("TOPIC QUEUE> FROM> TO>", plan)
    if not dry_run:
        if not yes:
            for one in plan:
                lines.append(f"  {one['topic']}/{one['queue']}: {one['from']} -> {one['to']}")
        context.printer.note("\n".join(lines))
        if not context.confirm("Leases of these queues end. Go on?", yes=yes):
            return Exit.NO
        fields: Fields = {
            "op": "reset",
            "name": name,
            "positions": positions,
            "why": f"{what}, cli",
        }
        answer = client.call("master", Type.GROUP, fields).fields
        done = rows(answer.get("positions"))
        plan = [
            {"topic": row[0], "queue": row[1], "from": row[2], "to": row[3]}
            for row in done
            if len(row) >= 4
        ]
        table = Table.of("TOPIC QUEUE> FROM> TO>", plan)
    context.printer.answer(
        Answer(
            kind="GroupReset" if what == "reset" else "GroupSkip",
            fields={"group": name, "done": not dry_run, "positions": plan},
            head=lines[0] if dry_run else f"group {name}: {len(plan)} positions set",
            tables=[table],
            items=plan,
            names=[f"group/{name}"],
            next=f"twinlog group show {name}",
        )
    )
    return Exit.OK


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0

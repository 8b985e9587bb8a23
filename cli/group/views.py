"""``twinlog group list``, ``show``, ``members`` and ``wait``: what groups have handled.

Not here: changing groups (`cli.group.changes`), their positions (`cli.group.positions`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, cast

from cli.answer import Answer, Cell, Table, columns
from cli.cluster.patience import waiting_client
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, table, tables, text, whole
from cli.group.answers import Told, document
from cli.parsing import PRIVATE
from cli.watch import Watch, repeat
from twinlog.units import format_duration

LOOK_SECONDS = 0.5
"""Between two looks at a group that is waited for."""


def list_groups(*, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """List the groups with their members and what is left to handle.

    LAG counts messages that are not acknowledged; LEASED of them are being handled, WAITING were
    given back and come again later. OLDEST is how long ago the first of them was stored. While no
    master answers, another node tells what it knew, and how long ago.

    Args:
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _list(context), watch=watch)


def _list(context: Context) -> int:
    with waiting_client(context) as client:
        told = Told(context, client)
        items = [_summary(group, context.wall_ms()) for group in told.groups()]
    heads = "GROUP MODE MEMBERS> LAG> LEASED> WAITING> OLDEST>=oldest_seconds:seconds TOPICS"
    context.printer.answer(
        Answer(
            kind="GroupList",
            fields={"groups": items, **told.source},
            tables=[Table.of(heads, items)],
            items=items,
            names=[f"group/{item['group']}" for item in items],
        )
    )
    return Exit.OK


def _summary(group: Fields, now_ms: int) -> Fields:
    numbers = {name: whole(group, name) or 0 for name in ("members", "lag", "leased", "waiting")}
    topics = group.get("topics")
    return {
        "group": text(group, "name"),
        "mode": text(group, "mode"),
        **numbers,
        "oldest_seconds": _oldest(group, now_ms),
        "topics": topics if isinstance(topics, list) else [],
    }


def _oldest(group: Fields, now_ms: int) -> float | None:
    """How long ago the first unsettled message was stored; None: all are settled, or not known."""
    stored = whole(group, "oldest_ms")
    return None if stored is None else max(0, now_ms - stored) / 1000


def show(name: str, /, *, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """Show one group: its settings, and queue by queue what is left to handle.

    LOW is the first message that is not acknowledged, NEXT the first that was never handed out.

    Args:
        name: Its name.
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _show(name, context), watch=watch)


def _show(name: str, context: Context) -> int:
    with waiting_client(context) as client:
        told = Told(context, client)
        found = told.document(name)
    queues, people = _queues(found), _people(found)
    settings = table(found.get("settings"))
    lag = whole(found, "lag") or 0
    heads = "TOPIC QUEUE> LOW> NEXT> END> LAG> LEASED> WAITING>"
    if any(queue["name"] for queue in queues):
        heads = f"NAME {heads}"
    said: list[tuple[Cell, ...]] = [(key, _said(value)) for key, value in settings.items()]
    context.printer.answer(
        Answer(
            kind="Group",
            fields={
                "group": name,
                **{key: whole(found, key) or 0 for key in ("lag", "leased", "waiting")},
                "oldest_seconds": _oldest(found, context.wall_ms()),
                **told.source,
                "settings": settings,
                "queues": queues,
                "members": people,
            },
            head=f"{name} · {text(found, 'mode')} · {members_of(people)} · {lag} to handle",
            tables=[
                Table.of(heads, queues),
                Table(columns("SETTING VALUE"), said, title="Settings"),
            ],
            items=queues,
            names=[f"group/{name}"],
            next=f"twinlog group members {name}",
        )
    )
    return Exit.OK


def members_of(people: Sequence[object]) -> str:
    """Say how many members there are.

    >>> members_of([1])
    '1 member'
    """
    return f"{len(people)} member{'' if len(people) == 1 else 's'}"


def _said(value: object) -> Cell:
    match value:
        case None | str() | int():
            return value
        case list():  # pauses
            return " ".join(_pause(one) for one in cast("list[object]", value)) or None
        case dict():
            said = table(cast("object", value)).items()
            return "; ".join(f"{key}: {one}" for key, one in said) or None
        case _:
            return str(value)


def _pause(value: object) -> str:
    if not isinstance(value, int):
        return str(value)
    return format_duration(value / 1000).replace(" ", "")


def _queues(found: Fields) -> list[Fields]:
    numbers = ("queue", "low", "next", "end", "lag", "leased", "waiting")
    return [
        {
            "name": text(one, "name") or "",
            "topic": text(one, "topic"),
            **{name: whole(one, name) or 0 for name in numbers},
        }
        for one in tables(found.get("queues"))
    ]


def _people(found: Fields) -> list[Fields]:
    people: list[Fields] = []
    for one in tables(found.get("people")):
        heard = whole(one, "heard_ms")
        people.append(
            {
                "member": str(whole(one, "member") or 0),
                "name": text(one, "name") or None,
                "address": text(one, "address") or None,
                "heard_seconds": None if heard is None else heard / 1000,
                "leased": whole(one, "leased") or 0,
            }
        )
    return people


def members(name: str, /, *, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """List the members of a group: who handles its messages now.

    Args:
        name: Its name.
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _members(name, context), watch=watch)


def _members(name: str, context: Context) -> int:
    with waiting_client(context) as client:
        told = Told(context, client)
        people = _people(told.document(name))
    context.printer.answer(
        Answer(
            kind="GroupMembers",
            fields={"group": name, "members": people, **told.source},
            tables=[Table.of("MEMBER NAME ADDRESS HEARD>=heard_seconds:seconds LEASED>", people)],
            items=people,
            names=[f"member/{one['member']}" for one in people],
        )
    )
    return Exit.OK


def wait(name: str, /, *, lag: int = 0, context: Annotated[Context, PRIVATE]) -> int:
    """Wait until a group has little left to handle; exit 1 at the time limit.

    Args:
        name: Its name.
        lag: At most this many.
    """
    if lag < 0:
        raise Failure(Exit.USAGE, f"--lag is {lag}; it must be at least 0")
    began = context.clock()
    with waiting_client(context) as client:
        while True:
            found = whole(document(client, name), "lag") or 0
            if found <= lag or context.over(LOOK_SECONDS):
                break
            time.sleep(LOOK_SECONDS)
    done = found <= lag
    seconds = context.clock() - began
    what = f"{name} has {found} messages to handle"
    context.printer.answer(
        Answer(
            kind="GroupWait",
            fields={"group": name, "lag": found, "done": done, "seconds": round(seconds, 3)},
            head=what if done else f"{what} after {format_duration(seconds)}, not {lag}",
        )
    )
    return Exit.OK if done else Exit.NO

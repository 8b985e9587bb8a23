"""``twinlog timer list`` and ``show``: messages that wait for a time.

The master tells, or, while none answers, the node that knows most; then the answer says how old
that is. Taking one back is ``twinlog message cancel`` (`cli.message.send`).

Not here: what waits in a directory without a node (`cli.log.contents`).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from cyclopts import Parameter

from cli.answer import Answer, Cell, Table, Time, columns, rfc3339
from cli.cluster.patience import waiting_client
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, rows, tables, text, whole
from cli.group.answers import Told
from cli.message.read import normal_address
from cli.parsing import PRIVATE
from cli.watch import Watch, repeat
from twinlog.errors import OffsetGone, UsageError
from twinlog.format.system_topics import TIMER_TOPIC
from twinlog.format.waiting.timers import keys_of
from twinlog.producer.later import at_ms
from twinlog.wire.frames import Type

LINES_DEFAULT = 100
"""Lines that one call shows, unless it says otherwise."""
PAGE = 500
"""Messages that are asked for at a time."""
HEADS = "ADDRESS DUE=due_ms:time TOPIC QUEUE> KEY SIZE>=bytes:size +STORED=stored_ms:time"
WIDTH_MS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000}


class By(StrEnum):
    """What messages are counted by."""

    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"


def list_timers(
    topic: str | None = None,
    /,
    *,
    by: By | None = None,
    since: str | None = None,
    count: Annotated[int, Parameter(name=["--count", "-n"])] = LINES_DEFAULT,
    watch: Watch = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """List the messages that wait for a time, those that come next first.

    ADDRESS is where a message waits now: ``timer show``, ``message get`` and ``message cancel``
    take it. While no master answers, another node tells what it knew, and how long ago. With a
    topic, every message that waits is looked at.

    Args:
        topic: Only what will be delivered to this topic.
        by: ``second``, ``minute`` or ``hour``: how many messages are due in each, not which.
        since: Only what is due at this time or later: ``2026-12-24T18:00Z``.
        count: At most this many lines, the first ones; what comes after is said.
        watch: Show it again every 2 s, until Ctrl-C.
    """
    if count < 1:
        raise Failure(Exit.USAGE, f"--count is {count}; it must be at least 1")
    try:
        first = 0 if since is None else at_ms(since)
    except UsageError:
        hints = ("write it as 2026-12-24T18:00Z",)
        raise Failure(Exit.USAGE, f'"{since}" is not a time', hints=hints) from None
    return repeat(context, lambda: _list(topic, by, first, count, context), watch=watch)


def _list(topic: str | None, by: By | None, first: int, count: int, context: Context) -> int:
    with waiting_client(context) as client:
        waits = _Waits(Told(context, client, Type.WAITING))
        if by is None:
            found = waits.take(waits.messages(first, topic, count + 1), count + 1)
        elif topic is None:
            found = waits.take(waits.counts(by.value, first), count + 1)
        else:
            found = waits.take(_counted(waits.messages(first, topic, PAGE), by), count + 1)
        answer = _answer(waits, found, count, topic, by)
    if len(found) > count:
        at = rfc3339(whole(found[count], "due_ms" if by is None else "time_ms") or 0)
        words = [*([topic] if topic else []), *([f"--by {by}"] if by else [])]
        rest = " ".join(["twinlog timer list", *words, f"--since {at}"])
        context.printer.note(f"there is more: {rest}")
    context.printer.answer(answer)
    return Exit.OK


def _answer(
    waits: _Waits, found: list[Fields], count: int, topic: str | None, by: By | None
) -> Answer:
    items, more = found[:count], len(found) > count
    fields: Fields = {"topic": topic, "waiting": waits.waiting, "more": more, **waits.told.source}
    head = "" if waits.waiting is None else f"{waits.waiting} messages wait for a time"
    if by is not None:
        return Answer(
            kind="TimerCounts",
            fields={**fields, "by": by.value, "counts": items},
            head=head,
            tables=[Table.of("TIME=time_ms:time MESSAGES>", items)],
            items=items,
            names=[rfc3339(whole(one, "time_ms") or 0) for one in items],
        )
    return Answer(
        kind="TimerList",
        fields={**fields, "messages": items},
        head=head,
        tables=[Table.of(HEADS, items)],
        items=items,
        names=[str(one["address"]) for one in items],
    )


class _Waits:
    """Asks page after page.

    Attributes:
        told: Who is asked.
        waiting: How many messages wait in all; None: no node was asked yet.
    """

    def __init__(self, told: Told) -> None:
        self.told = told
        self.waiting: int | None = None

    @staticmethod
    def take(found: Iterator[Fields], most: int) -> list[Fields]:
        """Return the first ones; no further page is asked for."""
        return [one for _, one in zip(range(most), found, strict=False)]

    def messages(self, first: int, topic: str | None, limit: int) -> Iterator[Fields]:
        """Yield what is due at a time or later, in its order."""
        key: tuple[int, int] | None = (first, -1)
        while key is not None:
            fields: Fields = {"what": "timers", "first": key[0], "offset": key[1]}
            fields["limit"] = PAGE if topic is not None else min(limit, PAGE)
            answer = self._ask({**fields, "topic": topic})
            yield from map(_item, tables(answer.get("messages")))
            after, offset = whole(answer, "next"), whole(answer, "next_offset")
            key = None if after is None or offset is None else (after, offset)

    def counts(self, by: str, first: int) -> Iterator[Fields]:
        """Yield how many are due in each second, minute or hour from a time on."""
        after = first
        while after >= 0:
            answer = self._ask({"what": "times", "by": by, "first": after, "limit": PAGE})
            for at, messages in rows(answer.get("counts")):
                yield {"time_ms": at, "messages": messages}
            following = whole(answer, "next")
            after = -1 if following is None else following

    def _ask(self, fields: Fields) -> Fields:
        answer = self.told.ask(fields)
        self.waiting = whole(answer, "waiting")
        return answer


def _counted(messages: Iterator[Fields], by: By) -> Iterator[Fields]:
    """Yield how many of the messages, which come in order, are due in each stretch of time."""
    width, at, count = WIDTH_MS[by.value], -1, 0
    for one in messages:
        due = whole(one, "due_ms") or 0
        begin = due // width * width
        if begin != at and count:
            yield {"time_ms": at, "messages": count}
            count = 0
        at, count = begin, count + 1
    if count:
        yield {"time_ms": at, "messages": count}


def _item(one: Fields) -> Fields:
    names = ("due_ms", "log_offset", "queue", "stored_ms", "born_ms", "bytes")
    return {
        "address": f"log@{whole(one, 'at') or 0}",
        "topic": text(one, "topic"),
        **{name: whole(one, name) for name in names},
        "key": text(one, "key"),
        "tag": text(one, "tag"),
    }


def show(address: str, /, *, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """Show one message that waits for a time, or that it waits no more.

    Exit code 1: it waits no more, because it was delivered or taken back.

    Args:
        address: What ``timer list`` shows, or ``message send`` with ``--delay`` or ``--at``.
        watch: Show it again every 2 s, until Ctrl-C.
    """
    wanted = normal_address(address)
    return repeat(context, lambda: _one(wanted, context), watch=watch)


def _one(wanted: str, context: Context) -> int:
    with waiting_client(context) as client:
        try:
            message = client.get(wanted, read_from="any")
        except OffsetGone as error:
            hints = ("what still waits is in another record by now: twinlog timer list",)
            raise Failure(Exit.MISSING, str(error), hints=hints) from None
        keys = keys_of(message.properties, message.store_timestamp, message.log_offset)
        if message.topic != TIMER_TOPIC or not keys:
            hints = ("name what timer list shows",)
            text_ = f"what is stored at {wanted} waits for no time"
            raise Failure(Exit.USAGE, text_, hints=hints)
        told = Told(context, client, Type.WAITING)
        found = next((one for key in keys if (one := _waiting(told, *key)) is not None), None)
    _show(wanted, found, told, context)
    return Exit.NO if found is None else Exit.OK


def _waiting(told: Told, due: int, offset: int) -> Fields | None:
    """Return the message with that key; None: it does not wait."""
    fields: Fields = {"what": "timers", "first": due, "offset": offset - 1, "limit": 1}
    for one in tables(told.ask(fields).get("messages")):
        if whole(one, "due_ms") == due and whole(one, "log_offset") == offset:
            return _item(one)
    return None


def _show(address: str, found: Fields | None, told: Told, context: Context) -> None:
    if found is None:
        head = f"{address}  waits no more: it was delivered or taken back"
        fields: Fields = {"address": address, "waits": False, **told.source}
        context.printer.answer(Answer(kind="Timer", fields=fields, head=head, names=[address]))
        return
    due, left = whole(found, "due_ms") or 0, (whole(found, "due_ms") or 0) - context.wall_ms()
    lines: list[tuple[Cell, ...]] = [
        ("due", Time(due)),
        ("to", f"{found['topic']}/{found['queue']}"),
        ("key", text(found, "key")),
        ("tag", text(found, "tag")),
        ("stored", Time(whole(found, "stored_ms") or 0)),
        ("body", f"{whole(found, 'bytes') or 0} bytes"),
    ]
    context.printer.answer(
        Answer(
            kind="Timer",
            fields={**found, "waits": True, "left_seconds": left / 1000, **told.source},
            head=f"{found['address']}  is delivered at {rfc3339(due)}",
            tables=[Table(columns("WHAT VALUE"), lines)],
            items=[found],
            names=[str(found["address"])],
            next=f"twinlog message cancel {found['address']}",
        )
    )

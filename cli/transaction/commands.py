"""``twinlog transaction list``, ``show``, ``commit`` and ``rollback``."""

from __future__ import annotations

from typing import Annotated

from cli.answer import Answer, Table
from cli.cluster.patience import waiting_client
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields
from cli.parsing import PRIVATE, Yes
from cli.transaction.answers import Open, Opens
from cli.watch import Watch, repeat
from twinlog.client.blocking import Client
from twinlog.client.checks import delivered
from twinlog.errors import TransactionSettled
from twinlog.format.group_rows import COMMIT, ROLLBACK
from twinlog.format.waiting.halves import HALVES_MAX
from twinlog.units import UnitError, format_duration, parse_duration
from twinlog.wire.frames import Type

SHOWN_MAX = 100
"""Messages of one transaction that are looked up to be shown."""
_HEADS = (
    "HALF> GROUP MESSAGES> SIZE>=size_bytes:size AGE>=open_seconds:seconds CHECKS> "
    "NEXT>=next_check_seconds:seconds TRANSACTION"
)


def list_transactions(
    *, older: str | None = None, watch: Watch = False, context: Annotated[Context, PRIVATE]
) -> int:
    """List the transactions that nothing has ended, oldest first.

    HALF is the number of the first message that waits, by which the other commands know the
    transaction. CHECKS is how often its producers were asked what became of it, NEXT when they are
    asked again; ``-``: it is given up next. While no master answers, another node tells what it
    knew, and how long ago.

    Args:
        older: Only those that are open for longer, as ``10m``.
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _list(context, _seconds(older)), watch=watch)


def _seconds(older: str | None) -> float:
    try:
        return 0.0 if older is None else parse_duration(older)
    except UnitError as error:
        text = f'--older is "{older}", which is not a duration'
        raise Failure(Exit.USAGE, text, hints=(error.hint,)) from None


def _list(context: Context, seconds: float) -> int:
    with waiting_client(context) as client:
        opens = Opens(context, client)
    border = opens.now_ms - round(seconds * 1000)
    items = [one.item(opens.now_ms) for one in opens.all if one.stored_ms <= border or not seconds]
    context.printer.answer(
        Answer(
            kind="TransactionList",
            fields={"transactions": items, **opens.told.source},
            tables=[Table.of(_HEADS, items)],
            items=items,
            names=[f"transaction/{item['half']}" for item in items],
        )
    )
    return Exit.OK


def show(half: str, /, *, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """Show one open transaction with its messages, the first 100.

    Args:
        half: The number of one of its messages, or its name.
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _show(half, context), watch=watch)


def _show(half: str, context: Context) -> int:
    with waiting_client(context) as client:
        opens = Opens(context, client)
        one = opens.named(half)
        item, messages = one.item(opens.now_ms), _messages(client, one)
    heads = "HALF> TOPIC QUEUE> KEY TAG SIZE>=size_bytes:size ADDRESS"
    context.printer.answer(
        Answer(
            kind="Transaction",
            fields={**item, **opens.told.source, "shown": messages},
            head=_said(one, opens.now_ms),
            tables=[Table.of(heads, messages)],
            items=messages,
            names=[f"transaction/{item['half']}"],
        )
    )
    return Exit.OK


def _messages(client: Client, one: Open) -> list[Fields]:
    found: list[Fields] = []
    for number, place in list(zip(one.numbers, one.places, strict=True))[:SHOWN_MAX]:
        message = delivered(client.get(f"log@{place}", read_from="any"))
        found.append(
            {
                "half": number, "topic": message.topic, "queue": message.queue,
                "key": message.key, "tag": message.tag, "size_bytes": len(message.body),
                "address": f"log@{place}",
            }
        )  # fmt: skip
    return found


def commit(half: str, /, *, yes: Yes = False, context: Annotated[Context, PRIVATE]) -> int:
    """Deliver all messages of an open transaction, as its producer would have.

    Nothing takes that back. Exit code 1: it has ended otherwise meanwhile.

    Args:
        half: The number of one of its messages, or its name.
        yes: Do not ask.
    """
    return _end(half, COMMIT, context, yes=yes)


def rollback(half: str, /, *, yes: Yes = False, context: Annotated[Context, PRIVATE]) -> int:
    """Have no message of an open transaction delivered, as its producer would have.

    Nothing takes that back. Exit code 1: it has ended otherwise meanwhile.

    Args:
        half: The number of one of its messages, or its name.
        yes: Do not ask.
    """
    return _end(half, ROLLBACK, context, yes=yes)


def _end(half: str, outcome: int, context: Context, *, yes: bool) -> int:
    verb, done = ("Commit", "committed") if outcome == COMMIT else ("Roll back", "rolled back")
    with waiting_client(context) as client:
        opens = Opens(context, client)
        if opens.told.node is not None:
            text = "no master answers: transactions are ended by the master"
            raise Failure(Exit.UNAVAILABLE, text, hints=("look again: twinlog cluster status",))
        one = opens.named(half)
        context.printer.note(_said(one, opens.now_ms))
        if len(one.numbers) > HALVES_MAX:
            text = f"it has {len(one.numbers)} messages; {HALVES_MAX} end together at most"
            raise Failure(Exit.NO, text)
        question = f"{verb} this transaction of producer group {one.group}?"
        if not context.confirm(question, yes=yes):
            return Exit.NO
        fields: Fields = {
            "group": one.group, "halves": one.numbers, "outcome": outcome, "why": "an order, cli",
        }  # fmt: skip
        try:
            client.call("master", Type.END, fields)
        except TransactionSettled as error:
            text = f"{error.text}; nothing was changed"
            raise Failure(Exit.NO, text) from None
    item = one.item(opens.now_ms)
    del item["next_check_seconds"]
    context.printer.answer(
        Answer(
            kind="TransactionEnd",
            fields={**item, "outcome": done},
            head=f"transaction {item['half']} of {one.group}: {done}",
            names=[f"transaction/{item['half']}"],
            next="twinlog transaction list",
        )
    )
    return Exit.OK


def _said(one: Open, now_ms: int) -> str:
    """Return what it is, in a line."""
    age = format_duration(max(0, now_ms - one.stored_ms) / 1000)
    many = f"{len(one.numbers)} message{'s' * (len(one.numbers) != 1)}"
    return (
        f"transaction {one.name} of producer group {one.group}: {many}, open for {age}, "
        f"asked about {one.checks} times"
    )

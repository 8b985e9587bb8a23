"""``twinlog message``: read, follow, get one.

A read ends at the end of each queue unless it follows; Ctrl-C while following is the ordinary end
of it (exit 130).

Not here: sending (`cli.message.send`), finding by key (`cli.message.find`), the grammar of
``--range`` (``twinlog.ranges``), of ``--format`` (``cli.message.format``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated

from cyclopts import Parameter

from cli.answer import Answer, Cell, Table, Time, columns
from cli.cluster.patience import waiting_client
from cli.cluster.topic import require
from cli.context import Context
from cli.failures import Exit, Failure
from cli.message.format import as_fields, headers, parse_format
from cli.options import Output
from cli.parsing import PRIVATE
from twinlog.client.arguments import Duration
from twinlog.client.blocking import Client
from twinlog.consumer.blocking import Messages
from twinlog.consumer.core import Source, parse_where
from twinlog.errors import UnknownTopic
from twinlog.format.messages import Message
from twinlog.units import UnitError, format_duration, parse_duration
from twinlog.wire.schema import AGE_UNKNOWN_MS

OLD_MS = 5000
"""From this age of a slave's data on a note says how old it is, ms: what nodes serve unasked."""

FOLLOW_SECONDS = 365 * 86400.0
"""Of a read that follows: how long there may be no progress, once it has begun."""


def read(
    topic: str,
    /,
    *,
    range_: str = "start:",
    queue: int | None = None,
    key: str | None = None,
    tag: str | None = None,
    where: str | None = None,
    from_: str = "any",
    stale_ok: str | None = None,
    count: Annotated[int | None, Parameter(name=["--count", "-n"])] = None,
    follow: bool = False,
    format_: str | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Read messages of a range, oldest first in each queue.

    Ranges: ``start``, ``end``, ``100:``, ``100:200``, ``:200``, ``-100:`` (the last hundred),
    ``+100`` (the first hundred), ``@2026-11-21T10:00Z:``, ``@-1h:``, ``@-2h:-1h``. A range that
    begins with a dash is written ``--range=-100:``.

    Formats: %t topic, %q queue, %o queue offset, %O log offset, %k key, %g tag, %v body,
    %h headers, %d time, %s size, %n line end; %v{hex} %v{base64} %v{json} %d{iso} %d{unix}.

    Args:
        topic: Which topic.
        range_: Which part of each queue.
        queue: Only this queue.
        key: Only messages with this key.
        tag: Only messages with this tag; several as ``"a || b"``.
        where: Only messages whose properties match, as in ``"price > 9 AND region IN ('EU')"``.
        from_: ``any``, ``master``, ``slave`` or a node's name.
        stale_ok: Read a copy without a master, this old at most, as ``10m``; alone: however old.
        count: At most this many.
        follow: Go on with messages that come.
        format_: How each one is printed.
    """
    formatted = parse_format(format_) if format_ is not None else None
    parse_where(where)  # a mistake in it is reported before any node is asked
    if count is not None and count < 0:
        raise Failure(Exit.USAGE, f"--count is {count}; it must be at least 0")
    context.check_reader(from_)
    shown, noted = 0, False
    with waiting_client(context) as client:
        found = client.read(
            topic, range_, queue=queue, tag=tag, where=where, read_from=from_,
            limit=_limit(count, key), follow=follow, timeout=FOLLOW_SECONDS if follow else None,
            max_staleness=accepted(stale_ok),
        )  # fmt: skip
        for message in _of_a_topic(found, client, topic, context):
            noted = noted or note_source(found.source, context)
            if key is not None and key not in (message.key or "").split(" "):
                continue
            show_one(message, formatted, context, first=not shown)
            shown += 1
            if count is not None and shown >= count:
                break
        noted = noted or note_source(found.source, context)
    return Exit.OK


def accepted(stale_ok: str | None) -> Duration | None:
    """Return how old the data may be, as the client takes it.

    Raises:
        Failure: It is not a duration (exit 64).
    """
    if stale_ok is None or stale_ok == "any":
        return stale_ok
    try:
        return parse_duration(stale_ok)
    except UnitError:
        text = f'--stale-ok is "{stale_ok}", which is not a duration'
        hints = ("write an age such as 30s or 10m, or --stale-ok alone for any age",)
        raise Failure(Exit.USAGE, text, hints=hints) from None


def note_source(source: Source, context: Context) -> bool:
    """Note how old the data is, where newer messages may exist elsewhere; always True."""
    if not source.settled:
        context.printer.note(
            f"{source.node} has not heard from an in-sync member for {_age(source)}: "
            "another node may be master by now, and newer messages may exist there"
        )
    elif source.role != "master" and source.age_ms >= OLD_MS:
        context.printer.note(
            f"{source.node}, a slave, has not heard from its master for {_age(source)}: "
            "newer messages may exist"
        )
    return True


def _age(source: Source) -> str:
    if source.age_ms >= AGE_UNKNOWN_MS:
        return "an unknown time"
    return format_duration(source.age_ms / 1000)


def _limit(count: int | None, key: str | None) -> int | None:
    """What may be left to the client: with a key, fewer match than are read."""
    return count if key is None or count == 0 else None


def _of_a_topic(found: Messages, client: Client, topic: str, context: Context) -> Iterator[Message]:
    """Yield what was found; for a topic that does not exist name the nearest one.

    The names are not asked for before: a slave serves while there is no master.
    """
    try:
        yield from found
    except UnknownTopic as error:
        if error.code == "unknown-topic":
            require(client, topic, timeout=context.left())
        raise


def show_one(
    message: Message, formatted: Callable[[Message], str] | None, context: Context, *, first: bool
) -> None:
    """Print one message as ``--format`` says, or as a line."""
    if formatted is not None:
        context.printer.text(formatted(message))
    else:
        show_line(message, context, first=first)


def show_line(message: Message, context: Context, *, first: bool) -> None:
    """Print one message of several; ``first`` may be preceded by a heading."""
    printer = context.printer
    match context.options.output:
        case Output.JSON | Output.JSONL | Output.YAML:
            printer.item(as_fields(message))
        case Output.NAME:
            printer.line(f"{message.topic}/{message.queue}@{message.queue_offset}")
        case Output.TSV:
            if first:
                printer.line("queue\toffset\tkey\ttag\tbody")
            body = message.body.decode("utf-8", "replace")
            cells = (str(message.queue), str(message.queue_offset), message.key or "-",
                     message.tag or "-", body)  # fmt: skip
            printer.line("\t".join(re.sub(r"[\t\r\n]", " ", cell) for cell in cells))
        case Output.TABLE | Output.WIDE | Output.SCHEMA:
            where = f"{message.queue}@{message.queue_offset}"
            marks = " ".join(part for part in (message.tag, message.key) if part)
            body = message.body.decode("utf-8", "replace")
            if printer.terminal:  # a message must not steer the terminal
                body = "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in body)
            printer.line(f"{where:<10} {marks:<12} {body}".rstrip())


def tail(
    topic: str,
    /,
    *,
    count: Annotated[int, Parameter(name=["--count", "-n"])] = 10,
    tag: str | None = None,
    where: str | None = None,
    from_: str = "any",
    stale_ok: str | None = None,
    format_: str | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show the last messages of each queue, and go on with those that come; Ctrl-C ends it.

    Args:
        topic: Which topic.
        count: How many of each queue to begin with, before anything is filtered.
        tag: Only messages with this tag; several as ``"a || b"``.
        where: Only messages whose properties match; see message read.
        from_: ``any``, ``master``, ``slave`` or a node's name.
        stale_ok: Read a copy without a master, this old at most, as ``10m``; alone: however old.
        format_: How each one is printed; see message read.
    """
    return read(
        topic, range_=f"-{count}:", tag=tag, where=where, from_=from_, stale_ok=stale_ok,
        follow=True, format_=format_, context=context,
    )  # fmt: skip


ADDRESS = re.compile(r"(?P<topic>[^/@]+)/(?P<queue>\d+)@(?P<offset>\d+)|log@(?P<log>\d+)")
MESSAGE_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")


def get(
    address: str,
    /,
    *,
    from_: str = "master",
    stale_ok: str | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show one message with all its addresses.

    Args:
        address: ``topic/queue@offset``, ``log@offset``, or a message id.
        from_: ``master``, ``any``, ``slave`` or a node's name.
        stale_ok: Read a copy without a master, this old at most, as ``10m``; alone: however old.
    """
    wanted = normal_address(address)
    context.check_reader(from_)
    with waiting_client(context) as client:
        message = client.get(wanted, read_from=from_, max_staleness=accepted(stale_ok))
    rows: list[tuple[Cell, ...]] = [
        ("topic", message.topic),
        ("queue", message.queue),
        ("queue offset", message.queue_offset),
        ("log offset", message.log_offset),
        ("message id", message.record.message_id),
        ("unique id", message.record.unique_id),
        ("key", message.key),
        ("tag", message.tag),
        *((f"header {name}", value) for name, value in sorted(headers(message).items())),
        ("born", Time(message.born_timestamp)),
        ("stored", Time(message.store_timestamp)),
        ("size", len(message.body)),
    ]
    context.printer.answer(
        Answer(
            kind="Message",
            fields={
                **{k: v for k, v in as_fields(message).items() if k not in ("kind", "version")},
                "message_id": message.record.message_id,
                "unique_id": message.record.unique_id,
            },
            tables=[Table(columns("FACT VALUE"), rows)],
            tail="" if context.printer.machine else message.body.decode("utf-8", "replace"),
            names=[f"{message.topic}/{message.queue}@{message.queue_offset}"],
        )
    )
    return Exit.OK


def normal_address(address: str) -> str:
    """Return an address that the client takes; other texts are refused.

    A message id is RocketMQ's: host and port (8 or 20 bytes) and the log offset (8), in hex.

    Raises:
        Failure: It has none of the three forms (exit 64).

    >>> normal_address("7f00000100002a9f0000000000001000")
    '7F00000100002A9F0000000000001000'
    """
    if ADDRESS.fullmatch(address):
        return address
    if MESSAGE_ID.fullmatch(address):
        return address.upper()
    raise Failure(
        Exit.USAGE,
        f'"{address}" is not the address of a message',
        hints=("write topic/queue@offset, log@offset or a message id of 32 hex digits",),
    )


__all__ = ["MESSAGE_ID", "get", "normal_address", "read", "show_line", "tail"]

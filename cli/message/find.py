"""``twinlog message find``: messages by key, by unique id or by message id, newest first.

The node looks in its key index and compares each hit with the record, so what is shown has the key.
Ids: a unique id is what a producer gave its message (``UNIQ_KEY``); a message id is RocketMQ's,
store host and log offset in hex. Both have 32 digits as a rule, so ``--id`` tries the first, then
the second.

Not here: reading a range (`cli.message.read`), the search (``storage.key_index.search``).
"""

from __future__ import annotations

import re
import time
from typing import Annotated

from cyclopts import Parameter

from cli.cluster.patience import waiting_client
from cli.context import Context, accepted, note_source
from cli.failures import Exit, Failure
from cli.message.format import parse_format
from cli.message.read import MESSAGE_ID, show_line
from cli.parsing import PRIVATE
from cli.topic import require
from twinlog.client.arguments import Duration
from twinlog.client.blocking import Client
from twinlog.client.search import FOUND_DEFAULT, Finding
from twinlog.consumer.core import Source
from twinlog.errors import UnknownTopic, UsageError
from twinlog.format.messages import Message
from twinlog.ranges import parse_range


def find(
    topic: str,
    /,
    *,
    key: str | None = None,
    id_: str | None = None,
    since: str | None = None,
    until: str | None = None,
    max_: Annotated[int, Parameter(name=["--max", "-n"])] = FOUND_DEFAULT,
    from_: str = "master",
    stale_ok: str | None = None,
    format_: str | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Find messages by key or id, newest first; exit 1 when none has the key.

    Times: ``2026-11-21T10:00Z`` or ``-1h`` (written ``--since=-1h``); when a message was stored.

    Args:
        topic: Which topic.
        key: One of the keys a message was sent with.
        id_: A unique id, or a message id of 32 or 56 hex digits.
        since: Stored at or after this time.
        until: Stored at or before this time.
        max_: At most this many.
        from_: ``master``, ``slave``, ``any`` or a node's name.
        stale_ok: Read a copy without a master, this old at most, as ``10m``; alone: however old.
        format_: How each one is printed; see message read.
    """
    if (key is None) == (id_ is None):
        raise Failure(Exit.USAGE, "message find looks for --key or for --id, one of them")
    formatted = parse_format(format_) if format_ is not None else None
    now = time.time_ns() // 1_000_000
    begin = 0 if since is None else _moment(since, now)
    end = None if until is None else _moment(until, now)
    context.check_reader(from_)
    age = accepted(stale_ok)
    with waiting_client(context) as client:
        try:
            found = client.find(
                topic, key or id_ or "", begin=begin, end=end, most=max_, unique=key is None,
                read_from=from_, max_staleness=age,
            )  # fmt: skip
        except UnknownTopic:
            require(client, topic, timeout=context.left())  # names the closest topic
            raise
        messages = list(found)
        if id_ is not None and not messages and MESSAGE_ID.fullmatch(id_):
            messages = _by_message_id(client, topic, id_, from_, age)
    for number, message in enumerate(messages):
        if formatted is not None:
            context.printer.text(formatted(message))
        else:
            show_line(message, context, first=not number)
    return _outcome(messages, found, f"key {key}" if key else f"id {id_}", topic, context)


def _outcome(
    messages: list[Message], found: Finding, what: str, topic: str, context: Context
) -> int:
    """Say what the messages do not say."""
    note_source(Source(found.node, found.role, found.age_ms), context)
    if not found.complete:
        context.printer.note(
            "the search ended early: the index holds too many entries of that key; "
            "narrow it with --since"
        )
    if messages:
        return Exit.OK
    if not found.complete:
        return Exit.UNDECIDED
    if what.startswith("id "):
        raise Failure(Exit.MISSING, f"no message of {topic} has the {what}")
    context.printer.note(f"no message of {topic} has the {what}")
    return Exit.NO


def _by_message_id(
    client: Client, topic: str, address: str, read_from: str, age: Duration | None
) -> list[Message]:
    """Return the message that a message id names, if it is one of ``topic``."""
    try:
        message = client.get(address, read_from=read_from, max_staleness=age)
    except UsageError as error:
        if error.code in ("none", "other-host"):
            return []
        raise
    return [message] if message.topic == topic else []


def _moment(text: str, now: int) -> int:
    """Return a time, ms since 1970.

    Raises:
        Failure: It is not a time (exit 64).
    """
    word = re.sub(r"^@", "", text)
    try:
        at = parse_range(f"@{word}:").first.at_ms(now)
    except UsageError:
        at = None
    if at is None:
        raise Failure(
            Exit.USAGE, f'"{text}" is not a time', hints=("write 2026-11-21T10:00Z or -1h",)
        )
    return at


__all__ = ["find"]

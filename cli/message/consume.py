"""``twinlog message consume``: handle messages of a group, one command for each, or look at them.

Not here: groups (`cli.group`), reading without a group (`cli.message.read`).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from cli.cluster.patience import waiting_client
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import table, text
from cli.group.answers import document
from cli.message.format import parse_format
from cli.message.read import FOLLOW_SECONDS, show_one
from cli.parsing import PRIVATE
from cli.topic import require
from twinlog.client.arguments import ConsumeFields
from twinlog.client.blocking import Client
from twinlog.groups.blocking import Consumer
from twinlog.groups.delivery import Delivery
from twinlog.groups.settings import SHARED
from twinlog.units import UnitError, parse_duration

WAIT_SECONDS = 1.0
"""How long nothing may come before the end is taken to be reached."""

PEEK_COUNT = 10
"""Messages that ``--peek`` shows where nothing else is said; it holds all of them meanwhile."""

PEEK_MAX = 1000

EXTEND_PART = 3
"""A lease is extended each time a third of it has passed, while the command runs."""


def consume(
    topic: str,
    /,
    *,
    group: str,
    count: Annotated[int | None, Parameter(name=["--count", "-n"])] = None,
    follow: bool = False,
    peek: bool = False,
    exec_: str | None = None,
    invisible: str = "60s",
    format_: str | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Handle the messages of a group: print and acknowledge each, or run a command for it.

    With ``--exec`` the body is the command's stdin; ``TWINLOG_ADDRESS``, ``_TOPIC``, ``_KEY``,
    ``_TAG`` and ``_ATTEMPT`` are set. A command that ends with 0 acknowledges; another one comes
    again after the group's pause. Exit 1: a command failed.

    Args:
        topic: Which topic.
        group: Which group; one that does not exist is made, and begins at the end (``--peek`` makes
            none).
        count: At most this many.
        follow: Go on with messages that come.
        peek: Show the next messages and give them back; nothing is counted.
        exec_: Run this for each message, by the shell.
        invisible: How long a lease is.
        format_: How each one is printed; see message read.
    """
    formatted = parse_format(format_) if format_ is not None else None
    _check(count, exec_, peek=peek, follow=follow)
    seconds = _lease(invisible)
    options: ConsumeFields = {"invisible": seconds, "batch": PEEK_MAX if peek else 64}
    if follow:
        options["timeout"] = FOLLOW_SECONDS
    shown, failed, most = 0, 0, PEEK_COUNT if peek and count is None else count
    with waiting_client(context) as client:
        require(client, topic)
        mode = _mode(client, group, peek=peek, context=context)
        with client.consumer(group, topic, mode=mode, **options) as consumer:
            held: list[Delivery] = []
            for message in _messages(consumer, most, exec_, follow=follow):
                if exec_ is None:
                    show_one(message.message, formatted, context, first=not shown)
                else:
                    failed += not _ran(exec_, message, seconds)
                shown += 1
                held += [message] if peek else []
                if not peek and not message.settled:
                    message.ack()
            for message in held:
                message.release()
            consumer.settle()
    if exec_ is not None:
        context.printer.note(f"{shown - failed} handled, {failed} failed")
    return Exit.NO if failed else Exit.OK


def _mode(client: Client, group: str, *, peek: bool, context: Context) -> str:
    """Return the mode of a group; say where one begins that this command makes.

    Looking at a group makes none (exit 66).
    """
    try:
        return text(table(document(client, group).get("settings")), "mode") or SHARED
    except Failure as missing:
        if peek or missing.exit is not Exit.MISSING:
            raise
        context.printer.note(
            f"group {group} is new: it begins at the end, with what is sent from now on\n"
            f"  another beginning: twinlog group create {group} --start start"
        )
        return SHARED


def _messages(
    consumer: Consumer, most: int | None, exec_: str | None, *, follow: bool
) -> Iterator[Delivery]:
    """Yield at most ``most`` messages; with a command one at a time: none waits for another."""
    count = 0
    while most is None or count < most:
        room = 1 if exec_ is not None else min(64, 64 if most is None else most - count)
        found = consumer.pop(max=room, wait=WAIT_SECONDS)
        if not found and not follow:
            return
        count += len(found)
        yield from found


def _check(count: int | None, exec_: str | None, *, peek: bool, follow: bool) -> None:
    """Refuse options that make no sense together (exit 64)."""
    if count is not None and count < 1:
        raise Failure(Exit.USAGE, f"--count is {count}; it must be at least 1")
    if peek and (exec_ is not None or follow):
        raise Failure(Exit.USAGE, "--peek goes with neither --exec nor --follow")
    if peek and count is not None and count > PEEK_MAX:
        raise Failure(Exit.USAGE, f"--peek shows at most {PEEK_MAX} messages, not {count}")


def _lease(word: str) -> float:
    try:
        return parse_duration(word)
    except UnitError as error:
        text = f'--invisible is "{word}", which is not a duration'
        raise Failure(Exit.USAGE, text, hints=(error.hint,)) from None


def _ran(command: str, message: Delivery, seconds: float) -> bool:
    """Run the command, extending the lease meanwhile; a failed attempt is said to the group."""
    environment = {
        **os.environ,
        "TWINLOG_ADDRESS": message.address,
        "TWINLOG_TOPIC": message.topic,
        "TWINLOG_KEY": message.key or "",
        "TWINLOG_TAG": message.tag or "",
        "TWINLOG_ATTEMPT": str(message.attempt),
    }
    process = subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, env=environment)
    given: bytes | None = message.body
    try:
        while True:
            try:
                process.communicate(given, timeout=seconds / EXTEND_PART)
                break
            except subprocess.TimeoutExpired:
                given = None
                message.extend(seconds)
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode == 0:
        return True
    message.retry()
    return False


__all__ = ["consume"]

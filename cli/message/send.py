"""``twinlog message send``: one message, or one for each line.

A send ends as stored (0), not stored (69 and others) or unknown (75), and says which messages.
"""

from __future__ import annotations

import io
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO, cast

from cyclopts import Parameter

from cli.answer import Answer, Table
from cli.cluster.patience import waiting_client
from cli.context import Context
from cli.failures import Exit, Failure, Interrupted, describe
from cli.options import Output
from cli.parsing import PRIVATE
from twinlog.client.blocking import Client
from twinlog.errors import OutcomeUnknown, RecordRefused, TwinlogError
from twinlog.format.compression import parse_compression
from twinlog.format.messages import Receipt
from twinlog.format.waiting.delay_levels import delay_text
from twinlog.kernels.fields import DELAY_LEVELS_MS
from twinlog.producer.later import at_ms, delay_ms
from twinlog.producer.new_message import MessageFields, NewMessage
from twinlog.producer.section import Section
from twinlog.producer.settings import Statistics


class Acknowledge(StrEnum):
    """When a send counts as done."""

    WRITTEN = "written"
    FLUSHED = "flushed"
    REPLICATED = "replicated"
    CONFIRMED = "confirmed"


def send(
    topic: str,
    /,
    *,
    body: str | None = None,
    file: Path | None = None,
    lines: bool = False,
    key: str | None = None,
    tag: str | None = None,
    header: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    queue: int | None = None,
    light: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    delay_level: int | None = None,
    delay: str | None = None,
    at: str | None = None,
    ack: Acknowledge = Acknowledge.CONFIRMED,
    compress: str = "none",
    context: Annotated[Context, PRIVATE],
) -> int:
    """Store one message, or one for each line.

    The body comes from ``--body``, ``--file`` or stdin. A trailing line end of stdin is not part of
    the message.

    Args:
        topic: Which topic.
        body: The message itself.
        file: Take the body from this file, byte by byte.
        lines: One message for each line of stdin or of the file.
        key: Key to find it by.
        tag: Tag to filter by.
        header: A property as ``name=value``; repeatable.
        queue: Into this queue; default by turns.
        light: A light queue, ``%LMQ%name``, that it is entered in besides its own; repeatable.
        delay_level: It is delivered later: 1 to 18 for 1s 5s 10s 30s, 1m to 10m by minutes, 20m,
            30m, 1h, 2h after it was stored.
        delay: It is delivered that much later, to the millisecond: ``90s``, ``2h``; at most 365
            days.
        at: It is delivered at this time: ``2026-12-24T18:00Z``; without a zone it is UTC.
        ack: When it counts as done: ``written`` (in the master's log), ``flushed`` (on its disk),
            ``replicated`` (on one slave) or ``confirmed`` (on every node that is in sync).
        compress: ``none``, ``zlib``, ``lz4`` or ``zstd``, perhaps with a level (``zlib:9``): what
            is done to a body of 4 KiB or more; readers get it as it was.
    """
    bodies = _bodies(context, body, file, lines)
    said = MessageFields(
        key=key, tag=tag, properties=dict(_header(word) for word in header) or None, queue=queue,
        light=light, delay_level=delay_level, delay=delay, at=at,
    )  # fmt: skip
    NewMessage(**said).text()  # mistakes are reported before any node is asked
    parse_compression(compress)
    with waiting_client(context, timeout=_send_seconds(context)) as client:
        if lines:
            return _send_lines(client, topic, bodies, context, said, ack=ack, compress=compress)
        return _send_one(client, topic, next(iter(bodies)), context, said, ack, compress)


def _send_one(
    client: Client,
    topic: str,
    body: bytes,
    context: Context,
    said: MessageFields,
    ack: Acknowledge,
    compress: str,
) -> int:
    started = time.monotonic()
    try:
        receipt = client.send(topic, body, acknowledge=ack.value, compress=compress, **said)
    except OutcomeUnknown as error:
        raise _unknown(topic, said.get("key"), error) from error
    except KeyboardInterrupt:
        raise Interrupted(("the message may or may not be stored",)) from None
    _show_receipt(receipt, time.monotonic() - started, ack, context, said)
    return Exit.OK


def cancel(address: str, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Take back a message that waits for a time.

    Once it says so, the message will never be delivered. Exit code 1: it was delivered.

    Args:
        address: What ``message send`` with ``--delay`` or ``--at`` showed, or ``timer list``.
    """
    with waiting_client(context) as client:
        client.cancel(address)
    answer = Answer(
        kind="Cancelled", fields={"address": address}, head=f"{address}  will not be delivered",
        names=[address],
    )  # fmt: skip
    context.printer.answer(answer)
    return Exit.OK


def _unknown(topic: str, key: str | None, error: OutcomeUnknown) -> Failure:
    """The third outcome: it was sent, and no answer came in time."""
    look = f"find {topic} --key {key} --since=-5m" if key else f"read {topic} --range=@-5m:"
    return Failure(
        Exit.UNKNOWN,
        "the message may or may not be stored",
        facts=(error.text,),
        hints=(
            f"look for it: twinlog message {look}",
            "sending again is safe when consumers can bear a duplicate",
        ),
    )


def _send_seconds(context: Context) -> float | None:
    """A send waits 30 s by default, so that a failover by hand fits; ``--timeout`` wins."""
    return context.left() if context.options.timeout_given else 30.0


def _header(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise Failure(
            Exit.USAGE, f'--header is "{word}"; it is a name and a value', hints=("name=value",)
        )
    return name, value


def _bodies(context: Context, body: str | None, file: Path | None, lines: bool) -> Iterable[bytes]:
    if body is not None and (file is not None or lines):
        raise Failure(Exit.USAGE, "--body is one message; it excludes --file and --lines")
    if body is not None:
        return [body.encode("utf-8")]
    if lines:
        return _lines(context, file)
    if file is not None:
        return [file.read_bytes()]
    if context.stdin.isatty():
        context.printer.note("reading the message from the terminal; end it with Ctrl-D")
    return [re.sub(rb"\r?\n\Z", b"", _stdin(context).read())]


def _stdin(context: Context) -> BinaryIO:
    """What comes in, byte by byte: as text its line ends would be changed, and not all is text."""
    raw = getattr(context.stdin, "buffer", None)
    if raw is None:  # no file behind it
        return io.BytesIO(context.stdin.read().encode("utf-8", "surrogateescape"))
    return cast("BinaryIO", raw)


def _lines(context: Context, file: Path | None) -> Iterator[bytes]:
    with nullcontext(_stdin(context)) if file is None else file.open("rb") as opened:
        for line in opened:
            yield line.rstrip(b"\r\n")


def _show_receipt(
    receipt: Receipt, seconds: float, ack: Acknowledge, context: Context, said: MessageFields
) -> None:
    by = list(receipt.confirmed_by)
    fields: dict[str, object] = {
        "topic": receipt.topic,
        "queue": receipt.queue,
        "queue_offset": receipt.queue_offset,
        "log_offset": receipt.log_offset,
        "epoch": receipt.epoch,
        "address": receipt.address,
        "acknowledge": ack.value,
        "confirmed_by": by,
        "seconds": round(seconds, 6),
    }
    if receipt.buffered:
        fields["buffered"] = True
    level, later = said.get("delay_level"), ""
    if level is not None:
        fields["delay_ms"] = DELAY_LEVELS_MS[level - 1]
        later = f", delivered {delay_text(level)} later"
    if (delay := said.get("delay")) is not None:
        fields["delay_ms"] = delay_ms(delay)
        later = f", delivered {delay} later"
    if (at := said.get("at")) is not None:
        fields["at_ms"] = at_ms(at)
        later = f", delivered at {at}"
    who = f" by {', '.join(by)}" if by else ""
    who = " in the master's memory only: buffered" if receipt.buffered else who
    context.printer.answer(
        Answer(
            kind="Receipt",
            fields=fields,
            head=f"{receipt.address}  {ack.value} in {seconds * 1000:.1f} ms{who}{later}",
            tables=[Table.of("ADDRESS QUEUE> QUEUE-OFFSET> LOG-OFFSET>", [fields])]
            if context.printer.machine
            else [],
            names=[receipt.address],
            items=[fields],
            next=f"twinlog message get {receipt.address}",
        )
    )


_Sent = deque[tuple[int, Section, int]]
"""Lines that are not shown yet: number, section, and which of its records."""


def _send_lines(
    client: Client,
    topic: str,
    bodies: Iterable[bytes],
    context: Context,
    said: MessageFields,
    *,
    ack: Acknowledge,
    compress: str,
) -> int:
    """Send each line through one producer; say what was stored even when it ends early."""
    count = 0
    started = time.monotonic()
    output = context.options.output
    each = output in (Output.JSONL, Output.NAME)
    sent: _Sent = deque()
    with client.producer(topic, acknowledge=ack.value, compress=compress) as producer:
        try:
            for body in bodies:
                section = producer.send(body, **said)
                count += 1
                if each:
                    sent.append((count, section, section.count - 1))
                    _show_stored(sent, context)
            producer.flush()
        except KeyboardInterrupt:
            _show_stored(sent, context)
            stored = producer.statistics().acknowledged
            told = f"{stored} of {count} messages are {ack.value}, the rest may or may not be"
            raise Interrupted((told,)) from None
        except TwinlogError as error:
            with suppress(TwinlogError):
                producer.flush()  # what came before a line that is refused has its own outcome
            _show_stored(sent, context)
            raise _partly(producer.statistics(), count, ack, error) from error
    _show_stored(sent, context)
    if not each:
        seconds = time.monotonic() - started
        fields = {"topic": topic, "messages": count, "acknowledge": ack.value,
                  "seconds": round(seconds, 6)}  # fmt: skip
        head = f"{count} messages {ack.value} in {seconds:.2f} s"
        context.printer.answer(Answer(kind="Receipts", fields=fields, head=head))
    return Exit.OK


def _show_stored(sent: _Sent, context: Context) -> None:
    """Print where the lines with an answer were stored; a line without success has no place.

    They are taken out: input without an end must not be kept.
    """
    while sent and sent[0][1].done:
        number, section, record = sent.popleft()
        if not section.stored:
            continue
        found = section.receipt(record)
        if context.options.output is Output.NAME:
            context.printer.line(found.address)
        else:
            context.printer.item(
                {"kind": "Receipt", "version": 1, "line": number, "address": found.address,
                 "topic": found.topic, "queue": found.queue, "queue_offset": found.queue_offset}
            )  # fmt: skip


def _partly(done: Statistics, taken: int, ack: Acknowledge, error: TwinlogError) -> Failure:
    """What became of ``taken`` lines, of which not all had success."""
    found = describe(error)
    assert found is not None, "an error of the cluster has a text"
    parts = [f"of {taken} lines {done.acknowledged} are {ack.value}"]
    parts += [f"{done.unknown} may or may not be stored"] if done.unknown else []
    parts += [f"{done.refused} are not stored"] if done.refused else []
    facts = (*found.facts, ", ".join(parts)) if taken else found.facts
    if isinstance(error, RecordRefused) and not done.refused:
        facts = (*facts, f"line {taken + 1} was refused; what follows it was not sent")
    if not done.unknown:
        return Failure(found.exit, found.text, facts=facts, hints=found.hints)
    text = f"{done.unknown} messages may or may not be stored"
    return Failure(Exit.UNKNOWN, text, facts=(found.text, *facts), hints=found.hints)

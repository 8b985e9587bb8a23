"""``twinlog dlq``: what groups gave up, and what becomes of it.

The dead letters of a group are the messages of its topic ``%DLQ%GROUP``. Which of them were
replayed or dropped is the progress of one more group, `HANDLER`: so a replay that was killed goes
on where it was, and sends nothing twice, for a copy and its mark are one batch.

Not here: why a message was given up (``node.groups``).
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from cli.answer import Answer, Table
from cli.cluster.patience import waiting_client
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, tables, whole
from cli.group.answers import document
from cli.parsing import PRIVATE, Yes
from cli.watch import Watch, repeat
from twinlog.client.blocking import Client
from twinlog.errors import TwinlogError, UnknownTopic
from twinlog.format.messages import Message
from twinlog.format.record import KEYS, SEQUENCE, SHARDING_KEY, TAGS
from twinlog.groups.blocking import Consumer
from twinlog.groups.delivery import Delivery
from twinlog.wire.frames import Type

PREFIX = "%DLQ%"

HANDLER = "TWINLOG_DLQ_REPLAY"
"""The group whose progress says which dead letters were replayed or dropped."""

STEP = 64
"""Messages replayed in one batch."""

LEASE_SECONDS = 10.0
"""Of letters in work: a command that was killed keeps them from the next one until then."""

WHY, ORIGIN_TOPIC, ORIGIN_ID = "TL_WHY", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"

ADDED = frozenset(
    {KEYS, TAGS, SHARDING_KEY, SEQUENCE, WHY, ORIGIN_TOPIC, ORIGIN_ID}
    | {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "REAL_TOPIC", "REAL_QID", "DELAY", "RECONSUME_TIME"}
)
"""Properties that a replayed message does not keep: giving up added them, or sending adds them."""


def list_letters(*, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """List the groups with dead letters: how many there are, and how many were not dealt with.

    Args:
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _list(context), watch=watch)


def _list(context: Context) -> int:
    with waiting_client(context) as client:
        items = [
            _counted(client, name.removeprefix(PREFIX))
            for name in client.topics()
            if name.startswith(PREFIX)
        ]
    context.printer.answer(
        Answer(
            kind="DeadLetterList",
            fields={"groups": items},
            tables=[Table.of("GROUP MESSAGES> OPEN> TOPIC", items)],
            items=items,
            names=[f"dlq/{item['group']}" for item in items],
        )
    )
    return Exit.OK


def _counted(client: Client, group: str) -> Fields:
    ranges = _ranges(client, group)
    messages = sum(end - start for start, end in ranges.values())
    begun = _begun(client, group)
    opened = sum(whole(one, "lag") or 0 for one in begun) if begun else messages
    return {"group": group, "messages": messages, "open": opened, "topic": PREFIX + group}


def _ranges(client: Client, group: str) -> dict[int, tuple[int, int]]:
    try:
        return client.offsets(PREFIX + group)
    except UnknownTopic:
        text_ = f"group {group} has no dead letters"
        raise Failure(Exit.MISSING, text_, hints=("see who has: twinlog dlq list",)) from None


def _begun(client: Client, group: str) -> list[Fields]:
    """Return what was dealt with of a group's letters, by queue; nothing: none was yet."""
    try:
        queues = tables(document(client, HANDLER).get("queues"))
    except Failure:
        return []
    return [one for one in queues if one.get("topic") == PREFIX + group]


def show(
    group: str,
    /,
    *,
    count: Annotated[int, Parameter(name=["--count", "-n"])] = 100,
    all_: bool = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show the dead letters of a group that were not dealt with, oldest first.

    Args:
        group: Whose.
        count: At most this many.
        all_: Those that were replayed or dropped, too.
    """
    with waiting_client(context) as client:
        ranges = _ranges(client, group)
        start = min((one for one, _ in ranges.values()), default=0)
        low = max([whole(one, "low") or 0 for one in _begun(client, group)], default=0)
        begin = start if all_ else max(start, low)
        items = [
            _letter(message)
            for message in client.read(PREFIX + group, f"{begin}:", limit=max(0, count))
        ]
    context.printer.answer(
        Answer(
            kind="DeadLetters",
            fields={"group": group, "messages": items},
            tables=[Table.of("OFFSET> WHY ATTEMPTS> ORIGIN KEY STORED>=stored:time BODY", items)],
            items=items,
            names=[f"{PREFIX}{group}/0@{item['offset']}" for item in items],
            next=f"twinlog dlq replay {group} --dry-run",
        )
    )
    return Exit.OK


def _letter(message: Message) -> Fields:
    properties = message.properties
    body = message.body.decode("utf-8", "replace")
    return {
        "offset": message.queue_offset,
        "why": properties.get(WHY),
        "attempts": message.record.reconsume_times,
        "origin": _origin(message),
        "key": message.key,
        "stored": message.store_timestamp,
        "body": "".join(c if c.isprintable() else "\ufffd" for c in body[:60]),
    }


def _origin(message: Message) -> str | None:
    properties = message.properties
    return properties.get(ORIGIN_TOPIC) or properties.get("RETRY_TOPIC")


def replay(
    group: str,
    /,
    *,
    count: Annotated[int | None, Parameter(name=["--count", "-n"])] = None,
    to: str | None = None,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Send dead letters to their topics again, oldest first; killed in the middle, run it again.

    A copy and the mark that it was replayed are stored in one batch: none is sent twice.

    Args:
        group: Whose.
        count: At most this many.
        to: Send them to this topic instead.
        dry_run: Only say how many.
        yes: Do not ask.
    """
    return _deal(group, count, "replay", to, context, dry_run=dry_run, yes=yes)


def drop(
    group: str,
    /,
    *,
    count: Annotated[int | None, Parameter(name=["--count", "-n"])] = None,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Deal with dead letters by leaving them: they are shown no more, and retention deletes them.

    Args:
        group: Whose.
        count: At most this many, oldest first.
        dry_run: Only say how many.
        yes: Do not ask.
    """
    return _deal(group, count, "drop", None, context, dry_run=dry_run, yes=yes)


def _deal(
    group: str, count: int | None, what: str, to: str | None, context: Context,
    *, dry_run: bool, yes: bool,
) -> int:  # fmt: skip
    if count is not None and count < 1:
        raise Failure(Exit.USAGE, f"--count is {count}; it must be at least 1")
    with waiting_client(context) as client:
        opened = whole(_counted(client, group), "open") or 0
        many = opened if count is None else min(count, opened)
        where = f" to {to}" if to else ""
        done, head = 0, f"{many} dead letters of {group} would be {_DONE[what]}{where}"
        if not dry_run and many:
            question = f"{what.capitalize()} {many} dead letters of {group}{where}?"
            if not context.confirm(question, yes=yes):
                return Exit.NO
            done = _dealt(client, group, many, what, to=to, context=context)
        if not dry_run:
            head = f"{done} dead letters of {group} {_DONE[what]}{where}"
            if done < many:
                head += f"; {many - done} are held by another command: run it again later"
    context.printer.answer(
        Answer(
            kind="DeadLettersDone",
            fields={"group": group, "what": what, "messages": many if dry_run else done,
                    "done": not dry_run and done == many},
            head=head,
            names=[f"dlq/{group}"],
        )
    )  # fmt: skip
    return Exit.OK if dry_run or done == many else Exit.NO


_DONE = {"replay": "replayed", "drop": "dropped"}


def _dealt(
    client: Client, group: str, many: int, what: str, *, to: str | None, context: Context
) -> int:
    """Replay or drop that number of letters; return how many were."""
    waited = False
    settings = {"start": "start", "dead_letter": False, "attempts": 1000}
    client.call("master", Type.GROUP, {"op": "create", "name": HANDLER, "settings": settings})
    done = 0
    with client.consumer(
        HANDLER, PREFIX + group, batch=STEP, invisible=LEASE_SECONDS, member=f"dlq {what}"
    ) as consumer:
        while done < many:
            letters = consumer.pop(max=min(STEP, many - done), wait=1.0)
            if not letters:
                if not _held(client, group) or context.over(1.0):
                    break
                if not waited:
                    context.printer.note(_HELD)
                waited = True
                continue
            try:
                if what == "replay":
                    _replayed(consumer, letters, to)
                else:
                    for letter in letters:
                        letter.ack()
            except Failure as failure:
                for letter in letters:
                    letter.release()
                consumer.settle()
                failure.facts = (*failure.facts, _before(done, many, what))
                raise
            except TwinlogError:
                # Whether these are done may be unknown: their leases end by themselves.
                context.printer.note(_before(done, many, what))
                raise
            done += len(letters)
        consumer.settle()
    return done


def _before(done: int, many: int, what: str) -> str:
    return f"{done} of {many} dead letters were {_DONE[what]} before; run it again for the others"


_HELD = f"""letters are held by another dlq command, or by one that was killed less than \
{LEASE_SECONDS:g} s ago; waiting for them"""


def _held(client: Client, group: str) -> bool:
    """Whether another command has letters of a group in work, or had some that come again."""
    return any(whole(one, "leased") or whole(one, "waiting") for one in _begun(client, group))


def _replayed(consumer: Consumer, letters: list[Delivery], to: str | None) -> None:
    with consumer.together() as step:
        for letter in letters:
            topic = to or _origin(letter.message)
            if topic is None:
                text_ = f"{letter.address} does not say where it came from"
                raise Failure(Exit.DATA, text_, hints=("say where: --to TOPIC",))
            properties = {
                name: value for name, value in letter.properties.items() if name not in ADDED
            }
            step.send(
                topic, letter.body, key=letter.key, tag=letter.tag,
                order_key=letter.properties.get(SHARDING_KEY),
                properties={**properties, WHY: "replay"}, born_ms=letter.born_timestamp,
            )  # fmt: skip
            step.ack(letter)


__all__ = ["drop", "list_letters", "replay", "show"]

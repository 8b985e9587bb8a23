"""``twinlog topic``: make topics, delete them, list them, look at their queues.

Making a topic that exists is harmless when it has as many queues; with another number it is a no
(exit 1), because nothing was changed.

Not here: what a topic is (``storage.state.controls``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from cli.answer import Answer, Table
from cli.cluster.patience import waiting_client
from cli.context import Context
from cli.failures import Exit, Failure, nearest
from cli.fields import Fields, table, text, texts, whole
from cli.parsing import PRIVATE, Yes
from cli.watch import Watch, repeat
from twinlog.client.blocking import Client
from twinlog.errors import UsageError
from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.session.routing import parse_route
from twinlog.units import format_count
from twinlog.wire.frames import Type


def create(
    name: str,
    /,
    *,
    queues: int = 8,
    queue_type: str = "simple",
    dry_run: bool = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Make a topic; harmless when it is there already.

    Args:
        name: Letters, digits, ``-``, ``_``, ``%`` and ``|``, at most 127; a retry topic
            (``%RETRY%...``) at most 255.
        queues: In how many queues its messages are spread; order holds within a queue.
        queue_type: ``simple``, or ``batch`` (RocketMQ's BatchCQ): neighbours from one producer are
            stored as one record, which every reader takes apart again.
        dry_run: Only say what would happen.
    """
    if queues < 1:
        raise Failure(Exit.USAGE, f"--queues is {queues}; it must be at least 1")
    if queue_type not in ("simple", "batch"):
        text = f"--queue-type is {queue_type}; there are simple and batch"
        raise Failure(Exit.USAGE, text)
    with waiting_client(context) as client:
        existing = _queues(client, name)
        if existing is not None and existing != queues:
            raise Failure(
                Exit.NO,
                f"{name} exists with {existing} queues; nothing was changed",
                hints=(f"look at it: twinlog topic show {name}",),
            )
        outcome = "exists" if existing is not None else "would be created"
        if dry_run and existing is not None:
            _check_kind(client, name, existing, batch=queue_type == "batch")
        if not dry_run:
            outcome = _created(client, name, queues, batch=queue_type == "batch")
    context.printer.answer(
        Answer(
            kind="TopicCreate",
            fields={
                "topic": name,
                "queues": queues,
                "queue_type": queue_type,
                "outcome": outcome,
            },
            head=f"topic {name} with {queues} {_KINDS[queue_type]}: {outcome}",
            names=[f"topic/{name}"],
            next=f"twinlog message send {name} --body hello",
        )
    )
    return Exit.OK


def delete(
    name: str,
    /,
    *,
    consumed: bool = False,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Delete a topic with its messages; what groups have consumed of it is forgotten.

    Made again, it has none of those messages, and its queue offsets go on where they ended. What
    still waits for a delay or a time becomes undeliverable when it is due. The bytes leave the disk
    with the log files that hold them.

    Args:
        name: Its name.
        consumed: Delete it although groups consume it; their positions in it are lost.
        dry_run: Only say what is lost.
        yes: Do not ask.
    """
    with waiting_client(context) as client:
        plan = client.call("master", Type.TOPIC, {"op": "delete", "name": name, "plan": True})
        groups = texts(plan.fields.get("groups"))
        messages = sum(end - start for start, end in offsets(client, name).values())
        lost = f"{name} has {format_count(messages, 'message')}"
        lost += f" and is consumed by {', '.join(groups)}." if groups else "; no group consumes it."
        head, outcome = lost, "would be deleted"
        if groups and not consumed:
            hint = "their positions go with it: add --consumed"
            raise Failure(Exit.NO, f"{lost} Nothing was changed", hints=(hint,))
        if not dry_run:
            context.printer.note(lost)
            if not context.confirm(f"Delete topic {name} and its messages?", yes=yes):
                return Exit.NO
            client.delete_topic(name, consumed=consumed)
            outcome = "deleted"
            head = f"topic {name}: {outcome}"
    context.printer.answer(
        Answer(
            kind="TopicDelete",
            fields={"topic": name, "outcome": outcome, "messages": messages, "groups": groups},
            head=head,
            names=[f"topic/{name}"],
            next="twinlog topic list",
        )
    )
    return Exit.OK


_KINDS = {"simple": "queues", "batch": "batch queues"}


def _check_kind(client: Client, name: str, queues: int, *, batch: bool) -> None:
    """Refuse what the master would refuse: queues of the other kind (exit 1)."""
    answer = client.call("master", Type.METADATA, {"topics": [name]})
    there = name in parse_route(answer.fields).batched
    if there != batch:
        text = f"{name} exists with {queues} {_KINDS['batch' if there else 'simple']}"
        hints = (f"look at it: twinlog topic show {name}",)
        raise Failure(Exit.NO, f"{text}; nothing was changed", hints=hints)


def _created(client: Client, name: str, queues: int, *, batch: bool) -> str:
    try:
        return "created" if client.create_topic(name, queues, batch=batch) else "exists"
    except UsageError as error:
        if error.code != "topic-exists":
            raise
        hints = (f"look at it: twinlog topic show {name}",)
        raise Failure(Exit.NO, f"{error.text}; nothing was changed", hints=hints) from None


def list_topics(
    *, all_: bool = False, watch: Watch = False, context: Annotated[Context, PRIVATE]
) -> int:
    """List the topics with their queues and how many messages can be read.

    Args:
        all_: Also system topics.
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _list(context, all_=all_), watch=watch)


def _list(context: Context, *, all_: bool) -> int:
    items: list[Fields] = []
    with waiting_client(context) as client:
        for name, queues, messages in _listed(client):
            if name.startswith("rmq_sys_") and not all_:
                continue
            items.append({"topic": name, "queues": queues, "messages": messages})
    context.printer.answer(
        Answer(
            kind="TopicList",
            fields={"topics": items},
            tables=[Table.of("TOPIC QUEUES> MESSAGES>", items)],
            items=items,
            names=[f"topic/{item['topic']}" for item in items],
        )
    )
    return Exit.OK


def _listed(client: Client) -> Iterator[tuple[str, int, int]]:
    """Yield name, queues and messages of each topic, in order, a page at a time."""
    after: str | None = ""
    while after is not None:
        answer = client.call("master", Type.TOPIC, {"op": "list", "after": after}).fields
        messages = table(answer.get("messages"))
        topics = table(answer.get("topics"))
        for name in sorted(topics):
            yield name, whole(topics, name) or 0, whole(messages, name) or 0
        after = text(answer, "more")


def _queues(client: Client, name: str, timeout: float | None = None) -> int | None:
    """Return how many queues a topic has; None: there is no such topic."""
    answer = client.call("master", Type.METADATA, {"topics": [name]}, timeout=timeout)
    return parse_route(answer.fields).topics.get(name)


def show(name: str, /, *, watch: Watch = False, context: Annotated[Context, PRIVATE]) -> int:
    """Show one topic, queue by queue.

    Args:
        name: Its name.
        watch: Show it again every 2 s, until Ctrl-C.
    """
    return repeat(context, lambda: _show(name, context), watch=watch)


def _show(name: str, context: Context) -> int:
    with waiting_client(context) as client:
        require(client, name)
        ranges = offsets(client, name)
    items: list[Fields] = [
        {"queue": queue, "start": start, "end": end, "messages": end - start}
        for queue, (start, end) in sorted(ranges.items())
    ]
    total = sum(end - start for start, end in ranges.values())
    context.printer.answer(
        Answer(
            kind="Topic",
            fields={"topic": name, "messages": total, "queues": items},
            head=f"{name} · {format_count(len(items), 'queue')} · {format_count(total, 'message')}",
            tables=[Table.of("QUEUE> START> END> MESSAGES>", items)],
            items=items,
            names=[f"topic/{name}"],
            next=f"twinlog message read {name} --range=-10:",
        )
    )
    return Exit.OK


def offsets(client: Client, name: str) -> dict[int, tuple[int, int]]:
    """First and end queue offset of each queue, as readers see them."""
    return client.offsets(name)


def require(client: Client, name: str, *, timeout: float | None = None) -> None:
    """Raise when there is no such topic (exit 66), with the nearest name.

    ``timeout`` is how long the master is looked for, seconds; None: as long as the client's calls.

    A light queue is read whether a message has named it yet or not.
    """
    if name.startswith(LIGHT_PREFIX):
        return
    if _queues(client, name, timeout) is None:
        known = client.topics(timeout=timeout)
        raise Failure(
            Exit.MISSING,
            f'there is no topic "{name}"',
            hints=(*nearest(name, known), f"create it: twinlog topic create {name}"),
        )

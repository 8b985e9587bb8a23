"""``twinlog topic``: make topics, alter and delete them, list them, look at their queues.

Making a topic that exists is harmless when it has as many queues; with another number it is a no
(exit 1), because nothing was changed.

Not here: what a topic is (``storage.state.controls``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from cli.answer import Answer, Table
from cli.cluster.patience import waiting_client
from cli.context import Context
from cli.failures import Exit, Failure, nearest
from cli.fields import Fields, table, text, texts, whole
from cli.parsing import PRIVATE, Yes
from cli.watch import Watch, repeat
from twinlog.client.blocking import Client
from twinlog.client.calls import PERMISSIONS, TopicChanges, alter_fields
from twinlog.errors import UsageError
from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.session.routing import parse_route
from twinlog.units import UnitError, format_count, format_size, parse_size, parse_whole
from twinlog.wire.frames import Type
from twinlog.wire.schema import QUEUES_DEFAULT


def create(
    name: str,
    /,
    *,
    queues: int = QUEUES_DEFAULT,
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


def alter(
    name: str,
    /,
    *,
    queues: int | None = None,
    write_queues: int | None = None,
    perm: str | None = None,
    records_per_second: str | None = None,
    bytes_per_second: str | None = None,
    dry_run: bool = False,
    yes: Yes = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Change how many queues a topic has, who may use it, and how much may be sent to it.

    What is not named stays as it is. Producers and consumers need no restart: they use new queues
    within half a minute. Messages with an order key may go to another queue from then on.

    Args:
        name: Its name.
        queues: How many queues it has: more than before. All of them take messages, unless
            ``--write-queues`` says otherwise.
        write_queues: How many of them, from the first on, take messages. What the others hold is
            read as before.
        perm: ``r``: nothing can be sent to it; ``w``: nothing of it is read or consumed; ``rw``.
        records_per_second: How many messages a second it takes; ``none`` ends the quota.
        bytes_per_second: How many bytes a second, as ``5MiB``; ``none`` ends the quota.
        dry_run: Only say what would change.
        yes: Do not ask.
    """
    changes = _changes(queues, write_queues, perm, records_per_second, bytes_per_second)
    with waiting_client(context) as client:
        asked = {**alter_fields(name, changes), "plan": True}
        plan = client.call("master", Type.TOPIC, asked).fields
        before, after = _terms(plan.get("before")), _terms(plan.get("terms"))
        steps = [
            f"{_WORDS[key]} {_shown(key, before[key])} -> {_shown(key, after[key])}"
            for key in after
            if before[key] != after[key]
        ]
        outcome = "would be altered" if steps else "is so already"
        if steps and not dry_run:
            context.printer.note(f"{name}: {', '.join(steps)}")
            for line in _notes(before, after, texts(plan.get("groups"))):
                context.printer.note(line)
            if not context.confirm(f"Alter topic {name}?", yes=yes):
                return Exit.NO
            outcome = "altered" if client.alter_topic(name, **changes) else "is so already"
    context.printer.answer(
        Answer(
            kind="TopicAlter",
            fields={"topic": name, "outcome": outcome, "before": before, **after},
            head=f"topic {name}: {', '.join([*steps, outcome])}",
            names=[f"topic/{name}"],
            next=f"twinlog topic show {name}",
        )
    )
    return Exit.OK


_WORDS = {
    "queues": "queues",
    "write_queues": "queues that take messages",
    "permission": "permission",
    "records_per_second": "records a second",
    "bytes_per_second": "bytes a second",
}
_PERMISSIONS = {number: name for name, number in PERMISSIONS.items()}


def _changes(
    queues: int | None, write_queues: int | None, perm: str | None, records: str | None,
    size: str | None,
) -> TopicChanges:  # fmt: skip
    found: TopicChanges = {}
    for option, count in (("--queues", queues), ("--write-queues", write_queues)):
        if count is not None and count < 1:
            raise Failure(Exit.USAGE, f"{option} is {count}; it must be at least 1")
    if queues is not None:
        found["queues"] = queues
    if write_queues is not None:
        found["write_queues"] = write_queues
    if perm is not None:
        if perm not in PERMISSIONS:
            raise Failure(Exit.USAGE, f"--perm is {perm}; there are {', '.join(PERMISSIONS)}")
        found["permission"] = perm
    if records is not None:
        found["records_per_second"] = _rate("--records-per-second", records, 1000)
    if size is not None:
        found["bytes_per_second"] = _rate("--bytes-per-second", size, "5MiB")
    if not found:
        hints = ("name what is to change, as --queues 8; see: twinlog topic alter --help",)
        raise Failure(Exit.USAGE, "nothing is to be altered", hints=hints)
    return found


def _rate(option: str, word: str, example: object) -> int:
    """Return a quota; 0 for ``none``."""
    if word == "none":
        return 0
    try:
        found = parse_size(word) if isinstance(example, str) else parse_whole(word)
    except UnitError:
        found = None
    if not found or found < 1:
        text = f'{option} is "{word}", which is no number above 0'
        raise Failure(Exit.USAGE, text, hints=(f"write it as {example}, or none",))
    return found


def _terms(value: object) -> dict[str, int | str | None]:
    """Return what can be altered of a topic, as documents show it; no quota is None."""
    found = table(value)
    permission = whole(found, "permission")
    return {
        "queues": whole(found, "queues"),
        "write_queues": whole(found, "write_queues"),
        "permission": _PERMISSIONS.get(6 if permission is None else permission, "none"),
        "records_per_second": whole(found, "records_per_second") or None,
        "bytes_per_second": whole(found, "bytes_per_second") or None,
    }


def _plain(queues: int) -> dict[str, int | str | None]:
    """The same of a topic that was never altered."""
    return _terms({"queues": queues, "write_queues": queues})


def _shown(key: str, value: int | str | None) -> str:
    if value is None:
        return "none"
    return (
        format_size(value) if key == "bytes_per_second" and isinstance(value, int) else str(value)
    )


def _notes(
    before: Mapping[str, object], after: Mapping[str, object], groups: list[str]
) -> Iterator[str]:
    """Yield what follows from a change, for those who are asked."""
    if before["queues"] != after["queues"]:
        yield "Queues are never taken away again, and order keys may go to other queues."
    if "r" not in str(after["permission"]) and groups:
        yield f"Groups that get nothing of it then: {', '.join(groups)}."


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
        for name, terms, messages in _listed(client):
            if name.startswith("rmq_sys_") and not all_:
                continue
            items.append({"topic": name, **terms, "messages": messages})
    context.printer.answer(
        Answer(
            kind="TopicList",
            fields={"topics": items},
            tables=[Table.of(_LISTED, items)],
            items=items,
            names=[f"topic/{item['topic']}" for item in items],
        )
    )
    return Exit.OK


_LISTED = (
    "TOPIC QUEUES> +WRITE>=write_queues PERM=permission +RECORDS/S>=records_per_second "
    "+BYTES/S>=bytes_per_second:size MESSAGES>"
)


def _listed(client: Client) -> Iterator[tuple[str, dict[str, int | str | None], int]]:
    """Yield name, terms and messages of each topic, in order, a page at a time."""
    after: str | None = ""
    while after is not None:
        answer = client.call("master", Type.TOPIC, {"op": "list", "after": after}).fields
        messages = table(answer.get("messages"))
        topics, altered = table(answer.get("topics")), table(answer.get("terms"))
        for name in sorted(topics):
            terms = _terms(altered[name]) if name in altered else _plain(whole(topics, name) or 0)
            yield name, terms, whole(messages, name) or 0
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
        terms = _plain(len(ranges))
        if not name.startswith((LIGHT_PREFIX, "rmq_sys_")):
            shown = client.call("master", Type.TOPIC, {"op": "show", "name": name}).fields
            terms = _terms(shown["terms"]) if shown.get("terms") else terms
    items: list[Fields] = [
        {"queue": queue, "start": start, "end": end, "messages": end - start}
        for queue, (start, end) in sorted(ranges.items())
    ]
    total = sum(end - start for start, end in ranges.values())
    context.printer.answer(
        Answer(
            kind="Topic",
            fields={
                "topic": name,
                "messages": total,
                **{key: value for key, value in terms.items() if key != "queues"},
                "queues": items,
            },
            head=" · ".join(
                [
                    name,
                    format_count(len(items), "queue"),
                    format_count(total, "message"),
                    *_unusual(terms, len(items)),
                ]
            ),
            tables=[Table.of("QUEUE> START> END> MESSAGES>", items)],
            items=items,
            names=[f"topic/{name}"],
            next=f"twinlog message read {name} --range=-10:",
        )
    )
    return Exit.OK


def _unusual(terms: Mapping[str, int | str | None], queues: int) -> Iterator[str]:
    """Yield what is not as a new topic has it."""
    if terms["write_queues"] != queues:
        yield f"{terms['write_queues']} take messages"
    if terms["permission"] != "rw":
        yield {"r": "read only", "w": "write only"}.get(str(terms["permission"]), "closed")
    rates = [("records_per_second", " records/s"), ("bytes_per_second", "/s")]
    quota = [_shown(key, terms[key]) + unit for key, unit in rates if terms[key]]
    if quota:
        yield f"quota {', '.join(quota)}"


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

"""``twinlog message trace``: what became of one message, told from the log.

Where and when it was stored is in its record, the epoch in the list of epochs, what each group did
with it in the rows that were written since. Nothing is written for a trace. What the log does not
have any more is said to be unknown.

Not here: what a row says (`twinlog.format.group_history`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from cli.answer import Answer, Cell, Table, columns, rfc3339
from cli.cluster.patience import waiting_client
from cli.context import Context, accepted, note_source
from cli.failures import Exit
from cli.fields import Fields, rows, table, tables, text, texts, whole
from cli.group.answers import document, listed
from cli.message.read import normal_address
from cli.parsing import PRIVATE
from twinlog.client.arguments import Duration
from twinlog.client.blocking import Client
from twinlog.errors import OffsetGone, UnknownGroup, UnknownTopic
from twinlog.format.address import parse_address
from twinlog.format.group_history import DEAD, LEASED, History, Step
from twinlog.format.messages import Message
from twinlog.format.system_topics import DEAD_PREFIX, SYSTEM_TOPIC_GROUP
from twinlog.session.session import ANY, SLAVE
from twinlog.wire.frames import Type

ORIGIN_ID = "DLQ_ORIGIN_MESSAGE_ID"
UNKNOWN = "unknown"
_OF_MEMBERS = frozenset({"begun", "position", "reset"})
"""Steps whose name is that of the member of a broadcast group whose queue it is."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Who is asked, and how old the answer may be."""

    client: Client
    read_from: str
    age: Duration | None

    @property
    def node(self) -> str:
        """Whom to ask for what every node knows."""
        return ANY if self.read_from == SLAVE else self.read_from


@dataclass(slots=True)
class _Story:
    """One message and one group, or one member of a broadcast group.

    Attributes:
        low, next: What the group says of the queue now; None: it has not begun with it.
        steps: What the rows say of the message, oldest first.
        whole: All rows since the message was stored were read.
    """

    group: str
    member: str
    low: int | None = None
    next: int | None = None
    steps: list[Step] = field(default_factory=list[Step])
    whole: bool = False

    def state(self, offset: int) -> str:
        """Say what became of the message, as far as the log knows."""
        if self.steps:
            return _state(self.steps[-1], offset)
        if self.next is None or offset >= self.next:
            return "not handed out"
        if self.whole and self.low is not None and offset < self.low:
            return "left out"  # whatever else settles it has a step
        return UNKNOWN


def _state(step: Step, offset: int) -> str:
    match step.what:
        case "given back" | "unused":
            return "waiting"
        case "extended":
            return LEASED
        case "position":
            return "read"
        case "begun":
            return "before start"
        case "reset":
            return "left out" if offset < step.first else "not handed out"
        case _:
            return step.what


def trace(
    address: str,
    /,
    *,
    group: str | None = None,
    from_: str = "master",
    stale_ok: str | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show what became of one message: stored, and in each group handed out, settled, given up.

    STATE: ``not handed out``, ``leased``, ``waiting`` (given back, comes again), ``acked``,
    ``dead``, ``dropped`` (given up by a group without dead letters), ``left out`` (by a filter or a
    reset), ``before start`` (the group begins with a later message of the queue), ``read`` (by a
    member of a broadcast group), or ``unknown``: the rows that would say so are not there.

    Args:
        address: ``topic/queue@offset``, ``log@offset``, or a message id.
        group: Only this group.
        from_: ``master``, ``any``, ``slave`` or a node's name.
        stale_ok: Read a copy without a master, this old at most, as ``10m``; alone: however old.
    """
    wanted = normal_address(address)
    context.check_reader(from_)
    with waiting_client(context) as client:
        asked = _Asked(client, from_, accepted(stale_ok))
        message: Message | None
        try:
            message = client.get(wanted, read_from=from_, max_staleness=asked.age)
            topic, queue, offset = message.topic, message.queue, message.queue_offset
        except OffsetGone:
            message = None
            topic, queue, offset = parse_address(wanted)
        epoch = None if message is None else _epoch(asked, message.log_offset)
        stories = _stories(asked, (topic, queue, offset), message, group, context)
        if group is not None and not stories:
            document(client, group)  # names the closest group
        letters = {
            one.group: _letter(asked, one.steps[-1], message)
            for one in stories
            if one.steps and one.steps[-1].what == DEAD
        }
    place = f"{topic}/{queue}@{offset}"
    if message is None:
        text_ = f"{place} has left the log with retention: when it was stored is unknown"
        context.printer.note(text_)
    groups = [_group(one, offset, letters) for one in stories]
    if any(one["state"] == UNKNOWN for one in groups):
        context.printer.note("unknown: the rows that would say so are not in this copy of the log")
    steps = [_step(step) for one in stories for step in one.steps]
    context.printer.answer(_answer(place, _stored(message, epoch), groups, steps))
    return Exit.OK


def _answer(
    place: str, stored: dict[str, Cell], groups: list[Fields], steps: list[Fields]
) -> Answer:
    said = [(key.replace("_", " "), one) for key, one in stored.items()]
    shown = [Table(columns("FACT VALUE"), said)]
    if groups:
        heads = "GROUP STATE SINCE ATTEMPTS> DEAD-LETTER=dead_letter"
        shown.append(Table.of(heads, groups, title="Groups"))
    if steps:
        heads = "WHEN=at GROUP WHO WHAT ATTEMPT> +UNTIL +WHY"
        shown.append(Table.of(heads, steps, title="Steps"))
    return Answer(
        kind="MessageTrace",
        fields={"address": place, **stored, "groups": groups, "steps": steps},
        head=place if groups else f"{place} · no group handles this queue",
        tables=shown,
        items=steps,
        names=[place],
    )


def _stored(message: Message | None, epoch: int | None) -> dict[str, Cell]:
    if message is None:
        return {"stored": UNKNOWN}
    return {
        "stored": rfc3339(message.store_timestamp),
        "epoch": UNKNOWN if epoch is None else epoch,
        "log_offset": message.log_offset,
        "message_id": message.record.message_id,
        "unique_id": message.record.unique_id,
        "key": message.key,
    }


def _group(story: _Story, offset: int, letters: dict[str, str]) -> Fields:
    steps = story.steps
    state = story.state(offset)
    attempts = max((step.attempt for step in steps), default=0)
    return {
        "group": f"{story.group}~{story.member}" if story.member else story.group,
        "state": state,
        "since": rfc3339(steps[-1].at_ms) if steps else None,
        "attempts": attempts or None,
        "dead_letter": letters.get(story.group) if state == DEAD else None,
    }


def _step(step: Step) -> Fields:
    return {
        "at": rfc3339(step.at_ms),
        "group": step.group,
        "who": step.name or (str(step.member) if step.member else None),
        "member": str(step.member) if step.member else None,
        "what": step.what,
        "attempt": step.attempt or None,
        "until": rfc3339(step.until_ms) if step.until_ms else None,
        "why": step.why or None,
    }


def _epoch(asked: _Asked, log_offset: int) -> int | None:
    """Return the epoch of a log offset; None: nodes list the newest epochs only."""
    answer = asked.client.call(asked.node, Type.METADATA, {"topics": []})
    found: int | None = None
    for one in rows(answer.fields.get("epochs")):
        match one:
            case [int() as epoch, int() as start] if start <= log_offset:
                found = epoch
            case _:
                pass
    return found


def _stories(
    asked: _Asked,
    place: tuple[str, int, int],
    message: Message | None,
    only: str | None,
    context: Context,
) -> Sequence[_Story]:
    """Return what each group did with a message, from the groups as they are and from the rows."""
    topic, queue, offset = place
    history, found = History(), dict[tuple[str, str], _Story]()
    for group in _documents(asked, topic, only):
        history.know(group)
        name = text(group, "name") or ""
        if text(group, "mode") == "shared":
            found[name, ""] = _Story(name, "")
        for one in tables(group.get("queues")):
            if text(one, "topic") == topic and whole(one, "queue") == queue:
                member = text(one, "name") or ""
                low, after = whole(one, "low"), whole(one, "next")
                found[name, member] = _Story(name, member, low, after)
    since = "start:" if message is None else f"@{rfc3339(message.store_timestamp)}:"
    records = asked.client.read(
        SYSTEM_TOPIC_GROUP, since, read_from=asked.read_from, max_staleness=asked.age
    )
    for record in records:
        for step in history.told(record.body, record.store_timestamp):
            if (step.topic, step.queue) != (topic, queue) or not _concerns(step, offset):
                continue
            if only is None or step.group == only:
                key = step.group, step.name if step.what in _OF_MEMBERS else ""
                found.setdefault(key, _Story(*key)).steps.append(step)
    note_source(records.source, context)
    for story in found.values():
        story.whole = message is not None and records.source.role == "master"
    return list(found.values())


def _concerns(step: Step, offset: int) -> bool:
    """Whether a step is about the message at an offset of its queue."""
    if step.what == "reset":
        return True
    if step.what == "begun":
        return offset < step.first
    return step.first <= offset <= step.last


def _documents(asked: _Asked, topic: str, only: str | None) -> Iterator[Fields]:
    """Yield the groups that have the topic, each whole; ``only`` that one."""
    if only is None:
        names = [
            text(one, "name") or ""
            for one in listed(asked.client, asked.node)
            if topic in texts(one.get("topics"))
        ]
    else:
        names = [only]
    for name in names:
        try:
            answer = asked.client.call(asked.node, Type.GROUP, {"op": "show", "name": name})
        except UnknownGroup:  # deleted: the rows tell what they know
            continue
        yield table(answer.fields.get("group"))


def _letter(asked: _Asked, step: Step, message: Message | None) -> str:
    """Return where the dead letter of a message is; its copy was stored with the row."""
    if message is None:
        return UNKNOWN
    topic = DEAD_PREFIX + step.group
    since = f"@{rfc3339(step.at_ms)}:"
    try:
        for copy in asked.client.read(
            topic, since, read_from=asked.read_from, max_staleness=asked.age
        ):
            if copy.store_timestamp > step.at_ms:
                break
            if copy.properties.get(ORIGIN_ID) == message.record.message_id:
                return f"{topic}/{copy.queue}@{copy.queue_offset}"
    except UnknownTopic:
        pass
    return UNKNOWN


__all__ = ["trace"]

"""The calls of a client, for both clients: what each asks, and what its answer means.

Pure: each method returns the steps of one call, which a shell carries out (`Caller`,
`AsyncCaller`). Its deadline counts from the first step.

Not here: arguments as users write them (``twinlog.client.arguments``), sending (``producer``),
reading (``consumer``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict

from twinlog.client.arguments import Duration, staleness_of
from twinlog.client.search import Finding, Search, find, message_at
from twinlog.consumer.start_offsets import parse_offsets
from twinlog.errors import TooLate, Unavailable, UsageError
from twinlog.format.address import id_fields, parse_address
from twinlog.format.messages import Message, Receipt
from twinlog.format.system_topics import TIMER_TOPIC
from twinlog.format.waiting.timers import keys_of
from twinlog.session.reading import ask_reader
from twinlog.session.routing import Route
from twinlog.session.session import ANY, MASTER, Session, Steps
from twinlog.wire.frames import Frame, Type

PERMISSIONS: Final[Mapping[str, int]] = {"r": 4, "w": 2, "rw": 6}
"""Permissions of a topic by name; the numbers are RocketMQ's."""


class TopicChanges(TypedDict, total=False):
    """What `Client.alter_topic` changes; what is left out stays as it is.

    Attributes:
        queues: How many queues the topic has, never fewer than before; all of them take messages,
            unless ``write_queues`` says otherwise.
        write_queues: How many of them, from the first on, take messages; the others are read only.
        permission: ``r``: it is read only; ``w``: no message of it is read; ``rw``: both.
        records_per_second: Messages that may be sent to it; 0: no quota.
        bytes_per_second: Bytes of stored records, likewise.
    """

    queues: int
    write_queues: int
    permission: str
    records_per_second: int
    bytes_per_second: int


class Calls:
    """See the module; times are seconds.

    Args:
        session: Of the client.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def metadata(self, timeout: float, to: str = ANY) -> Steps[Route]:
        """See `Client.metadata`; ``to`` is who is asked."""
        deadline = self._session.now + timeout
        return (yield from self._session.metadata(deadline=deadline, to=to))

    def topics(self, timeout: float) -> Steps[dict[str, int]]:
        """See `Client.topics`."""
        route = yield from self.metadata(timeout, MASTER)
        return dict(sorted(route.topics.items()))

    def create_topic(self, name: str, queues: int, batch: bool, timeout: float) -> Steps[bool]:
        """See `Client.create_topic`."""
        UsageError.check_text("name", name)
        fields: dict[str, object] = {"op": "create", "name": name, "queues": queues}
        fields |= {"batch": True} if batch else {}
        answer = yield from self.ask(MASTER, Type.TOPIC, fields, timeout)
        return topic_created(answer, name, queues, batch=batch)

    def alter_topic(self, name: str, changes: TopicChanges, timeout: float) -> Steps[bool]:
        """See `Client.alter_topic`."""
        answer = yield from self.ask(MASTER, Type.TOPIC, alter_fields(name, changes), timeout)
        return answer.fields.get("altered") is True

    def delete_topic(self, name: str, consumed: bool, timeout: float) -> Steps[bool]:
        """See `Client.delete_topic`."""
        UsageError.check_text("name", name)
        fields: dict[str, object] = {"op": "delete", "name": name}
        fields |= {"consumed": True} if consumed else {}
        answer = yield from self.ask(MASTER, Type.TOPIC, fields, timeout)
        return answer.fields.get("deleted") is True

    def offsets(self, topic: str, timeout: float) -> Steps[dict[int, tuple[int, int]]]:
        """See `Client.offsets`."""
        UsageError.check_text("topic", topic)
        fields: dict[str, object] = {"topic": topic, "queues": None, "at_ms": None}
        found = parse_offsets((yield from self.ask(MASTER, Type.OFFSETS, fields, timeout)).fields)
        return {queue: (start, end) for queue, (start, end, _) in found.items()}

    def message(
        self,
        address: str,
        *,
        read_from: str,
        timeout: float,
        max_staleness: Duration | None,
    ) -> Steps[Message]:
        """See `Client.get`; an address of the log or a message id, not of a queue."""
        _, _, offset = parse_address(address)
        answer = yield from ask_reader(
            self._session,
            Type.GET,
            {"log_offset": offset, **id_fields(address)},
            read_from=read_from,
            deadline=self._session.now + timeout,
            staleness=staleness_of(max_staleness),
        )
        return message_at(answer, offset)

    def find(
        self,
        search: Search,
        *,
        read_from: str,
        timeout: float,
        max_staleness: Duration | None,
    ) -> Steps[Finding]:
        """See `Client.find`."""
        return (
            yield from find(
                self._session,
                search,
                read_from=read_from,
                deadline=self._session.now + timeout,
                staleness=staleness_of(max_staleness),
            )
        )

    def cancel(self, message: Message, timeout: float) -> Steps[None]:
        """See `Client.cancel`; ``message`` is what lies in the log and waits."""
        keys = keys_of(message.properties, message.store_timestamp, message.log_offset)
        if not keys or message.topic != TIMER_TOPIC:
            text = f"what is stored at {message.address} waits for no time"
            hint = "name what send with delay or at returned"
            raise UsageError(text, code="not-waiting", hint=hint)
        late: TooLate | None = None
        for due, offset in keys:
            try:
                fields = {"log_offset": offset, "due_ms": due}
                yield from self.ask(MASTER, Type.CANCEL, fields, timeout)
                return
            except TooLate as error:
                late = late or error
        assert late is not None, "there is a key"
        raise late

    def end(self, group: str, halves: list[int], outcome: int, timeout: float) -> Steps[None]:
        """See `Transaction.commit` and `Transaction.rollback`; ``halves`` are queue offsets."""
        fields = {"group": group, "halves": halves, "outcome": outcome}
        yield from self.ask(MASTER, Type.END, fields, timeout)

    def ask(
        self,
        node: str,
        kind: Type,
        fields: Mapping[str, object],
        timeout: float,
        *,
        repeat: bool = True,
    ) -> Steps[Frame]:
        """See `Client.call`."""
        deadline = self._session.now + timeout
        session = self._session
        return (yield from session.call(kind, fields, deadline=deadline, to=node, repeat=repeat))


def place_of(sent: Receipt | str) -> str:
    """Return the address of what was sent, as `Client.get` takes it."""
    if isinstance(sent, str):
        return sent
    return f"log@{sent.log_offset}" if sent.log_offset >= 0 else sent.address


def alter_fields(name: str, changes: TopicChanges) -> dict[str, object]:
    """Return the fields of the request that alters a topic.

    Raises:
        UsageError: There is no such permission or property, or a value is no number.
    """
    UsageError.check_text("name", name)
    found: dict[str, object] = {"op": "alter", "name": name, **changes}
    known = {"op", "name", *TopicChanges.__annotations__}
    if odd := sorted(found.keys() - known):
        raise UsageError(f"a topic has no {odd[0]}", code="fields")
    permission = found.pop("permission", None)
    if permission is not None:
        if permission not in PERMISSIONS:
            names = ", ".join(PERMISSIONS)
            raise UsageError(f"permission is one of {names}, not {permission!r}", code="fields")
        found["permission"] = PERMISSIONS[str(permission)]
    for one in changes.keys() - {"permission"}:
        if type(found[one]) is not int:
            raise UsageError.other_type(one, "a whole number", found[one])
    return found


def topic_created(answer: Frame, name: str, queues: int, *, batch: bool = False) -> bool:
    """Return whether a topic was created now; False when it existed with such queues.

    Raises:
        UsageError: It exists with another number, or of the other kind.
        Unavailable: The node is too old to know of batch queues: it has made simple ones.
    """
    existing = answer.fields.get("queues")
    if isinstance(existing, int) and existing != queues:
        text = f"topic {name} exists with {existing} queues, not {queues}"
        raise UsageError(text, code="topic-exists", queues=existing)
    kind = answer.fields.get("batch")
    if kind is None and batch and answer.fields.get("created"):
        text = f"the master does not know batch queues: topic {name} has simple ones now"
        raise Unavailable(text, hint="bring all nodes up to date first")
    if (kind is True) != batch:
        found, wanted = ("batch", "simple") if kind else ("simple", "batch")
        text = f"topic {name} exists with {found} queues, not {wanted} ones"
        raise UsageError(text, code="topic-exists", queues=existing)
    return answer.fields.get("created") is True

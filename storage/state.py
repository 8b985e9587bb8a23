"""What control records say: topics. Pure.

Control records ride in the log, in queue 0 of ``rmq_sys_TWINLOG_META``; each is a batch of its own
with one record, whose body is a msgpack map with ``kind``. They are applied on every node when the
confirm offset passes them, by a total, deterministic function: the same records in the same order
give the same state everywhere. A record of a kind this version does not know changes nothing and is
kept in the log for one that does.

Two layers: *confirmed* is what `State` holds; *pending* are control records between confirm and
end, in log order (`Layers`). A cut drops what lay beyond it. A permission (a created topic) binds
from its confirm; a restriction binds the master from its append.

Not here: producers (`storage.producers`), next queue offsets (`storage.consume_queue`), where the
state is kept (`storage.snapshot`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from storage.packing import pack, unpack
from twinlog.errors import CorruptionError, NotYetConfirmed, TwinlogError, UnknownTopic
from twinlog.layout import (
    LIGHT_PREFIX,
    SYSTEM_TOPIC_EPOCH,
    SYSTEM_TOPIC_META,
    SYSTEM_TOPIC_PREFIX,
)

QUEUES_MAX = 65_536
TOPIC_LENGTH_MAX = 127
RETRY_LENGTH_MAX = 255
"""Bytes of the name of a retry topic, as RocketMQ limits it; its records are of version 2."""
RETRY_PREFIX = "%RETRY%"
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_RESERVED = frozenset({"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102"})


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A topic with ``queues`` queues comes into being.

    Attributes:
        name: Topic name, in RocketMQ's alphabet.
        queues: How many, from 1.
        created_ms: Wall time of the request; for people.
        batch: Its queues are batch queues: a record may hold several messages.
    """

    name: str
    queues: int
    created_ms: int
    batch: bool = False


@dataclass(frozen=True, slots=True)
class ForgetProducers:
    """Idempotent producers whose last section ends at or below a log offset are forgotten.

    Attributes:
        below: The log offset; not above that of the record that says so.
    """

    below: int


@dataclass(frozen=True, slots=True)
class UnknownControl:
    """A control record of a later version."""

    kind: str


Control = CreateTopic | ForgetProducers | UnknownControl
"""What a control record can say."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists; see `CreateTopic`."""

    name: str
    queues: int
    created_ms: int
    batch: bool = False


def encode_control(change: Control) -> bytes:
    """Return the body of the control record that says ``change``.

    >>> decode_control(encode_control(CreateTopic("flights", 8, 1)))
    CreateTopic(name='flights', queues=8, created_ms=1, batch=False)
    """
    if isinstance(change, UnknownControl):
        return pack({"kind": change.kind})
    if isinstance(change, ForgetProducers):
        return pack({"kind": "forget-producers", "below": change.below})
    fields: dict[str, object] = {
        "kind": "create-topic",
        "name": change.name,
        "queues": change.queues,
        "at": change.created_ms,
    }
    if change.batch:
        fields["batch"] = True
    return pack(fields)


def decode_control(body: bytes) -> Control:
    """Return what a control record says; total: what it cannot read is an `UnknownControl`."""
    try:
        fields = unpack(body)
    except CorruptionError:
        return UnknownControl("unreadable")
    kind, below = fields.get("kind"), fields.get("below")
    if kind == "forget-producers" and isinstance(below, int):
        return ForgetProducers(below)
    match kind, fields.get("name"), fields.get("queues"), fields.get("at"):
        case "create-topic", str(name), int(queues), int(created):
            return CreateTopic(name, queues, created, fields.get("batch") is True)
        case _:
            return UnknownControl(str(kind))


def topic_refusal(name: str) -> str | None:
    """Return why nobody may create or write a topic of this name; None when one may."""
    if name.startswith(SYSTEM_TOPIC_PREFIX):
        return f"topic {name} is the store's own"
    if name in _RESERVED:
        return f"topic {name} is reserved"
    if name.startswith(LIGHT_PREFIX):
        return f"{name} is a light queue: it comes into being when a message of a topic names it"
    return _form_refusal(name)


def light_refusal(name: str) -> str | None:
    """Return why no message may name this light queue; None when it may."""
    if not name.startswith(LIGHT_PREFIX) or name == LIGHT_PREFIX:
        return f"{name!r} is no light queue: their names begin with {LIGHT_PREFIX}"
    return _form_refusal(name)


def _form_refusal(name: str) -> str | None:
    most = RETRY_LENGTH_MAX if name.startswith(RETRY_PREFIX) else TOPIC_LENGTH_MAX
    if not name or len(name) > most:
        return f"a topic name has 1 to {most} characters"
    if _LEGAL.match(name) is None:
        return "a topic name consists of letters, digits, %, |, _ and -"
    return None


class State:
    """The confirmed layer: all topics.

    Attributes:
        topics: By name.
        batched: Names of the topics with batch queues; of an adopted store, before they exist.

    >>> state = State()
    >>> state.apply(CreateTopic("t", 4, 1)), state.apply(CreateTopic("t", 9, 2))
    (True, False)
    >>> state.topics["t"].queues
    4
    """

    def __init__(self, topics: Iterable[Topic] = (), batched: Iterable[str] = ()) -> None:
        self.topics: dict[str, Topic] = {topic.name: topic for topic in topics}
        self.batched = set(batched) | {name for name, one in self.topics.items() if one.batch}

    def apply(self, change: Control) -> bool:
        """Apply one control record; returns whether anything changed. Never raises."""
        if not isinstance(change, CreateTopic) or change.name in self.topics:
            return False
        if topic_refusal(change.name) is not None or not 1 <= change.queues <= QUEUES_MAX:
            return False
        row = change.name, change.queues, change.created_ms, change.batch
        self.topics[change.name] = Topic(*row)
        if change.batch:
            self.batched.add(change.name)
        return True

    def queues(self, topic: str) -> int | None:
        """Return how many queues a topic has; the store's own and light queues have one."""
        found = self.topics.get(topic)
        if found is not None:
            return found.queues
        if light_refusal(topic) is None:
            return 1
        return 1 if topic in (SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_META) else None


class Layers:
    """The confirmed state and the control records that wait for their confirm.

    Attributes:
        confirmed: What readers and writers go by.
    """

    def __init__(self, confirmed: State | None = None) -> None:
        self.confirmed = confirmed or State()
        self._pending: deque[tuple[int, Control]] = deque()

    def append(self, end: int, change: Control) -> None:
        """Note a control record whose batch ends at log offset ``end``."""
        self._pending.append((end, change))

    def batched(self) -> frozenset[bytes]:
        """Return the names of topics with batch queues in either layer, as they are stored."""
        pending = [change for _, change in self._pending if isinstance(change, CreateTopic)]
        names = self.confirmed.batched.union(one.name for one in pending if one.batch)
        return frozenset(name.encode() for name in names)

    def whole(self) -> State:
        """Return what the whole log says: RocketMQ takes it so, and knows no confirm."""
        if not self.topics_waiting():
            return self.confirmed
        found = State(self.confirmed.topics.values(), self.confirmed.batched)
        for _, change in self._pending:
            found.apply(change)
        return found

    def confirm(self, confirm: int) -> bool:
        """Apply what lies below ``confirm``; returns whether anything changed."""
        changed = False
        while self._pending and self._pending[0][0] <= confirm:
            changed |= self.confirmed.apply(self._pending.popleft()[1])
        return changed

    def cut(self, end: int) -> None:
        """Forget what lay beyond ``end``."""
        while self._pending and self._pending[-1][0] > end:
            self._pending.pop()

    def refusal(self, change: Control) -> tuple[str, str] | None:
        """Return (code, text) when the master must not append ``change``; None when it may."""
        if isinstance(change, ForgetProducers):
            return None
        if not isinstance(change, CreateTopic):
            return "control", "a change that this version does not know"
        reason = topic_refusal(change.name)
        if reason is not None:
            return "topic", reason
        if not 1 <= change.queues <= QUEUES_MAX:
            return "queues", f"a topic has 1 to {QUEUES_MAX} queues"
        existing = self.existing(change.name)
        if existing is not None and existing[0] != change.queues:
            return "topic-exists", f"topic {change.name} exists with {existing[0]} queues"
        if existing is not None and existing[2] != change.batch:
            kind = "batch" if existing[2] else "simple"
            return "topic-exists", f"topic {change.name} exists with {kind} queues"
        return None

    def topics_waiting(self) -> bool:
        """Return whether a topic waits for its confirm that is not in the confirmed layer."""
        known = self.confirmed.topics
        changes = (change for _, change in self._pending)
        return any(isinstance(one, CreateTopic) and one.name not in known for one in changes)

    def missing(self, name: str) -> TwinlogError:
        """Return why a topic that is not in the confirmed layer cannot be used.

        Retryable when the log holds it already: after a restart of all nodes confirm has to pass
        its record once more.
        """
        if self.existing(name) is not None:
            return NotYetConfirmed(f"topic {name} is not confirmed yet", topic=name)
        return UnknownTopic(f"topic {name} does not exist", topic=name)

    def existing(self, name: str) -> tuple[int, int, bool] | None:
        """Return (queues, log offset whose confirm makes it binding, batch) of a topic.

        The offset is 0 for a confirmed topic.
        """
        topic = self.confirmed.topics.get(name)
        if topic is not None:
            return topic.queues, 0, topic.batch
        for end, change in self._pending:
            if isinstance(change, CreateTopic) and change.name == name:
                return change.queues, end, change.batch
        return None

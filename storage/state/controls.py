"""Control records: their fields, and what each kind does. Pure.

Control records are in the log, in queue 0 of ``rmq_sys_TWINLOG_META``; each is a batch of its own
with one record, whose body is a msgpack map with ``kind``. They are applied on every node when the
confirm offset passes them, by a total, deterministic function: the same records in the same order
give the same state everywhere. A record of a kind that this version does not know changes nothing;
it stays in the log for a version that knows it.

A new kind is one class here, entered in `KINDS`: its methods say how it is written, when a master
must not append it, and what it changes, on the master from its append on and on every node from its
confirm on (R48). The state it changes must also be in `storage.recovery.snapshot`.

Not here: waiting for confirm (`storage.state.layers`), producers (`storage.state.producers`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self, cast

from storage.disk.packing import pack, unpack
from storage.messaging.groups import GROUPS_MAX, Group, group_fields, group_from
from storage.queues.names import topic_refusal
from storage.state.producers import Producers
from storage.state.topics import QUEUES_MAX, State, Topic
from twinlog.errors import CorruptionError


class Known(Protocol):
    """The topics of both layers; see `storage.state.layers.Layers`."""

    def existing(self, name: str) -> tuple[Topic, int] | None:
        """Return the topic and the log offset whose confirm makes it binding (0: it is binding)."""
        ...

    def group(self, name: str) -> tuple[Group, int] | None:
        """Return the group and the log offset whose confirm makes it so (0: it is)."""
        ...

    @property
    def groups(self) -> int:
        """How many groups there are."""
        ...


class Control(ABC):
    """One control record.

    Attributes:
        KIND: Its name in the record.
    """

    __slots__ = ()
    KIND: ClassVar[str]

    @classmethod
    @abstractmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """Return the control of a record's fields; None if they do not fit this kind."""

    @abstractmethod
    def fields(self) -> Mapping[str, object]:
        """Return the fields of the record, without its kind."""

    @abstractmethod
    def refusal(self, known: Known) -> tuple[str, str] | None:
        """Return (code, text) when the master must not append it; None when it may."""

    @abstractmethod
    def apply(self, state: State, end: int) -> bool:
        """Change the confirmed state, or a copy; return whether anything changed. Never raises.

        ``end`` is the log offset after the record's batch.
        """

    @abstractmethod
    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """Change a layer of producers; the record is at log offset ``at``."""

    def repeated(self, known: Known) -> int | None:
        """Return the end of the record that has done all of it already; None when none has."""
        return None

    @property
    def topic(self) -> Topic | None:
        """The topic that it creates, if any."""
        return None

    @property
    def dropped(self) -> Collection[str]:
        """The groups that are deleted with it, with all that they have consumed."""
        return ()


@dataclass(frozen=True, slots=True)
class CreateTopic(Control):
    """Creates a topic with ``queues`` queues.

    Attributes:
        name: Topic name, in RocketMQ's alphabet.
        queues: How many, from 1.
        created_ms: Wall time of the request; for people.
        batch: Its queues are batch queues: a record may hold several messages.
    """

    KIND: ClassVar[str] = "create-topic"
    name: str
    queues: int
    created_ms: int
    batch: bool = False

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """See `Control`."""
        match fields.get("name"), fields.get("queues"), fields.get("at"):
            case str(name), int(queues), int(created):
                return cls(name, queues, created, fields.get("batch") is True)
            case _:
                return None

    def fields(self) -> Mapping[str, object]:
        """See `Control`. Only batch topics name their kind: older records have no such field."""
        found: dict[str, object] = {
            "name": self.name, "queues": self.queues, "at": self.created_ms,
        }  # fmt: skip
        return found | {"batch": True} if self.batch else found

    @property
    def topic(self) -> Topic | None:
        """See `Control`."""
        return Topic(self.name, self.queues, self.created_ms, self.batch)

    def repeated(self, known: Known) -> int | None:
        """See `Control`."""
        # A topic that is appended but not yet confirmed exists, too: creating it again answers the
        # same offset, for which the caller waits.
        existing = known.existing(self.name)
        return existing[1] if existing is not None else None

    def refusal(self, known: Known) -> tuple[str, str] | None:
        """See `Control`. The same topic again is no error: the store answers "duplicate"."""
        reason = topic_refusal(self.name)
        if reason is not None:
            return "topic", reason
        if not 1 <= self.queues <= QUEUES_MAX:
            return "queues", f"a topic has 1 to {QUEUES_MAX} queues"
        existing = known.existing(self.name)
        if existing is None:
            return None
        other = existing[0]
        if other.queues != self.queues:
            return "topic-exists", f"topic {self.name} exists with {other.queues} queues"
        if other.batch != self.batch:
            kind = "batch" if other.batch else "simple"
            return "topic-exists", f"topic {self.name} exists with {kind} queues"
        return None

    def apply(self, state: State, end: int) -> bool:
        """See `Control`. An illegal topic that an older version accepted changes nothing."""
        # Every node must decide alike, so the rules are checked on apply, too, not only by the
        # master that appends.
        legal = topic_refusal(self.name) is None and 1 <= self.queues <= QUEUES_MAX
        return legal and state.add(Topic(self.name, self.queues, self.created_ms, self.batch))

    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """See `Control`: forgets no producer."""


@dataclass(frozen=True, slots=True)
class ForgetProducers(Control):
    """Makes all nodes forget producers whose last section ends at or below a log offset.

    Attributes:
        below: The log offset; not above that of the record itself.
    """

    KIND: ClassVar[str] = "forget-producers"
    below: int

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """See `Control`."""
        below = fields.get("below")
        return cls(below) if isinstance(below, int) else None

    def fields(self) -> Mapping[str, object]:
        """See `Control`."""
        return {"below": self.below}

    def refusal(self, known: Known) -> tuple[str, str] | None:
        """See `Control`: never."""
        return None

    def apply(self, state: State, end: int) -> bool:
        """See `Control`: producers are not part of that state."""
        return False

    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """See `Control`. Lines beyond the record itself stay: they began again after it."""
        # On the master this runs at the append, elsewhere when confirm passes; the bound makes both
        # forget the same lines.
        producers.forget(min(self.below, at), confirmed=confirmed)


@dataclass(frozen=True, slots=True)
class CreateGroups(Control):
    """Groups come into being; those that exist stay as they are.

    Attributes:
        groups: Their definitions.
    """

    KIND: ClassVar[str] = "create-groups"
    groups: tuple[Group, ...]

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """See `Control`."""
        groups = _definitions(fields)
        return cls(groups) if groups is not None else None

    def fields(self) -> Mapping[str, object]:
        """See `Control`."""
        return {"groups": [group_fields(group) for group in self.groups]}

    def repeated(self, known: Known) -> int | None:
        """See `Control`."""
        found = [known.group(group.name) for group in self.groups]
        same = [
            one[1]
            for one, group in zip(found, self.groups, strict=True)
            if one is not None and one[0].same(group)
        ]
        return max(same) if same and len(same) == len(found) else None

    def refusal(self, known: Known) -> tuple[str, str] | None:
        """See `Control`. The same groups once more are no error: the answer is "duplicate"."""
        wrong = _group_refusal(self.groups)
        if wrong is not None:
            return wrong
        new = 0
        for group in self.groups:
            existing = known.group(group.name)
            new += existing is None
            if existing is not None and existing[0].mode != group.mode:
                text = f"group {group.name} exists with mode {existing[0].mode} and keeps it"
                return "group-mode", text
            if existing is not None and not existing[0].same(group):
                return "group-exists", f"group {group.name} exists and is defined otherwise"
        if known.groups + new > GROUPS_MAX:
            return "groups", f"there are at most {GROUPS_MAX} groups; delete some first"
        return None

    def apply(self, state: State, end: int) -> bool:
        """See `Control`."""
        new = [one for one in self.groups if one.name not in state.groups and one.refusal() is None]
        for group in new:
            state.groups.setdefault(group.name, replace(group, created_at=end))
        return bool(new)

    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """See `Control`: forgets no producer."""


@dataclass(frozen=True, slots=True)
class AlterGroups(Control):
    """Groups are defined otherwise; mode and place of birth stay.

    Attributes:
        groups: Their whole definitions.
    """

    KIND: ClassVar[str] = "alter-groups"
    groups: tuple[Group, ...]

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """See `Control`."""
        groups = _definitions(fields)
        return cls(groups) if groups is not None else None

    def fields(self) -> Mapping[str, object]:
        """See `Control`."""
        return {"groups": [group_fields(group) for group in self.groups]}

    def refusal(self, known: Known) -> tuple[str, str] | None:
        """See `Control`."""
        wrong = _group_refusal(self.groups)
        if wrong is not None:
            return wrong
        for group in self.groups:
            existing = known.group(group.name)
            if existing is None:
                return "unknown-group", f"group {group.name} does not exist"
            if existing[0].mode != group.mode:
                text = f"group {group.name} has mode {existing[0].mode} and keeps it"
                return "group-mode", text
        return None

    def apply(self, state: State, end: int) -> bool:
        """See `Control`."""
        changed = False
        for group in self.groups:
            old = state.groups.get(group.name)
            if old is not None and old.mode == group.mode and group.refusal() is None:
                kept = replace(group, created_at=old.created_at, created_ms=old.created_ms)
                changed |= kept != old
                state.groups[group.name] = kept
        return changed

    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """See `Control`: forgets no producer."""


@dataclass(frozen=True, slots=True)
class DeleteGroups(Control):
    """Groups are deleted, with their shares, positions and members.

    Attributes:
        names: Which.
    """

    KIND: ClassVar[str] = "delete-groups"
    names: tuple[str, ...]

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """See `Control`."""
        names = fields.get("names")
        if not isinstance(names, list):
            return None
        found = cast("list[object]", names)
        return cls(tuple(str(name) for name in found)) if _texts(found) else None

    def fields(self) -> Mapping[str, object]:
        """See `Control`."""
        return {"names": list(self.names)}

    @property
    def dropped(self) -> Collection[str]:
        """See `Control`."""
        return self.names

    def refusal(self, known: Known) -> tuple[str, str] | None:
        """See `Control`."""
        for name in self.names:
            if known.group(name) is None:
                return "unknown-group", f"group {name} does not exist"
        return None if self.names else ("group", "no group is named")

    def apply(self, state: State, end: int) -> bool:
        """See `Control`."""
        found = [state.groups.pop(name, None) for name in self.names]
        return any(group is not None for group in found)

    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """See `Control`: forgets no producer."""


def _definitions(fields: Mapping[str, object]) -> tuple[Group, ...] | None:
    rows = fields.get("groups")
    if not isinstance(rows, list):
        return None
    found = [
        group_from(cast("Mapping[str, object]", row)) if isinstance(row, dict) else None
        for row in cast("list[object]", rows)
    ]
    groups = tuple(group for group in found if group is not None)
    return groups if len(groups) == len(found) else None


def _texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _group_refusal(groups: Sequence[Group]) -> tuple[str, str] | None:
    names = [group.name for group in groups]
    if not names or len(set(names)) < len(names):
        return "group", "one record defines at least one group, and each only once"
    return next((wrong for group in groups if (wrong := group.refusal()) is not None), None)


@dataclass(frozen=True, slots=True)
class UnknownControl(Control):
    """A control record of a later version."""

    KIND: ClassVar[str] = ""
    kind: str

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """See `Control`."""
        return cls(str(fields.get("kind")))

    def fields(self) -> Mapping[str, object]:
        """See `Control`."""
        return {"kind": self.kind}

    def refusal(self, known: Known) -> tuple[str, str] | None:
        """See `Control`."""
        return "control", "this version does not know this kind of change"

    def apply(self, state: State, end: int) -> bool:
        """See `Control`."""
        return False

    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """See `Control`: forgets no producer."""


KINDS: Mapping[str, type[Control]] = {
    kind.KIND: kind
    for kind in (CreateTopic, ForgetProducers, CreateGroups, AlterGroups, DeleteGroups)
}
"""Every kind that this version knows, by the name in the record."""


def encode_control(change: Control) -> bytes:
    """Return the body of the control record of ``change``.

    >>> decode_control(encode_control(CreateTopic("flights", 8, 1)))
    CreateTopic(name='flights', queues=8, created_ms=1, batch=False)
    """
    return pack({"kind": change.KIND, **change.fields()})


def decode_control(body: bytes) -> Control:
    """Decode a control record; never fails: an unreadable one is an `UnknownControl`."""
    try:
        fields = unpack(body)
    except CorruptionError:
        return UnknownControl("unreadable")
    kind = fields.get("kind")
    known = KINDS.get(kind) if isinstance(kind, str) else None
    return (known.read(fields) if known is not None else None) or UnknownControl(str(kind))

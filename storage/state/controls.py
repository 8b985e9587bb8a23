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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self, cast

from storage.disk.packing import pack, unpack
from storage.queues.names import topic_refusal
from storage.state.access import (
    RULES_MAX,
    USERS_MAX,
    Access,
    Rule,
    User,
    rule_of,
    rule_refusal,
    user_of,
    user_refusal,
    user_row,
)
from storage.state.control import Control, Known, texts
from storage.state.group_controls import AlterGroups, CreateGroups, DeleteGroups
from storage.state.producers import Producers
from storage.state.topic_controls import AlterTopic
from storage.state.topics import DELETED_MAX, QUEUES_MAX, Gone, State, Topic
from twinlog.errors import CorruptionError
from twinlog.levels import LATER


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
        gone = known.gone(self.name)
        if gone is not None and gone.batch != self.batch:
            kind = "batch" if gone.batch else "simple"
            text = f"topic {self.name} was deleted, and its name keeps {kind} queues"
            return "topic-kind", text
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
        gone = state.deleted.get(self.name)
        if gone is not None and (gone.end >= end or gone.batch != self.batch):
            return False  # a seed knows a later deletion already; the kind is kept
        since = gone.end if gone is not None else 0
        made = Topic(self.name, self.queues, self.created_ms, self.batch, since)
        return legal and state.add(made)

    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """See `Control`: forgets no producer."""


@dataclass(frozen=True, slots=True)
class DeleteTopic(Control):
    """Deletes a topic. Its records stay in the log until retention takes them; no reader gets them.

    On the master it binds from its append: no section, waiting record or member is accepted for the
    topic. On every node, when the dispatcher passes it, its queues begin at their ends, and what
    groups have consumed of it is forgotten.

    Attributes:
        name: Which.
        deleted_ms: Wall time of the request; for people.
    """

    KIND: ClassVar[str] = "delete-topic"
    LEVEL: ClassVar[int] = LATER
    name: str
    deleted_ms: int

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """See `Control`."""
        match fields.get("name"), fields.get("at"):
            case str(name), int(deleted):
                return cls(name, deleted)
            case _:
                return None

    def fields(self) -> Mapping[str, object]:
        """See `Control`."""
        return {"name": self.name, "at": self.deleted_ms}

    @property
    def deleted(self) -> str:
        """See `Control`."""
        return self.name

    def refusal(self, known: Known) -> tuple[str, str] | None:
        """See `Control`."""
        reason = topic_refusal(self.name)
        if reason is not None:
            return "topic", reason
        gone, existing = known.gone(self.name), known.existing(self.name)
        if existing is None and gone is None:
            return "unknown-topic", f"topic {self.name} does not exist"
        if existing is not None and existing[1]:
            return "busy", f"topic {self.name} exists and is not confirmed yet"
        if gone is None and known.gone_topics >= DELETED_MAX:
            return "topics-deleted", f"at most {DELETED_MAX} names of topics can be deleted"
        return None

    def repeated(self, known: Known) -> int | None:
        """See `Control`."""
        gone = known.gone(self.name) if known.existing(self.name) is None else None
        return gone.end if gone is not None else None

    def apply(self, state: State, end: int) -> bool:
        """See `Control`."""
        return state.delete(Gone(self.name, end, self.deleted_ms))

    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """See `Control`: producers go on where they are if the topic is made again."""


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
class ChangeAccess(Control):
    """Users and rules are removed, then others made; a user that exists is replaced.

    A user leaves with the rules that name it. What is removed binds the master from the append,
    what is made binds from its confirm (R48); see `storage.state.layers.Layers.access_now`.

    Attributes:
        users: Made or replaced.
        rules: Made.
        gone: Names of users that are removed.
        ended: Rules that are removed.
    """

    KIND: ClassVar[str] = "access"
    LEVEL: ClassVar[int] = LATER
    users: tuple[User, ...] = ()
    rules: tuple[Rule, ...] = ()
    gone: tuple[str, ...] = ()
    ended: tuple[Rule, ...] = ()

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """See `Control`."""
        rows = [fields.get(name) for name in ("users", "rules", "gone", "ended")]
        if not all(isinstance(one, list) for one in rows):
            return None
        made, new, gone, old = (cast("list[object]", one) for one in rows)
        users = [user_of(row) for row in made]
        rules, ended = [rule_of(row) for row in new], [rule_of(row) for row in old]
        if None in users or None in rules or None in ended or not texts(gone):
            return None
        return cls(
            tuple(one for one in users if one), tuple(one for one in rules if one),
            tuple(str(one) for one in gone), tuple(one for one in ended if one),
        )  # fmt: skip

    def fields(self) -> Mapping[str, object]:
        """See `Control`."""
        return {
            "users": [user_row(user) for user in self.users],
            "rules": [[rule.who, rule.right, rule.what] for rule in self.rules],
            "gone": list(self.gone),
            "ended": [[rule.who, rule.right, rule.what] for rule in self.ended],
        }

    def refusal(self, known: Known) -> tuple[str, str] | None:
        """See `Control`."""
        wrong = self._illegal()
        if wrong is not None:
            return "access", wrong
        access = known.access
        for name in self.gone:
            if name not in access.users:
                return "unknown-user", f"there is no user {name}"
        if not access.rules.issuperset(self.ended):
            return "unknown-rule", "there is no such rule"
        after = self._after(access)
        if len(after.users) > USERS_MAX or len(after.rules) > RULES_MAX:
            return "access", f"there are at most {USERS_MAX} users and {RULES_MAX} rules"
        return None

    def _illegal(self) -> str | None:
        if not (self.users or self.rules or self.gone or self.ended):
            return "nothing is changed"
        found = [*map(user_refusal, self.users), *map(rule_refusal, self.rules)]
        return next((one for one in found if one is not None), None)

    def _after(self, access: Access) -> Access:
        gone = set(self.gone)
        users = {name: one for name, one in access.users.items() if name not in gone}
        rules = frozenset(one for one in access.rules if one.who not in gone)
        made = {one.name: one for one in self.users}
        return Access(users | made, rules.difference(self.ended).union(self.rules))

    def apply(self, state: State, end: int) -> bool:
        """See `Control`. What an older version took and this one does not changes nothing."""
        if self._illegal() is not None:
            return False
        before, state.access = state.access, self._after(state.access)
        return before != state.access

    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """See `Control`: forgets no producer."""


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
    for kind in (
        CreateTopic,
        DeleteTopic,
        AlterTopic,
        ForgetProducers,
        CreateGroups,
        AlterGroups,
        DeleteGroups,
        ChangeAccess,
    )
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

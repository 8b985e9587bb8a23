"""The control record that alters a topic: queues, permission, quotas. Pure.

A record names what it changes and leaves the rest, so two of them in one log do not undo each
other. What it takes away binds the master from its append, what it gives binds from its confirm
(R48); see `storage.state.layers.Layers.open`.

Not here: what follows from a permission or a quota (``node.clients``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

from storage.queues.names import topic_refusal
from storage.state.control import Control, Known
from storage.state.producers import Producers
from storage.state.topics import QUEUES_MAX, RATE_MAX, READ, WRITE, State, Topic
from twinlog.levels import LATER

PERMISSIONS = frozenset({0, WRITE, READ, READ | WRITE})


@dataclass(frozen=True, slots=True)
class AlterTopic(Control):
    """Alters a topic; None leaves a property as it is.

    Attributes:
        name: Which.
        altered_ms: Wall time of the request; for people.
        queues: How many queues are read; never fewer than before.
        write_queues: How many of them take messages, from the first on.
        permission: `READ`, `WRITE`, both or nothing.
        records_per_second: Of messages sent to it; 0 ends the quota.
        bytes_per_second: Likewise.
    """

    KIND: ClassVar[str] = "alter-topic"
    LEVEL: ClassVar[int] = LATER
    name: str
    altered_ms: int
    queues: int | None = None
    write_queues: int | None = None
    permission: int | None = None
    records_per_second: int | None = None
    bytes_per_second: int | None = None

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """See `Control`."""
        given = {name: fields[name] for name in PROPERTIES if name in fields}
        if not all(type(value) is int for value in given.values()):
            return None
        match fields.get("name"), fields.get("at"):
            case str(name), int(at):
                numbers = {key: value for key, value in given.items() if isinstance(value, int)}
                return cls(name, at, **numbers)
            case _:
                return None

    def fields(self) -> Mapping[str, object]:
        """See `Control`."""
        return {"name": self.name, "at": self.altered_ms, **self.changes()}

    def changes(self) -> dict[str, int]:
        """Return the properties that it sets, by name."""
        values = {name: getattr(self, name) for name in PROPERTIES}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def altered(self) -> str:
        """See `Control`."""
        return self.name

    def of(self, topic: Topic) -> Topic:
        """Return the topic as this leaves it; queues are never fewer than before."""
        queues, write = max(topic.queues, self.queues or 0), topic.write_queues
        if self.write_queues is not None:  # all of them means those that come later, too
            write = self.write_queues if self.write_queues < queues else 0
        return replace(
            topic,
            queues=queues,
            write_queues=write,
            permission=_or(self.permission, topic.permission),
            records_per_second=_or(self.records_per_second, topic.records_per_second),
            bytes_per_second=_or(self.bytes_per_second, topic.bytes_per_second),
        )

    def refusal(self, known: Known) -> tuple[str, str] | None:
        """See `Control`."""
        reason = topic_refusal(self.name)
        if reason is not None:
            return "topic", reason
        existing = known.existing(self.name)
        if existing is None:
            gone = known.gone(self.name)
            code = "unknown-topic" if gone is None else "topic-deleted"
            return code, f"topic {self.name} does not exist"
        if self._illegal():
            return "topic-terms", self._illegal()
        queues = existing[0].queues
        if self.queues is not None and self.queues < queues:
            text = f"topic {self.name} has {queues} queues, and queues are never taken away; "
            return "queues", text + f"to send to {self.queues} of them, set the write queues"
        most = max(queues, self.queues or 0)
        if self.write_queues is not None and self.write_queues > most:
            text = f"topic {self.name} has {most} queues; {self.write_queues} cannot take messages"
            return "queues", text
        return None

    def _illegal(self) -> str:
        if not self.changes():
            return "nothing is changed"
        for count in (self.queues, self.write_queues):
            if count is not None and not 1 <= count <= QUEUES_MAX:
                return f"a topic has 1 to {QUEUES_MAX} queues"
        if self.permission is not None and self.permission not in PERMISSIONS:
            return f"a permission is 2 (write), 4 (read) or 6 (both), not {self.permission}"
        for rate in (self.records_per_second, self.bytes_per_second):
            if rate is not None and not 0 <= rate <= RATE_MAX:
                return f"a quota is a number from 1 to {RATE_MAX} a second, or 0 for none"
        return ""

    def repeated(self, known: Known) -> int | None:
        """See `Control`: the topic is as this would leave it."""
        existing = known.existing(self.name)
        if existing is None or self.of(existing[0]) != existing[0]:
            return None
        return existing[1]

    def apply(self, state: State, end: int) -> bool:
        """See `Control`. What an older version took and this one does not changes nothing."""
        topic = state.topics.get(self.name)
        if topic is None or self._illegal():
            return False
        if self.write_queues is not None and self.write_queues > max(
            topic.queues, self.queues or 0
        ):
            return False
        return state.alter(replace(self.of(topic), altered=end))

    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """See `Control`: forgets no producer."""


def _or(given: int | None, otherwise: int) -> int:
    return otherwise if given is None else given


PROPERTIES = tuple(one.name for one in fields(AlterTopic))[2:]
"""Names of what can be altered, in the record and on the wire."""

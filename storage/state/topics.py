"""The topics and groups that exist: the confirmed state that control records change. Pure.

A topic may be deleted and made again. Its queues go on at their offsets then, and only records
after its deletion, from ``Topic.since`` on, belong to the topic of today.

Not here: the control records (`storage.state.controls`), pending ones (`storage.state.layers`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from storage.messaging.groups import Group
from storage.queues.names import light_refusal
from storage.state.access import Access
from twinlog.format.system_topics import (
    DELAY_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    SYSTEM_TOPIC_EPOCH,
    SYSTEM_TOPIC_GROUP,
    SYSTEM_TOPIC_META,
    TIMER_TOPIC,
)
from twinlog.format.waiting.delay_levels import LEVELS

QUEUES_MAX = 65_536
DELETED_MAX = 65_536
"""Names of deleted topics that are known; each is in every snapshot."""
_OWN = frozenset(
    {SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_META, SYSTEM_TOPIC_GROUP, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC}
)
"""Topics of the store's own, with one queue each."""
_NEVER = _OWN | {DELAY_TOPIC}
"""No topics, though adoptions by older versions created some of them: a log and a snapshot that
name one must give the same state on every node, and the master never takes one for a user's."""
READ, WRITE = 4, 2
"""Bits of a topic's permission, as RocketMQ writes them."""
RATE_MAX = 1 << 53
"""Largest quota, records or bytes a second."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists; see `storage.state.controls.CreateTopic`.

    Attributes:
        queues: How many queues are read; their number only grows.
        since: Log offset after the record that deleted the last topic of this name; 0: there was
            none. Records below it are of another topic.
        write_queues: How many of them, from the first on, take messages; 0: all.
        permission: `READ`, `WRITE`, both or nothing.
        records_per_second: Of messages sent to it; 0: no quota.
        bytes_per_second: Likewise.
        altered: Log offset after the record that altered it last; 0: none did.
        writable: Queues that take messages now: none where it may not be written.
    """

    name: str
    queues: int
    created_ms: int
    batch: bool = False
    since: int = 0
    write_queues: int = 0
    permission: int = READ | WRITE
    records_per_second: int = 0
    bytes_per_second: int = 0
    altered: int = 0
    writable: int = field(init=False, compare=False, default=0)

    def __post_init__(self) -> None:
        """Compute what every append asks for."""
        found = self.takes if self.permission & WRITE else 0
        object.__setattr__(self, "writable", found)

    @property
    def takes(self) -> int:
        """How many queues take messages where it may be written."""
        return self.write_queues or self.queues

    @property
    def quota(self) -> tuple[int, int]:
        """Records and bytes a second; 0: no quota of that kind."""
        return self.records_per_second, self.bytes_per_second

    def meet(self, other: Topic) -> Topic:
        """Return the topic with what both of them allow: one is a later state of the other."""
        rates = (_least(mine, its) for mine, its in zip(self.quota, other.quota, strict=True))
        records, size = rates
        queues, write = min(self.queues, other.queues), min(self.takes, other.takes)
        return replace(
            self, queues=queues, write_queues=write, permission=self.permission & other.permission,
            records_per_second=records, bytes_per_second=size,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gone:
    """The last deletion of a topic; kept when the topic is made again.

    Attributes:
        name: Its name.
        end: Log offset after the record that deleted it.
        deleted_ms: Wall time of the request; for people.
        batch: The kind of its queues, which a topic of that name keeps.
    """

    name: str
    end: int
    deleted_ms: int
    batch: bool = False


class State:
    """The confirmed layer: all topics, the definitions of all groups, users and rules.

    Attributes:
        topics: By name.
        groups: By name.
        access: Users and rules; replaced as a whole.
        batched: Names of the topics with batch queues; in an adopted store also of topics that are
            not created yet.
        deleted: Deletions, by name of the topic.

    >>> state = State()
    >>> state.add(Topic("t", 4, 1)), state.add(Topic("t", 9, 2))
    (True, False)
    >>> state.queues("t")
    4
    """

    def __init__(
        self,
        topics: Iterable[Topic] = (),
        batched: Iterable[str] = (),
        groups: Iterable[Group] = (),
        access: Access | None = None,
        deleted: Iterable[Gone] = (),
    ) -> None:
        self.access = access or Access()
        self.deleted: dict[str, Gone] = {
            gone.name: gone for gone in deleted if gone.name not in _NEVER
        }
        self.groups: dict[str, Group] = {group.name: group for group in groups}
        self.topics: dict[str, Topic] = {
            topic.name: topic for topic in topics if topic.name not in _NEVER
        }
        self.batched = {name for name in batched if name not in _NEVER}
        self.batched |= {name for name, one in self.topics.items() if one.batch}

    def add(self, topic: Topic) -> bool:
        """Add a topic; False if the name exists, whose topic stays unchanged, or is no topic's."""
        if topic.name in self.topics or topic.name in _NEVER:
            return False
        self.topics[topic.name] = topic
        if topic.batch:
            self.batched.add(topic.name)
        return True

    def delete(self, gone: Gone) -> bool:
        """Delete a topic; False if it is missing, or if this was done before."""
        topic, before = self.topics.get(gone.name), self.deleted.get(gone.name)
        if topic is None or (before is not None and before.end >= gone.end):
            return False
        del self.topics[gone.name]
        self.deleted[gone.name] = replace(gone, batch=topic.batch)
        return True

    def alter(self, topic: Topic) -> bool:
        """Replace a topic by a later state of it; False if it is missing, or altered later."""
        known = self.topics.get(topic.name)
        if known is None or max(known.altered, known.since) >= topic.altered:
            return False
        self.topics[topic.name] = topic
        return True

    def queues(self, topic: str) -> int | None:
        """Return how many queues a topic has; light queues and the store's own topics have one."""
        found = self.topics.get(topic)
        if found is not None:
            return found.queues
        if light_refusal(topic) is None:
            return 1
        if topic == DELAY_TOPIC:
            return LEVELS
        return 1 if topic in _OWN else None


def _least(one: int, other: int) -> int:
    """Return the smaller of two quotas, where 0 stands for no quota."""
    return min(one, other) if one and other else one or other

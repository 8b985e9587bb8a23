"""The topics and groups that exist: the confirmed state that control records change. Pure.

Not here: the control records (`storage.state.controls`), pending ones (`storage.state.layers`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from storage.messaging.groups import Group
from storage.queues.names import light_refusal
from twinlog.format.system_topics import (
    SYSTEM_TOPIC_EPOCH,
    SYSTEM_TOPIC_GROUP,
    SYSTEM_TOPIC_META,
)

QUEUES_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists; see `storage.state.controls.CreateTopic`."""

    name: str
    queues: int
    created_ms: int
    batch: bool = False


class State:
    """The confirmed layer: all topics, and the definitions of all groups.

    Attributes:
        topics: By name.
        groups: By name.
        batched: Names of the topics with batch queues; in an adopted store also of topics that are
            not created yet.

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
    ) -> None:
        self.groups: dict[str, Group] = {group.name: group for group in groups}
        self.topics: dict[str, Topic] = {topic.name: topic for topic in topics}
        self.batched = set(batched) | {name for name, one in self.topics.items() if one.batch}

    def add(self, topic: Topic) -> bool:
        """Add a topic; False if the name exists, whose topic stays unchanged."""
        if topic.name in self.topics:
            return False
        self.topics[topic.name] = topic
        if topic.batch:
            self.batched.add(topic.name)
        return True

    def queues(self, topic: str) -> int | None:
        """Return how many queues a topic has; system topics and light queues have one."""
        found = self.topics.get(topic)
        if found is not None:
            return found.queues
        if light_refusal(topic) is None:
            return 1
        return 1 if topic in (SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_META, SYSTEM_TOPIC_GROUP) else None

"""Topics, groups, users and rules in two layers: confirmed, and pending until confirm passes. Pure.

*Confirmed* is a `storage.state.topics.State`; *pending* are control records between confirm and the
end of the log, in log order. A cut drops pending records beyond it. A permission (a created topic)
binds from its confirm; a restriction binds the master from its append.

Not here: the control records (`storage.state.controls`), producers (`storage.state.producers`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from storage.messaging.groups import Group
from storage.state.access import Access
from storage.state.control import Control
from storage.state.controls import ChangeAccess
from storage.state.topics import READ, Gone, State, Topic
from twinlog.errors import NotYetConfirmed, TopicDeleted, TwinlogError, UnknownTopic
from twinlog.levels import LEVEL


class Layers:
    """The confirmed state, and the control records that are not confirmed yet.

    Attributes:
        confirmed: The state that readers use.
        level: The group's: no record of a higher level is appended (R74).
        open: The topics that may be written and consumed: those that are confirmed, without those
            that a record in the log deletes, and with what every record that alters them allows.
        closed: Names of topics of which no message may be read.
        narrowed: Topics that do not take messages in all of their queues: in how many they do.
        grown: How many queues a topic has that was altered.
        limited: Topics with a quota: records and bytes a second, 0 for none.
    """

    def __init__(self, confirmed: State | None = None) -> None:
        self.confirmed = confirmed or State()
        self.level = LEVEL
        self.open: Mapping[str, Topic] = self.confirmed.topics
        self.closed: frozenset[str] = frozenset()
        self.narrowed: Mapping[str, int] = {}
        self.grown: Mapping[str, int] = {}
        self.limited: Mapping[str, tuple[int, int]] = {}
        self._pending: deque[tuple[int, Control]] = deque()
        self._access: Access | None = None
        self._list_terms()

    def append(self, end: int, change: Control) -> None:
        """Note a control record whose batch ends at log offset ``end``."""
        self._pending.append((end, change))
        self._moved(change)

    def _moved(self, change: Control) -> None:
        if isinstance(change, ChangeAccess):
            self._access = None
        if change.deleted or change.altered or change.topic is not None:
            self._open_again()
        if change.deleted or change.altered:
            self._list_terms()

    def _open_again(self) -> None:
        # A deletion is a restriction: it binds from its append (R48).
        closed = {one.deleted for _, one in self._pending if one.deleted}
        topics = self.confirmed.topics
        altered = {one.altered for _, one in self._pending if one.altered in topics} - closed
        if closed or altered:
            topics = {name: topic for name, topic in topics.items() if name not in closed}
            topics |= {name: self._narrowed(topics[name]) for name in altered}
        self.open = topics

    def _list_terms(self) -> None:
        topics = self.open
        self.closed = frozenset(n for n, one in topics.items() if not one.permission & READ)
        self.narrowed = {n: one.writable for n, one in topics.items() if one.writable < one.queues}
        self.grown = {n: one.queues for n, one in topics.items() if one.altered}
        self.limited = {n: one.quota for n, one in topics.items() if any(one.quota)}

    def _narrowed(self, topic: Topic) -> Topic:
        """Return what a topic and all that pending records make of it allow."""
        found, one = topic, State((topic,))
        for end, change in self._pending:
            if change.altered == topic.name and change.apply(one, end):
                found = found.meet(one.topics[topic.name])
        return found

    @property
    def access(self) -> Access:
        """Users and rules as of the end of the log."""
        return self.whole().access

    def access_now(self) -> Access:
        """Return the users and rules that bind now: the same object until they may have changed.

        Those that are confirmed and that no pending record has removed or replaced.
        """
        if self._access is None:
            found = self.confirmed.access
            state = State(access=found)
            for end, change in self._pending:
                if isinstance(change, ChangeAccess):
                    change.apply(state, end)
                    found = found.common(state.access)
            self._access = found
        return self._access

    def _waiting(self) -> list[tuple[Topic, int]]:
        """Return the topics that pending records create, with the ends of those records."""
        return [(one.topic, end) for end, one in self._pending if one.topic is not None]

    def batched(self) -> frozenset[bytes]:
        """Return the names of topics with batch queues in either layer, as they are stored."""
        names = self.confirmed.batched.union(one.name for one, _ in self._waiting() if one.batch)
        return frozenset(name.encode() for name in names)

    def whole(self) -> State:
        """Return the state as of the end of the log: RocketMQ reads the whole log."""
        if not self._pending:
            return self.confirmed
        known = self.confirmed
        found = State(
            known.topics.values(), known.batched, known.groups.values(), known.access,
            known.deleted.values(),
        )  # fmt: skip
        for end, change in self._pending:
            change.apply(found, end)
        return found

    def confirm(self, confirm: int) -> bool:
        """Apply the control records below ``confirm``; returns whether anything changed."""
        changed = False
        while self._pending and self._pending[0][0] <= confirm:
            end, change = self._pending.popleft()
            changed |= change.apply(self.confirmed, end)
            self._moved(change)
        return changed

    def cut(self, end: int) -> None:
        """Forget the control records beyond ``end``."""
        while self._pending and self._pending[-1][0] > end:
            self._moved(self._pending.pop()[1])

    def topics_waiting(self) -> bool:
        """Return whether a new topic is pending."""
        return any(one.name not in self.confirmed.topics for one, _ in self._waiting())

    def missing(self, name: str) -> TwinlogError:
        """Return why a topic that is not in the confirmed layer cannot be used.

        Retryable if the log has its record: after a restart of all nodes confirm has to pass it
        again.
        """
        if self.existing(name) is not None:
            return NotYetConfirmed(f"topic {name} is not confirmed yet", topic=name)
        gone = self.gone(name)
        if gone is not None:
            return TopicDeleted.at(name, gone.deleted_ms)
        return UnknownTopic(f"topic {name} does not exist", topic=name)

    def existing(self, name: str) -> tuple[Topic, int] | None:
        """Return a topic as the whole log has it, and the log offset whose confirm makes it so.

        That is 0 when it is confirmed already. A deletion binds from its append: then None.
        """
        return self._traced(name)[0]

    def gone(self, name: str) -> Gone | None:
        """Return the last deletion of a topic, confirmed or not, even if it was made again."""
        return self._traced(name)[1]

    def _traced(self, name: str) -> tuple[tuple[Topic, int] | None, Gone | None]:
        topic, gone = self.confirmed.topics.get(name), self.confirmed.deleted.get(name)
        found, since = topic, 0
        if self._pending:
            one = State(() if topic is None else (topic,), deleted=() if gone is None else (gone,))
            for end, change in self._pending:
                if name in (change.deleted, change.altered, change.topic and change.topic.name):
                    change.apply(one, end)
                    if one.topics.get(name) != found:
                        found, since = one.topics.get(name), end
            gone = one.deleted.get(name)
        return ((found, since) if found is not None else None), gone

    @property
    def gone_topics(self) -> int:
        """How many names of topics were ever deleted."""
        return len(self.whole().deleted)

    def group(self, name: str) -> tuple[Group, int] | None:
        """Return a group as the whole log defines it, and the log offset that makes it so.

        That is 0 when it is confirmed already. A deletion binds from its append: then None.
        """
        found, since = self.confirmed.groups.get(name), 0
        if self._pending:
            one = State(groups=() if found is None else (found,))
            for end, change in self._pending:
                change.apply(one, end)
                if one.groups.get(name) != found:
                    found, since = one.groups.get(name), end
        return (found, since) if found is not None else None

    def standing_group(self, name: str) -> Group | None:
        """Return a group that is confirmed and that no deletion in the log ends, as last altered.

        One that was deleted and made again stands only once that is confirmed.
        """
        found = self.confirmed.groups.get(name)
        if self._pending and found is not None:
            one = State(groups=(found,))
            for end, change in self._pending:
                change.apply(one, end)
                found = one.groups.get(name)
                if found is None:
                    break
        return found

    @property
    def groups(self) -> int:
        """How many groups there are, with those that wait for their confirm."""
        return len(self.whole().groups)

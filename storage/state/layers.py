"""Topics and groups in two layers: confirmed, and pending until confirm passes. Pure.

*Confirmed* is a `storage.state.topics.State`; *pending* are control records between confirm and the
end of the log, in log order. A cut drops pending records beyond it. A permission (a created topic)
binds from its confirm; a restriction binds the master from its append.

Not here: the control records (`storage.state.controls`), producers (`storage.state.producers`).
"""

from __future__ import annotations

from collections import deque

from storage.messaging.groups import Group
from storage.state.controls import Control
from storage.state.topics import State, Topic
from twinlog.errors import NotYetConfirmed, TwinlogError, UnknownTopic


class Layers:
    """The confirmed state, and the control records that are not confirmed yet.

    Attributes:
        confirmed: The state that readers and writers use.
    """

    def __init__(self, confirmed: State | None = None) -> None:
        self.confirmed = confirmed or State()
        self._pending: deque[tuple[int, Control]] = deque()

    def append(self, end: int, change: Control) -> None:
        """Note a control record whose batch ends at log offset ``end``."""
        self._pending.append((end, change))

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
        found = State(known.topics.values(), known.batched, known.groups.values())
        for end, change in self._pending:
            change.apply(found, end)
        return found

    def confirm(self, confirm: int) -> bool:
        """Apply the control records below ``confirm``; returns whether anything changed."""
        changed = False
        while self._pending and self._pending[0][0] <= confirm:
            end, change = self._pending.popleft()
            changed |= change.apply(self.confirmed, end)
        return changed

    def cut(self, end: int) -> None:
        """Forget the control records beyond ``end``."""
        while self._pending and self._pending[-1][0] > end:
            self._pending.pop()

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
        return UnknownTopic(f"topic {name} does not exist", topic=name)

    def existing(self, name: str) -> tuple[Topic, int] | None:
        """Return a topic, and the log offset whose confirm makes it binding (0: it is)."""
        topic = self.confirmed.topics.get(name)
        if topic is not None:
            return topic, 0
        return next((found for found in self._waiting() if found[0].name == name), None)

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

    @property
    def groups(self) -> int:
        """How many groups there are, with those that wait for their confirm."""
        return len(self.whole().groups)

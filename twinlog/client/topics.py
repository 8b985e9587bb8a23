"""What a client does with topics: list, create, alter and delete them, ask where queues end.

Not here: sending and reading (``twinlog.client.blocking``).
"""

from __future__ import annotations

from typing import Unpack

from twinlog.client.arguments import Duration, seconds_of
from twinlog.client.calls import Calls, TopicChanges
from twinlog.session.caller import Caller
from twinlog.wire.schema import QUEUES_DEFAULT


class TopicMethods:
    """The part of `Client` that is about topics.

    Attributes:
        timeout: How long one call may take, seconds.
    """

    timeout: float
    _caller: Caller
    _calls: Calls

    def topics(self, *, timeout: Duration | None = None) -> dict[str, int]:
        """Return the number of queues by topic name, sorted."""
        return self._caller.run(self._calls.topics(self._seconds(timeout)))

    def create_topic(
        self,
        name: str,
        queues: int = QUEUES_DEFAULT,
        *,
        batch: bool = False,
        timeout: Duration | None = None,
    ) -> bool:
        """Create a topic; False when it exists already with such queues, 8 unless said otherwise.

        With ``batch`` it has batch queues (RocketMQ's BatchCQ): producers store neighbours as one
        record, which every reader takes apart again.

        Raises:
            OutcomeUnknown: It may or may not have been created.
            UsageError: It exists with another number or kind of queues, or its name is not allowed.
        """
        seconds = self._seconds(timeout)
        return self._caller.run(self._calls.create_topic(name, queues, batch, seconds))

    def alter_topic(
        self, name: str, *, timeout: Duration | None = None, **changes: Unpack[TopicChanges]
    ) -> bool:
        """Alter a topic; False when it is so already. What is left out stays as it is.

        Args:
            name: Which.
            timeout: Instead of the client's.
            changes: The fields of `TopicChanges`.

        Raises:
            OutcomeUnknown: It may or may not have been altered; asking again is safe.
            UsageError: No such topic; fewer queues than it has (``queues``); a value that is not
                allowed.
        """
        seconds = self._seconds(timeout)
        return self._caller.run(self._calls.alter_topic(name, changes, seconds))

    def delete_topic(
        self, name: str, *, consumed: bool = False, timeout: Duration | None = None
    ) -> bool:
        """Delete a topic with its messages; False when it was deleted before.

        No reader and no group gets them; what waits for it is undeliverable. The name can be used
        again once the log holds none of them. With ``consumed``: although groups consume it.

        Raises:
            OutcomeUnknown: It may or may not have been deleted; asking again is safe.
            UsageError: No such topic; groups consume it (``topic-consumed``); the store's own.
        """
        return self._caller.run(self._calls.delete_topic(name, consumed, self._seconds(timeout)))

    def offsets(self, topic: str, *, timeout: Duration | None = None) -> dict[int, tuple[int, int]]:
        """Return (start, end) by queue, as the master knows them.

        Raises:
            UnknownTopic: It does not exist.
        """
        return self._caller.run(self._calls.offsets(topic, self._seconds(timeout)))

    def _seconds(self, timeout: Duration | None) -> float:
        return self.timeout if timeout is None else seconds_of(timeout)

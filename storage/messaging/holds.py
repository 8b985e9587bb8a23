"""Which part of the log groups still need: messages that are leased, or wait for another attempt.

Retention asks before a log file goes (`storage.retention.removal`). A message that was never handed
out holds nothing: a group that is merely late reads on after what is gone, as any reader does.

The first message of a share that is not settled is the one at ``low``, so one lookup in its queue
says what the share holds; it is remembered until ``low`` moves.

Pure. Not here: the lookup (`storage.recovery.derived`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from storage.messaging.share import Share

Locate = Callable[[str, int, int], int]
"""(topic, queue, queue offset): log offset of that message, or of the first one kept after it."""


class Holds:
    """Where the first message lies that a share has handed out and not settled.

    Args:
        locate: The lookup.
    """

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self._known: dict[tuple[str, int, int], int] = {}

    def below(self, shares: Iterable[Share], offset: int) -> Iterator[tuple[Share, int]]:
        """Yield the shares that hold a message below log offset ``offset``, and where it lies."""
        known: dict[tuple[str, int, int], int] = {}
        for share in shares:
            if share.low >= share.next:
                continue
            place = share.topic, share.queue, share.low
            at = self._known.get(place)
            if at is None:
                at = self._locate(*place)
            # Only what was asked for now is remembered: shares that moved on leave nothing behind.
            known[place] = at
            if at < offset:
                yield share, at
        self._known = known

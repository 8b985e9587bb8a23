"""The name of a transaction as its messages carry it, with the queues that they are for. Pure.

A commit is one batch of the log, which holds sections for `PLACES_MAX` queues. So a message for
one queue more is refused when it is sent, and one that may go to any queue of its topic goes to one
that the transaction writes to anyway.

Not here: what is stored of a name (`twinlog.format.waiting.halves`).
"""

from __future__ import annotations

from typing import Final

from twinlog.errors import UsageError

PLACES_MAX: Final = 64
"""Queues that the messages of one transaction are for."""


class TransactionName(str):
    """Producer group, ``/`` and a name that no other transaction has.

    >>> name = TransactionName("shop/7f")
    >>> [name.place("orders", queue) for queue in range(64)][0]
    >>> name.turn("orders", 64)
    0
    """

    _places: dict[tuple[str, int], None]

    def __new__(cls, text: str) -> TransactionName:
        """Return a name that writes to no queue yet."""
        made = super().__new__(cls, text)
        made._places = {}
        return made

    def turn(self, topic: str, queue: int) -> int:
        """Return the queue for a message whose turn it is at ``queue``, if it may go to any."""
        if (topic, queue) in self._places or len(self._places) < PLACES_MAX:
            return queue
        mine = [each for name, each in self._places if name == topic]
        return mine[queue % len(mine)] if mine else queue

    def place(self, topic: str, queue: int) -> None:
        """Note that a message goes there.

        Raises:
            UsageError: It would be one queue too many, code ``too-large``.
        """
        if (topic, queue) not in self._places and len(self._places) >= PLACES_MAX:
            text = (
                f"{topic}/{queue} would be the {PLACES_MAX + 1}th queue of the transaction; "
                f"its commit writes to {PLACES_MAX} at most"
            )
            hint = "use fewer topics, order keys or queues; or commit it and begin another one"
            raise UsageError(text, code="too-large", hint=hint)
        self._places[topic, queue] = None

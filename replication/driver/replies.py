"""Answers that clients wait for: each reply is called exactly once, with what is known then.

Where an acknowledgement holds when its bytes are stored, the answer is said at once. Otherwise it
waits until the core says `commands.Release` (it holds) or `commands.GiveUp` (nobody knows in time).
Orders that have one code as their answer (a transfer, a stop) wait under numbers of the same row.

A reply may call the driver again, so none is kept here any more when it is called. What is kept is
bounded by what the core's waiters admit. Not here: who may wait and for how long (``waiters``).
"""

from __future__ import annotations

from replication.core import commands
from replication.core.replica import ReplicaCore
from replication.core.view import holders, holds
from replication.core.waiters import CONFIRMED, FLUSHED, REPLICATED
from replication.driver.outcomes import BUFFERED, NOT_KNOWN_FLUSHED, unknown
from replication.driver.outside import Done, Reply
from storage import SectionResult, Store


class Replies:
    """See the module.

    Args:
        store: Knows what is flushed and what lies only in memory.
        core: Knows what is confirmed, and who has it.
        node: Our name.
    """

    def __init__(self, store: Store, core: ReplicaCore, node: str) -> None:
        self._store = store
        self._core = core
        self._node = node
        self._number = 0
        self._sends: dict[int, tuple[Reply, list[SectionResult], str]] = {}
        self._orders: dict[int, Done] = {}

    def holds(self, ack: str, end: int) -> bool:
        """Whether the acknowledgement holds already (written; duplicates of what is confirmed)."""
        if ack == FLUSHED:
            return end <= self._store.flushed
        return ack not in (CONFIRMED, REPLICATED) or holds(self._core, ack, end)

    def say(self, results: list[SectionResult], ack: str, end: int, reply: Reply) -> None:
        """Answer now: ``ack`` holds up to ``end``, or nothing was stored (0)."""
        reply(results, self._where(ack, end) if end else None)

    def wait(
        self,
        results: list[SectionResult],
        ack: str,
        reply: Reply,
        *,
        end: int,
        size: int,
        deadline: float,
    ) -> None:
        """Answer when the core says that ``ack`` holds up to ``end``; else at the deadline."""
        self._number += 1
        self._sends[self._number] = (reply, results, ack)
        self._core.waiters.add(self._number, ack, end=end, size=size, deadline=deadline)

    def order(self, reply: Done) -> int:
        """Keep the reply to an order; return the number that its `commands.Answer` will name."""
        self._number += 1
        self._orders[self._number] = reply
        return self._number

    def release(self, now: float, command: commands.Release) -> None:
        """The acknowledgements hold: say what was stored, and who has it."""
        names = holders(self._core)
        for request in command.requests:
            reply, results, _ = self._sends.pop(request)
            reply(results, names)

    def give_up(self, now: float, command: commands.GiveUp) -> None:
        """Nobody knows in time; a master whose disk is slow says at least that it has it."""
        for request in command.requests:
            reply, results, ack = self._sends.pop(request)
            slow = self._core.context.settings.flush_first and any(
                result.end > self._store.flushed for result in results
            )
            stored = (ack == FLUSHED or slow) and self._core.leads
            text = NOT_KNOWN_FLUSHED if stored else ""
            reply([unknown(result, text) for result in results], None)

    def answer(self, now: float, command: commands.Answer) -> None:
        """An order has ended."""
        self._orders.pop(command.request)(command.code, command.text)

    def _where(self, ack: str, end: int) -> str:
        """Return who holds everything below ``end``: nodes, or the memory of this process."""
        if end > self._store.committed:
            return BUFFERED
        return holders(self._core) if ack == CONFIRMED else self._node

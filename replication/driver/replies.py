"""Pending replies to clients: each is called exactly once, with what is known then (R46).

If the acknowledgement holds when the bytes are stored, the reply is called at once. Otherwise it
waits for `commands.Release` (it holds) or `commands.GiveUp` (unknown in time). Requests that are
answered by one code (a transfer, a stop) are numbered in the same sequence.

A reply may call the driver again, so it is removed before it is called. The core's waiters bound
how many are kept. Not here: limits and deadlines (``waiters``).
"""

from __future__ import annotations

from replication.core import commands
from replication.core.master.waiters import CONFIRMED, FLUSHED, REPLICATED
from replication.core.replica import ReplicaCore
from replication.core.view import holders, holds
from replication.driver.outcomes import BUFFERED, NOT_KNOWN_FLUSHED, unknown
from replication.driver.outside import Done, Reply
from storage import SectionResult, Store


class Replies:
    """See the module.

    Args:
        store: Knows what is flushed and what is only in memory.
        core: Knows what is confirmed, and which nodes have it.
        node: Name of this node.
    """

    def __init__(self, store: Store, core: ReplicaCore, node: str) -> None:
        self._store = store
        self._core = core
        self._node = node
        self._number = 0
        self._sends: dict[int, tuple[Reply, list[SectionResult], str]] = {}
        self._orders: dict[int, Done] = {}

    def holds(self, ack: str, end: int) -> bool:
        """Whether the acknowledgement holds already (``written``; duplicates of confirmed ones)."""
        if ack == FLUSHED:
            return end <= self._store.flushed
        return ack not in (CONFIRMED, REPLICATED) or holds(self._core, ack, end)

    def say(self, results: list[SectionResult], ack: str, end: int, reply: Reply) -> None:
        """Reply now: ``ack`` holds up to ``end``, or nothing was stored (0)."""
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
        """Reply when ``ack`` holds up to ``end``; at the deadline as unknown."""
        self._number += 1
        self._sends[self._number] = (reply, results, ack)
        self._core.waiters.add(self._number, ack, end=end, size=size, deadline=deadline)

    def order(self, reply: Done) -> int:
        """Keep the reply to a request; return the number that its `commands.Answer` will have."""
        self._number += 1
        self._orders[self._number] = reply
        return self._number

    def release(self, now: float, command: commands.Release) -> None:
        """The acknowledgements hold: reply with the results and the nodes that have them."""
        names = holders(self._core)
        for request in command.requests:
            reply, results, _ = self._sends.pop(request)
            reply(results, names)

    def give_up(self, now: float, command: commands.GiveUp) -> None:
        """Reply unknown; a master that waited only for its own disk says that it has stored it."""
        for request in command.requests:
            reply, results, ack = self._sends.pop(request)
            slow = self._core.context.settings.flush_first and any(
                result.end > self._store.flushed for result in results
            )
            stored = (ack == FLUSHED or slow) and self._core.leads
            text = NOT_KNOWN_FLUSHED if stored else ""
            reply([unknown(result, text) for result in results], None)

    def answer(self, now: float, command: commands.Answer) -> None:
        """A request has ended."""
        self._orders.pop(command.request)(command.code, command.text)

    def _where(self, ack: str, end: int) -> str:
        """Return the nodes that have everything below ``end``, or `BUFFERED`."""
        if end > self._store.committed:
            return BUFFERED
        return holders(self._core) if ack == CONFIRMED else self._node

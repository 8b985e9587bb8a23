"""Memory of answers until clients have received them: a total, a share per client, a queue.

Rules:

* all clients together hold at most the total, and one client at most its share. A larger request is
granted if nothing else is held (in all, or by that client);
* requests are granted in order, but one that waits only for its client's share is skipped: a client
that does not receive its answers does not delay others, as long as there is memory;
* the queue is bounded, and one client may fill a quarter of it.

Units: bytes. Not here: how long a client may take for its answers (`node.clients.connection`).

Cancellation: a cancelled `take` holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio


def _event() -> trio.Event:
    return trio.Event()


@dataclass(slots=True, eq=False)
class _Waiter:
    client: object
    size: int
    granted: bool = False
    told: trio.Event = field(default_factory=_event)


class Budget:
    """See the module.

    Args:
        size: Bytes of all clients together.
        share: Bytes of one client.
        line_max: How many may wait.
    """

    def __init__(self, size: int, *, share: int, line_max: int) -> None:
        self._size = size
        self._share = share
        self._line_max = line_max
        self._held_by: dict[object, int] = {}
        self._line: dict[_Waiter, None] = {}
        self._waiting_by: dict[object, int] = {}
        self.held = 0
        """Bytes taken and not released."""

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._line)

    def has_place(self, client: object) -> bool:
        """Whether one more request of this client may wait."""
        if len(self._line) >= self._line_max:
            return False
        return self._waiting_by.get(client, 0) < max(self._line_max // 4, 1)

    async def take(self, client: object, size: int) -> bool:
        """Wait for memory; False if the client left meanwhile (`leave`): then nothing is held."""
        waiter = _Waiter(client, size)
        self._line[waiter] = None
        self._waiting_by[client] = self._waiting_by.get(client, 0) + 1
        self._grant()
        try:
            await waiter.told.wait()
        except BaseException:
            if waiter.granted:
                self.give(client, size)
            elif waiter in self._line:
                self._out(waiter)
                self._grant()
            raise
        return waiter.granted

    def give(self, client: object, size: int) -> None:
        """Release some of what `take` took."""
        if not size:
            return
        self.held -= size
        left = self._held_by[client] - size
        if left:
            self._held_by[client] = left
        else:
            del self._held_by[client]
        self._grant()

    def add(self, client: object, size: int) -> None:
        """Hold more than was requested: the memory is in use already."""
        self.held += size
        self._held_by[client] = self._held_by.get(client, 0) + size

    def leave(self, client: object) -> None:
        """Remove a client's waiting requests; the tasks that took memory release it."""
        if client not in self._waiting_by:
            return
        for waiter in [each for each in self._line if each.client is client]:
            self._out(waiter)
            waiter.told.set()
        self._grant()

    def _out(self, waiter: _Waiter) -> None:
        del self._line[waiter]
        left = self._waiting_by[waiter.client] - 1
        if left:
            self._waiting_by[waiter.client] = left
        else:
            del self._waiting_by[waiter.client]

    def _grant(self) -> None:
        for waiter in list(self._line):
            own = self._held_by.get(waiter.client, 0)
            if own and own + waiter.size > self._share:
                continue
            if self.held and self.held + waiter.size > self._size:
                return
            self._out(waiter)
            waiter.granted = True
            self.add(waiter.client, waiter.size)
            waiter.told.set()

"""Fake nodes that serve one group: a `GroupMaster` behind the requests of work queues."""

from __future__ import annotations

import threading
import time

from tests.fakes.group_master import GroupMaster, Refused
from tests.fakes.node import Arrived, FakeCluster
from twinlog.wire.frames import Frame, Type

TYPES = (Type.JOIN, Type.BEAT, Type.POP, Type.SETTLE)


class ServedGroup:
    """A fault of every node of a cluster that answers for the group, of the master only."""

    def __init__(self, cluster: FakeCluster, master: GroupMaster) -> None:
        self.master = master
        self._cluster = cluster
        self._parked: dict[int, tuple[Frame, Arrived]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._wake, name="parked pops")
        for node in cluster.nodes.values():
            node.faults.append(self.serve)
        self._thread.start()

    def close(self) -> None:
        """Stop waking."""
        self._ended.set()
        self._thread.join(60)

    def send(self, queue: int, body: bytes) -> None:
        """Store a message."""
        with self._cluster.lock:
            self.master.send(queue, body)

    def states(self) -> list[str]:
        """The state of every message, sorted."""
        with self._cluster.lock:
            shares = self.master.shares.values()
            return sorted(kept.state for share in shares for kept in share)

    def serve(self, arrived: Arrived) -> bool:
        """Answer, refuse, or park."""
        frame = arrived.frame
        if frame.type not in TYPES:
            return False
        if not arrived.node.master:
            arrived.refuse("not-master", retryable=True)
            return True
        with self._cluster.lock:
            try:
                found = self.master.ask(frame, now())
            except Refused as refused:
                arrived.refuse(str(refused), retryable=bool(refused.fields["retryable"]))
                return True
            if found is None:
                self._parked[id(frame)] = frame, arrived
            else:
                arrived.answer(*found)
        return True

    def _wake(self) -> None:
        while not self._ended.wait(0.005):
            with self._cluster.lock:
                for frame, fields, payload in self.master.wake(now()):
                    _, arrived = self._parked.pop(id(frame))
                    arrived.answer(fields, payload)


def now() -> int:
    """The master's clock, ms."""
    return time.time_ns() // 1_000_000

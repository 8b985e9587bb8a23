"""The client port of a node: accepts, greets, serves types 32 to 43 of the wire, refuses the rest.

What one request does stands in `connection`; appends, reads and orders have modules of their own.
This one owns the sockets: who may connect, when a turn ends, who is closed.

* A first byte that is not ours closes the connection at once, counted by kind (HTTP, TLS, other),
  with one debug line. So does anything else that leaves the rules of the wire. Only a peer of
  another wire version is told which versions are spoken, before it is closed.
* Once a second `sweep` closes who did not greet, who stopped in the middle of a frame, and who
  does not take its answers.
* A defect met while one connection is served costs that connection (`broke`), counted as kind
  ``defect`` and told with its trace; the driver's own defects end the node.
* Appends that arrived in one round of the sockets are appended together, whichever connections
  they came from.

Cancellation: a cancelled `run` closes every connection; appends that were under way are unknown to
their clients, as after a crash.
"""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import trio

from node.admin import Admin
from node.answers import Answers
from node.append_path import AppendPath
from node.cold_work import ColdWork
from node.connection import ClientConnection
from node.counts import ClientCounts
from node.limits import Limits, connections_that_fit
from node.reads import ReadRequest, Reads
from replication.stream_service import Outbox, Stream, accept
from twinlog import wire

SWEEP_SECONDS = 1.0
EMPTY_SECONDS = 2.0
"""A stopping node waits this long for clients to take their last answers."""


class Turns(Protocol):
    """The turn of the loop, as the replica service keeps it."""

    @property
    def outbox(self) -> Outbox:
        """Where streams are marked."""
        ...

    @property
    def crashed(self) -> str | None:
        """Why the node ends; nothing may be given to the driver any more."""
        ...

    def now(self) -> float:
        """Read the loop's time, seconds, and make it the time of this turn."""
        ...

    def turn_soon(self) -> None:
        """End the turn with the round of the sockets."""
        ...

    def enter(self) -> None:
        """Have what is confirmed in its queues: somebody looks."""
        ...

    def driving(self) -> AbstractContextManager[None]:
        """Around a call of the driver for one client: what raises in it ends the node."""
        ...

    def watched(self, *, by_readers: bool) -> None:
        """Say whether readers wait for records."""
        ...

    def turn(self) -> None:
        """Write what was queued and look at what moved."""
        ...


class ClientServer:
    """Accepts clients and ends their turns; what requests do is in the parts it is given."""

    def __init__(
        self,
        turns: Turns,
        *,
        limits: Limits,
        appends: AppendPath,
        reads: Reads,
        cold: ColdWork,
        answers: Answers,
        admin: Admin,
        status: Callable[[], Mapping[str, object]],
        counts: ClientCounts,
        tell: Callable[..., None],
    ) -> None:
        self.limits = limits
        self.appends = appends
        self.reads = reads
        self.cold = cold
        self.answers = answers
        self.admin = admin
        self.status = status
        self.counts = counts
        self.names_crc = wire.names_crc(answers.identity.cluster, answers.identity.group)
        self.epoch = 0
        """Sent in every header; the node keeps it."""
        self._turns = turns
        self._tell = tell
        self._connections: dict[ClientConnection, None] = {}
        self._connections_max = connections_that_fit(limits.connections_max)
        self._nursery: trio.Nursery | None = None

    @property
    def connections(self) -> int:
        """Clients connected now."""
        return len(self._connections)

    @property
    def in_flight(self) -> int:
        """Requests of all clients that are not answered yet."""
        return sum(connection.in_flight for connection in self._connections)

    async def emptied(self) -> None:
        """Wait until every client has taken its answers, `EMPTY_SECONDS` at most."""
        end = trio.current_time() + EMPTY_SECONDS
        for connection in list(self._connections):
            with trio.move_on_at(end):
                await connection.stream.emptied()

    async def run(
        self,
        listener: socket.socket,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; see the module for what a cancellation leaves."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.cold.run_in(nursery)
            nursery.start_soon(self._sweep)
            nursery.start_soon(accept, listener, self._accepted)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                for connection in list(self._connections):
                    connection.stream.close("node stops")

    # ── connections ─────────────────────────────────────────────────────────────────────────────

    def _accepted(self, sock: socket.socket, peer: str) -> None:
        self.counts.accepted += 1
        if len(self._connections) >= self._connections_max:
            self.counts.limit_reached("connections_max")
            sock.close()
            return
        stream = Stream(
            sock,
            self._turns.outbox,
            wire.FrameReader(),
            congested=self.limits.congested_bytes,
            defect=lambda error: self.broke(connection, error),
        )
        connection = ClientConnection(self, stream, peer)
        self._connections[connection] = None
        assert self._nursery is not None, "the server does not run"
        self._nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: ClientConnection) -> None:
        try:
            await connection.stream.serve(connection.on_frame, self._end)
        except wire.FrameError as error:
            self._left_the_rules(connection, error)
            self._turns.outbox.readiness.turn(self._end)
        except Exception as error:
            self.broke(connection, error)
        del self._connections[connection]
        self.reads.forget(connection)
        self.cold.forget(connection)

    def _left_the_rules(self, connection: ClientConnection, error: wire.FrameError) -> None:
        """Close and count; only a peer of another version is told why."""
        self.counts.closed(error.kind)
        self._tell(
            "connection_refused", "debug", peer=connection.peer, kind=error.kind, why=error.text
        )
        if error.kind == "version":
            connection.wrong_version(error)
        else:
            connection.stream.close(error.kind)

    def close(self, connection: ClientConnection, kind: str) -> None:
        """Close a connection for what it did, and count it."""
        self.counts.closed(kind)
        self._tell("connection_refused", "debug", peer=connection.peer, kind=kind)
        connection.stream.close(kind)

    def broke(self, connection: ClientConnection, error: Exception) -> None:
        """Close a connection that met a defect; one of the driver's goes on to end the node."""
        if self._turns.crashed is not None:
            raise error
        self.counts.closed("defect")
        trace = "".join(traceback.format_exception(error))
        self._tell("connection_defect", "error", peer=connection.peer, trace=trace)
        connection.stream.close("defect")

    def driving(self) -> AbstractContextManager[None]:
        """Call the driver in the body; see `Turns.driving`."""
        return self._turns.driving()

    async def _sweep(self) -> None:
        """Close who does not greet, stops inside a frame, or does not take its answers."""
        while True:
            await trio.sleep(SWEEP_SECONDS)
            now = self._turns.now()
            limits = self.limits
            for connection in list(self._connections):
                still = now - connection.stream.moved_at
                if not connection.greeted and still > limits.hello_seconds:
                    self.close(connection, "silent")
                elif still > limits.stall_seconds and connection.stream.standing:
                    self.close(connection, "stalled")
            self._bound_partial_frames()
            self.reads.expire(now)
            self._turns.turn()

    def _bound_partial_frames(self) -> None:
        """Close the connections with the largest unfinished frames while all are too much."""
        limit = self.limits.partial_frames_bytes_max
        total = sum(connection.stream.held for connection in self._connections)
        if total <= limit:
            return
        for connection in sorted(self._connections, key=lambda each: -each.stream.held):
            total -= connection.stream.held
            self.counts.limit_reached("partial_frames_bytes_max")
            self.close(connection, "oversized")
            if total <= limit:
                return

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def _end(self) -> None:
        """End the turn of one connection: what it brought is appended with its neighbours'."""
        if self._turns.crashed is not None:
            return
        if self.appends.pending:
            self._turns.outbox.readiness.soon(self._append)
        else:
            self._turns.turn_soon()

    def _append(self) -> None:
        if self._turns.crashed is None:
            self.appends.run(self._turns.outbox.now)
            self._turns.turn_soon()

    def look(self, now: float) -> None:
        """Serve parked readers whose queue grew; called at the end of every turn."""
        waiting = self.reads.waiting > 0
        self._turns.watched(by_readers=waiting)
        if waiting:
            for cold in self.reads.wake(now):
                self.cold.read(cold)

    def enter(self) -> None:
        """Let what is about to be answered show every record that is confirmed."""
        if self._turns.crashed is None:
            self._turns.enter()

    def read(self, request: ReadRequest, now: float) -> None:
        """Answer a read, park it, or have a thread fetch it."""
        cold = self.reads.serve(request, now)
        if cold is not None:
            self.cold.read(cold)

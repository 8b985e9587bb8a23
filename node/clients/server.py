"""The client port of a node: accepts connections and ends their turns.

What a request does is in ``node.clients.connection``; appends, reads and orders have modules of
their own. This module owns the sockets: accepting clients, ending turns, closing stalled clients.

* A connection that violates the protocol is closed at once, at the first wrong byte, counted by
  kind (HTTP, TLS, other) and logged at debug level. Only a peer of another wire version is first
  told which versions are spoken, and one that begins with TLS that it is not.
* A client beyond ``connections_max`` is answered ``busy`` when it says HELLO, and closed.
* Once a second clients are closed that never sent HELLO, stalled inside a frame, or stopped taking
  answers. While half-received frames take more than ``partial_frames_bytes_max``, the connections
  with the largest are closed in the turn in which that happens.
* A defect met while one connection is served costs that connection (`ClientConnection.broke`), is
  counted as kind ``defect`` and logged with its traceback; a defect of the driver ends the node.
* Appends that arrive in one round of the sockets are appended together, whichever connections they
  come from.

Cancellation: a cancelled `run` closes every connection; the outcome of appends under way is unknown
to their clients, as after a crash.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import trio

from node.clients.connection import ClientConnection, RequestHandlers
from node.clients.limits import connections_that_fit
from replication.net.certificates import Certificates
from replication.net.handshakes import Handshakes
from replication.net.streams import Stream, accept
from twinlog.session.tls_socket import TlsSocket
from twinlog.wire import frames

SWEEP_SECONDS = 1.0
CROWD_MAX = 64
"""Connections beyond ``connections_max`` that are answered at the same time; others are reset."""
EMPTY_SECONDS = 2.0
"""A stopping node waits this long for clients to take their last answers."""


class ClientServer:
    """Accepts clients and ends their turns; ``handlers`` execute their requests.

    With ``certificates`` clients must speak TLS.
    """

    def __init__(self, handlers: RequestHandlers, certificates: Certificates | None = None) -> None:
        self.handlers = handlers
        self._certificates = certificates
        self.partial_bytes = 0
        """Memory of all half-received frames."""
        self._world = handlers.world
        self._connections: dict[ClientConnection, None] = {}
        self._connections_max = connections_that_fit(handlers.limits.connections_max)
        self._nursery: trio.Nursery | None = None
        self._timer = trio.CancelScope()

    @property
    def connections(self) -> int:
        """Clients connected now."""
        return len(self._connections)

    @property
    def in_flight(self) -> int:
        """Requests of all clients that are not answered yet."""
        return sum(connection.in_flight for connection in self._connections)

    async def emptied(self) -> None:
        """Wait until every client has received its answers, `EMPTY_SECONDS` at most."""
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
            self.handlers.cold.run_in(nursery)
            nursery.start_soon(self._sweep)
            nursery.start_soon(self._keep_time)
            accepted: Callable[[socket.socket, str], None] = self._accepted
            if self._certificates is not None:
                context = self._certificates.clients
                accepted = Handshakes(nursery, context, self._accepted, self._tls_refused).begin
            nursery.start_soon(accept, listener, accepted)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                for connection in list(self._connections):
                    connection.stream.close("node stops")

    # ── connections ─────────────────────────────────────────────────────────────────────────────

    def _tls_refused(self, peer: str, why: str) -> None:
        self.handlers.counts.closed("tls")
        self.handlers.tell("tls_refused", "info", port="clients", peer=peer, why=why)

    def _accepted(self, sock: socket.socket | TlsSocket, peer: str) -> None:
        self.handlers.counts.accepted += 1
        crowd = len(self._connections) - self._connections_max
        if crowd >= 0:
            self.handlers.counts.limit_reached("connections_max")
        if crowd >= CROWD_MAX:
            sock.close()
            return

        def defect(error: Exception) -> None:
            connection.broke(error)

        stream = Stream(
            sock,
            self._world.outbox,
            frames.FrameReader(),
            congested=self.handlers.limits.congested_bytes,
            defect=defect,
            held=self._held,
        )
        shown = sock.shown_name() if isinstance(sock, TlsSocket) else None
        connection = ClientConnection(
            self.handlers, stream, peer, crowded=crowd >= 0, certificate=shown
        )
        self._connections[connection] = None
        assert self._nursery is not None, "the server does not run"
        self._nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: ClientConnection) -> None:
        try:
            await connection.stream.serve(connection.on_frame, self._end)
        except frames.FrameError as error:
            self._left_the_rules(connection, error)
            self._world.outbox.readiness.turn(self._end)
        except Exception as error:
            connection.broke(error)
        del self._connections[connection]
        self.handlers.reads.forget(connection)
        self.handlers.cold.forget(connection)
        self.handlers.groups.forget(connection)

    def _left_the_rules(self, connection: ClientConnection, error: frames.FrameError) -> None:
        """Close and count; only a peer of another version is answered first."""
        self.handlers.counts.closed(error.kind)
        self.handlers.tell(
            "connection_refused", "debug", peer=connection.peer, kind=error.kind, why=error.text
        )
        if error.kind == "version":
            connection.wrong_version(error)
        else:
            connection.stream.close(error.kind)

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_SECONDS)
            now = self._world.now()
            self._close_idle(now)
            self.handlers.reads.expire(now)
            self._world.turn()

    async def _keep_time(self) -> None:
        """Let work queues do what is due: leases that end, pops that have waited long enough."""
        while True:
            with trio.CancelScope() as self._timer:
                self._timer.deadline = self.handlers.groups.next_deadline(self._world.now())
                await trio.sleep_forever()
            if self._world.crashed is None:
                now = self._world.now()
                with self._world.driving():
                    self.handlers.groups.tick(now)
                self._world.turn()

    def _close_idle(self, now: float) -> None:
        """Close clients that never send HELLO, stall inside a frame, or stop taking answers."""
        limits = self.handlers.limits
        for connection in list(self._connections):
            still = now - connection.stream.moved_at
            if not connection.greeted and still > limits.hello_seconds:
                connection.close("silent")
            elif still > limits.stall_seconds and connection.stream.standing:
                connection.close("stalled")

    def _held(self, change: int) -> None:
        """Count the memory of half-received frames, the moment it changes."""
        self.partial_bytes += change
        if change > 0 and self.partial_bytes > self.handlers.limits.partial_frames_bytes_max:
            self._world.outbox.readiness.soon(self._bound_partial_frames)

    def _bound_partial_frames(self) -> None:
        """Close the connections with the largest unfinished frames while there is too much."""
        limit = self.handlers.limits.partial_frames_bytes_max
        for connection in sorted(self._connections, key=lambda each: -each.stream.held):
            if self.partial_bytes <= limit:
                return
            self.handlers.counts.limit_reached("partial_frames_bytes_max")
            connection.close("oversized")

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def _end(self) -> None:
        """End the turn of one connection: its appends join those of the other connections."""
        if self._world.crashed is not None:
            return
        if self.handlers.appends.pending or self.handlers.groups.pending:
            self._world.outbox.readiness.soon(self._append)
        else:
            self._world.turn_soon()

    def _append(self) -> None:
        if self._world.crashed is None:
            now = self._world.outbox.now
            self.handlers.appends.run(now)
            if self.handlers.groups.pending:
                with self._world.driving():
                    self.handlers.groups.run(now)
            self._world.turn_soon()

    def _after_change(self) -> None:
        """Close the connections of users who have lost a right: what waits may rest on it."""
        for connection in list(self._connections):
            if connection.visitor is not None and connection.visitor.robbed():
                connection.close("access")

    def look(self, now: float) -> None:
        """Serve parked readers whose queue grew; called at the end of every turn."""
        gate = self.handlers.gate
        if gate is not None and gate.moved():
            self._after_change()
        waiting, groups = self.handlers.reads.waiting > 0, self.handlers.groups
        self._world.watched(by_readers=waiting or groups.parked > 0)
        if waiting:
            for cold in self.handlers.reads.wake(now):
                self.handlers.cold.read(cold)
        if self._world.crashed is None and groups.wants(now):
            with self._world.driving():
                groups.look(now)
        if groups.moved:
            groups.moved = False
            self._timer.deadline = groups.next_deadline(now)

"""Carries out the steps of calls over blocking connections: one kept for each node that was asked.

Many threads may share a `Caller`. The decisions of a call (``twinlog.session.session``) run under a
lock, which costs microseconds; waiting for nodes does not. A connection carries one question at a
time: two threads that ask the same node at the same moment use two, and one of them is kept.

After a fork the child forgets the parent's connections and opens its own.

Not here: what is asked, whom, and how often (``twinlog.session.session``).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from twinlog.errors import Unavailable
from twinlog.session.connection import CONNECT_SECONDS, Connection
from twinlog.session.link import Expected
from twinlog.session.routing import Address, RoutingTable
from twinlog.session.session import (
    Ask,
    Came,
    LinkDown,
    Open,
    Opened,
    Pause,
    Send,
    Session,
    Step,
    Steps,
    Take,
)
from twinlog.wire import schema
from twinlog.wire.frames import Frame, FrameError, Type

if TYPE_CHECKING:
    from twinlog.session.connection import Secure
    from twinlog.session.tls_files import Login

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ahead:
    """A question that was sent to one node and whose answer was not waited for yet.

    Attributes:
        node: Its name.
        connection: How it was sent.
        number: The request.
    """

    node: str
    connection: Connection
    number: int


class OwnConnection:
    """The connection that a producer or a reader has to itself: at most one is open.

    Args:
        name: What the node may log about the client.
        table: Names the cluster that must answer.
        secure: See `Connection`.
        login: Likewise.
    """

    def __init__(
        self,
        name: str,
        table: RoutingTable,
        secure: Secure | None = None,
        login: Login | None = None,
    ) -> None:
        self.connection: Connection | None = None
        self._name = name
        self._table = table
        self._secure, self._login = secure, login

    def close(self) -> None:
        """Close it if it is open; requests under way stay without an answer."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def carry(self, step: Open | Send | Take) -> Came:
        """Carry out one step.

        Raises:
            LinkDown: The connection has ended, or could not be opened; it is closed.
        """
        try:
            if isinstance(step, Open):
                return self._open(step)
            connection = self.connection
            if connection is None:
                raise LinkDown("was closed", sent=False)
            if isinstance(step, Send):
                payload = step.frame.payload
                return connection.send(step.frame, step.seconds, [payload] if payload else ())
            return connection.take(step.seconds)
        except LinkDown:
            self.close()
            raise

    def _open(self, step: Open) -> Opened:
        kept = None if step.fresh else self.connection
        if kept is not None and kept.address == step.address and not kept.stale():
            return Opened(kept.peer, kept.local, fresh=False)
        self.close()
        seconds = CONNECT_SECONDS
        if step.seconds is not None:
            seconds = min(seconds, max(step.seconds, 0.05))
        required = self._table.required
        made = Connection(
            step.address,
            client=self._name,
            seconds=seconds,
            expected=required,
            secure=self._secure,
            login=self._login,
        )
        self.connection = made
        return Opened(made.peer, made.local, fresh=True)


class Caller:
    """See the module.

    Args:
        endpoints: Where to ask first.
        name: What nodes may log about the client.
        expected: The cluster that must answer; None: the first that does.
        secure: See `Connection`.
        login: Likewise.
    """

    def __init__(
        self,
        endpoints: Iterable[Address],
        *,
        name: str,
        expected: Expected | None = None,
        secure: Secure | None = None,
        login: Login | None = None,
    ) -> None:
        self.name = name
        self._secure, self._login = secure, login
        self.session = Session(endpoints, random=random.random, expected=expected)
        self._connections: dict[Address, Connection] = {}
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def own(self) -> OwnConnection:
        """Return what keeps a connection for one producer or reader; nothing is opened yet."""
        return OwnConnection(self.name, self.session.table, self._secure, self._login)

    def close(self) -> None:
        """Close all kept connections; the next call opens new ones."""
        with self._lock:
            kept, self._connections = self._connections, {}
        for connection in kept.values():
            connection.close()

    def forked(self) -> bool:
        """Forget the parent's connections after a fork, and say whether there was one."""
        if self._pid == os.getpid():
            return False
        # Another thread of the parent may have held the lock at the fork; here it would stay held.
        self._pid, self._lock = os.getpid(), threading.Lock()
        self.close()
        return True

    def run(self, steps: Steps[T], own: OwnConnection | None = None) -> T:
        """Carry out the steps of a call and return its result.

        Args:
            steps: The call.
            own: Carries out `Open`, `Send` and `Take`, where the call has such steps.
        """
        self.forked()
        came: Came = None
        down: LinkDown | None = None
        try:
            while True:
                # Steps of several threads take turns here, so the routing table stays whole.
                with self._lock:
                    self.session.now = time.monotonic()
                    step = steps.send(came) if down is None else steps.throw(down)
                came = down = None
                try:
                    came = self._carry(step, own)
                except LinkDown as found:
                    down = found
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _carry(self, step: Step, own: OwnConnection | None) -> Came:
        if isinstance(step, Ask):
            return self._ask(step)
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        assert own is not None, "only calls of producers and readers have such steps"
        return own.carry(step)

    def _ask(self, step: Ask) -> Frame:
        connection = self._connections.pop(step.address, None)
        if connection is not None and connection.stale():
            connection.close()
            connection = None
        if connection is None:
            seconds = min(CONNECT_SECONDS, step.seconds)
            required = self.session.table.required
            connection = Connection(
                step.address,
                client=self.name,
                seconds=seconds,
                expected=required,
                secure=self._secure,
                login=self._login,
            )
        try:
            answer = connection.ask(step.frame, step.seconds)
        except BaseException:
            connection.close()
            raise
        other = self._connections.setdefault(step.address, connection)
        if other is not connection:  # another thread asked the same node meanwhile
            connection.close()
        return answer

    # ── asking ahead ────────────────────────────────────────────────────────────────────────────

    def begin(
        self, node: str, kind: Type, fields: Mapping[str, object], *, timeout: float
    ) -> Ahead | None:
        """Send a question to a node by name and return at once; `finish` takes the answer.

        None where no connection to it is open, or where it did not take the question in time: it
        was not asked, and can be asked as usual. For one thread: a question asked meanwhile drops
        the answer.
        """
        self.forked()
        route = self.session.table.route
        found = None if route is None else route.node(node)
        address = None if found is None else found.address
        connection = None if address is None else self._connections.get(address)
        if connection is None or connection.stale():
            return None
        try:
            number = connection.send(Frame(kind, fields=dict(fields)), timeout)
        except LinkDown:
            self._forget(connection)
            return None
        return Ahead(node, connection, number)

    def finish(self, ahead: Ahead, *, timeout: float) -> Frame | None:
        """Return the good answer to what `begin` sent.

        None where the node refused, the connection broke off, or the node was asked something else
        meanwhile, which drops the answer: nothing is known, and it can be asked as usual.

        Raises:
            Unavailable: The node did not answer within ``timeout`` seconds.
        """
        self.forked()
        connection, began = ahead.connection, time.monotonic()
        held = self._connections.get(connection.address) is connection
        # A later question on this connection dropped the answer (`Connection.ask`).
        if not held or connection.last != ahead.number:
            return None
        try:
            answer = connection.answer(ahead.number, timeout)
            if answer.is_error:
                return None
            schema.check(answer)
        except LinkDown as down:
            self._forget(connection)
            if time.monotonic() - began < timeout:
                return None
            self.session.table.suspect(connection.address)
            raise Unavailable(f"{ahead.node} {down.why}") from None
        except FrameError:
            return None
        return answer

    def _forget(self, connection: Connection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]

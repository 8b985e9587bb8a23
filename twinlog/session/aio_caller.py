"""The awaiting twin of ``twinlog.session.caller``: carries out the steps of calls by anyio.

Many tasks may share an `AsyncCaller`: each call borrows a connection or opens one, and the
`FREE_MAX` used last are kept.

Cancellation: a cancelled call closes the connection it was using.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from twinlog.session.aio_connection import AsyncConnection, close
from twinlog.session.connection import CONNECT_SECONDS
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
from twinlog.wire.frames import Frame

if TYPE_CHECKING:
    from twinlog.session.connection import Secure
    from twinlog.session.tls_files import Login

T = TypeVar("T")

FREE_MAX: Final = 16
"""Idle connections that a client keeps for the next question, all nodes together; the
one that was free for the longest time is closed. More may be in use: one for each question."""


class AsyncOwnConnection:
    """The connection that a producer or a reader has to itself: at most one is open.

    Args:
        name: What the node may log about the client.
        table: Names the cluster that must answer.
        secure: See `AsyncConnection.connect`.
        login: Likewise.
    """

    def __init__(
        self,
        name: str,
        table: RoutingTable,
        secure: Secure | None = None,
        login: Login | None = None,
    ) -> None:
        self.connection: AsyncConnection | None = None
        self._name = name
        self._table = table
        self._secure, self._login = secure, login

    async def close(self) -> None:
        """Close it if it is open; requests under way stay without an answer."""
        connection, self.connection = self.connection, None
        await close(connection)

    async def carry(self, step: Open | Send | Take) -> Came:
        """Carry out one step.

        Raises:
            LinkDown: The connection has ended, or could not be opened; it is closed.
        """
        try:
            if isinstance(step, Open):
                return await self._open(step)
            connection = self.connection
            if connection is None:
                raise LinkDown("was closed", sent=False)
            if isinstance(step, Send):
                payload = step.frame.payload
                pieces = [payload] if payload else ()
                return await connection.send(step.frame, step.seconds, pieces)
            return await connection.take(step.seconds)
        except LinkDown:
            await self.close()
            raise

    async def _open(self, step: Open) -> Opened:
        kept = None if step.fresh else self.connection
        if kept is not None and kept.address == step.address:
            return Opened(kept.peer, kept.local, fresh=False)
        await self.close()
        seconds = CONNECT_SECONDS
        if step.seconds is not None:
            seconds = min(seconds, max(step.seconds, 0.05))
        made = await AsyncConnection.connect(
            step.address,
            client=self._name,
            seconds=seconds,
            expected=self._table.required,
            secure=self._secure,
            login=self._login,
        )
        self.connection = made
        return Opened(made.peer, made.local, fresh=True)


class AsyncCaller:
    """See the module.

    Args:
        endpoints: Where to ask first.
        name: What nodes may log about the client.
        expected: The cluster that must answer; None: the first that does.
        secure: See `AsyncConnection.connect`.
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
        self._free: list[AsyncConnection] = []

    def own(self) -> AsyncOwnConnection:
        """Return what keeps a connection for one producer or reader; nothing is opened yet."""
        return AsyncOwnConnection(self.name, self.session.table, self._secure, self._login)

    async def close(self) -> None:
        """Close the idle connections."""
        for connection in self._free:
            await connection.close()
        self._free.clear()

    async def run(self, steps: Steps[T], own: AsyncOwnConnection | None = None) -> T:
        """Carry out the steps of a call and return its result.

        Args:
            steps: The call.
            own: Carries out `Open`, `Send` and `Take`, where the call has such steps.
        """
        came: Came = None
        down: LinkDown | None = None
        try:
            while True:
                self.session.now = anyio.current_time()
                step = steps.send(came) if down is None else steps.throw(down)
                came = down = None
                try:
                    came = await self._carry(step, own)
                except LinkDown as found:
                    down = found
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _carry(self, step: Step, own: AsyncOwnConnection | None) -> Came:
        if isinstance(step, Ask):
            return await self._ask(step)
        if isinstance(step, Pause):
            await anyio.sleep(step.seconds)
            return None
        assert own is not None, "only calls of producers and readers have such steps"
        return await own.carry(step)

    async def _ask(self, step: Ask) -> Frame:
        """Ask over a free connection, or a new one; one that was cut off meanwhile is replaced."""
        connection = self._borrow(step.address)
        if connection is not None and connection.stale():
            await connection.close()
            connection = None
        if connection is None:
            seconds = min(CONNECT_SECONDS, step.seconds)
            required = self.session.table.required
            connection = await AsyncConnection.connect(
                step.address,
                client=self.name,
                seconds=seconds,
                expected=required,
                secure=self._secure,
                login=self._login,
            )
        answered = False
        try:
            answer = await connection.ask(step.frame, step.seconds)
            answered = True
        finally:
            if not answered:
                await connection.close()
        self._free.append(connection)
        if len(self._free) > FREE_MAX:
            await self._free.pop(0).close()
        return answer

    def _borrow(self, address: Address) -> AsyncConnection | None:
        """Take the free connection to a node that was used last; None: all are in use."""
        for at in reversed(range(len(self._free))):
            if self._free[at].address == address:
                return self._free.pop(at)
        return None

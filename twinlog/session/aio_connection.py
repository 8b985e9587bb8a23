"""An awaiting connection to one node: a `Link` with an anyio stream under it.

The awaiting twin of ``twinlog.session.connection``: `send` and `take` may be used by two tasks at
the same time, each of them by one. A cancelled `send` or `ask` leaves the connection of no more
use: close it. A cancelled `take` leaves no trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import anyio
from anyio.abc import SocketAttribute, SocketStream

from twinlog.errors import TwinlogError
from twinlog.session.connection import CONNECT_SECONDS, broken
from twinlog.session.link import Expected, Link, Peer
from twinlog.session.login import nonce
from twinlog.session.routing import Address
from twinlog.session.session import LinkDown, not_opened
from twinlog.wire.frames import Frame, FrameError

if TYPE_CHECKING:
    from anyio.streams.tls import TLSStream

    from twinlog.session.connection import Secure
    from twinlog.session.tls_files import Login

    AnyStream: TypeAlias = SocketStream | TLSStream

RECEIVE_SIZE = 256 * 1024

IDLE_SECONDS = 1.0
"""An idle connection older than this is not trusted with a request that must not be repeated: the
node may have gone, and the streams of anyio do not tell before something is received."""


class AsyncConnection:
    """An open, greeted connection; made by `connect`."""

    def __init__(self, address: Address, stream: AnyStream, link: Link) -> None:
        self.address = address
        self._stream = stream
        self._link = link
        self._answers: deque[Frame] = deque()
        self._used = anyio.current_time()

    @classmethod
    async def connect(
        cls,
        address: Address,
        *,
        client: str,
        seconds: float = CONNECT_SECONDS,
        expected: Expected | None = None,
        secure: Secure | None = None,
        login: Login | None = None,
    ) -> AsyncConnection:
        """Connect and greet; ``secure`` returns the context for TLS, None: none is spoken.

        ``login`` says who we are, to nodes that ask.

        Raises:
            LinkDown: No node accepted and greeted in time, or one of another cluster did, or one
                that refused TLS or was refused (`LinkDown.stranger`); no request was sent.
            TwinlogError: The node refused the greeting, or the login (`Denied`).

        A cancelled connect leaves nothing open.
        """
        made: AsyncConnection | None = None
        try:
            if not 0 < address.port < 65536:  # asyncio tells of it in a group of exceptions
                raise ValueError(f"port {address.port}")
            with anyio.fail_after(max(seconds, 0.001)):
                plain = await anyio.connect_tcp(address.host, address.port)
                stream: AnyStream = plain
                if secure is not None:
                    stream = await _secured(plain, secure, address)
                number = "" if login is None else nonce()
                made = cls(address, stream, Link(client, expected, login, number))
                await made._write([made._link.hello()])
                while made._link.peer is None:
                    await made._receive()
                    if (more := made._link.due()) is not None:
                        await made._write([more])
        except TimeoutError as error:
            await close(made)
            raise LinkDown(f"did not greet within {seconds:.3g} s", sent=False) from error
        except OSError as error:
            await close(made)
            why = (error.strerror or str(error)).lower()
            raise LinkDown(f"cannot be reached: {why}", sent=False) from error
        except ValueError as error:  # the address came from another node
            raise LinkDown(f"is not an address: {error}", sent=False) from error
        except LinkDown as down:
            await close(made)
            # Only the greeting was sent, so no request can have been carried out.
            raise LinkDown(down.why, sent=False, stranger=down.stranger) from down
        except TwinlogError as error:
            await close(made)
            raise not_opened(error) from None
        except anyio.get_cancelled_exc_class():
            await close(made)
            raise
        return made

    @property
    def peer(self) -> Peer:
        """The node at the other end."""
        assert self._link.peer is not None, "greeted by connect"
        return self._link.peer

    @property
    def local(self) -> tuple[str, int]:
        """Our own (IP address, port)."""
        name = self._stream.extra(SocketAttribute.local_address)
        assert not isinstance(name, str), "a TCP stream"
        return str(name[0]), int(name[1])

    def stale(self) -> bool:
        """Whether it has not been used for a while."""
        return anyio.current_time() - self._used > IDLE_SECONDS

    @property
    def next_number(self) -> int:
        """The number of the next request: its answer may come before `send` returns."""
        return self._link.next_number

    async def close(self) -> None:
        """Close; requests under way stay without an answer. Never waits for the node."""
        with anyio.CancelScope(shield=True), suppress(OSError, anyio.BrokenResourceError):
            await self._stream.aclose()

    async def send(
        self, frame: Frame, seconds: float, pieces: Sequence[memoryview | bytes] = ()
    ) -> int:
        """Send a request, payload ``pieces`` after it, and return its number.

        Raises:
            LinkDown: The connection is closed; the node may have got the request.
            FrameError: ``oversized``: nothing was sent.
        """
        number, parts = self._link.request(frame, pieces)
        try:
            with anyio.fail_after(max(seconds, 0.001)):
                await self._write(parts)
        except TimeoutError as error:
            await self.close()
            raise LinkDown("does not take what is sent: no room in time", sent=True) from error
        except anyio.get_cancelled_exc_class():
            await self.close()  # in the middle of a frame: what follows would be garbage
            raise
        return number

    async def take(self, seconds: float | None = None) -> Frame | None:
        """Return the next answer, or None when none came within ``seconds`` (None: wait).

        Raises:
            LinkDown: The connection has ended, or the node broke the protocol.
        """
        with anyio.move_on_after(seconds):
            while not self._answers:
                await self._receive()
        return self._answers.popleft() if self._answers else None

    async def ask(self, frame: Frame, seconds: float) -> Frame:
        """Send a request and return its answer; answers to others are dropped.

        Raises:
            LinkDown: No answer came within ``seconds``.
        """
        end = anyio.current_time() + seconds
        number = await self.send(frame, seconds)
        while True:
            answer = await self.take(max(0.0, end - anyio.current_time()))
            if answer is None:
                raise LinkDown(f"did not answer within {seconds:.3g} s", sent=True)
            if answer.request == number:
                self._used = anyio.current_time()
                return answer

    async def _write(self, parts: Sequence[memoryview | bytes]) -> None:
        try:
            for part in parts:
                await self._stream.send(part)  # type: ignore[arg-type]  # any buffer will do
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            await self.close()
            raise LinkDown("does not take what is sent", sent=True) from error

    async def _receive(self) -> None:
        try:
            data = await self._stream.receive(RECEIVE_SIZE)
        except anyio.EndOfStream as error:
            raise LinkDown("closed the connection", sent=True) from error
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise _broken_off(self.address, error) from error
        try:
            self._link.feed(data)
            self._answers.extend(self._link.answers())
        except FrameError as error:
            raise LinkDown(f"broke the protocol: {error.text}", sent=True) from error


async def _secured(stream: SocketStream, secure: Secure, address: Address) -> TLSStream:
    """Carry out the handshake; raises `LinkDown` and closes the stream."""
    from anyio.streams.tls import TLSStream

    from twinlog.session.tls import closed_early

    try:
        return await TLSStream.wrap(
            stream,
            server_side=False,
            hostname=address.host,
            ssl_context=secure(),
            standard_compatible=False,
        )
    except BaseException as error:
        await anyio.aclose_forcefully(stream)
        if isinstance(error, (anyio.EndOfStream, anyio.BrokenResourceError)):
            raise broken(address, "", closed_early(), sent=False) from error
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            raise _broken_off(address, error) from error
        raise


def _broken_off(address: Address, error: Exception) -> LinkDown:
    """Return what the end of a connection means; a side that refused TLS says why."""
    reason = getattr(error, "reason", None)
    if reason is None:
        return LinkDown("broke off", sent=True)
    from ssl import SSLError

    from twinlog.session.tls import refusal

    assert isinstance(error, SSLError), "no other error of a stream has a reason"
    return broken(address, "", refusal(error), sent=True)


async def close(connection: AsyncConnection | None) -> None:
    """Close a connection if there is one."""
    if connection is not None:
        await connection.close()

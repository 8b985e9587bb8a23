"""A blocking connection to one node: a `Link` with a plain socket under it.

No thread and no event loop. Every wait has an end; what ends it early or late becomes `LinkDown`,
which says whether the node may have received what was sent. After that the connection is closed and
no longer usable.

Units: seconds. Not here: which node, and what to do next (``twinlog.session.session``).
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from twinlog.errors import TwinlogError
from twinlog.session.link import Expected, Link, Peer
from twinlog.session.login import nonce
from twinlog.session.routing import Address
from twinlog.session.session import LinkDown, not_opened
from twinlog.wire.frames import Frame, FrameError

if TYPE_CHECKING:
    from ssl import SSLContext

    from twinlog.session.tls_files import Login, Tls
    from twinlog.session.tls_socket import TlsSocket

    Secure = Callable[[], SSLContext]
    """Returns the context of the next connection; ``ssl`` is imported only where TLS is used."""

JOIN_MAX = 4096
"""A request up to this size, bytes, is sent from one buffer: copying is cheaper than gathering."""

CONNECT_SECONDS = 2.0
"""How long a node has to accept and greet; beyond it another one is asked."""


def secure_of(tls: Tls | None) -> Secure | None:
    """Return what gives the context of each connection; None: no TLS is spoken."""
    if tls is None or not tls.authority:
        return None
    from twinlog.session.tls import ClientContext

    return ClientContext(tls)


class Connection:
    """An open, greeted connection.

    Args:
        address: Whom to connect to.
        client: What the node may log about us.
        seconds: How long connecting and greeting may take.
        expected: The cluster that must answer; None: any.
        secure: Returns the context for TLS; None: none is spoken.
        login: Who we are, for nodes that ask.

    Raises:
        LinkDown: No node accepted and greeted in time, or one of another cluster did, or one that
            refused TLS or was refused (`LinkDown.stranger`); no request was sent.
        TwinlogError: The node refused the greeting (another version) or the login (`Denied`).
    """

    def __init__(
        self,
        address: Address,
        *,
        client: str,
        seconds: float = CONNECT_SECONDS,
        expected: Expected | None = None,
        secure: Secure | None = None,
        login: Login | None = None,
    ) -> None:
        self.address = address
        self._link = Link(client, expected, login, "" if login is None else nonce())
        self._tls: TlsSocket | None = None
        self._answers: deque[Frame] = deque()
        self._used = time.monotonic()
        end = self._used + seconds
        try:
            sock = socket.create_connection(address, timeout=max(seconds, 0.001))
        except OSError as error:
            raise LinkDown(f"cannot be reached: {_why(error)}", sent=False) from error
        except (ValueError, OverflowError) as error:  # the address came from another node
            raise LinkDown(f"is not an address: {error}", sent=False) from error
        self._raw: socket.socket = sock
        self._socket: socket.socket | TlsSocket = sock
        try:
            sock.setblocking(False)
            self._poll = _poll_of(sock)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if secure is not None:
                self._socket = self._tls = self._secured(secure(), end)
            self._send([self._link.hello()], end)
            while self._link.peer is None:
                self._receive(end)
                if (more := self._link.due()) is not None:
                    self._send([more], end)
        except LinkDown as down:
            self.close()
            # Only the greeting was sent, so no request can have been carried out.
            raise LinkDown(down.why, sent=False, stranger=down.stranger) from down
        except TwinlogError as error:
            self.close()
            raise not_opened(error) from None

    def _secured(self, context: SSLContext, end: float) -> TlsSocket:
        """Carry out the handshake; raises `LinkDown`."""
        from twinlog.session.tls_socket import TlsSocket

        secured = TlsSocket(self._raw, context, self.address.host)
        try:
            while (wanted := secured.handshake()) is not None:
                if not _ready(self._raw, end - time.monotonic(), write=wanted == "write"):
                    raise LinkDown("did not finish the TLS handshake in time", sent=False)
        except OSError as error:
            raise broken(self.address, "cannot be reached", error, sent=False) from error
        return secured

    @property
    def peer(self) -> Peer:
        """The node at the other end."""
        assert self._link.peer is not None, "greeted in the constructor"
        return self._link.peer

    @property
    def local(self) -> tuple[str, int]:
        """Our own (IP address, port)."""
        name = self._socket.getsockname()
        return str(name[0]), int(name[1])

    @property
    def last(self) -> int:
        """The number of the request that was sent last."""
        return self._link.next_number - 1

    def close(self) -> None:
        """Close; requests under way stay without an answer."""
        self._socket.close()

    def _readable(self, seconds: float) -> bool:
        """Wait until something can be read, at most ``seconds``; say whether it can."""
        if self._tls is not None and self._tls.pending:
            return True
        if self._poll is None:
            return _ready(self._raw, seconds, write=False)
        return bool(self._poll(seconds * 1000 + 0.5))

    def stale(self) -> bool:
        """Whether the node has closed its end, or said something we did not ask for."""
        try:
            return len(self._raw.recv(1, socket.MSG_PEEK)) == 0
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, frame: Frame, seconds: float, pieces: Sequence[memoryview | bytes] = ()) -> int:
        """Send a request, payload ``pieces`` after it, and return its number.

        Raises:
            LinkDown: The connection is closed; the node may have got the request.
            FrameError: ``oversized``: nothing was sent.
        """
        number, parts = self._link.request(frame, pieces)
        self._used = time.monotonic()
        self._send(parts, self._used + seconds)
        return number

    def take(self, seconds: float) -> Frame | None:
        """Return the next answer, or None when none came within ``seconds`` (0: look only).

        Raises:
            LinkDown: The connection has ended, or the node broke the protocol.
        """
        if not self._answers:
            end = time.monotonic() + seconds
            while not self._answers:
                if not self._receive(end, patient=True):
                    return None
        return self._answers.popleft()

    def ask(self, frame: Frame, seconds: float) -> Frame:
        """Send a request and return its answer; answers to others are dropped.

        Raises:
            LinkDown: No answer came within ``seconds``; the connection is closed.
        """
        end = time.monotonic() + seconds
        return self.answer(self.send(frame, seconds), end - time.monotonic())

    def answer(self, number: int, seconds: float) -> Frame:
        """Return the answer to a request that was sent; answers to others are dropped.

        Raises:
            LinkDown: No answer came within ``seconds``; the connection is closed.
        """
        end = time.monotonic() + seconds
        while True:
            answer = self.take(max(0.0, end - time.monotonic()))
            if answer is None:
                self.close()
                raise LinkDown(f"did not answer within {seconds:.3g} s", sent=True)
            if answer.request == number:
                return answer

    def _send(self, parts: Sequence[memoryview | bytes], end: float) -> None:
        rest: list[memoryview | bytes] = list(parts)
        if len(rest) == 2 and len(rest[0]) + len(rest[1]) <= JOIN_MAX:
            rest = [b"".join(rest)]
        begun = False
        try:
            while rest:
                try:
                    count = _send_some(self._socket, rest)
                except BlockingIOError:
                    if not _ready(self._raw, end - time.monotonic(), write=True):
                        raise TimeoutError from None
                    continue
                begun = True
                while rest and count >= len(rest[0]):
                    count -= len(rest.pop(0))
                if count:
                    rest[0] = memoryview(rest[0])[count:]
        except OSError as error:
            self.close()
            # No byte written: the node cannot have the request, and even a change may be repeated.
            # Under TLS a part may have left before the rest did not fit.
            sent = begun or self._tls is not None
            raise broken(self.address, "does not take what is sent", error, sent=sent) from error
        except BaseException:  # Ctrl-C in the middle of a frame: what follows would be garbage
            self.close()
            raise

    def _receive(self, end: float, *, patient: bool = False) -> bool:
        """Receive once; False (only when ``patient``) if nothing came before ``end``."""
        seconds = end - time.monotonic()
        try:
            if seconds > 0 and not self._readable(seconds):
                raise TimeoutError
            with self._link.buffer() as room:
                count = self._socket.recv_into(room)
        except (TimeoutError, BlockingIOError) as error:
            if self._tls is not None and seconds > 0 and isinstance(error, BlockingIOError):
                return True  # a part of a record, which is nothing yet
            if patient:
                return False
            raise LinkDown("did not answer in time", sent=True) from error
        except OSError as error:
            self.close()
            raise broken(self.address, "broke off", error, sent=True) from error
        if count == 0:
            self.close()
            raise LinkDown("closed the connection", sent=True)
        try:
            self._link.received(count)
            self._answers.extend(self._link.answers())
        except FrameError as error:
            self.close()
            raise LinkDown(f"broke the protocol: {error.text}", sent=True) from error
        return True


def _poll_of(sock: socket.socket) -> Callable[[float], object] | None:
    """Return what waits some ms for the socket to be readable; None where there is no poll."""
    if not hasattr(select, "poll"):  # Windows
        return None
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return poll.poll


def _ready(sock: socket.socket, seconds: float, *, write: bool) -> bool:
    """Wait until the socket can be read or written, at most ``seconds``; say whether it can."""
    seconds = max(seconds, 0.0)
    if not hasattr(select, "poll"):  # Windows
        ends = select.select([] if write else [sock], [sock] if write else [], [sock], seconds)
        return any(ends)
    poll = select.poll()
    poll.register(sock, select.POLLOUT if write else select.POLLIN)
    return bool(poll.poll(seconds * 1000 + 0.5))


_GATHERS = hasattr(socket.socket, "sendmsg")
"""Windows has no sendmsg."""


def _send_some(sock: socket.socket | TlsSocket, parts: list[memoryview | bytes]) -> int:
    if _GATHERS and len(parts) > 1:
        return sock.sendmsg(parts[:64])
    return sock.send(parts[0])


def broken(address: Address, what: str, error: OSError, *, sent: bool) -> LinkDown:
    """Return what an error of a socket means; a side that refused TLS will do so again."""
    hint = getattr(error, "hint", None)
    if hint is None:
        return LinkDown(f"{what}: {_why(error)}", sent=sent)
    from twinlog.session.tls import TlsRefused

    assert isinstance(error, TlsRefused), "no other error of a socket has a hint"
    stranger = error.error(address) if error.final else None
    return LinkDown(error.text, sent=sent, stranger=stranger)


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror or str(error) or type(error).__name__).lower()

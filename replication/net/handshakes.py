"""TLS handshakes of a node: with those who connect, and with the nodes it dials.

A handshake waits for its peer, so each has a task of its own; only a finished one becomes a
`Stream`. At most `HANDSHAKES_MAX` run at a time for one listener, each for `HANDSHAKE_SECONDS`, so
strangers hold neither memory nor descriptors.

A peer that speaks without TLS gets the reason in its own protocol, then the connection is closed: a
twinlog client gets the refusal of its greeting, an HTTP client a response 400.

Cancellation: a cancelled handshake closes its socket.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable

import trio

from twinlog.session.tls import TlsRefused
from twinlog.session.tls_files import REFUSED
from twinlog.session.tls_socket import TlsSocket
from twinlog.wire import frames

HANDSHAKES_MAX = 256
"""At a time for one listener; a new one beyond it is closed at once."""

HANDSHAKE_SECONDS = 5.0
"""From accepting to the end of the handshake."""

FIRST_BYTES = 64 * 1024
"""Taken from a peer without TLS before it is answered: unread bytes would reset the connection, and
the answer with it."""

TLS_FIRST = b"\x16"
"""The first byte of every TLS connection."""

SPEAKS_TLS = "this port speaks TLS, and the client does not"
USE_TLS = "name the authority: --tls-ca FILE, or Client(tls=FILE)"


class Handshakes:
    """The handshakes of one listener; give `begin` to `accept`.

    Args:
        nursery: Runs them.
        context: Returns the context of the next one.
        opened: Called with each finished one and the peer's address.
        refused: Called with the peer's address and why, for each that failed.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        context: Callable[[], ssl.SSLContext],
        opened: Callable[[TlsSocket, str], None],
        refused: Callable[[str, str], None],
    ) -> None:
        self._nursery = nursery
        self._context = context
        self._opened = opened
        self._refused = refused
        self._running = 0

    def begin(self, sock: socket.socket, peer: str) -> None:
        """Begin with a socket that was accepted."""
        if self._running >= HANDSHAKES_MAX:
            sock.close()
            self._refused(peer, f"{HANDSHAKES_MAX} other handshakes run")
            return
        self._running += 1
        self._nursery.start_soon(self._run, sock, peer)

    async def _run(self, sock: socket.socket, peer: str) -> None:
        secured: TlsSocket | None = None
        try:
            with trio.fail_after(HANDSHAKE_SECONDS):
                sock.setblocking(False)
                if await speaks_tls(sock):
                    secured = await shake(TlsSocket(sock, self._context(), None))
        except trio.TooSlowError:
            self._refused(peer, f"no handshake within {HANDSHAKE_SECONDS:g} s")
        except OSError as error:
            self._refused(peer, error.strerror or str(error))
        else:
            if secured is None:
                self._refused(peer, "it does not speak TLS")
        finally:
            self._running -= 1
            if secured is None:
                sock.close()
        if secured is not None:
            self._opened(secured, peer)


async def connect(host: str, port: int) -> socket.socket:
    """Return a connected socket; a cancelled call leaves nothing open.

    Raises:
        OSError: No answer, or not a valid address: addresses come from other nodes.
    """
    try:
        stream = await trio.open_tcp_stream(host, port)
    except (ValueError, OverflowError) as error:
        raise OSError(f"{host!r} port {port} is not an address: {error}") from error
    sock = socket.socket(fileno=os.dup(stream.socket.fileno()))
    with trio.CancelScope(shield=True):
        await stream.aclose()
    return sock


async def connect_secured(host: str, port: int, context: ssl.SSLContext) -> TlsSocket:
    """Return a connected socket whose handshake is done; a cancelled call leaves nothing open.

    Raises:
        TlsRefused: One side refused the other.
        OSError: As `connect`.
    """
    sock = await connect(host, port)
    try:
        return await shake(TlsSocket(sock, context, host))
    except BaseException:
        sock.close()
        raise


async def shake(secured: TlsSocket) -> TlsSocket:
    """Wait until the handshake is done, and return the socket; the caller closes it on an error.

    Raises:
        TlsRefused: One side refused the other.
        OSError: The connection broke.
    """
    while (wanted := secured.handshake()) is not None:
        if wanted == "write":
            await trio.lowlevel.wait_writable(secured.raw)
        else:
            await trio.lowlevel.wait_readable(secured.raw)
    return secured


async def speaks_tls(sock: socket.socket) -> bool:
    """Wait for the peer's first byte; False: it is no TLS, and the peer has been told.

    Raises:
        OSError: The connection ended before it.
    """
    await trio.lowlevel.wait_readable(sock)
    first = sock.recv(1, socket.MSG_PEEK)
    if not first:
        raise TlsRefused("ended before the TLS handshake", "", final=False)
    if first == TLS_FIRST:
        return True
    try:
        sock.send(told(sock.recv(FIRST_BYTES)))
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        return False  # it does not want to know
    return False


def told(said: bytes) -> bytes:
    """Return what is said to a peer without TLS, by the first bytes it sent."""
    if said.startswith(frames.MAGIC[:1]):
        reader = frames.FrameReader()
        reader.feed(said)
        try:
            greeting = reader.next()
        except frames.FrameError:
            greeting = None
        return refused_greeting(SPEAKS_TLS, USE_TLS, greeting)
    text = f"{SPEAKS_TLS}: use https\n".encode()
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    return head.encode() + text


def refused_greeting(text: str, hint: str, greeting: frames.Frame | None = None) -> bytes:
    """Return the refusal of a HELLO; None: it could not be read."""
    fields: dict[str, object] = {"code": REFUSED, "text": text, "hint": hint, "retryable": False}
    asked = greeting or frames.Frame(frames.Type.HELLO)
    return frames.encode_whole(frames.refusal(asked, fields, names=0))


NO_TLS = refused_greeting(
    "this port does not speak TLS", "leave out --tls-ca, or compare the address"
)
"""What a port without TLS answers to a TLS handshake. The peer's TLS sees that it is no record."""

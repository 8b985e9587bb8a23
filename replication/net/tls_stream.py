"""A stream with TLS that tasks wait for, for processes that are not in a hurry.

`TlsStream` has the calls of ``trio.SocketStream`` that the coordinator and its clients use, over a
`TlsSocket` whose handshake is done. One task may receive while another sends. (trio's own
``SSLStream`` drops the alert that tells the peer why it was refused.)

Cancellation: a cancelled `TlsStream.receive_some` leaves no trace; a cancelled `send_all` may have
sent a part, and the stream is of no more use.
"""

from __future__ import annotations

import select
from typing import TypeAlias

import trio

from twinlog.session.tls_socket import TlsSocket


class TlsStream:
    """See the module; owns ``secured`` from now on."""

    def __init__(self, secured: TlsSocket) -> None:
        self._secured = secured
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything; raises OSError, or ClosedResourceError after `close`."""
        rest = memoryview(data)
        while rest:
            self._check()
            try:
                rest = rest[self._secured.send(rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._secured.raw)
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int = 65536) -> bytes:
        """Wait for bytes; none at the end. Raises OSError, or ClosedResourceError after `close`."""
        room = memoryview(bytearray(max_bytes))
        await trio.lowlevel.checkpoint()
        while True:
            self._check()
            try:
                return bytes(room[: self._secured.recv_into(room)])
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._secured.raw)

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the connection is closed")

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._secured.fileno()

    def close(self) -> None:
        """Close at once and wake the tasks that wait; may be called twice."""
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._secured.raw)
            self._secured.close()


AnyStream: TypeAlias = trio.SocketStream | TlsStream


def close_now(stream: AnyStream) -> None:
    """Close at once, without waiting; wakes tasks that wait for the stream."""
    if isinstance(stream, TlsStream):
        stream.close()
    else:
        stream.socket.close()


def said_something(stream: AnyStream) -> bool:
    """Whether an idle peer has sent bytes or closed.

    A twinlog server sends nothing of TLS by itself (``twinlog.session.tls``).
    """
    poll = select.poll()
    poll.register(stream.socket if isinstance(stream, trio.SocketStream) else stream, select.POLLIN)
    return bool(poll.poll(0))

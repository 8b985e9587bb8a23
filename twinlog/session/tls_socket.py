"""A non-blocking socket with TLS over it, called like a plain one.

`TlsSocket` has the calls of ``socket.socket`` that our connections make: ``recv_into``, ``send``,
``sendmsg``, ``fileno``, ``close``; nothing there raises the errors of ``ssl`` that ask for another
call. What may wait raises `BlockingIOError`, as on a plain socket, and what breaks TLS raises
`TlsRefused`. Two differences matter to a caller:

* **Out.** What `send` returns has left as a whole. After `BlockingIOError` a part may have been
  encrypted already, so the same bytes must be offered first at the next call; a caller that sends
  one stream of bytes in order does so anyway.
* **In.** Bytes may be here although the socket is not readable: while `pending`, `recv_into` must
  be called without waiting.

The encrypted bytes pass through memory, so that one system call carries many records: reading them
one by one from the socket would cost two calls for each 16 KiB.

For one thread at a time. Not here: waiting (the caller's), contexts (``twinlog.session.tls``).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Final, Literal, cast

from twinlog.session.tls import closed_early, not_tls, refusal

CHUNK: Final = 128 * 1024
"""Bytes that are encrypted before the socket is given them, and bytes received at a time: eight
records. More gains nothing; all of it is memory of one connection while its peer takes nothing."""

RECORD_TYPES: Final = b"\x14\x15\x16\x17"
"""What the first byte of a TLS record can be; frames, HTTP and text begin with others."""

Buffer = bytes | bytearray | memoryview


class TlsSocket:
    """See the module.

    Args:
        raw: Connected; it is owned from now on, and made non-blocking.
        context: For one of the sides.
        name: The host that must be named in the server's certificate; None: we are the server.
    """

    def __init__(self, raw: socket.socket, context: ssl.SSLContext, name: str | None) -> None:
        raw.setblocking(False)
        self.raw = raw
        self._received, self._encrypted = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._received, self._encrypted, server_side=name is None, server_hostname=name
        )
        self._unsent = memoryview(b"")
        self._owed = 0
        self._begun = False

    # ── opening ─────────────────────────────────────────────────────────────────────────────────

    def handshake(self) -> Literal["read", "write"] | None:
        """Go on with the handshake; return what the socket must be ready for next, None: done.

        Raises:
            TlsRefused: One side refused the other; the peer has been told. Close the socket.
            OSError: The connection broke.
        """
        while True:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLError as error:
                self._tell_quietly()
                raise refusal(error) from None
            try:
                self._flush()
            except BlockingIOError:
                return "write"
            if done:
                return None
            try:
                if not self._receive():
                    raise closed_early()
            except BlockingIOError:
                return "read"
            except ConnectionResetError:
                raise closed_early() from None

    def _tell_quietly(self) -> None:
        """Send the alert that says why; the reason for it matters more than whether it arrives."""
        try:
            self._flush()
        except OSError:
            return

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def pending(self) -> bool:
        """Whether bytes are here that `recv_into` has not returned."""
        return self._received.pending > 0 or self._tls.pending() > 0

    def recv_into(self, room: memoryview) -> int:
        """Fill ``room`` as far as bytes are here or at the socket; 0 at the end.

        Raises:
            BlockingIOError: None are.
            TlsRefused: The peer refused us after all, or broke TLS.
            OSError: The connection broke.
        """
        got, size = 0, len(room)
        while got < size:
            # OpenSSL's word for "nothing here" is an exception, which costs more than a look.
            if not self._received.pending and not self._tls.pending():
                if got:
                    break
                if not self._receive():
                    return 0
            try:
                count = cast("int", self._tls.read(size - got, cast("bytearray", room[got:])))
            except ssl.SSLWantReadError:
                if got:
                    break
                if not self._receive():
                    return 0
                continue
            except ssl.SSLError as error:
                raise refusal(error) from None
            if not count:
                break
            got += count
        return got

    def _receive(self) -> int:
        data = self.raw.recv(CHUNK)
        if not self._begun and data:
            self._begun = True
            if data[0] not in RECORD_TYPES:
                raise not_tls()
        self._received.write(data)
        return len(data)

    # ── out ─────────────────────────────────────────────────────────────────────────────────────

    def send(self, data: Buffer) -> int:
        """Send the front of ``data``, at most `CHUNK`; return how many bytes left.

        Raises:
            BlockingIOError: The socket takes nothing more now; offer the same bytes again.
            OSError: The connection broke.
        """
        if not self._owed:
            part, at = memoryview(data)[:CHUNK], 0
            try:
                while at < len(part):
                    at += self._tls.write(part[at:])
            except ssl.SSLError as error:
                raise refusal(error) from None
            self._owed = len(part)
        self._flush()
        gone, self._owed = self._owed, 0
        return gone

    def sendmsg(
        self, buffers: Sequence[Buffer], ancillary: Sequence[object] = (), flags: int = 0
    ) -> int:
        """Send the front of several buffers as one; as `send`. The other arguments do nothing."""
        if self._owed:
            return self.send(b"")
        parts: list[Buffer] = []
        room = CHUNK
        for buffer in buffers:
            part = memoryview(buffer)[:room]
            parts.append(part)
            room -= len(part)
            if not room:
                break
        return self.send(b"".join(parts))

    def _flush(self) -> None:
        """Give the socket everything that was encrypted; BlockingIOError while it takes no more."""
        while True:
            if not self._unsent:
                if not self._encrypted.pending:
                    return
                self._unsent = memoryview(self._encrypted.read())
            self._unsent = self._unsent[self.raw.send(self._unsent) :]

    # ── the socket ──────────────────────────────────────────────────────────────────────────────

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self.raw.fileno()

    def getsockname(self) -> tuple[str, int]:
        """Return our own (IP address, port)."""
        name = self.raw.getsockname()
        return str(name[0]), int(name[1])

    def shown_name(self) -> str | None:
        """Return the common name in the peer's certificate, which was verified; None: it has none.

        One with several has none: which of them was meant is not known.
        """
        shown = self._tls.getpeercert() or {}
        subject = cast("tuple[tuple[tuple[str, str], ...], ...]", shown.get("subject", ()))
        names = [value for row in subject for key, value in row if key == "commonName"]
        return str(names[0]) if len(names) == 1 else None

    def close(self) -> None:
        """Close; what was not sent is dropped. May be called twice."""
        self.raw.close()

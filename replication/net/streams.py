"""One socket of a node: frames in, gathers of buffers out, no task switch per frame.

trio's own streams cost 5 to 10 us per call, so a `Stream` is called when its socket is readable
(`readiness_service`) and works with plain non-blocking calls:

* **in**: a turn receives into the stream's `FrameReader` until the socket has no more (at most
  `TURN_BYTES`, so that no peer starves the others), hands every whole frame to the owner and then
  ends;
* **out**: `Stream.send` queues buffers (views of the mapped log are never copied) and marks the
  stream; `Outbox.flush`, called at the end of each turn, writes every marked stream with one
  ``sendmsg`` each. A `Loan` is not a buffer: the pages of its file are sent with ``sendfile``, in a
  call of its own. Only a full socket costs a task, for as long as it is full.

Back-pressure: while more than ``congested`` bytes are unsent, the stream is not read and its frames
are not delivered; so a peer can make this node queue at most the answer to one more frame. A side
that sends without a request (a master to its slaves) limits itself. The owner checks
`Stream.moved_at` and closes stalled streams.

A defect (an exception not caused by the peer's bytes) costs one socket: ``defect`` is called and
the stream is closed; the other sockets of the round are served.

Cancellation: a cancelled `serve` leaves the socket open; only `Stream.close` closes it, may be
called at any time and more than once, and ends `serve`.

Not here: the meaning of frames.
"""

from __future__ import annotations

import contextlib
import errno
import math
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import cast

import trio

from replication.net.handshakes import NO_TLS
from replication.net.readiness import Readiness
from storage.disk.mapping import Loan
from twinlog.session.tls_socket import TlsSocket
from twinlog.wire import frames

JOIN_MAX = 4096
"""Small frames, up to this many bytes in all, are copied into one buffer: cheaper than a gather."""

GATHER_MAX = 64
"""Buffers in one sendmsg; Linux takes 1024, more than 64 gain nothing."""

TURN_BYTES = 1 << 20
"""Bytes received in one turn at most: four default sections of 256 KiB, then other peers are
served."""

OF_THE_PEER = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "ENONET",
        "ENOPROTOOPT", "EOPNOTSUPP", "EPERM", "EPROTO", "ETIMEDOUT",
    )
    if hasattr(errno, name)
)  # fmt: skip
"""Errors of accept for a connection that ended, or was forbidden, before it was accepted: accept(2)
says to continue as if there had been none."""

Buffer = bytes | bytearray | memoryview
Piece = Buffer | Loan

MORE = getattr(socket, "MSG_MORE", 0)
"""Flag for bytes sent before a loan, so that both begin in one packet; 0 if not supported."""


class Outbox:
    """The streams of a node with bytes to send, and the tasks of full ones."""

    def __init__(self, nursery: trio.Nursery, spin_seconds: float = 0.0) -> None:
        self._nursery = nursery
        self._marked: list[Stream] = []
        self.readiness = Readiness(spin_seconds)
        """Calls readable streams, in a task of the nursery."""
        nursery.start_soon(self.readiness.run)

    @property
    def now(self) -> float:
        """The loop's time when this turn began, seconds; read once per turn."""
        return self.readiness.now

    def begin(self) -> float:
        """Read the loop's time and make it the time of this turn."""
        now = self.readiness.now = self.readiness.clock()
        return now

    def mark(self, stream: Stream) -> None:
        """Mark a stream to be written at the end of this turn."""
        self._marked.append(stream)

    def flush(self) -> None:
        """Write every marked stream, as much as its socket takes."""
        while self._marked:
            marked, self._marked = self._marked, []
            for stream in marked:
                stream.push()

    def write_on(self, stream: Stream) -> None:
        """Start the task that writes a full socket until its queue is empty."""
        self._nursery.start_soon(stream.write_on)


class Stream:
    """A connected, non-blocking socket; see the module.

    Args:
        sock: Connected, with its TLS handshake done; the stream owns it from now on.
        outbox: Marks the stream when something was queued.
        reader: Splits received bytes into frames.
        congested: Unsent bytes beyond which the peer is not read; None: always read.
        defect: Called with an exception of a turn before the stream is closed for it. If it raises,
        or is None, the exception ends the task that runs the rounds.
        held: Called with the change, bytes, whenever the memory of half-received frames has grown
            or shrunk; also when the stream closes.
    """

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        outbox: Outbox,
        reader: frames.FrameReader,
        *,
        congested: int | None,
        defect: Callable[[Exception], None] | None = None,
        held: Callable[[int], None] | None = None,
    ) -> None:
        self._tls = sock if isinstance(sock, TlsSocket) else None
        raw = sock.raw if isinstance(sock, TlsSocket) else sock
        raw.setblocking(False)
        if raw.family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):  # some systems refuse it after the peer has closed
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._raw = raw
        self._outbox = outbox
        self._reader = reader
        self._congested = congested
        self._defect = defect
        self._held_changed = held
        self._held = 0
        self._out: deque[Piece] = deque()
        self._marked = False
        self._full = False
        self._last: str | None = None
        self._moved: trio.Event | None = None
        self._over = trio.Event()
        self._paused = False
        self._frames = False
        self._broken: frames.FrameError | None = None
        self._on_frame: Callable[[frames.Frame], None] | None = None
        self._end: Callable[[], None] | None = None
        self._readiness = outbox.readiness
        self.closed: str | None = None
        """Why it was closed; None while it is open."""
        self.unsent = 0
        """Bytes queued and not yet taken by the socket."""
        self.received = 0
        self.sent = 0
        """Bytes since it was opened."""
        self.moved_at = trio.current_time()
        """When the socket last took or gave a byte."""

    # ── out ─────────────────────────────────────────────────────────────────────────────────────

    def send(self, head: Buffer, payload: Sequence[Piece] = ()) -> None:
        """Queue one frame; on a closed stream it is dropped."""
        if self.closed is not None or self._last is not None:
            return
        out = self._out
        out.append(head)
        size = len(head)
        for piece in payload:
            out.append(piece)
            size += len(piece)
        if not self.unsent:
            self.moved_at = self._readiness.now
        self.unsent += size
        if not self._marked and not self._full:
            self._marked = True
            self._outbox.mark(self)

    def finish(self, why: str) -> None:
        """Close once everything queued so far has been sent; nothing more is queued or read."""
        self._last = why
        if not self.unsent:
            self.close(why)

    def push(self) -> None:
        """Write what the socket takes now; the rest is sent as it drains."""
        self._marked = False
        if self.closed is not None or self._full:
            return
        self._write()
        if self.closed is not None:
            return
        if self.unsent:
            self._full = True
            self._outbox.write_on(self)
        elif self._paused:
            # `_pause` may have run before this: an append's answer comes after its round began.
            self._readiness.soon(self._go_on)

    def _write(self) -> None:
        out = self._out
        try:
            while out:
                first = out[0]
                if isinstance(first, Loan):
                    # What is encrypted is copied anyway, so nothing can be lent.
                    tls = self._tls
                    count = first.give(self._raw) if tls is None else tls.send(first.view)
                elif len(out) == 1:
                    count = self._sock.send(first)
                else:
                    count = self._gather()
                self._taken(count)
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(f"{type(error).__name__}: {error.strerror}")
            return
        except Exception as error:
            self._broke(error)
            return
        if not out and self._last is not None:
            self.close(self._last)

    def _gather(self) -> int:
        """Send the buffers at the front, up to a loan; small ones as one."""
        pieces = list(islice(self._out, GATHER_MAX))
        kinds, flags = list(map(type, pieces)), 0
        if Loan in kinds:
            del pieces[kinds.index(Loan) :]
            flags = MORE
        buffers = cast("list[Buffer]", pieces)
        if self.unsent <= JOIN_MAX:
            return self._sock.send(b"".join(buffers))
        return self._sock.sendmsg(buffers, (), flags)

    def _taken(self, count: int) -> None:
        self.unsent -= count
        self.sent += count
        self.moved_at = self._readiness.now
        if self._moved is not None:
            self._moved.set()
        out = self._out
        if not self.unsent:
            out.clear()
            return
        while count:
            first = out[0]
            if count < len(first):
                if isinstance(first, Loan):
                    out[0] = first.after(count)
                else:
                    out[0] = memoryview(first)[count:]
                break
            count -= len(first)
            out.popleft()

    async def write_on(self) -> None:
        """Write a full socket until its queue is empty or it is closed. One task at a time."""
        try:
            while self._out and self.closed is None:
                with self._readiness.awaiting():
                    await trio.lowlevel.wait_writable(self._sock)
                self._outbox.begin()
                if self.closed is None:
                    self._write()
                    if self._paused:
                        self._readiness.turn(self._go_on)
        except trio.ClosedResourceError:
            return
        self._full = False

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def congested(self) -> bool:
        """Whether too much is unsent, so that the peer is not read."""
        return self._congested is not None and self.unsent > self._congested

    @property
    def inside_frame(self) -> bool:
        """Whether a frame has been received in part."""
        try:
            self._reader.finish()
        except frames.FrameError as error:
            return error.kind == "truncated"
        return False

    @property
    def held(self) -> int:
        """Bytes of memory held by an incomplete frame."""
        return self._reader.memory

    def _count_held(self) -> None:
        change = self._reader.memory - self._held
        if change and self._held_changed is not None:
            self._held += change
            self._held_changed(change)

    @property
    def standing(self) -> bool:
        """Whether anything is incomplete in either direction; an idle peer is not."""
        return bool(self.unsent) or self.inside_frame

    async def serve(self, on_frame: Callable[[frames.Frame], None], end: Callable[[], None]) -> str:
        """Pass every frame to ``on_frame`` and call ``end`` after each turn; return why it closed.

        The socket is closed when this returns. A payload is valid as long as its frame is kept.

        Raises:
            FrameError: The peer violated the wire protocol; the caller counts and closes.
        """
        self._on_frame, self._end = on_frame, end
        try:
            if self._tls is not None and self._tls.pending and self.closed is None:
                self._readiness.turn(self._turn)  # it came with the end of the handshake
            if self.closed is None:
                await self._readiness.watch(self._sock.fileno(), self._turn, self._over)
        except trio.ClosedResourceError:
            pass
        finally:
            # Owner and stream refer to each other: without breaking the cycle a closed connection
            # would stay in memory until a garbage collection.
            self._on_frame = self._end = None
            if self.closed is not None:
                self._defect = _ignored
        if self._broken is not None:
            raise self._broken
        return self.closed or "closed"

    def _turn(self) -> None:
        """Receive from the socket and deliver whole frames; the caller has read the time."""
        if self._paused:  # most pauses are over before this and cost nothing
            self._readiness.forget(self._sock.fileno())
            return
        budget, more, tls = TURN_BYTES, True, self._tls
        try:
            while more and budget > 0 and self.closed is None:
                room = self._reader.buffer()
                try:
                    count = self._sock.recv_into(room)
                except BlockingIOError:
                    break
                except OSError as error:
                    self.close(f"{type(error).__name__}: {error.strerror}")
                    break
                if not count:
                    self.close("truncated" if self.inside_frame else "peer closed")
                    break
                more = count == len(room)
                budget -= count
                if tls is not None and tls.pending:  # no socket becomes readable for it
                    more, budget = True, max(budget, 1)
                self.received += count
                self.moved_at = self._readiness.now
                self._reader.received(count)
                if not self._hand_out():
                    return
        except Exception as error:
            self._broke(error)
        self._count_held()
        self._end_turn()

    def _broke(self, error: Exception) -> None:
        """Close for a defect; frames delivered before it still get the end of their turn."""
        if self._defect is None:
            raise error
        self._defect(error)
        self.close("defect")

    def _hand_out(self) -> bool:
        """Deliver whole frames; False if no more bytes of the peer may be read now."""
        on_frame, reader = self._on_frame, self._reader
        assert on_frame is not None, "serve runs"
        while self.closed is None:
            try:
                frame = reader.next()
            except frames.FrameError as error:
                if error.kind == "tls":
                    self._answer_tls()
                self._broken = error
                self._readiness.forget(self._sock.fileno())
                self._over.set()
                return False
            if frame is None:
                break
            self._frames = True
            if self._last is None:
                on_frame(frame)
            if self._congested is not None and self.unsent > self._congested:
                self._pause()
                return False
        return True

    def _answer_tls(self) -> None:
        """Say in the clear, to a peer that begins with TLS, that it is not spoken here."""
        with contextlib.suppress(OSError):
            self._sock.send(NO_TLS)

    def _end_turn(self) -> None:
        """End a turn that delivered a frame; part of a large frame is not a turn."""
        if self._frames:
            self._frames = False
            assert self._end is not None, "serve runs"
            self._end()

    def _pause(self) -> None:
        """Stop reading a peer until it has received more of the unsent bytes."""
        self._paused = True  # its bytes stay in the socket: see `_turn`
        self._end_turn()
        self._readiness.soon(self._go_on)  # the write at the end of the turn may suffice

    def _go_on(self) -> None:
        """Resume a paused peer, once enough bytes were sent."""
        if not self._paused or self.closed is not None or self.congested:
            return
        try:
            if not self._hand_out():
                return
            self._paused = False
            if self.closed is None:  # a delivered frame may have closed it
                self._readiness.again(self._sock.fileno(), self._turn)
                if self._tls is not None and self._tls.pending:
                    self._readiness.soon(self._turn)
        except Exception as error:
            self._broke(error)
        self._end_turn()

    async def emptied(self, seconds: float = math.inf) -> bool:
        """Wait until everything queued so far has been sent, or the stream is closed.

        False if that took longer than ``seconds``.
        """
        end = self.sent + self.unsent
        with trio.move_on_after(seconds) as patience:
            while self.sent < end and self.closed is None:
                if self._moved is None or self._moved.is_set():
                    self._moved = trio.Event()
                await self._moved.wait()
        return not patience.cancelled_caught

    # ── end ─────────────────────────────────────────────────────────────────────────────────────

    def close(self, why: str) -> None:
        """Close at once; unsent bytes are dropped. May be called twice."""
        if self.closed is not None:
            return
        self.closed = why
        self._out.clear()
        self.unsent = 0
        self._reader.release()
        self._count_held()
        if self._moved is not None:
            self._moved.set()
        self._over.set()
        self._readiness.forget(self._sock.fileno())
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


def _ignored(error: Exception) -> None:
    """Ignore the defect of a stream that is closed already."""


def listen(host: str, port: int, *, backlog: int = 512) -> socket.socket:
    """Return a listening, non-blocking socket; port 0 takes a free one.

    Raises:
        OSError: The address is in use or not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


async def accept(listener: socket.socket, accepted: Callable[[socket.socket, str], None]) -> None:
    """Pass every new connection with its peer's address to ``accepted``; runs until cancelled.

    Without free descriptors it waits 100 ms and continues: open connections must still be served,
    and a crash would stop the node.
    """
    while True:
        await trio.lowlevel.wait_readable(listener)
        try:
            sock, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            continue
        except OSError as error:
            if error.errno in OF_THE_PEER:
                continue
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                raise
            await trio.sleep(0.1)
            continue
        accepted(sock, f"{address[0]}:{address[1]}")

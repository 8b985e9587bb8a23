"""One socket of a node: frames in, gathers of buffers out, no task switch per frame.

trio's own streams cost 5 to 10 us per call, so a `Stream` is called when its socket is readable
(`readiness_service`) and works with plain non-blocking calls:

* **in**: a turn receives into the stream's `FrameReader` until the socket has no more (at most
  `TURN_BYTES`, so that no peer starves the others), hands out every whole frame and then ends;
* **out**: `Stream.send` queues buffers (views of the mapped log are never copied) and marks the
  stream; `Outbox.flush`, called at the end of each turn, writes every marked stream with one
  ``sendmsg`` each. A `Loan` is no buffer: the socket is lent the pages of its file, in a call of
  its own. Only a socket that is full costs a task, for as long as it is full.

Back-pressure: while more than ``congested`` bytes are unsent, the stream is not read and its frames
are not handed out; what a peer can make us queue is bounded by what one frame can. Whoever sends
without being asked (a master to its slaves) bounds itself. The owner looks at `Stream.moved_at`
and closes what stalls.

A defect (an exception that is no fault of the peer's bytes) costs one socket: whoever made the
stream is told (``defect``) and it is closed; the sockets of the same round have their turn.

Cancellation: a cancelled `serve` leaves the socket as it is; `Stream.close` is the only way out,
may be called at any time and more than once, and ends `serve`.

Not here: what a frame means.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import cast

import trio

from replication.net.readiness import Readiness
from storage.disk.mapping import Loan
from twinlog.wire import frames

JOIN_MAX = 4096
"""Small frames of so many bytes in all are copied into one buffer: cheaper than a gather."""

GATHER_MAX = 64
"""Buffers handed to one sendmsg; Linux takes 1024, more than 64 brings nothing."""

TURN_BYTES = 1 << 20
"""Received in one turn at most: four default sections of 256 KiB, then others have theirs."""

OF_THE_PEER = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "ENONET",
        "ENOPROTOOPT", "EOPNOTSUPP", "EPERM", "EPROTO", "ETIMEDOUT",
    )
    if hasattr(errno, name)
)  # fmt: skip
"""What accept says of a connection that ended, or was forbidden, before it was taken: accept(2)
asks to go on as if nobody had come."""

Buffer = bytes | bytearray | memoryview
Piece = Buffer | Loan

MORE = getattr(socket, "MSG_MORE", 0)
"""With what stands before a loan, so that both begin in one packet; 0 where there is no such."""


class Outbox:
    """The streams of a node that have something to send, and the tasks of those that are full."""

    def __init__(self, nursery: trio.Nursery, spin_seconds: float = 0.0) -> None:
        self._nursery = nursery
        self._marked: list[Stream] = []
        self.readiness = Readiness(spin_seconds)
        """Calls the streams that have something to read, in a task of the nursery."""
        nursery.start_soon(self.readiness.run)

    @property
    def now(self) -> float:
        """The loop's time when this turn began, seconds: read once, good for all of the turn."""
        return self.readiness.now

    def begin(self) -> float:
        """Read the loop's time and make it the time of this turn."""
        now = self.readiness.now = self.readiness.clock()
        return now

    def mark(self, stream: Stream) -> None:
        """Have the stream written at the end of this turn."""
        self._marked.append(stream)

    def flush(self) -> None:
        """Write every marked stream as far as its socket takes it."""
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
        sock: Connected; the stream owns it from now on.
        outbox: Where it is marked when something was queued.
        reader: Cuts what arrives into frames.
        congested: Unsent bytes beyond which the peer is not read; None: always read.
        defect: Told of an exception in a turn before the stream is closed for it. Where it raises,
            or is None, the exception ends whoever runs the rounds.
        held: Called with the change, bytes, whenever the memory of half-received frames has grown
            or shrunk; what is held when the stream closes is given back at once.
    """

    def __init__(
        self,
        sock: socket.socket,
        outbox: Outbox,
        reader: frames.FrameReader,
        *,
        congested: int | None,
        defect: Callable[[Exception], None] | None = None,
        held: Callable[[int], None] | None = None,
    ) -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):  # some systems refuse it once the peer is gone
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
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
        """Queue one frame; what is queued on a closed stream is dropped."""
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
        """Close once everything queued so far has been sent; nothing more is taken or given."""
        self._last = why
        if not self.unsent:
            self.close(why)

    def push(self) -> None:
        """Give the socket what it takes now; the rest goes out as it drains."""
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
            # `_pause` may have looked before this: an append's answer comes after its round began.
            self._readiness.soon(self._go_on)

    def _write(self) -> None:
        out = self._out
        try:
            while out:
                first = out[0]
                if isinstance(first, Loan):
                    count = first.give(self._sock)
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
        """Whether so much is unsent that the peer is not read."""
        return self._congested is not None and self.unsent > self._congested

    @property
    def inside_frame(self) -> bool:
        """Whether the peer has begun a frame and not finished it."""
        try:
            self._reader.finish()
        except frames.FrameError as error:
            return error.kind == "truncated"
        return False

    @property
    def held(self) -> int:
        """Bytes of memory taken by a frame that is not complete."""
        return self._reader.memory

    def _count_held(self) -> None:
        change = self._reader.memory - self._held
        if change and self._held_changed is not None:
            self._held += change
            self._held_changed(change)

    @property
    def standing(self) -> bool:
        """Whether something is unfinished in either direction: a peer that rests is not."""
        return bool(self.unsent) or self.inside_frame

    async def serve(self, on_frame: Callable[[frames.Frame], None], end: Callable[[], None]) -> str:
        """Hand every frame to ``on_frame`` and call ``end`` after each turn; return why it closed.

        The socket is closed when this returns. A payload is good as long as its frame is kept.

        Raises:
            FrameError: The peer left the rules of the wire; the caller counts and closes.
        """
        self._on_frame, self._end = on_frame, end
        try:
            if self.closed is None:
                await self._readiness.watch(self._sock.fileno(), self._turn, self._over)
        except trio.ClosedResourceError:
            pass
        finally:
            # The owner refers to the stream and the stream to its owner: without this cut a closed
            # connection would stay in memory until the garbage collector looks at its generation.
            self._on_frame = self._end = None
            if self.closed is not None:
                self._defect = _ignored
        if self._broken is not None:
            raise self._broken
        return self.closed or "closed"

    def _turn(self) -> None:
        """Take what the socket has and hand out what is whole; who calls has read the time."""
        if self._paused:  # most pauses are over before this: then it was never left out
            self._readiness.forget(self._sock.fileno())
            return
        budget, more = TURN_BYTES, True
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
        """Close for a defect; what was handed out before it keeps its turn's end."""
        if self._defect is None:
            raise error
        self._defect(error)
        self.close("defect")

    def _hand_out(self) -> bool:
        """Hand out whole frames; False when that must stop before the peer's next byte."""
        on_frame, reader = self._on_frame, self._reader
        assert on_frame is not None, "serve runs"
        while self.closed is None:
            try:
                frame = reader.next()
            except frames.FrameError as error:
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

    def _end_turn(self) -> None:
        """End a turn that handed out a frame; a piece of a large one is no turn."""
        if self._frames:
            self._frames = False
            assert self._end is not None, "serve runs"
            self._end()

    def _pause(self) -> None:
        """Take nothing from a peer until it has taken more of what is unsent."""
        self._paused = True  # what it sends is left where it is: see `_turn`
        self._end_turn()
        self._readiness.soon(self._go_on)  # writing at the end of the turn may be all it takes

    def _go_on(self) -> None:
        """Take up a paused peer again, once enough was taken."""
        if not self._paused or self.closed is not None or self.congested:
            return
        try:
            if not self._hand_out():
                return
            self._paused = False
            if self.closed is None:  # what was handed out may have closed it
                self._readiness.again(self._sock.fileno(), self._turn)
        except Exception as error:
            self._broke(error)
        self._end_turn()

    async def emptied(self, seconds: float = math.inf) -> bool:
        """Wait until everything queued so far has been taken, or the stream is closed.

        False when that took longer than ``seconds``.
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
        """Close at once; unsent bytes are dropped. Harmless when it is closed already."""
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
    """Take the defect of a stream that is closed already."""


def listen(host: str, port: int, *, backlog: int = 512) -> socket.socket:
    """Return a listening, non-blocking socket; port 0 takes a free one.

    Raises:
        OSError: The address is in use or not ours.
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
    """Hand every new connection with its peer's address to ``accepted``; runs until cancelled.

    When the process is out of descriptors it waits 100 ms and goes on: those that are open keep
    being served, and a crash would take the log with it.
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


async def connect(host: str, port: int) -> socket.socket:
    """Return a connected socket; a cancelled call leaves nothing open.

    Raises:
        OSError: Nobody answers there, or it is no address: others said where to connect.
    """
    try:
        stream = await trio.open_tcp_stream(host, port)
    except (ValueError, OverflowError) as error:
        raise OSError(f"{host!r} port {port} is no address: {error}") from error
    sock = socket.socket(fileno=os.dup(stream.socket.fileno()))
    with trio.CancelScope(shield=True):
        await stream.aclose()
    return sock

"""A stream hands out whole frames, gives nothing twice, and does not read who takes nothing."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from replication.net.handshakes import connect
from replication.net.streams import Outbox, Stream, accept, listen
from twinlog.wire import frames


@asynccontextmanager
async def streams(
    congested: int | None = None, defect: Callable[[Exception], None] | None = None
) -> AsyncIterator[tuple[Stream, socket.socket]]:
    """A stream and the plain socket at its other end, with an outbox that lives as long."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)  # systems differ by megabytes
    theirs.setblocking(False)
    async with trio.open_nursery() as nursery:
        outbox = Outbox(nursery)
        stream = Stream(ours, outbox, frames.FrameReader(), congested=congested, defect=defect)
        try:
            yield stream, theirs
        finally:
            stream.close("test over")
            theirs.close()
            nursery.cancel_scope.cancel()


def frame(request: int, payload: bytes = b"") -> bytes:
    """A READ as it travels."""
    return frames.encode_whole(frames.Frame(frames.Type.READ, request=request, payload=payload))


def nothing() -> None:
    """A turn's end that does nothing."""


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something holds."""
    with trio.fail_after(60):
        while not condition():
            await trio.lowlevel.checkpoint()


async def drain(sock: socket.socket, count: int) -> bytes:
    """Receive exactly so many bytes."""
    got = bytearray()
    with trio.fail_after(60):
        while len(got) < count:
            await trio.lowlevel.wait_readable(sock)
            got += sock.recv(count - len(got))
    return bytes(got)


async def test_every_frame_of_a_receive_is_handed_out_in_order() -> None:
    """One receive with many frames is one turn."""
    async with streams() as (stream, theirs), trio.open_nursery() as nursery:
        got: list[int] = []
        ends: list[int] = []
        nursery.start_soon(
            stream.serve, lambda f: got.append(f.request), lambda: ends.append(len(got))
        )
        theirs.send(b"".join(frame(number) for number in range(20)))
        await until(lambda: len(got) == 20)
        assert got == list(range(20))
        assert len(ends) <= 2
        stream.close("done")


async def test_frames_arrive_whole_at_every_split_point() -> None:
    """Wherever the bytes are cut, the same frames come out, and nothing before they are whole."""
    data = frame(1, b"x" * 5) + frame(2)
    first = len(frame(1, b"x" * 5))
    for cut in range(len(data)):
        async with streams() as (stream, theirs), trio.open_nursery() as nursery:
            got: list[frames.Frame] = []
            nursery.start_soon(stream.serve, got.append, nothing)
            theirs.send(data[:cut])
            await until(lambda cut=cut, stream=stream: stream.received == cut)  # type: ignore[misc]
            assert [f.request for f in got] == ([1] if cut >= first else [])
            assert stream.inside_frame == (cut not in (0, first))
            theirs.send(data[cut:])
            await until(lambda got=got: len(got) == 2)  # type: ignore[misc]
            assert bytes(got[0].payload) == b"xxxxx"
            stream.close("done")


async def test_a_peer_that_leaves_inside_a_frame_is_told_apart() -> None:
    """A connection that ends between frames ended in order; inside one it was cut."""
    for data, why in ((frame(1), "peer closed"), (frame(1)[:30], "truncated")):
        async with streams() as (stream, theirs):
            theirs.send(data)
            theirs.close()
            with trio.fail_after(60):
                assert await stream.serve(lambda _: None, nothing) == why


async def test_a_full_socket_is_written_as_it_drains() -> None:
    """What the socket does not take at once arrives later, in order, views and bytes alike."""
    async with streams() as (stream, theirs):
        parts = [bytes([number]) * 100_000 for number in range(100)]
        for part in parts:
            stream.send(part[:7], (memoryview(part)[7:],))
        stream._outbox.flush()  # pyright: ignore[reportPrivateUsage]
        assert stream.unsent > 0
        assert await drain(theirs, 10_000_000) == b"".join(parts)
        await until(lambda: stream.unsent == 0)


async def test_a_peer_that_takes_nothing_is_not_read() -> None:
    """Requests of a peer with too many unsent answers stay in its socket until it reads."""
    async with streams(congested=1000) as (stream, theirs), trio.open_nursery() as nursery:
        answered: list[int] = []
        answer = b"a" * 300_000

        def on_frame(asked: frames.Frame) -> None:
            answered.append(asked.request)
            stream.send(answer)

        nursery.start_soon(stream.serve, on_frame, stream._outbox.flush)  # pyright: ignore
        theirs.send(b"".join(frame(number) for number in range(30)))
        await until(lambda: stream.congested)
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        assert len(answered) < 5
        await drain(theirs, 30 * len(answer))
        assert answered == list(range(30))
        stream.close("done")


async def test_what_a_paused_peer_sends_on_wakes_nobody() -> None:
    """The first of it has its socket left alone until there is room; then it is all answered."""
    async with streams(congested=1000) as (stream, theirs), trio.open_nursery() as nursery:
        answer = b"a" * 3_000_000
        ready = stream._readiness._readable  # pyright: ignore[reportPrivateUsage]
        nursery.start_soon(stream.serve, lambda _: stream.send(answer), stream._outbox.flush)  # pyright: ignore
        theirs.send(frame(1))
        await until(lambda: stream.congested)
        theirs.send(frame(2))
        await until(lambda: not ready)
        await drain(theirs, 2 * len(answer))
        theirs.send(frame(3))
        await drain(theirs, len(answer))
        stream.close("done")


async def test_finish_sends_what_was_queued_and_hands_out_nothing_more() -> None:
    """The last word reaches the peer; requests after it are dropped."""
    async with streams() as (stream, theirs):
        got: list[int] = []

        def on_frame(asked: frames.Frame) -> None:
            got.append(asked.request)
            stream.send(b"last word")
            stream.finish("done")

        theirs.send(frame(1) + frame(2))
        with trio.fail_after(60):
            assert await stream.serve(on_frame, stream._outbox.flush) == "done"  # pyright: ignore
        assert got == [1]
        assert theirs.recv(100) == b"last word"


async def test_a_peer_that_is_closed_when_it_is_taken_up_again_costs_nobody_else() -> None:
    """The frame that ends the connection lies behind those that had to wait for room."""
    async with streams(congested=1000) as (stream, theirs), trio.open_nursery() as nursery:

        def on_frame(asked: frames.Frame) -> None:
            if asked.request == 4:
                stream.close("hello")
            stream.send(b"a" * 600)

        outbox = stream._outbox  # pyright: ignore[reportPrivateUsage]
        theirs.send(b"".join(frame(number) for number in range(5)))
        nursery.start_soon(stream.serve, on_frame, outbox.flush)
        await until(lambda: stream.closed is not None)
        ours, other = socket.socketpair()
        neighbour = Stream(ours, outbox, frames.FrameReader(), congested=None)
        nursery.start_soon(neighbour.serve, lambda _: neighbour.send(b"here"), outbox.flush)
        other.send(frame(1))
        other.setblocking(False)
        assert await drain(other, 4) == b"here"
        neighbour.close("done")
        other.close()


async def test_answers_of_the_rounds_end_take_a_paused_peer_up_again() -> None:
    """What an append is answered with comes after the look whether there is room again."""
    async with streams(congested=1000) as (stream, theirs), trio.open_nursery() as nursery:
        got: list[int] = []
        outbox = stream._outbox  # pyright: ignore[reportPrivateUsage]

        def on_frame(asked: frames.Frame) -> None:
            got.append(asked.request)
            stream.send(b"a" * 600)

        def append() -> None:
            outbox.readiness.soon(outbox.flush)

        theirs.send(b"".join(frame(number) for number in range(9)))
        nursery.start_soon(stream.serve, on_frame, lambda: outbox.readiness.soon(append))
        await until(lambda: got == list(range(9)))
        await drain(theirs, 9 * 600)
        theirs.close()
        await until(lambda: stream.closed == "peer closed")


@pytest.mark.parametrize("paused", [False, True])
async def test_a_defect_costs_its_own_connection_only(paused: bool) -> None:
    """It is told with the exception, what came before it has its turn's end, others go on."""
    told: list[Exception] = []
    ends: list[int] = []
    async with (
        streams(congested=1000, defect=told.append) as (stream, theirs),
        trio.open_nursery() as nursery,
    ):
        outbox = stream._outbox  # pyright: ignore[reportPrivateUsage]

        def on_frame(asked: frames.Frame) -> None:
            if asked.request == 3:
                raise KeyError("a defect")
            if paused:
                stream.send(b"a" * 600)

        def end() -> None:
            ends.append(1)
            outbox.flush()

        theirs.send(b"".join(frame(number) for number in range(5)))
        with trio.fail_after(60):
            assert await stream.serve(on_frame, end) == "defect"
        assert [type(error) for error in told] == [KeyError]
        assert ends
        nursery.cancel_scope.cancel()


async def test_a_defect_that_must_end_the_node_does() -> None:
    """Whoever is told may raise; then nobody is served any more."""

    def refuse(error: Exception) -> None:
        raise error

    def on_frame(asked: frames.Frame) -> None:
        raise KeyError("the driver")

    with pytest.RaisesGroup(KeyError, flatten_subgroups=True):
        async with streams(defect=refuse) as (stream, theirs):
            theirs.send(frame(1))
            await stream.serve(on_frame, nothing)


async def test_a_connection_that_ended_before_it_was_taken_is_passed_over() -> None:
    """Linux reports a peer's network error from accept; the next peer is taken all the same."""
    listener = listen("127.0.0.1", 0)
    errors = [errno.EPROTO, errno.EHOSTUNREACH, errno.ECONNABORTED]

    class Odd(socket.socket):
        """A listener whose first connections are gone when they are to be taken."""

        def accept(self) -> tuple[socket.socket, Any]:
            """Fail so often, then take one."""
            if errors:
                number = errors.pop()
                raise OSError(number, os.strerror(number))
            return super().accept()

    got: list[socket.socket] = []
    async with trio.open_nursery() as nursery:
        with Odd(fileno=listener.detach()) as odd:
            odd.setblocking(False)
            nursery.start_soon(accept, odd, lambda sock, _: got.append(sock))
            peer = socket.create_connection(odd.getsockname())
            await until(lambda: len(got) == 1)
            nursery.cancel_scope.cancel()
    for each in (*got, peer):
        each.close()


@pytest.mark.parametrize(
    ("host", "port"), [("\0", 1), ("x" * 99 + ".", 1), ("127.0.0.1", 70_000), ("127.0.0.1", -1)]
)
async def test_what_is_no_address_is_an_address_where_nobody_answers(host: str, port: int) -> None:
    """Addresses of other nodes come from the coordinator, where anybody may have put them."""
    with pytest.raises(OSError):  # noqa: PT011
        await connect(host, port)

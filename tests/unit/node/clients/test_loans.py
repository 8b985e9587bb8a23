"""Bytes lent to a socket from their file: in order, as far as it takes them, or not at all."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from replication.net.streams import Outbox, Stream
from storage.disk.disk import RealDisk
from storage.disk.mapping import LEND_MIN, Loan, Mapping
from twinlog.wire import frames

SIZE = 4 << 20
DATA = Random(5).randbytes(SIZE)


@pytest.fixture
def mapping(tmp_path: Path) -> Mapping:
    """A mapped file of `DATA`."""
    made = RealDisk(tmp_path).map("f", SIZE, op="test", create=True)
    made.buffer[:] = DATA
    return made


def loan(mapping: Mapping, start: int, end: int) -> Loan:
    """A part of the file."""
    return Loan(mapping, start, mapping.buffer[start:end])


@asynccontextmanager
async def sending() -> AsyncIterator[tuple[Outbox, Stream, socket.socket]]:
    """A stream, and the plain socket at its other end."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 200_000)
    async with trio.open_nursery() as nursery:
        outbox = Outbox(nursery)
        stream = Stream(ours, outbox, frames.FrameReader(), congested=None)
        try:
            yield outbox, stream, theirs
        finally:
            stream.close("test over")
            theirs.close()
            nursery.cancel_scope.cancel()


async def drain(sock: socket.socket, count: int, most: int = 1 << 20) -> bytes:
    """Receive exactly so many bytes."""
    got = bytearray()
    with trio.fail_after(60):
        while len(got) < count:
            await trio.lowlevel.wait_readable(sock)
            got += sock.recv(min(count - len(got), most))
    return bytes(got)


@pytest.mark.parametrize("most", [1 << 20, 50_001])
async def test_heads_views_and_loans_arrive_in_order(mapping: Mapping, most: int) -> None:
    """However much the socket takes at a time, and whatever of a loan is left."""
    async with sending() as (outbox, stream, theirs):
        wanted = b""
        for number in range(8):
            at = number * 400_000
            pieces = (mapping.buffer[at : at + 9], loan(mapping, at + 9, at + 300_000 + number))
            stream.send(b"head%d" % number, pieces)
            wanted += b"head%d" % number + DATA[at : at + 300_000 + number]
        outbox.flush()
        assert 0 < stream.unsent < len(wanted)
        assert await drain(theirs, len(wanted), most) == wanted
        assert stream.unsent == 0


async def test_a_mapping_that_is_closed_meanwhile_is_copied(mapping: Mapping) -> None:
    """A cut closes it; the view that the loan holds still has the bytes."""
    async with sending() as (outbox, stream, theirs):
        stream.send(b"head", (loan(mapping, 0, SIZE),))
        outbox.flush()
        assert stream.unsent
        mapping.close()
        assert mapping.held()
        assert await drain(theirs, SIZE + 4) == b"head" + DATA
        await trio.testing.wait_all_tasks_blocked()
        assert not mapping.held()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, None])
async def test_what_no_system_lends_is_copied(
    mapping: Mapping, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that lends no pages, and a platform without the call."""

    def refuses(to: int, file: int, start: int, count: int) -> int:
        raise OSError(code, "not here")

    if code is None:
        monkeypatch.delattr(os, "sendfile")
    else:
        monkeypatch.setattr(os, "sendfile", refuses)
    async with sending() as (outbox, stream, theirs):
        stream.send(b"head", (loan(mapping, 5, SIZE),))
        outbox.flush()
        assert await drain(theirs, SIZE - 1) == b"head" + DATA[5:]


@pytest.mark.parametrize("after", [0, LEND_MIN])
async def test_an_error_of_the_disk_closes_and_sends_nothing_else(
    mapping: Mapping, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer has part of a frame, as it is in the file, and then the end of the stream."""
    lend = os.sendfile

    def fails(to: int, file: int, start: int, count: int) -> int:
        if start >= after:
            raise OSError(errno.EIO, "Input/output error")
        return lend(to, file, start, min(count, after - start))

    monkeypatch.setattr(os, "sendfile", fails)
    async with sending() as (outbox, stream, theirs):
        stream.send(b"head", (loan(mapping, 0, SIZE),))
        stream.send(b"next")
        outbox.flush()
        assert stream.closed is not None and "Input/output error" in stream.closed
        assert await drain(theirs, 4 + after) == b"head" + DATA[:after]
        assert theirs.recv(1) == b""


async def test_a_file_that_others_cut_short_closes(mapping: Mapping, tmp_path: Path) -> None:
    """Nothing comes of it, again and again: that is an error and no full socket."""
    os.truncate(tmp_path / "f", 0)
    async with sending() as (outbox, stream, _):
        stream.send(b"head", (loan(mapping, 0, SIZE),))
        outbox.flush()
        assert stream.closed is not None

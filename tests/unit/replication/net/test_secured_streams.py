"""Streams over TLS: nothing stays behind in memory, and a handshake that fails costs nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from replication.net import handshakes
from replication.net.certificates import Certificates as Served
from replication.net.certificates import renew
from replication.net.handshakes import NO_TLS, Handshakes, connect_secured
from replication.net.streams import TURN_BYTES, Outbox, Stream, accept, listen
from replication.net.tls_stream import TlsStream, said_something
from storage.disk.mapping import LEND_MIN, Loan, RealMapping
from tests.fixtures.certificates import Certificates
from twinlog.errors import UsageError
from twinlog.session.tls import TlsRefused, client_context, server_context
from twinlog.session.tls_files import Tls, TlsSettings
from twinlog.session.tls_socket import TlsSocket
from twinlog.wire import frames


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "a")


def frame(request: int, payload: bytes = b"") -> bytes:
    """A READ as it travels."""
    return frames.encode_whole(frames.Frame(frames.Type.READ, request=request, payload=payload))


@asynccontextmanager
async def secured(
    certificates: Certificates, *, congested: int | None = None
) -> AsyncIterator[tuple[Stream, TlsStream]]:
    """A stream, and the other end of its connection; both have shaken hands."""
    files = certificates.of("n1")
    ours, theirs = socket.socketpair()
    server = TlsSocket(ours, server_context(files, ask=True), None)
    client = TlsSocket(theirs, client_context(files), "127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handshakes.shake, server)
        await handshakes.shake(client)
    async with trio.open_nursery() as nursery:
        stream = Stream(server, Outbox(nursery), frames.FrameReader(), congested=congested)
        try:
            yield stream, TlsStream(client)
        finally:
            stream.close("test over")
            client.close()
            nursery.cancel_scope.cancel()


async def receive(peer: TlsStream, count: int) -> list[frames.Frame]:
    """So many frames."""
    reader, got = frames.FrameReader(), list[frames.Frame]()
    with trio.fail_after(60):
        while len(got) < count:
            if (found := reader.next()) is not None:
                got.append(found)
            else:
                reader.feed(await peer.receive_some(1 << 20))
    return got


async def until_equal(got: list[int], count: int) -> None:
    with trio.fail_after(60):
        while len(got) < count:
            await trio.lowlevel.checkpoint()


async def test_frames_that_came_with_the_handshake_are_served(certificates: Certificates) -> None:
    """They lie in memory: no socket becomes readable for them."""
    async with secured(certificates) as (stream, peer), trio.open_nursery() as nursery:
        await peer.send_all(frame(1) + frame(2))
        assert isinstance(stream._sock, TlsSocket)
        await trio.lowlevel.wait_readable(stream._sock.raw)
        assert stream._sock._receive()
        assert stream._sock.pending
        got: list[int] = []
        nursery.start_soon(stream.serve, lambda f: got.append(f.request), lambda: None)
        await until_equal(got, 2)
        assert got == [1, 2]
        stream.close("done")


async def in_memory(stream: Stream, peer: TlsStream, data: bytes) -> None:
    """Have everything that the peer sends lie in the memory of TLS, and nothing at the socket."""
    sock = stream._sock
    assert isinstance(sock, TlsSocket)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.send_all, data)
        while sock._received.pending < len(data):
            await trio.lowlevel.wait_readable(sock.raw)
            sock._receive()
    with contextlib.suppress(BlockingIOError):
        while True:
            sock._receive()


async def test_more_than_a_turn_of_frames_is_served_whole(certificates: Certificates) -> None:
    """A turn ends somewhere inside; what is in memory by then must not wait for the socket."""
    payload = bytes(50_000)
    count = 5 * TURN_BYTES // len(payload)
    async with secured(certificates) as (stream, peer), trio.open_nursery() as nursery:
        await in_memory(stream, peer, b"".join(frame(n, payload) for n in range(count)))
        got: list[int] = []
        nursery.start_soon(stream.serve, lambda f: got.append(f.request), lambda: None)
        await until_equal(got, count)
        assert got == list(range(count))
        stream.close("done")


async def test_a_congested_peer_goes_on_when_it_takes_its_answers(
    certificates: Certificates,
) -> None:
    """The requests behind a pause are in memory, not at the socket."""
    payload, count = bytes(300_000), 20
    async with secured(certificates, congested=1) as (stream, peer), trio.open_nursery() as nursery:

        def on_frame(asked: frames.Frame) -> None:
            stream.send(frame(asked.request, payload))

        await in_memory(stream, peer, b"".join(frame(n, payload) for n in range(count)))
        nursery.start_soon(stream.serve, on_frame, stream._outbox.flush)
        found = await receive(peer, count)
        assert [each.request for each in found] == list(range(count))
        assert all(bytes(each.payload) == payload for each in found)
        stream.close("done")


async def test_pages_that_would_be_lent_are_copied(
    certificates: Certificates, tmp_path: Path
) -> None:
    """sendfile would put the bytes on the wire as they are."""
    path, size = tmp_path / "log", 4 * LEND_MIN
    data = bytes(range(256)) * (size // 256)
    path.write_bytes(data)
    with path.open("r+b") as file:
        mapping = RealMapping(str(path), os.dup(file.fileno()), size)
    head, _ = frames.encode(frames.Frame(frames.Type.READ, request=7, payload=data))
    loan = Loan(mapping, 0, mapping.buffer[:size])
    async with secured(certificates) as (stream, peer):
        stream.send(head, (loan,))
        stream._outbox.flush()
        (found,) = await receive(peer, 1)
        assert bytes(found.payload) == data
    del loan
    mapping.close()


@asynccontextmanager
async def listening(
    context: ssl.SSLContext,
) -> AsyncIterator[tuple[int, list[TlsSocket], list[str]]]:
    """A port with TLS: its number, those who came in, and why the others did not."""
    opened: list[TlsSocket] = []
    refused: list[str] = []
    listener = listen("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        shaking = Handshakes(
            nursery,
            lambda: context,
            lambda sock, peer: opened.append(sock),
            lambda peer, why: refused.append(why),
        )
        nursery.start_soon(accept, listener, shaking.begin)
        yield listener.getsockname()[1], opened, refused
        nursery.cancel_scope.cancel()
    for sock in opened:
        sock.close()
    listener.close()


async def told(port: int, said: bytes) -> bytes:
    """What a port answers to somebody without TLS, up to the end of the connection."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(said)
        with trio.fail_after(60):
            return b"".join([part async for part in stream])


async def test_who_speaks_no_tls_is_told_in_its_own_words(certificates: Certificates) -> None:
    async with listening(server_context(certificates.of("n1"), ask=True)) as (port, _, refused):
        for kind, request in ((frames.Type.HELLO, 0), (frames.Type.CO_HELLO, 1)):
            hello = frames.Frame(kind, request=request, fields={"client": "x"})
            reader = frames.FrameReader()
            reader.feed(await told(port, frames.encode_whole(hello)))
            answer = reader.next()
            assert answer is not None and answer.is_error
            assert (answer.type, answer.request) == (kind, request)
            assert answer.fields["text"] == "this port speaks TLS, and the client does not"
            assert answer.fields["code"] == "tls" and answer.fields["retryable"] is False
        # A frame that is cut short still gets the refusal of a greeting.
        assert (await told(port, b"TWL1")).startswith(b"TWL1")
        answered = await told(port, b"GET / HTTP/1.1\r\n\r\n")
        assert answered.startswith(b"HTTP/1.1 400") and b"use https" in answered
        assert refused == ["it does not speak TLS"] * 4


async def test_a_port_without_tls_says_so_to_who_speaks_it(certificates: Certificates) -> None:
    ours, theirs = socket.socketpair()
    async with trio.open_nursery() as nursery:
        stream = Stream(ours, Outbox(nursery), frames.FrameReader(), congested=None)

        async def serve() -> None:
            with pytest.raises(frames.FrameError):
                await stream.serve(lambda f: None, lambda: None)
            stream.close("tls")

        nursery.start_soon(serve)
        client = TlsSocket(theirs, client_context(Tls(certificates.authority)), "127.0.0.1")
        with pytest.raises(TlsRefused, match="does not speak TLS"), trio.fail_after(60):
            await handshakes.shake(client)
        client.close()
        nursery.cancel_scope.cancel()
    assert NO_TLS.startswith(b"TWL1")


async def test_an_idle_server_says_nothing_by_itself(certificates: Certificates) -> None:
    """Bytes from an idle peer mean that it has gone; a session ticket would look the same."""
    files = certificates.of("n1")
    async with listening(server_context(files, ask=True)) as (port, opened, _):
        sock = await connect_secured("127.0.0.1", port, client_context(files))
        stream = TlsStream(sock)
        with trio.fail_after(60):
            while not opened:
                await trio.lowlevel.checkpoint()
        other = TlsStream(opened[0])
        await stream.send_all(b"ping")
        assert await other.receive_some(10) == b"ping"
        assert not said_something(stream)
        other.close()
        await trio.lowlevel.wait_readable(sock.raw)
        assert said_something(stream)
        stream.close()
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some(1)


async def test_a_refused_dial_leaves_nothing_open(certificates: Certificates) -> None:
    files = certificates.of("n1", hosts=("other.example",))
    async with listening(server_context(files, ask=False)) as (port, opened, refused):
        with pytest.raises(TlsRefused, match="not valid for"):
            await connect_secured("127.0.0.1", port, client_context(files))
        with trio.fail_after(60):
            while not refused:
                await trio.lowlevel.checkpoint()
        assert not opened


async def test_silent_peers_are_bounded_in_number_and_time(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKES_MAX", 2)
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS", 0.2)
    async with listening(server_context(certificates.of("n1"), ask=True)) as (port, _, refused):
        silent = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(3)]
        for each in silent:
            with trio.fail_after(60):
                assert await each.receive_some(1) == b""
            await each.aclose()
        assert sorted(refused) == [
            "2 other handshakes run",
            "no handshake within 0.2 s",
            "no handshake within 0.2 s",
        ]


async def test_new_certificates_are_taken_all_or_none(certificates: Certificates) -> None:
    """Contexts in use stay; a file that cannot be used changes nothing, and is named."""
    files = certificates.of("n1")
    served = Served(TlsSettings(files))
    before = (served.peers(), served.clients(), served.http(), served.outgoing())
    events: list[tuple[str, str, dict[str, object]]] = []

    def event(name: str, level: str, **facts: object) -> None:
        events.append((name, level, facts))

    assert files.key is not None
    key = trio.Path(files.key)
    good = await key.read_bytes()
    await key.write_text("half")
    await renew(served, event)
    assert (served.peers(), served.clients(), served.http(), served.outgoing()) == before
    assert events[0][:2] == ("certificates_refused", "error")
    assert "n1.key" in str(events[0][2]["why"])
    await key.write_bytes(good)
    await renew(served, event)
    assert events[1][:2] == ("certificates_read", "info")
    assert served.peers() is not before[0]
    assert served.peers().verify_mode is ssl.CERT_REQUIRED
    assert served.clients().verify_mode is served.http().verify_mode is ssl.CERT_NONE


def test_a_certificate_that_all_others_would_refuse_is_refused_here(
    certificates: Certificates, tmp_path: Path
) -> None:
    """At the start and at SIGHUP, not when the next connection is needed."""
    other = Certificates(tmp_path / "other").of("n1")
    strange = Tls(certificates.authority, other.certificate, other.key)
    with pytest.raises(UsageError, match=r"is of no use with .*: our authority did not sign it"):
        Served(TlsSettings(strange))
    with pytest.raises(UsageError, match=r"is of no use with .*: it has expired"):
        Served(TlsSettings(certificates.of("n1", days=0)))
    files = certificates.of("n1", hosts=("db1.example",), days=3)
    served = Served(TlsSettings(files))
    assert served.until == pytest.approx(time.time() + 3 * 86400, abs=600)
    certificates.of("n1", days=0)
    with pytest.raises(UsageError):
        served.reload()
    assert served.until > time.time()


def test_clients_may_have_an_authority_of_their_own(
    certificates: Certificates, tmp_path: Path
) -> None:
    """Their certificates open the port of clients, and none between nodes."""
    apps = Certificates(tmp_path / "apps")
    files = certificates.of("n1")
    served = Served(TlsSettings(files, clients_ask=True, clients_authority=apps.authority))
    app = apps.of("app")
    shown = client_context(Tls(files.authority, app.certificate, app.key))

    def enters(context: ssl.SSLContext) -> bool:
        left, right = socket.socketpair()
        ends = (TlsSocket(left, shown, "127.0.0.1"), TlsSocket(right, context, None))
        try:
            for _ in range(4):
                done = [end.handshake() is None for end in ends]
            return all(done)
        except TlsRefused:
            return False
        finally:
            for end in ends:
                end.close()

    assert enters(served.clients())
    assert not enters(served.peers())

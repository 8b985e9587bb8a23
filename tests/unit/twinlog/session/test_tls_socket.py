"""A `TlsSocket` loses nothing however little its socket takes, and says who refused whom."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.fixtures.certificates import Certificates
from twinlog.session.tls import TlsRefused, client_context, server_context
from twinlog.session.tls_files import Tls
from twinlog.session.tls_socket import CHUNK, TlsSocket

Pair = tuple[TlsSocket, TlsSocket]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "a")


def pair(client: ssl.SSLContext, server: ssl.SSLContext, name: str = "127.0.0.1") -> Pair:
    """The two ends of a connection, before the handshake, over little buffers."""
    left, right = socket.socketpair()
    for each in (left, right):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
    return TlsSocket(left, client, name), TlsSocket(right, server, None)


def shaken(ends: Pair) -> Pair:
    """Carry out the handshake of both ends in turn."""
    left, right = ends
    waiting = [left, right]
    for _ in range(20):
        waiting = [end for end in waiting if end.handshake() is not None]
        if not waiting:
            return ends
    raise AssertionError("the handshake does not end")


@pytest.fixture
def ends(certificates: Certificates) -> Iterator[Pair]:
    files = certificates.of("n1")
    left, right = shaken(pair(client_context(files), server_context(files, ask=True)))
    yield left, right
    left.close()
    right.close()


def take(end: TlsSocket, size: int) -> bytes:
    """What is here now, at most ``size`` bytes at a time."""
    got, room = bytearray(), memoryview(bytearray(size))
    while True:
        try:
            count = end.recv_into(room)
        except BlockingIOError:
            return bytes(got)
        if not count:
            return bytes(got)
        got += room[:count]


@pytest.mark.parametrize("seed", range(8))
def test_every_byte_arrives_once_and_in_order(ends: Pair, seed: int) -> None:
    """Pieces of any size, in both directions, over sockets that take little at a time."""
    random = Random(seed)
    sent = {0: bytearray(), 1: bytearray()}
    got = {0: bytearray(), 1: bytearray()}
    queue: dict[int, list[bytes]] = {0: [], 1: []}
    for side in (0, 1):
        for _ in range(40):
            piece = random.randbytes(random.choice((1, 7, 4096, 16384, 16385, 3 * CHUNK)))
            queue[side].append(piece)
            sent[side] += piece
    while queue[0] or queue[1] or any(len(got[1 - s]) < len(sent[s]) for s in (0, 1)):
        for side in (0, 1):
            rest = queue[side]
            try:
                while rest:
                    # As callers do: now one buffer, now several, the same bytes first.
                    many = random.random() < 0.5
                    count = ends[side].sendmsg(rest[:3]) if many else ends[side].send(rest[0])
                    assert count > 0
                    while count:
                        if count < len(rest[0]):
                            rest[0] = rest[0][count:]
                            break
                        count -= len(rest.pop(0))
            except BlockingIOError:
                pass
            got[1 - side] += take(ends[1 - side], random.choice((1, 100, 1 << 16, 1 << 20)))
    assert got == {1: sent[0], 0: sent[1]}


def test_what_was_decrypted_is_pending_until_it_is_taken(ends: Pair) -> None:
    """A caller that waited for the socket would wait for ever."""
    left, right = ends
    left.send(b"x" * 1000)
    room = memoryview(bytearray(10))
    assert not right.pending
    assert right.recv_into(room) == 10
    assert right.pending
    assert len(take(right, 100)) == 990
    assert not right.pending


def test_part_of_a_record_is_nothing_yet(ends: Pair) -> None:
    left, right = ends
    left.send(b"y" * 8000)
    whole = right.raw.recv(1 << 20)
    carrier, room = socket.socketpair(), memoryview(bytearray(9000))
    carried, right.raw = right.raw, carrier[1]
    carrier[1].setblocking(False)
    carrier[0].send(whole[:4000])
    with pytest.raises(BlockingIOError):
        right.recv_into(room)
    carrier[0].send(whole[4000:])
    assert right.recv_into(room) == 8000
    for each in (*carrier, carried):
        each.close()


def test_the_end_is_the_end_and_never_a_stack_trace(ends: Pair) -> None:
    left, right = ends
    left.close()
    assert right.recv_into(memoryview(bytearray(10))) == 0
    with pytest.raises(OSError, match=r"pipe|reset"):
        right.send(b"z" * CHUNK)


def refused(ends: Pair) -> tuple[TlsRefused, TlsRefused | None]:
    """Carry out a handshake that fails; what each end says, the first to notice first."""
    found: dict[int, TlsRefused] = {}
    room = memoryview(bytearray(10))
    for _ in range(10):
        for side, end in enumerate(ends):
            if side in found:
                continue
            try:
                if end.handshake() is None:
                    end.recv_into(room)
            except BlockingIOError:
                continue
            except TlsRefused as error:
                found[side] = error
    for end in ends:
        end.close()
    first, *others = found.values()
    return first, (others or [None])[0]  # type: ignore[return-value]


@pytest.fixture
def stranger(tmp_path: Path) -> Tls:
    return Certificates(tmp_path / "b").of("app")


def test_a_server_of_another_authority_is_refused(
    certificates: Certificates, stranger: Tls
) -> None:
    server = server_context(certificates.of("n1"), ask=False)
    here, there = refused(pair(client_context(stranger), server))
    assert "our authority did not sign it" in here.text
    assert there is not None and "trusts another authority" in there.text


def test_a_client_of_another_authority_is_refused(
    certificates: Certificates, stranger: Tls
) -> None:
    server = server_context(certificates.of("n1"), ask=True)
    shown = Tls(certificates.authority, stranger.certificate, stranger.key)
    here, there = refused(pair(client_context(shown), server))
    assert "our authority did not sign it" in here.text
    assert there is not None and "trusts another authority" in there.text


def test_a_client_without_a_certificate_is_refused(certificates: Certificates) -> None:
    server = server_context(certificates.of("n1"), ask=True)
    here, there = refused(pair(client_context(Tls(certificates.authority)), server))
    assert "shows no certificate" in here.text
    assert there is not None
    assert there.text == "wants a certificate from us, and we gave none"
    assert "--tls-cert" in there.hint


def test_an_expired_certificate_is_refused(certificates: Certificates) -> None:
    server = server_context(certificates.of("n1", days=0), ask=False)
    here, there = refused(pair(client_context(Tls(certificates.authority)), server))
    assert "it has expired" in here.text and "SIGHUP" in here.hint
    assert there is not None and "refuses our certificate: it has expired" in there.text


def test_an_expired_client_is_refused(certificates: Certificates) -> None:
    server = server_context(certificates.of("n1"), ask=True)
    here, there = refused(pair(client_context(certificates.of("app", days=0)), server))
    assert "it has expired" in here.text
    assert there is not None and "refuses our certificate: it has expired" in there.text


@pytest.mark.parametrize("name", ["10.9.8.7", "other.example"])
def test_a_certificate_for_another_name_is_refused(certificates: Certificates, name: str) -> None:
    server = server_context(certificates.of("n1"), ask=False)
    here, there = refused(pair(client_context(Tls(certificates.authority)), server, name))
    assert f"not valid for '{name}'" in here.text
    assert there is not None and "refuses our certificate" in there.text


@pytest.mark.parametrize(
    "said", [b"TWL1", b"HTTP/1.1 400 Bad Request\r\n", b"SSH-2.0-x\r\n", b"\0"]
)
def test_an_answer_in_the_clear_is_told_apart(certificates: Certificates, said: bytes) -> None:
    left, right = socket.socketpair()
    end = TlsSocket(left, client_context(Tls(certificates.authority)), "127.0.0.1")
    assert end.handshake() == "read"
    right.send(said)
    with pytest.raises(TlsRefused, match="does not speak TLS") as caught:
        end.handshake()
    assert caught.value.final
    end.close()
    right.close()


def test_an_end_inside_the_handshake_may_be_tried_again(certificates: Certificates) -> None:
    left, right = socket.socketpair()
    end = TlsSocket(left, client_context(Tls(certificates.authority)), "127.0.0.1")
    assert end.handshake() == "read"
    right.close()
    with pytest.raises(TlsRefused, match="closed the connection during") as caught:
        end.handshake()
    assert not caught.value.final
    end.close()


def test_an_older_version_of_tls_is_refused(certificates: Certificates) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.load_verify_locations(certificates.authority)
    here, _ = refused(pair(old, server_context(certificates.of("n1"), ask=False)))
    assert "speaks no TLS 1.3" in here.text


@pytest.mark.parametrize("seed", range(20))
def test_garbage_breaks_one_connection_in_words(ends: Pair, seed: int) -> None:
    """A record that was changed on its way, or bytes of any other kind."""
    left, right = ends
    random = Random(seed)
    left.send(b"before")
    room = memoryview(bytearray(1 << 16))
    assert right.recv_into(room) == 6
    left.raw.send(random.choice((b"", b"\x17\x03\x03\x00\x20")) + random.randbytes(300))
    with pytest.raises((TlsRefused, BlockingIOError)) as caught:
        right.recv_into(room)
    if isinstance(caught.value, TlsRefused):
        assert caught.value.text and caught.value.hint


@pytest.mark.parametrize("seed", range(20))
def test_garbage_instead_of_a_handshake_is_refused(certificates: Certificates, seed: int) -> None:
    ours, theirs = socket.socketpair()
    end = TlsSocket(ours, server_context(certificates.of("n1"), ask=True), None)
    theirs.send(b"\x16\x03\x01\x00\x40" + Random(seed).randbytes(200))
    theirs.close()
    with pytest.raises(TlsRefused, match=r"breaks the rules|speaks no TLS 1.3|closed the"):
        end.handshake()
    end.close()

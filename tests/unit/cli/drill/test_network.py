"""The proxies of a drill on real sockets: bytes pass, are held while cut, and arrive afterwards."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cli.drill.link import Rule
from cli.drill.network import CLIENTS, Network
from twinlog.wire import frames

SECONDS = 30.0


@pytest.fixture
def network() -> Iterator[Network]:
    """Proxies with a fixed seed, closed at the end."""
    found = Network(1)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def echoing() -> Iterator[int]:
    """A port that sends back what it gets, connection after connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(sock,), daemon=True).start()

        def answer(sock: socket.socket) -> None:
            with sock:
                while data := sock.recv(1 << 16):
                    sock.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def dial(port: int) -> socket.socket:
    """Connect to a proxy."""
    return socket.create_connection(("127.0.0.1", port), SECONDS)


def received(sock: socket.socket, count: int) -> bytes:
    """Return that many bytes."""
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        assert more, "closed"
        data += more
    return data


def greeting(name: str) -> bytes:
    """The first frame of a node."""
    fields: dict[str, object] = {"min": 1, "max": 1, "client": name}
    return frames.encode_whole(frames.Frame(frames.Type.CO_HELLO, fields=fields))


def test_bytes_pass_and_a_cut_holds_them_back(network: Network) -> None:
    """More than both sides' buffers, in order, and what was held arrives once it is healed."""
    with echoing() as port:
        proxy = network.before("n1", port, named=False)
        network.start()
        with dial(proxy) as sock:
            data = bytes(range(256)) * 8192
            sender = threading.Thread(target=sock.sendall, args=(data,))
            sender.start()
            assert received(sock, len(data)) == data
            sender.join(SECONDS)
            network.set({(CLIENTS, "n1"): Rule(cut=True)})
            sock.sendall(b"held")
            sock.settimeout(0.3)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            sock.settimeout(SECONDS)
            network.set({})
            assert received(sock, 4) == b"held"


def test_a_rule_is_about_one_node(network: Network) -> None:
    """Who dials is read from the first frame, which arrives whole."""
    with echoing() as port:
        proxy = network.before("n1", port, named=True)
        network.set({("n2", "n1"): Rule(closed=True)})
        network.start()
        with dial(proxy) as sock:
            hello = greeting("n3")
            sock.sendall(hello[:10])
            sock.sendall(hello[10:])
            assert received(sock, len(hello)) == hello
        with dial(proxy) as sock:
            sock.sendall(greeting("n2"))
            assert sock.recv(1) == b""


def test_a_port_without_a_process_closes_the_connection(network: Network) -> None:
    """As it would without the proxy."""
    with echoing() as port:
        pass
    proxy = network.before("n1", port, named=False)
    network.start()
    with dial(proxy) as sock:
        assert sock.recv(1) == b""


def test_the_end_of_a_connection_passes(network: Network) -> None:
    """After its bytes."""
    with echoing() as port:
        proxy = network.before("n1", port, named=False)
        network.start()
        with dial(proxy) as sock:
            sock.sendall(b"x")
            assert received(sock, 1) == b"x"
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""

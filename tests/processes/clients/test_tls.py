"""TLS on every port of real processes: what works as without, who is refused, and new files."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

pytest.importorskip("cryptography")

from cli.certificates import make_certificates
from replication.coordinator.blocking_client import CoordinatorCalls
from tests.fixtures.certificates import Certificates
from tests.fixtures.processes import SECONDS, Processes
from twinlog import AsyncClient, Client
from twinlog.errors import Unavailable, UsageError
from twinlog.session.tls import client_context
from twinlog.session.tls_files import Tls

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Processes]:
    """A coordinator and three nodes with TLS on every port, settled."""
    found = Processes(tmp_path, tls=True)
    try:
        found.start_all()
        yield found
    finally:
        found.close()


def authority(processes: Processes) -> str:
    """The file that clients trust."""
    assert processes.tls is not None
    return processes.tls.authority


def endpoints(processes: Processes) -> str:
    """The client addresses of all nodes."""
    found = [processes.address(node.name) for node in processes.config.nodes]
    return ",".join(f"{host}:{port}" for host, port in found)


def twinlog(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a newcomer does, in a folder of its own."""
    command = [sys.executable, "-m", "twinlog", *words]
    root = str(Path(__file__).parents[3])
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": root, "HOME": str(folder)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip


def test_a_newcomer_types_one_option(tmp_path: Path) -> None:
    """``dev up --tls``, then the same commands as without; a master dies on the way."""
    up = twinlog("dev", "up", "--tls", "--base-port", "0", "--background", folder=tmp_path)
    assert up.returncode == 0, up.stderr
    try:
        assert twinlog("topic", "create", "orders", folder=tmp_path).returncode == 0
        sent = twinlog("message", "send", "orders", "--body", "one", folder=tmp_path)
        assert sent.returncode == 0, sent.stderr
        twinlog("dev", "kill", "n1", folder=tmp_path)
        sent = twinlog(
            "message", "send", "orders", "--body", "two", "--timeout", "60s", folder=tmp_path
        )
        assert sent.returncode == 0, sent.stderr
        twinlog("dev", "start", "n1", folder=tmp_path)
        read = twinlog("message", "read", "orders", "-o", "jsonl", folder=tmp_path)
        assert len(read.stdout.splitlines()) == 2
        shown = json.loads(twinlog("cluster", "status", "-o", "json", folder=tmp_path).stdout)
        assert shown["coordinator"] == "answers" and shown["insecure"] is False
        again = twinlog("certificates", "init", "data/certificates", "-c", "data/cluster.toml",
                        folder=tmp_path)  # fmt: skip
        assert "0 made" in again.stdout
        # Without the file, and so without TLS.
        address = next(one["address"] for one in shown["nodes"])
        plain = twinlog("-e", address, "topic", "list", folder=tmp_path)
        assert plain.returncode == 64
        assert "this port speaks TLS, and the client does not" in plain.stderr
        assert "--tls-ca FILE" in plain.stderr
        named = twinlog("-e", address, "--tls-ca", "data/certificates/authority.pem",
                        "topic", "list", folder=tmp_path)  # fmt: skip
        assert named.returncode == 0, named.stderr
        keys = list((tmp_path / "data" / "certificates").glob("*.key"))
        assert keys and all(key.stat().st_mode & 0o077 == 0 for key in keys)
    finally:
        twinlog("dev", "down", "--wipe", "--yes", folder=tmp_path)


def test_a_failover_loses_nothing_that_was_confirmed(secure: Processes) -> None:
    """The old master is killed under load; what was acknowledged is read from the new one."""
    old = secure.settled()
    new = next(node.name for node in secure.config.nodes if node.name != old)
    with Client(endpoints(secure), timeout=60.0, tls=authority(secure)) as client:
        client.create_topic("orders", 4)
        with client.producer("orders") as producer:
            for number in range(400):
                producer.send(b"%d" % number * 500, key=str(number))
            producer.flush()
            secure.kill(old)
            for number in range(400, 600):
                producer.send(b"%d" % number * 500, key=str(number))
            secure.failover(new)
            producer.flush()
        for reader in ("master", "slave"):
            found = [message.key for message in client.read("orders", "start:", read_from=reader)]
            assert sorted(found, key=int) == [str(number) for number in range(600)]
    secure.start(old)
    secure.settled()


def refusal(address: tuple[str, int], tls: Tls) -> str:
    """What our side says of a port when it greets with these files."""
    calls = CoordinatorCalls([address], 0, tls=tls)
    with calls, pytest.raises((UsageError, Unavailable)) as caught:
        calls.status()
    return f"{caught.value.text} | {caught.value.hint}"


def test_each_port_says_what_it_wants(secure: Processes) -> None:
    """Wrong or no certificates, and none of TLS at all, at each kind of port."""
    trusted = Tls(authority(secure))
    coordinator = secure.address("coordinator", "coordinator")
    for address in (coordinator, secure.address("n1", "slaves")):
        assert "wants a certificate from us, and we gave none" in refusal(address, trusted)
    assert secure.tls is not None
    with CoordinatorCalls([coordinator], 0, tls=secure.tls) as calls:
        assert calls.status()
    other = secure.folder / "other"
    make_certificates(secure.config, other)
    stranger = Tls(str(other / "authority.pem"))
    assert "our authority did not sign it" in refusal(coordinator, stranger)
    with Client(endpoints(secure), tls=stranger) as client:
        with pytest.raises(UsageError, match="our authority did not sign it") as caught:
            client.topics()
        assert caught.value.code == "tls"
    refused = pytest.raises(UsageError, match="this port speaks TLS, and the client does not")
    with Client(endpoints(secure)) as plain, refused:
        plain.topics()
    host, port = secure.address("n1", "http")
    with socket.create_connection((host, port), SECONDS) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 400")
    sock = socket.create_connection((host, port), SECONDS)
    with client_context(trusted).wrap_socket(sock, server_hostname=host) as http:
        http.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert http.recv(1 << 16).startswith(b"HTTP/1.1 200")
    # The cluster is as before: it has its three members.
    assert secure.settled(3)
    assert "tls_refused" in (secure.folder / "n1.log").read_text()


def test_awaiting_clients_speak_and_are_refused_the_same(secure: Processes) -> None:
    """On both loops; a large answer comes in many records."""
    other = secure.folder / "other"
    make_certificates(secure.config, other)
    body = bytes(range(256)) * 4000

    async def talk(topic: str) -> None:
        async with AsyncClient(endpoints(secure), timeout=60.0, tls=authority(secure)) as client:
            await client.create_topic(topic, 1)
            for number in range(5):
                await client.send(topic, body, key=str(number))
            found = [message.body async for message in client.read(topic, "start:")]
            assert found == [body] * 5
        async with AsyncClient(endpoints(secure), tls=str(other / "authority.pem")) as client:
            with pytest.raises(UsageError, match="our authority did not sign it"):
                await client.topics()
        async with AsyncClient(endpoints(secure)) as client:
            with pytest.raises(UsageError, match="this port speaks TLS"):
                await client.topics()

    for backend in ("trio", "asyncio"):
        anyio.run(talk, backend, backend=backend)


def test_clients_with_tls_are_told_by_a_cluster_without(tmp_path: Path) -> None:
    plain = Processes(tmp_path, nodes=1)
    make_certificates(plain.config, tmp_path / "certificates")
    trusted = str(tmp_path / "certificates" / "authority.pem")
    try:
        plain.start_all()
        with Client(endpoints(plain), tls=trusted) as client:
            with pytest.raises(UsageError, match="does not speak TLS") as caught:
                client.topics()
            assert "leave out --tls-ca" in (caught.value.hint or "")

        async def talk() -> None:
            async with AsyncClient(endpoints(plain), tls=trusted) as client:
                with pytest.raises(UsageError, match="does not speak TLS"):
                    await client.topics()

        anyio.run(talk, backend="trio")
        told = refusal(plain.address("coordinator", "coordinator"), Tls(trusted))
        assert "does not speak TLS" in told
    finally:
        plain.close()


def test_clients_may_have_to_show_a_certificate(tmp_path: Path) -> None:
    """One of an authority of their own, which opens no other port; the http port asks for none."""
    found = Processes(tmp_path, nodes=1, tls=True)
    apps = Certificates(tmp_path / "apps")
    app = apps.of("app")
    lines = f'clients = "certificate"\nclients_authority = "{apps.authority}"\n'
    found.path.write_text(f"{found.path.read_text()}{lines}")
    shown = Tls(authority(found), app.certificate, app.key)
    try:
        found.start("coordinator", "n1")
        address = endpoints(found)

        async def talk() -> None:
            async with AsyncClient(address, timeout=60.0, tls=shown) as client:
                assert "orders" in await client.topics()
            async with AsyncClient(address, tls=authority(found)) as client:
                with pytest.raises(UsageError, match="wants a certificate") as caught:
                    await client.topics()
                assert caught.value.code == "tls"

        with Client(address, timeout=60.0, tls=shown) as client:
            client.create_topic("orders", 1)
        refused = pytest.raises(UsageError, match="wants a certificate")
        with Client(address, tls=authority(found)) as client:
            with refused as caught:
                client.topics()
            assert "--tls-cert" in (caught.value.hint or "")
        anyio.run(talk, backend="trio")
        for port in (found.address("coordinator", "coordinator"), found.address("n1", "slaves")):
            assert "trusts another authority" in refusal(port, shown)
        assert served(found, "n1", "http")
    finally:
        found.close()


def served(processes: Processes, name: str, port: str = "clients") -> bytes:
    """The certificate that a port shows to a new connection."""
    host, number = processes.address(name, port)
    assert processes.tls is not None
    sock = socket.create_connection((host, number), SECONDS)
    with client_context(processes.tls).wrap_socket(sock, server_hostname=host) as secured:
        found = secured.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_new_certificates_are_taken_without_a_restart(secure: Processes) -> None:
    """At SIGHUP; connections that are open go on, and bad files change nothing."""
    coordinator, pid = "coordinator", secure.running["n1"].pid
    before = served(secure, "n1")
    with Client(endpoints(secure), timeout=60.0, tls=authority(secure)) as client:
        client.create_topic("orders", 1)
        client.send("orders", b"before")
        make_certificates(secure.config, secure.folder / "certificates", renew=True)
        assert served(secure, "n1") == before
        for name in ("n1", coordinator):
            secure.send(name, signal.SIGHUP)
        secure.until(lambda: served(secure, "n1") != before, "n1 with its new certificate")
        pem = (secure.folder / "certificates" / "n1.pem").read_text()
        assert served(secure, "n1") == ssl.PEM_cert_to_DER_cert(pem)
        for port in ("slaves", "http"):
            assert served(secure, "n1", port) == served(secure, "n1")
        pem = (secure.folder / "certificates" / "coordinator.pem").read_text()
        wanted = ssl.PEM_cert_to_DER_cert(pem)
        secure.until(
            lambda: served(secure, coordinator, coordinator) == wanted, "the coordinator's new one"
        )
        assert client.send("orders", b"after").queue_offset is not None
        (secure.folder / "certificates" / "n1.key").write_text("half")
        secure.send("n1", signal.SIGHUP)
        secure.until(lambda: "certificates_refused" in secure.tail("n1"), "n1 refusing them")
        assert served(secure, "n1") == served(secure, "n1", "slaves")
        assert client.send("orders", b"still").queue_offset is not None
    assert secure.running["n1"].pid == pid and secure.settled(3)

"""Users and rules in real processes: who may what, on each node, after a crash and a failover."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from cli.app import main
from cli.connection import ask
from node.config.pages import Local, write_local
from tests.fixtures.processes import Processes, free_ports
from twinlog import Client
from twinlog.errors import Denied, TwinlogError
from twinlog.session.connection import Connection
from twinlog.session.routing import Address
from twinlog.session.session import LinkDown
from twinlog.session.tls_files import Login, Tls
from twinlog.wire.frames import Frame, Type

pytestmark = [pytest.mark.processes, pytest.mark.slow]

OPERATOR = Login("operator", "only for the operator's eyes")
ALICE = Login("alice", "open sesame")


class Guarded(Processes):
    """Processes that ask who asks them."""

    def __init__(self, folder: Path) -> None:
        path = folder / "cluster.toml"
        write_local(path, Local(failover="manual", base_port=free_ports(3)))
        with path.open("a", encoding="utf-8") as file:
            file.write("\n[access]\nenabled = true\n")
        (folder / "access.secret").write_text(OPERATOR.password + "\n", encoding="utf-8")
        (folder / "alice").write_text(ALICE.password + "\n", encoding="utf-8")
        super().__init__(folder)

    def status(self, name: str) -> Mapping[str, object]:
        """As the operator."""
        try:
            return self.answer(name, Type.STATUS, {}, OPERATOR)
        except (TwinlogError, KeyError):
            return {}

    def answer(
        self, name: str, kind: int, fields: Mapping[str, object], login: Login
    ) -> Mapping[str, object]:
        """What one node answers someone."""
        host, port = self.address(name)
        return ask(f"{host}:{port}", kind, fields, timeout=10, tls=Tls("", login=login))

    def client(self, login: Login) -> Client:
        """A client of someone."""
        found = [self.address(node.name) for node in self.config.nodes if node.name in self.running]
        endpoints = [f"{host}:{port}" for host, port in found]
        return Client(endpoints, user=login.user, password=login.password)

    def run(self, *words: str) -> None:
        """Run a command, which finds the operator's password beside the cluster file."""
        assert main(["-c", str(self.path), *words]) == 0, words

    def page(self, name: str, path: str, login: Login | None = None) -> int:
        """The status of a page of a node's HTTP port."""
        host, port = self.address(name, "http")
        request = urllib.request.Request(f"http://{host}:{port}{path}")
        if login is not None:
            said = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {said}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """A coordinator and three nodes, settled."""
    found = Guarded(tmp_path)
    try:
        found.start_all()
        yield found
    finally:
        found.close()


def alice_is_held_to_her_rules(guarded: Guarded) -> None:
    """She reads and writes orders, and knows of nothing else; on no node."""
    with guarded.client(ALICE) as alice:
        alice.send("orders", b"one")
        assert list(alice.topics()) == ["orders"]
        for refused in (
            lambda: alice.send("bills", b"x"),
            lambda: alice.send("not-there", b"x"),
            lambda: alice.create_topic("orders-2", 1),
            lambda: alice.call("any", Type.ADMIN, {"op": "stop"}),
        ):
            with pytest.raises(Denied):
                refused()
    for name in guarded.running:
        if name != "coordinator":
            listed = guarded.answer(name, Type.TOPIC, {"op": "list"}, ALICE)
            assert listed["topics"] == {"orders": 2}, name
            fields = {"topic": "bills", "queues": [0]}
            with pytest.raises(Denied):
                guarded.answer(name, Type.OFFSETS, fields, ALICE)
            with pytest.raises(Denied, match="user or password is wrong"):
                guarded.answer(name, Type.STATUS, {}, Login("alice", "guessed"))


def test_rules_hold_on_every_node_through_crash_and_failover(guarded: Guarded) -> None:
    """The first user by the file, the rest by commands; what is taken back ends what waits."""
    for words in (
        ("topic", "create", "orders", "--queues", "2"),
        ("topic", "create", "bills", "--queues", "1"),
        (
            "user",
            "add",
            "alice",
            "--team",
            "shop",
            "--new-password-file",
            f"{guarded.folder}/alice",
        ),
        ("rule", "add", "alice", "read", "topic:orders"),
        ("rule", "add", "@shop", "write", "topic:orders"),
        ("access", "check", "alice", "topic:orders"),
    ):
        guarded.run(*words)
    known = [guarded.answer("n1", Type.ACCESS, {"op": "list"}, OPERATOR)]
    for name in ("n2", "n3"):
        guarded.until(
            lambda name=name: guarded.answer(name, Type.ACCESS, {"op": "list"}, OPERATOR) in known,  # type: ignore[misc]
            f"the rules at {name}",
        )
    alice_is_held_to_her_rules(guarded)

    for path, code in (("/metrics", 200), ("/livez", 200), ("/status", 401), ("/cluster", 401)):
        assert guarded.page("n2", path) == code, path
    assert guarded.page("n2", "/status", OPERATOR) == 200
    assert guarded.page("n2", "/status", ALICE) == 401

    guarded.kill("n1")
    guarded.failover("n2")
    alice_is_held_to_her_rules(guarded)
    guarded.kill("n2", "n3")
    guarded.start("n1", "n2", "n3")
    guarded.settled()
    assert guarded.answer("n2", Type.ACCESS, {"op": "list"}, OPERATOR) in known
    alice_is_held_to_her_rules(guarded)

    master = guarded.settled()
    waiting = Connection(Address(*guarded.address(master)), client="test", login=ALICE)
    queues = guarded.answer(master, Type.OFFSETS, {"topic": "orders", "queues": [0]}, ALICE)
    ends = cast("dict[int, list[int]]", queues["queues"])
    read: dict[str, object] = {
        "topic": "orders", "queue": 0, "offset": ends[0][1], "max_bytes": 1024, "max_records": 1,
        "wait_ms": 30_000,
    }  # fmt: skip
    waiting.send(Frame(Type.READ, fields=read), 5)
    guarded.run("rule", "remove", "alice", "read", "topic:orders")
    with pytest.raises(LinkDown, match="closed the connection"):
        waiting.take(20)
    with pytest.raises(Denied):
        guarded.answer(master, Type.READ, read, ALICE)
    guarded.run("user", "remove", "alice")
    with pytest.raises(Denied, match="user or password is wrong"):
        guarded.answer(master, Type.STATUS, {}, ALICE)

"""The group gets another master by itself: no command is given in these tests."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.dev.private_cluster import free_ports
from node.config.pages import Local, write_local
from replication.register.leases import LEASE_SECONDS
from tests.fixtures.processes import MiB, Processes
from twinlog.client.blocking import Client

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def automatic(tmp_path: Path) -> Iterator[Processes]:
    """Three nodes as `config init` writes them."""
    write_local(tmp_path / "cluster.toml", Local(base_port=free_ports(3), segment_size=16 * MiB))
    found = Processes(tmp_path)
    try:
        found.start_all()
        yield found
    finally:
        found.close()


class Writer:
    """Sends numbers one after the other; keeps what was acknowledged, and when."""

    def __init__(self, processes: Processes) -> None:
        self.acknowledged: list[int] = []
        self.at: list[float] = []
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        names = [node.name for node in processes.config.nodes]
        self._client = Client(["{}:{}".format(*processes.address(name)) for name in names])
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                self._client.send("load", b"%d" % number)
            except BaseException as error:
                self.errors.append(error)
                return
            self.acknowledged.append(number)
            self.at.append(time.monotonic())
            number += 1

    @contextmanager
    def running(self) -> Iterator[Writer]:
        """Send for as long as the block runs."""
        self._client.create_topic("load", 1)
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join(60.0)
            self._client.close()

    def gap(self) -> float:
        """The longest time without an acknowledgement, seconds."""
        return max(after - before for before, after in zip(self.at, self.at[1:]))


def check(processes: Processes, writer: Writer) -> None:
    """Everything acknowledged is there, once, in order."""
    assert not writer.errors
    name = processes.settled(2)
    with Client(["{}:{}".format(*processes.address(name))]) as client:
        found = [int(message.body) for message in client.read("load", "start:")]
    assert found == sorted(set(found))
    assert set(writer.acknowledged) <= set(found)


def test_writes_go_on_when_the_master_is_killed(automatic: Processes) -> None:
    """An ordinary client notices a pause, nothing else; the killed node comes back as a slave."""
    with Writer(automatic).running() as writer:
        for _ in range(2):
            old = automatic.settled(3)
            automatic.until(lambda: len(writer.acknowledged) > 50, "load")
            automatic.kill(old)
            mark = len(writer.acknowledged)
            automatic.until(lambda mark=mark: len(writer.acknowledged) > mark + 50, "load again")  # type: ignore[misc]
            assert automatic.settled(2) != old
            automatic.start(old)
    check(automatic, writer)


def test_a_paused_master_is_replaced_after_its_lease(automatic: Processes) -> None:
    """SIGSTOP: nothing ends, it is only silent. Awake again, it has nothing to say."""
    with Writer(automatic).running() as writer:
        old = automatic.settled(3)
        automatic.until(lambda: len(writer.acknowledged) > 50, "load")
        automatic.send(old, signal.SIGSTOP)
        mark = len(writer.acknowledged)
        automatic.until(lambda: len(writer.acknowledged) > mark + 50, "load again")
        assert writer.gap() > LEASE_SECONDS / 2
        automatic.send(old, signal.SIGCONT)
        assert automatic.settled(3) != old
    check(automatic, writer)


def test_a_master_without_heirs_keeps_its_role(automatic: Processes) -> None:
    """With both slaves dead no node could take over: the master stays, and writes again later."""
    master = automatic.settled(3)
    others = [node.name for node in automatic.config.nodes if node.name != master]
    automatic.kill(*others)
    automatic.until(lambda: automatic.status(master).get("in_sync") == [master], "the others gone")
    epoch = automatic.status(master)["epoch"]
    over = time.monotonic() + LEASE_SECONDS + 1.0
    automatic.until(lambda: time.monotonic() > over, "a lease")
    automatic.start(*others)
    assert automatic.settled(3) == master
    assert automatic.status(master)["epoch"] == epoch

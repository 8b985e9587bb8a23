"""An adopted RocketMQ store becomes a group: adopt, replicate, send, fail over, compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.app import main
from node.config.config import load
from storage.disk.disk import RealDisk
from storage.tools.recover import identity_of
from tests.fixtures.processes import Processes
from tests.stores.golden import manifest, unpack
from twinlog.client.blocking import Client
from twinlog.store.reader import StoreReader
from twinlog.store.verify.compare import compare

CASE = "01-basic"
SEGMENT_SIZE, QUEUE_ENTRIES = 256 * 1024, 100
"""As that broker was configured; a cluster takes over both."""


@pytest.mark.processes
def test_an_adopted_store_is_replicated(tmp_path: Path) -> None:
    """The documented commands on one node; then every node has RocketMQ's history and ours."""
    old = manifest(CASE)["messages"]
    topic = old[0]["topic"]
    processes = Processes(tmp_path, segment_size=SEGMENT_SIZE)
    text = processes.path.read_text().replace(
        "[storage]\n", f"[storage]\nqueue_segment_entries = {QUEUE_ENTRIES}\n"
    )
    processes.path.write_text(text)
    processes.config = load(processes.path)
    data = processes.config.node("n1").data
    data.parent.mkdir(parents=True, exist_ok=True)
    unpack(CASE, tmp_path / "rocketmq").rename(data)
    cluster = ["--config", str(processes.path), "--yes"]
    named = ["--cluster", processes.config.name, "--node", "n1"]
    assert main(["store", "adopt", str(data), *named, "--yes"]) == 0
    assert identity_of(RealDisk(data)).segment_size == SEGMENT_SIZE
    try:
        processes.start("coordinator", "n1", "n2", "n3")
        # A node that serves may not have registered yet; the command says so and changes nothing.
        processes.until(lambda: main(["coordinator", "adopt", *cluster]) == 0, "the adoption")
        assert processes.settled() == "n1"
        endpoints = ["{}:{}".format(*processes.address(name)) for name in ("n1", "n2", "n3")]
        with Client(endpoints) as client:
            client.create_topic("after", 1)
            client.send("after", b"one")
            processes.kill("n1")
            processes.failover("n2")
            client.send("after", b"two")
            bodies = [message.body for message in client.read("after", "start:")]
            assert bodies == [b"one", b"two"]
            held = sum(1 for _ in client.read(topic, "start:", read_from="n2"))
            assert held == sum(1 for message in old if message["topic"] == topic)
        processes.start("n1")
        processes.settled()
        for name in ("n1", "n2", "n3"):
            assert processes.stop(name) == 0
    finally:
        processes.close()
    for name in ("n2", "n3"):
        with StoreReader(data) as first, StoreReader(processes.config.node(name).data) as other:
            found = compare(first, other)
            assert found.difference is None, (name, found)

"""What was lost comes back from a snapshot, by the commands of docs/backup.md."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.processes import ROOT, SECONDS, Processes
from twinlog import Client

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    """Three nodes with small log files."""
    made = Processes(tmp_path, nodes=3, segment_size=1 << 20)
    made.start_all()
    yield made
    made.close()


def twinlog(cluster: Processes, words: str, expect: int = 0) -> str:
    """Run a command on the cluster; return what it printed."""
    command = [sys.executable, "-m", "twinlog", "-c", str(cluster.path), *words.split()]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == expect, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def client(cluster: Processes) -> Client:
    """A client that knows every node."""
    places = [":".join(map(str, cluster.address(name))) for name in ("n1", "n2", "n3")]
    return Client(places, cluster=cluster.config.name, timeout=SECONDS)


def store(cluster: Processes, first: int, count: int) -> None:
    """Store numbered messages of 10 kB, so that log files fill."""
    with client(cluster) as sender, sender.producer("orders") as producer:
        for number in range(first, first + count):
            producer.send(b"%06d" % number + bytes(10_000))


def numbers(cluster: Processes) -> list[int]:
    """The numbers of all messages."""
    with client(cluster) as reader:
        return sorted(int(message.body[:6]) for message in reader.read("orders"))


def test_a_lost_disk_and_a_lost_cluster(cluster: Processes, tmp_path: Path) -> None:
    """One node begins with its snapshot; later all nodes and the register are lost."""
    twinlog(cluster, "topic create orders")
    store(cluster, 0, 400)
    twinlog(cluster, f"node snapshot n2 {tmp_path}/monday-n2")
    twinlog(cluster, f"node snapshot n1 {tmp_path}/monday-n1 --copy")
    store(cluster, 400, 50)

    # The disk of n2 is lost.
    cluster.kill("n2")
    data = cluster.config.node("n2").data
    shutil.rmtree(data)
    twinlog(cluster, f"node restore n3 {tmp_path}/monday-n2", expect=78)
    twinlog(cluster, f"node restore n2 {tmp_path}/monday-n2")
    twinlog(cluster, f"node restore n2 {tmp_path}/monday-n2", expect=64)
    cluster.start("n2")
    store(cluster, 450, 10)
    cluster.settled()
    assert numbers(cluster) == list(range(460))

    # All nodes and the coordinator's register are lost.
    cluster.kill("n1", "n2", "n3", "coordinator")
    for node in cluster.config.nodes:
        shutil.rmtree(node.data)
    for path in cluster.folder.glob("coordinator*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    twinlog(cluster, f"node restore n1 {tmp_path}/monday-n1 --dry-run")
    twinlog(cluster, f"node restore n1 {tmp_path}/monday-n1")
    cluster.start("coordinator", "n1")
    assert "has no master" in twinlog(cluster, "cluster health", expect=2)
    twinlog(cluster, "coordinator recover --without n2 --without n3 --yes")
    cluster.start("n2", "n3")
    twinlog(cluster, "cluster failover --unclean n1 --yes --timeout 60s")
    cluster.settled()
    found = numbers(cluster)
    assert found[:400] == list(range(400))
    assert found == list(range(len(found)))
    store(cluster, 1000, 1)
    assert numbers(cluster)[-1] == 1000


def test_a_snapshot_is_no_second_node(cluster: Processes, tmp_path: Path) -> None:
    """A node whose data directory is the files of a snapshot does not start."""
    twinlog(cluster, "topic create orders")
    store(cluster, 0, 10)
    twinlog(cluster, f"node snapshot n2 {tmp_path}/copy")
    cluster.kill("n2")
    data = cluster.config.node("n2").data
    data.rename(tmp_path / "away")
    data.symlink_to(tmp_path / "copy" / "store")
    told = twinlog(cluster, "node start n2", expect=78)
    assert "identity" in told
    twinlog(cluster, f"node restore n2 {tmp_path}/copy --dry-run")

"""What a node does with a directory that is not as it left it, and with a role that is not its own.

The rules of recovery are the storage tests' matter; here is what the cluster sees of them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from node.config.config import load
from tests.fixtures.cluster import Cluster
from tests.fixtures.wire_client import bodies, outcomes, records

pytestmark = [pytest.mark.processes, pytest.mark.slow]

BODY = 2000


async def fill(cluster: Cluster, count: int) -> None:
    """Append ``count`` records of 2 KB, confirmed."""
    async with cluster.client() as client:
        await client.create("t")
        for number in range(count):
            body = b"%04d" % number + bytes(BODY)
            assert outcomes(await client.append(records("t", body))) == [0]


async def shown(cluster: Cluster, name: str) -> list[int]:
    """The numbers of the records that a node serves."""
    async with cluster.client(name) as client:
        numbers: list[int] = []
        while True:
            found = [int(body[:4]) for body in bodies(await client.read("t", len(numbers)))]
            if not found:
                return numbers
            numbers += found


def log_file(cluster: Cluster, name: str) -> Path:
    """The first file of a node's log."""
    return next(iter(sorted((cluster.config.node(name).data / "commitlog").iterdir())))


def flip(path: Path, at: int) -> None:
    """Flip one bit."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("where", [0.5, 0.98])
async def test_a_flipped_bit_in_flushed_bytes_is_never_served_and_never_cut(
    cluster: Cluster, where: float
) -> None:
    """In the middle or in the last batches: the node says so, is out of sync, keeps every byte."""
    await fill(cluster, 50)
    victim = cluster.slaves[0]
    offsets = cluster.view(victim)["offsets"]
    assert isinstance(offsets, dict)
    end = int(offsets["end"])  # pyright: ignore[reportUnknownArgumentType]
    await cluster.stop(victim)
    path = log_file(cluster, victim)
    flip(path, int(end * where))
    before = path.read_bytes()
    await cluster.start(victim)
    if where < 0.9 and not cluster.view(victim)["quarantined"]:
        # A clean start trusts what was flushed; a read of the bytes finds the damage.
        async with cluster.client(victim) as client:
            answers = [await client.read("t", number, max_records=1) for number in range(50)]
        assert any(answer.is_error for answer in answers)
        assert all(a.fields["code"] == "corrupt" for a in answers if a.is_error)
    else:
        await cluster.until(lambda: bool(cluster.view(victim)["quarantined"]), "the quarantine")
        await cluster.until(lambda: victim not in members(cluster), "the shrunk set")
    assert path.read_bytes()[: end // 2] == before[: end // 2]
    assert len(await shown(cluster, str(cluster.master))) == 50


def members(cluster: Cluster) -> list[str]:
    """The in-sync set as the master sees it."""
    master = cluster.master
    found = cluster.view(master)["in_sync"] if master else None
    return [str(name) for name in found] if isinstance(found, list) else []  # pyright: ignore


async def test_queue_files_that_are_missing_are_built_again(cluster: Cluster) -> None:
    """Without its queues a node serves the same records after a start."""
    await fill(cluster, 20)
    victim = cluster.slaves[0]
    await cluster.stop(victim)
    shutil.rmtree(cluster.config.node(victim).data / "consumequeue")
    await cluster.start(victim)
    await cluster.settled()
    assert await shown(cluster, victim) == list(range(20))


async def test_a_second_master_by_hand_stays_a_slave(cluster: Cluster) -> None:
    """``role = "master"`` in a file changes nothing once the group has a history."""
    await fill(cluster, 3)
    leader, victim = str(cluster.master), cluster.slaves[0]
    await cluster.stop(victim)
    path = cluster.config.path
    text = path.read_text().replace('role = "master"', 'role = "auto"')
    at = text.index('role = "', text.index(f'name = "{victim}"'))
    end = text.index('"', at + 8)
    (path.parent / "other.toml").write_text(text[:at] + 'role = "master' + text[end:])
    cluster.config = load(path.parent / "other.toml")
    assert cluster.config.node(victim).role == "master"
    await cluster.start(victim)
    await cluster.settled()
    assert cluster.master == leader
    view = cluster.view(victim)
    assert (view["role"], view["leader"]) == ("slave", leader)
    async with cluster.client(victim) as client:
        answer = await client.append(records("t", b"x"))
        assert (answer.fields["code"], answer.fields["leader"]) == ("not-master", leader)

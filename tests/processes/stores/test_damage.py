"""What a node does with a directory that is not as it left it, and with a role that is not its own.

The rules of recovery are the storage tests' matter; here is what the cluster sees of them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from node.config.config import load
from tests.fixtures.cluster import Cluster, running_cluster
from tests.fixtures.wire_client import bodies, outcomes, records
from twinlog.wire.frames import Type

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
async def test_a_flipped_bit_in_flushed_bytes_is_never_served_and_is_repaired(
    cluster: Cluster, where: float
) -> None:
    """In the middle or in the last batches: the node says so, and another one gives the bytes."""
    await fill(cluster, 50)
    victim = cluster.slaves[0]
    offsets = cluster.view(victim)["offsets"]
    assert isinstance(offsets, dict)
    end = int(offsets["end"])  # pyright: ignore[reportUnknownArgumentType]
    await cluster.stop(victim)
    path = log_file(cluster, victim)
    before = path.read_bytes()
    flip(path, int(end * where))
    await cluster.start(victim)
    async with cluster.client(victim) as client:
        answers = [await client.read("t", number, max_records=1) for number in range(50)]
    assert all(a.fields["code"] in ("corrupt", "unavailable") for a in answers if a.is_error)
    for number, answer in enumerate(answers):
        assert all(int(body[:4]) == number for body in bodies(answer))
    await cluster.until(lambda: repaired(cluster, victim) == 1, "the repair")
    await cluster.until(lambda: victim in members(cluster), "the set that is whole again")
    assert not cluster.view(victim)["quarantined"]
    assert path.read_bytes()[:end] == before[:end]
    assert await shown(cluster, victim) == list(range(50))


async def test_a_bit_that_flips_under_a_running_master_is_found_and_repaired(
    tmp_path: Path,
) -> None:
    """In a file that is full: no restart and no change of roles, and no reader sees it."""
    async with running_cluster(tmp_path, segment_size=64 * 1024) as cluster:
        await fill(cluster, 60)
        master = str(cluster.master)
        path = log_file(cluster, master)
        before, epoch = path.read_bytes(), cluster.view(master)["epoch"]
        flip(path, 32 * 1024)
        await cluster.until(lambda: sealed(cluster, master), "a flushed first file")
        async with cluster.client(master) as client:
            answer = await client.ask(Type.ADMIN, {"op": "scrub"})
            assert not answer.is_error, answer.fields
        await cluster.until(lambda: repaired(cluster, master) == 1, "the repair")
        assert path.read_bytes() == before
        assert (cluster.master, cluster.view(master)["epoch"]) == (master, epoch)
        assert await shown(cluster, master) == list(range(60))


def sealed(cluster: Cluster, name: str) -> bool:
    """Whether the node has a file that it may compare."""
    scrub = cluster.view(name)["scrub"]
    return isinstance(scrub, dict) and scrub["end"] > scrub["start"]  # pyright: ignore


def repaired(cluster: Cluster, name: str) -> int:
    """How many batches a node has got from others, by its status."""
    scrub = cluster.view(name)["scrub"]
    return int(scrub["repaired"]) if isinstance(scrub, dict) else 0  # pyright: ignore


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

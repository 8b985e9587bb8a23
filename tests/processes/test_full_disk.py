"""A full disk: writes stop, reads go on, and everything resumes by itself when there is space."""

from __future__ import annotations

from collections.abc import AsyncIterator
from errno import ENOSPC
from pathlib import Path

import pytest
import trio

from node.config.config import load
from node.config.pages import Local, write_local
from storage.disk.disk import RealDisk, RealMapping
from storage.errors import DiskFull
from tests.fixtures.cluster import Cluster
from tests.fixtures.wire_client import bodies, outcomes, records

pytestmark = [pytest.mark.processes, pytest.mark.slow]

MiB = 1 << 20
BODY = bytes(200_000)


class SmallDisk(RealDisk):
    """The real directory on a disk that is full when the test says so: nothing new is allocated."""

    full = False

    def _space(self, op: str, path: str) -> None:
        if self.full:
            raise DiskFull(op, path, ENOSPC)

    def map(self, path: str, size: int, *, op: str, create: bool = False) -> RealMapping:
        """Refuse new files."""
        if create:
            self._space(op, path)
        return super().map(path, size, op=op, create=create)

    def create_sparse(self, path: str, size: int, op: str) -> None:
        """Refuse new files."""
        self._space(op, path)
        super().create_sparse(path, size, op)

    def write_file(self, path: str, data: bytes, op: str) -> None:
        """Refuse new files."""
        self._space(op, path)
        super().write_file(path, data, op)


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two nodes with files of 1 MiB, each on a `SmallDisk`; one may be out of sync."""
    path = tmp_path / "cluster.toml"
    write_local(
        path, Local(failover="manual", nodes=2, cluster="test", base_port=0, segment_size=MiB)
    )
    path.write_text(path.read_text().replace("in_sync_min = 2", "in_sync_min = 1"))
    async with trio.open_nursery() as nursery:
        cluster = Cluster(load(path), nursery)
        await cluster.start_coordinator()
        for node in cluster.config.nodes:
            cluster.disks[node.name] = SmallDisk(node.data)
            await cluster.start(node.name)
        await cluster.settled()
        async with cluster.client() as client:
            await client.create("t")
            assert outcomes(await client.append(records("t", b"first"))) == [0]
        master = str(cluster.master)
        await cluster.until(lambda: dispatched(cluster, master), "the files of the queue")
        yield cluster
        for name in list(cluster.nodes):
            await cluster.stop(name)
        nursery.cancel_scope.cancel()


def fill(cluster: Cluster, name: str, *, full: bool) -> None:
    """Take the space of a node's disk away, or give it back."""
    disk = cluster.disks[name]
    assert isinstance(disk, SmallDisk)
    disk.full = full


async def test_a_master_without_space_refuses_and_resumes(small: Cluster) -> None:
    """Sends are refused with the reason, reads go on, nothing acknowledged is lost."""
    master, stored, refusals = str(small.master), 0, 0
    fill(small, master, full=True)
    async with small.client(master) as client:
        for number in range(40):
            answer = await client.append(records("t", b"%3d" % number + BODY))
            if answer.is_error:
                assert answer.fields["code"] == "disk-full"
                assert answer.fields["retryable"] is True
                refusals += 1
                break
            stored += 1
        assert refusals, "1 MiB files and 40 sends of 200 KB: space must have run out"
        read = await client.read("t", 0, max_records=3)
        assert len(bodies(read)) > 0
        fill(small, master, full=False)
        with trio.fail_after(60):
            while True:
                answer = await client.append(records("t", b"after"))
                if not answer.is_error:
                    break
        await small.until(lambda: dispatched(small, master), "the queues")
        last = await client.read("t", stored + 1)
        assert bodies(last) == [b"after"], last.fields
    await small.settled()


async def test_a_slave_without_space_leaves_the_set_says_why_and_rejoins(small: Cluster) -> None:
    """Writes go on without it; status names the disk; with space it is in sync again."""
    slave = small.slaves[0]
    fill(small, slave, full=True)
    async with small.client() as client:
        for number in range(20):
            answer = await client.append(records("t", b"%3d" % number + BODY))
            assert outcomes(answer) == [0], answer.fields
        await small.until(lambda: slave not in in_sync(small), "the slave outside")
        peers = small.view(str(small.master))["peers"]
        assert isinstance(peers, list)
        why = [str(peer["why"]) for peer in peers if peer["name"] == slave]  # pyright: ignore
        assert "full" in why[0] or "disk" in why[0] or "space" in why[0], why
        fill(small, slave, full=False)
        await small.settled(2)
        end = (await client.read("t", 0)).fields["end"]
    async with small.client(slave) as client:
        assert (await client.read("t", 0)).fields["end"] == end


def dispatched(cluster: Cluster, name: str) -> bool:
    """Whether the queues show everything that is confirmed."""
    offsets = cluster.view(name)["offsets"]
    assert isinstance(offsets, dict)
    return offsets["dispatched"] == offsets["confirm"]  # pyright: ignore


def in_sync(cluster: Cluster) -> list[str]:
    """The in-sync set as the master sees it."""
    master = cluster.master
    found = cluster.view(master)["in_sync"] if master else None
    return [str(name) for name in found] if isinstance(found, list) else []  # pyright: ignore

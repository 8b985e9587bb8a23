"""A full disk: writes stop, reads go on, and everything resumes by itself when there is space."""

from __future__ import annotations

import pytest
import trio

from tests.fixtures.cluster import Cluster
from tests.fixtures.full_disk import dispatched, fill
from tests.fixtures.wire_client import bodies, outcomes, records

pytestmark = [pytest.mark.processes, pytest.mark.slow]

BODY = bytes(200_000)


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


def in_sync(cluster: Cluster) -> list[str]:
    """The in-sync set as the master sees it."""
    master = cluster.master
    found = cluster.view(master)["in_sync"] if master else None
    return [str(name) for name in found] if isinstance(found, list) else []  # pyright: ignore

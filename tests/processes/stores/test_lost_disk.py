"""A node that lost its disk comes back after retention has deleted the log's first files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.processes import MiB, Processes
from twinlog.client.blocking import Client
from twinlog.store.reader import StoreReader
from twinlog.store.verify.compare import compare

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def trimming(tmp_path: Path) -> Iterator[Processes]:
    """Three nodes with files of 2 MiB, of which each keeps about three."""
    found = Processes(tmp_path, segment_size=2 * MiB)
    text = found.path.read_text()
    found.path.write_text(
        f'{text}\n[retention]\nkeep_bytes = "6 MiB"\ndelete_at = "any time"\nlook = "100 ms"\n'
        'pause = "0 s"\nhold = "100 ms"\n'
    )
    found = Processes(tmp_path)
    try:
        found.start_all()
        yield found
    finally:
        found.close()


def log_start(processes: Processes, name: str) -> int:
    """Where a node's log begins, by the names of its files."""
    files = (processes.config.node(name).data / "commitlog").glob("[0-9]*")
    return min((int(path.name) for path in files), default=0)


def test_a_lost_disk_is_replaced(trimming: Processes) -> None:
    """Delete a slave's directory and start the node: it is in sync again, and can lead."""
    master = trimming.settled()
    names = [node.name for node in trimming.config.nodes]
    lost = next(name for name in names if name != master)
    with Client(["{}:{}".format(*trimming.address(name)) for name in names]) as client:
        client.create_topic("quiet", 1)
        client.create_topic("t", 4)
        client.send("quiet", b"first")

        def trimmed() -> bool:
            with client.producer("t") as producer:
                for _ in range(2_000):
                    producer.send(bytes(1024))
            return log_start(trimming, master) > 0

        trimming.until(trimmed, "retention on the master")
        trimming.kill(lost)
        shutil.rmtree(trimming.config.node(lost).data)
        trimming.start(lost)
        # It counts as in sync until the master has noticed that it was away.
        trimming.until(
            lambda: log_start(trimming, lost) > 0, "a log that begins after the first file"
        )
        trimming.settled(3)
        trimming.kill(master)
        trimming.failover(lost)
        assert client.send("quiet", b"second").queue_offset == 1
        found = sum(1 for _ in client.read("t", "start:", read_from=lost))
        assert found > 1000
    trimming.start(master)
    trimming.settled(3)
    for name in names:
        assert trimming.stop(name) == 0
    data = {name: trimming.config.node(name).data for name in names}
    for name in names:
        with StoreReader(data[lost]) as one, StoreReader(data[name]) as other:
            assert compare(one, other).difference is None

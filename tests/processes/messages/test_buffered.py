"""A killed master that buffers: what was only in memory is gone, and the answers had said so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from tests.fixtures.processes import Processes
from twinlog import Client

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def offsets(processes: Processes) -> Mapping[str, int]:
    """Positions of the node's log."""
    return cast("Mapping[str, int]", processes.told("n1")["offsets"])


def test_a_kill_loses_at_most_what_was_said_to_be_buffered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL with batches in the pool: all that was committed is there again, nothing else.

    The interval is longer than the test; four pages in the pool are committed at once.
    """
    monkeypatch.setenv("TWINLOG_STORAGE_FLUSH", "async-buffered")
    monkeypatch.setenv("TWINLOG_STORAGE_COMMIT_INTERVAL", "60 s")
    processes = Processes(tmp_path, nodes=1)
    try:
        processes.start_all()
        address = ":".join(map(str, processes.address("n1")))
        with Client([address]) as client:
            client.create_topic("t", 1)
            receipts = [client.send("t", b"%d" % n, acknowledge="written") for n in range(5)]
            assert all(receipt.buffered and not receipt.confirmed_by for receipt in receipts)
            before = offsets(processes)
            assert before["committed"] < before["end"]
            filled = client.send("t", bytes(20_000), acknowledge="confirmed")
            assert not filled.buffered
            kept = offsets(processes)
            assert kept["committed"] == kept["end"] == kept["confirm"]
            lost = [client.send("t", b"lost", acknowledge="written") for _ in range(3)]
            assert all(receipt.buffered for receipt in lost)
        processes.kill("n1")
        processes.start("n1")
        processes.settled()
        with Client([address]) as client:
            found = [message.body for message in client.read("t")]
        assert found == [b"0", b"1", b"2", b"3", b"4", bytes(20_000)]
    finally:
        processes.close()

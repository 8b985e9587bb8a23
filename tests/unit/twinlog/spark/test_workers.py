"""What a Python worker of Spark is told once: what is in memory is put aside, and only once."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys

import pytest

from twinlog.spark.engine import worker_memory


def test_a_worker_puts_aside_what_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second task would put aside the first one's garbage, which nobody collected then."""
    calls: list[str] = []
    monkeypatch.setattr(worker_memory, "_settled", False)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    worker_memory.settle()
    worker_memory.settle()
    assert calls == ["freeze"]


_BATCHES = """
import ctypes, resource, sys
from twinlog.spark.engine import worker_memory
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: large pages are counted as one
if sys.argv[1] == "settled":
    worker_memory.settle()
for turn in range(12):
    if turn == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    columns = [b"x" * (2 << 20) for _ in range(5)]
    del columns
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_worker_keeps_the_memory_of_its_batches() -> None:
    """Ten batches of 10 MiB are 25,600 pages; a settled worker is given none of them twice."""
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", _BATCHES, how]))
        for how in ("settled", "plain")
    }
    assert faults["settled"] < 2560, faults
    assert faults["plain"] > 10 * faults["settled"], faults


@pytest.mark.parametrize("work", ["partitions", "read"])
def test_planning_and_reading_settle_their_worker(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both run in workers of their own, and each is collected after every task."""
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    source = importlib.import_module("twinlog.spark.source.data_source")
    calls: list[str] = []
    monkeypatch.setattr(source, "settle", lambda: calls.append(work))
    reader = source.BatchReader({}, [])
    monkeypatch.setattr(reader, "_query", lambda: _Nothing())
    found = reader.partitions() if work == "partitions" else list(reader.read(None))
    assert (found, calls) == ([], [work])


class _Nothing:
    """A query without tasks."""

    def tasks(self, now_ms: int) -> list[object]:
        """Return none."""
        del now_ms
        return []

"""What a Python worker of Spark is told once: what is in memory is put aside, and only once."""

from __future__ import annotations

import gc
import importlib

import pytest

from twinlog.spark import workers


def test_a_worker_puts_aside_what_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second task would put aside the first one's garbage, which nobody collected then."""
    calls: list[str] = []
    monkeypatch.setattr(workers, "_settled", False)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    workers.settle()
    workers.settle()
    assert calls == ["freeze"]


@pytest.mark.parametrize("work", ["partitions", "read"])
def test_planning_and_reading_settle_their_worker(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both run in workers of their own, and each is collected after every task."""
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    source = importlib.import_module("twinlog.spark.source")
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

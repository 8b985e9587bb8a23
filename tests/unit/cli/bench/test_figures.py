"""Latency histograms of ``twinlog bench``."""

from __future__ import annotations

from cli.bench.figures import Histogram


def test_histograms_of_several_processes_add_up() -> None:
    """Percentiles are right to 2 %."""
    one, two = Histogram(), Histogram()
    for ms in range(1, 1001):
        (one if ms % 2 else two).add(ms / 1000)
    whole = Histogram()
    whole.merge(one)
    whole.merge(two)
    assert whole.total == 1000
    p50, p99 = whole.percentile(50), whole.percentile(99)
    assert p50 is not None
    assert abs(p50 - 0.5) < 0.011
    assert p99 is not None
    assert abs(p99 - 0.99) < 0.021
    assert whole.percentile(100) == 1.0
    assert Histogram().percentile(50) is None
    assert Histogram().fields()["p50"] is None

"""Figures of a measurement: latencies, rates, CPU time.

Latencies are counted in buckets that grow by 2 %, so a percentile is right to 2 % whatever the
number of samples, memory does not grow, and histograms of several processes can be added.

CPU time is that of a whole process, user and system, in seconds; per million records it says what a
machine could do, where a rate only says what it did.

Units: latencies in seconds, sizes in bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

STEP = math.log(1.02)
LEAST_SECONDS = 1e-6
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


@dataclass
class Histogram:
    """Counts of latencies by bucket."""

    counts: dict[int, int] = field(default_factory=dict[int, int])
    total: int = 0
    largest: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one latency."""
        bucket = int(math.log(max(seconds, LEAST_SECONDS) / LEAST_SECONDS) / STEP)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.total += 1
        self.largest = max(self.largest, seconds)

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def percentile(self, percent: float) -> float | None:
        """The latency that ``percent`` of the samples do not exceed; None without samples.

        >>> h = Histogram()
        >>> for ms in range(1, 101):
        ...     h.add(ms / 1000)
        >>> 0.049 < (h.percentile(50) or 0) < 0.052
        True
        """
        if not self.total:
            return None
        wanted = math.ceil(self.total * percent / 100)
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return min(LEAST_SECONDS * math.exp((bucket + 1) * STEP), self.largest)
        return self.largest

    def fields(self) -> dict[str, object]:
        """Percentiles as machines see them, in seconds."""
        named = {f"p{percent:g}".replace(".", "_"): self.percentile(percent)
                 for percent in PERCENTILES}  # fmt: skip
        shown = {name: None if value is None else round(value, 9) for name, value in named.items()}
        return {**shown, "max": round(self.largest, 9), "samples": self.total}


def own_cpu_seconds() -> float:
    """CPU time of this process so far."""
    times = os.times()
    return times.user + times.system


def cpu_seconds(pids: Iterable[int]) -> dict[int, float]:
    """CPU time of other processes of this machine so far; those that are gone are left out."""
    import psutil

    found: dict[int, float] = {}
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue
        found[pid] = float(times.user) + float(times.system)
    return found

"""One measurement: what is counted around a load, and the document it ends in.

CPU time of nodes is read from the operating system, so it is known only for nodes of this machine;
elsewhere it is absent, never guessed.  Warm-up is run and thrown away before anything is counted.

Rates are acknowledged (or delivered) records per second.  Units: bytes, seconds.

Not here: the loads (``loads``), the commands (``benchmarks``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from cli.answer import Answer, Cell, Seconds, Table, columns
from cli.bench.figures import Histogram, cpu_seconds, own_cpu_seconds
from cli.cluster.view import ClusterView
from twinlog.units import format_duration, format_size

MILLION = 1_000_000


@dataclass
class Count:
    """What a load did: acknowledged or delivered records, their bodies' bytes, latencies."""

    records: int = 0
    bytes: int = 0
    latencies: Histogram = field(default_factory=Histogram)


@dataclass(frozen=True, slots=True)
class Result:
    """A finished measurement."""

    what: str
    count: Count
    seconds: float
    client_cpu: float
    server_cpu: Mapping[str, float]
    settings: Mapping[str, object]

    def fields(self) -> dict[str, object]:
        """The document."""
        records = max(self.count.records, 1)
        server = sum(self.server_cpu.values()) if self.server_cpu else None
        return {
            "what": self.what,
            "records": self.count.records,
            "bytes": self.count.bytes,
            "seconds": round(self.seconds, 6),
            "records_per_second": round(self.count.records / self.seconds, 1),
            "bytes_per_second": round(self.count.bytes / self.seconds, 1),
            "latency_seconds": self.count.latencies.fields(),
            "cpu_seconds": {
                "client": round(self.client_cpu, 3),
                "servers": {name: round(cpu, 3) for name, cpu in self.server_cpu.items()} or None,
            },
            "cpu_seconds_per_million": {
                "client": round(self.client_cpu * MILLION / records, 3),
                "servers": None if server is None else round(server * MILLION / records, 3),
            },
            "settings": dict(self.settings),
        }

    def answer(self) -> Answer:
        """The measurement for every format."""
        fields = self.fields()
        rate = self.count.records / self.seconds
        latencies = self.count.latencies
        named: list[tuple[str, float | None]] = [
            (f"latency p{percent:g}", latencies.percentile(percent))
            for percent in (50.0, 90.0, 99.0, 99.9)
        ]
        rows: list[tuple[Cell, ...]] = [
            ("records", self.count.records),
            ("rate", f"{rate:.0f}/s"),
            ("throughput", f"{format_size(int(self.count.bytes / self.seconds))}/s"),
        ]
        rows += [(name, None if value is None else Seconds(value)) for name, value in named]
        if latencies.total:
            rows.append(("latency max", Seconds(latencies.largest)))
        millions = self.count.records / MILLION
        if millions:
            rows.append(("client CPU per million", f"{self.client_cpu / millions:.2f} s"))
        if self.server_cpu and millions:
            cpu = sum(self.server_cpu.values()) / millions
            rows.append(("servers' CPU per million", f"{cpu:.2f} s"))
        told = " · ".join(f"{key} {value}" for key, value in self.settings.items() if value)
        return Answer(
            kind="Bench",
            fields=fields,
            head=f"{self.what} for {format_duration(self.seconds)} · {told}",
            tables=[Table(columns("WHAT VALUE>"), rows)],
        )


class Stopwatch:
    """Counts time and CPU between its making and `result`."""

    def __init__(self, what: str, view: ClusterView, settings: Mapping[str, object]) -> None:
        self._what = what
        self._settings = settings
        self._pids = {
            node.name: pid
            for node in view.nodes
            if (pid := node.pid) is not None
            and node.address.startswith(("127.", "localhost", "[::1]"))
        }
        self._servers = cpu_seconds(self._pids.values())
        self._client = own_cpu_seconds()
        self._began = time.monotonic()

    def result(self, count: Count) -> Result:
        """Stop counting."""
        seconds = time.monotonic() - self._began
        after = cpu_seconds(self._pids.values())
        servers = {
            name: after[pid] - self._servers[pid]
            for name, pid in self._pids.items()
            if pid in after and pid in self._servers
        }
        client = own_cpu_seconds() - self._client
        return Result(self._what, count, max(seconds, 1e-9), client, servers, self._settings)

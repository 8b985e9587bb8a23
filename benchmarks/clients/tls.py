"""What TLS costs: the same load on two clusters, one with it and one without, in turn.

    python benchmarks/clients/tls.py --rounds 3 --seconds 3

Each cluster is a coordinator, a master and a slave of `twinlog dev up` on loopback; `confirmed`
acknowledgements. A round runs every cell on one cluster and then on the other, so that both meet
the same neighbours. Medians, [smallest..largest]; CPU is that of the servers. Starts only
processes that it ends, in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cluster.own_cluster import environment

CELLS = {
    "prepared, 1 KiB": ("send", "--prepared", "--size", "1KiB"),
    "Python producer, 1 KiB": ("send", "--size", "1KiB"),
    "prepared, 100 B": ("send", "--prepared", "--size", "100B"),
    "100 B, one at a time": ("send", "--single", "--size", "100B"),
    "read from the slave, as stored": ("read",),
    "read from the slave, decoded": ("read", "--decode"),
}
WAYS = {"plain": (), "TLS": ("--tls",)}


def twinlog(folder: Path, *words: str) -> str:
    """Run a command for the cluster of a folder; return what it prints."""
    command = [sys.executable, "-m", "twinlog", "-c", str(folder / "cluster.toml"), *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    return done.stdout


def start(folder: Path, *words: str) -> None:
    """Start a cluster of two nodes."""
    up = ("dev", "up", "--data", str(folder), "-n", "2", "--base-port", "0", "--background", *words)
    command = [sys.executable, "-m", "twinlog", *up]
    subprocess.run(command, env=environment(), check=True, capture_output=True)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    asked = parser.parse_args()
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="twinlog-bench-") as place:
        folders = {way: Path(place) / way for way in WAYS}
        try:
            for way, words in WAYS.items():
                start(folders[way], *words)
            for turn in range(asked.rounds):
                for cell, words in CELLS.items():
                    ways = list(WAYS) if turn % 2 == 0 else list(WAYS)[::-1]
                    for way in ways:
                        more = ("--duration", f"{asked.seconds}s", "-o", "json")
                        told = twinlog(folders[way], "bench", *words, *more)
                        found.setdefault((cell, way), []).append(json.loads(told))
        finally:
            for folder in folders.values():
                twinlog(folder, "dev", "down", "--data", str(folder))
    print("| cell | way | records/s | p50 | servers' CPU per million |\n|---|---|---|---|---|")
    for (cell, way), runs in found.items():
        print(f"| {cell} | {way} | {' | '.join(row(runs))} |")


def row(runs: list[dict[str, Any]]) -> list[str]:
    """The figures of a cell."""
    rates = [float(one["records_per_second"]) for one in runs]
    shown = f"{statistics.median(rates):,.0f} [{min(rates):,.0f}..{max(rates):,.0f}]"
    waits = [one["latency_seconds"].get("p50") for one in runs]
    costs = [one["cpu_seconds_per_million"].get("servers") for one in runs]
    return [shown, middle(waits, 1e6, "us"), middle(costs, 1, "s")]


def middle(values: list[float | None], factor: float, unit: str) -> str:
    """The median of a figure; empty where it was not measured."""
    known = [value for value in values if value is not None]
    return f"{statistics.median(known) * factor:,.1f} {unit}" if known else ""


if __name__ == "__main__":
    main()

"""Grouped commit: how many requests one flush serves, and how long a `flushed` send takes.

    python benchmarks/clients/grouped_commit.py [--seconds 3] [--rounds 3]
        [--flush sync] [--json FILE]

One coordinator and one node on loopback. 1, 16 and 256 senders each send one record of 1 KiB at a
time, a request of its own, acknowledged `flushed`, and wait for the answer before the next (one
connection, that many requests under way; ``twinlog bench send --prepared``, so that the client
costs little). Flushes are counted by the node (``twinlog_log_flush_duration_seconds_count``): one
is an fdatasync of the log and one of the batch index at the same time, and then one of the
checkpoint. Medians of the rounds,
shapes in turn.

Starts only processes of its own, in a temporary folder, and stops them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

SENDERS = (1, 16, 256)
FLUSHES = "twinlog_log_flush_duration_seconds_count"
PROGRAM = [sys.executable, "-m", "twinlog"]


def http_address(data: Path) -> str:
    """Where the node serves its metrics."""
    run = json.loads((data / "n1" / "twinlog" / "run.json").read_text())
    return f"{run['host']}:{run['ports']['http']}"


def flushes(address: str) -> float:
    """How often the node has flushed since its start."""
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(FLUSHES):
                return float(line.split()[-1])
    raise SystemExit("the node counts no flushes")


def run(data: Path, senders: int, seconds: float) -> dict[str, float]:
    """One shape, once; the warm-up is left out of times, and counted on both sides of the ratio."""
    address = http_address(data)
    before = flushes(address)
    words = ["bench", "send", "--prepared", "--size", "1 KiB", "--batch", "1 KiB", "--window"]
    words += [str(senders), "--ack", "flushed", "--duration", f"{seconds}s", "--warmup", "0s"]
    command = [*PROGRAM, "-c", str(data / "cluster.toml"), *words, "-q", "-o", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    spent = flushes(address) - before
    return {
        "sends_per_second": found["records_per_second"],
        "requests_per_flush": found["records"] / max(1.0, spent),
        "p50_us": found["latency_seconds"]["p50"] * 1e6,
        "p99_us": found["latency_seconds"]["p99"] * 1e6,
    }


def measure(data: Path, seconds: float, rounds: int) -> dict[str, dict[str, float]]:
    """Medians of every shape."""
    found: dict[int, list[dict[str, float]]] = {senders: [] for senders in SENDERS}
    for _ in range(rounds):
        for senders, runs in found.items():
            runs.append(run(data, senders, seconds))
            print(f"{senders} senders  {runs[-1]}", file=sys.stderr)
    return {
        str(senders): {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        for senders, runs in found.items()
    }


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 21))
    parser.add_argument("--flush", default="sync", choices=("sync", "async", "async-buffered"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="twinlog-bench-"))
    data = folder / "twinlog"
    surroundings = {**os.environ, "TWINLOG_STORAGE_FLUSH": options.flush}
    up = ["dev", "up", "--background", "-n", "1", "--base-port", "0", "--data", str(data)]
    subprocess.run([*PROGRAM, *up], check=True, stdout=subprocess.DEVNULL, env=surroundings)
    try:
        found = measure(data, options.seconds, options.rounds)
    finally:
        down = ["dev", "down", "--wipe", "--yes", "--data", str(data)]
        subprocess.run([*PROGRAM, *down], check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)
    print("| senders | sends/s | requests per flush | p50 | p99 |\n|---|---|---|---|---|")
    for senders, row in found.items():
        print(
            f"| {senders} | {row['sends_per_second']:,.0f} | {row['requests_per_flush']:.1f}"
            f" | {row['p50_us']:,.0f} us | {row['p99_us']:,.0f} us |"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

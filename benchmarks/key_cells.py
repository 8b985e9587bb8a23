"""The key cells: twinlog against Redis 7 Streams, in one run on one machine.

    python benchmarks/key_cells.py [--rounds 3] [--seconds 5] [--only TEXT] [--json FILE]

Both have one master and one slave on loopback; a record counts when the slave has it. Redis is
driven by `redis_streams.c` (compiled here, 4 connections, pipelines of 64 XADD and one WAIT),
twinlog by `twinlog bench`: *prepared* batches, encoded beforehand as the C generator does, and the
*Python producer*, the public client called once per record. Peers take turns (A B A B ...) and the
table shows medians, minimum and maximum, and the ratio of the medians: machines are noisy, ratios
less.

Needs redis-server and a C compiler. Starts only processes of its own, in a temporary folder, and
stops them; about 6 GiB of disk are used and freed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
READY_SECONDS = 60.0

Figures = dict[str, float]
Run = Callable[[float], Figures]


def free_port() -> int:
    """A port of the loopback interface that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[int]:
    """A master and a replica with an append-only file each; gives the master's port."""
    ports = free_port(), free_port()
    running: list[subprocess.Popen[bytes]] = []
    try:
        for port in ports:
            home = folder / f"redis-{port}"
            home.mkdir()
            command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1"]
            command += ["--dir", str(home), "--appendonly", "yes", "--save", ""]
            command += ["--auto-aof-rewrite-percentage", "0"]
            if port != ports[0]:
                command += ["--replicaof", "127.0.0.1", str(ports[0])]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        wait_for(lambda: b"master_link_status:up" in redis_info(ports[1]), "the replica's link")
        yield ports[0]
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


def redis_info(port: int) -> bytes:
    """The replication section of INFO; empty when the server does not answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as link:
            link.sendall(b"INFO replication\r\n")
            return link.recv(65536)
    except OSError:
        return b""


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Ask until it is so; an error names what never came."""
    end = time.monotonic() + READY_SECONDS
    while not is_so():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not come up within {READY_SECONDS:.0f} s")
        time.sleep(0.05)


@contextlib.contextmanager
def twinlog(folder: Path) -> Iterator[list[str]]:
    """A coordinator and two nodes; gives the command that talks to them."""
    program = [sys.executable, "-m", "twinlog"]
    data = folder / "twinlog"
    up = ["dev", "up", "--background", "-n", "2", "--base-port", "0", "--data", str(data)]
    subprocess.run([*program, *up], check=True, stdout=subprocess.DEVNULL)
    try:
        yield [*program, "-c", str(data / "cluster.toml")]
    finally:
        down = ["dev", "down", "--wipe", "--yes", "--data", str(data)]
        subprocess.run([*program, *down], check=True, stdout=subprocess.DEVNULL)


def redis_cell(program: Path, port: int, size: int, *, single: bool = False) -> Run:
    """A run of the C generator."""

    def run(seconds: float) -> Figures:
        shape = ["1", "1"] if single else ["4", "64"]
        command = [str(program), str(port), str(size), *shape, str(seconds)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return {"rate": found["records"] / found["seconds"], "p50_us": found["p50_us"]}

    return run


def twinlog_cell(command: list[str], size: int, *options: str) -> Run:
    """A run of ``twinlog bench send``."""

    def run(seconds: float) -> Figures:
        words = ["bench", "send", "--size", str(size), "--duration", f"{seconds}s", *options]
        done = subprocess.run([*command, *words, "-q", "-o", "json"], stdout=subprocess.PIPE)
        if done.returncode:
            raise SystemExit(f"twinlog {' '.join(words)} ended with {done.returncode}")
        found = json.loads(done.stdout.splitlines()[-1])
        return {
            "rate": found["records_per_second"],
            "p50_us": found["latency_seconds"]["p50"] * 1e6,
            "servers_cpu": found["cpu_seconds_per_million"]["servers"],
        }

    return run


def measure(cells: list[tuple[str, str, Run]], rounds: int, seconds: float) -> dict[str, object]:
    """Every cell in turn, ``rounds`` times."""
    found: dict[str, list[Figures]] = {name: [] for name, _, _ in cells}
    for round_ in range(rounds):
        for name, _, run in cells:
            found[name].append(run(seconds))
            print(f"round {round_ + 1}  {name}  {found[name][-1]}", file=sys.stderr)
    return {
        name: {
            figure: {
                "median": statistics.median(run[figure] for run in runs),
                "min": min(run[figure] for run in runs),
                "max": max(run[figure] for run in runs),
            }
            for figure in runs[0]
        }
        for name, runs in found.items()
    }


def table(cells: list[tuple[str, str, Run]], found: dict[str, object]) -> str:
    """Rates, medians and the ratio to each cell's peer, as Markdown."""
    lines = [
        "| cell | records/s, median [min..max] | p50 | servers' CPU | against |",
        "|---|---|---|---|---|",
    ]
    for name, peer, _ in cells:
        rate, p50, cpu = (found[name].get(key) for key in ("rate", "p50_us", "servers_cpu"))
        against = "-"
        if peer:
            key = "p50_us" if "one at a time" in name else "rate"
            ratio = found[name][key]["median"] / found[peer][key]["median"]
            against = f"{ratio:.2f} x {peer}" + (" (p50)" if key == "p50_us" else "")
        spread = f"{rate['median']:,.0f} [{rate['min']:,.0f}..{rate['max']:,.0f}]"
        cost = f"{cpu['median']:.2f} s/M" if cpu else "-"
        lines.append(f"| {name} | {spread} | {p50['median']:,.0f} us | {cost} | {against} |")
    return "\n".join(lines)


def main() -> int:
    """Run the cells and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 21))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default="", help="cells whose name ends so, such as '1 KiB'")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="twinlog-bench-"))
    try:
        generator = folder / "redis_streams"
        source = HERE / "redis_streams.c"
        subprocess.run(["cc", "-O2", "-o", str(generator), str(source)], check=True)
        with redis(folder) as port, twinlog(folder) as command:
            cells = key_cells(generator, port, command)
            cells = [cell for cell in cells if cell[0].endswith(options.only)]
            found = measure(cells, options.rounds, options.seconds)
            print(table(cells, found))
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def key_cells(generator: Path, port: int, command: list[str]) -> list[tuple[str, str, Run]]:
    """(name, its peer's name, how to run it): peers next to each other."""
    cells: list[tuple[str, str, Run]] = []
    for label, size in (("1 KiB", 1024), ("100 B", 100)):
        peer = f"Redis, {label}"
        cells.append((peer, "", redis_cell(generator, port, size)))
        prepared = twinlog_cell(command, size, "--prepared", "--batch", "256 KiB")
        cells.append((f"prepared, {label}", peer, prepared))
        cells.append((f"Python producer, {label}", peer, twinlog_cell(command, size)))
    peer = "Redis, 100 B, one at a time"
    cells.append((peer, "", redis_cell(generator, port, 100, single=True)))
    cells.append(("100 B, one at a time", peer, twinlog_cell(command, 100, "--single")))
    return cells


if __name__ == "__main__":
    sys.exit(main())

"""The key cells: twinlog against Redis 7 Streams, in one run on one machine.

    python benchmarks/key_cells.py [--rounds 3] [--seconds 5] [--only TEXT] [--json FILE]

Both have one master and one slave on loopback; a record counts when the slave has it. Redis is
driven by `redis_streams.c` (compiled here, 4 connections, pipelines of 64 XADD and one WAIT),
twinlog by `twinlog bench`: *prepared* batches, encoded beforehand as the C generator does, and the
*Python producer*, the public client called once per record. Peers take turns (A B A B ...) and the
table shows medians, minimum and maximum, and the ratio of the medians: machines are noisy, ratios
less.

*Reading* is from the start of what was written before, again and again: Redis by `redis_reads.c`
(XRANGE of 256 entries at a time), twinlog by `twinlog bench read`, its stored bytes or, *Python
messages*, through the public client, which looks at each body. Most of it is older than
`storage.hot_memory`, so it comes from the page cache; *from the disk* means that the page cache is
emptied all the time, which Redis cannot do: its streams live in memory.

Needs redis-server and a C compiler. Starts only processes of its own, in a temporary folder, and
stops them; about 6 GiB of disk are used and freed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
READY_SECONDS = 60.0
FILL_SECONDS = 3.0
"""How long records are written that are then read."""
XRANGE_COUNT = 256
"""Entries that Redis is asked for at a time: more of them cost its rate, and so do more readers."""
EVICT_SECONDS = 0.02

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


def once(fill: Callable[[], object], run: Run) -> Run:
    """A run before whose first one the data is written."""
    filled: list[object] = []

    def filling(seconds: float) -> Figures:
        if not filled:
            filled.append(fill())
        return run(seconds)

    return filling


def redis_reading(programs: Path, port: int, size: int) -> Run:
    """A run of the C reader over a stream of its own."""
    key = f"read-{size}"
    words = [str(programs / "redis_streams"), str(port), str(size), "4", "64", str(FILL_SECONDS)]

    def run(seconds: float) -> Figures:
        command = [str(programs / "redis_reads"), str(port), key, str(XRANGE_COUNT), "1"]
        done = subprocess.run([*command, str(seconds)], check=True, stdout=subprocess.PIPE)
        found = json.loads(done.stdout)
        return {"rate": found["records"] / found["seconds"], "p50_us": found["p50_us"]}

    return once(lambda: subprocess.run([*words, key], check=True, stdout=subprocess.DEVNULL), run)


def twinlog_reading(
    command: list[str],
    fill: Callable[[], object],
    size: int,
    *options: str,
    disk: Path | None = None,
) -> Run:
    """A run of ``twinlog bench read``; with ``disk`` the page cache holds none of its log files."""

    def run(seconds: float) -> Figures:
        words = ["bench", "read", "--topic", f"read-{size}", "--duration", f"{seconds}s", *options]
        with evicted(disk) if disk is not None else contextlib.nullcontext():
            done = subprocess.run([*command, *words, "-q", "-o", "json"], stdout=subprocess.PIPE)
        if done.returncode:
            raise SystemExit(f"twinlog {' '.join(words)} ended with {done.returncode}")
        found = json.loads(done.stdout.splitlines()[-1])
        costs = found["cpu_seconds_per_million"]
        figures = {"rate": found["records_per_second"], "servers_cpu": costs["servers"]}
        p50 = found["latency_seconds"].get("p50")
        return {**figures, "client_cpu": costs["client"]} | ({"p50_us": p50 * 1e6} if p50 else {})

    return once(fill, run)


@contextlib.contextmanager
def evicted(folder: Path) -> Iterator[None]:
    """Keep log files out of the page cache, except pages that a process has mapped."""
    over = threading.Event()

    def evict() -> None:
        while not over.wait(EVICT_SECONDS):
            for path in folder.glob("*/commitlog/*"):
                with contextlib.suppress(OSError):
                    descriptor = os.open(path, os.O_RDONLY)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(descriptor)

    thread = threading.Thread(target=evict)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


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
        "| cell | records/s, median [min..max] | p50 | CPU: servers, client | against |",
        "|---|---|---|---|---|",
    ]
    for name, peer, _ in cells:
        rate, p50 = (found[name].get(key) for key in ("rate", "p50_us"))
        costs = [found[name].get(key) for key in ("servers_cpu", "client_cpu")]
        against = "-"
        if peer:
            key = "p50_us" if "one at a time" in name else "rate"
            ratio = found[name][key]["median"] / found[peer][key]["median"]
            against = f"{ratio:.2f} x {peer}" + (" (p50)" if key == "p50_us" else "")
        spread = f"{rate['median']:,.0f} [{rate['min']:,.0f}..{rate['max']:,.0f}]"
        cost = ", ".join(f"{one['median']:.2f} s/M" for one in costs if one) or "-"
        middle = f"{p50['median']:,.0f} us" if p50 else "-"
        lines.append(f"| {name} | {spread} | {middle} | {cost} | {against} |")
    return "\n".join(lines)


def main() -> int:
    """Run the cells and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 21))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--only", default="", help="cells whose name has this in it, such as 'reading'"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="twinlog-bench-"))
    try:
        for name in ("redis_streams", "redis_reads"):
            words = ["cc", "-O2", "-o", str(folder / name), str(HERE / f"{name}.c")]
            subprocess.run(words, check=True)
        with redis(folder) as port, twinlog(folder) as command:
            cells = key_cells(folder / "redis_streams", port, command)
            cells += reading_cells(folder, port, command)
            cells = [cell for cell in cells if options.only in cell[0]]
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


def reading_cells(folder: Path, port: int, command: list[str]) -> list[tuple[str, str, Run]]:
    """The same for reading; ``folder`` has the programs and the data."""
    cells: list[tuple[str, str, Run]] = []
    for label, size in (("1 KiB", 1024), ("100 B", 100)):
        peer = f"Redis, reading {label}"
        cells.append((peer, "", redis_reading(folder, port, size)))
        write = [*command, "bench", "send", "--prepared", "--size", str(size), "-q"]
        write += ["--topic", f"read-{size}", "--duration", f"{FILL_SECONDS}s", "--warmup", "0s"]
        filled: list[object] = []

        def fill(write: list[str] = write, filled: list[object] = filled) -> None:
            if not filled:
                filled.append(subprocess.run(write, check=True, stdout=subprocess.DEVNULL))

        for name, options, disk in (
            ("reading {}, master", ["--from", "master"], False),
            ("reading {}, slave", ["--from", "slave"], False),
            ("reading {}, slave, from the disk", ["--from", "slave"], True),
            ("reading {}, slave, Python messages", ["--from", "slave", "--decode"], False),
        ):
            place = folder / "twinlog" if disk else None
            run = twinlog_reading(command, fill, size, *options, disk=place)
            cells.append((name.format(label), peer, run))
    return cells


if __name__ == "__main__":
    sys.exit(main())

"""The account of a cell: where the CPU time of client, master and slave is, by function.

    python benchmarks/account.py CELL [--seconds 4] [--rate 999] [--rows 12] [--json FILE]

CELL is one of `CELLS`: what `twinlog bench` does, on a cluster of its own (`twinlog dev up`, two
nodes). `perf record` samples each of the three processes while the cell runs, by the CPU clock, so
that it works in a virtual machine; the samples are divided among the records that the cell counted
and, for functions that run once per batch or answer, among those.

Rows are functions of the kernel, of the interpreter and of compiled modules; time within Python
code is one row, ``Python code``, for the interpreter's loop and its objects cannot be told apart by
sampling machine code. What no row shows is in *others*. Needs `perf` and the right to use it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PROGRAM = [sys.executable, "-m", "twinlog"]
CELLS: dict[str, list[str]] = {
    "send-1k": ["send", "--size", "1024", "--prepared", "--batch", "256 KiB"],
    "send-100": ["send", "--size", "100", "--prepared", "--batch", "256 KiB"],
    "producer-1k": ["send", "--size", "1024"],
    "producer-100": ["send", "--size", "100"],
    "single-100": ["send", "--size", "100", "--single"],
    "read-1k": ["read", "--from", "master"],
    "read-slave-1k": ["read", "--from", "slave"],
    "messages-1k": ["read", "--from", "slave", "--decode"],
}
FILL = ["send", "--size", "1024", "--prepared", "--duration", "3s", "--warmup", "0s"]
WARM_SECONDS = 1.0
PYTHON = re.compile(
    r"^(_?Py[A-Z_]|_PyEval|initialize_locals|tupledealloc|subtype_dealloc|dict_|list_|unicode|lookdict|insertdict|object_|method_|long_|gc_collect|visit_|tuple|siphash|slot_|property_|member_get|bytes_|vgetargs|cfunction|func_|gen_|deque_|memory_|mbuf_|free_|type_call|builtin_|call_|frame_|bu_|s_unpack|new_|clear_)"
)
"""Functions of the interpreter itself."""


def order(data: Path, *words: str) -> str:
    """What a command of this cluster prints."""
    command = [*PROGRAM, "-c", str(data / "cluster.toml"), *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Path]:
    """A coordinator and two nodes."""
    data = folder / "twinlog"
    up = ["dev", "up", "--background", "-n", "2", "--base-port", "0", "--data", str(data)]
    subprocess.run([*PROGRAM, *up], check=True, stdout=subprocess.DEVNULL)
    try:
        yield data
    finally:
        down = ["dev", "down", "--wipe", "--yes", "--data", str(data)]
        subprocess.run([*PROGRAM, *down], check=True, stdout=subprocess.DEVNULL)


def sampled(
    data: Path, cell: str, seconds: float, rate: int
) -> tuple[dict[str, Path], dict[str, float]]:
    """Run a cell; return where the samples of each process are, and what the cell says."""
    words = [*PROGRAM, "-c", str(data / "cluster.toml"), "bench", *CELLS[cell]]
    words += ["--duration", f"{seconds}s", "--warmup", f"{WARM_SECONDS}s", "-q", "-o", "json"]
    kept: dict[str, Path] = {}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as client:
        pids = {"client": client.pid}
        for node, name in (("n1", "master"), ("n2", "slave")):
            pids[name] = json.loads((data / node / "twinlog" / "run.json").read_text())["pid"]
        while client.poll() is None and not connected(client.pid):
            time.sleep(0.02)  # the program starts
        time.sleep(WARM_SECONDS + 0.5)
        recorders = []
        for name, pid in pids.items():
            kept[name] = data / f"{name}.perf"
            perf = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(rate), "-p", str(pid)]
            perf += ["-o", str(kept[name]), "--", "sleep", str(max(seconds - 2, 1))]
            recorders.append(subprocess.Popen(perf, stderr=subprocess.DEVNULL))
        for one in recorders:
            one.wait(seconds + 30)
        assert client.stdout is not None
        told = json.loads(client.stdout.readlines()[-1])
    return kept, told


def connected(pid: int) -> bool:
    """Whether a process has a socket open."""
    with contextlib.suppress(OSError):
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(one).startswith("socket:"):
                    return True
    return False


def functions(samples: Path) -> Counter[str]:
    """How many samples each function has; Python code is one."""
    words = ["perf", "script", "-i", str(samples), "-F", "ip,sym,dso"]
    found: Counter[str] = Counter()
    for line in subprocess.run(
        words, check=True, capture_output=True, text=True
    ).stdout.splitlines():
        match = re.match(r"\s*[0-9a-f]+ (.*) \((.*)\)$", line)
        if match is None:
            continue
        name, place = match[1].split("+")[0], os.path.basename(match[2])
        if place.startswith(("[kernel", "[guest")) or "vmlinux" in place:
            found[f"kernel: {name}"] += 1
        elif place.startswith(("libpython", "python")) or PYTHON.match(name):
            found["Python code"] += 1
        elif place.startswith("_compiled"):
            found[f"kernels: {name.rpartition('_compiled_')[2] or name}"] += 1
        else:
            found[f"{place.split('.')[0]}: {name}"] += 1
    return found


def table(
    counts: dict[str, Counter[str]], told: dict[str, float], rows: int, share: dict[str, float]
) -> str:
    """Nanoseconds a record by function, one column for each process."""
    total: Counter[str] = Counter()
    for name, found in counts.items():
        for function, count in found.items():
            total[function] += count * share[name]
    shown = [function for function, _ in total.most_common(rows)]
    lines = ["| ns a record | " + " | ".join(counts) + " |", "|---|" + "---|" * len(counts)]
    for function in shown:
        cells = [f"{counts[name][function] * share[name]:,.0f}" for name in counts]
        lines.append(f"| {function} | " + " | ".join(cells) + " |")
    others = {
        name: sum(count for function, count in found.items() if function not in shown) * share[name]
        for name, found in counts.items()
    }
    lines.append("| others | " + " | ".join(f"{others[name]:,.0f}" for name in counts) + " |")
    whole = {name: sum(found.values()) * share[name] for name, found in counts.items()}
    lines.append("| together | " + " | ".join(f"{whole[name]:,.0f}" for name in counts) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run the cell and print its account."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cell", choices=sorted(CELLS))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=int, default=997, help="samples a second")
    parser.add_argument("--rows", type=int, default=14)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="twinlog-account-"))
    try:
        with cluster(folder) as data:
            if CELLS[options.cell][0] == "read":
                order(data, "bench", *FILL, "-q")
            kept, told = sampled(data, options.cell, options.seconds, options.rate)
            counts = {name: functions(path) for name, path in kept.items()}
        # Samples are divided by what the cell did while they were taken, at its own rate.
        records = told["records_per_second"] * max(options.seconds - 2, 1)
        share = dict.fromkeys(counts, 1e9 / options.rate / max(records, 1))
        rate, load = told["records_per_second"], os.getloadavg()[0]
        print(f"{options.cell}: {rate:,.0f} records/s, load {load:.1f}")
        print(table(counts, told, options.rows, share))
        if options.json:
            options.json.write_text(
                json.dumps({"cell": options.cell, "told": told, "counts": counts})
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

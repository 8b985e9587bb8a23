"""A cluster whose processes a benchmark owns, and what the page cache holds of its log files.

A coordinator, the master n1 and the slaves n2 and n3 on loopback, each started and ended by name in
a temporary folder; figures come from their metrics. Files are counted as loaded when they end at or
below a log offset: what a node still writes is neither dropped from memory nor looked at.

Not here: what is measured (`catch_up.py`, `cold_reads.py`, `read_ahead.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cli.connection import ask
from cli.dev.private_cluster import free_ports
from node.config.config import ClusterConfig, load
from node.config.pages import Local, write_local
from twinlog.units import MiB
from twinlog.wire.frames import Type

SEGMENT = 256 * MiB
READY_SECONDS = 120.0
ANSWER_SECONDS = 30.0


def environment() -> dict[str, str]:
    """What child processes find our packages with."""
    return {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONDONTWRITEBYTECODE": "",  # an installed program is compiled once, not at each start
    }


class Cluster:
    """A coordinator, the master n1 and the slaves n2 and n3; processes of this one."""

    slaves = ("n2", "n3")

    def __init__(self, folder: Path, master: Path, segment: int) -> None:
        self.folder = folder
        self._path = folder / "cluster.toml"
        local = Local(failover="manual", nodes=3, base_port=free_ports(3), segment_size=segment)
        write_local(self._path, local)
        text = self._path.read_text()
        self._path.write_text(text.replace('data = "data/n1"', f'data = "{master}/n1"'))
        self.config: ClusterConfig = load(self._path)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str) -> None:
        """Start processes and wait until each serves."""
        for name in names:
            what = ["coordinator", "start"] if name == "coordinator" else ["node", "start", name]
            command = [sys.executable, "-m", "twinlog", *what, "--config", str(self._path)]
            with (self._path.parent / f"{name}.log").open("ab") as log:
                self._running[name] = subprocess.Popen(
                    command, stdout=log, stderr=log, env=environment(), start_new_session=True
                )
        for name in names:
            wait_for(lambda name=name: self._run(name).get("pid") == self.pid(name), name)

    def stop(self, *names: str) -> None:
        """Stop processes in order."""
        for name in names:
            self._running[name].terminate()
        for name in names:
            self._running.pop(name).wait(READY_SECONDS)

    def kill(self, name: str) -> None:
        """End a process with SIGKILL."""
        process = self._running.pop(name)
        process.kill()
        process.wait(READY_SECONDS)

    def close(self) -> None:
        """End what still runs."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait(READY_SECONDS)

    def pid(self, name: str) -> int:
        """The process of a node."""
        return self._running[name].pid

    def _run(self, name: str) -> dict[str, Any]:
        place = self.config.coordinator.data
        place = place if name == "coordinator" else self.config.node(name).data
        try:
            found: dict[str, Any] = json.loads((place / "twinlog" / "run.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def address(self, name: str, port: str = "clients") -> str:
        """Where a node listens."""
        return f"127.0.0.1:{self._run(name)['ports'][port]}"

    def log(self, name: str) -> Path:
        """A node's log files."""
        return self.config.node(name).data / "commitlog"

    def metric(self, name: str, what: str) -> float:
        """A figure of a node; 0 where it does not say it."""
        url = f"http://{self.address(name, 'http')}/metrics"
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(what + " "):
                    return float(line.split()[-1])
        return 0.0

    def status(self, name: str) -> dict[str, Any]:
        """What a node says of itself; a tenth of the work of its metrics."""
        return dict(ask(self.address(name), Type.STATUS, {}, timeout=ANSWER_SECONDS))

    def in_sync(self) -> int:
        """Nodes in the in-sync set, the master included."""
        return int(self.metric("n1", "twinlog_replication_in_sync_nodes"))

    def read(self, name: str, topic: str) -> int:
        """Bytes of a topic that a node has served since its start."""
        return int(self.metric(name, f'twinlog_read_bytes_total{{topic="{topic}"}}'))


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Ask until it is so; an error names what never came."""
    end = time.monotonic() + READY_SECONDS
    while not is_so():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not come within {READY_SECONDS:.0f} s")
        time.sleep(0.02)


@contextlib.contextmanager
def cluster(
    place: Path | None, master: Path | None = None, *, segment: int = SEGMENT
) -> Iterator[Cluster]:
    """Run a cluster in a temporary folder, its master's files in one of another place."""
    folders = [Path(tempfile.mkdtemp(prefix="twinlog-bench-", dir=at)) for at in (place, master)]
    try:
        made = Cluster(*folders, segment)
        try:
            made.start("coordinator")
            made.start("n1", *made.slaves)
            wait_for(lambda: made.in_sync() == 3, "three nodes in sync")
            yield made
        finally:
            made.close()
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


# ── pages ───────────────────────────────────────────────────────────────────────────────────────


def loaded(folder: Path, below: int) -> list[Path]:
    """The log files of a node that end at or below a log offset."""
    return [path for path in folder.glob("*") if int(path.name) + path.stat().st_size <= below]


def evict(folder: Path, below: int) -> None:
    """Drop what the page cache holds of the loaded files; what is dirty or mapped stays."""
    for path in loaded(folder, below):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def resident(folders: list[Path], below: int) -> float:
    """The share of the loaded files that is in memory."""
    paths = [path for folder in folders for path in loaded(folder, below)]
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES,SIZE", *map(str, paths)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    return sum(row[0] for row in rows) / sum(row[1] for row in rows)

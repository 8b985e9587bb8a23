"""A pool of workers under kill -9: of workers, and of the master. Every order is charged once.

The workers are `examples/worker_pool.py`, so what the page shows is what is tested.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fixtures.processes import Processes
from twinlog.client.blocking import Client
from twinlog.wire.frames import Type

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
ORDERS = 300


class Pool:
    """Workers over one database; what they print goes to one file each."""

    def __init__(self, folder: Path, endpoints: str) -> None:
        self.folder = folder
        self._endpoints = endpoints
        self._workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """Start one more."""
        number = len(self._workers)
        with (self.folder / f"worker-{number}.log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, str(ROOT / "examples" / "worker_pool.py"), "1000000",
                 self._endpoints],
                cwd=self.folder, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        """Kill all of them."""
        for worker in self._workers:
            worker.kill()
            worker.wait()

    def charged(self) -> Counter[str]:
        """What each customer owes."""
        with closing(sqlite3.connect(self.folder / "accounts.db", timeout=60.0)) as database:
            try:
                return Counter(dict(database.execute("SELECT id, due FROM accounts")))
            except sqlite3.OperationalError:  # no worker has made the tables yet
                return Counter()

    def said(self) -> str:
        """What the workers said."""
        logs = sorted(self.folder.glob("worker-*.log"))
        return "\n".join(log.read_text()[-2000:] for log in logs)


@pytest.fixture
def pool(processes: Processes, tmp_path: Path) -> Iterator[Pool]:
    """A pool without workers, beside a cluster."""
    names = [node.name for node in processes.config.nodes]
    folder = tmp_path / "pool"
    folder.mkdir()
    made = Pool(folder, ",".join("{}:{}".format(*processes.address(name)) for name in names))
    try:
        yield made
    finally:
        made.close()


def test_every_order_is_charged_once(processes: Processes, pool: Pool) -> None:
    """Workers die in the middle of their orders, and so does the master; more come."""
    names = [node.name for node in processes.config.nodes]
    expected: Counter[str] = Counter()
    with Client(["{}:{}".format(*processes.address(name)) for name in names]) as client:
        client.create_topic("orders", 4)
        settings: dict[str, object] = {"start": "start", "retry": [100]}
        create = {"op": "create", "name": "billing", "settings": settings}
        client.call("master", Type.GROUP, create)
        workers = [pool.start() for _ in range(3)]

        def send(count: int) -> None:
            with client.producer("orders") as producer:
                for number in range(count):
                    order = {"customer": f"c{number % 7}", "total": number}
                    expected[f"c{number % 7}"] += number
                    producer.send(json.dumps(order).encode(), key=str(number))

        send(ORDERS)
        processes.until(lambda: pool.charged().total() > 0, "the first orders are charged")
        for victim in workers[:2]:
            victim.kill()
            pool.start()
        send(ORDERS)
        master = processes.settled()
        processes.kill(master)
        other = next(name for name in names if name != master)
        processes.failover(other)
        send(ORDERS)
        processes.until(lambda: pool.charged() == expected, "every order is charged")
        lag = lambda: table_of(client)["lag"]  # noqa: E731
        processes.until(lambda: lag() == 0, "every message is settled")
        assert pool.charged() == expected, pool.said()
        assert workers[2].poll() is None, pool.said()  # neither death nor failover ended it


def table_of(client: Client) -> dict[str, object]:
    """What the master says of the group."""
    found = client.call("master", Type.GROUP, {"op": "show", "name": "billing"}).fields["group"]
    assert isinstance(found, dict)
    return found

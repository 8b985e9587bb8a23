"""Load, SIGKILL, failover, restart, again and again: nothing acknowledged is lost or doubled.

A group handles the load meanwhile, and one of its two members is killed in each round, too. Its
ledger has to come out even: all is handled, and again only after a lease had ended.

``TWINLOG_KILL_ROUNDS`` sets the rounds; 50 where everything must run (``TWINLOG_REQUIRE=all``), a
few otherwise. Every fifth round kills all nodes at once.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from cli.history.checker import check
from cli.history.operations import Recorder
from cli.history.operations import load as load_history
from tests.fixtures.handling import Handling, Word, judge
from tests.fixtures.processes import Processes
from twinlog import Client
from twinlog.errors import TwinlogError
from twinlog.producer.section import Section, State

ROUNDS = int(
    os.environ.get("TWINLOG_KILL_ROUNDS", "50" if os.environ.get("TWINLOG_REQUIRE") else "5")
)
SEED = int(os.environ.get("TWINLOG_KILL_SEED", "7"))
EVERYBODY = 5
"""Number of rounds after which all nodes are killed at once."""

pytestmark = [pytest.mark.processes, pytest.mark.slow]


class Load:
    """Sends numbered records one after the other from a thread; remembers what was acknowledged."""

    def __init__(self, client: Client, history: Recorder) -> None:
        self._client = client
        self._history = history
        self._stop = threading.Event()
        self._moved = threading.Condition()
        self.sent = 0
        self.acknowledged: list[int] = []
        self.unknown: list[int] = []

    def run(self) -> None:
        """Send until told to stop."""
        with self._client.producer("load", linger="1 ms") as producer:
            while not self._stop.is_set():
                numbers = range(self.sent, self.sent + 50)
                begun = time.monotonic()
                sections = [producer.send(b"%d" % number) for number in numbers]
                self.sent += len(sections)
                with suppress(TwinlogError):
                    producer.flush()
                for number, section in zip(numbers, sections, strict=True):
                    (self.acknowledged if section.stored else self.unknown).append(number)
                self._note(begun, numbers, sections)
                with self._moved:
                    self._moved.notify_all()

    def _note(self, begun: float, numbers: range, sections: list[Section]) -> None:
        """Write what came of each section; several messages share one."""
        inside: dict[Section, list[int]] = {}
        for number, section in zip(numbers, sections, strict=True):
            inside.setdefault(section, []).append(number)
        for section, some in inside.items():
            names = tuple(map(str, some))
            one = self._history.begin(
                "send",
                "load",
                "load",
                0,
                records=names,
                producer="load",
                sequence=some[0],
                at=begun,
            )
            if section.stored:
                told = section.receipt()
                offset = told.queue_offset if told.queue_offset >= 0 else None
                self._history.done(one, "ok", offset=offset, epoch=told.epoch)
            elif section.done:
                refused = section.state is State.REFUSED
                self._history.done(one, "fail" if refused else "unknown")

    @contextmanager
    def running(self) -> Iterator[None]:
        """The load runs while the block does, and has ended after it."""
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(60)
            assert not thread.is_alive(), "the load did not end"

    def wait_for_more(self, records: int = 100) -> None:
        """Wait until so many more records are acknowledged."""
        wanted = len(self.acknowledged) + records
        with self._moved:
            came = self._moved.wait_for(lambda: len(self.acknowledged) >= wanted, 60)
        assert came, f"{len(self.acknowledged)} acknowledged and no more"


def test_nothing_acknowledged_is_lost_or_doubled(processes: Processes, tmp_path: Path) -> None:
    """After every round's kill and restart, and after all of them, the ledger is right.

    And one log explains what the client saw, by the word of a checker that knows nothing of logs.
    The group has handled all that is there.
    """
    chance = random.Random(SEED)
    nodes = [node.name for node in processes.config.nodes]
    endpoints = [":".join(map(str, processes.address(name))) for name in nodes]
    history = tmp_path / "history.jsonl"
    handling = Handling(tmp_path, endpoints, "load")
    with (
        Client(endpoints, timeout=60.0) as client,
        Recorder(history) as recorder,
        closing(handling),
    ):
        client.create_topic("load", 1)
        handling.create(client)
        for _ in range(2):
            handling.start()
        load = Load(client, recorder)
        with load.running():
            for number in range(1, ROUNDS + 1):
                load.wait_for_more()
                handling.replace()
                one_round(processes, chance, nodes, everybody=number % EVERYBODY == 0)
            load.wait_for_more()
        looked = recorder.begin("read", "reader", "load", 0)
        messages = list(client.read("load"))
        names = tuple(bytes(message.body).decode() for message in messages)
        recorder.done(looked, "ok", records=names, start=messages[0].queue_offset)
        bodies = [int(name) for name in names]
        assert len(set(bodies)) == len(bodies), "a record is there twice"
        missing = set(load.acknowledged) - set(bodies)
        assert not missing, f"{len(missing)} acknowledged records are gone: {sorted(missing)[:9]}"
        assert set(bodies) <= set(range(load.sent))
        assert bodies == sorted(bodies), "one producer, one queue: the order is kept"
        all_handled(processes, handling, client)
        handling.end()
        assert not judge(handling.words(), bodies)
    verdict = check(load_history(history))
    assert verdict.holds, verdict.findings


def _has_less(handling: Handling, client: Client, than: int) -> bool:
    return handling.left(client) < than


def all_handled(processes: Processes, handling: Handling, client: Client) -> None:
    """Wait until the group has nothing left, as long as it goes on."""
    # How much is left says how much slower the members were than the load: on a busy machine that
    # takes longer than any fixed wait, and only a group that stands still is wrong.
    left = handling.left(client)
    while left:
        less = partial(_has_less, handling, client, left)
        processes.until(less, "the group handles what is left")
        left = handling.left(client)


def test_an_uneven_ledger_is_noticed() -> None:
    """What was never handled, handled under a lease, or after a confirmed acknowledgement."""
    first = Word(1, 10.0, 15.0, confirmed=False)
    late, early = Word(1, 15.0, 20.0, confirmed=False), Word(1, 14.0, 19.0, confirmed=False)
    done = Word(1, 11.0, 15.0, confirmed=True)
    assert judge([first, late], [1]) == []
    assert judge([first, done], [1]) == []
    assert len(judge([first, early], [1])) == 1
    assert len(judge([first, done, late], [1])) == 1
    assert len(judge([first], [1, 2])) == 1


def one_round(
    processes: Processes, chance: random.Random, nodes: list[str], *, everybody: bool
) -> None:
    """Kill, take over where the master died, restart, wait until all are in sync."""
    if everybody:
        processes.kill(*nodes)
        processes.start(*nodes)
        processes.settled()
        return
    victim = chance.choice(nodes)
    leads = victim == processes.master()
    processes.kill(victim)
    if leads:
        processes.failover(chance.choice([name for name in nodes if name != victim]))
    processes.start(victim)
    processes.settled()

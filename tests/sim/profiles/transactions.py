"""Transactions of a run, and what the confirmed log says of them, read by the judge's own parser.

The messages of a transaction are one section of halves. Some are ended by their producer, again and
now and then otherwise; the rest is left to questions, which a producer hears only now and then, and
to time. What must hold is asked for every confirmed batch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import msgpack

from storage import Section
from tests.sim.judge.contents import GIVEN_UP, HALVES, STEP_TOPIC, Stored
from tests.sim.machines.group_port import Connection
from twinlog.errors import TransactionSettled, TwinlogError
from twinlog.format.record import RecordEncoder
from twinlog.format.waiting.halves import half_text
from twinlog.wire.frames import Frame, Type

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode
    from tests.sim.world import World

GROUP = "shop"
QUEUES = 2
"""Of the topic that transactions deliver to."""
COMMIT, ROLLBACK, GIVE_UP = 1, 2, 3
NAMES = {"commit": COMMIT, "rollback": ROLLBACK, "given-up": GIVE_UP}
_BODY = 88
_DEADLINE = 5.0
_TRANSACTION = re.compile(rb"^tx\|(\d+)\|(\d+)\|")


@dataclass(slots=True)
class SettledBatch:
    """What one confirmed batch says of transactions.

    Attributes:
        rows: (number of a half, outcome) of each row that settles one.
        copies: (transaction, message) of each delivered message.
        given_up: The same of messages that were given up.
        questions: Whether it counts questions.
    """

    rows: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    given_up: list[tuple[int, int]] = field(default_factory=list)
    questions: bool = False


class Transactions:
    """The account of a run; see the module.

    Attributes:
        halves: (transaction, message) of each half, by its number.
        messages: Numbers of the halves of each transaction.
        outcomes: How halves were settled by the confirmed log, by number.
        told: What producers were told of their transactions.
        asked: CHECKS that were sent. ``counted``: records that count questions.
        counts: What happened.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.halves: dict[int, tuple[int, int]] = {}
        self.messages: dict[int, list[int]] = {}
        self.outcomes: dict[int, int] = {}
        self.asked = self.counted = 0
        self.told: dict[int, int] = {}
        self.counts: Counter[str] = Counter()
        self._next = 0
        self._done: set[tuple[int, int]] = set()
        self._sending = True
        self._rng = Random(f"transactions {world.plan.seed}")

    # -- what producers do

    def start(self) -> None:
        """Begin to send, and to hear questions."""
        if self.world.plan.transactions:
            self._turn()
            self._hear()

    def heal(self) -> None:
        """Send nothing more; what is open is to end."""
        self._sending = False

    def _turn(self) -> None:
        world = self.world
        if self._sending:
            world.schedule.after(self._rng.uniform(0.1, 0.8), self._turn)
        master = world.newest_master()
        if master is None or master.driver is None or master.store is None:
            return
        if STEP_TOPIC in master.store.reads.topics():
            self._next += 1
            master.tell(self._send, master, self._next, self._rng.randint(1, 3))

    def _send(self, now: float, master: SimNode, name: int, count: int) -> None:
        if master.driver is None:
            return
        encoder = RecordEncoder(HALVES, 0)
        for number in range(count):
            said = half_text(GROUP, f"t{name}", STEP_TOPIC, (name + number) % QUEUES)
            encoder.add(b"tx|%d|%d|0|" % (name, number), properties=said, born_timestamp=1)
        section = Section(HALVES, 0, count, encoder.take(), 0, 0, 0)
        master.driver.append_rows(
            now, [], sections=[section], deadline=now + _DEADLINE, reply=lambda *_: None
        )

    def _end(self, name: int, outcome: int) -> None:
        """Ask for the end until it is said; the other outcome is refused."""
        master = self.world.newest_master()
        if (name, outcome) in self._done:
            return
        self.world.schedule.after(0.7, self._end, name, outcome)
        if master is None or master.groups is None:
            return
        numbers = self.messages[name]

        def done(said: Mapping[str, object] | TwinlogError, payload: object = ()) -> None:
            if isinstance(said, TransactionSettled):
                self._hold(name, NAMES[str(said.outcome)])
                self._done.add((name, outcome))
                self.counts["refused"] += 1
            elif not isinstance(said, TwinlogError):
                self._hold(name, outcome)
                self._done.add((name, outcome))
                self.counts["ended"] += 1
                if self._rng.random() < 0.3:
                    other = COMMIT + ROLLBACK - outcome
                    self.world.schedule.after(self._rng.random(), self._end, name, other)

        fields = {"group": GROUP, "halves": numbers, "outcome": outcome}
        master.groups.order(Frame(Type.END, fields=fields), Connection(), done)

    def _hold(self, name: int, outcome: int) -> None:
        """A producer was told how its transaction ended."""
        self.told.setdefault(name, outcome)
        for one in self.world.court.ended:
            one.ended(name, outcome)

    def _hear(self) -> None:
        """Wait to be asked, now and then, and answer."""
        world = self.world
        world.schedule.after(self._rng.uniform(1.0, 4.0), self._hear)
        master = world.newest_master()
        if master is None or master.groups is None:
            return

        def done(said: Mapping[str, object] | TwinlogError, payload: object = ()) -> None:
            if isinstance(said, TwinlogError):
                return
            rows = said["rows"]
            assert isinstance(rows, list)
            for name in {self.halves[row[0]][0] for row in rows}:
                self.counts["questions"] += 1
                if self._rng.random() < 0.3:
                    world.schedule.after(0.01, self._end, name, self._rng.choice((1, 2)))

        self.asked += 1
        fields = {"group": GROUP, "max": 1, "wait_ms": 500}
        master.groups.order(Frame(Type.CHECKS, fields=fields), Connection(), done)

    # -- what the log says

    def enter(self, others: Iterable[tuple[str, Stored, bytes]]) -> None:
        """Take a confirmed batch."""
        said, new = SettledBatch(), set[int]()
        for topic, stored, data in others:
            found = _TRANSACTION.match(stored.name)
            if topic == "rmq_sys_TWINLOG_GROUP":
                length = int.from_bytes(data[_BODY - 4 : _BODY], "big")
                rows = msgpack.unpackb(data[_BODY : _BODY + length], strict_map_key=False)[1:]
                said.rows += [(row[1], row[2]) for row in rows if row[0] == "H"]
                said.questions |= any(row[0] == "K" for row in rows)
            elif found is not None:
                one = int(found[1]), int(found[2])
                if topic == HALVES:
                    self.halves[stored.queue_offset] = one
                    self.messages.setdefault(one[0], []).append(stored.queue_offset)
                    new.add(one[0])
                elif topic == GIVEN_UP:
                    said.given_up.append(one)
                else:
                    said.copies.append(one)
        self.counted += said.questions
        if said.rows or said.copies or said.given_up or said.questions:
            for court in self.world.court.settled_batch:
                court.settled_batch(said)
        for number, outcome in said.rows:
            self.outcomes[number] = outcome
            self.counts[f"outcome-{outcome}"] += 1
        for name in sorted(new):
            if self._rng.random() < 0.6:
                wait = self._rng.uniform(0.0, 3.0)
                self.world.schedule.after(wait, self._end, name, self._rng.choice((1, 1, 2)))

    def unfinished(self) -> str:
        """Say what is open; empty: nothing is, or the master's clock was set back and stands."""
        master = self.world.newest_master()
        if master is None or (master.groups is not None and master.groups.clock_stands()):
            return ""
        left = sorted(self.halves.keys() - self.outcomes.keys())
        return f"halves {left[:5]} are open" if left else ""

    def facts(self) -> dict[str, int]:
        """Counts of what the run did with transactions."""
        return {f"transaction-{name}": count for name, count in sorted(self.counts.items())}

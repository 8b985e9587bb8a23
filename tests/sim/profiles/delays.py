"""Delayed messages of a run: what waits, what was delivered, as the confirmed log says.

The account reads the log by itself: waiting records are those of producers in the schedule topic,
copies are records of other topics that say where they were to go, marks are rows ``D``. What must
hold is asked of `tests.sim.invariants.delays` for every batch that has copies or marks.

Not here: who sends them (`tests.sim.users.clients`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgpack

from tests.sim.judge.contents import SCHEDULE, Stored, is_copy

if TYPE_CHECKING:
    from tests.sim.judge.ledger import Batch
    from tests.sim.world import World

DELAYS_MS = {1: 1_000, 2: 5_000, 3: 10_000}
"""The levels that producers use, as RocketMQ's page says."""
_STAMP, _BODY = 56, 88
_LEVEL = re.compile(rb"DELAY\x01(\d+)\x02REAL_TOPIC\x01")
LATE_MS = 2_000
RARE = ("delayed", "copies", "marks", "batches")


def _named(name: bytes, level: int) -> bytes:
    """Return what no two waiting records are called: producers count in each level."""
    return b"%d:%s" % (level, name)


def _level(data: bytes) -> int:
    found = _LEVEL.search(data)
    return int(found[1]) if found is not None else 0


class Waiting(NamedTuple):
    """A record that waits for a level."""

    name: bytes
    due_ms: int
    log_offset: int


@dataclass(slots=True)
class DelayBatch:
    """What one confirmed batch says of delays.

    Attributes:
        marks: Levels and the next record by each row, and what its level had before.
        passed: What the marks pass, as far as it is in the log before the batch.
        copies: Name and store time of each copy.
    """

    marks: list[tuple[int, int, int]] = field(default_factory=list)
    passed: list[Waiting] = field(default_factory=list)
    copies: list[tuple[bytes, int]] = field(default_factory=list)


class Delays:
    """See the module.

    Attributes:
        waiting: Every record of each level so far, in the order of its queue.
        next: How far each level is delivered.
        marks: (log offset after the row, level, next), in log order.
        counts: What happened.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.waiting: dict[int, list[Waiting]] = {level: [] for level in DELAYS_MS}
        self.next: Counter[int] = Counter()
        self.marks: list[tuple[int, int, int]] = []
        self.counts: Counter[str] = Counter()

    def enter(
        self,
        batch: Batch,
        found: Iterable[tuple[str, int, Stored]],
        others: Iterable[tuple[str, Stored, bytes]],
    ) -> None:
        """Take a confirmed batch."""
        said = DelayBatch()
        for topic, stored, data in others:
            if topic == "rmq_sys_TWINLOG_GROUP":
                length = int.from_bytes(data[_BODY - 4 : _BODY], "big")
                for row in msgpack.unpackb(data[_BODY : _BODY + length], strict_map_key=False)[1:]:
                    if row[0] == "D":
                        self._mark(said, row[1], row[2], stored.log_offset + stored.size)
            elif is_copy(topic, data):
                stamp = int.from_bytes(data[_STAMP : _STAMP + 8], "big")
                said.copies.append((_named(stored.name, _level(data)), stamp))
                self.counts["copies"] += 1
        if said.marks or said.copies:
            self.counts["batches"] += 1
            for one in self.world.court.delay_batch:
                one.delay_batch(said)
        for topic, queue, stored in found:
            if topic == SCHEDULE:
                at = stored.log_offset + _STAMP
                stamp = int.from_bytes(self.world.contents.raw[at : at + 8], "big")
                due_ms = stamp + DELAYS_MS[queue + 1]
                name = _named(stored.name, queue + 1)
                self.waiting[queue + 1].append(Waiting(name, due_ms, stored.log_offset))
                self.counts["delayed"] += 1

    def _mark(self, said: DelayBatch, level: int, after: int, end: int) -> None:
        before = self.next[level]
        said.marks.append((level, after, before))
        said.passed += self.waiting[level][before:after]
        self.next[level] = max(before, after)
        self.marks.append((end, level, after))
        self.counts["marks"] += 1

    def at(self, end: int) -> dict[int, int]:
        """How far each level is delivered by the log below an offset."""
        found: dict[int, int] = {}
        for offset, level, after in self.marks:
            if offset <= end:
                found[level] = max(found.get(level, 0), after)
        return found

    def left(self) -> Iterable[tuple[int, Waiting]]:
        """Yield what still waits, by level."""
        for level, records in self.waiting.items():
            for one in records[self.next[level] :]:
                yield level, one

    def unfinished(self) -> str:
        """Say what is due and not delivered; empty: nothing is."""
        master = self.world.newest_master()
        if master is None or (master.groups is not None and master.groups.clock_stands()):
            return ""
        wall_ms = master.clock.wall_ms()
        for level, one in self.left():
            if one.due_ms <= wall_ms - LATE_MS:
                return f"level {level}: {one.name!r} was due at {one.due_ms}, it is {wall_ms}"
        return ""

    def facts(self) -> dict[str, int]:
        """Counts of what the run did with delays."""
        return {f"delay-{name}": self.counts[name] for name in RARE}

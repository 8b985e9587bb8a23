"""Messages of a run that wait for a time: a naive model of what waits, fed by the confirmed log.

The model reads records of the timer topic, rows ``T`` and rows ``U`` by itself. What must hold is
asked of `tests.sim.invariants.delays`, as for delay levels. Some messages are taken back, most of
them about when they are due; what each was told is kept.

Not here: who sends them (`tests.sim.users.clients`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING

import msgpack

from tests.sim.judge.contents import TIMERS, Stored, is_copy
from tests.sim.machines.group_port import Connection
from tests.sim.profiles.delays import LATE_MS, DelayBatch, Delays, Waiting
from twinlog.errors import TooLate, TwinlogError
from twinlog.wire.frames import Frame, Type

if TYPE_CHECKING:
    from tests.sim.judge.ledger import Batch
    from tests.sim.world import World

_STAMP, _BODY = 56, 88
_DELAY = re.compile(rb"TIMER_DELAY_MS\x01(\d+)\x02")
_ORIGIN = re.compile(rb"TL_ORIGIN\x01(\d+)\x02")
_AT = re.compile(rb"TIMER_DELIVER_MS\x01(\d+)\x02")
CANCEL_SHARE = 0.3
RARE = ("timed", "rescued", "copies", "marks", "cancelled", "late")

Event = tuple[int, str, tuple[int, ...]]
"""(log offset after it, enter, move, T or U, numbers)."""


class Model:
    """What waits, as the rules say and not as production does it."""

    def __init__(self) -> None:
        self.waiting: dict[int, int] = {}
        self.places: dict[int, int] = {}
        self.progress = (0, -1)
        self.taken = 0
        """Events that it has seen."""

    def take(self, event: Event) -> list[int]:
        """Apply an event; return the log offsets of what a row has passed."""
        self.taken += 1
        _, kind, numbers = event
        if kind == "enter":
            due, offset = numbers
            self.waiting[offset] = max(due, self.progress[0])
            self.places[offset] = offset
        elif kind == "move":
            due, offset, place = numbers
            if self.waiting.get(offset) == due:
                self.places[offset] = place
        elif kind == "U":
            due, offset = numbers
            if self.waiting.get(offset) == due:
                del self.waiting[offset]
        elif numbers[:2] > self.progress:
            due, last, seen = numbers
            below = [one for one, at in self.waiting.items() if (at, one) <= (due, last)]
            self.progress = due, last
            self.waiting.update(dict.fromkeys(below, due))
            passed = [one for one in below if one < seen]
            for one in passed:
                del self.waiting[one]
            return passed
        return []


class Timed(Delays):
    """The account of a run; see the module.

    Attributes:
        events: Everything that changes what waits, in log order.
        records: Every record that waited, by its log offset.
        told: What was said of messages that were to be taken back, by name.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.events: list[Event] = []
        self.records: dict[int, Waiting] = {}
        self.told: dict[bytes, str] = {}
        self.copied: set[bytes] = set()
        self._model = Model()
        self._rng = Random(f"cancels {world.plan.seed}")

    def enter(
        self,
        batch: Batch,
        found: Iterable[tuple[str, int, Stored]],
        others: Iterable[tuple[str, Stored, bytes]],
    ) -> None:
        """Take a confirmed batch."""
        said = DelayBatch()
        for topic, stored, data in others:
            end = stored.log_offset + stored.size
            if topic == "rmq_sys_TWINLOG_GROUP":
                length = int.from_bytes(data[_BODY - 4 : _BODY], "big")
                for row in msgpack.unpackb(data[_BODY : _BODY + length], strict_map_key=False)[1:]:
                    if row[0] in ("T", "U"):
                        passed = self._take((end, row[0], tuple(row[1:])))
                        said.passed += [self.records[one] for one in passed]
                        self.counts["marks"] += row[0] == "T"
            elif topic == TIMERS:
                due, origin = _AT.search(data), _ORIGIN.search(data)
                assert due is not None and origin is not None
                self._take((end, "move", (int(due[1]), int(origin[1]), stored.log_offset)))
                self.counts["rescued"] += 1
            elif is_copy(topic, data):
                stamp = int.from_bytes(data[_STAMP : _STAMP + 8], "big")
                said.copies.append((stored.name, stamp))
                self.copied.add(stored.name)
                self.counts["copies"] += 1
        if said.passed or said.copies:
            for one in self.world.court.delay_batch:
                one.delay_batch(said)
        for topic, _, stored in found:
            if topic == TIMERS:
                self._wait(stored)

    def _take(self, event: Event) -> list[int]:
        self.events.append(event)
        return self._model.take(event)

    def _wait(self, stored: Stored) -> None:
        at, end = stored.log_offset, stored.log_offset + stored.size
        data = bytes(self.world.contents.raw[at:end])
        delay, moment = _DELAY.search(data), _AT.search(data)
        assert moment is not None
        stamp = int.from_bytes(data[_STAMP : _STAMP + 8], "big")
        due = stamp + int(delay[1]) if delay is not None else int(moment[1])
        one = self.records[at] = Waiting(stored.name, due, at)
        self._take((end, "enter", (due, at)))
        self.counts["timed"] += 1
        if self._rng.random() < CANCEL_SHARE:
            wait = max(0.0, (due - self.world.wall_ms()) / 1000)
            wait = wait * self._rng.random() if self._rng.random() < 0.5 else wait - 0.004
            self.world.schedule.after(max(0.0, wait), self._cancel, one)

    def _cancel(self, one: Waiting) -> None:
        """Ask the newest master to take a message back; asked again until it is said."""
        master = self.world.newest_master()
        if one.name in self.told or self.world.healed_after >= 0:
            return
        self.world.schedule.after(0.5, self._cancel, one)
        if master is None or master.groups is None:
            return

        def done(outcome: Mapping[str, object] | TwinlogError, payload: object = ()) -> None:
            if isinstance(outcome, TooLate):
                self.told[one.name] = "late"
                self.counts["late"] += 1
            elif not isinstance(outcome, TwinlogError):
                self.told[one.name] = "cancelled"
                self.counts["cancelled"] += 1
                for each in self.world.court.cancelled:
                    each.cancelled(one.name)

        fields = {"log_offset": one.log_offset, "due_ms": one.due_ms}
        master.groups.order(Frame(Type.CANCEL, fields=fields), Connection(), done)

    def left(self) -> Iterable[tuple[int, Waiting]]:
        """Yield what still waits; the level is 0."""
        for offset in self._model.waiting:
            yield 0, self.records[offset]._replace(log_offset=self._model.places[offset])

    def unfinished(self) -> str:
        """Say what is due and not delivered, or refused as late and never came."""
        master = self.world.newest_master()
        if master is None or (master.groups is not None and master.groups.clock_stands()):
            return ""
        wall_ms = master.clock.wall_ms()
        for _, one in self.left():
            if one.due_ms <= wall_ms - LATE_MS:
                return f"{one.name!r} was due at {one.due_ms}, it is {wall_ms}"
        for name, said in self.told.items():
            if said == "late" and name not in self.copied:
                return f"{name!r} could not be taken back, and never came"
        return ""

    def advance(self, model: Model, end: int) -> Model:
        """Bring a node's model to a log offset; return it, or a new one where it was beyond."""
        if model.taken and self.events[model.taken - 1][0] > end:
            model = Model()
        while model.taken < len(self.events) and self.events[model.taken][0] <= end:
            model.take(self.events[model.taken])
        return model

    def facts(self) -> dict[str, int]:
        """Counts of what the run did with messages at a time."""
        return {f"delay-{name}": self.counts[name] for name in RARE}

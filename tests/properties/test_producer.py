"""Whatever happens between producer and master, each record is stored once and in order.

A model of the master keeps the last five sections of every line, as the store does. Random faults:
answers lost, requests lost, connections broken, refusals for now, sections refused for good, other
masters, deadlines. At the end:

* what a producer was told is stored is stored exactly once;
* what it was told is not stored is not;
* within a queue everything stored is in the order in which it was added.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from twinlog.format.record import decode
from twinlog.producer.core import ProducerCore, Request
from twinlog.producer.new_message import NewMessage
from twinlog.producer.section import Section, State
from twinlog.producer.settings import ProducerSettings, Target
from twinlog.wire import frames
from twinlog.wire.frames import Frame, Type

STORED, DUPLICATE, REFUSED, UNKNOWN = range(4)


@dataclass
class Master:
    """The rule of the store: next, one of the last five, or out of order."""

    lines: dict[int, tuple[int, int, dict[int, int]]] = field(default_factory=dict)
    stored: dict[int, list[bytes]] = field(default_factory=dict)

    def append(self, request: Request, refuse: frozenset[bytes]) -> list[list[object]]:
        rows = request.fields["sections"]
        assert isinstance(rows, list)
        return [
            self.one(row, bytes(piece), refuse)
            for row, piece in zip(rows, request.pieces, strict=True)
        ]

    def one(self, row: list[int], data: bytes, refuse: frozenset[bytes]) -> list[object]:
        _, queue, count, length, producer, epoch, sequence = row
        bodies: list[bytes] = []
        at = 0
        while at < len(data):
            record = decode(data, at)
            if at == 0:
                mark = f"{producer:016x}.{epoch}.{sequence}.{count}"
                assert record.properties["TL_SEQ"] == mark
            bodies.append(record.body)
            at += record.size
        assert (len(bodies), at) == (count, length)
        known, following, done = self.lines.get(queue, (0, 0, {}))
        if epoch > known:
            known, following, done = epoch, 0, {}
        if refuse & set(bodies):
            return [REFUSED, -1, -1, 0, "record-refused", "bad", 0]
        if epoch == known and sequence in done:
            return [DUPLICATE, done[sequence], 0, 0, "", "", -1]
        if epoch < known or sequence != following:
            return [REFUSED, -1, -1, 0, "out-of-sequence", "gap", -1]
        stored = self.stored.setdefault(queue, [])
        done = dict([*done.items(), (sequence, len(stored))][-5:])
        self.lines[queue] = (known, following + count, done)
        stored.extend(bodies)
        return [STORED, done[sequence], 0, 0, "", "", -1]


class World:
    """One producer, one master, and a clock."""

    def __init__(self, queues: int, *, timeout: float) -> None:
        self.now = 100.0
        self.master = Master()
        self.waiting: list[Request] = []
        self.sections: dict[int, Section] = {}
        self.bodies: dict[int, list[bytes]] = {}
        self.refuse: frozenset[bytes] = frozenset()
        self.core = ProducerCore(
            Target("t", queues, 4, 77, 1 << 20, 1 << 24),
            ProducerSettings(batch=300, linger=0.01, timeout=timeout),
            random=lambda: 1.0,
        )

    def add(self, number: int, queue: int | None) -> None:
        body = b"%06d" % number
        section = self.core.add(body, NewMessage(queue=queue), self.now, int(self.now * 1000))
        self.sections[id(section)] = section
        self.bodies.setdefault(id(section), []).append(body)

    def send(self) -> None:
        self.core.unrouted = False
        while request := self.core.next_request(self.now):
            copied = [bytes(piece) for piece in request.pieces]
            kept = Request(request.number, request.fields, list(copied), request.deadline)
            self.waiting.append(kept)

    def answer(self, request: Request, fields: frames.Frame) -> None:
        self.core.on_answer(request.number, fields, self.now)

    def good(self, results: list[list[object]]) -> Frame:
        fields: dict[str, object] = {"results": results, "confirmed_by": [], "epoch": 1}
        return Frame(Type.APPEND, frames.ANSWER, fields=fields)

    def refusal(self, code: str, *, retryable: bool) -> Frame:
        fields: dict[str, object] = {"code": code, "text": "no", "hint": None}
        return Frame(
            Type.APPEND, frames.ANSWER | frames.ERROR, fields={**fields, "retryable": retryable}
        )

    def serve(self, fate: str) -> None:
        """The oldest request meets its fate; the master takes requests in order."""
        if not self.waiting:
            return
        request = self.waiting.pop(0)
        match fate:
            case "busy" | "not-master":
                self.answer(request, self.refusal(fate, retryable=True))
            case "lost":
                self.waiting.clear()
                self.core.on_lost(self.now)
            case "stored-lost":
                self.master.append(request, self.refuse)
                self.waiting.clear()
                self.core.on_lost(self.now)
            case "unknown":
                results = self.master.append(request, self.refuse)
                rows = [[UNKNOWN, -1, -1, 0, "", "", -1] for _ in results]
                self.answer(request, self.good(rows))
            case "unknown-not-stored":
                self.answer(request, self.refusal("unknown", retryable=False))
            case _:
                self.answer(request, self.good(self.master.append(request, self.refuse)))

    def finish(self) -> None:
        """From now on everything works."""
        self.core.close_all(self.now)
        for _ in range(200):
            self.core.expire(self.now)
            self.send()
            while self.waiting:
                self.serve("ok")
            if self.core.idle:
                return
            self.now += 0.5
        raise AssertionError("the producer does not come to an end")

    def check(self) -> None:
        for section in self.sections.values():
            assert section.done, section.state
            stored = self.master.stored.get(section.queue, [])
            for body in self.bodies[id(section)]:
                times = stored.count(body)
                wanted = {State.STORED: (1,), State.REFUSED: (0,), State.UNKNOWN: (0, 1)}
                assert times in wanted[section.state], (body, section.state, times)
        for stored in self.master.stored.values():
            assert stored == sorted(stored)
        done = self.core.statistics
        assert done.acknowledged + done.refused + done.unknown == done.records


FATES = ["ok"] * 6 + ["busy", "not-master", "lost", "stored-lost", "unknown"]
FATES += ["unknown-not-stored"]
STEPS = ["add"] * 10 + ["serve"] * 8 + ["send"] * 4 + ["close"] * 3 + ["wait", "bad"]


def walk(seed: int, timeout: float) -> World:
    """One random life of a producer, ended by a time in which everything works."""
    chance = random.Random(seed)
    world = World(2, timeout=timeout)
    waits = [0.02, 0.3, 3.0] if chance.random() < 0.5 else [0.02, 0.3]
    for number in range(chance.choice([20, 60, 150])):
        match chance.choice(STEPS):
            case "add":
                world.add(number, chance.choice([None, 0, 0, 1]))
            case "bad":
                world.refuse |= {b"%06d" % number}
                world.add(number, 0)
            case "serve":
                world.send()
                world.serve(chance.choice(FATES))
            case "send":
                world.send()
            case "close":
                world.core.close_all(world.now)
            case _:
                world.now += chance.choice(waits)
                world.core.expire(world.now)
    world.finish()
    world.check()
    return world


@pytest.mark.parametrize("timeout", [2.0, 1000.0])
def test_each_record_once_and_in_order(timeout: float) -> None:
    """The three promises of the module's text hold for every order of faults."""
    total = 0
    for seed in range(400):
        try:
            world = walk(seed, timeout)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        total += world.core.statistics.acknowledged
        for section in world.sections.values() if timeout == 1000.0 else ():
            bad = bool(world.refuse & set(world.bodies[id(section)]))
            assert section.state is (State.REFUSED if bad else State.STORED), seed
    assert total > 5000, "the walks must send something"

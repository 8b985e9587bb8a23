"""Producers and readers: what users do while everything breaks, and the history they keep.

A producer is idempotent: it numbers its sections per queue, keeps at most five unanswered, resends
them in order with the same numbers until it has an answer, and takes silence for what it is. Its
history says of each section whether any attempt may have been stored, and whether it was told that
it is. The first is what may be found in the log, the second is what must be found.

A producer with a weaker acknowledgement may learn at a failover that a section it was told about
is gone; it then begins a new producer epoch. With ``confirmed`` that is a violation.

A reader asks any node for any place of any queue and compares with the confirmed log.

Not here: how requests travel (`tests.sim.machines.network`), what is checked
(`tests.sim.invariants`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage.state.sections import Section
from tests.sim.judge.contents import (
    BATCH_TOPIC,
    BRIEF_TOPIC,
    FIRST_TOPIC,
    LIGHTS,
    SCHEDULE,
    TIMERS,
    key_of,
)
from tests.sim.judge.ledger import Violation
from tests.sim.profiles.delays import DELAYS_MS
from tests.sim.profiles.deletions import BRIEF_QUEUES
from twinlog.format.inner_batches import InnerEncoder
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.format.waiting.delay_levels import waiting_text
from twinlog.format.waiting.timers import due_text, real_text
from twinlog.producer.new_message import NewMessage, light_text

if TYPE_CHECKING:
    from storage import SectionResult
    from tests.sim.world import World

WINDOW = 5  # open sections per producer and queue, the protocol's limit
_ATTEMPT = 2.5  # seconds until a client takes silence for an unknown outcome
_BACKOFF = 0.3  # seconds before a refused section is sent again
FIRST_SEQUENCE = 0
INSIDE_MAX = 4
"""Most messages in one record of a batch topic."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """One section and its history.

    Attributes:
        may_exist: Some attempt was sent and not definitely refused.
        promised: The client was told that it is stored, under its acknowledge mode.
        messages: How many messages each record holds.
        begun, ended: When it was first sent, and when its outcome was known, seconds.
        offset, heard_epoch: What the answer said.
    """

    line: Line
    epoch: int
    sequence: int
    count: int
    data: bytes
    attempts: int = 0
    refused: int = 0
    promised: bool = False
    messages: list[int] = field(default_factory=list)
    begun: float = 0.0
    ended: float | None = None
    offset: int | None = None
    heard_epoch: int = 0

    @property
    def may_exist(self) -> bool:
        """True unless every attempt so far was definitely refused."""
        return self.attempts > self.refused


@dataclass(slots=True, eq=False)
class Line:
    """One producer's way into one queue."""

    producer: Producer
    topic: str
    queue: int
    epoch: int = 0
    next_sequence: int = FIRST_SEQUENCE
    open: deque[Outgoing] = field(default_factory=deque)
    busy: bool = False
    turn: int = 0


class Producer:
    """One idempotent producer.

    Attributes:
        sent: Every section by (topic, queue, epoch, first sequence).
    """

    def __init__(self, world: World, number: int, acknowledge: str) -> None:
        self.world = world
        self.number = number
        self.id = 0x1000_0000_0000 + number
        self.name = b"p%d" % number
        self.acknowledge = acknowledge
        self.lines: dict[tuple[str, int], Line] = {}
        self.sent: dict[tuple[str, int, int, int], Outgoing] = {}
        self.leader = ""
        self.epoch = 0
        self.active = True

    def start(self) -> None:
        """Begin to send."""
        self.world.schedule.after(self.world.schedule.rng.random(), self._turn)

    def _turn(self) -> None:
        if not self.active:
            return
        world = self.world
        rng = world.schedule.rng
        world.schedule.after(
            world.plan.pause_between_sends * (0.2 + 1.6 * rng.random()), self._turn
        )
        if world.plan.delayed and rng.random() < world.plan.delayed:
            topic, queue = SCHEDULE, rng.randrange(len(DELAYS_MS))
            if world.plan.timed:
                topic, queue = TIMERS, 0
        elif BRIEF_TOPIC in world.topics_apart and rng.random() < 0.3:
            topic, queue = BRIEF_TOPIC, rng.randrange(BRIEF_QUEUES)
        else:
            topic = rng.choice(world.topics)
            queue = rng.randrange(world.topic_queues[topic])
        line = self.lines.get((topic, queue))
        if line is None:
            # Copies go to topics whose own records must not have the same names.
            epoch = 1_000 * (queue + 1) if topic in (SCHEDULE, TIMERS) else 0
            line = self.lines[topic, queue] = Line(self, topic, queue, epoch)
        if len(line.open) < WINDOW:
            self._make(line)
        if not line.busy:
            self._send(line)

    def _make(self, line: Line) -> None:
        world, rng = self.world, self.world.schedule.rng
        plan = world.plan
        count = rng.randint(1, plan.records_max)
        encoder = RecordEncoder(line.topic, line.queue)
        born = self.world.wall_ms()
        if line.topic == BATCH_TOPIC:
            data, messages = self._together(line, count, encoder, born)
            self._keep(line, count, data, messages)
            return
        for index in range(count):
            name = b"%s|%d|%d|%d|" % (self.name, line.epoch, line.next_sequence, index)
            properties = b""
            if line.topic in (SCHEDULE, TIMERS):
                real = rng.randrange(world.topic_queues[FIRST_TOPIC])
                properties = waiting_text(line.queue + 1, FIRST_TOPIC, real)
                if line.topic == TIMERS:
                    after = rng.choice((0, rng.randrange(300), rng.randrange(8_000)))
                    delay = after if rng.random() < 0.5 else None
                    properties = due_text(born, delay_ms=delay, at_ms=born - 200 + after)
                    properties += real_text(FIRST_TOPIC, real)
                if index == 0:
                    label = f"{self.id:016x}.{line.epoch}.{line.next_sequence}.{count}"
                    properties += encode_properties({"TL_SEQ": label})
            elif index == 0:
                label = f"{self.id:016x}.{line.epoch}.{line.next_sequence}.{count}"
                keys = f"{key_of(line.next_sequence)} {self.id:x}.{line.next_sequence}"
                properties = encode_properties({"TL_SEQ": label, "KEYS": keys})
            if (
                plan.lights
                and line.topic not in (SCHEDULE, TIMERS)
                and (names := rng.sample(LIGHTS, rng.randint(0, len(LIGHTS))))
            ):
                properties += light_text(names)
            body = name + b"x" * rng.randrange(plan.body_max)
            encoder.add(body, properties=properties, born_timestamp=born)
        self._keep(line, count, bytes(encoder.take()), [1] * count)

    def _together(
        self, line: Line, count: int, encoder: RecordEncoder, born: int
    ) -> tuple[bytes, list[int]]:
        """Return records of a batch topic: each has a tag of its own and so its own messages."""
        rng, plan = self.world.schedule.rng, self.world.plan
        inner, messages = InnerEncoder(encoder, 1 << 20), list[int]()
        for index in range(count):
            name = b"%s|%d|%d|%d|" % (self.name, line.epoch, line.next_sequence, index)
            number = rng.randint(1, INSIDE_MAX)
            messages.append(number)
            for inside in range(number):
                key, tag = None, f"t{index}"
                if index == inside == 0:
                    key = f"{key_of(line.next_sequence)} {self.id:x}.{line.next_sequence}"
                body = (name if not inside else b"") + b"x" * rng.randrange(plan.body_max // number)
                text = NewMessage(key, tag).text()
                inner.add(body, text, sys_flag=0, born_timestamp=born, key=key, tag=tag)
        label = f"{self.id:016x}.{line.epoch}.{line.next_sequence}.{count}"
        data, records, *_ = inner.take(encode_properties({"TL_SEQ": label}))
        assert records == count
        return bytes(data), messages

    def _keep(self, line: Line, count: int, data: bytes, messages: list[int]) -> None:
        outgoing = Outgoing(line, line.epoch, line.next_sequence, count, data, messages=messages)
        self.sent[line.topic, line.queue, line.epoch, line.next_sequence] = outgoing
        line.next_sequence += count
        line.open.append(outgoing)

    def _send(self, line: Line) -> None:
        """Send all open sections of a line, in order, in one request."""
        world = self.world
        sections = list(line.open)
        line.busy = bool(sections)
        if not sections:
            return
        line.turn += 1
        for section in sections:
            section.begun = section.begun if section.attempts else world.schedule.now
            section.attempts += 1
        target = self.leader or world.schedule.rng.choice(world.plan.nodes)
        request = Request(self, line, line.turn, sections, target)
        world.schedule.after(_ATTEMPT, self._silence, request)
        world.network.post("clients", target, world.nodes[target].client_append, request)

    def _silence(self, request: Request) -> None:
        if request.answered or request.line.turn != request.turn:
            return
        self.leader = ""
        self._send(request.line)

    def answer(
        self, request: Request, results: list[SectionResult], epoch: int, leader: str
    ) -> None:
        """Results of one request arrived; late ones settle nothing.

        An answer of a smaller epoch than one seen before comes from a master that does not know
        that it is deposed: what it stored is stored, what it refuses says nothing.
        """
        line = request.line
        if request.answered or line.turn != request.turn:
            return
        request.answered = True
        stale = epoch < self.epoch
        self.epoch = max(self.epoch, epoch)
        again, out_of_order = False, False
        for section, result in zip(request.sections, results, strict=True):
            if result.outcome in (0, 1):
                if not section.promised:
                    section.ended, section.heard_epoch = self.world.schedule.now, epoch
                    section.offset = result.queue_offset if result.queue_offset >= 0 else None
                section.promised = True
                if section in line.open:
                    line.open.remove(section)
            elif result.outcome == 2:
                section.refused += 1
                again = True
                first = section is request.sections[0]
                lost = result.code in ("out-of-sequence", "unknown-producer")
                out_of_order = out_of_order or (first and lost)
                if result.code == "not-master":
                    self.leader = leader if leader != request.target else ""
            else:
                again = True
        if stale:
            self.leader = ""
        if out_of_order and not stale and line.open and line.open[0] is request.sections[0]:
            self._sequence_lost(line)
        if again:
            delay = _BACKOFF * (0.5 + self.world.schedule.rng.random())
            self.world.schedule.after(delay, self._resend, line, line.turn)
        else:
            line.busy = False
            self.leader = self.leader or request.target
            if line.open:
                self._send(line)

    def _resend(self, line: Line, turn: int) -> None:
        if line.turn == turn:
            self._send(line)

    def _sequence_lost(self, line: Line) -> None:
        """The master lacks a section before our first unanswered one."""
        first = line.open[0]
        if self.acknowledge == "confirmed":
            raise Violation(
                "ConfirmedStays",
                f"{self.name!r} {line.topic}/{line.queue}: {first.sequence} is out of sequence"
                " although everything before it was confirmed",
            )
        line.epoch += 1
        line.next_sequence = FIRST_SEQUENCE
        line.open.clear()


class Request:
    """One append request under way."""

    __slots__ = ("answered", "line", "producer", "sections", "target", "turn")

    def __init__(
        self, producer: Producer, line: Line, turn: int, sections: list[Outgoing], target: str
    ) -> None:
        self.producer = producer
        self.line = line
        self.turn = turn
        self.sections = sections
        self.target = target
        self.answered = False

    def store_sections(self) -> list[Section]:
        """The sections as the node's client server hands them to the driver."""
        line = self.line
        return [
            Section(
                line.topic,
                line.queue,
                section.count,
                section.data,
                self.producer.id,
                section.epoch,
                section.sequence,
            )
            for section in self.sections
        ]

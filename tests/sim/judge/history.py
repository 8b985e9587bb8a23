"""What clients of a run did and heard, for the checker that knows nothing of logs (`cli.history`).

Not here: the checks themselves (`cli.history.checker`); what the judge holds, who sees the log
(`tests.sim.invariants`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cli.history.operations import Operation
from tests.sim.judge.contents import BRIEF_TOPIC, FIRST_TOPIC, LIGHTS, NO_PRODUCER, TIMERS

if TYPE_CHECKING:
    from tests.sim.judge.contents import Stored
    from tests.sim.machines.node import SimNode
    from tests.sim.users.clients import Outgoing, Producer
    from tests.sim.world import World

_EPOCH_STEP = 1_000_000  # a producer's later epoch begins at sequence 0 again


class History:
    """Reads and ends as they happen; sends are read off the producers' own notes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._heard: list[Operation] = []

    def read(self, node: SimNode, topic: str, queue: int, at: int, rows: list[Stored]) -> None:
        """Any node served these messages, from queue offset ``at`` on."""
        if topic in LIGHTS or topic.startswith(NO_PRODUCER) or not rows:
            return
        names = tuple(
            _name(row.name.split(b"|", 4)[:4], at + number - row.queue_offset, row.messages)
            for number, row in enumerate(rows)
        )
        now = self._world.schedule.now
        epoch = node.driver.core.context.promise.epoch if node.driver is not None else 0
        self._add("read", node.name, topic, queue, now, now, records=names, start=at, epoch=epoch)

    def ends(self, node: str, topic: str, queue: int, begin: float, value: int, epoch: int) -> None:
        """The master of ``epoch`` said where a queue ends."""
        if topic not in LIGHTS:
            now = self._world.schedule.now
            self._add("end", node, topic, queue, begin, now, value=value, settled=True, epoch=epoch)

    def _add(self, op: str, client: str, topic: str, queue: int, begin: float, end: float,
             **facts: object) -> None:  # fmt: skip
        number = f"{op}{len(self._heard)}"
        self._heard.append(
            Operation(number, client, op, topic, queue, begin, end, "ok", **facts)  # type: ignore[arg-type]
        )

    def operations(self) -> list[Operation]:
        """Everything so far; not of topics that have copies, nor of one that is deleted."""
        every = [*self._heard, *(one for p in self._world.producers for one in _sends(p))]
        left_out = {FIRST_TOPIC, TIMERS} if self._world.plan.delayed else set[str]()
        return [one for one in every if one.topic not in left_out | {BRIEF_TOPIC}]


def _sends(producer: Producer) -> Iterator[Operation]:
    for (topic, queue, epoch, sequence), section in producer.sent.items():
        if not section.attempts:
            continue
        name = producer.name.decode()
        outcome = "ok" if section.promised else "unknown" if section.may_exist else "fail"
        yield Operation(
            f"{name}.{topic}.{queue}.{epoch}.{sequence}", name, "send", topic, queue,
            section.begun, section.ended, outcome, tuple(_names(producer, section)),
            section.offset, producer.acknowledge, name, epoch * _EPOCH_STEP + sequence,
            epoch=section.heard_epoch,
        )  # fmt: skip


def _names(producer: Producer, section: Outgoing) -> Iterator[str]:
    for index, messages in enumerate(section.messages):
        parts = [producer.name, *(b"%d" % n for n in (section.epoch, section.sequence, index))]
        for inside in range(messages):
            yield _name(parts, inside, messages)


def _name(parts: list[bytes], inside: int, messages: int) -> str:
    name = b"|".join(parts).decode()
    return f"{name}#{inside}" if messages > 1 else name

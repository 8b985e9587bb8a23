"""What clients must never see.

Not here: a group (`tests.sim.invariants.group`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.history.checker import check
from tests.sim.invariants.invariant import Invariant

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode


class QueueFollowsLog(Invariant):
    """Queue entries are those of the confirmed log, dense, and never beyond confirm."""

    rules = "R3, R49"

    def sample(self, node: SimNode) -> None:
        self.world.readers.compare_queues(node)

    def finished(self) -> None:
        for node in self.world.nodes.values():
            self.world.readers.compare_queues(node, complete=True)


class KeysFindRecords(Invariant):
    """A query for a key finds the confirmed records with it, newest first, and nothing else."""

    rules = "R3, R50"

    def sample(self, node: SimNode) -> None:
        self.world.readers.compare_keys(node)

    def finished(self) -> None:
        for node in self.world.nodes.values():
            self.world.readers.compare_keys(node)


class AckedIsFound(Invariant):
    """What a producer was told is confirmed is in the confirmed log, once, in every store."""

    rules = "R46, R47"

    def finished(self) -> None:
        places = self.world.contents.places
        for producer in self.world.producers:
            if producer.acknowledge != "confirmed":
                continue
            for (topic, queue, epoch, sequence), section in producer.sent.items():
                if not section.promised:
                    continue
                line = producer.name + b"%s/%d" % (topic.encode(), queue)
                for number in range(section.count):
                    if (line, epoch, sequence + number) not in places:
                        self.fail(f"{line!r} {epoch}.{sequence + number} acknowledged and gone")


class ReaderFindsAcknowledged(Invariant):
    """Whoever begins to read after a record or topic was acknowledged finds it; see `Askers`.

    And in a healed world there is an answer.
    """

    rules = "R53"

    def asked(self, wrong: str) -> None:
        self.fail(wrong)

    def finished(self) -> None:
        if not self.world.rotten and (lacking := self.world.askers.ask_all()):
            self.fail(f"nobody answers in a healed world: {lacking}")


class OneLogExplainsAll(Invariant):
    """One log explains what all clients saw, says a checker that knows nothing of logs."""

    rules = "R46, R47, R52, R53"

    def finished(self) -> None:
        verdict = check(self.world.history.operations())
        for one in verdict.findings:
            self.fail(f"{one.kind}: {one.text} ({', '.join(one.operations)})")

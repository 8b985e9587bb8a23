"""A topic that is deleted and made again all the time, and what the log says of its lives.

Deletions and creations are read from the confirmed control records with the judge's own parser. A
record that lies between a deletion and the next creation belongs to no topic: the master must not
have taken it. A record below a deletion must not be read where the deletion is confirmed.

Not here: the reads that are judged (`tests.sim.users.readers`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING

import msgpack

from storage.state.controls import DeleteTopic
from tests.sim.invariants.invariant import Invariant
from tests.sim.judge.contents import BRIEF_TOPIC, Stored
from tests.sim.judge.ledger import Shadow, Violation

if TYPE_CHECKING:
    from storage import SectionResult
    from tests.sim.machines.node import SimNode
    from tests.sim.world import World

BRIEF_QUEUES = 2
_BODY = 88
"""Where the body of a record of an IPv4 cluster begins; its length is before it."""
_DEADLINE = 5.0  # seconds an order may take


class Deletions:
    """See the module.

    Attributes:
        ends: Log offsets after the records that deleted the topic.
        lives: Whether it exists by the confirmed log.
        deleting: Whether it is to be deleted at all: not in a healed world.
        counts: What happened.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.ends: list[int] = []
        self.lives = False
        self.deleting = True
        self.counts: Counter[str] = Counter()
        self._rng = Random(f"deletions {world.plan.seed}")

    def start(self) -> None:
        """Begin to give orders."""
        if self.world.plan.deletions:
            self._turn()

    def _turn(self) -> None:
        world = self.world
        world.schedule.after(self._rng.uniform(0.1, 1.0), self._turn)
        master = world.newest_master()
        if master is None or master.driver is None or master.store is None:
            return
        if BRIEF_TOPIC not in master.store.reads.topics():
            master.order_topic(BRIEF_TOPIC, BRIEF_QUEUES, _DEADLINE)
        elif self.deleting and self._rng.random() < world.plan.deletions:
            master.tell(self._delete, master)
            if self._rng.random() < 0.5:  # the next one is in the same turns
                master.order_topic(BRIEF_TOPIC, BRIEF_QUEUES, _DEADLINE)

    def _delete(self, now: float, master: SimNode) -> None:
        if master.driver is None:
            return

        def reply(results: list[SectionResult], how: object) -> None:
            self.world.trace("oper", "deleted", f"{results[0].outcome.name} {results[0].code}")

        change = DeleteTopic(BRIEF_TOPIC, master.clock.wall_ms())
        master.driver.control(now, change, deadline=now + _DEADLINE, reply=reply)

    def enter(
        self,
        found: Iterable[tuple[str, int, Stored]],
        others: Iterable[tuple[str, Stored, bytes]],
    ) -> None:
        """Take a confirmed batch.

        Raises:
            Violation: A record is of no topic.
        """
        for topic, stored, data in others:
            if topic != "rmq_sys_TWINLOG_META":
                continue
            length = int.from_bytes(data[_BODY - 4 : _BODY], "big")
            fields = msgpack.unpackb(data[_BODY : _BODY + length], strict_map_key=False)
            if fields.get("name") != BRIEF_TOPIC:
                continue
            self.lives = fields["kind"] == "create-topic"
            self.counts["created" if self.lives else "deleted"] += 1
            if not self.lives:
                self.ends.append(stored.log_offset + stored.size)
        for topic, queue, stored in found:
            if topic == BRIEF_TOPIC:
                self.counts["records"] += 1
                if not self.lives:
                    what = f"{topic}/{queue}: the record at {stored.log_offset} is of no topic"
                    raise Violation("DeletedStaysDeleted", what)

    def since(self, topic: str, confirm: int) -> int:
        """Return the log offset below which nothing of a topic is read where this is confirmed."""
        if topic != BRIEF_TOPIC:
            return 0
        return max((end for end in self.ends if end <= confirm), default=0)

    def missing(self) -> str:
        """Say that the topic is not there at the end."""
        return "" if self.lives or not self.world.plan.deletions else f"{BRIEF_TOPIC} is not there"


class DeletedStaysDeleted(Invariant):
    """No record from before a deletion is read under the name of a topic made since.

    And none is taken before the new one is confirmed.
    """

    rules = "R75"

    def confirmed(self, node: SimNode, shadow: Shadow, confirm: int) -> None:
        # The moment at which the new topic is known and its queues are not built yet.
        sound = node.name not in self.world.rotting and node.name not in self.world.rotten
        if not self.world.deletions.ends or not sound or node.store is None:
            return
        if BRIEF_TOPIC in node.store.reads.topics():
            for queue in range(BRIEF_QUEUES):
                self.world.readers.read(node, BRIEF_TOPIC, queue, 0)

    def served(self, node: SimNode, topic: str, row: Stored) -> None:
        """A node has given this record to a reader of the topic."""
        assert node.store is not None
        since = self.world.deletions.since(topic, node.store.confirm)
        if row.log_offset < since:
            self.fail(f"{node.name} serves {topic} {row.log_offset}, deleted below {since}")

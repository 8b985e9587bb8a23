"""Readers: any node, any queue, any place; and the judge's comparison of whole queues.

What a read returns must be the confirmed log's bytes, below the node's confirm offset. Where the
node says that there is nothing, the confirmed log must agree or the node must be behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.errors import DiskFull
from storage.key_index.search import RESULTS_MAX, KeyQuery
from tests.sim.judge.contents import BRIEF_TOPIC, LIGHTS
from tests.sim.judge.ledger import Violation
from tests.sim.profiles.deletions import BRIEF_QUEUES
from tests.stores.workbench import find_key
from twinlog.errors import Busy, CorruptionError, NotYetConfirmed, UnknownTopic

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode
    from tests.sim.world import World

_READ_EVERY = 0.5  # seconds between two reads of one reader
_READ_BYTES = 8192


class Readers:
    """Random reads from random nodes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.reads = 0
        self.records = 0

    def start(self) -> None:
        """Begin to read."""
        self.world.schedule.after(1.0, self._turn)

    def _turn(self) -> None:
        world = self.world
        rng = world.schedule.rng
        world.schedule.after(_READ_EVERY * (0.5 + rng.random()), self._turn)
        node = world.nodes[rng.choice(world.plan.nodes)]
        topic = rng.choice(world.topics)
        queue = rng.randrange(world.topic_queues[topic])
        if BRIEF_TOPIC in world.topics_apart and rng.random() < 0.5:
            topic, queue = BRIEF_TOPIC, rng.randrange(BRIEF_QUEUES)
        if not node.alive or node.paused or node.store is None or node.name in world.rotting:
            return
        if topic not in node.store.reads.topics():
            return
        start, end = self._range(node, topic, queue)
        if topic == BRIEF_TOPIC:
            start = 0
        self.read(node, topic, queue, rng.randint(start, end))

    def _range(self, node: SimNode, topic: str, queue: int) -> tuple[int, int]:
        """Where a queue begins and ends; to find out may read its files."""
        assert node.store is not None
        node.disk.faults.asleep = True
        try:
            return node.store.reads.queue_range(topic, queue)
        except NotYetConfirmed:
            return -1, -1  # made again, and not dispatched
        except UnknownTopic:
            if topic not in LIGHTS:
                raise
            return 0, 0  # it comes into being with its first record
        finally:
            node.disk.faults.asleep = False

    def read(self, node: SimNode, topic: str, queue: int, at: int, most: int = 16) -> int:
        """Read once; returns the queue offset after what came."""
        assert node.store is not None
        node.disk.faults.asleep = True
        try:
            result = node.store.reads.read(
                topic, queue, at, max_bytes=_READ_BYTES, max_records=most
            )
        except Busy:
            return at  # the log is being deleted to begin again; a reader asks again
        except CorruptionError:
            if node.name not in self.world.rotten:
                raise
            return at
        finally:
            node.disk.faults.asleep = False
        self.reads += 1
        rows = self.world.contents.queues.get((topic, queue), [])
        data = b"".join(bytes(piece) for piece in result.slices)
        after = result.next if result.count else at
        if after > len(rows):
            raise Violation(
                "ReadsConfirmed",
                f"{node.name} serves {topic}/{queue} {at}..{after}, confirmed {len(rows)}",
            )
        records = dict.fromkeys(rows[at:after])
        wanted = b"".join(
            bytes(self.world.contents.raw[row.log_offset : row.log_offset + row.size])
            for row in records
        )
        if data != wanted or result.count != len(records):
            raise Violation(
                "ReadsConfirmed", f"{node.name} serves other bytes for {topic}/{queue} {at}"
            )
        if records:
            last = rows[after - 1]
            if after != last.queue_offset + last.messages:
                raise Violation(
                    "ReadsConfirmed", f"{node.name} {topic}/{queue}: {after} is inside a record"
                )
            if last.log_offset + last.size > node.store.confirm:
                raise Violation(
                    "ReadsConfirmed", f"{node.name} serves {last.log_offset} above its confirm"
                )
        for row in records:
            for one in self.world.court.served:
                one.served(node, topic, row)
        self.records += result.count
        self.world.history.read(node, topic, queue, at, rows[at:after])
        return after

    def compare_keys(self, node: SimNode) -> None:
        """Look every key up: the newest confirmed records with it, and nothing else.

        Raises:
            Violation: A confirmed record is not found, or another is.
        """
        if not node.alive or node.store is None:
            return
        known, store = node.store.reads.topics(), node.store
        for (topic, key), rows in self.world.contents.keyed.items():
            if topic not in known:
                continue
            least = max(store.start, self.world.deletions.since(topic, store.confirm))
            kept = [row.log_offset for row in reversed(rows) if row.log_offset >= least]
            wanted = [offset for offset in kept if offset < store.confirm][:RESULTS_MAX]
            node.disk.faults.asleep = True
            try:
                answer = find_key(store, KeyQuery(topic, key, most=RESULTS_MAX))
            except DiskFull:
                return  # what is not entered yet has no room: refused, and no wrong answer
            except CorruptionError:
                if store.damage is None:
                    raise
                return  # the log was damaged on purpose, and the store has noticed
            finally:
                node.disk.faults.asleep = False
            found = [int.from_bytes(view[28:36], "big") for view in answer.slices]
            if found != wanted:
                raise Violation(
                    "KeysFindRecords", f"{node.name} {topic}#{key}: {found}, log has {wanted}"
                )
        if notes := store.reads.index_notes():
            raise Violation("KeysFindRecords", f"{node.name}: {notes[0]}")

    def compare_queues(self, node: SimNode, *, complete: bool = False) -> None:
        """Read every queue of a node, from where this process was read before.

        With ``complete`` from the start, and nothing may be missing.

        Raises:
            Violation: A queue differs from the confirmed log.
        """
        if not node.alive or node.store is None:
            return
        known = node.store.reads.topics()
        for (topic, queue), rows in self.world.contents.queues.items():
            if topic not in known and topic not in LIGHTS:
                if complete and topic in self.world.topics:
                    raise Violation("QueueFollowsLog", f"{node.name} does not know {topic}")
                continue
            start, end = self._range(node, topic, queue)
            deleted = self.world.deletions.since(topic, node.store.confirm)
            if end < 0 and node.store.dispatched < deleted:
                continue
            kept = max(node.store.start, deleted)
            gone = min(sum(1 for row in rows if row.log_offset < kept), end)
            below = sum(1 for row in rows if row.log_offset + row.size <= node.store.confirm)
            if start != gone or end > below or (complete and end != len(rows)):
                raise Violation(
                    "QueueFollowsLog",
                    f"{node.name} {topic}/{queue} is {start}..{end}, confirmed log has {below}"
                    f" of {len(rows)}",
                )
            checked = {} if complete else node.queues_checked
            at = max(checked.get((topic, queue), 0), start)
            checked[topic, queue] = end
            while at < end:
                after = self.read(node, topic, queue, at)
                if after == at:
                    raise Violation(
                        "QueueFollowsLog", f"{node.name} {topic}/{queue} {at} of {end} unreadable"
                    )
                at = after

"""The store against a list: whatever is appended, confirmed, cut, restarted, reads agree."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import settings as limits
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage import Outcome, ReadStatus, Store
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SLAVE,
    TOPIC,
    WHO,
    append,
    bodies,
    lead,
    master,
    open_store,
    run,
    section,
    settle,
    ship,
    token,
)
from twinlog.format.record import decode


@dataclass
class Sent:
    """One stored section of the model."""

    queue: int
    end: int
    bodies: list[bytes]


class LogModel(RuleBasedStateMachine):
    """A master, its list of sections, and a slave that copies it now and then."""

    @initialize()
    def begin(self) -> None:
        """One topic of four queues."""
        self.disk = FakeDisk(page_size=512)
        self.store: Store = master(self.disk)
        self.slave = open_store(FakeDisk(seed=5), who=type(WHO)("cluster", "g1", "n2"))
        self.slave.take_token(SLAVE)
        self.epoch = 1
        self.sent: list[Sent] = []
        self.next: dict[int, int] = {}
        self.mark = 0
        self.flush()

    @rule(queue=st.integers(0, 3), count=st.integers(1, 12), size=st.integers(10, 300))
    def append(self, queue: int, count: int, size: int) -> None:
        """A section of a producer, whose sequences the model counts."""
        self.mark += 1
        sequence = self.next.get(queue, 0)
        made = section(count, queue=queue, size=size, producer=7, sequence=sequence, mark=self.mark)
        result = append(self.store, made, epoch=self.epoch)[0]
        assert result.outcome is Outcome.STORED, result
        again = append(self.store, made, epoch=self.epoch)[0]
        assert (again.outcome, again.end) == (Outcome.DUPLICATE, result.end)
        data, at, found = bytes(made.data), 0, list[bytes]()
        while at < len(data):
            record = decode(data, at)
            found.append(record.body)
            at += record.size
        self.sent.append(Sent(queue, result.end, found))
        self.next[queue] = sequence + count
        assert result.queue_offset + count == sum(
            len(one.bodies) for one in self.sent if one.queue == queue
        )

    @rule(share=st.floats(0, 1))
    def confirm(self, share: float) -> None:
        """Some border between confirm and end."""
        wanted = int(self.store.confirm + share * (self.store.end - self.store.confirm))
        self.store.set_confirm(self.store.border_at_or_below(wanted))
        while self.store.dispatch(2000):
            pass

    @rule()
    def flush(self) -> None:
        """Everything, with a checkpoint and perhaps a snapshot."""
        run(self.store, self.store.jobs.flush_job(thorough=True))
        run(self.store, self.store.jobs.checkpoint_job())
        run(self.store, self.store.jobs.snapshot_job())
        run(self.store, self.store.jobs.prepare_job())
        self.flushed = self.store.flushed

    @rule()
    def replicate(self) -> None:
        """The slave catches up, cutting first what the master lost."""
        if self.slave.end > self.store.end or not same(self.slave, self.store):
            run(self.slave, self.slave.cut_job(SLAVE, shared(self.slave, self.store)))
        ship(self.store, self.slave, SLAVE, most=3000)
        assert self.slave.chain_crc(0, self.slave.end) == self.store.chain_crc(0, self.store.end)
        assert self.slave.epochs == self.store.epochs

    @rule()
    def cut(self) -> None:
        """A new epoch begins where confirm was."""
        self.store.take_token(token(self.epoch))
        run(self.store, self.store.cut_job(token(self.epoch), self.store.confirm))
        self.forget(self.store.end)
        self.flushed = min(self.flushed, self.store.end)
        self.lead()

    def forget(self, end: int) -> None:
        """Drop sections beyond the end and count sequences again."""
        self.sent = [one for one in self.sent if one.end <= end]
        self.next = {}
        for one in self.sent:
            self.next[one.queue] = self.next.get(one.queue, 0) + len(one.bodies)

    def lead(self) -> None:
        """Open the next epoch."""
        self.epoch += 1
        lead(self.store, epoch=self.epoch)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        """A stop, clean or as by a kill, loses nothing."""
        end = self.store.end
        self.store.close(clean=clean)
        self.store = open_store(self.disk)
        assert self.store.end == end
        assert self.store.boot.clean
        self.flushed = end
        self.lead()

    @precondition(lambda self: self.store.end > self.flushed)
    @rule(seed=st.integers(0, 1 << 16))
    def power_loss(self, seed: int) -> None:
        """What was flushed is there; of the rest some prefix."""
        self.disk.crash(keep_page_cache=False, rng=Random(seed))
        self.store = open_store(self.disk)
        assert self.store.damage is None
        assert self.store.end >= self.flushed
        self.store.registered()
        self.forget(self.store.end)
        self.flushed = self.store.end
        self.lead()

    @invariant()
    def reads_agree(self) -> None:
        """Every queue holds the model's confirmed bodies, in order, and no more."""
        for queue in range(4):
            wanted = [
                body
                for one in self.sent
                if one.queue == queue and one.end <= self.store.dispatched
                for body in one.bodies
            ]
            assert bodies(self.store, queue) == wanted
            end = self.store.reads.queue_range(TOPIC, queue)[1]
            answer = self.store.reads.read(TOPIC, queue, end, max_bytes=1, max_records=1)
            assert answer.status is ReadStatus.NONE

    @invariant()
    def positions_are_in_order(self) -> None:
        """The page of positions."""
        store = self.store
        assert store.start <= store.checkpointed <= store.flushed <= store.committed == store.end
        assert store.dispatched <= store.confirm <= store.committed
        assert store.snapshot_at <= store.confirm
        assert store.damage is None

    def teardown(self) -> None:
        """A last clean stop; everything that is confirmed stays."""
        if hasattr(self, "store"):
            settle(self.store)
            before = [bodies(self.store, queue) for queue in range(4)]
            self.store.close(clean=True)
            again = open_store(self.disk)
            assert [bodies(again, queue) for queue in range(4)] == before


def shared(ours: Store, theirs: Store) -> int:
    """Where two logs part, batch by batch."""
    pairs = zip(
        ours.entries(0, max_bytes=1 << 30), theirs.entries(0, max_bytes=1 << 30), strict=False
    )
    end = 0
    for one, other in pairs:
        if (one.start, one.length, one.crc, one.epoch) != (
            other.start, other.length, other.crc, other.epoch,
        ):  # fmt: skip
            break
        end = one.end
    return end


def same(ours: Store, theirs: Store) -> bool:
    """Whether our log is a beginning of theirs."""
    return shared(ours, theirs) == ours.end


TestLogModel = pytest.mark.slow(LogModel.TestCase)
TestLogModel.settings = limits(max_examples=25, stateful_step_count=30, deadline=None)

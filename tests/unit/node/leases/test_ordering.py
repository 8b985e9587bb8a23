"""Ordered groups: a queue's messages come one after the other, to one member at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from node.leases.due import Due, over
from node.leases.leasing import Handed, Leasing, Wish
from node.leases.limits import GroupLimits
from node.leases.ordering import head, holder, part_of, unused_tail
from node.leases.scratch import Scratch
from node.leases.settles import Dying, Late, Settle, SettleCounts, Settling
from node.leases.times import LeaseTimes
from storage.messaging.fold import Messaging
from storage.messaging.groups import START_BEGIN, Group, Retry
from storage.messaging.share import LEASED, Share
from tests.unit.node.leases.queues import Queues
from twinlog.errors import CorruptionError
from twinlog.format.group_rows import ReleaseRow
from twinlog.wire.groups import BACK_OFF, DONE, What

GROUP = Group("g", mode="ordered", start=START_BEGIN, attempts=3, retry=Retry((50,)))


@dataclass
class World:
    """One ordered group over a topic of two queues, each step a turn of its own."""

    group: Group = GROUP
    queues: Queues = field(default_factory=lambda: Queues(queues=2))
    fold: Messaging = field(default_factory=Messaging)
    due: Due = field(default_factory=Due)
    now_ms: int = 1_000
    pops: int = 0
    dead: list[Dying] = field(default_factory=list[Dying])
    turns: dict[str, int] = field(default_factory=dict[str, int])

    def pop(self, records: int, member: int = 1, *, queues: int = 0) -> Handed:
        """Hand messages out for 100 ms."""
        self.pops += 1
        scratch = Scratch(self.fold)
        leasing = Leasing(
            scratch, self.due, self.queues, self.queues, self.now_ms, GroupLimits(), self.turns
        )
        wish = Wish(member, self.pops, ("t",), records, 1 << 20, 100, queues)
        try:
            return leasing.hand_out(self.group, wish)
        finally:
            self._append(scratch)

    def _append(self, scratch: Scratch) -> None:
        for row in scratch.rows:
            assert self.fold.apply(row, self.now_ms), row

    def settle(self, share: int, n: int, what: What, first: int, last: int) -> str | None:
        """Settle a range; None: later."""

        def dead(dying: Dying, late: Late | None) -> None:
            self.dead.append(dying)

        scratch = Scratch(self.fold)
        settling = Settling(scratch, self.due, self.now_ms, _counts(), dead)
        row = Settle(share, n, what, first, last, BACK_OFF if what is What.RELEASE else 0)
        found = settling.settle(self.group, row, lambda code: None)
        self._append(scratch)
        return None if found is None else found[0]

    def pass_time(self, ms: int) -> None:
        """Let leases end, as a node does."""
        self.now_ms += ms
        for entry in self.due.passed(self.now_ms):
            share = self.fold.share(entry[1])
            assert share is not None
            for run in unused_tail(share, over(share, entry, self.now_ms)):
                assert self.fold.apply(
                    ReleaseRow(share.id, run.n, run.first, run.last, self.now_ms, 1), 0
                )
            for run in over(share, entry, self.now_ms):
                if run.attempt < self.group.attempts:
                    ready = (run.until, share.id, run.n, run.first, run.last)
                    self.due.ready(self.group.name, ready)


def _counts() -> SettleCounts:
    return SettleCounts(LeaseTimes(lambda seconds: None))


def ranges(handed: Handed) -> list[tuple[int, int, int]]:
    """(queue, first, last) of the leases."""
    return [(part.share.queue, part.run.first, part.run.last) for part in handed.parts]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 5)),
        st.tuples(st.just("pop"), st.integers(1, 3), st.integers(1, 6), st.integers(0, 2)),
        st.tuples(st.just("work"), st.integers(1, 3), st.sampled_from(list(What))),
        st.tuples(st.just("time"), st.integers(1, 120)),
    ),
    max_size=80,
)


@dataclass
class Worker:
    """A member that handles each queue's messages one after the other, as the client does."""

    held: dict[int, list[tuple[int, int, int]]] = field(
        default_factory=dict[int, list[tuple[int, int, int]]]
    )
    """By share: (offset, n, until) that were fetched and not handled, in order."""

    def take(self, world: World, handed: Handed) -> None:
        """Keep what a pop brought; give back what was fetched after one that comes again."""
        for part in handed.parts:
            run, line = part.run, self.held.setdefault(part.share.id, [])
            for offset, n, until in [one for one in line if one[0] >= run.first]:
                if until > world.now_ms:
                    world.settle(part.share.id, n, What.UNUSED, offset, offset)
            line[:] = [one for one in line if one[0] < run.first]
            line += [(offset, run.n, run.until) for offset in range(run.first, run.last + 1)]


@settings(max_examples=400, deadline=None)
@example(  # the first lease ends before the second: its message comes again, before the other
    [
        ("send", 0, 2), ("pop", 3, 1, 0), ("time", 26), ("pop", 3, 1, 0), ("time", 74),
        ("pop", 3, 1, 0), ("work", 3, What.ACK),
    ]
)  # fmt: skip
@given(STEPS)
def test_no_message_is_handled_before_those_in_front_of_it(steps: list[tuple[object, ...]]) -> None:
    """Whatever members do and when: at each moment all messages before the one handled are settled,
    and nobody else holds one of that queue."""
    world, workers = World(), {number: Worker() for number in (1, 2, 3)}
    for step in steps:
        match step:
            case "send", int(queue), int(count):
                world.queues.send(count, queue)
            case "pop", int(member), int(records), int(queues):
                workers[member].take(world, world.pop(records, member, queues=queues))
            case "work", int(member), What() as what:
                for number, line in workers[member].held.items():
                    _work(world, member, number, line, what)
            case _:
                world.pass_time(int(str(step[1])))
        for share in world.fold.shares():
            lasting = {
                run.member for run in share.runs if run.state == LEASED and run.until > world.now_ms
            }
            assert len(lasting) <= 1, "two members hold a queue"


def _work(
    world: World, member: int, number: int, line: list[tuple[int, int, int]], what: What
) -> None:
    """Handle the first message of a queue whose lease lasts; give the rest back unless it is done.

    A message whose lease is over ends what was fetched with it.
    """
    if not line or line[0][2] <= world.now_ms:
        line.clear()
        return
    offset, n, _ = line.pop(0)
    share = world.fold.share(number)
    assert share is not None
    dying = {
        off for one in world.dead if one.share == number for off in range(one.first, one.last + 1)
    }
    assert set(range(share.low, offset)) <= dying, "one before it is not settled"
    code = world.settle(number, n, what, offset, offset)
    assert code in (None, DONE), code
    if what is What.EXTEND:
        line.insert(0, (offset, n, world.now_ms))  # it lasts no longer than now
    elif what is not What.ACK:
        for other, lease, _ in line:
            world.settle(number, lease, What.UNUSED, other, other)
        line.clear()


def test_a_queue_belongs_to_who_holds_a_message_of_it() -> None:
    """Others get nothing of it, new messages included, until all is settled."""
    world = World()
    world.queues.send(3)
    (part,) = world.pop(2).parts
    assert ranges(world.pop(9, member=2)) == []
    assert ranges(world.pop(9)) == [(0, 2, 2)], "its own further ones"
    world.settle(part.share.id, part.run.n, What.ACK, 0, 1)
    assert ranges(world.pop(9, member=2)) == []
    world.settle(part.share.id, part.run.n + 1, What.ACK, 2, 2)
    world.queues.send(1)
    assert ranges(world.pop(9, member=2)) == [(0, 3, 3)]


def test_a_failed_head_blocks_its_queue_alone() -> None:
    """What comes after it waits for its next attempt; the other queue goes on."""
    world = World()
    world.queues.send(2)
    world.queues.send(1, queue=1)
    handed = world.pop(9)
    first = handed.parts[0]
    assert ranges(handed) == [(0, 0, 1), (1, 0, 0)]
    world.settle(first.share.id, first.run.n, What.RELEASE, 0, 0)
    world.settle(first.share.id, first.run.n, What.UNUSED, 1, 1)
    world.pass_time(1)
    world.queues.send(1, queue=1)
    assert ranges(world.pop(9)) == [(1, 1, 1)]
    world.pass_time(50)
    again = world.pop(9)
    assert ranges(again) == [(0, 0, 0), (0, 1, 1)]
    assert [part.run.attempt for part in again.parts] == [2, 1]


def test_a_death_costs_the_head_an_attempt_and_no_other() -> None:
    """A message that kills its worker each time takes no neighbour with it to the dead letters."""
    world = World()
    world.queues.send(3)
    for attempt in (1, 2, 3):
        handed = world.pop(9)
        attempts = [
            part.run.attempt
            for part in handed.parts
            for _ in range(part.run.first, part.run.last + 1)
        ]
        assert attempts == [attempt, 1, 1]
        world.pass_time(101)
    assert ranges(world.pop(9)) == [], "the head is to become a dead letter first"


def test_a_member_with_more_than_its_part_lets_queues_run_dry() -> None:
    """Where others wait it takes nothing new from queues beyond its part."""
    world = World()
    world.queues.send(2)
    world.queues.send(2, queue=1)
    assert ranges(world.pop(1)) == [(0, 0, 0)]
    assert ranges(world.pop(1)) == [(1, 0, 0)]
    assert ranges(world.pop(9, queues=1)) == [(0, 1, 1)]
    assert part_of(2, 2) == 1


def test_a_damaged_head_is_told_and_blocks_its_queue() -> None:
    """Order is kept by waiting: the messages after it are not handed out."""
    world = World()
    world.queues.send(2)
    (part,) = world.pop(1).parts
    world.settle(part.share.id, part.run.n, What.UNUSED, 0, 0)
    world.pass_time(1)
    world.queues.damaged.add((0, 0))
    with pytest.raises(CorruptionError):
        world.pop(9)
    world.queues.damaged.clear()
    assert ranges(world.pop(9)) == [(0, 0, 0), (0, 1, 1)]


def test_a_lease_of_another_keeps_the_whole_queue() -> None:
    """Even where an earlier message of it is available: the other may be handling a later one."""
    share = Share(1, "g", "t", 0, 0, 0)
    assert share.lease(1, 0, 1, 7, 1, 1_000, 1)
    assert share.lease(2, 1, 1, 7, 2, 2_000, 1)
    assert head(share, 8, 1_500) is None
    assert head(share, 7, 1_500) == 0
    assert head(share, 8, 2_000) == 0
    assert holder(share) == 7


def test_a_group_that_allows_fewer_attempts_hands_out_no_more() -> None:
    """A head that had its attempts already waits to be made a dead letter."""
    world = World()
    world.queues.send(1)
    (part,) = world.pop(1).parts
    world.settle(part.share.id, part.run.n, What.RELEASE, 0, 0)
    world.pass_time(60)
    world.group = replace(GROUP, attempts=1)
    assert ranges(world.pop(1)) == []

"""Leases and settles of a group against a plain model: one fate a message, nothing forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.leases.due import Due, over
from node.leases.filters import wanted
from node.leases.leasing import DAMAGE_MS, Handed, Leasing, Wish, stretches
from node.leases.limits import GroupLimits
from node.leases.scratch import Scratch
from node.leases.settles import Dying, Late, Settle, SettleCounts, Settling, reason
from node.leases.times import LeaseTimes
from storage.messaging.fold import Messaging
from storage.messaging.groups import START_BEGIN, Group, Retry
from storage.messaging.share import LEASED, SETTLED
from tests.unit.node.leases.queues import Queues
from twinlog.errors import CorruptionError, UsageError
from twinlog.format.group_rows import MemberRow, ResetRow
from twinlog.format.record import encode
from twinlog.wire.groups import BACK_OFF, DONE, LEAVING, RECEIPT_EXPIRED, RECEIPT_UNKNOWN, What

GROUP = Group("g", start=START_BEGIN, attempts=3, retry=Retry((50,)))


@dataclass
class World:
    """One group on one topic, turn by turn; rows are applied as the store does."""

    queues: Queues = field(default_factory=Queues)
    group: Group = GROUP
    limits: GroupLimits = field(default_factory=GroupLimits)
    fold: Messaging = field(default_factory=Messaging)
    due: Due = field(default_factory=Due)
    now_ms: int = 1_000
    pops: int = 0
    dead: list[Dying] = field(default_factory=list[Dying])
    turns: dict[str, int] = field(default_factory=dict[str, int])
    scratch: Scratch = field(init=False)

    def __post_init__(self) -> None:
        """Begin a turn."""
        self.scratch = Scratch(self.fold)

    def finish(self) -> None:
        """Append the rows of the turn."""
        for row in self.scratch.rows:
            assert self.fold.apply(row, self.now_ms), row
        self.scratch = Scratch(self.fold)

    def leasing(self) -> Leasing:
        """Decide leases in this turn."""
        return Leasing(
            self.scratch, self.due, self.queues, self.queues, self.now_ms, self.limits, self.turns
        )

    def settling(self) -> Settling:
        """Decide settles in this turn."""

        def dead(dying: Dying, late: Late | None) -> None:
            self.dead.append(dying)

        return Settling(
            self.scratch,
            self.due,
            self.now_ms,
            SettleCounts(LeaseTimes(lambda seconds: None)),
            dead,
        )

    def pop(self, records: int, member: int = 1, invisible_ms: int = 100) -> Handed:
        """Hand messages out."""
        self.pops += 1
        wish = Wish(member, self.pops, ("t",), records, 1 << 20, invisible_ms)
        return self.leasing().hand_out(self.group, wish)

    def pass_time(self, ms: int) -> None:
        """Let leases end."""
        self.now_ms += ms
        for entry in self.due.passed(self.now_ms):
            share = self.scratch.share(entry[1])
            assert share is not None
            for run in over(share, entry, self.now_ms):
                if run.attempt < self.group.attempts:
                    found = (run.until, share.id, run.n, run.first, run.last)
                    self.due.ready(self.group.name, found)

    def settle(self, share: int, n: int, what: What, first: int, last: int) -> str | None:
        """Settle a range; None: later."""
        row = Settle(share, n, what, first, last, BACK_OFF if what is What.RELEASE else 0)
        found = self.settling().settle(self.group, row, lambda code: None)
        return None if found is None else found[0]


def offsets(handed: Handed) -> list[int]:
    """The queue offsets of the records that a pop brought."""
    found: list[int] = []
    for part in handed.parts:
        for first, count, _ in stretches(part.found.slices):
            found.extend(range(first, first + count))
    return found


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 5)),
        st.tuples(st.just("pop"), st.integers(1, 6)),
        st.tuples(st.just("settle"), st.integers(0, 60), st.sampled_from(list(What))),
        st.tuples(st.just("time"), st.integers(1, 120)),
        st.tuples(st.just("turn"), st.just(0)),
        st.tuples(st.just("refused"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_each_message_has_one_fate(steps: list[tuple[object, ...]]) -> None:
    """No message is leased to two at once, none settled comes again, none is forgotten."""
    world = World()
    held: dict[int, int] = {}  # offset: the end of its lease
    leases: list[tuple[int, int, int, int]] = []
    settled: set[int] = set()
    before = (dict(held), list(leases), set(settled))
    for step in steps:
        match step:
            case "send", int(count):
                world.queues.send(count)
            case "pop", int(records):
                handed = world.pop(records)
                assert handed.records <= records
                for part in handed.parts:
                    run = part.run
                    leases.append((part.share.id, run.n, run.first, run.last))
                    for offset in range(run.first, run.last + 1):
                        assert held.get(offset, 0) <= world.now_ms, "two hold it"
                        assert offset not in settled
                        held[offset] = run.until
            case "settle", int(number), What() as what if leases:
                share, n, first, last = leases[number % len(leases)]
                code = world.settle(share, n, what, first, last)
                assert code in (None, DONE, RECEIPT_EXPIRED), code
                if code == DONE and what is What.ACK:
                    settled.update(range(first, last + 1))
                if code in (DONE, RECEIPT_EXPIRED) and what in (What.RELEASE, What.UNUSED):
                    for offset in range(first, last + 1):
                        share_now = world.scratch.share(share)
                        run_now = share_now.run_at(offset) if share_now is not None else None
                        if run_now is not None and run_now.n == n:
                            held[offset] = 0
                if code == DONE and what is What.EXTEND:
                    for offset in range(first, last + 1):
                        held[offset] = world.now_ms
            case "time", int(ms):
                world.pass_time(ms)
            case "turn", _:
                world.finish()
                before = (dict(held), list(leases), set(settled))
            case "refused", _:
                world.scratch = Scratch(world.fold)
                world.due.begin(iter(list(world.fold.shares())))
                held, leases, settled = dict(before[0]), list(before[1]), set(before[2])
            case _:
                pass
    share_now = world.scratch.share(1)
    if share_now is not None:
        at = share_now.low
        for run in share_now.runs:
            assert run.first == at, "a gap between the runs"
            assert run.attempt <= GROUP.attempts
            at = run.last + 1
        assert at == share_now.next
        for offset in settled:
            run_now = share_now.run_at(offset)
            assert run_now is None or run_now.state == SETTLED
    world.finish()


def test_retries_come_first_but_leave_half_for_new_messages() -> None:
    """A flood of failures does not keep new messages out."""
    world = World()
    world.queues.send(8)
    world.pop(8)
    world.finish()
    world.queues.send(8)
    world.pass_time(200)
    assert offsets(world.pop(8)) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert offsets(world.pop(8)) == [4, 5, 6, 7, 12, 13, 14, 15]
    world.finish()


def test_a_filter_settles_what_it_leaves_out() -> None:
    """Wanted messages come in their runs; unwanted ones are never leased, not even again."""
    world = World(group=replace(GROUP, filters={"t": "tags: a"}))
    for tag in "abbaab":
        world.queues.send(1, tag=tag)
    handed = world.pop(10)
    assert offsets(handed) == [0, 3, 4]
    assert [(part.run.first, part.run.last) for part in handed.parts] == [(0, 0), (3, 4)]
    world.finish()
    share = world.fold.share(1)
    assert share is not None
    assert share.next == 6
    assert share.count(LEASED) == 3
    world.pass_time(200)
    assert offsets(world.pop(10)) == [0, 3, 4]


def test_a_share_that_is_full_gives_nothing_new() -> None:
    """Its limits have names, and a retry is still handed out."""
    world = World(limits=GroupLimits(span_max=4))
    world.queues.send(10)
    assert offsets(world.pop(10)) == [0, 1, 2, 3]
    leasing = world.leasing()
    assert not leasing.hand_out(GROUP, Wish(1, 9, ("t",), 10, 1 << 20, 100)).parts
    assert leasing.full
    world.pass_time(200)
    assert offsets(world.pop(10)) == [0, 1, 2, 3]


def test_what_retention_has_taken_is_passed_over() -> None:
    """New messages begin where the queue does; a retry that is gone is settled."""
    world = World()
    world.queues.send(10)
    assert offsets(world.pop(2)) == [0, 1]
    world.queues.starts[0] = 5
    assert offsets(world.pop(2)) == [5, 6]
    world.pass_time(200)
    assert offsets(world.pop(10)) == [5, 6, 7, 8, 9]
    world.finish()
    share = world.fold.share(1)
    assert share is not None
    assert share.low == 5


def test_a_damaged_record_keeps_nobody_from_other_queues() -> None:
    """It is told once there is nothing else; another node's copy may replace it meanwhile."""
    world = World(Queues(queues=2))
    world.queues.send(3, 0)
    world.queues.send(2, 1)
    world.queues.damaged.add((0, 1))
    assert sorted(offsets(world.pop(10))) == [0, 0, 1]
    with pytest.raises(CorruptionError, match="record 1 of queue 0"):
        world.pop(10)
    world.queues.damaged.clear()
    assert offsets(world.pop(10)) == [1, 2]


def test_a_retry_with_a_damaged_record_is_tried_again() -> None:
    world = World()
    world.queues.send(1)
    assert offsets(world.pop(1)) == [0]
    world.finish()
    world.pass_time(101)
    world.queues.damaged.add((0, 0))
    with pytest.raises(CorruptionError):
        world.pop(1)
    world.queues.damaged.clear()
    world.pass_time(DAMAGE_MS)
    again = world.pop(1)
    assert (offsets(again), again.parts[0].run.attempt) == ([0], 2)


def test_a_group_that_allows_fewer_attempts_by_now_forgets_nothing() -> None:
    """What was ready for another attempt goes the way of what has had its last."""
    world = World()
    world.queues.send(1)
    world.pop(1)
    world.finish()
    world.pass_time(101)
    world.group = replace(GROUP, attempts=1)
    assert world.pop(1).parts == []
    ((_, share, n, first, last),) = world.due.passed(world.now_ms)
    assert (share, n, first, last) == (1, 1, 0, 0)


def test_a_pop_is_found_again() -> None:
    """By member and number, as long as the lease is its own."""
    world = World()
    world.queues.send(4)
    wish = Wish(7, 3, ("t",), 2, 1 << 20, 100)
    first = world.leasing().hand_out(GROUP, wish)
    world.finish()
    again = world.leasing().find(GROUP, wish)
    assert [part.row()[:7] for part in again.parts] == [part.row()[:7] for part in first.parts]
    assert not world.leasing().find(GROUP, Wish(7, 4, ("t",), 2, 1 << 20, 100)).parts
    assert not world.leasing().find(GROUP, Wish(8, 3, ("t",), 2, 1 << 20, 100)).parts


def test_what_fails_for_good_is_handed_over() -> None:
    """At the last attempt a release is a death, and a rejection always is one."""
    world = World(group=replace(GROUP, attempts=1))
    world.queues.send(2)
    world.pop(1)
    world.pop(1)
    assert world.settle(1, 1, What.RELEASE, 0, 0) == DONE
    assert world.settle(1, 2, What.REJECT, 1, 1) is None
    assert [(one.first, one.why) for one in world.dead] == [(0, "attempts"), (1, "rejected")]
    assert world.settle(1, 3, What.ACK, 0, 0) == RECEIPT_UNKNOWN
    assert world.settle(2, 1, What.ACK, 0, 0) == RECEIPT_UNKNOWN


def test_a_release_waits_for_its_pause() -> None:
    """The group's own, or what the member asks for; one unused does not count."""
    world = World()
    world.queues.send(1)
    world.pop(1)
    assert world.settle(1, 1, What.RELEASE, 0, 0) == DONE
    assert world.settle(1, 1, What.RELEASE, 0, 0) == DONE, "a repetition"
    world.pass_time(49)
    assert not world.pop(1).parts
    world.pass_time(1)
    again = world.pop(1)
    assert again.parts[0].run.attempt == 2
    assert world.settle(1, 2, What.UNUSED, 0, 0) == DONE
    world.pass_time(0)
    assert world.pop(1).parts[0].run.attempt == 2


def test_a_lease_is_extended_while_it_is_one() -> None:
    """A message that was given back, or is another's, is not."""
    world = World()
    world.queues.send(2)
    world.pop(1)
    row = Settle(1, 1, What.EXTEND, 0, 0, 500)
    assert world.settling().settle(GROUP, row, lambda code: None) == (DONE, 1_500)
    world.pass_time(200)
    assert offsets(world.pop(1)) == [1]
    world.settle(1, 1, What.UNUSED, 0, 0)
    assert world.settling().settle(GROUP, row, lambda code: None) == (RECEIPT_EXPIRED, 0)


def test_a_lease_in_a_file_that_is_to_leave_is_not_extended() -> None:
    """The file waits for the end of the lease as it is; later messages are extended."""
    world = World()
    world.queues.send(2)
    world.pop(1)
    world.pop(1)
    counts = SettleCounts(LeaseTimes(lambda seconds: None))
    settling = Settling(
        world.scratch, world.due, world.now_ms, counts, lambda *_: None, lambda share: 1
    )
    for n, first, code in ((1, 0, (LEAVING, 1_100)), (2, 1, (DONE, 1_500))):
        row = Settle(1, n, What.EXTEND, first, first, 500)
        assert settling.settle(GROUP, row, lambda code: None) == code


def test_a_word_about_another_lease_changes_nothing() -> None:
    """What is partly another's by now counts for the rest, and the answer says so."""
    world = World()
    world.queues.send(3)
    world.pop(3)
    world.pass_time(200)
    assert offsets(world.pop(1)) == [0]
    row = Settle(1, 1, What.EXTEND, 0, 2, 500)
    assert world.settling().settle(GROUP, row, lambda code: None) == (RECEIPT_EXPIRED, 1_700)
    assert world.settle(1, 1, What.ACK, 0, 0) == RECEIPT_EXPIRED
    assert world.settle(1, 1, What.ACK, 0, 2) == RECEIPT_EXPIRED
    share = world.scratch.share(1)
    assert share is not None
    assert [(run.first, run.last, run.n) for run in share.runs] == [(0, 0, 2), (1, 2, 0)]


def test_receipts_of_before_a_reset_are_over() -> None:
    """One that can never have been is unknown, which is another answer."""
    world = World()
    world.queues.send(3)
    world.pop(3)
    assert world.settle(1, 1, What.ACK, 2, 1) == RECEIPT_UNKNOWN
    assert world.settle(1, 1, What.ACK, 0, 5) == RECEIPT_UNKNOWN
    world.scratch.write(ResetRow(1, 0, "test"))
    assert world.settle(1, 1, What.ACK, 0, 2) == RECEIPT_EXPIRED


def test_filters_are_tags_or_expressions() -> None:
    """A text that is neither is refused with what to write."""
    assert wanted("") == (None, None)
    tags, where = wanted("tags: a || b")
    assert tags is not None
    assert len(tags) == 2
    assert where is None
    assert wanted("region = 'eu'")[1] is not None
    with pytest.raises(UsageError, match="names no tags"):
        wanted("tags: a ||")


def test_the_words_of_a_rejection_fit_a_property() -> None:
    """Control characters separate properties, so none gets into one."""
    assert reason("rejected", "a\x01b\x02\n") == "rejected: a b  "
    assert reason("rejected", "\n") == "rejected"


def test_a_range_may_hold_what_is_settled() -> None:
    """The rest of it is settled with it; nothing is counted twice."""
    world = World()
    world.queues.send(4)
    world.pop(4)
    assert world.settle(1, 1, What.ACK, 1, 2) == DONE
    assert world.settle(1, 1, What.ACK, 0, 3) == DONE
    share = world.scratch.share(1)
    assert share is not None
    assert (share.low, share.runs) == (4, [])


def test_a_filter_of_a_light_queue_leases_its_offsets() -> None:
    """A record's own queue offset is another one."""
    pieces = [
        memoryview(
            encode(
                "orders", 0, b"x", queue_offset=7 + number,
                properties={
                    "INNER_MULTI_DISPATCH": "%LMQ%x", "INNER_MULTI_QUEUE_OFFSET": str(light)
                },
            )
        )
        for number, light in enumerate((0, 1, 4))
    ]  # fmt: skip
    found = [(first, count) for first, count, _ in stretches(pieces, "%LMQ%x")]
    assert found == [(0, 2), (4, 1)]


def test_a_member_leaves_once() -> None:
    """Nothing is written for a member that has left, or whose group was deleted meanwhile."""
    fold = Messaging()
    fold.apply(MemberRow("g", 7, "m", 1), 0)
    scratch = Scratch(fold)
    assert scratch.write(MemberRow("g", 7, "m", 0))
    assert not scratch.write(MemberRow("g", 7, "m", 0))
    fold.drop("g")
    assert not Scratch(fold).write(MemberRow("g", 7, "m", 0))

"""What must never happen to groups and their messages.

The judge's account (`tests.sim.profiles.groups`) is asked before each row of the confirmed log
changes it, after each batch, and when a member begins with a message.

Not here: the account (`tests.sim.profiles.group_log`).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from storage.recovery.group_export import POSITIONS
from tests.sim.invariants.invariant import Invariant
from tests.sim.judge.ledger import Violation
from tests.sim.profiles.group_log import LEASED, SETTLED, WAITING, Cell, GroupLog, Row, ShareLog
from twinlog.groups.leases import Held
from twinlog.wire.groups import What

if TYPE_CHECKING:
    from storage.messaging.fold import Shares
    from storage.messaging.share import Share
    from tests.sim.machines.node import SimNode
    from tests.sim.profiles.groups import GroupBatch
    from tests.sim.users.members import Member
    from tests.sim.world import World
    from twinlog.wire.frames import Frame

GRACE_SECONDS = 4.5
"""Of five: a node's clock may be fast."""
ROUNDING = 0.002
"""Nodes count whole milliseconds."""
SESSION_SECONDS = 9.4
"""Of ten."""


def _taken(share: ShareLog | None, row: Row) -> tuple[int, list[tuple[int, Cell | None]]]:
    """Return the time at which a lease was decided, 0 if unknown, and what it takes."""
    _, _, _, first, count, *_ = row
    if share is None:
        return 0, []
    return 0, [(one, share.cells.get(one)) for one in range(first, first + count)]


class LeaseExclusive(Invariant):
    """A message is leased again only when its lease, or its pause, is over; nobody else has it."""

    rules = "R62, R63"

    def row(self, batch: GroupBatch, row: Row, share: ShareLog | None) -> None:
        if row[0] != "L" or share is None:
            return
        group = self.world.groups.definitions.get(share.group)
        if group is None or not row[4]:
            return
        decided = row[7] - group.invisible_ms
        for offset, cell in _taken(share, row)[1]:
            if cell is None or cell.state == SETTLED:
                continue
            if cell.until > decided:
                self.fail(
                    f"{share.group} {share.topic}/{share.queue} {offset}: {cell} at {decided}"
                )
            self.world.groups.counts["lease-over" if cell.state == LEASED else "retried"] += 1

    def body(self, member: Member, held: Held) -> None:
        groups, now = self.world.groups, self.world.schedule.now
        if member.lease == "fast" or "wall_jump" in self.world.plan.rates:
            return
        share = groups.log.shares.get(held.share)
        for other in groups.members:
            if other is member or other.group != member.group or other.lease == "fast":
                continue
            for (number, n, offset), its in other.bodies.items():
                if (number, offset) != (held.share, held.offset) or its.ends <= now + ROUNDING:
                    continue
                if share is None or any(one > min(n, held.n) for one in share.resets):
                    continue
                self.fail(
                    f"{member.name} has {member.group} {held.message.topic}/{held.message.queue}"
                    f" {offset} as {held.n}, {other.name} as {n} for {its.ends - now:.3f} s more"
                )


class InOrder(Invariant):
    """In an ordered group nothing is handed out, or begun, before what comes before it is settled.

    A member that holds what comes before may get more; it begins with it once it has acknowledged.
    """

    rules = "R69"

    def row(self, batch: GroupBatch, row: Row, share: ShareLog | None) -> None:
        if row[0] != "L" or share is None or not row[4]:
            return
        group = self.world.groups.definitions.get(share.group)
        if group is None or group.mode != "ordered":
            return
        _, _, _, first, count, member, _, until, _ = row
        decided = until - group.invisible_ms
        for offset, cell in share.cells.items():
            if self.world.groups.is_gone(share, offset):
                continue
            other = cell.state == LEASED and cell.member != member
            if offset < first and (cell.state == WAITING or other):
                self.fail(f"{share.group} {share.topic}/{share.queue}: {row}, {offset} is {cell}")
            if offset >= first + count and other and cell.until > decided:
                self.fail(f"{share.group} {share.topic}/{share.queue}: {row}, {offset} is {cell}")

    def body(self, member: Member, held: Held) -> None:
        groups, now = self.world.groups, self.world.schedule.now
        share = groups.log.shares.get(held.share)
        if member.mode != "ordered" or member.lease == "fast" or share is None:
            return
        if any(one > held.n for one in share.resets):
            return
        place = (share.group, share.topic, share.queue)
        for offset, cell in share.cells.items():
            if offset >= held.offset or cell.state == SETTLED or groups.is_gone(share, offset):
                continue
            if What.ACK not in groups.spoken.get((*place, offset), set()):
                self.fail(f"{member.name} begins with {place} {held.offset}, {offset} is {cell}")
        for other in groups.members:
            if other is member or other.group != member.group or other.lease == "fast":
                continue
            for (number, n, offset), its in other.bodies.items():
                if any(one > min(n, held.n) for one in share.resets):
                    continue
                if number == held.share and its.ends > now + ROUNDING:
                    self.fail(f"{member.name} begins with {place} {held.offset}, {other.name} has"
                              f" {offset} for {its.ends - now:.3f} s more")  # fmt: skip


class GraceIsGiven(Invariant):
    """In the first seconds of a reign no lease ends by time."""

    rules = "R63"

    def row(self, batch: GroupBatch, row: Row, share: ShareLog | None) -> None:
        reign = self.world.groups.reigns.get(batch.epoch)
        if row[0] != "L" or share is None or reign is None:
            return
        since = self.world.schedule.now - reign[1]
        if since >= GRACE_SECONDS:
            return
        for offset, cell in _taken(share, row)[1]:
            if cell is not None and cell.state == LEASED:
                self.fail(
                    f"{share.group} {share.topic}/{share.queue} {offset} is leased again"
                    f" {since:.3f} s after the reign {batch.epoch} began: {cell}"
                )


class SettledStays(Invariant):
    """What is settled is never handed out again, unless the group was told to go back."""

    rules = "R60, R64"

    def row(self, batch: GroupBatch, row: Row, share: ShareLog | None) -> None:
        if row[0] == "Z" and share is not None and share.group not in self.world.groups.meddled:
            self.fail(f"{share.group} is reset, and nobody ordered it: {row}")
        if row[0] != "L" or share is None:
            return
        for offset, cell in _taken(share, row)[1]:
            if offset < share.low or (cell is not None and cell.state == SETTLED):
                self.fail(f"{share.group} {share.topic}/{share.queue} {offset} is leased: {row}")

    def body(self, member: Member, held: Held) -> None:
        groups = self.world.groups
        message = groups.message(member.group, held)
        sure = groups.sure.get(message)
        share = groups.log.shares.get(held.share)
        if sure is None or sure[0] != held.share or share is None or member.lease == "fast":
            return
        if held.n > sure[1] and not any(one > sure[1] for one in share.resets):
            self.fail(f"{member.name} has {message} as {held.n}, it was settled as {sure[1]}")


class PopOnce(Invariant):
    """A pop that is repeated brings what it brought, nobody is handed a message twice by it."""

    rules = "R64"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._heard: dict[tuple[str, int, int], dict[tuple[int, int], int]] = {}

    def leased(self, node: SimNode, request: Frame, row: list[int]) -> None:
        key = (str(request.fields["group"]), int(str(request.fields["member"])),
               int(str(request.fields["pop"])))  # fmt: skip
        _, _, share, n, first, count, *_ = row
        known = self.world.groups.log.shares.get(share)
        if known is None:
            return  # the group was deleted meanwhile
        if known.n < n:
            self.fail(f"{node.name} answers {key} with {row}, which is not confirmed")
        for offset in range(first, first + count):
            cell = known.cells.get(offset)
            mine = cell is not None and cell.n == n
            if mine and cell is not None and (cell.member, cell.pop) != key[1:]:
                self.fail(f"{node.name} answers {key} with {offset} as {n}, which is {cell}")

    def row(self, batch: GroupBatch, row: Row, share: ShareLog | None) -> None:
        if row[0] != "L" or share is None or not row[4]:
            return
        groups = self.world.groups
        group = groups.definitions.get(share.group)
        if group is None:
            return
        _, _, _, _, _, member, pop, until, _ = row
        decided = until - group.invisible_ms
        for other in groups.log.shares.values():
            if other.group != share.group:
                continue
            for offset, cell in other.cells.items():
                if cell.state != LEASED or (cell.member, cell.pop) != (member, pop):
                    continue
                if groups.is_gone(other, offset):
                    continue  # retention of the new master was ahead of the lease
                if cell.until > decided and until != cell.until:
                    self.fail(f"pop {pop} of {member} has {other.topic}/{other.queue} {offset} as"
                              f" {cell}, and gets {row}")  # fmt: skip

    def body(self, member: Member, held: Held) -> None:
        key = (held.share, held.n, held.offset)
        before = self._heard.setdefault((member.name, member.incarnation, 0), {})
        if member.lease == "fast":
            return
        if before.get((held.share, held.offset)) == held.n:
            self.fail(f"{member.name} has {key} twice")
        before[held.share, held.offset] = held.n


class AttemptsBounded(Invariant):
    """Each time a message is handed out counts, none twice, and never more than are allowed."""

    rules = "R60"

    def row(self, batch: GroupBatch, row: Row, share: ShareLog | None) -> None:
        if row[0] != "L" or share is None:
            return
        _, most = self.world.groups.attempts.get(share.group, (0, 1 << 30))
        for offset, cell in _taken(share, row)[1]:
            wanted = 1 if cell is None else cell.attempt + 1
            if row[8] != wanted or row[8] > most:
                self.fail(f"{share.group} {share.topic}/{share.queue} {offset}: {row}, was {cell}")


class NoneForgotten(Invariant):
    """What is settled was acknowledged, became a dead letter, or was taken by retention."""

    rules = "R60, R61"

    def row(self, batch: GroupBatch, row: Row, share: ShareLog | None) -> None:
        groups = self.world.groups
        if row[0] == "S":
            self._begins(row)
        if row[0] != "L" or share is None:
            return
        for offset in range(share.next, row[3]):
            if not groups.is_gone(share, offset):
                self.fail(f"{share.group} {share.topic}/{share.queue}: {row} leaves out {offset}")

    def _begins(self, row: Row) -> None:
        _, _, name, topic, _, queue, start = row
        groups = self.world.groups
        group, rows = groups.definitions.get(name), self.world.contents.queues.get((topic, queue))
        if group is None or not rows:
            return
        first = 0
        if group.start == -1:
            created = groups.created[name]
            first = sum(1 for one in rows if one.log_offset < created)
        share = ShareLog(0, name, topic, queue, 0)
        while first < start and groups.is_gone(share, first):
            first += 1
        if start > first:
            self.fail(f"{name} begins with {topic}/{queue} at {start}, not at {first}")

    def group_batch(self, batch: GroupBatch) -> None:
        groups = self.world.groups
        letters = {(group, origin) for group, origin, _ in batch.letters}
        for share, offset, cell in batch.settled:
            message = (share.group, share.topic, share.queue, offset)
            spoken = groups.spoken.get(message, set())
            if What.ACK in spoken or groups.is_gone(share, offset):
                continue
            origin = self.world.contents.queues[share.topic, share.queue][offset].log_offset
            if (share.group, origin) in letters:
                continue
            group = groups.definitions.get(share.group)
            least, _ = groups.attempts.get(share.group, (0, 0))
            if group is None or group.dead_letter:
                self.fail(f"{message} is settled, and nobody has handled it: {cell}")
            leaves = bool(self.world.plan.keep_files) and cell.state == WAITING
            if What.REJECT not in spoken and cell.attempt < least and not leaves:
                self.fail(f"{message} is given up after {cell.attempt} attempts")


class DeadOnce(Invariant):
    """A dead letter is in the log exactly where its message is settled as one, in one batch."""

    rules = "R61"

    def group_batch(self, batch: GroupBatch) -> None:
        if not batch.letters:
            return
        groups = self.world.groups
        settled: Counter[tuple[str, int]] = Counter()
        gone: set[tuple[str, int]] = set()
        for share, offset, _ in batch.settled:
            rows = self.world.contents.queues[share.topic, share.queue]
            origin = (share.group, rows[offset].log_offset)
            settled[origin] += 1
            if groups.is_gone(share, offset):
                gone.add(origin)
        copies = Counter((group, origin) for group, origin, _ in batch.letters)
        for origin in {*settled, *copies}:
            if copies[origin] != settled[origin] and not (origin in gone and not copies[origin]):
                self.fail(f"{origin}: {copies[origin]} letters, {settled[origin]} settled")
        for _, _, why in batch.letters:
            groups.counts[f"dead-{why.partition(':')[0]}"] += 1


class StepWhole(Invariant):
    """What was sent together with an acknowledgement is in the log exactly with it."""

    rules = "R61"

    def group_batch(self, batch: GroupBatch) -> None:
        groups = self.world.groups
        settled = [(share.number, cell.n, offset) for share, offset, cell in batch.settled]
        sent = [tuple(int(part) for part in name.split(b"|")[:3]) for name in batch.steps]
        for one in sent:
            if one in groups.stepped and settled.count(one) != 1:
                self.fail(f"{one} was sent, and not acknowledged with it")
            groups.counts["steps"] += 1
        for (share, offset, cell), each in zip(batch.settled, settled, strict=True):
            alone = each in groups.stepped and sent.count(each) != 1
            if alone and not self._given_up(batch, share, offset, cell):
                self.fail(f"{each} was acknowledged, and nothing was sent with it")

    def _given_up(self, batch: GroupBatch, share: ShareLog, offset: int, cell: Cell) -> bool:
        """Whether time and attempts may have settled it, and no acknowledgement."""
        groups = self.world.groups
        rows = self.world.contents.queues[share.topic, share.queue]
        letters = {(group, origin) for group, origin, _ in batch.letters}
        if (share.group, rows[offset].log_offset) in letters or groups.is_gone(share, offset):
            return True
        group = groups.definitions.get(share.group)
        least, _ = groups.attempts.get(share.group, (0, 0))
        leaves = bool(self.world.plan.keep_files) and cell.state == WAITING
        given_up = cell.attempt >= least or leaves
        return group is not None and not group.dead_letter and given_up


class RowsCount(Invariant):
    """A row in the log changes something: what changed nothing was decided on a wrong account."""

    rules = "R60"

    def vain_row(self, row: Row) -> None:
        self.fail(f"{row} changes nothing")


class MembersSurvive(Invariant):
    """A member leaves when it says so, or when it was not heard for its session."""

    rules = "R62"

    def row(self, batch: GroupBatch, row: Row, share: ShareLog | None) -> None:
        if row[0] != "M" or row[4] or row[2] in self.world.groups.left:
            return
        groups = self.world.groups
        reign = groups.reigns.get(batch.epoch)
        port = self.world.nodes[reign[0]].groups if reign is not None else None
        if reign is None or port is None or port.queues.epoch != batch.epoch:
            return
        groups.counts["member-lost"] += 1
        silent = self.world.schedule.now - max(reign[1], port.heard.get(row[2], 0.0))
        if silent < SESSION_SECONDS:
            self.fail(f"{row} after {silent:.3f} s")


def _same(share: Share, mine: ShareLog) -> bool:
    if (share.low, share.next, share.n) != (mine.low, mine.next, mine.n):
        return False
    at = share.low
    for run in share.runs:
        for offset in range(run.first, run.last + 1):
            if offset != at or tuple(mine.cells[offset]) != tuple(run[2:]):
                return False
            at += 1
    return at == share.next


class StateFollowsLog(Invariant):
    """What a node knows of groups is what the rows below its dispatched offset say."""

    rules = "R60"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._known: dict[str, tuple[int, int, GroupLog]] = {}

    def sample(self, node: SimNode) -> None:
        store, groups = node.store, self.world.groups
        if store is None or not groups.rows or node.is_quarantined:
            return
        process, at, log = self._known.get(node.name, (0, 0, GroupLog()))
        if process != node.incarnation:
            process, at, log = node.incarnation, 0, GroupLog()
        # A node that began again has the state of its seed, which may lie after what it has read.
        dispatched = max(store.dispatched, store.messaging.confirmed.position)
        if at and groups.rows[at - 1][0] > dispatched:
            at, log = 0, GroupLog()  # it began again
        while at < len(groups.rows) and groups.rows[at][0] <= dispatched:
            row = groups.rows[at][1]
            if row[0] == "drop":
                log.drop(row[1])
            else:
                log.apply(row)
            at += 1
        self._known[node.name] = (process, at, log)
        if dispatched <= self.world.ledger.canon_end:
            self._compare(node, log)

    def _compare(self, node: SimNode, log: GroupLog) -> None:
        assert node.store is not None
        fold = node.store.messaging.confirmed
        theirs = {share.id: share for share in fold.shares()}
        if theirs.keys() != log.shares.keys():
            self.fail(f"{node.name} has shares {sorted(theirs)}, log {sorted(log.shares)}")
        for number, share in theirs.items():
            mine = log.shares[number]
            place = (share.group, share.topic, share.queue)
            if place != (mine.group, mine.topic, mine.queue) or not _same(share, mine):
                self.fail(f"{node.name} {place} {share.low}..{share.next} n{share.n} {share.runs},"
                          f" log {mine.low}..{mine.next} n{mine.n} {mine.cells}")  # fmt: skip
        for group in {name for name, _ in log.members} | set(self.world.groups.definitions):
            wanted = {number for name, number in log.members if name == group}
            if set(fold.members(group)) != wanted:
                self.fail(f"{node.name} {group}: members {set(fold.members(group))}, log {wanted}")

    def finished(self) -> None:
        for node in self.world.nodes.values():
            if node.name not in self.world.rotten and node.alive:
                self.sample(node)


class AheadMeetsConfirmed(Invariant):
    """When all is dispatched, what the master decides by is what everybody knows."""

    rules = "R60, R62"

    def sample(self, node: SimNode) -> None:
        store = node.store
        if store is None or node.acts_in_epoch() is None or not store.messaging.ready:
            return
        if not store.end == store.committed == store.dispatched:
            return
        self.world.groups.counts["ahead-compared"] += 1
        ahead, fold = store.messaging.ahead, store.messaging.confirmed
        for group in sorted(ahead.touched):
            if _state(ahead, group) != _state(fold, group):
                self.fail(f"{node.name} {group}: {_state(ahead, group)}, {_state(fold, group)}")

    def finished(self) -> None:
        master = self.world.newest_master()
        if master is not None:
            self.sample(master)


def _state(fold: Shares, group: str) -> object:
    shares = [
        (one.id, one.topic, one.queue, one.low, one.next, one.n, tuple(one.runs))
        for one in fold.shares_of(group)
    ]
    return sorted(shares), sorted(fold.members(group))


class ParkedPopsWake(Invariant):
    """A pop does not wait while there is something for it."""

    rules = "R64"

    def pop_stands(self, node: SimNode, what: str) -> None:
        self.fail(f"{node.name}: {what}")


class ExportIsState(Invariant):
    """After a clean stop RocketMQ's file has the first unsettled message of each queue."""

    rules = "R60"

    def finished(self) -> None:
        world = self.world
        if not world.groups.rows:
            return
        world.groups.end_members()
        world.schedule.run_until(world.schedule.now + 1.0)
        node = world.nodes[max(world.plan.nodes)]
        if not node.alive or node.name in world.rotten:
            return
        process, end = node.incarnation, world.schedule.now + 20.0
        node.order_stop()
        while node.alive and node.incarnation == process:
            if world.schedule.now > end:
                raise Violation("HealedWorldWorks", f"{node.name} does not stop")
            world.schedule.run_until(world.schedule.now + 0.05)
        if node.cause != "stopped":
            return
        told = json.loads(node.disk.read(POSITIONS, "test"))["offsetTable"]
        wanted: dict[str, dict[str, int]] = {}
        for share in world.groups.log.shares.values():
            place = wanted.setdefault(f"{share.topic}@{share.group}", {})
            place[str(share.queue)] = share.low
        if told != wanted:
            self.fail(f"{node.name}: {told}, log {wanted}")

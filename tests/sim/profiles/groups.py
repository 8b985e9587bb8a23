"""Groups of a run: members and who disturbs them, orders about groups, and the judge's account.

The account follows the confirmed log (`tests.sim.profiles.group_log`) and what members said and
heard. What must hold is asked of `tests.sim.invariants.messaging` at each of its moments.

Chances are drawn apart, so a seed without members is the run it was before there were any.

Not here: one member's life (`tests.sim.users.members`), how a node answers
(`tests.sim.machines.group_port`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, cast

import msgpack

from storage.messaging.groups import Group
from storage.state.controls import decode_control
from storage.state.group_controls import AlterGroups, CreateGroups, DeleteGroups
from tests.sim.judge.contents import BATCH_TOPIC, DEAD_TOPIC, LIGHTS, STEP_TOPIC, Stored
from tests.sim.machines.shell import Shell
from tests.sim.profiles.group_log import SETTLED, Cell, GroupLog, Row, ShareLog
from tests.sim.users.members import Member
from twinlog.errors import TwinlogError
from twinlog.groups.leases import Held
from twinlog.groups.settings import ORDERED, SHARED
from twinlog.session.session import MASTER, Steps
from twinlog.wire.frames import Frame, Type
from twinlog.wire.groups import What

if TYPE_CHECKING:
    from tests.sim.judge.ledger import Batch
    from tests.sim.machines.node import SimNode
    from tests.sim.world import World

Message = tuple[str, str, int, int]
"""(group, topic, queue, offset)."""
_BODY = 88
_ORDER_SECONDS = 4.0
_DISTURB_SECONDS = 2.5
_LOOK_SECONDS = 1.0
_WAIT_SECONDS, _STILL_SECONDS = 50.0, 10.0
"""Consumers that still move after the first have much to do; they may not stand for the second."""
GROUPS = ("g0", "g1")
REPLAY = "replay"
RARE = (
    "bodies", "again", "settled", "steps", "step-lost", "step-unknown", "lease-over", "retried",
    "dead-attempts", "dead-rejected", "dead-retention", "member-killed", "member-lost",
    "group-deleted", "row-X", "row-R", "row-Z", "refused-not-ready", "refused-not-member",
    "share_full", "messaging_ready", "ahead-compared",
)  # fmt: skip
"""Counts that say whether runs with members met the states that they are meant to meet."""


@dataclass(slots=True)
class GroupBatch:
    """What one confirmed batch says of groups.

    Attributes:
        epoch: Of the batch.
        settled: What its rows of settling settled: share, offset, the cell before.
        letters: Per dead letter: group, log offset of the original, why.
        steps: Names of what was sent together with acknowledgements.
    """

    epoch: int
    settled: list[tuple[ShareLog, int, Cell]] = field(default_factory=list)
    letters: list[tuple[str, int, str]] = field(default_factory=list)
    steps: list[bytes] = field(default_factory=list)


class Groups:
    """See the module.

    Attributes:
        log: The account at the end of the confirmed log.
        rows: Every row and deletion so far: log offset after its record, and what it is.
        definitions: Groups, as confirmed.
        attempts: Most and fewest attempts that a group has ever allowed.
        spoken: What members said of messages.
        sure: Messages whose settling was answered: under which share and lease.
        stepped: Leases and offsets whose acknowledgement went out with something sent.
        reigns: By epoch: node, and true time at which it began to serve groups.
        left: Members that asked to leave.
        meddled: Groups that an operator ordered to go elsewhere.
        counts: Rare states.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = Random(f"groups {world.plan.seed}")
        self.log = GroupLog()
        self.rows: list[tuple[int, Row]] = []
        self.definitions: dict[str, Group] = {}
        self.created: dict[str, int] = {}
        self.attempts: dict[str, tuple[int, int]] = {}
        self.spoken: dict[Message, set[What]] = {}
        self.sure: dict[Message, tuple[int, int]] = {}
        self.stepped: set[tuple[int, int, int]] = set()
        self.reigns: dict[int, tuple[str, float]] = {}
        self.left: set[int] = set()
        self.meddled: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.calm = False
        self._started = 0
        self._moved, self._waits_since = (0, 0.0), float("inf")
        self._standing: dict[str, tuple[int, str]] = {}
        self.members = self._draw_members()
        self.operator = GroupOperator(world)

    def _draw_members(self) -> list[Member]:
        plan, found = self.world.plan, list[Member]()
        for number in range(plan.members):
            group = GROUPS[number % 2]
            topics = ["topic0"]
            if plan.batches:
                topics.append(BATCH_TOPIC)
            if plan.lights and number % 2:
                topics.append(LIGHTS[0])
            found.append(Member(self.world, number, group, tuple(topics), self.mode(group)))
        if plan.members > 2:
            found.append(Member(self.world, plan.members, REPLAY, (DEAD_TOPIC + GROUPS[0],)))
        return found

    def mode(self, group: str) -> str:
        """Return the mode of a group, whoever makes it."""
        return ORDERED if self.world.plan.ordered and group == GROUPS[1] else SHARED

    @property
    def topics(self) -> set[str]:
        """Topics that exist for consumers alone."""
        return {STEP_TOPIC} if STEP_TOPIC in self.world.topics_apart else set()

    def start(self) -> None:
        """Begin."""
        if not self.members:
            return
        self.operator.start()
        for member in self.members:
            self.world.schedule.after(2.0 * self.rng.random(), member.start)
        self.world.schedule.after(_DISTURB_SECONDS, self._disturb)
        self.world.schedule.after(_LOOK_SECONDS, self._look)

    def heal(self) -> None:
        """Bodies become quick, and nobody is disturbed any more."""
        self.calm = True
        for member in self.members:
            member.calm = True

    def end_members(self) -> None:
        """End every member for good, without a word."""
        self.calm = True
        for member in self.members:
            member.over = True
            member.kill()

    # -- disturbances

    def _disturb(self) -> None:
        if self.calm:
            return
        rng, world = self.rng, self.world
        mean = _DISTURB_SECONDS * (1.0 if world.plan.rates else 4.0) / world.plan.disturbance
        world.schedule.after(mean * (0.3 + 1.4 * rng.random()), self._disturb)
        member = rng.choice(self.members)
        match rng.randrange(5):
            case 0:
                self.counts["member-killed"] += member.alive
                member.kill()
                world.schedule.after(3.0 * rng.random(), member.start)
            case 1:
                member.stop_until(world.schedule.now + rng.choice((0.5, 3.0, 14.0)) * rng.random())
            case 2:
                member.leave()
            case 3:
                node = rng.choice(world.plan.nodes)
                ways = [(member.name, node), (node, member.name)]
                ways = ways if rng.random() < 0.5 else [rng.choice(ways)]
                for way in ways:
                    world.network.block(*way)
                    world.schedule.after(0.5 + 5 * rng.random(), world.network.unblock, *way)
            case _:
                world.network.cut_of(member)

    # -- what nodes tell

    def asked(self, node: SimNode, frame: Frame) -> None:
        """A request of groups reached a node."""
        if frame.type == Type.BEAT and frame.fields.get("leave") is True:
            self.left.add(cast("int", frame.fields["member"]))

    def answered(self, node: SimNode, request: Frame, answer: Frame) -> None:
        """A node answers a request of groups."""
        if answer.is_error:
            self.counts[f"refused-{answer.fields['code']}"] += 1
            return
        self.world.observe(node)
        if request.type == Type.POP and request.fields.get("lease") != "fast":
            for row in cast("list[list[int]]", answer.fields["rows"]):
                for one in self.world.court.leased:
                    one.leased(node, request, row)

    def reign_began(self, node: SimNode, epoch: int) -> None:
        """A node serves groups from now on."""
        self.reigns[epoch] = (node.name, self.world.schedule.now)

    # -- what members tell

    def body(self, member: Member, held: Held) -> None:
        """A body begins with a message."""
        self.counts["bodies"] += 1
        self.counts["again"] += held.attempt > 1
        for one in self.world.court.body:
            one.body(member, held)

    def message(self, group: str, held: Held) -> Message:
        """Return which message this is."""
        topic = held.message.topic
        return group, topic, 0 if topic in LIGHTS else held.message.queue, held.offset

    def said(self, member: Member, held: Held, what: What) -> None:
        """A body is done with a message."""
        self.spoken.setdefault(self.message(member.group, held), set()).add(what)

    def step_body(self, member: Member, held: Held) -> bytes:
        """Return what a step sends for a message."""
        if member.lease != "fast":
            self.stepped.add((held.share, held.n, held.offset))
        return b"%d|%d|%d|" % (held.share, held.n, held.offset)

    def settled(self, member: Member, share: int, n: int, offset: int) -> None:
        """A member was told that a message is settled."""
        self.counts["settled"] += 1
        held = member.held.get((share, n, offset))
        if held is not None:
            self.sure[self.message(member.group, held)] = (share, n)

    # -- the confirmed log

    def enter(self, batch: Batch, others: list[tuple[str, Stored, bytes]]) -> None:
        """Take the records of a confirmed batch that no producer sent."""
        found = GroupBatch(batch.epoch)
        self._started = max(self._started, *self.world.starts.values(), 0)
        for topic, stored, data in others:
            length = int.from_bytes(data[_BODY - 4 : _BODY], "big")
            body = data[_BODY : _BODY + length]
            end = stored.log_offset + stored.size
            if topic == "rmq_sys_TWINLOG_GROUP":
                for row in msgpack.unpackb(body, strict_map_key=False)[1:]:
                    if row[0] not in "DTU":  # of delays, see `tests.sim.profiles.delays`
                        self._row(found, row, end)
            elif topic == "rmq_sys_TWINLOG_META":
                self._control(body, stored, end)
            elif topic.startswith(DEAD_TOPIC):
                found.letters.append(_letter(topic, data, length))
            elif topic == STEP_TOPIC:
                found.steps.append(body)
        if found.settled or found.letters or found.steps:
            for one in self.world.court.group_batch:
                one.group_batch(found)

    def _row(self, batch: GroupBatch, row: Row, end: int) -> None:
        share = self.log.shares.get(row[1]) if isinstance(row[1], int) else None
        for one in self.world.court.row:
            one.row(batch, row, share)
        if row[0] == "A" and share is not None:
            _, _, n, first, last = row[:5]
            for offset in range(max(first, share.low), min(last, share.next - 1) + 1):
                cell = share.cells[offset]
                if cell.n == n and cell.state != SETTLED:
                    batch.settled.append((share, offset, cell))
        changed = self.log.apply(row)
        self.rows.append((end, row))
        self.counts[f"row-{row[0]}"] += 1
        if not changed:
            for one in self.world.court.vain_row:
                one.vain_row(row)

    def _control(self, body: bytes, stored: Stored, end: int) -> None:
        change = decode_control(body)
        if isinstance(change, (CreateGroups, AlterGroups)):
            for group in change.groups:
                least, most = self.attempts.get(group.name, (group.attempts, group.attempts))
                self.definitions[group.name] = group
                self.attempts[group.name] = min(least, group.attempts), max(most, group.attempts)
                if isinstance(change, CreateGroups):
                    self.created[group.name] = stored.log_offset
        elif isinstance(change, DeleteGroups):
            for name in change.names:
                self.counts["group-deleted"] += 1
                self.definitions.pop(name, None)
                self.log.drop(name)
                self.rows.append((end, ["drop", name]))

    def is_gone(self, share: ShareLog, offset: int) -> bool:
        """Whether retention may have taken a message."""
        rows = self.world.contents.queues.get((share.topic, share.queue), [])
        started = max(self._started, *self.world.starts.values(), 0)
        return offset < len(rows) and rows[offset].log_offset < started

    def facts(self) -> dict[str, int]:
        """Counts of what the run did with groups."""
        return {name: self.counts[name] + self.world.events[name] for name in RARE}

    # -- liveness

    def unfinished(self) -> str:
        """Say what groups lack in a healed world; empty: nothing."""
        reason, now = self._lacks(), self.world.schedule.now
        moved = sum(share.low + share.next for share in self.log.shares.values())
        if moved != self._moved[0]:
            self._moved = moved, now
        self._waits_since = min(self._waits_since, now)
        slow = now > self._waits_since + _WAIT_SECONDS and now < self._moved[1] + _STILL_SECONDS
        return "" if slow else reason

    def _lacks(self) -> str:
        master = self.world.newest_master()
        if not self.members or master is None:
            return ""
        if master.groups is not None and master.groups.clock_stands():
            return ""
        wall_ms = master.clock.wall_ms()
        for member in self.members:
            if member.group not in self.definitions:
                if member.group == REPLAY:
                    continue
                return f"there is no group {member.group}"
            for topic in member.topics:
                for wrong in self._behind(member.group, topic, wall_ms):
                    return wrong
        return ""

    def _behind(self, group: str, topic: str, wall_ms: int) -> Iterator[str]:
        for (name, queue), rows in self.world.contents.queues.items():
            if name != topic or not rows:
                continue
            share = self.log.find(group, topic, queue)
            if share is None:
                none = ShareLog(0, group, topic, queue, 0)
                later = (i for i, one in enumerate(rows) if one.log_offset > self.created[group])
                if any(not self.is_gone(none, one) for one in later):
                    yield f"{group} has not begun with {topic}/{queue}"
                continue
            if any(not self.is_gone(share, one) for one in range(share.next, len(rows))):
                yield f"{group} {topic}/{queue}: handed out to {share.next} of {len(rows)}"
            for offset, cell in share.cells.items():
                if cell.state != SETTLED and cell.until <= wall_ms - 2_000:
                    yield f"{group} {topic}/{queue}: {offset} is {cell}, the time is {wall_ms}"

    def _look(self) -> None:
        """Look for pops that wait although there is something for them."""
        self.world.schedule.after(_LOOK_SECONDS, self._look)
        for name, node in self.world.nodes.items():
            before = self._standing.pop(name, None)
            port = node.groups
            if port is None or node.paused or name in self.world.rotten or not port.serves():
                continue
            now = (node.incarnation, port.standing())
            if not now[1]:
                continue
            if now == before:
                for one in self.world.court.pop_stands:
                    one.pop_stands(node, now[1])
            self._standing[name] = now


def _letter(topic: str, data: bytes, length: int) -> tuple[str, int, str]:
    at = _BODY + length
    at += 1 + data[at]
    text = data[at + 2 : at + 2 + int.from_bytes(data[at : at + 2], "big")].decode()
    properties = dict(part.split("\x01", 1) for part in text.split("\x02") if part)
    origin = int(properties["DLQ_ORIGIN_MESSAGE_ID"][-16:], 16)
    return topic[len(DEAD_TOPIC) :], origin, properties["TL_WHY"]


class GroupOperator(Shell):
    """Somebody who gives orders about groups."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "goper")

    def start(self) -> None:
        """Begin, with the groups that members will join."""
        self.begin(self._orders(first=True))

    def ended(self, error: TwinlogError | None) -> None:
        """An order was carried out, or not."""
        if error is not None:
            self.world.trace(self.name, "order ends", f"{error.code} {error.text}"[:160])
        if not self.world.groups.calm:
            after = _ORDER_SECONDS * (0.3 + 1.4 * self.rng.random()) / self.world.plan.disturbance
            self.world.schedule.after(after, self._next)

    def _next(self) -> None:
        if not self.world.groups.calm:
            self.begin(self._orders())

    def _order(self, op: str, name: str, **fields: object) -> Steps[None]:
        self.world.trace(self.name, op, f"{name} {fields}")
        deadline = self.session.now + 5.0
        asked = {"op": op, "name": name, **fields}
        yield from self.session.call(Type.GROUP, asked, deadline=deadline, to=MASTER)

    def _orders(self, *, first: bool = False) -> Steps[None]:
        rng, groups = self.rng, self.world.groups
        settings: dict[str, object] = {
            "attempts": rng.choice((2, 3, 5)), "retry": [200, 500, 1500], "invisible_ms": 2_500,
            "start": rng.choice(("start", "end")), "dead_letter": rng.random() < 0.8,
        }  # fmt: skip
        name = GROUPS[0] if first else rng.choice(GROUPS)
        settings["mode"] = groups.mode(name)
        if first or rng.random() < 0.15:
            yield from self._order("create", name, settings=settings)
            return
        chance = rng.random()
        if chance < 0.35:
            altered = {"attempts": rng.choice((2, 3, 5))}
            yield from self._order("alter", name, settings=altered)
        elif chance < 0.8 and self.world.topics:
            topic = rng.choice(self.world.groups.members[0].topics)
            queue = rng.randrange(2)
            length = len(self.world.contents.queues.get((topic, queue), []))
            groups.meddled.add(name)
            if chance < 0.55:
                row = [topic, queue, rng.randint(0, min(4, length))]
                yield from self._order("skip", name, positions=[row])
            else:
                row = [topic, queue, rng.randint(0, length)]
                yield from self._order("reset", name, positions=[row])
        elif chance < 0.88:
            yield from self._order("delete", name)

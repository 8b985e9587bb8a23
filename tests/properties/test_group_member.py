"""Whatever happens between members and master, every message is handled.

Members with slow, fast, failing and paused bodies share one group of a model master. Connections
break, answers get lost, requests are refused for now, members leave in the middle. Checked:

* at the end every message is acknowledged, or a dead letter because its member said so;
* a message is handed to a body only while its lease lasts, by the master's clock as well, and once
  under each lease: a second time takes a failure, a departure, or a lease whose time had passed;
* no member holds more than its body handles in half a lease, and none waits for its leaving longer
  than 5 s.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from tests.fakes.group_master import GroupMaster, Refused
from twinlog.groups.core import CLOSE_SECONDS, GroupCore
from twinlog.groups.delivery import FAILED
from twinlog.groups.dialogue import Dialogue
from twinlog.groups.leases import Held
from twinlog.groups.outcomes import Outcomes, Told, joined_runs
from twinlog.groups.settings import GroupSettings
from twinlog.session.link import Peer
from twinlog.session.routing import Address
from twinlog.session.session import Ask, LinkDown, Open, Opened, Pause, Send, Session, Take
from twinlog.wire import frames
from twinlog.wire.frames import Frame, Type
from twinlog.wire.groups import What

CLOCK_MS = 1_700_000_000_000
PEER = Peer("n1", "demo", "g1", 4, 1 << 24)


class World:
    """A clock, a master, and what is on its way to members."""

    def __init__(self, seed: int, faults: float, *, ordered: bool = False) -> None:
        self.random = random.Random(seed)
        self.now = 100.0
        self.faults = faults
        self.master = GroupMaster(invisible_ms=4000, ordered=ordered)
        self.members: list[Member] = []

    @property
    def ms(self) -> int:
        """The master's clock."""
        return CLOCK_MS + int(self.now * 1000)

    def chance(self, share: float = 1.0) -> bool:
        """Whether a fault happens now."""
        return self.random.random() < self.faults * share

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and parked pops wake in it."""
        end = self.now + seconds
        while True:
            self.now = min(end, self.now + 0.05)
            for frame, fields, payload in self.master.wake(self.ms):
                for member in self.members:
                    if (id(frame)) in member.parked:
                        member.arrive(member.parked.pop(id(frame)), frame, fields, payload)
            if self.now >= end:
                return


class Member:
    """One process: a core with its dialogue, and a connection that may break."""

    def __init__(self, world: World, batch: int) -> None:
        self.world = world
        session = Session([Address("h", 1)], random=world.random.random)
        self.core = GroupCore(
            GroupSettings(
                "billing", ("orders",), batch=batch, timeout=1e9,
                mode="ordered" if world.master.ordered else "shared",
            ),
            world.now,
        )  # fmt: skip
        self.session = session
        self.dialogue = Dialogue(session, self.core)
        self.open = False
        self.generation = 0
        self.number = 0
        self.answers: list[tuple[float, Frame]] = []
        self.parked: dict[int, int] = {}

    def run(self, steps: Generator[Any, Any, Any]) -> Any:
        """Carry out a call."""
        came, down = None, None
        try:
            while True:
                self.session.now = self.world.now
                step = steps.send(came) if down is None else steps.throw(down)
                came = down = None
                try:
                    came = self.carry(step)
                except LinkDown as found:
                    down = found
        except StopIteration as stop:
            return stop.value

    def carry(self, step: Any) -> Any:
        """Carry out one step, with faults."""
        world = self.world
        match step:
            case Pause():
                world.pass_time(step.seconds)
                return None
            case Ask():
                world.pass_time(0.001)
                return metadata(step.frame)
            case Open():
                if self.open:
                    return Opened(PEER, ("127.0.0.1", 9), fresh=False)
                world.pass_time(0.001)
                if world.chance():
                    raise LinkDown("refuses", sent=False)
                self.open = True
                return Opened(PEER, ("127.0.0.1", 9), fresh=True)
            case Send():
                return self.send(step.frame)
            case Take():
                return self.take(step.seconds)
            case _:
                raise AssertionError(step)

    def send(self, frame: Frame) -> int:
        """Have the master carry a request out, or break the connection around it."""
        world = self.world
        if not self.open or world.chance(0.3):
            self.drop()
            raise LinkDown("broke off", sent=True)
        self.number += 1
        frame = Frame(frame.type, request=self.number, fields=dict(frame.fields))
        if world.chance(0.3):
            world.master.refuse.append(world.random.choice(["busy", "not-ready", "not-member"]))
        try:
            answer = world.master.ask(frame, world.ms)
        except Refused as refused:
            world.master.refuse.clear()
            self.put(frames.refusal(frame, refused.fields))
            return self.number
        if answer is None:
            self.parked[id(frame)] = self.number
            self.kept = [*getattr(self, "kept", []), frame]  # an id is of use while it lives
        else:
            self.arrive(self.number, frame, *answer)
        return self.number

    def arrive(self, number: int, frame: Frame, fields: dict[str, Any], payload: bytes) -> None:
        """Put an answer on its way."""
        self.put(frames.answer(frame, fields, payload))

    def put(self, frame: Frame) -> None:
        frame.payload = memoryview(bytes(frame.payload))
        delay = self.world.random.choice([0.0, 0.001, 0.02])
        self.answers.append((self.world.now + delay, frame))

    def drop(self) -> None:
        """End the connection: nothing more arrives over it."""
        self.open = False
        self.answers.clear()
        for frame, since in list(self.world.master.parked):
            if id(frame) in self.parked:
                self.world.master.parked.remove((frame, since))
        self.parked.clear()

    def take(self, seconds: float) -> Frame | None:
        """Wait for an answer."""
        world = self.world
        if not self.open or world.chance(0.1):
            self.drop()
            raise LinkDown("broke off", sent=True)
        end = world.now + seconds
        while True:
            for at, frame in self.answers:
                if at <= world.now:
                    self.answers.remove((at, frame))
                    return frame
            if world.now >= end:
                return None
            world.pass_time(min(0.05, end - world.now))


def metadata(frame: Frame) -> Frame:
    """The route: one node, which is master."""
    node: dict[str, object] = {
        "name": "n1",
        "host": "h",
        "client_port": 1,
        "role": "master",
        "state": "serving",
    }
    fields: dict[str, object] = {
        "cluster": "demo", "group": "g1", "epoch": 1, "leader": "n1", "topics": {}, "family": 4,
        "message_size_max": 1 << 22, "nodes": [{**node, "group": "g1", "age": 0.1}],
    }  # fmt: skip
    return frames.answer(frame, fields)


class History:
    """What bodies were given, under which lease."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.given: Counter[tuple[int, int, int]] = Counter()
        self.done: set[tuple[int, int, int]] = set()
        """(share, offset, n) of what was acknowledged or rejected in time."""

    def handed(self, held: Held, member: Member) -> None:
        """A body begins."""
        kept = self.world.master.shares[held.share][held.offset]
        if self.world.master.ordered:
            self._in_order(held, member)
        assert held.ends > self.world.now, "handed out after its lease"
        if kept.n == held.n and kept.state == "leased":
            assert (kept.until - CLOCK_MS) / 1000 >= held.ends - 1e-6, "by the master's clock"
        else:
            assert kept.state == "settled" and kept.n == held.n, "given to two at a time"
        self.given[held.share, held.n, held.offset] += 1
        assert max(self.given.values()) == 1, "twice under one lease"

    def _in_order(self, held: Held, member: Member) -> None:
        """All before it is settled, and no other member handles a message of the queue."""
        for offset, kept in enumerate(self.world.master.shares[held.share][: held.offset]):
            said = (held.share, offset, kept.n) in self.done
            assert kept.state == "settled" or said, f"{offset} comes before {held.offset}"
        for other in self.world.members:
            for one in other.core.handed:
                assert other is member or one.share != held.share or one.ends <= self.world.now

    def settled(self, held: Held) -> None:
        """A body said that it is done."""
        if held.ends > self.world.now:
            self.done.add((held.share, held.offset, held.n))


def step(world: World, member: Member, history: History) -> None:
    """One turn of one member's loop: take a message, or wait a little for one."""
    core, random_ = member.core, world.random
    member.run(member.dialogue.look())
    held = core.take(world.now)
    if held is None:
        core.wait(world.now)
        member.run(member.dialogue.turn(world.now + random_.choice([0.0, 0.1, 1.0])))
        return
    history.handed(held, member)
    before = core.speed.allowance(core.invisible)
    assert core.ready + 1 <= max(before, core.settings.batch)
    world.pass_time(random_.choice([0.0, 0.0, 0.001, 0.05, 0.5] + [6.0] * (random_.random() < 0.1)))
    what = random_.random()
    if what < 0.1:
        assert core.settle(held, FAILED, world.now)
    elif what < 0.13:
        core.settle(held, Told(What.EXTEND, 5000), world.now)
        member.run(member.dialogue.look())
        world.pass_time(1.0)
        core.settle(held, Told(What.ACK), world.now)
        history.settled(held)
    elif what < 0.15:
        history.settled(held)
        core.settle(held, Told(What.REJECT, 0, "bad"), world.now)
    else:
        history.settled(held)
        assert core.settle(held, Told(What.ACK), world.now)
        assert not core.settle(held, Told(What.ACK), world.now), "settled once"


def leave(world: World, member: Member) -> None:
    """A member goes, with what it has."""
    began = world.now
    member.core.close(world.now, FAILED)
    member.run(member.dialogue.leave())
    assert world.now - began <= CLOSE_SECONDS + 0.1
    member.drop()
    world.members.remove(member)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("ordered", [False, True])
def test_every_message_is_handled(seed: int, ordered: bool) -> None:
    world = World(seed, faults=0.0 if seed % 3 == 0 else 0.15, ordered=ordered)
    history = History(world)
    for number in range(40):
        world.master.send(number % 3, b"%d" % number)
    for turn in range(400):
        while len(world.members) < 3:
            world.members.append(Member(world, batch=world.random.choice([1, 8, 64])))
        member = world.random.choice(world.members)
        step(world, member, history)
        if world.random.random() < 0.02:
            leave(world, member)
        if turn % 100 == 0:
            world.master.send(turn % 3, b"later")
    world.faults = 0.0
    for member in list(world.members):
        leave(world, member)
    member = Member(world, batch=64)
    world.members.append(member)
    for _ in range(300):
        step(world, member, history)
    leave(world, member)
    assert not member.core.handed
    states = {kept.state for share in world.master.shares.values() for kept in share}
    assert states == {"settled"}
    given = sum(history.given.values())
    assert given >= (44 if ordered else 46)


def test_outcomes_of_neighbours_are_one_row() -> None:
    """However they came; what was sent and not answered comes first, marked."""
    outcomes = Outcomes()
    for offset in (3, 4, 5, 9, 8, 2):
        outcomes.note(1, 7, offset, Told(What.ACK), 0.0)
    outcomes.note(1, 7, 6, Told(What.RELEASE, -1), 0.0)
    rows = outcomes.take()
    assert [(row.told.what, row.first, row.last) for row in rows] == [
        (What.ACK, 2, 5),
        (What.ACK, 8, 9),
        (What.RELEASE, 6, 6),
    ]
    assert not outcomes
    outcomes.back(rows)
    outcomes.note(1, 7, 10, Told(What.ACK), 0.0)
    assert [row.again for row in outcomes.take()] == [True, True, True, False]
    assert joined_runs([]) == []


def test_outcomes_leave_with_the_next_pop() -> None:
    """Before it, so that one turn of the node decides both; not all 5 ms by themselves."""
    core, master = GroupCore(GroupSettings("billing", ("orders",), batch=4), 0.0), GroupMaster()
    for number in range(40):
        master.send(0, b"%d" % number)
    core.routed(fresh=True)
    asked: list[list[Type]] = []
    numbers = itertools.count(1)

    def look(now: float) -> None:
        requests = core.requests(now)
        for request in requests:
            frame = Frame(request.type, fields=request.fields)
            number, answer = next(numbers), master.ask(frame, CLOCK_MS)
            assert answer is not None
            core.on_sent(number, request, now)
            core.on_answer(
                number,
                Frame(frame.type, frames.ANSWER, fields=answer[0], payload=answer[1]),
                now,
                0.1,
            )
        asked.append([Type(request.type) for request in requests])

    core.wait(0.0)
    for turn in range(24):
        held = core.take(turn / 10_000)
        if held is not None:
            core.settle(held, Told(What.ACK), turn / 10_000)
        else:
            core.wait(turn / 10_000)
        look(turn / 10_000)
    assert sum(len(sent) == 2 for sent in asked) >= 3
    assert all(sent in ([Type.JOIN], [Type.POP], [Type.SETTLE, Type.POP], []) for sent in asked), (
        asked
    )


def test_a_slow_body_holds_one_message_and_a_fast_one_a_batch() -> None:
    """What may be held follows the body: 5 s of 60 s leases are six, 31 s are one."""
    from twinlog.groups.speed import Speed

    slow, fast = Speed(64), Speed(64)
    assert slow.allowance(60.0) == 1
    for _ in range(64):
        slow.took(5.0)
        fast.took(0.001)
    assert (slow.allowance(60.0), fast.allowance(60.0)) == (6, 64)
    for _ in range(40):
        slow.took(31.0)
    assert slow.allowance(60.0) == 1
    assert slow.needed(60.0) == pytest.approx(30.0)


__all__ = ["Type"]

"""Work queues of one process: production's `WorkQueues` between simulated streams and the driver.

Members of groups open streams to a node's `Listener`; what arrives is decided in turns, as the
client server does it: several requests of one moment may be one turn. Answers leave as frames.

Not here: who asks (`tests.sim.users.members`), questions beside a stream
(`tests.sim.machines.client_port`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, TypeVar

from node.clients.lookups import Asked
from node.clients.reads import ReadAnswer
from node.clients.refusals import no_topic
from node.groups.service import WorkQueues
from node.leases.settles import SettleCounts
from node.leases.times import LeaseTimes
from node.transactions.checks import CheckSettings
from node.turns.context import Context, Done, GroupCounts
from node.turns.parked import Asker, Pop
from storage.messaging.share import LEASED, SETTLED, Run, Share
from tests.sim.machines.client_port import ClientPort, error_answer
from twinlog.errors import TwinlogError, UsageError
from twinlog.wire import frames, schema
from twinlog.wire.frames import Frame, FrameError, Type

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode

T = TypeVar("T")

_JOINED = (0.0, 0.0, 0.0005, 0.003)
"""Seconds for which requests wait for others of the same turn."""


class Listener:
    """Where members reach a node; it lives as its processes do."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.name = node.name

    @property
    def incarnation(self) -> int:
        """See `tests.sim.machines.network.Endpoint`."""
        return self._node.incarnation

    @property
    def alive(self) -> bool:
        """See `tests.sim.machines.network.Endpoint`."""
        return self._node.alive

    def stream_opened(self, incarnation: int, conn: int) -> None:
        """Nodes dial no member."""

    def stream_accepted(self, incarnation: int, conn: int) -> None:
        """A member dialed us; it is known by its first frame."""

    def stream_frame(self, incarnation: int, conn: int, frame: object) -> None:
        """A frame arrived."""
        if incarnation == self.incarnation and self._node.groups is not None:
            self._node.tell(self._node.groups.on_frame, conn, frame)

    def stream_closed(self, incarnation: int, conn: int, why: str) -> None:
        """The stream is gone."""
        if incarnation == self.incarnation and self._node.groups is not None:
            self._node.tell(self._node.groups.on_closed, conn)


CHECKS = CheckSettings(first_ms=1_000, checks=3, keep_ms=30_000)
"""Transactions are asked about and given up soon."""


class Connection:
    """A member's stream, as `Asker`."""

    congested = False

    def sees(self, thing: str, name: str) -> bool:
        """Members of the simulator may know of everything."""
        return True

    def __init__(self) -> None:
        self.gone = False

    def broke(self, error: Exception) -> None:
        """A defect is not lost."""
        raise error

    async def taken(self) -> None:
        """Answers are taken at once."""

    def read_answered(self, request: int, answer: ReadAnswer) -> None:
        """It reads nothing."""

    def read_failed(self, request: int, error: TwinlogError) -> None:
        """It reads nothing."""


class GroupPort:
    """The work queues of one process.

    Attributes:
        queues: Production's.
        begun: True time at which the present reign began to serve groups, by its epoch.
        heard: True time at which each member said last what it was given an answer to.
    """

    def __init__(self, node: SimNode) -> None:
        assert node.store is not None
        assert node.driver is not None
        self._node = node
        self._incarnation = node.incarnation
        self._rng = Random(f"group port {node.world.plan.seed} {node.name} {node.incarnation}")
        self.questions = ClientPort(node)
        self._connections: dict[int, Connection] = {}
        self.heard: dict[int, float] = {}
        self._running = False
        self._due = float("inf")
        records = node.store.reads
        context = Context(
            node.driver,
            records,
            node.store.messaging,
            node.world.plan.group_limits,
            refusal=self.questions.refusal,
            missing=partial(no_topic, records),
            wall_ms=node.clock.wall_ms,
            tell=self._told,
            draw=lambda: self._rng.getrandbits(53) or 1,
            family=4,
            seconds=node.clock.now,
            counts=GroupCounts(SettleCounts(LeaseTimes(lambda *_: None))),
        )
        self.queues = WorkQueues(
            context,
            fetch=self._fetch,
            looks=self._fetch,
            observed=self._observed,
            transactions=CHECKS,
        )

    def _observed(self) -> Mapping[str, object]:
        return {"node": self._node.name, "role": "", "age_ms": 0}

    def _told(self, name: str, level: str, /, **facts: object) -> None:
        if name == "messaging_ready":
            self.heard.clear()
            self._node.world.groups.reign_began(self._node, int(str(facts["epoch"])))
        told = {f"of_{key}" if key == "name" else key: fact for key, fact in facts.items()}
        self._node.event(name, level, **told)

    # -- requests

    def on_frame(self, now: float, conn: int, frame: Frame) -> None:
        """Take a request; questions are answered at once."""
        asker = self._connections.setdefault(conn, Connection())
        done = partial(
            self._answer, conn, frame, self._node.world.schedule.now, self._is_member(frame)
        )
        self._node.world.groups.asked(self._node, frame)
        self.order(frame, asker, done)

    def _is_member(self, frame: Frame) -> bool:
        """Whether the sender has a session: outcomes are taken from others, too."""
        group, member = frame.fields.get("group"), frame.fields.get("member")
        if not isinstance(group, str) or not isinstance(member, int):
            return False
        return self.queues.context.members.get(group, member) is not None

    def order(self, frame: Frame, asker: Asker, done: Done) -> None:
        """Have a request decided in the next turn."""
        try:
            try:
                schema.check(frame)
            except FrameError as error:
                raise UsageError(error.text, code="fields") from None
            payload = memoryview(bytes(frame.payload))
            self.queues.handle(frame.type, frame.fields, payload, asker, "sim", done)
        except TwinlogError as error:
            done(error)
        if self.queues.pending and not self._running:
            self._running = True
            delay = self._rng.choice(_JOINED)
            self._node.world.schedule.after(delay, self._run_soon, self._incarnation)

    def _run_soon(self, incarnation: int) -> None:
        if incarnation == self._node.incarnation:
            self._node.tell(self._run)

    def _run(self, now: float) -> None:
        self._running = False
        self.queues.run(now)

    def ask(self, now: float, frame: Frame, done: Done) -> None:
        """Take a question, or an order, that came beside the streams."""
        if frame.type == Type.PRODUCER:
            done({"producer": self._rng.getrandbits(60) + 1, "epoch": 0})
        elif frame.type == Type.GROUP:
            self._node.world.groups.asked(self._node, frame)
            self.order(frame, Connection(), done)
        else:
            answer = self.questions.ask(frame)
            done(answer.fields, [memoryview(answer.payload)])

    def on_closed(self, now: float, conn: int) -> None:
        """A stream is gone."""
        asker = self._connections.pop(conn, None)
        if asker is not None:
            asker.gone = True
            self.queues.forget(asker)

    def _answer(
        self,
        conn: int,
        request: Frame,
        asked_at: float,
        is_member: bool,
        outcome: Mapping[str, object] | TwinlogError,
        payload: Sequence[memoryview] = (),
    ) -> None:
        node, member = self._node, request.fields.get("member")
        if is_member and isinstance(member, int) and not isinstance(outcome, TwinlogError):
            self.heard[member] = asked_at
        if conn not in self._connections or node.groups is not self:
            return
        frame = answer_of(request, outcome, payload)
        node.world.groups.answered(node, request, frame)
        if node.world.plan.wire:
            head, data = frames.encode(frame)
            reader = frames.FrameReader()
            reader.feed(bytes(head) + bytes(data))
            copied = reader.next()
            assert copied is not None
            frame = copied
        node.world.network.send(node.listener, conn, frame)

    def _fetch(self, asked: Asked[T], asker: object, done: Done) -> None:
        after = self._node.world.schedule.after
        after(self._node.disk_delay(), self._fetched, self._incarnation, asked, done)

    def _fetched(self, incarnation: int, asked: Asked[T], done: Done) -> None:
        if incarnation != self._node.incarnation or not self._node.alive:
            return

        def finish(now: float) -> None:
            try:
                found = asked.look.run(lambda: False)
                fields, slices = asked.finish(found)
            except TwinlogError as error:
                done(error)
            else:
                done(fields, slices)

        self._node.tell(finish)

    # -- turns

    def after_turn(self) -> None:
        """Look what the node's last event means for groups, as the client server does."""
        now = self._node.clock.now()
        if self.queues.wants(now):
            self.queues.look(now)
        if self.queues.moved:
            self.queues.moved = False
            self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        deadline = self.queues.next_deadline(now)
        if deadline == float("inf"):
            self._due = deadline
            return
        schedule = self._node.world.schedule
        self._due = max(self._node.clock.true_time(deadline), schedule.now + 1e-6)
        schedule.at(self._due, self._tick, self._incarnation, self._due)

    def _tick(self, incarnation: int, due: float) -> None:
        if incarnation != self._node.incarnation or not self._node.alive or due != self._due:
            return
        self._node.count_tick()
        self._due = float("inf")
        self._node.tell(self._tick_now)

    def _tick_now(self, now: float) -> None:
        deadline = self.queues.next_deadline(now)
        if deadline > now + 1e-9:  # the clock stood still meanwhile
            self.queues.moved = True
            return
        self.queues.tick(now)

    # -- what the judge asks

    def serves(self) -> bool:
        """Whether groups are served now."""
        return self.queues.epoch > 0 and self.queues.context.driver.reign()[1] is None

    def clock_stands(self) -> bool:
        """Whether leases do not end: the wall clock was set back, and has not caught up."""
        clock = self.queues.context.clock
        return self._node.clock.wall_ms() < clock.ms - 500

    def standing(self) -> str:
        """Say which parked pop waits although there is something for it; empty: none does."""
        context = self.queues.context
        reads, now_ms = context.records, context.clock.ms
        reign = self._node.world.groups.reigns.get(self.queues.epoch, ("", 0.0))
        if self.clock_stands():
            return ""
        grace = self._node.world.schedule.now < reign[1] + 6.0
        for group in context.parked.groups():
            for pop in context.parked.line(group):
                for topic in pop.wish.topics:
                    for queue in range(reads.queues(topic) or 0):
                        share = context.messaging.ahead.find(group, topic, queue)
                        start, end = reads.queue_range(topic, queue)
                        if share is None:
                            continue
                        new = max(share.next, start) < end
                        full = share.full(context.limits.span_max, context.limits.runs_max)
                        definition = context.messaging.group(group)
                        attempts = definition.attempts if definition is not None else 0
                        again = [
                            run
                            for run in share.due(now_ms)
                            if run.attempt < attempts and not (grace and run.state == LEASED)
                        ]
                        if self._waits_its_turn(pop, share, again, grace=grace):
                            continue
                        if (new and not full) or again:
                            what = f"new from {share.next} of {end}" if new else f"again {again[0]}"
                            return f"{group} {topic}/{queue} {what}, pop {pop.wish.pop}"
        return ""

    def _waits_its_turn(self, pop: Pop, share: Share, again: list[Run], *, grace: bool) -> bool:
        """Whether a queue of an ordered group has nothing for a pop, or may be left to others."""
        context, member = self.queues.context, pop.wish.member
        if pop.group.mode != "ordered":
            return False
        now_ms = -1 if grace else context.clock.ms
        lasting = [run for run in share.runs if run.state == LEASED and run.until > now_ms]
        if any(run.member != member for run in lasting):
            return True
        rest = [run for run in share.runs if run.state != SETTLED and run not in lasting]
        if rest and rest[0] not in again:
            return True
        others = context.parked.line(pop.group.name)
        return bool(lasting) and any(other.session is not pop.session for other in others)


def answer_of(
    request: Frame,
    outcome: Mapping[str, object] | TwinlogError,
    payload: Sequence[memoryview] = (),
) -> Frame:
    """Return the frame that answers a request."""
    if isinstance(outcome, TwinlogError):
        frame = error_answer(request, outcome)
    else:
        data = b"".join(payload)
        frame = Frame(request.type, frames.ANSWER, fields=dict(outcome), payload=data)
    frame.request = request.request
    return frame

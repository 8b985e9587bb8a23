"""Carries out the steps of production's client dialogues in simulated time, over simulated streams.

A process of a client can be stopped for a time, and killed: what is under way is gone then.

Not here: what the dialogues are for (`tests.sim.users.members`).
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

from node.groups.context import Done
from tests.sim.judge.ledger import Violation
from tests.sim.machines.client_port import address_of
from tests.sim.machines.group_port import answer_of
from twinlog.errors import TwinlogError
from twinlog.session.link import Peer
from twinlog.session.session import (
    Ask,
    Came,
    LinkDown,
    Open,
    Opened,
    Pause,
    Send,
    Session,
    Step,
    Steps,
    Take,
)
from twinlog.wire.frames import Frame

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode
    from tests.sim.world import World

STEPS_MAX = 2000
"""Steps of a client that take no time, one after the other."""
_OPEN_SECONDS = 3.0  # until a dial gives up by itself


class Shell:
    """One client process after the other.

    Attributes:
        name: Its place in the network.
        incarnation: Number of the process.
        alive: A process runs.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.incarnation = 0
        self.alive = False
        self.rng = Random(f"{name} {world.plan.seed}")
        self.session = self._new_session()
        self._steps: Steps[None] | None = None
        self._token = 0
        self._stopped_until = 0.0
        self._conn = self._conns = 0
        self._there = ""
        self._open = False
        self._dialing: Open | None = None
        self._inbox: deque[Frame] = deque()
        self._numbers = 0
        self._takes = False

    def _new_session(self) -> Session:
        places = [address_of(name) for name in self.world.plan.nodes]
        self.rng.shuffle(places)
        session = Session(places, random=self.rng.random)
        session.now = self.world.schedule.now
        return session

    # -- the process

    def begin(self, steps: Steps[None]) -> None:
        """Start a process that does this."""
        self.incarnation += 1
        self.alive = True
        self._steps = steps
        self._go(self._token, None, None)

    def kill(self) -> None:
        """End the process at once."""
        if not self.alive:
            return
        self.world.trace(self.name, "dies")
        self._end()

    def stop_until(self, when: float) -> None:
        """Let the process stand still until then."""
        self.world.trace(self.name, "stands", f"until {when:.3f}")
        self._stopped_until = max(self._stopped_until, when)

    @property
    def stands(self) -> bool:
        """Whether the process stands still."""
        return self.world.schedule.now < self._stopped_until

    def _end(self) -> None:
        self._close()
        self.alive = False
        self._token += 1
        self._steps = None
        self._stopped_until = 0.0
        self.session = self._new_session()

    def ended(self, error: TwinlogError | None) -> None:
        """The process has done what it was to do, or could not."""

    # -- steps

    def _go(self, token: int, came: Came, down: LinkDown | None) -> None:
        """Go on with what came of the last step, until one takes time."""
        if token != self._token or self._steps is None:
            return
        schedule = self.world.schedule
        if schedule.now < self._stopped_until:
            schedule.at(self._stopped_until, self._go, token, came, down)
            return
        self._token += 1
        if self._takes and came is None and down is None and self._inbox:
            came = self._inbox.popleft()  # it came while the process stood still
        self._takes = False
        if down is not None and self._dialing is not None:
            self._close()
        error: TwinlogError | None = None
        steps_left = STEPS_MAX
        try:
            while True:
                steps_left -= 1
                if not steps_left:
                    raise Violation("NeverSpins", f"{self.name}: {STEPS_MAX} steps in no time")
                self.session.now = schedule.now
                steps = self._steps
                step = steps.throw(down) if down is not None else steps.send(came)
                came = down = None
                try:
                    done, came = self._carry(step)
                except LinkDown as found:
                    down = found
                    continue
                if not done:
                    return
        except StopIteration:
            pass
        except TwinlogError as raised:
            error = raised
        self._end()
        self.ended(error)

    def _later(self, seconds: float, came: Came, down: LinkDown | None) -> None:
        self.world.schedule.after(max(0.0, seconds), self._go, self._token, came, down)

    def _carry(self, step: Step) -> tuple[bool, Came]:
        """Begin a step; whether it is done, and what came of it."""
        match step:
            case Pause():
                self._later(step.seconds, None, None)
            case Ask():
                self._ask(step)
            case Open():
                if self._open and not step.fresh and self._there == step.address.host:
                    return True, self._opened(fresh=False)
                self._dial(step)
            case Send():
                if not self._open:
                    raise LinkDown("has ended", sent=False)
                self._numbers += 1
                frame = step.frame
                copied = Frame(
                    frame.type,
                    request=self._numbers,
                    fields=dict(frame.fields),
                    payload=bytes(frame.payload),
                )
                self.world.network.send(self, self._conn, copied)
                return True, self._numbers
            case Take():
                if self._inbox:
                    return True, self._inbox.popleft()
                if not self._open:
                    raise LinkDown("has ended", sent=True)
                if step.seconds <= 0:
                    return True, None
                self._takes = True
                self._later(step.seconds, None, None)
        return False, None

    def _ask(self, step: Ask) -> None:
        world, token = self.world, self._token
        node = world.nodes[step.address.host]
        self._later(step.seconds, None, LinkDown("was silent", sent=True))

        def heard(frame: Frame) -> None:
            self._go(token, frame, None)

        def done(frame: Frame) -> None:
            world.network.post(node.name, self.name, heard, frame)

        world.network.post(self.name, node.name, _reach, node, step.frame, done)

    # -- the own stream

    def _dial(self, step: Open) -> None:
        self._close()
        self._conns += 1
        self._conn, self._there, self._dialing = self._conns, step.address.host, step
        seconds = _OPEN_SECONDS if step.seconds is None else max(step.seconds, 0.05)
        self._later(seconds, None, LinkDown("cannot be reached", sent=False))
        self.world.network.dial(self, self._conn, self.world.nodes[self._there].listener)

    def _close(self) -> None:
        if self._conn:
            self.world.network.close(self, self._conn, "closed")
        self._conn, self._open, self._dialing = 0, False, None
        self._inbox.clear()

    def _opened(self, *, fresh: bool) -> Opened:
        peer = Peer(self._there, "sim", "g1", 4, self.world.plan.segment_size)
        return Opened(peer, ("127.0.0.1", 4000), fresh)

    def stream_opened(self, incarnation: int, conn: int) -> None:
        """A dial succeeded."""
        if incarnation != self.incarnation or conn != self._conn or self._dialing is None:
            return
        self._dialing, self._open = None, True
        self._go(self._token, self._opened(fresh=True), None)

    def stream_accepted(self, incarnation: int, conn: int) -> None:
        """Nobody dials a client."""

    def stream_frame(self, incarnation: int, conn: int, frame: object) -> None:
        """An answer arrived."""
        if incarnation != self.incarnation or conn != self._conn:
            return
        assert isinstance(frame, Frame)
        self._inbox.append(frame)
        if self._takes and not self.stands:
            self._go(self._token, self._inbox.popleft(), None)

    def stream_closed(self, incarnation: int, conn: int, why: str) -> None:
        """The stream is gone; what arrived before can still be taken."""
        if incarnation != self.incarnation or conn != self._conn:
            return
        dialing, self._dialing, self._open = self._dialing, None, False
        if dialing is not None:
            self._go(self._token, None, LinkDown(why, sent=False))
        elif self._takes and not self.stands:
            self._go(self._token, None, LinkDown(why, sent=True))


def _reach(node: SimNode, frame: Frame, done: object) -> None:
    """A question reached a machine."""
    groups = node.groups
    if groups is None or not node.alive:
        return
    assert callable(done)

    def answer(outcome: object, payload: object = ()) -> None:
        done(answer_of(frame, outcome, payload))  # type: ignore[arg-type]

    typed: Done = answer
    node.tell(groups.ask, frame, typed)

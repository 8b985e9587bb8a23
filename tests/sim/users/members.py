"""Members of groups: production's `GroupCore` and `Dialogue`, and bodies that do what bodies do.

A body takes some time, seldom longer than its lease, and says one of everything that can be said of
a message, or nothing because its process dies or stands still. Some members extend leases while a
body runs, as the awaiting client does; others are heard only between two bodies.

Not here: who dies when (`tests.sim.profiles.groups`), what must hold
(`tests.sim.invariants.messaging`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.judge.contents import STEP_TOPIC
from tests.sim.machines.shell import Shell
from twinlog.errors import LeaseLost, OutcomeUnknown, TwinlogError
from twinlog.groups.core import GroupCore, Request
from twinlog.groups.delivery import FAILED, Delivery
from twinlog.groups.dialogue import Dialogue
from twinlog.groups.leases import Held
from twinlog.groups.outcomes import Told
from twinlog.groups.settings import SHARED, GroupSettings
from twinlog.groups.together import Step
from twinlog.session.session import Pause, Steps
from twinlog.wire.frames import Frame
from twinlog.wire.groups import BACK_OFF, DONE, What

if TYPE_CHECKING:
    from tests.sim.world import World

_AGAIN_SECONDS = 1.0
"""Before a member whose process has ended begins again."""
_TURN_SECONDS = 2.0
_STEP_SECONDS = 6.0


class WatchedCore(GroupCore):
    """Production's core; the judge hears which outcomes were confirmed."""

    member_of: Member

    def _on_settled(self, request: Request, frame: Frame) -> None:
        groups = self.member_of.world.groups
        answers = frame.fields["rows"]
        assert isinstance(answers, list)
        for row, answer in zip(request.rows, answers, strict=True):
            if answer[0] == DONE and row.told.what in (What.ACK, What.REJECT):
                for offset in range(row.first, row.last + 1):
                    groups.settled(self.member_of, row.share, row.n, offset)
        super()._on_settled(request, frame)


class Member(Shell):
    """One consumer.

    Attributes:
        group: Its group.
        topics: What it consumes.
        mode: Of the group.
        bodies: Messages that its bodies have now, by (share, lease number, offset).
        calm: The world heals: bodies are quick and acknowledge.
        over: It does not begin again.
    """

    def __init__(
        self, world: World, number: int, group: str, topics: tuple[str, ...], mode: str = SHARED
    ) -> None:
        super().__init__(world, f"m{number}")
        self.group = group
        self.topics = topics
        self.mode = mode
        self.calm = False
        self.renew = self.rng.random() < 0.3
        self.lease = "fast" if self.rng.random() < world.plan.fast_share else "confirmed"
        self.batch = self.rng.choice((1, 4, 16))
        self.steps = self.rng.random() < 0.4
        self.slow = self.rng.choice((0.01, 0.05, 0.3))
        self.leaving = self.over = False
        self.held: dict[tuple[int, int, int], Held] = {}
        self.bodies: dict[tuple[int, int, int], Held] = {}
        self.core: WatchedCore | None = None

    def start(self) -> None:
        """Begin a process."""
        if self.alive or self.over:
            return
        settings = GroupSettings(
            self.group, self.topics, member=self.name, batch=self.batch, lease=self.lease,
            renew=20.0 if self.renew else 0.0, mode=self.mode,
        )  # fmt: skip
        self.leaving = False
        self.held.clear()
        self.bodies.clear()
        self.core = WatchedCore(settings, self.world.schedule.now)
        self.core.member_of = self
        self.world.trace(self.name, "starts", f"{self.group} {self.lease}")
        self.begin(self._live(self.core))

    def leave(self) -> None:
        """Leave the group once the present body has ended."""
        self.leaving = True

    def kill(self) -> None:
        """End the process at once."""
        self.bodies.clear()
        super().kill()

    def ended(self, error: TwinlogError | None) -> None:
        """It left, or could not go on: it comes back."""
        self.bodies.clear()
        if error is not None:
            self.world.events[f"member-{error.code}"] += 1
            self.world.trace(self.name, "ends", f"{error.code} {error.text}"[:160])
        after = _AGAIN_SECONDS * (0.5 + self.rng.random())
        self.world.schedule.after(after, self.start)

    # -- a life

    def _live(self, core: GroupCore) -> Steps[None]:
        dialogue, session = Dialogue(self.session, core), self.session
        while not self.leaving:
            yield from dialogue.look()
            held = core.take(session.now)
            if held is None:
                core.late()
                core.wait(session.now)
                yield from dialogue.turn(session.now + _TURN_SECONDS)
                continue
            yield from self._body(core, dialogue, held)
        core.close(session.now, FAILED)
        yield from dialogue.leave()

    def _body(self, core: GroupCore, dialogue: Dialogue, held: Held) -> Steps[None]:
        rng, session, world = self.rng, self.session, self.world
        key = (held.share, held.n, held.offset)
        self.held[key] = self.bodies[key] = held
        world.groups.body(self, held)
        spent = self.slow * 2 * rng.random()
        if rng.random() < world.plan.long_share and not self.calm:
            spent = core.invisible * (0.5 + rng.random())
        if rng.random() < world.plan.extend_share and not self.calm:
            if world.plan.extend_late:
                before = spent * rng.random()
                spent -= before
                yield Pause(before)
            core.settle(held, Told(What.EXTEND, rng.choice((1500, 4000))), session.now)
            core.urge()
            yield from dialogue.look()
        end = session.now + spent
        if self.renew:
            while session.now < end:
                yield from dialogue.turn(end)
        elif spent:
            yield Pause(spent)
        del self.bodies[key]
        chance = 1.0 if self.calm else rng.random()
        if chance < 0.04:
            self._say(core, held, What.REJECT)
        elif chance < 0.14:
            pause = rng.choice((0, 300, 1500, BACK_OFF))
            core.settle(held, Told(What.RELEASE, pause), session.now)
        elif chance < 0.18:
            core.settle(held, Told(What.UNUSED), session.now)
        elif self.steps and chance < 0.5:
            yield from self._together(core, dialogue, held)
        else:
            self._say(core, held, What.ACK)

    def _say(self, core: GroupCore, held: Held, what: What) -> None:
        self.world.groups.said(self, held, what)
        core.settle(held, Told(what), self.session.now)

    def _together(self, core: GroupCore, dialogue: Dialogue, held: Held) -> Steps[None]:
        """Send and acknowledge in one batch."""
        world, session, delivery = self.world, self.session, _delivery(held)
        step = Step(core)
        if STEP_TOPIC in world.groups.topics:
            step.send(STEP_TOPIC, world.groups.step_body(self, held))
        step.ack(delivery)
        world.groups.said(self, held, What.ACK)
        try:
            yield from dialogue.together(step, session.now + _STEP_SECONDS, world.wall_ms())
        except LeaseLost:
            world.events["step-lost"] += 1
        except OutcomeUnknown:
            world.events["step-unknown"] += 1
        except TwinlogError as error:
            world.events[f"step-{error.code}"] += 1
            core.settle(held, Told(What.RELEASE, 300), session.now)
        else:
            world.events["step-stored"] += 1
            world.groups.settled(self, held.share, held.n, held.offset)


class _Silent:
    """Deliveries of steps are told by the step."""

    def tell(self, held: Held, told: Told) -> bool:
        """Take no outcome."""
        return False


def _delivery(held: Held) -> Delivery:
    return Delivery(held, _Silent())

"""Readers that begin at some moment: everything acknowledged before it must be found.

They ask as production's client does, with its `Session`: for a route, then the master, and again
while it says that it does not know yet. What they believe in the end is held against what producers
were told before they began. Four questions: where the queues end (and then the last record that
must be there is read), which topics there are, which records have a key, what is at a log offset.

They ask without the network's delay: a moment matters here, the one behind a failover or a start.
A node that is paused does not answer, one that is down cannot be reached.

A master that was deposed and has not heard of it answers for its own time, see docs/guarantees.md:
an answer of epoch e is held against what was acknowledged in epochs up to e.

Their chances are drawn apart, so that other things happen as they would without them.

Not here: what a node answers (`tests.sim.machines.client_port`), what is fulfilled (`Askers` only
tells `tests.sim.invariants.clients.ReaderFindsAcknowledged`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tests.sim.judge.contents import BRIEF_TOPIC, LIGHTS
from tests.sim.machines.client_port import ClientPort, address_of
from twinlog.consumer.core import ReadSettings
from twinlog.consumer.start_offsets import survey
from twinlog.errors import TwinlogError, UnknownTopic
from twinlog.ranges import Mark, Point, Range
from twinlog.session.session import MASTER, Ask, LinkDown, Pause, Session, Steps
from twinlog.wire.frames import Frame, Type

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode
    from tests.sim.world import World

EVERY_SECONDS = 4.0
"""Mean time between two readers of the usual kind; each role that begins has some of its own."""
PATIENCE_SECONDS = 0.8
_BEHIND_A_ROLE = (0.0, 0.01)
"""Seconds after a node became master at which somebody begins to read."""
_EVERYTHING = Range(Point(Mark.START))
_FOUND = 8
"""Records that a search asks for: the newest are those that may be missing."""
_SKIP = 8
"""Of the moments at which queues are behind, every such one has a reader."""


@dataclass(slots=True)
class Known:
    """What clients were told up to a moment, by epoch of the master that said it.

    Attributes:
        ends: Log offset behind the last acknowledged record.
        topics: Topics whose creation was acknowledged, with that epoch.
    """

    ends: dict[int, int]
    topics: dict[str, int]

    def end(self, epoch: int) -> int:
        """Return below what a master of ``epoch`` must know all confirmed records."""
        return max((end for said, end in self.ends.items() if said <= epoch), default=0)


class Askers:
    """All who begin to read, and what was acknowledged.

    Attributes:
        believed: Answers that were held against what was acknowledged.
        again: Answers that were not believed.
        deposed: Answers of a master below the newest epoch somebody was acknowledged in.
        refused: Questions that ended without an answer.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.known = Known({}, {})
        self.believed = self.again = self.deposed = self.refused = 0
        self._rng = Random(f"askers {world.plan.seed}")
        self._ports: dict[str, ClientPort] = {}
        self._usual = self._session(world.plan.nodes)
        self._by = ""
        self._waiting = self._skipped = 0

    def start(self) -> None:
        """Begin."""
        if self.world.court.asked:
            self._turn()

    def _session(self, names: tuple[str, ...]) -> Session:
        places = [address_of(name) for name in names]
        return Session(places, random=self._rng.random)

    # -- what was acknowledged

    def acknowledged(self, epoch: int, end: int) -> None:
        """A master of ``epoch`` told a client that its record is confirmed, which ends there."""
        if epoch > max(self.known.ends, default=epoch) and self.world.court.asked:
            for node in self.world.nodes.values():  # who does not know that it is deposed
                if (node.acts_in_epoch() or epoch) < epoch:
                    self.world.schedule.after(0.0, self._fresh, node.name)
        self.known.ends[epoch] = max(self.known.ends.get(epoch, 0), end)

    def created(self, epoch: int, topic: str) -> None:
        """A master of ``epoch`` told a client that there is a topic."""
        self.known.topics.setdefault(topic, epoch)

    # -- who asks when

    def _turn(self) -> None:
        after = EVERY_SECONDS * (0.5 + self._rng.random())
        self.world.schedule.after(after, self._turn)
        if not self._waiting:  # while nobody answers, one is enough
            self._begin(self._usual)

    def master_began(self, name: str) -> None:
        """A node became master: the moment at which it may know less than was acknowledged."""
        for after in _BEHIND_A_ROLE if self.world.court.asked else ():
            self.world.schedule.after(after, self._fresh, name)

    def queues_behind(self, node: SimNode) -> None:
        """More is confirmed than the queues have: sometimes somebody asks before they have it."""
        if node.acts_in_epoch() is not None and self.world.court.asked:
            self._skipped += 1
            if self._skipped % _SKIP == 1:
                self.world.schedule.after(0.0, self._fresh, node.name)

    def _fresh(self, name: str) -> None:
        if self.known.topics:
            self._begin(self._session((name, *self.world.plan.nodes)))

    def ask_all(self) -> str:
        """Ask everything once, in a healed world; returns what went without an answer."""
        lacking: list[str] = []
        for question in (self._offsets, self._topics):
            believed = self.believed
            self._ask(question, self._session(self.world.plan.nodes))
            if self.believed == believed:
                lacking.append(question.__name__)
        return ", ".join(lacking)

    def _begin(self, session: Session) -> None:
        draw, question = self._rng.random(), self._offsets
        if draw > 0.6:
            question = self._find if draw < 0.8 else self._get if draw < 0.9 else self._topics
        self._ask(question, session)

    def _ask(self, question: Callable[[Session, float], Steps[None]], session: Session) -> None:
        self._waiting += 1
        self._go(session, question(session, self.world.schedule.now + PATIENCE_SECONDS))

    # -- carrying out

    def _go(
        self,
        session: Session,
        steps: Steps[None],
        sent: Frame | None = None,
        thrown: LinkDown | None = None,
    ) -> None:
        """Carry steps out until one takes time, or they end."""
        after = self.world.schedule.after
        try:
            while True:
                session.now = self.world.schedule.now
                step = steps.throw(thrown) if thrown is not None else steps.send(sent)
                sent = thrown = None
                if isinstance(step, Pause):
                    after(step.seconds, self._go, session, steps)
                    return
                assert isinstance(step, Ask), "questions have no connection of their own"
                node = self.world.nodes[step.address.host]
                if node.paused:
                    silent = LinkDown("was silent", sent=True)
                    after(step.seconds, self._go, session, steps, None, silent)
                    return
                if not node.alive or node.driver is None or node.name in self.world.rotten:
                    thrown = LinkDown("cannot be reached", sent=False)
                    continue
                sent = self._asked(node, step)
        except StopIteration:
            self._waiting -= 1
        except TwinlogError as error:
            self._waiting -= 1
            self._refused(error)

    def _refused(self, error: TwinlogError) -> None:
        self.refused += 1
        self.world.trace("asker", "refused", f"{error.code} {error.text}")

    def _asked(self, node: SimNode, step: Ask) -> Frame:
        port = self._ports.get(node.name)
        if port is None or port.incarnation != node.incarnation:
            port = self._ports[node.name] = ClientPort(node)
        self._by = node.name
        node.disk.faults.asleep = True  # how a disk breaks is tested elsewhere
        try:
            answer = port.ask(step.frame)
        finally:
            node.disk.faults.asleep = False
        route = step.frame.fields.get("topics") == []
        self.again += not route and answer.fields.get("settled") is False
        return answer

    def _judged(self, known: Known) -> tuple[SimNode, int, int]:
        """Return who just answered, in which epoch, and where what it must know ends."""
        node = self.world.nodes[self._by]
        epoch = node.acts_in_epoch()
        if epoch is None:
            self._fail(node, -1, "is none")
            epoch = -1
        self.believed += 1
        self.deposed += epoch < max(known.ends, default=0)
        return node, epoch, known.end(epoch)

    def _now_known(self) -> Known:
        return Known(dict(self.known.ends), dict(self.known.topics))

    # -- questions

    def _offsets(self, session: Session, deadline: float) -> Steps[None]:
        """Where a topic's queues end, and the last record that must be there."""
        known, begin = self._now_known(), self.world.schedule.now
        lights = list(LIGHTS) if self.world.plan.lights else []
        topic = self._rng.choice(sorted(known.topics) + lights)
        settings = ReadSettings(topic, read_from=MASTER)
        asked = survey(
            session, settings, _EVERYTHING, queue=None, deadline=deadline,
            wall_ms=self.world.wall_ms(),
        )  # fmt: skip
        try:
            cursors = yield from asked
        except UnknownTopic:
            self._unknown(topic, known)
            return
        node, epoch, below = self._judged(known)
        for cursor in cursors:
            rows = self.world.contents.queues.get((topic, cursor.queue), [])
            wanted = bisect_left(rows, below, key=lambda row: row.log_offset)
            place = f"{topic}/{cursor.queue}"
            if cursor.stop is None or cursor.stop < wanted:
                self._fail(node, epoch, f"{place} ends at {cursor.stop}, {wanted} acknowledged")
                continue
            self.world.history.ends(node.name, topic, cursor.queue, begin, cursor.stop, epoch)
            if wanted > cursor.next:
                at = rows[wanted - 1].queue_offset
                if self.world.readers.read(node, topic, cursor.queue, at, 1) == at:
                    self._fail(node, epoch, f"{place} has nothing at {at}, {wanted} acknowledged")

    def _unknown(self, topic: str, known: Known) -> None:
        node = self.world.nodes[self._by]
        epoch = node.acts_in_epoch()
        created = known.topics.get(topic, 0)
        if epoch is None or epoch >= created:
            self._fail(node, epoch or -1, f"there is no topic {topic}, created in {created}")

    def _topics(self, session: Session, deadline: float) -> Steps[None]:
        """Which topics there are."""
        known = self._now_known()
        answer = yield from session.call(Type.METADATA, {}, deadline=deadline, to=MASTER)
        node, epoch, _ = self._judged(known)
        told = answer.fields["topics"]
        assert isinstance(told, dict)
        for topic, created in known.topics.items():
            if created <= epoch and topic not in told:
                self._fail(node, epoch, f"lists no topic {topic}, created in epoch {created}")

    def _find(self, session: Session, deadline: float) -> Steps[None]:
        """Which records have a key."""
        known = self._now_known()
        keyed = {one: rows for one, rows in self.world.contents.keyed.items()
                 if one[0] != BRIEF_TOPIC}  # fmt: skip
        if not keyed:
            return
        topic, key = self._rng.choice(sorted(keyed))
        fields: dict[str, object] = {"topic": topic, "key": key, "max": _FOUND}
        nothing: dict[str, object] = dict.fromkeys(("begin", "end", "before", "unique"))
        fields = {**fields, **nothing, "timeout_ms": None}
        answer = yield from session.call(Type.FIND, fields, deadline=deadline, to=MASTER)
        node, epoch, below = self._judged(known)
        assert node.store is not None
        start = node.store.start
        wanted = [row.log_offset for row in keyed[topic, key] if start <= row.log_offset < below]
        data, at, found = bytes(answer.payload), 0, set[int]()
        while at < len(data):
            found.add(int.from_bytes(data[at + 28 : at + 36], "big"))
            at += int.from_bytes(data[at : at + 4], "big")
        lacking = set(wanted[-_FOUND:]) - found
        if lacking and len(found) < _FOUND:
            self._fail(node, epoch, f"{topic}#{key} finds {len(found)}, not {min(lacking)}")

    def _get(self, session: Session, deadline: float) -> Steps[None]:
        """What is at the log offset of the last acknowledged record of a queue."""
        known = self._now_known()
        newest = max(known.ends.values(), default=0)
        queues = self.world.contents.queues
        rows = queues.get((self._rng.choice(sorted(known.topics)), 0), [])
        count = bisect_left(rows, newest, key=lambda row: row.log_offset)
        if not count:
            return
        at = rows[count - 1].log_offset
        fields: dict[str, object] = {"log_offset": at, "host": None}
        answer = yield from session.call(Type.GET, fields, deadline=deadline, to=MASTER)
        store = self.world.nodes[self._by].store
        if answer.fields["status"] == "found" or store is None or at < store.start:
            self.believed += 1  # whoever says so: it is there, or retention took it
            return
        node, epoch, below = self._judged(known)
        if at < below:
            self._fail(node, epoch, f"{answer.fields['status']} at log offset {at}")

    def _fail(self, node: SimNode, epoch: int, text: str) -> None:
        for one in self.world.court.asked:
            one.asked(f"{node.name} answers as master of epoch {epoch}: {text}")

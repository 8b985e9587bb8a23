"""How a producer begins, finds its master, and when it doubts the one that it has.

The dialogues are calls as in ``twinlog.session.session``: they yield steps, which the blocking and
the awaiting producer carry out over a connection of their own.

Pure. Not here: what is sent and resent (``twinlog.producer.core``).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from twinlog.errors import TwinlogError, UsageError
from twinlog.producer.core import ProducerCore, Request
from twinlog.producer.settings import ProducerSettings, Target
from twinlog.producer.single_sends import Origin
from twinlog.session.routing import Address, parse_route
from twinlog.session.session import MASTER, LinkDown, Open, Opened, Pause, Session, Steps
from twinlog.wire.frames import Frame, Type

ROUTE_SECONDS: Final = 2.0
"""How long one search for the master lasts before the deadlines of sections are looked at."""

LOOK_SECONDS: Final = 30.0
"""How often the number of the topic's queues is asked again: RocketMQ's clients do so as often."""

PATIENCE_SECONDS: Final = 1.0
"""How long the master may be silent before the other nodes are asked who is master: one that was
paused or cut off keeps its connections open, and its successor is waiting for what it has."""


class MasterLink:
    """See the module.

    Args:
        session: Of the client.
        topic: Where the records go.
        settings: How.
        random: Numbers from 0 to 1 for the jitter of retries.
        identity: (producer id, producer epoch) given from outside (`Target.epoch`); None: a node
            gives one.
        origin: Who a client's sender is (``twinlog.producer.single_sends``).

    Attributes:
        core: None until `start` has ended.
        heard: When the last answer came, seconds.
        look_at: When the topic's queues are to be asked again, seconds.
    """

    def __init__(
        self,
        session: Session,
        topic: str,
        settings: ProducerSettings,
        *,
        random: Callable[[], float],
        identity: tuple[int, int] | None = None,
        origin: Origin | None = None,
    ) -> None:
        UsageError.check_text("topic", topic)
        self.core: ProducerCore | None = None
        self.heard = 0.0
        self.look_at = inf
        self._session = session
        self._topic = topic
        self._settings = settings
        self._random = random
        self._identity = identity
        self._origin = origin or Origin()
        self._asked: Address | None = None
        self._numbers: dict[int, int] = {}

    def start(self, deadline: float) -> Steps[ProducerCore]:
        """Ask what must be known before the first record can be encoded, and connect.

        Raises:
            UnknownTopic: It does not exist.
            TopicClosed: It may not be written.
            Unavailable: No master could be asked before ``deadline``.
        """
        session, origin = self._session, self._origin
        fields: dict[str, object] = {"topics": [self._topic]}
        answer = yield from session.call(Type.METADATA, fields, deadline=deadline, to=MASTER)
        route = parse_route(answer.fields)
        session.table.learn(route)
        queues = route.takes(self._topic)
        self.look_at = session.now + LOOK_SECONDS
        producer, epoch = self._identity or (origin.producer, None)
        if not producer:
            given = yield from session.call(Type.PRODUCER, {}, deadline=deadline, to=MASTER)
            number = given.fields["producer"]
            assert isinstance(number, int), "schema.check"
            producer = origin.producer = number
        opened = yield from self._connect(deadline)
        target = Target(
            topic=self._topic,
            queues=queues,
            family=opened.peer.family,
            producer=producer,
            message_size_max=route.message_size_max,
            segment_size=opened.peer.segment_size,
            born_host=opened.local,
            batch=self._topic in route.batched,
            epoch=epoch,
            first_epoch=origin.epoch,
        )
        self.core = ProducerCore(target, self._settings, random=self._random)
        self.core.unrouted = False
        return self.core

    def must_look(self, now: float) -> bool:
        """Whether it is time for `look`."""
        core = self.core
        return now >= self.look_at or (core is not None and core.narrowed)

    def look(self, deadline: float) -> Steps[None]:
        """Ask how many queues of the topic take messages now, and use those.

        Where no master can say so, or the topic takes no messages, it is asked again later, and
        sending goes on as before.
        """
        session, core = self._session, self.core
        assert core is not None, "started"
        until = min(deadline, session.now + ROUTE_SECONDS)
        fields: dict[str, object] = {"topics": [self._topic]}
        try:
            answer = yield from session.call(Type.METADATA, fields, deadline=until, to=MASTER)
            core.lanes.resize(parse_route(answer.fields).takes(self._topic))
        except TwinlogError:
            pass
        self.look_at, core.narrowed = session.now + LOOK_SECONDS, False

    def _connect(self, deadline: float) -> Steps[Opened]:
        """Connect to the master, looking for it until ``deadline``."""
        session, attempt = self._session, 0
        while True:
            try:
                return (yield from self._reach(deadline))
            except LinkDown as down:
                pause = session.pause(attempt)
                attempt += 1
                if deadline - session.now <= pause or session.table.stranger is not None:
                    raise down.error(f"the master {self._asked}") from None
                yield Pause(pause)

    def _reach(self, deadline: float, error: TwinlogError | None = None) -> Steps[Opened]:
        """Connect to the master once, the node asked last having failed or refused.

        Raises:
            LinkDown: It could not be reached.
        """
        session = self._session
        asked, self._asked = self._asked, None
        address = yield from session.successor(asked, error, deadline)
        self._asked = address
        try:
            opened = yield Open(address, deadline - session.now)
        except LinkDown as down:
            self.lost(session.now)
            session.table.suspect(address, down.stranger)
            raise
        assert isinstance(opened, Opened), "what an Open is answered by"
        if opened.fresh:
            self.lost(session.now)
            session.table.trust(address)
        return opened

    def route(self, deadline: float) -> Steps[None]:
        """Look for the master once; when that does not succeed, wait before the next time."""
        core = self.core
        assert core is not None, "started"
        refused = core.refusal if core.refusal and core.refusal.code == "not-master" else None
        try:
            yield from self._reach(min(deadline, self._session.now + ROUTE_SECONDS), refused)
        except LinkDown as down:
            core.postpone(self._session.now, down.error(f"the master {self._asked}"))
        except TwinlogError as error:
            core.postpone(self._session.now, error)
        else:
            core.unrouted = False

    def doubt(self, address: Address, deadline: float) -> Steps[bool]:
        """Ask the other nodes who is master; say whether the silent one must be left."""
        session = self._session
        session.table.suspect(address)
        yield from session.refresh(min(deadline, session.now + ROUTE_SECONDS))
        self.heard = session.now
        return session.table.master != address

    def sent(self, number: int, request: Request, now: float) -> None:
        """Take note that a request is sent under a number of the connection's."""
        self._numbers[number] = request.number
        core = self.core
        # With nothing in flight before, the silence begins now; an idle master owes no answer.
        if core is not None and core.in_flight == 1:
            self.heard = now

    def answered(self, answer: Frame, now: float) -> int:
        """Return the number of the request that is answered; -1: of none."""
        self.heard = now
        return self._numbers.pop(answer.request, -1)

    def lost(self, now: float) -> None:
        """Take note that the connection has ended: what was under way is sent again."""
        self._numbers.clear()
        if self.core is not None:
            self.core.on_lost(now)

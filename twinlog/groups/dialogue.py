"""The dialogue of a group's member with the master: find it, ask, take answers, doubt a silent one.

Calls as in ``twinlog.session.session``: they yield steps, which a shell carries out over a
connection of the member's own.

Pure. Not here: what is asked and what answers mean (``twinlog.groups.core``).
"""

from __future__ import annotations

from typing import Final

from twinlog.errors import LeaseLost, TwinlogError, Unavailable
from twinlog.groups.core import GroupCore
from twinlog.groups.together import Step
from twinlog.session.routing import Address
from twinlog.session.session import LinkDown, Open, Opened, Pause, Send, Session, Steps, Take
from twinlog.wire.frames import Frame, FrameError

ROUTE_SECONDS: Final = 2.0
"""How long one search for the master lasts."""

SEND_SECONDS: Final = 2.0
"""How long a node may take to receive a request."""


class Dialogue:
    """See the module.

    Args:
        session: Of the client.
        core: What is asked.
    """

    def __init__(self, session: Session, core: GroupCore) -> None:
        self.at: Address | None = None
        self._unreached: Address | None = None
        """The last master that could not be connected to: the others are asked who it is now."""
        self._session = session
        self._core = core
        self._attempt = 0

    def turn(self, until: float) -> Steps[bool]:
        """Send what is to be sent and take one answer; False when none came before ``until``.

        Raises:
            TwinlogError: The member cannot go on.
        """
        core, session = self._core, self._session
        yield from self.say()
        now = session.now
        if core.unrouted or now < core.retry_at:
            yield Pause(max(0.0, min(until, core.retry_at) - now))
            return False
        return (yield from self._hear(min(until, core.wake(now))))

    def look(self) -> Steps[None]:
        """Send what is to be sent and take the answers that are there; never waits."""
        core, session = self._core, self._session
        if core.unrouted or session.now < core.retry_at:
            return
        yield from self.say()
        while not core.unrouted:
            if not (yield from self._hear(session.now)):
                break

    def say(self) -> Steps[None]:
        """Send every request that should be under way, looking for the master first."""
        core, session = self._core, self._session
        if core.unrouted and session.now >= core.retry_at:
            yield from self.route()
        for request in core.requests(session.now):
            if core.unrouted:
                core.unsent(request)
                continue
            frame = Frame(request.type, fields=request.fields, payload=request.payload)
            try:
                number = yield Send(frame, SEND_SECONDS)
            except LinkDown as down:
                core.unsent(request)
                self.lost(down.why)
                continue
            assert isinstance(number, int), "what a Send is answered by"
            core.on_sent(number, request, session.now)

    def _hear(self, until: float) -> Steps[bool]:
        """Wait for an answer and take it; False when none came in time."""
        core, session = self._core, self._session
        try:
            answer = yield Take(max(0.0, until - session.now))
            if answer is None:
                if core.silent(session.now):
                    yield from self.doubt()
                return False
            assert isinstance(answer, Frame), "what a Take is answered by"
            self.heard(answer)
        except FrameError as error:
            self.lost(f"broke the protocol: {error.text}")
        except LinkDown as down:
            self.lost(down.why)
        return True

    def heard(self, answer: Frame) -> None:
        """Take one answer.

        Raises:
            TwinlogError: The member cannot go on.
        """
        core = self._core
        core.on_answer(answer.request, answer, self._session.now, self._pause())
        if not answer.is_error:
            self._attempt = 0

    def route(self) -> Steps[None]:
        """Look for the master once and connect to it; without success, wait before the next time.

        Raises:
            TwinlogError: No node has answered for too long.
        """
        core, session = self._core, self._session
        asked, self.at = self.at or self._unreached, None
        try:
            deadline = core.limit(session.now + ROUTE_SECONDS)
            address = yield from session.successor(asked, core.refusal, deadline)
            opened = yield Open(address, core.limit(session.now + ROUTE_SECONDS) - session.now)
        except LinkDown as down:
            if session.table.master is not None:
                self._unreached = session.table.master
                session.table.suspect(session.table.master, down.stranger)
            core.on_lost(session.now, down.error("the master"), self._pause())
            return
        except TwinlogError as error:
            core.on_lost(session.now, error, self._pause())
            return
        assert isinstance(opened, Opened), "what an Open is answered by"
        if opened.fresh:
            session.table.trust(address)
        self.at, self._unreached = address, None
        core.local, core.segment_size = opened.local, opened.peer.segment_size
        core.routed(fresh=opened.fresh)

    def doubt(self) -> Steps[None]:
        """Ask the other nodes who is master, and leave the silent one if it is another."""
        session, address = self._session, self.at
        if address is None:
            return
        session.table.suspect(address)
        yield from session.refresh(self._core.limit(session.now + ROUTE_SECONDS))
        if session.table.master not in (None, address):
            self.lost("does not answer, and another node is master")
        else:
            self._core.patient(session.now)

    def lost(self, why: str) -> None:
        """Take note that the connection is of no more use.

        Raises:
            TwinlogError: No node has answered for too long.
        """
        address = self.at
        if address is not None:
            self._session.table.suspect(address)
        self._core.on_lost(self._session.now, Unavailable(f"{address} {why}"), self._pause())

    def _pause(self) -> float:
        self._attempt += 1
        return self._session.pause(self._attempt - 1)

    # ── calls ───────────────────────────────────────────────────────────────────────────────────

    def settle(self, deadline: float) -> Steps[list[LeaseLost]]:
        """Wait until every outcome so far is confirmed; return those without success.

        Raises:
            Unavailable: Not all were before ``deadline``: they may or may not count, and are sent
                again.
        """
        core, session = self._core, self._session
        core.urge()
        while not core.settled:
            if session.now >= deadline:
                raise Unavailable("not every outcome was confirmed in time; they are sent again")
            core.urge()
            yield from self.turn(deadline)
        return core.collect()

    def together(self, step: Step, deadline: float, now_ms: int) -> Steps[None]:
        """Carry out a step.

        Raises:
            LeaseLost: Nothing was done: a message was no longer this member's.
            OutcomeUnknown: It may or may not have been carried out.
            TwinlogError: Nothing was done.
        """
        core, session = self._core, self._session
        request = yield from step.prepare(session, deadline, now_ms)
        core.begin(request)
        while (answer := core.answered(deadline, session.now)) is None:
            yield from self.turn(deadline)
        step.finish(answer)

    def leave(self) -> Steps[None]:
        """Say what is left to say and leave the group; `GroupCore.close` was called before."""
        core, session = self._core, self._session
        while not core.closed(session.now):
            yield from self.turn(core.wake(session.now))

"""The dialogue of a reader with the nodes: choose one, ask ahead, take answers, try another.

`Fetching.fetch` is a call as in ``twinlog.session.session``: it yields steps, which a shell carries
out over a connection of the reader's own, and returns the next messages. The next answer is asked
for before the messages of the last one are handed out, so the node works while the caller does.

Pure. Not here: which node, how long, and what an answer means (``twinlog.consumer.core``).
"""

from __future__ import annotations

from collections import deque

from twinlog.consumer.core import FOLLOW_WAIT_MS, ReaderCore
from twinlog.errors import TwinlogError, Unavailable
from twinlog.format.messages import Message
from twinlog.session.reading import STALE_HINT
from twinlog.session.routing import Address
from twinlog.session.session import (
    ANY,
    MASTER,
    SLAVE,
    LinkDown,
    Open,
    Opened,
    Pause,
    Send,
    Session,
    Steps,
    Take,
)
from twinlog.wire.frames import Frame, FrameError, Type

SILENCE_SECONDS = 5.0
"""How long a node may take for an answer, beyond what it was allowed to wait; then another one is
asked. Reading a megabyte from a slow disk takes a tenth of it."""


class Fetching:
    """See the module.

    Args:
        session: Of the client.
        core: What is read and how far it is.
    """

    def __init__(self, session: Session, core: ReaderCore) -> None:
        self._session = session
        self._core = core
        self._at: Address | None = None
        self._attempt = 0

    def fetch(self, *, once: bool = False) -> Steps[deque[Message] | None]:
        """Wait for the next messages, those after them asked for already; None at the end.

        ``once``: return without messages as well, after one answer or pause.

        Raises:
            TwinlogError: See `Client.read`.
        """
        core = self._core
        while True:
            yield from self._ask()
            if core.messages:
                messages, core.messages = core.messages, deque[Message]()
                return messages
            if core.done:
                return None
            yield from self._wait()
            if once and not core.messages:
                return core.messages

    def _ask(self) -> Steps[None]:
        """Send every request that should be under way, to the node that should have it."""
        core, now = self._core, self._session.now
        if core.done or now < core.retry_at:
            return
        if core.unrouted or self._at is None:
            yield from self._route()
        for cursor, fields in core.wanted(self._session.now):
            try:
                number = yield Send(Frame(Type.READ, fields=fields), SILENCE_SECONDS)
            except LinkDown as down:
                self._lost(down.why)
                return
            assert isinstance(number, int), "what a Send is answered by"
            core.on_asked(number, cursor)

    def _wait(self) -> Steps[None]:
        """Wait for the next answer and take it, or for the time of the next attempt."""
        core, now = self._core, self._session.now
        if now < core.retry_at or self._at is None:
            yield Pause(max(0.0, core.retry_at - now))
            return
        patience = SILENCE_SECONDS + (FOLLOW_WAIT_MS / 1000 if core.settings.follow else 0.0)
        try:
            answer = yield Take(patience)
            if answer is None:
                raise LinkDown(f"did not answer within {patience:g} s", sent=True)
            assert isinstance(answer, Frame), "what a Take is answered by"
            core.on_answer(answer.request, answer, self._session.now, self._pause())
        except FrameError as error:
            self._lost(f"broke the protocol: {error.text}")
        except LinkDown as down:
            self._lost(down.why)
        else:
            if core.messages:
                self._attempt = 0

    def _route(self) -> Steps[None]:
        """Connect to the node that the core chooses."""
        core, session = self._core, self._session
        address = core.choose(session.now)
        if address is None or session.table.suspected(address):
            yield from session.refresh(session.now + SILENCE_SECONDS)
            address = core.choose(session.now)
        wanted = core.settings.read_from
        if address is None and wanted not in (ANY, MASTER, SLAVE):
            try:
                yield from session.address_of(wanted, session.now + SILENCE_SECONDS)
            except Unavailable as error:
                self._failed(error)
                return
            address = core.choose(session.now)
        if address is None:
            hint = STALE_HINT if wanted == MASTER else None
            self._failed(Unavailable(f"{wanted} does not serve clients now", hint=hint))
            return
        try:
            opened = yield Open(address, fresh=self._at is None)
        except LinkDown as down:
            session.table.suspect(address, down.stranger)
            self._at = None
            self._failed(down.error(address))
            return
        assert isinstance(opened, Opened), "what an Open is answered by"
        if opened.fresh:
            session.table.trust(address)
        self._at = address
        core.routed(fresh=opened.fresh)

    def _pause(self) -> float:
        self._attempt += 1
        return self._session.pause(self._attempt - 1)

    def _lost(self, why: str) -> None:
        """The connection is of no more use; the next `Open` closes what is left of it."""
        address, self._at = self._at, None
        if address is not None:
            self._session.table.suspect(address)
        self._failed(Unavailable(f"{address} {why}"))

    def _failed(self, error: TwinlogError) -> None:
        self._core.on_lost(self._session.now, error, self._pause())

"""Reading, blocking: a `ReaderCore` with one connection of its own.

The next answer is asked for before the messages of the last one are handed out, so the node works
while the caller does.

Not here: which node, how long, and what an answer means (``twinlog.reading``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from twinlog.connection import Connection
from twinlog.errors import TwinlogError, Unavailable
from twinlog.messages import Message
from twinlog.reading import FOLLOW_WAIT_MS, Cursor, ReaderCore, ReadSettings
from twinlog.session import LinkDown
from twinlog.wire import Frame, FrameError, Type

if TYPE_CHECKING:
    from twinlog.client import Client

SILENCE_SECONDS = 5.0
"""How long a node may take for an answer, beyond what it was allowed to wait; then another one is
asked. Reading a megabyte from a slow disk takes a tenth of it."""


def read_messages(
    client: Client, settings: ReadSettings, cursors: list[Cursor]
) -> Iterator[Message]:
    """Yield the messages of ``cursors`` in order; closing the iterator closes the connection.

    Raises:
        TwinlogError: See `Client.read`.
    """
    reader = _Reader(client, settings, cursors)
    try:
        core = reader.core
        while True:
            reader.ask()
            if core.messages:
                batch, core.messages = core.messages, type(core.messages)()
                yield from batch
                core.consumed(time.monotonic())
            elif core.done:
                return
            else:
                reader.wait()
    finally:
        reader.close()


class _Reader:
    def __init__(self, client: Client, settings: ReadSettings, cursors: list[Cursor]) -> None:
        self._client = client
        now = time.monotonic()
        self.core = ReaderCore(settings, cursors, client.session.table, now)
        self._connection: Connection | None = None
        self._attempt = 0
        self._heard = now

    def close(self) -> None:
        """Close the connection; answers under way are dropped."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self) -> None:
        """Send every request that should be under way, to the node that should have it."""
        now = time.monotonic()
        core = self.core
        if core.done or now < core.retry_at:
            return
        if core.unrouted or self._connection is None:
            self._route(now)
        connection = self._connection
        for cursor, fields in core.wanted(now):
            if connection is None:
                return
            try:
                number = connection.send(Frame(Type.READ, fields=fields), SILENCE_SECONDS)
            except LinkDown as down:
                self._lost(connection, down)
                return
            core.on_asked(number, cursor)

    def wait(self) -> None:
        """Wait for the next answer and take it, or for the next attempt's time."""
        now, core, connection = time.monotonic(), self.core, self._connection
        if now < core.retry_at or connection is None:
            time.sleep(max(0.0, core.retry_at - now))
            return
        patience = SILENCE_SECONDS + (FOLLOW_WAIT_MS / 1000 if core.settings.follow else 0.0)
        try:
            answer = connection.take(patience)
            if answer is None:
                raise LinkDown(f"did not answer within {patience:g} s", sent=True)
            now = time.monotonic()
            core.on_answer(answer.request, answer, now, self._pause())
        except FrameError as error:
            down = LinkDown(f"left the rules of the wire: {error.text}", sent=True)
            self._lost(connection, down)
        except LinkDown as down:
            self._lost(connection, down)
        else:
            if core.messages:
                self._attempt = 0

    def _pause(self) -> float:
        self._attempt += 1
        return self._client.session.pause(self._attempt - 1)

    def _route(self, now: float) -> None:
        """Connect to the node that the core chooses."""
        core, session = self.core, self._client.session
        address = core.choose(now)
        if address is None or session.table.suspected(address):
            self._client.run(session.refresh(now + SILENCE_SECONDS))
            address = core.choose(now)
        if address is None:
            text = f"{core.settings.read_from} does not serve clients now"
            self._fell(Unavailable(text))
            return
        connection = self._connection
        fresh = connection is None or connection.address != address
        if fresh:
            self.close()
            try:
                self._connection = Connection(address, client=self._client.name)
            except LinkDown as down:
                session.table.suspect(address)
                self._fell(Unavailable(f"{address} {down.why}"))
                return
            session.table.trust(address)
        core.routed(fresh=fresh)

    def _lost(self, connection: Connection, down: LinkDown) -> None:
        self._client.session.table.suspect(connection.address)
        self.close()
        self._fell(Unavailable(f"{connection.address} {down.why}"))

    def _fell(self, error: TwinlogError) -> None:
        now = time.monotonic()
        self.core.on_lost(now, error, self._pause())

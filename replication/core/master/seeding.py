"""Seeds: for slaves that lack bytes which retention has deleted here.

Such a slave deletes its log and begins again at this master's oldest file, with the confirmed state
as of there (the *seed*, R57). A seed is made once per link and sent in pieces; the slave requests
each piece by the number of bytes it already has.

Units: bytes. Not here: the content of a seed (``storage``), when a slave may delete its log
(``following``). Rules: docs/protocol.md R39, R57.
"""

from __future__ import annotations

from dataclasses import dataclass

from replication.core import commands, messages
from replication.core.context import Context
from replication.settings import SEED_BYTES_MAX, SEED_PIECE_BYTES


@dataclass(slots=True)
class Seeding:
    """A slave that begins again; ``data`` is its seed, empty until it is made."""

    node: str
    session: int
    data: bytes = b""


class Seeds:
    """The slaves that begin again, by link."""

    def __init__(self, context: Context, epoch: int) -> None:
        self._context = context
        self._epoch = epoch
        self._seeds: dict[int, Seeding] = {}

    def ask(self, conn: int, hello: messages.Hello, at: int) -> str:
        """Send the piece at ``at``; for the first piece the seed is made.

        Returns:
            Why the link must be closed; empty to continue.
        """
        asked = self._seeds.get(conn)
        if at and asked is not None:
            return self._send(conn, asked, at)
        # One seed per slave: a slave that reconnects must not leave its old ones in memory.
        for other in [one for one, seed in self._seeds.items() if seed.node == hello.node]:
            del self._seeds[other]
        self._seeds[conn] = Seeding(hello.node, hello.session)
        self._context.do(commands.MakeSeed(conn))
        return ""

    def on_made(self, conn: int, data: bytes | None) -> str:
        """Send the first piece of a seed; None: the log changed while it was made.

        Returns:
            Why the link must be closed; empty to continue.
        """
        asked = self._seeds.get(conn)
        if asked is None:
            return ""  # the link ended, or the slave came back on another one
        asked.data = data or b""
        if data is None or len(data) > SEED_BYTES_MAX:
            why = "the log changed meanwhile" if data is None else f"the seed has {len(data)} bytes"
            error = messages.HelloErr(self._epoch, asked.session, "BUSY", why)
            self._context.do(commands.Send(conn, error))
            return why
        return self._send(conn, asked, 0)

    def _send(self, conn: int, asked: Seeding, at: int) -> str:
        total = len(asked.data)
        if at >= total:
            return f"a piece at {at} was requested of a seed of {total} bytes"
        piece = memoryview(asked.data)[at : at + SEED_PIECE_BYTES]
        name = self._context.node.name
        seed = messages.Seed(self._epoch, asked.session, name, at, total, piece)
        self._context.do(commands.Send(conn, seed))
        return ""

    def forget(self, conn: int) -> None:
        """The link has ended."""
        self._seeds.pop(conn, None)

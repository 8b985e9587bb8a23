"""Asking other nodes for a batch that is damaged here.

Any node has it below its confirm offset, and answers as it does an archive (``LOG``): bytes as they
lie, with their entries. Nodes are asked in turn, the master first, until one gives a copy whose
entry is right; whether it is the batch that this node lost, the store decides (`storage.scrub`).

Runs in a thread. Units: log offsets in bytes, seconds. Not here: when to ask
(``replication.driver.scrubbing``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.clients.presence import Presence
from storage.log.segments import covered
from twinlog.errors import TwinlogError
from twinlog.format.batch_index import BatchEntry
from twinlog.kernels import crc32c
from twinlog.session.connection import Connection
from twinlog.session.link import error_of
from twinlog.session.routing import Address
from twinlog.session.session import LinkDown
from twinlog.wire.frames import Frame, FrameError, Type

if TYPE_CHECKING:
    from twinlog.session.connection import Secure
    from twinlog.session.tls_files import Login


NODE_SECONDS = 5.0
"""What one node has for one question."""
FIRST_BYTES = 64 * 1024
"""Asked for at first, for the entry: what fills a file up may be long, and only its head counts."""


class PeerCopies:
    """See the module.

    Args:
        presence: Who else is there.
        secure: Returns the context for TLS; None: none is spoken.
        login: Who a node is to other nodes; None: they do not ask.
    """

    def __init__(
        self, presence: Presence, secure: Secure | None = None, login: Login | None = None
    ) -> None:
        self._presence = presence
        self._secure, self._login = secure, login

    def fetch(self, start: int, length: int) -> tuple[bytes | None, str]:
        """Return the batch of ``length`` bytes at ``start`` and who gave it; or None and why."""
        own, why = self._presence.own.get("name"), list[str]()
        others = [one for one in self._presence.entries() if one.get("name") != own]
        for entry in sorted(others, key=lambda one: one.get("role") != "master"):
            name = str(entry.get("name"))
            address = self._presence.address(name, "client_port")
            if address is None:
                continue
            try:
                connection = Connection(
                    Address(*address), client="scrub", seconds=NODE_SECONDS,
                    secure=self._secure, login=self._login,
                )  # fmt: skip
                data = _ask(connection, start, length)
            except (LinkDown, FrameError) as error:
                why.append(f"{name}: {error}")
            except TwinlogError as error:
                why.append(f"{name}: {error.text}")
            else:
                if data is not None:
                    return data, name
                why.append(f"{name} has no whole copy of it")
        return None, "; ".join(why) or "no other node is known"


def _ask(connection: Connection, start: int, length: int) -> bytes | None:
    """Return a node's copy, proven by its own entry; None when it has none."""
    try:
        found, entry, wanted = bytearray(), None, min(length, FIRST_BYTES)
        while len(found) < wanted:
            fields: dict[str, object] = {"offset": start + len(found), "max_bytes": wanted}
            answer = connection.ask(Frame(Type.LOG, fields=fields), NODE_SECONDS)
            if answer.is_error:
                raise error_of(answer)
            if not len(answer.payload):
                return None
            found += answer.payload
            if entry is None:
                entries = answer.fields.get("entries")
                entry = BatchEntry.unpack(entries) if isinstance(entries, bytes) else None
                if entry is None or (entry.start, entry.length) != (start, length):
                    return None
                wanted = covered(entry)
    finally:
        connection.close()
    data = bytes(memoryview(found)[:wanted])
    return data if entry is not None and crc32c(data) == entry.crc else None

"""What comes out of one APPEND: its batches stored, or why not.

Not here: whether the frame fits the session (``following``), the way out (``outgoing_batches``).
Rules: docs/protocol.md R42.
"""

from __future__ import annotations

from replication.core import commands, messages
from storage import Store, Token
from storage.errors import BadBatch, DiskFull, StaleToken
from twinlog.errors import CorruptionError, ProtocolError


def received(store: Store, token: Token, append: messages.Append) -> commands.Received:
    """Store the batches of a frame; return what came of it."""
    packed, payload = append.entries, memoryview(append.payload)
    try:
        if not store.receive_alone(token, packed, payload):
            store.receive(token, messages.unpack_entries(packed), payload)
    except BadBatch as error:
        return commands.BatchDamaged(error.start, error.length, error.reason)
    except DiskFull as error:
        return commands.NoSpace(str(error))
    except (ProtocolError, CorruptionError, StaleToken) as error:
        return commands.NotTaken(str(error))
    return commands.STORED

"""Frames of another node that cannot be read: what is said about them, and to whom.

A node of another release may send messages of another shape. The link is closed in any case; but
when the frame is a HELLO, its sender hears why, so that its status and log can say it instead of
a link that ends again and again.

Not here: closing the link (`replication.driver.driver`), HELLOs that can be read and name another
version (`replication.core.peer_checks`).
"""

from __future__ import annotations

from replication.core import messages
from replication.core.replica import ReplicaCore
from replication.settings import VERSION
from twinlog.errors import ProtocolError
from twinlog.wire import frames

SHAPE_CODES = ("fields", "type")
"""Codes of errors that another shape of the messages explains."""


def odd_text(frame: frames.Frame, error: ProtocolError) -> str:
    """Return the sentence for status and log."""
    if error.code not in SHAPE_CODES:
        return str(error)
    kind = frames.type_name(frame.type)
    return (
        f"the {kind} that came has another shape than in version {VERSION} of the messages between"
        f" nodes, which this node speaks: run the same release of twinlog on all nodes ({error})"
    )


def refusal(
    frame: frames.Frame, error: ProtocolError, core: ReplicaCore
) -> messages.HelloErr | None:
    """Return the answer to a HELLO that cannot be read; None for any other frame.

    A master also notes it, for its own status.
    """
    if frame.type != frames.Type.HA_HELLO or error.code not in SHAPE_CODES:
        return None
    text = odd_text(frame, error)
    node, leading = frame.fields.get("node"), core.leading
    if leading is not None and isinstance(node, str) and node in leading.insync.members:
        leading.slaves.why_not[node] = f"BAD_VERSION: {text}"
    return messages.HelloErr(core.context.promise.epoch, frame.request, "BAD_VERSION", text[:500])

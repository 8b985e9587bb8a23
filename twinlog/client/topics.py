"""Topics as the clients see them: what a request to create one says, what its answer means.

Pure.
"""

from __future__ import annotations

from twinlog.errors import Unavailable, UsageError
from twinlog.wire.frames import Frame


def topic_fields(name: str, queues: int, batch: bool) -> dict[str, object]:
    """Return what a request to create a topic says."""
    fields: dict[str, object] = {"op": "create", "name": name, "queues": queues}
    return fields | {"batch": True} if batch else fields


def topic_created(answer: Frame, name: str, queues: int, *, batch: bool = False) -> bool:
    """Return whether a topic was created now; False when it existed with such queues.

    Raises:
        UsageError: It exists with another number, or of the other kind.
        Unavailable: The node is too old to know of batch queues: it has made simple ones.
    """
    existing = answer.fields.get("queues")
    if isinstance(existing, int) and existing != queues:
        text = f"topic {name} exists with {existing} queues, not {queues}"
        raise UsageError(text, code="topic-exists", queues=existing)
    kind = answer.fields.get("batch")
    if kind is None and batch and answer.fields.get("created"):
        text = f"the master does not know batch queues: topic {name} has simple ones now"
        raise Unavailable(text, hint="bring all nodes up to date first")
    if (kind is True) != batch:
        found, wanted = ("batch", "simple") if kind else ("simple", "batch")
        text = f"topic {name} exists with {found} queues, not {wanted} ones"
        raise UsageError(text, code="topic-exists", queues=existing)
    return answer.fields.get("created") is True

"""What the answers to TOPIC and GET mean, for both clients.

Pure. Not here: METADATA (``twinlog.routing``), READ (``twinlog.reading``), OFFSETS
(``twinlog.survey``), APPEND (``twinlog.producer``).
"""

from __future__ import annotations

from twinlog.errors import NotYetConfirmed, Unavailable, UsageError
from twinlog.messages import Message, messages_of
from twinlog.wire import Frame


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


def message_at(answer: Frame, log_offset: int) -> Message:
    """Return the message that GET found at ``log_offset``.

    Raises:
        NotYetConfirmed: It is stored but not confirmed.
        UsageError: No record begins there.
    """
    match answer.fields["status"]:
        case "found":
            return messages_of(answer.payload)[0]
        case "above-confirm":
            raise NotYetConfirmed(f"log offset {log_offset} is not confirmed yet")
        case "other-host":
            stored_by = answer.fields.get("stored_by")
            text = f"the record at log offset {log_offset} was stored by {stored_by}, "
            raise UsageError(
                text + "and the id names another node",
                code="other-host",
                hint="the id is of another store; a unique id is found with: "
                "twinlog message find TOPIC --id ID",
                stored_by=stored_by,
                log_offset=log_offset,
            )
        case _:
            hint = "log offsets are printed by: twinlog message send"
            text = f"no record begins at log offset {log_offset}"
            raise UsageError(text, code="none", hint=hint)

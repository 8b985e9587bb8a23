"""What the answers to TOPIC and GET mean, for both clients.

Pure. Not here: METADATA (``twinlog.routing``), READ and OFFSETS (``twinlog.reading``), APPEND
(``twinlog.producer``).
"""

from __future__ import annotations

from twinlog.errors import NotYetConfirmed, UsageError
from twinlog.messages import Message, messages_of
from twinlog.wire import Frame


def topic_created(answer: Frame, name: str, queues: int) -> bool:
    """Return whether a topic was created now; False when it existed with that many queues.

    Raises:
        UsageError: It exists with another number.
    """
    existing = answer.fields.get("queues")
    if isinstance(existing, int) and existing != queues:
        text = f"topic {name} exists with {existing} queues, not {queues}"
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

"""Refusals with what the client needs next: the master, the command to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from node.clients.metadata import Leadership
from node.clients.presence import Presence
from twinlog.errors import (
    Busy,
    NotEnoughInSync,
    NotMaster,
    QuotaReached,
    TopicClosed,
    TopicDeleted,
    TwinlogError,
    Unavailable,
    UnknownTopic,
    UsageError,
)
from twinlog.wire.schema import QUEUES_DEFAULT

if TYPE_CHECKING:
    from storage.reads import StoreReads


class Refusals:
    """Makes the errors of node ``name`` for refusals that concern the whole node."""

    def __init__(self, name: str, presence: Presence, leadership: Callable[[], Leadership]) -> None:
        self._name = name
        self._presence = presence
        self._leadership = leadership

    def error(self, code: str, text: str, wait_ms: int = 0) -> TwinlogError:
        """The error for a refusal that concerns the whole node, with what the client needs next.

        ``wait_ms``: when asking again may help, if that is known.
        """
        name = self._name
        match code:
            case "not-master":
                return self._not_master()
            case "not-enough-in-sync":
                return NotEnoughInSync(text or f"{name} has too few nodes in sync; nothing written")
            case "busy":
                return Busy(text or f"{name} has reached a limit; nothing was written")
            case "disk-full" | "disk":
                hint = "free space on its disk; writes resume by themselves"
                return Unavailable(f"unavailable: disk of {name} is full", code=code, hint=hint)
            case "quota":
                hint = "send less, or raise it: twinlog topic alter"
                return QuotaReached(text, hint=hint, retry_after_ms=wait_ms)
            case "topic-permission" | "queue-closed":
                return TopicClosed(text, code=code)
            case "unknown-topic":
                return UnknownTopic(text)
            case "topic-deleted":
                return TopicDeleted(text)
            case (
                "topic" | "queues" | "topic-kind" | "topics-deleted" | "topic-terms"
            ):  # of an order: asked again, it would be refused again
                return UsageError(text, code=code)
            case _:
                return Unavailable(text or f"{name} refuses: {code}", code=code)

    def _not_master(self) -> NotMaster:
        leadership, name = self._leadership(), self._name
        leader = leadership.leader if leadership.leader != name else None
        host, port = self._presence.address(leader, "client_port") or (None, None)
        who = "and none is known" if leader is None else f"{leader} is"
        return NotMaster(
            f"{name} is not the master, {who}",
            leader=leader,
            epoch=leadership.epoch,
            host=host,
            port=port,
        )


def no_topic(store: StoreReads, topic: str) -> TwinlogError:
    """Return the error for a missing topic, with the command that creates it.

    If its record is in the log but not confirmed yet, the error is retryable.
    """
    error = store.missing(topic)
    if error.retryable or isinstance(error, TopicDeleted):
        return error
    hint = f"create it: twinlog topic create {topic} --queues {QUEUES_DEFAULT}"
    return UnknownTopic(f"there is no topic {topic}", hint=hint)

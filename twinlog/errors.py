"""What can go wrong, as the types a caller catches.

Every error carries four things besides its text:

* ``code``: stable, kebab-case, the same in Python, on the wire and in ``-o json``;
* ``retryable``: True when the very same call may succeed later without anybody changing it;
* ``hint``: what to do next, one sentence, or None;
* ``facts``: the values the text was made of (offsets in bytes or records, names, epochs).

There are four families. `ProtocolError`: the peer said something it must not say.
`CorruptionError`: stored bytes are not what was written. `UnavailableError`: right now no node can
do this. `UsageError`: the caller asked for something that cannot be done. A fifth outcome stands
alone: `OutcomeUnknown`. A send has three outcomes, done, not done and unknown, and no family may
hide the third.

The typed properties (``NotMaster.leader`` ...) read ``facts``; a fact that the server did not send
reads as None or 0, never as an exception while an error is being reported.

Not here: exit codes (``cli``), the error frame (``twinlog.wire.frames``).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import ClassVar


class TwinlogError(Exception):
    """Base of everything twinlog raises on purpose.

    Args:
        text: What happened, for a person; one sentence without a full stop.
        code: Overrides the class's code.
        hint: What to do next.
        facts: Values the text was made of.
    """

    default_code: ClassVar[str] = "error"
    default_retryable: ClassVar[bool] = False

    def __init__(
        self, text: str, *, code: str | None = None, hint: str | None = None, **facts: object
    ) -> None:
        super().__init__(text)
        self.code: str = code or self.default_code
        self.retryable: bool = self.default_retryable
        self.hint: str | None = hint
        self.facts: Mapping[str, object] = facts

    @property
    def text(self) -> str:
        """The sentence without hint and facts."""
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with all four parts, as Spark workers send errors between processes."""
        facts = dict(self.facts)
        return _rebuild, (type(self), self.text, self.code, self.hint, self.retryable, facts)

    def _int(self, name: str) -> int:
        value = self.facts.get(name)
        return value if isinstance(value, int) else 0

    def _str(self, name: str) -> str | None:
        value = self.facts.get(name)
        return value if isinstance(value, str) else None


def _rebuild(
    kind: type[TwinlogError],
    text: str,
    code: str,
    hint: str | None,
    retryable: bool,
    facts: dict[str, object],
) -> TwinlogError:
    error = kind(text, code=code, hint=hint, **facts)
    error.retryable = retryable
    return error


class ProtocolError(TwinlogError):
    """The peer broke a rule of the wire; the connection is of no more use."""

    default_code = "protocol"


class CorruptionError(TwinlogError):
    """Stored bytes are not what was written.

    Facts, where known: ``file``, ``offset`` (log offset, bytes), ``length`` (bytes), ``what``.
    """

    default_code = "corrupt"

    @property
    def offset(self) -> int:
        """Log offset of the bad bytes."""
        return self._int("offset")


class UnavailableError(TwinlogError):
    """No node can do this right now; the same call may succeed later."""

    default_code = "unavailable"
    default_retryable = True


class UsageError(TwinlogError):
    """The request cannot be carried out as it stands, now or later."""

    default_code = "usage"

    @classmethod
    def other_type(cls, name: str, wanted: str, value: object) -> UsageError:
        """Return the error for an argument that is not of the type ``wanted``.

        >>> UsageError.other_type("key", "text", 42).hint
        "write '42'"
        """
        number = type(value) is int and wanted == "text"
        hint = f"write '{value}'" if number else None
        text = f"{name} must be {wanted}, not {type(value).__name__}"
        return cls(text, code="type", hint=hint)

    @classmethod
    def check_text(cls, name: str, value: object) -> None:
        """Raise the error unless the argument ``name`` is text."""
        if not isinstance(value, str):
            raise cls.other_type(name, "text", value)


class OutcomeUnknown(TwinlogError):
    """It may or may not have happened; the caller must not take either for granted.

    An idempotent producer resends by itself and turns this into one of the two others.
    """

    default_code = "unknown"


class Unavailable(UnavailableError):
    """No node answered, or the one that did cannot serve."""


class NotMaster(UnavailableError):
    """The node asked is not (or no longer) the master; nothing was written."""

    default_code = "not-master"

    @property
    def leader(self) -> str | None:
        """Name of the master as far as the node knows."""
        return self._str("leader")

    @property
    def address(self) -> str | None:
        """Its client address ``host:port``."""
        host, port = self._str("host"), self._int("port")
        if host and ":" in host:
            host = f"[{host}]"
        return self._str("address") or (f"{host}:{port}" if host and port else None)

    @property
    def epoch(self) -> int:
        """Epoch of that knowledge; a smaller one is stale."""
        return self._int("epoch")


class NotEnoughInSync(UnavailableError):
    """The in-sync set is smaller than ``in_sync_min``; nothing was written."""

    default_code = "not-enough-in-sync"


class Busy(UnavailableError):
    """A named limit is reached; nothing was written."""

    default_code = "busy"


class OffsetGone(UsageError):
    """The queue offset lies before the queue's first kept record."""

    default_code = "before-start"

    @property
    def start(self) -> int:
        """First queue offset that can be read."""
        return self._int("start")


class OffsetBeyond(UsageError):
    """The queue offset lies past the end of the queue."""

    default_code = "past-end"

    @property
    def end(self) -> int:
        """Queue offset after the last record."""
        return self._int("end")


class NotYetConfirmed(UnavailableError):
    """The record exists on this node but is not confirmed yet."""

    default_code = "above-confirm"

    @property
    def confirm(self) -> int:
        """The node's confirm offset, bytes."""
        return self._int("confirm")


class UnknownTopic(UsageError):
    """The topic (or that queue of it) does not exist."""

    default_code = "unknown-topic"

    @classmethod
    def named(cls, topic: str, code: str = "unknown-topic") -> UnknownTopic:
        """Return the error for a topic, or with code ``unknown-queue`` a queue of it."""
        if code == "unknown-queue":
            return cls(f"topic {topic} has no such queue", code=code)
        if not topic:
            return cls("a topic has a name, and none is given")
        hint = f"create it: twinlog topic create {topic}"
        return cls(f"there is no topic {topic}", hint=hint)


class TopicDeleted(UnknownTopic):
    """The topic was deleted. Its name can be used again when the log holds no message of it."""

    default_code = "topic-deleted"

    @classmethod
    def at(cls, topic: str, deleted_ms: int) -> TopicDeleted:
        """Return the error for a topic that was deleted at a wall time, ms."""
        when = datetime.fromtimestamp(deleted_ms / 1000, UTC).isoformat(timespec="seconds")
        hint = "its name can be used again once retention has taken its messages"
        return cls(f"topic {topic} was deleted at {when}", hint=hint, topic=topic)


class TopicClosed(UsageError):
    """The topic may not be written, or not be read, as it was altered.

    Code ``queue-closed``: that queue of it takes no messages, others do.
    """

    default_code = "topic-permission"


class QuotaReached(UnavailableError):
    """The topic takes no more messages now: its quota is used up. Nothing was written.

    A client waits for `retry_after`, within the time that it was given, and sends again.
    """

    default_code = "quota"

    @property
    def retry_after(self) -> float:
        """Seconds until the quota allows such a message again."""
        return self._int("retry_after_ms") / 1000


class UnknownGroup(UsageError):
    """There is no such group, and it is not made on first use."""

    default_code = "unknown-group"


class GroupDiffers(UsageError):
    """The group exists with other settings: mode (``group-mode``), filter (``filter-differs``)."""

    default_code = "group-exists"


class LeaseLost(UsageError):
    """The message is no longer this consumer's: its time passed and it was handed out again.

    Code ``receipt-unknown`` says that it never was.
    """

    default_code = "receipt-expired"


class TooLate(UsageError):
    """The message that was to be taken back has been delivered, or is on its way."""

    default_code = "too-late"


class TransactionSettled(UsageError):
    """The transaction has ended, and otherwise than was asked now."""

    default_code = "transaction-settled"

    @property
    def outcome(self) -> str | None:
        """``commit``, ``rollback`` or ``given-up``."""
        return self._str("outcome")


class Fenced(UsageError):
    """Another member owns the queue by now; the position was not taken."""

    default_code = "fenced"


class NotMember(UnavailableError):
    """The session of this member is over, or was never there; joining again makes a new one."""

    default_code = "not-member"
    default_retryable = False


class NotReady(UnavailableError):
    """A new master has not read its whole log yet; nothing was changed."""

    default_code = "not-ready"


class Denied(UsageError):
    """No access rule allows it, or (code ``login``) the node does not know who asks.

    Facts: ``user``, ``right``, ``what``. Whether there is such a topic or group is not said.
    """

    default_code = "denied"


class Corrupt(CorruptionError):
    """A node found the bytes asked for damaged and served nothing of them."""


class RecordRefused(UsageError):
    """One record of a section broke a rule; nothing of the section was written."""

    default_code = "record-refused"

    @property
    def record(self) -> int:
        """Number of the record in its section, from 0."""
        return self._int("record")

    @property
    def reason(self) -> str | None:
        """Which rule."""
        return self._str("reason")


class OutOfSequence(UsageError):
    """A producer's section does not follow its last one; nothing of it was written."""

    default_code = "out-of-sequence"


class UnknownProducer(UsageError):
    """The node no longer knows the producer of a section; nothing of it was written now.

    Producers deal with it by themselves, except one whose epoch was given from outside.
    """

    default_code = "unknown-producer"


_BY_CODE: dict[str, type[TwinlogError]] = {
    kind.default_code: kind
    for kind in (
        ProtocolError,
        Corrupt,
        Unavailable,
        NotMaster,
        NotEnoughInSync,
        Busy,
        OffsetGone,
        OffsetBeyond,
        NotYetConfirmed,
        UnknownTopic,
        TopicDeleted,
        TopicClosed,
        QuotaReached,
        UnknownGroup,
        GroupDiffers,
        LeaseLost,
        TooLate,
        TransactionSettled,
        Fenced,
        NotMember,
        NotReady,
        Denied,
        RecordRefused,
        OutOfSequence,
        UnknownProducer,
        OutcomeUnknown,
        UsageError,
    )
}
_BY_CODE["unknown-queue"] = UnknownTopic
_BY_CODE["queue-closed"] = TopicClosed
_BY_CODE["group-mode"] = _BY_CODE["filter-differs"] = GroupDiffers
_BY_CODE["receipt-unknown"] = LeaseLost
_BY_CODE["share-full"] = Busy
_BY_CODE["login"] = Denied


def from_code(
    code: str,
    text: str,
    *,
    hint: str | None = None,
    retryable: bool = False,
    facts: Mapping[str, object] | None = None,
) -> TwinlogError:
    """Return the error that an error frame or a section result describes.

    A code this version does not know becomes `Unavailable` when it is retryable, else
    `UsageError`, and keeps its code.

    >>> error = from_code("not-master", "n2 is a slave", facts={"leader": "n1", "epoch": 7})
    >>> type(error).__name__, error.leader, error.epoch, error.retryable
    ('NotMaster', 'n1', 7, True)
    """
    kind = _BY_CODE.get(code)
    if kind is None:
        kind = Unavailable if retryable else UsageError
    known = {k: v for k, v in (facts or {}).items() if k not in ("text", "code", "hint", "self")}
    error = kind(text, code=code, hint=hint, **known)
    error.retryable = retryable or kind.default_retryable
    return error

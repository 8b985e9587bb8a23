"""A message that a consumer was handed, and what can be said of it.

Not here: when that is sent (``twinlog.groups.core``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from twinlog.errors import UsageError
from twinlog.format.messages import Message
from twinlog.groups.leases import HANDED, Held
from twinlog.groups.outcomes import Told
from twinlog.groups.settings import INVISIBLE_MAX
from twinlog.units import parse_duration
from twinlog.wire.groups import BACK_OFF, What

REASON_MAX = 1024
"""Characters of a reason; the rest is cut off."""

_ACK, _UNUSED = Told(What.ACK), Told(What.UNUSED)

FAILED = Told(What.RELEASE, BACK_OFF)
"""What becomes of a message when the body that had it ended without a word."""


class Teller(Protocol):
    """The consumer that handed the message out."""

    def tell(self, held: Held, told: Told) -> bool:
        """Note an outcome; False when there was one before."""
        ...


class Delivery:
    """A message under a lease: the message itself, the attempt, and `ack` and its alternatives.

    One of `ack`, `retry`, `release` and `reject` is said of it, once. It is noted and sent with
    others; `settle` of the consumer waits until all of them are confirmed. What is not settled
    when its consumer is closed counts as failed.

    Attributes:
        message: As `Client.read` returns it; its attributes are this object's, too.
        held: Its lease.
    """

    __slots__ = ("_teller", "held", "message")

    def __init__(self, held: Held, teller: Teller) -> None:
        self.message: Message = held.message
        self.held = held
        self._teller = teller

    def __repr__(self) -> str:
        """Show the message and the attempt."""
        return f"Delivery({self.message!r}, attempt={self.attempt})"

    # ── what becomes of it ──────────────────────────────────────────────────────────────────────

    def ack(self) -> None:
        """Say that it is handled: it is not handed out again.

        Raises:
            UsageError: Something was said of it before.
        """
        self._tell(_ACK)

    def retry(self, after: float | str | None = None) -> None:
        """Say that this attempt failed: it is handed out again.

        Args:
            after: In how many seconds, or text with a unit; None: as the group's policy says for
                this attempt. After the group's last attempt it becomes a dead letter instead.

        Raises:
            UsageError: Something was said of it before, or ``after`` is negative.
        """
        self._tell(FAILED if after is None else Told(What.RELEASE, _ms(after, 0)))

    def release(self) -> None:
        """Give it back without counting the attempt: it is handed out again at once.

        Raises:
            UsageError: Something was said of it before.
        """
        self._tell(_UNUSED)

    def reject(self, why: str = "") -> None:
        """Say that it can never be handled: it becomes a dead letter now.

        Args:
            why: Kept with the dead letter; at most `REASON_MAX` characters of it.

        Raises:
            UsageError: Something was said of it before.
        """
        self._tell(Told(What.REJECT, 0, why[:REASON_MAX]))

    def extend(self, time: float | str) -> None:
        """Prolong the lease until ``time`` from now, seconds or text with a unit; sent at once.

        An extension that comes too late is noticed at the outcome: `LeaseLost`. A message whose log
        file is about to leave is not held any longer; then the lease ends when it would have.

        Raises:
            UsageError: Something was said of it before, or it is not 1 s to 12 h.
        """
        number = _ms(time, 1000)
        if number > INVISIBLE_MAX * 1000:
            raise UsageError(f"{number / 1000:g} s is too long; a lease lasts 12 h at most")
        self._tell(Told(What.EXTEND, number))

    def _tell(self, told: Told) -> None:
        if not self._teller.tell(self.held, told):
            text = f"{self.message.address} was settled before, or its consumer is closed"
            raise UsageError(text, code="settled")

    @property
    def settled(self) -> bool:
        """Whether one of them was said, or the consumer was closed."""
        return self.held.state != HANDED

    # ── what it is ──────────────────────────────────────────────────────────────────────────────

    @property
    def attempt(self) -> int:
        """How often it has been handed out, this time included: 1 at first."""
        return self.held.attempt

    @property
    def topic(self) -> str:
        """Name of the topic, or of the light queue that is consumed."""
        return self.message.topic

    @property
    def queue(self) -> int:
        """Number of the queue."""
        return self.message.queue

    @property
    def queue_offset(self) -> int:
        """Its number in the queue."""
        return self.message.queue_offset

    @property
    def log_offset(self) -> int:
        """Where its record begins, bytes."""
        return self.message.log_offset

    @property
    def address(self) -> str:
        """Return ``topic/queue@offset``, which never changes."""
        return self.message.address

    @property
    def body(self) -> bytes:
        """The body, decompressed."""
        return self.message.body

    @property
    def key(self) -> str | None:
        """Index keys as stored, separated by spaces."""
        return self.message.key

    @property
    def tag(self) -> str | None:
        """What readers filter by."""
        return self.message.tag

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, key and tag included."""
        return self.message.properties

    @property
    def born_timestamp(self) -> int:
        """When the producer made it, ms since 1970."""
        return self.message.born_timestamp

    @property
    def store_timestamp(self) -> int:
        """When the master stored it, ms since 1970."""
        return self.message.store_timestamp


def seconds_of(value: float | str) -> float:
    """Return seconds given as a number or as text with a unit; raises UnitError."""
    return parse_duration(value) if isinstance(value, str) else float(value)


def _ms(value: float | str, least: int) -> int:
    seconds = seconds_of(value)
    if not seconds * 1000 >= least:
        raise UsageError(f"{seconds:g} s is too short; it must be at least {least / 1000:g} s")
    return round(seconds * 1000)

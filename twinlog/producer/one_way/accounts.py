"""What became of one-way messages: counted as they go, reported on request.

The sender of a one-way message does not wait for its answer. So a message without success is
counted, the first error is kept, and a report has both: how many are not stored, how many may be.

Pure. Not here: sending them (``blocking``, ``aio``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from twinlog.errors import OutcomeUnknown, TwinlogError, Unavailable
from twinlog.producer.core import ProducerCore
from twinlog.producer.section import Section, raised_for
from twinlog.producer.settings import ProducerSettings
from twinlog.units import KiB, MiB, format_size

UNANSWERED_MAX: Final = MiB
"""Bytes of one-way messages to one topic without an answer; what comes then is not sent."""

BATCH: Final = 64 * KiB
"""A section of one-way messages closes at this size, bytes, or as soon as it may be sent."""

CLOSE_SECONDS: Final = 5.0
"""How long closing a client waits for the answers to its one-way messages."""


def one_way_settings(acknowledge: str, timeout: float) -> ProducerSettings:
    """Return how one-way messages are sent: at once while the window has room, else together."""
    return ProducerSettings(
        acknowledge=acknowledge,
        batch=BATCH,
        linger=0.0,
        timeout=timeout,
        bytes_in_flight=UNANSWERED_MAX,
    )


@dataclass(slots=True)
class Account:
    """One-way messages since the last report.

    Attributes:
        taken: All of them.
        refused: Of those, the ones that are not stored.
        unknown: Those that may be.
        left: Those without an answer; they count again in the next report.
        error: The first one, an unknown outcome before others.
    """

    taken: int = 0
    refused: int = 0
    unknown: int = 0
    left: int = 0
    error: TwinlogError | None = None

    def add(self, other: Account) -> None:
        """Add those of another topic."""
        self.taken += other.taken
        self.refused += other.refused
        self.unknown += other.unknown
        self.left += other.left
        if self.error is None or isinstance(other.error, OutcomeUnknown):
            self.error = other.error or self.error

    def unseen(self) -> Account:
        """Return what the next report must have of an account that was not reported.

        What is left counts again by itself.
        """
        return replace(self, taken=self.taken - self.left, left=0)

    def problem(self) -> TwinlogError | None:
        """Return what a report raises; None: all are stored.

        >>> Account(taken=9, refused=2, error=Unavailable("no node answered")).problem().text
        'of 9 one-way messages 2 are not stored: no node answered'
        """
        words = (
            (self.refused, "not stored"),
            (self.unknown, "perhaps stored"),
            (self.left, "not answered yet"),
        )
        parts = [
            f"{count} {'is' if count == 1 else 'are'} {what}" for count, what in words if count
        ]
        if not parts:
            return None
        why = f": {self.error.text}" if self.error is not None else ""
        kind = OutcomeUnknown if self.unknown or self.left else Unavailable
        return kind(
            f"of {self.taken} one-way messages {', '.join(parts)}{why}",
            code=self.error.code if self.error is not None else None,
            hint=self.error.hint if self.error is not None else None,
            taken=self.taken,
            refused=self.refused,
            unknown=self.unknown,
            left=self.left,
        )


def unanswered(core: ProducerCore) -> list[Section]:
    """Return the closed sections without a final answer."""
    return [section for lane in core.lanes for section in lane.unanswered()]


def left_of(sections: list[Section]) -> int:
    """Return how many messages of sections have no final answer yet."""
    return sum([section.count for section in sections if not section.done])


class Ledger:
    """Counts the one-way messages of one producer."""

    def __init__(self) -> None:
        self._dropped = self._answered = self._refused = self._unknown = 0
        self._full: TwinlogError | None = None

    def drop(self) -> TwinlogError:
        """Count a message that is not sent, because too much is unanswered; return why."""
        self._dropped += 1
        if self._full is None:
            text = f"it was not sent: {format_size(UNANSWERED_MAX)} to its topic are unanswered"
            hint = "send fewer, or with client.send, which waits"
            self._full = Unavailable(text, code="busy", hint=hint)
        return self._full

    def report(self, core: ProducerCore | None, left: int) -> Account:
        """Return the account since the last report, and begin the next one.

        ``left`` messages were waited for and have no answer yet.
        """
        if core is None:
            return Account()
        done = core.statistics
        answered = done.acknowledged + done.refused + done.unknown
        account = Account(
            taken=answered - self._answered + self._dropped + left,
            refused=done.refused - self._refused + self._dropped,
            unknown=done.unknown - self._unknown,
            left=left,
            error=raised_for(core.collect()) or self._full,
        )
        self._answered, self._refused, self._unknown = answered, done.refused, done.unknown
        self._dropped, self._full = 0, None
        return account

"""Results made above the store: refused before anything was written, and unknown.

A section has three outcomes: stored, not stored, unknown (R46). The store reports the first two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from storage import Outcome, SectionResult
from twinlog.errors import CorruptionError

T = TypeVar("T")


def refusal(code: str, text: str) -> SectionResult:
    """Return the result of a refused section: nothing of it was written."""
    return SectionResult(Outcome.REFUSED, 0, 0, 0, code, text, 0)


BUFFERED = "*"
"""In place of node names: the section is only in the memory pool of the master's process."""

NOT_KNOWN_FLUSHED = "stored, not known flushed"
"""Text for a send that waited for the disk longer than ``flush_timeout_seconds``."""


def unknown(result: SectionResult, text: str = "") -> SectionResult:
    """Return the result as unknown: written here, but maybe cut later."""
    if result.outcome is Outcome.REFUSED:
        return result
    said = text or "not confirmed in time"
    return replace(result, outcome=Outcome.UNKNOWN, code="unknown", text=said)


def or_unknown(
    append: Callable[..., T],
    reply: Callable[[list[SectionResult], str | None], None],
    sections: int,
    *args: object,
    wall_ms: int,
) -> T:
    """Append; if the log is found damaged, reply "unknown": no other code would answer.

    Raises:
        CorruptionError: The damage; the reply has been called.
    """
    try:
        return append(*args, wall_ms=wall_ms)
    except CorruptionError as error:
        reply([SectionResult(Outcome.UNKNOWN, code="unknown", text=str(error))] * sections, None)
        raise

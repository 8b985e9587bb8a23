"""Results that the layers above the store make: refused before a byte, and unknown.

Three outcomes of a section: stored, not stored, unknown. The store knows the first two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from storage import Outcome, SectionResult
from twinlog.errors import CorruptionError

T = TypeVar("T")


def refusal(code: str, text: str) -> SectionResult:
    """Return the result of a section of which nothing was written."""
    return SectionResult(Outcome.REFUSED, 0, 0, 0, code, text, 0)


BUFFERED = "*"
"""In place of names: no node holds it, it lies only in the memory pool of the master's process."""

NOT_KNOWN_FLUSHED = "stored, not known flushed"
"""Of a send that waited for the disk longer than the flush may take."""


def unknown(result: SectionResult, text: str = "") -> SectionResult:
    """Return a result that says: written here, and nobody knows whether it stays."""
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
    """Append; when that finds the log damaged, say "unknown", because nobody else would answer.

    Raises:
        CorruptionError: What was found; the reply has been called.
    """
    try:
        return append(*args, wall_ms=wall_ms)
    except CorruptionError as error:
        reply([SectionResult(Outcome.UNKNOWN, code="unknown", text=str(error))] * sections, None)
        raise

"""Results that the layers above the store make: refused before a byte, and unknown.

Three outcomes of a section: stored, not stored, unknown. The store knows the first two.
"""

from __future__ import annotations

from dataclasses import replace

from storage import Outcome, SectionResult


def refusal(code: str, text: str) -> SectionResult:
    """Return the result of a section of which nothing was written."""
    return SectionResult(Outcome.REFUSED, 0, 0, 0, code, text, 0)


def unknown(result: SectionResult) -> SectionResult:
    """Return a result that says: written here, and nobody knows whether it stays."""
    if result.outcome is Outcome.REFUSED:
        return result
    return replace(result, outcome=Outcome.UNKNOWN, code="unknown", text="not confirmed in time")

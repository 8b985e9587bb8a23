"""The compatibility page says what the code does."""

from __future__ import annotations

import pytest

from tests.golden.compatibility import PAGE, written


@pytest.mark.slow
def test_the_table_of_cases_is_what_happens() -> None:
    """Each golden case read, planned for repair and planned for adoption."""
    text = PAGE.read_text(encoding="utf-8")
    assert "differs:" not in text
    assert written(text) == text

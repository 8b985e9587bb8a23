"""Skipped where the extra is not installed, in place of everything else here."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.mark.skipif(
    find_spec("pyarrow") is None, reason="the extra spark is missing: uv sync --extra spark"
)
def test_the_extra_is_installed() -> None:
    assert find_spec("twinlog.spark") is not None

"""The source without Spark: planners, readers and decoders are called directly."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here: it needs pyarrow and numpy, though no Java."""
    for item in items:
        if "/unit/spark/" in item.path.as_posix():
            item.add_marker("spark")

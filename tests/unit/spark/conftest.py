"""The source without Spark: planners, readers and decoders are called directly."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("pyarrow") is None:  # `test_extra` is what is skipped, so that it shows
    here = Path(__file__).parent.glob("test_*.py")
    collect_ignore = [path.name for path in here if path.name != "test_extra.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here: it needs pyarrow and numpy, though no Java."""
    for item in items:
        if "/unit/spark/" in item.path.as_posix():
            item.add_marker("spark")

"""The source without Spark: planners, readers and decoders are called directly."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fakes.patience import be_patient

PLAN = Path(__file__).parent / "plan"

if find_spec("pyarrow") is None:  # `test_extra` is what is skipped, so that it shows
    here = [*Path(__file__).parent.glob("test_*.py"), *PLAN.glob("test_*.py")]
    collect_ignore = [str(path) for path in here if path.name != "test_extra.py"]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still makes no node a silent one."""
    be_patient(monkeypatch)
    monkeypatch.setattr("twinlog.spark.nodes.nodes.ATTEMPT_SECONDS", 60.0)
    monkeypatch.setattr("twinlog.spark.nodes.nodes.ROUTE_SECONDS", 60.0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here: it needs pyarrow and numpy, though no Java."""
    for item in items:
        if item.path.parent in (PLAN.parent, PLAN):
            item.add_marker("spark")

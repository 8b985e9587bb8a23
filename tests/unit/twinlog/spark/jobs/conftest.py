"""The jobs; those that hold rows as Arrow are left out where the extra is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.stores.sample import Ours

NEED_ARROW = ["archive", "reports/test_archive.py", "test_compact.py", "test_replay.py"]

if (
    find_spec("pyarrow") is None
):  # `tests/unit/twinlog/spark/test_extra.py` is what shows as skipped
    collect_ignore = NEED_ARROW


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """An archive of several segments, in ``archive``, of the store in ``s``."""
    from twinlog.spark.archive.job import ArchiveSettings, archive
    from twinlog.spark.engine.engine import PlainEngine

    made = Ours()
    for number in range(120):
        made.batch(b"x" * 100, b"%d" % number, topic=f"t{number % 3}")
    made.write(tmp_path / "s", confirm=made.end)
    archive(PlainEngine(), ArchiveSettings(tmp_path / "s", tmp_path / "archive"))
    return tmp_path / "archive"

"""The jobs; those that hold rows as Arrow are left out where the extra is not installed."""

from __future__ import annotations

from importlib.util import find_spec

NEED_ARROW = ["test_archive.py", "test_archive_runs.py", "test_archive_wire.py"]
NEED_ARROW += ["test_manifest.py", "test_restore.py"]
NEED_ARROW += ["test_compact.py", "test_replay.py", "test_reports_archive.py"]

if find_spec("pyarrow") is None:  # `tests/unit/spark/test_extra.py` is what shows as skipped
    collect_ignore = NEED_ARROW

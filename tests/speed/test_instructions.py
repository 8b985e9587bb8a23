"""The hot paths take no more instructions than they did; ``benchmarks/instructions.py`` counts."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from benchmarks.instructions import CELLS, FILE, measure

pytestmark = pytest.mark.slow

SAME, OTHER = 1.05, 1.4
"""How much more a cell may take: with the build of Python that made the file, and with others.
Counts of one build repeat within 0.2 %."""


@pytest.mark.parametrize("name", CELLS)
def test_a_hot_path_takes_no_more_instructions(name: str) -> None:
    """When this fails for a good reason: benchmarks/instructions.py --write, and say the reason."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    allowed = SAME if kept["python"] == sys.version else OTHER
    was, now = kept["cells"][name]["turns"], measure(name)["turns"]
    assert now <= was * allowed, f"{name}: {now} turns of the plain loop, it was {was}"

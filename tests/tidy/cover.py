"""Every line and every branch of the pure modules is covered by quick tests.

``python -m tests.tidy.cover`` (``make cover``) runs `TESTS` with the plain kernels under coverage
and names what none of them reached; arguments for pytest may follow, to look at less. Pure modules
are the table in `tests.tidy.modules`: what they decide can always be reached by a test that is
quick, so a line that none reaches is a missing test, or code that is not needed.

Property tests draw the examples of ``.ci/run``, the same each time: what only luck would reach
needs a test of its own. The extra ``spark`` must be installed; no test that counts starts Spark.

Processes that tests start do not count. Not here: coverage of what does and does not decide.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import coverage
import pytest

from tests.tidy.modules import PURE, files_of

FOLDERS = ("node", "replication", "storage", "twinlog")
TESTS = (
    *(f"tests/unit/{name}" for name in FOLDERS),
    "tests/properties",
    "tests/dialogues",
    "tests/golden/test_inner_batches.py",
)
"""Where quick tests are; ``-m "not slow"`` leaves the others out."""


def pure_files() -> list[str]:
    """Return the files of the pure modules."""
    return [str(path) for path in files_of(PURE)]


def gaps(report: dict[str, dict[str, dict[str, list[object]]]]) -> Iterator[str]:
    """Yield for each file of a report with gaps its lines and branches that were not reached."""
    for path, found in sorted(report["files"].items()):
        lines = [str(line) for line in found["missing_lines"]]
        branches = [f"{a}->{b}" for a, b in found["missing_branches"]]  # type: ignore[misc]
        if lines or branches:
            yield f"{path}: {', '.join([*lines, *branches])}"


def main(arguments: Sequence[str]) -> int:
    """Run the tests, print what they did not reach; 0 when all passed and reached everything."""
    os.environ |= {"TWINLOG_KERNELS": "python", "HYPOTHESIS_PROFILE": "ci"}
    files = pure_files()
    with tempfile.TemporaryDirectory() as folder:
        measured = coverage.Coverage(
            data_file=f"{folder}/data", config_file=False, branch=True, include=files
        )
        measured.start()
        chosen = list(arguments) or [*TESTS, "-m", "not slow"]
        failed = pytest.main(["-q", "-p", "no:cacheprovider", *chosen])
        measured.stop()
        measured.json_report(morfs=files, outfile=f"{folder}/report", pretty_print=False)
        found = list(gaps(json.loads(Path(folder, "report").read_text())))
    print(f"\n{len(files)} pure modules, {len(found)} with gaps")
    for line in found:
        print(line)
    return int(failed) or bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

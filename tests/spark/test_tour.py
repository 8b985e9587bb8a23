"""docs/spark/tour.md: every cell, in order, in an empty directory.

Commands of the tour run their jobs without a Spark of their own: the session is there already, and
a second one would only cost time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "docs" / "spark" / "tour.md"
CELL_SECONDS = 600.0


def cells() -> list[tuple[str, str]]:
    """(language, text) of each cell."""
    found = re.findall(r"^```(sh|python)\n(.*?)^```", TOUR.read_text(), re.MULTILINE | re.DOTALL)
    return [(language, text) for language, text in found]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory with ``twinlog`` on the path; the cluster of the tour ends with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FLIGHTS", str(ROOT / "cli" / "demo" / "data" / "flights-2013-01.csv.gz"))
    monkeypatch.setenv("TWINLOG_SPARK_ENGINE", "plain")
    monkeypatch.setenv("TWINLOG_TIMEOUT", "60s")
    yield tmp_path
    if (tmp_path / "data").is_dir():
        down = ["twinlog", "dev", "down", "--data", "data"]
        subprocess.run(down, cwd=tmp_path, capture_output=True, timeout=300, check=False)


def test_every_cell_of_the_tour(
    spark: Any, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells run as they stand; what they print is what the page promises."""
    names: dict[str, Any] = {}
    said = ""
    for language, text in cells():
        if language == "python":
            exec(compile(text, str(TOUR), "exec"), names)
            continue
        done = subprocess.run(
            ["sh", "-e", "-c", text],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=CELL_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        said += done.stdout
    said += capsys.readouterr().out
    assert "27004 rows copied, each once" in said
    assert "equal where both have bytes" in said
    assert "N725MQ" in said
    assert re.search(r"[1-9]\d+ flights in the archive, 27004 with those still live", said)

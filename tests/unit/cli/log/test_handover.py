"""``twinlog store handover``: plan, refusals, a second run, and what a return says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.app import main
from storage.disk.disk import RealDisk
from tests.stores.golden import unpack
from tests.stores.unsettled import OPEN, unsettled


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command says to a program."""
    assert main(["store", *words, "-o", "json"], {}) == 0
    return json.loads(capsys.readouterr().out)


def test_handing_over_and_taking_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The second run has nothing to do; an adoption is offered, and counts what waits."""
    unsettled(RealDisk(tmp_path)).close(clean=True)
    plan = answer(capsys, "handover", str(tmp_path), "--dry-run")
    assert (plan["to_copy"], plan["again"], plan["done"]) == (len(OPEN), 2, False)
    assert not (tmp_path / "twinlog" / "handed-over").exists()
    assert main(["store", "handover", str(tmp_path)], {"CI": "1"}) == 64
    assert not (tmp_path / "twinlog" / "handed-over").exists()
    assert main(["store", "handover", str(tmp_path), "--yes"], {}) == 0
    said = capsys.readouterr().out
    assert f"{len(OPEN)} messages copied, 0 not kept any more" in said
    assert "no node opens the store any more; twinlog store adopt" in said
    again = answer(capsys, "handover", str(tmp_path), "--yes")
    assert (again["to_copy"], again["begun"], again["done"]) == (0, True, False)
    back = answer(capsys, "adopt", str(tmp_path), "--yes")
    assert (back["handed_over"], back["done"]) == (True, True)
    assert back["retries"] == [{"topic": "%RETRY%billing", "messages": len(OPEN)}]


def test_what_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of another program; not stopped."""
    root = unpack("01-basic", tmp_path)
    assert main(["store", "handover", str(root), "--yes"], {}) == 64
    assert "not a twinlog store" in capsys.readouterr().err
    killed = tmp_path / "killed"
    killed.mkdir()
    unsettled(RealDisk(killed)).close(clean=False)
    assert main(["store", "handover", str(killed), "--yes"], {}) == 65
    said = capsys.readouterr().err
    assert "twinlog log recover" in said
    assert "nothing was changed" in said

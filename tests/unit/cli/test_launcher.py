"""The launcher: one sentence where the extra is missing, the command line where it is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from twinlog import __main__ as launcher

ROOT = Path(__file__).parents[3]


def test_without_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 78 and the command that installs it; nothing on stdout, no trace."""
    monkeypatch.setattr(launcher, "find_spec", lambda name: None if name == "trio" else True)
    assert launcher.main() == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "twinlog[server]" in err


def test_the_command_ends_with_its_code() -> None:
    """``python -m twinlog`` passes the exit code on."""
    done = subprocess.run(
        [sys.executable, "-m", "twinlog", "nonsense"], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 64
    assert b"there is no command" in done.stderr

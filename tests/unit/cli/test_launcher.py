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
    monkeypatch.setattr(launcher.signal, "signal", lambda *_: None)
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


LATE = """
import os, signal, sys
from twinlog import __main__ as launcher
launcher._main = {main}
code = launcher.main()
os.kill(os.getpid(), signal.SIGINT)
sys.exit(code)
"""


def test_a_late_ctrl_c_does_not_change_the_outcome() -> None:
    """Once the exit code is decided, the signal does not kill the interpreter on its way out."""
    script = LATE.format(main="lambda: 65")
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert done.returncode == 65


def test_an_early_ctrl_c_is_no_trace() -> None:
    """While modules load there is no command yet, but there is an exit code and a sentence."""
    script = LATE.format(main="lambda: (_ for _ in ()).throw(KeyboardInterrupt())")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 130
    assert done.stderr.splitlines()[0] == b"interrupted: stopped by Ctrl-C"
    assert b"Traceback" not in done.stderr

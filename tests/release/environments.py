"""Fresh environments: what a stranger has who installs a wheel or a source distribution.

Nothing of the checkout is on their path, and variables that point at it are taken away.

Not here: what is built, and from which files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

WAIT_SECONDS = 900.0


def uv() -> str:
    """The uv of this run; ``uv run`` names it, and the README installs it into ``~/.uv``."""
    named = os.environ.get("UV") or shutil.which("uv")
    own = Path.home() / ".uv" / "bin" / "uv"
    found = named or (str(own) if own.exists() else None)
    assert found, "packages are built with uv; the README's first line installs it"
    return found


def call(
    *words: str, folder: Path, expect: int = 0, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, without anything that points at the checkout.

    Args:
        words: The program and its arguments.
        folder: Where it runs, and where its temporary files are.
        expect: The exit code that it must have.
        extra: Variables that it gets beside those of this process.

    Raises:
        AssertionError: It ended with another code; the text has its output.
    """
    kept = {
        name: value for name, value in os.environ.items() if name[:6] not in ("PYTHON", "TWINLO")
    }
    kept.pop("VIRTUAL_ENV", None)
    done = subprocess.run(
        words,
        cwd=folder,
        env={**kept, "TMPDIR": str(folder), **(extra or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == expect, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


class Environment:
    """A fresh environment with one requirement, and an empty folder to call it from.

    Attributes:
        folder: The empty folder.
        bin: Where its programs are.
    """

    def __init__(self, folder: Path, requirement: str) -> None:
        self.folder = folder / "elsewhere"
        self.folder.mkdir(parents=True)
        self.bin = folder / "venv" / "bin"
        call(uv(), "venv", "--python", sys.executable, "venv", folder=folder)
        python = str(self.bin / "python")
        call(uv(), "pip", "install", "--python", python, requirement, folder=folder)

    def run(
        self, program: str, *words: str, expect: int = 0, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment; ``extra`` are variables."""
        found = str(self.bin / program)
        return call(found, *words, folder=self.folder, expect=expect, extra=extra)

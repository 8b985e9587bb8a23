"""An operator's, a developer's and a RocketMQ user's first day: some 120 commands and their exits.

    python -m tests.readme.field_trial [--keep-going]

Plays ``field_trial.txt`` in an empty folder, with a cluster on free ports of this machine, and ends
with 1 when a command ends otherwise than the file says, says something else, or shows a traceback.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cli.dev.private_cluster import free_ports
from tests.stores.golden import unpack

ROOT = Path(__file__).parents[2]
TEXT = Path(__file__).with_name("field_trial.txt")
COMMAND_SECONDS = 120.0
UNTIL_SECONDS = 120.0
"""How long a line with ``~`` is repeated."""


@dataclass(frozen=True)
class Step:
    """A command, the exit it must have, what it must say."""

    line: int
    exit: int
    until: bool
    command: str
    says: str
    program: str


def steps(text: str) -> Iterator[Step]:
    """The lines of the file."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        found = re.fullmatch(r"(\d+)(~?) +(.*?)(?: +## (.*))?", line)
        if found is None:
            assert not line or line[0] in "#= ", f"line {number}: {line}"
            continue
        following = lines[number:]
        own = next((at for at, one in enumerate(following) if one[:5] != " " * 5), len(following))
        program = "\n".join(one[5:] for one in following[:own])
        code, until, command, says = found.groups()
        yield Step(number, int(code), bool(until), command, says or "", program)


class Trial:
    """A folder, its cluster, and who is master there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = free_ports(3)
        self._stopped: list[str] = []
        (folder / "empty").mkdir()
        unpack("07-consuming", folder)
        kept = {name: value for name, value in os.environ.items() if name[:8] != "TWINLOG_"}
        self._environment = {**kept, "PYTHONPATH": str(ROOT), "TWINLOG_TIMEOUT": "60s"}

    def play(self, step: Step) -> str | None:
        """Run one step; return what is wrong with its outcome."""
        end = time.monotonic() + UNTIL_SECONDS
        words = self._words(step)
        while (wrong := self._run(step, words)) and step.until and time.monotonic() < end:
            pass
        return wrong

    def _words(self, step: Step) -> list[str]:
        text = re.sub(r"\{(\w+)\}", lambda found: str(self._value(found[1])), step.command)
        words = shlex.split(text)
        if words == ["python"]:
            return [sys.executable, "-c", step.program.replace("{client}", str(self.base + 10))]
        assert words[0] == "twinlog", step
        return [sys.executable, "-m", *words]

    def _value(self, name: str) -> str | int:
        if name == "base":
            return self.base
        if name == "stopped":
            return self._stopped.pop(0)
        words = [sys.executable, "-m", "twinlog", "cluster", "status", "-o", "json"]
        nodes = json.loads(self._call(words)[1])["nodes"]
        node = next(str(one["name"]) for one in nodes if one["role"] == name)
        self._stopped.append(node)
        return node

    def _run(self, step: Step, words: list[str]) -> str | None:
        code, out, err = self._call(words)
        if "Traceback" in err or "twinlog itself" in err:
            return f"a traceback\n{err}"
        if code != step.exit:
            return f"exit {code}, not {step.exit}\n{out}{err}"
        if step.says not in out + err:
            return f"does not say {step.says!r}\n{out}{err}"
        return None

    def _call(self, words: list[str]) -> tuple[int, str, str]:
        try:
            done = subprocess.run(
                words, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return -1, "", f"it did not end within {COMMAND_SECONDS:g} s"
        return done.returncode, done.stdout, done.stderr

    def end(self) -> None:
        """Stop what still runs."""
        self._call([sys.executable, "-m", "twinlog", "dev", "down", "--wipe", "--yes"])


def play(folder: Path, *, keep_going: bool = False) -> list[str]:
    """Play the whole file; return what went otherwise, at the first line or at every one."""
    trial, wrong = Trial(folder), list[str]()
    try:
        for step in steps(TEXT.read_text(encoding="utf-8")):
            if found := trial.play(step):
                wrong.append(f"{TEXT.name}:{step.line}: {step.command}: {found}")
                if not keep_going:
                    break
    finally:
        trial.end()
    return wrong


def main() -> int:
    """Play it in a folder of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="twinlog-trial-") as folder:
        wrong = play(Path(folder), keep_going=options.keep_going)
    print("\n".join(wrong) or "every command ended as it should")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

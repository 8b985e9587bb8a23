"""The page about RocketMQ's stores: each command runs and prints what the page shows.

``python -m tests.readme.test_rocketmq_page`` rewrites the printed parts.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cli.app import main
from tests.stores.golden import unpack

PAGE = Path(__file__).parents[2] / "docs" / "your-rocketmq-store.md"
CASE = "03d-queues-behind"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands(block: str) -> list[str]:
    """The commands of a block."""
    return [line[2:] for line in block.splitlines() if line.startswith("$ ")]


def printed(command: str) -> str:
    """Run a command in this process; return what it says on stdout."""
    words = shlex.split(command)
    assert words[0] == "twinlog"
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(words[1:], {})
    assert code == 0, f"{command}: {code}: {said.getvalue()}"
    out.seek(0)
    return out.read()


def rendered(text: str, root: Path) -> str:
    """The page with what its commands print on a fresh store below ``root``."""
    unpack(CASE, root)
    with _inside(root):
        return BLOCK.sub(lambda match: _block(commands(match[1])), text)


def _block(of: list[str]) -> str:
    return "```console\n" + "\n".join(f"$ {one}\n{printed(one)}" for one in of) + "```"


@contextlib.contextmanager
def _inside(root: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(root)
    try:
        yield
    finally:
        os.chdir(before)


def test_each_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    """In order, on one store: looking, finding, repairing, adopting."""
    text = PAGE.read_text(encoding="utf-8")
    assert sum(len(commands(block)) for block in BLOCK.findall(text)) >= 12
    assert rendered(text, tmp_path) == text


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made = rendered(PAGE.read_text(encoding="utf-8"), Path(folder))
    PAGE.write_text(made, encoding="utf-8")

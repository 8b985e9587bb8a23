"""The manual pages: one for each command, read by the system's own formatter without complaint."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cli.help.man import manual_pages
from cli.help.pages import visible
from cli.tree import NOUNS
from tests.fakes.cli_cluster import FakeCluster


def formatted(text: str) -> str:
    """What a terminal shows of a page; a warning of the formatter fails the test."""
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    found = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-c", "-P-b", "-P-u"], input=text, text=True,
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert found.stderr == ""
    return found.stdout


def test_every_command_has_a_page(tmp_path: Path) -> None:
    """And is named on the first one; older pages are replaced."""
    (tmp_path / "man1").mkdir()
    (tmp_path / "man1" / "twinlog.1").write_text("old")
    code, out, err = FakeCluster(tmp_path).run("man", str(tmp_path / "man1"))
    assert code == 0, err
    names = {f"twinlog-{'-'.join(command.path)}.1" for command in visible()} | {"twinlog.1"}
    assert {path.name for path in (tmp_path / "man1").iterdir()} == names
    assert f"wrote {len(names)} pages" in out
    first = (tmp_path / "man1" / "twinlog.1").read_text()
    assert all(f".B {noun}\n" in first for noun in NOUNS)


def test_pages_are_readable() -> None:
    """What help says is on the page, and nothing in a text is taken for a request."""
    pages = manual_pages()
    shown = formatted(pages["twinlog-topic-create.1"])
    words = " ".join(shown.split())
    for phrase in ("twinlog topic create NAME", "--queues", "%RETRY%", "EXAMPLES",
                   "twinlog topic create orders --queues 8", "--timeout DURATION"):  # fmt: skip
        assert phrase in words, phrase
    for text in pages.values():
        formatted(text)

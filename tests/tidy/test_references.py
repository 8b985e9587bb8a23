"""The tree speaks of itself alone: every document, page or record that it names is in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "benchmarks", "cli", "deploy", "docs", "examples", "node", "replication", "storage", "tests",
    "twinlog",
)  # fmt: skip
SUFFIXES = {".c", ".h", ".md", ".pxi", ".py", ".pyx", ".sh", ".toml", ".txt", ".yaml", ".yml"}
ALONE = ("README.md", "CHANGELOG.md", "Makefile", ".importlinter", "pyproject.toml", "setup.py")

PAGE = re.compile(r"(?<![\w./-])((?:[\w-]+/)*[\w-]+\.md)\b")
"""A page by its name, with or without folders."""

ELSEWHERE = re.compile(
    r"\bdecision D\d+|\bD\d{1,2}\)|\bG\.\d+\b|\b(?:protocol|design) notes\b|\bsection \d+ of the\b"
    r"|/work/|\bprotocol's (?:lists?|text)\b|\b[Ii]ssue (?:#|\d)"
)
"""How documents that are not here were named."""

PLACES = ("", "docs", "docs/spark", "docs/decisions", "docs/changes.d", "deploy/spark")
MADE = {"PAGE.md", "page.md", "a.md"}
"""Names that tests make up."""


def files() -> list[Path]:
    """Every text of the tree that people read or write."""
    found = [ROOT / name for name in ALONE]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def label(path: Path) -> str:
    """The path as a test name."""
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("folder", [*FOLDERS, ""])
def test_what_is_named_is_in_the_tree(folder: str) -> None:
    """A stranger can open every page that a text refers to, and nothing refers to one elsewhere."""
    for path in files():
        if label(path).partition("/")[0] != folder and not (folder == "" and path.parent == ROOT):
            continue
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        elsewhere = ELSEWHERE.search(text)
        assert elsewhere is None, f"{label(path)}: {elsewhere and elsewhere[0]!r}"
        for name in PAGE.findall(text):
            around = [path.parent / name, *(ROOT / place / name for place in PLACES)]
            assert name in MADE or any(map(Path.exists, around)), f"{label(path)} names {name}"


def test_decisions_that_are_named_exist() -> None:
    """``docs/decisions/NNNN`` names a record by its number."""
    known = {path.name[:4] for path in (ROOT / "docs" / "decisions").glob("0*.md")}
    for path in files():
        for number in re.findall(r"docs/decisions/(\d{4})", path.read_text(errors="replace")):
            assert number in known, f"{label(path)} names decision {number}"

"""Plain technical English: turns of phrase that make a native reader stumble are refused.

Each pattern comes with what to write instead. Pages, and so help, settings, metrics and events
that are rendered into pages, are held first; then errors and hints; then whole folders, docstrings
and comments included, as they are cleaned.

Not here: names of files and words of errors (`tests.tidy.test_style`).
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PATTERNS = {
    r"\b(?:is|are|was) none\b": "not a ..., missing, there is no ...",
    r"\bleads? (?:to|into|past|behind)\b": "points to",
    r"\banew\b": "again, rebuilt",
    r"\bof (?:ours|theirs)\b|\ba \w+ of (?:RocketMQ|Spark|twinlog)'s\b": (
        "a twinlog ..., a RocketMQ ..."
    ),
    r"\b(?:[Nn]obody|[Ss]omebody|[Ww]hoever)\b": "the actor by name, or the passive",
    r"\b[Mm]end(?:s|ed|ing)?\b": "fixed, repaired",
    r"\bbehind (?:them|what|which|that|each|every|the (?:end|first|last|newest))\b": (
        "after, beyond"
    ),
    r"\bso (?:long|many|much)\b(?! (?:as|that|more))": "this long, at most N",
    r"\b(?:is|are|be|was|were) told\b(?! apart)": "notified, reported",
}
"""What is refused, and what to write instead."""

CLEAN_TEXTS = ("cli",)
"""Folders whose texts for users (everything that is raised or printed) have none of it."""

CLEAN = (
    "benchmarks",
    "cli",
    "node",
    "replication",
    "storage",
    "tests/fixtures",
    "tests/processes",
    "tests/readme",
    "tests/tidy",
    "twinlog/client",
    "twinlog/consumer",
    "twinlog/filters",
    "twinlog/format",
    "twinlog/kernels",
    "twinlog/producer",
    "twinlog/session",
    "twinlog/spark/directory",
    "twinlog/spark/engine",
    "twinlog/spark/jobs",
    "twinlog/spark/nodes",
    "twinlog/spark/plan",
    "twinlog/spark/sink",
    "twinlog/spark/source",
    "twinlog/store",
    "twinlog/wire",
)
"""Folders that have none of it anywhere, docstrings and comments included."""


def found_in(text: str) -> list[str]:
    """Every refused phrase of a text, with its line and what to write instead."""
    found: list[str] = []
    for pattern, instead in PATTERNS.items():
        for match in re.finditer(pattern, text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"line {line}: {match[0]!r}: {instead}")
    return found


def label(path: Path) -> str:
    """The path as a test name."""
    return path.relative_to(ROOT).as_posix()


PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=label)
def test_a_page_reads_as_written_by_a_native(path: Path) -> None:
    """Pages, and with the generated ones all help, settings, metrics, events and exit codes."""
    found = found_in(path.read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


def user_texts(tree: ast.Module) -> str:
    """The texts of a module that users can see, one a line: all but docstrings."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]
    return "\n".join(text.replace("\n", " ") for text in texts)


@pytest.mark.parametrize("folder", CLEAN_TEXTS)
def test_what_users_read_is_plain(folder: str) -> None:
    """Errors, hints, help and answers."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        found = found_in(user_texts(ast.parse(path.read_text(encoding="utf-8"))))
        assert not found, f"{label(path)}: " + "\n".join(found)


@pytest.mark.parametrize("folder", CLEAN)
def test_a_clean_folder_stays_clean(folder: str) -> None:
    """Docstrings and comments too."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if path == Path(__file__):
            continue
        found = found_in(path.read_text(encoding="utf-8"))
        assert not found, f"{label(path)}: " + "\n".join(found)


def test_patterns_find_what_they_are_for() -> None:
    """Each pattern notices its phrase, and the words of plain sentences pass."""
    for text in ("a name that is none", "leads to a record", "built anew", "a store of ours"):
        assert found_in(text), text
    for text in ("Nobody knows.", "is mended", "behind the end", "for so long", "nodes are told"):
        assert found_in(text), text
    for text in ("12 bytes behind the master", "so long as it lasts", "points to a record"):
        assert not found_in(text), text

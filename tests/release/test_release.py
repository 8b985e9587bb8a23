"""What a release refuses, and the changelog that it composes.

Not here: that the wheel and the source distribution work (`tests.readme.test_wheel`).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.release import build
from tests.release.build import Refused, declared, fragments, reasons, release, write_changelog
from tests.release.changelog import MARK, compose, entries, faults

ROOT = Path(__file__).parents[2]
OLD = f"# Changelog\n\nAbout.\n\n{MARK}\n\n## 1.0.0 (2026-01-02)\n\n### Added\n\n- Old.\n"
FIRST = (
    f"# Changelog\n\n{MARK}\n\n## 1.0.0 (unreleased)\n\nThe first.\n\n### The store\n\n* A log.\n"
)
RENDERED = "## 9 (x)\n\n### Added\n\n- New.\n\n### Fixed\n\n- Well again.\n"


def run(folder: Path, *words: str) -> None:
    """Run a git command as a made-up person."""
    person = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *person, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree of version 1.1.0 with one fragment, everything committed."""
    root = tmp_path / "tree"
    (root / "docs" / "changes.d").mkdir(parents=True)
    (root / "docs" / "changes.d" / "README.md").write_text("About fragments.\n")
    (root / "docs" / "changes.d" / "+thing.added.md").write_text("A thing is there.\n")
    (root / "CHANGELOG.md").write_text(OLD)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    towncrier = text[text.index("[tool.towncrier]") :]
    (root / "pyproject.toml").write_text(f'[project]\nversion = "1.1.0"\n\n{towncrier}')
    run(root, "init", "-q")
    run(root, "add", "-A")
    run(root, "commit", "-qm", "A start")
    return root


def test_a_clean_tree_of_the_next_version_is_not_refused(tree: Path, tmp_path: Path) -> None:
    """Nothing speaks against it."""
    assert list(reasons(tree, "1.1.0", tmp_path / "dist")) == []


def test_every_reason_is_named_at_once(tree: Path, tmp_path: Path) -> None:
    """A changed file, a new file, another version, a tag, an old entry, files that lie there."""
    (tree / "CHANGELOG.md").write_text(OLD + "\n")
    (tree / "stray.txt").write_text("x")
    run(tree, "tag", "v1.0.0")
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "twinlog-1.0.0.tar.gz").touch()
    expected = (
        "pyproject.toml has version 1.1.0", "2 files differ", "the tag v1.0.0 exists",
        "has 1.0.0 of 2026-01-02", "has files of 1.0.0",
    )  # fmt: skip
    said = list(reasons(tree, "1.0.0", dist))
    assert len(said) == len(expected)
    for part, line in zip(expected, said, strict=True):
        assert part in line
    assert any("is no version" in line for line in reasons(tree, "1.1", dist))


def test_a_refused_release_builds_and_changes_nothing(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a folder."""
    monkeypatch.setattr(build, "call", lambda *_, **__: pytest.fail("something was run"))
    run(tree, "tag", "v1.1.0")
    with pytest.raises(Refused, match=r"v1\.1\.0 exists"):
        release(tree, "1.1.0", tmp_path / "dist", dry_run=False)
    assert not (tmp_path / "dist").exists()
    assert (tree / "CHANGELOG.md").read_text() == OLD and fragments(tree)


@pytest.mark.slow
def test_the_changelog_takes_the_fragments(tree: Path) -> None:
    """The new entry is above the old one; the fragments are gone, what explains them is not."""
    text = write_changelog(tree, declared(tree), "2026-02-03")
    assert list(entries(text).items()) == [("1.1.0", "2026-02-03"), ("1.0.0", "2026-01-02")]
    assert "- A thing is there." in text.partition("## 1.0.0")[0]
    assert [path.name for path in (tree / "docs" / "changes.d").iterdir()] == ["README.md"]
    assert (tree / "CHANGELOG.md").read_text() == text


def test_an_entry_that_was_begun_stays_the_overview() -> None:
    """One entry of the first release: what was written by hand, then what the fragments say."""
    text = compose(FIRST, "1.0.0", "2026-02-03", RENDERED)
    assert entries(text) == {"1.0.0": "2026-02-03"}
    places = [
        text.index(part)
        for part in ("The first.", "### The store", "### In detail", "#### Added", "#### Fixed")
    ]
    assert places == sorted(places)
    assert text.count("### Added") == 1 and MARK in text and text.endswith("- Well again.\n")


def test_older_entries_stay_as_they_are() -> None:
    """Also below an entry that was begun by hand."""
    begun = OLD.replace(MARK, f"{MARK}\n\n## 1.1.0 (unreleased)\n\nBy hand.")
    for text in (
        compose(OLD, "1.1.0", "2026-02-03", RENDERED),
        compose(begun, "1.1.0", "2026-02-03", RENDERED),
    ):
        assert text.endswith(OLD.partition(MARK)[2].lstrip())
        assert list(entries(text)) == ["1.1.0", "1.0.0"]
    assert "By hand." in compose(begun, "1.1.0", "2026-02-03", RENDERED)


def test_what_keeps_a_changelog_from_an_entry() -> None:
    """An entry of another version was begun; nothing has changed; the line is missing."""
    assert faults(FIRST, "1.0.0", 0) == []
    assert "begun an entry for 1.0.0" in faults(FIRST, "1.1.0", 3)[0]
    assert "nothing to release" in faults(OLD, "1.1.0", 0)[0]
    assert MARK in faults("# Changelog\n", "1.1.0", 1)[0]


def test_this_tree_can_be_released_when_it_is_clean() -> None:
    """Its changelog and version fit together."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert faults(text, declared(ROOT), len(fragments(ROOT))) == []

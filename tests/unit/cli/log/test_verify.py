"""``twinlog log verify`` with ``--jobs`` and ``--fast``, and what it says while it works."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.app import main
from cli.log import verify
from tests.stores.golden import manifest, unpack
from tests.stores.sample import flip, sample
from twinlog.format.log_file import file_name


def verified(
    capsys: pytest.CaptureFixture[str], root: Path, *words: str
) -> tuple[int, dict[str, Any]]:
    code = main(["log", "verify", str(root), "-o", "json", *words], {})
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


def test_jobs_find_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Side by side or one after the other: the same counts and findings, damage included."""
    root = unpack("02-rollover", tmp_path)
    one = verified(capsys, root)
    assert one == verified(capsys, root, "--jobs", "4")
    assert one[1]["records"] == len(manifest("02-rollover")["messages"])
    for name in (0, 65536):  # an offset in a record's own header, in two files
        flip(root / "commitlog" / file_name(name), 35)
    code, damaged = verified(capsys, root)
    assert (code, len(damaged["findings"])) == (65, 2)
    assert (code, damaged) == verified(capsys, root, "--jobs", "4")
    assert main(["log", "verify", str(root), "--jobs", "0"], {}) == 64


def test_fast_leaves_out_the_bodies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A flipped body is seen by all checks only; a flipped offset and a lost entry by both."""
    ours = sample()
    root = ours.write(tmp_path / "a", flushed=ours.end)
    last = ours.entries[5]
    flip(root / "commitlog" / file_name(0), last.end - 40)
    assert verified(capsys, root)[0] == 65
    assert verified(capsys, root, "--fast")[0] == 0
    flip(root / "commitlog" / file_name(0), last.start + 35)
    assert verified(capsys, root, "--fast")[0] == 65
    theirs = unpack("03c-bad-body", tmp_path / "b")
    (theirs / "abort").unlink()
    assert verified(capsys, theirs)[0] == 65
    shutil.rmtree(theirs / "consumequeue")
    assert verified(capsys, theirs, "--fast")[0] == 65


def test_the_capacity_of_the_key_index_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Not four cells a slot: exit 2 until the call says how many; one number is not enough."""
    root = unpack("01-basic", tmp_path)
    for path in (root / "index").iterdir():
        path.write_bytes(path.read_bytes() + bytes(7 * 20))
    code, found = verified(capsys, root)
    assert (code, found["state"]) == (2, "unreadable")
    assert "--index-slots N" in found["findings"][0]["what"]
    assert verified(capsys, root, "--index-slots", "100", "--index-cells", "407")[0] == 0
    for words in (("--index-slots", "100"), ("--index-slots", "0", "--index-cells", "7")):
        assert main(["log", "verify", str(root), *words], {}) == 64


def test_progress_is_said_on_stderr(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipe one line every ten seconds: the first at once. --quiet says nothing."""
    root = unpack("02-rollover", tmp_path)
    assert main(["log", "verify", str(root)], {}) == 0
    assert capsys.readouterr().err == ""  # a small log is verified before anybody asks
    monkeypatch.setattr(verify, "PROGRESS_MIN", 0)
    assert main(["log", "verify", str(root)], {}) == 0
    said = capsys.readouterr()
    assert "reading the log" in said.err
    assert "reading" not in said.out
    assert main(["log", "verify", str(root), "--quiet"], {}) == 0
    assert capsys.readouterr().err == ""


def test_a_log_in_several_folders(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """RocketMQ's ``storePathCommitLog`` behind commas; without it half of the log is missing."""
    root, more = unpack("02-rollover", tmp_path), tmp_path / "more"
    whole = verified(capsys, root)
    more.mkdir()
    for path in sorted((root / "commitlog").iterdir())[1::2]:
        path.rename(more / path.name)
    assert verified(capsys, root)[0] == 65
    code, found = verified(capsys, Path(f"{root},{more}"))
    differ = {name for name in found if found[name] != whole[1].get(name)}
    assert (code, differ - {"directory", "seconds", "bytes_per_second"}) == (0, set())
    assert main(["log", "verify", f"{root},{tmp_path / 'away'}"], {}) in (64, 66)
    assert f"log folder {tmp_path / 'away'} of {root} is missing" in capsys.readouterr().err


def test_what_is_not_judged_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In the document and below the answer: silence is no verdict. Ours, and RocketMQ's."""
    root = sample().write(tmp_path / "ours")
    (root / "notes.txt").touch()
    (root / "timerlog").mkdir()
    code, found = verified(capsys, root)
    assert code == 0
    named = {one["file"]: one["reason"] for one in found["not_checked"]}
    assert named["notes.txt"] == "not known as part of a store"
    assert named["timerlog"] == "only RocketMQ uses it"
    assert main(["log", "verify", str(root)], {}) == 0
    assert "not checked: notes.txt (not known as part of a store)\n" in capsys.readouterr().out

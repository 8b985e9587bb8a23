"""``log verify``, ``repair``, ``recover`` and ``store adopt`` on directories that are not as usual.

Each says what is wrong, where, and what to do; the exit code is that of its reason, and what is
refused is left as it is.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from cli.app import main
from storage import Store
from storage.disk.disk import RealDisk
from tests.stores.golden import unpack
from tests.stores.killed import SETTINGS, WHO, killed
from twinlog.store.reader import StoreReader

NAMED = ["--cluster", "c", "--node", "n1"]
COMMANDS = (
    ["log", "verify"],
    ["log", "repair", "--yes"],
    ["log", "recover"],
    ["store", "adopt", *NAMED, "--yes"],
)
WRITING = COMMANDS[1:3]


def run(words: list[str], root: Path) -> int:
    return main([*words[:2], str(root), *words[2:]], {})


def state(root: Path) -> dict[str, str]:
    """Every file with its digest."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def ours(root: Path) -> Path:
    killed(root).close(clean=True)
    return root


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_is_no_directory_of_a_store(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    """Nothing, a file, a folder with nothing but ``abort``: 66, and nothing is made there."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "abort").write_text("1")
    said = {
        "nothing": "there is no directory",
        "file": "it is a file, not a directory",
        "folder": "is not a store: it has no directory commitlog",
    }
    for name, text in said.items():
        assert run(words, tmp_path / name) == 66
        err = capsys.readouterr().err
        assert text in err
        assert "hint: name the data directory of a node" in err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["abort", "file", "folder"]


@pytest.mark.parametrize(
    ("name", "words"), [("run", WRITING[1]), ("checkpoint", WRITING[0]), ("identity", WRITING[1])]
)
def test_a_small_file_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, words: list[str]
) -> None:
    """It was an error of the disk (69) in the middle of the work; now nothing is begun."""
    root = ours(tmp_path / "store")
    (root / "twinlog" / name).unlink()
    before = state(root)
    assert run(words, root) == 65
    err = capsys.readouterr().err
    assert f"twinlog/{name} is missing, and a node cannot start without it" in err
    assert "twinlog store adopt" in err
    assert state(root) == before
    assert run(COMMANDS[3], root) == 0


@pytest.mark.slow
def test_files_of_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A file among the topics, or the queue files, stops neither an adoption nor a start."""
    root = unpack("01-basic", tmp_path)
    topic = root / "consumequeue" / "a" / "0"
    for path in (root / "consumequeue" / "x.bin", topic / "y.bin", root / "todo.txt"):
        path.write_text("hello")
    assert run(COMMANDS[0], root) == 0
    out = capsys.readouterr().out
    assert "not checked: todo.txt, consumequeue/x.bin (not known as part of a store)" in out
    assert run(COMMANDS[3], root) == 0
    assert (root / "consumequeue" / "x.bin").read_text() == "hello"
    (root / "commitlog" / "notes.txt").write_text("hello")
    (root / "checkpoint").write_bytes(b"\1" * 4096)  # as if RocketMQ had been there
    assert run(COMMANDS[2], root) == 0


@pytest.mark.parametrize("number", [3, -1])
def test_a_log_file_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, number: int
) -> None:
    """2 from all: a repair cut the queues of the newest one, and an adoption called it damaged."""
    root = unpack("02-rollover", tmp_path)
    file = sorted((root / "commitlog").iterdir())[number]
    file.unlink()
    file.symlink_to("/not/mounted")
    before = state(root)
    for words in (COMMANDS[0], COMMANDS[1], COMMANDS[3]):
        assert run(words, root) == 2
        said = capsys.readouterr()
        assert f"commitlog/{file.name}" in said.out + said.err
        assert "a link that cannot be followed" in said.out + said.err
    assert state(root) == before
    assert main(["log", "repair", str(root), "--dry-run", "-o", "json"], {}) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["actions"], [one["grade"] for one in found["lost"]]) == ([], ["unreadable"])


def test_a_log_file_that_is_short(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It was called missing, and "nothing was changed" though the marks were."""
    root = ours(tmp_path / "store")
    with (root / "commitlog" / f"{0:020d}").open("r+b") as opened:
        opened.truncate(5000)
    assert run(COMMANDS[2], root) == 65
    err = capsys.readouterr().err
    assert "log file has 5000 bytes, not 16384" in err
    assert "the log was not changed; the store is marked as not stopped cleanly" in err


def test_rocketmqs_store_and_a_changed_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """``recover`` is the wrong command for the one (64); the other is damaged (65)."""
    theirs = unpack("01-basic", tmp_path)
    before = state(theirs)
    assert run(COMMANDS[2], theirs) == 64
    err = capsys.readouterr().err
    assert f"{theirs}: this directory is not a twinlog store" in err
    assert state(theirs) == before
    assert run(COMMANDS[3], theirs) == 0
    with StoreReader(theirs) as reader:
        end, file = reader.end, reader.series.files[-1]
    with file.path.open("r+b") as opened:
        opened.seek(end - file.start + 3)
        opened.write(b"\7")
    before = state(theirs)
    assert run(COMMANDS[2], theirs) == 65
    err = capsys.readouterr().err
    assert "another program changed the store" in err
    assert "nothing was changed" in err
    assert state(theirs) == before


def test_a_store_in_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """69 from everything that writes; looking is allowed."""
    root = ours(tmp_path / "store")
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=2)
    before = state(root)
    for words in COMMANDS[1:]:
        assert run(words, root) == 69
        err = capsys.readouterr().err
        assert f"{root} is in use" in err
        assert "hint: stop its node" in err
    assert run(COMMANDS[0], root) == 0
    assert state(root) == before
    store.close(clean=True)


def test_a_directory_without_rights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """77; it was said that another process holds the directory."""
    root = ours(tmp_path / "store")
    before = state(root)
    opened = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith("/lock") and flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opened(path, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr("os.open", refuse)
        assert run(COMMANDS[2], root) == 77
    err = capsys.readouterr().err
    assert "lock: EACCES" in err
    assert "run it as the user who owns the directory" in err
    assert state(root) == before


def test_a_folder_by_a_link(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A link to a store is the store."""
    root = ours(tmp_path / "store")
    link = tmp_path / "link"
    link.symlink_to(root)
    assert run(COMMANDS[0], link) == 0
    assert run(COMMANDS[2], link) == 0
    assert str(link) in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_a_log_file_gets_its_length_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    """It lacked zeros: verify reports it, repair restores it, and then all is as it was."""
    root = ours(tmp_path / "store") if kind == "ours" else unpack("02-rollover", tmp_path)
    file = max((root / "commitlog").iterdir())
    whole = file.read_bytes()
    with file.open("r+b") as opened:
        opened.truncate(5000)
    assert run(COMMANDS[0], root) == (65 if kind == "ours" else 0)
    assert f"it has 5000 bytes, not {len(whole)}" in capsys.readouterr().out
    assert run(COMMANDS[1], root) == 0
    assert f"fill: commitlog/{file.name}: it has 5000 bytes" in capsys.readouterr().err
    assert file.read_bytes() == whole
    assert run(COMMANDS[0], root) == 0
    assert run(COMMANDS[3], root) == 0


def test_a_log_file_that_lacks_records(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """They are lost, and no zeros hide it."""
    root = ours(tmp_path / "store")
    file = root / "commitlog" / f"{0:020d}"
    with file.open("r+b") as opened:
        opened.truncate(100)
    assert run(COMMANDS[1], root) == 65
    assert "2 lost" in capsys.readouterr().out
    assert file.stat().st_size == 100

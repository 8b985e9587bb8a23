"""``twinlog store adopt``: plan, question, document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.app import main
from tests.stores.golden import manifest, unpack
from tests.stores.sample import flip
from twinlog.store.damage import Grade
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify


def test_a_plan_changes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """--dry-run says what would be done; without a name it says which option is missing."""
    root = unpack("01-basic", tmp_path)
    assert main(["store", "adopt", str(root), "--node", "n1", "--dry-run"], {}) == 64
    assert "--cluster NAME" in capsys.readouterr().err
    words = ["store", "adopt", str(root), "--cluster", "demo", "--node", "n1"]
    assert main([*words, "--dry-run", "-o", "json"], {}) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["done"], found["log_end"]) == ("StoreAdopt", False, None)
    assert found["end"] == manifest("01-basic")["log"]["max_offset"]
    assert found["epoch_start"] == 262144
    assert not (root / "twinlog").exists()
    assert main(words, {"CI": "1"}) == 64
    assert not (root / "twinlog").exists()


def test_adopting(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """After --yes it is a twinlog store; the same call again does nothing."""
    root = unpack("02-rollover", tmp_path)
    words = ["store", "adopt", str(root), "--cluster", "demo", "--node", "n1", "--yes"]
    assert main([*words, "-o", "json"], {}) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["done"] is True
    assert found["records"] == 1400
    assert main(["log", "info", str(root), "-o", "json"], {}) == 0
    assert json.loads(capsys.readouterr().out)["end"] == found["log_end"]
    assert main(words, {}) == 0
    said = capsys.readouterr()
    assert "already" in said.err
    assert said.out == ""  # it showed a plan that would not be carried out
    assert not (root / "cut" / "adopt-2").exists()


def test_timers_that_wait_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By the log, whatever the wheel says."""
    root = unpack("05-timer", tmp_path)
    words = ["store", "adopt", str(root), "--cluster", "demo", "--node", "n1", "--dry-run"]
    assert main(words, {}) == 0
    said = "18 messages wait for a time: delivered when due\n"
    assert said in capsys.readouterr().out
    assert main([*words, "-o", "json"], {}) == 0
    assert json.loads(capsys.readouterr().out)["timers_waiting"] == 18


def test_delayed_messages_that_wait_are_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Levels 1 to 3 were delivered; two of each other level, and three of the last, were not.

    Where the file is older than the log, the copies in the log count; never what it says beyond.
    """
    root = unpack("04-delay", tmp_path)
    words = ["store", "adopt", str(root), "--cluster", "demo", "--node", "n1", "--dry-run"]
    assert main(words, {}) == 0
    said = "31 delayed messages wait for their level: delivered when due\n"
    assert said in capsys.readouterr().out
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{2:4,3:-1,18:900\n}}')
    assert main([*words, "-o", "json"], {}) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["delays_waiting"], found["delays_repeated"]) == (14 * 2, 8 + 5 + 8)


def test_the_plan_is_said_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Before it is carried out; and with names that a cluster file can have."""
    root = unpack("10-ipv6", tmp_path)
    words = ["store", "adopt", str(root), "--yes", "--cluster", "c", "--node"]
    for name in ("n 1", "n1\n", "x" * 64):
        assert main([*words, name], {}) == 64
        assert "at most 63" in capsys.readouterr().err
    assert main([*words, "n1"], {}) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.count("all of it becomes epoch 0") == 1
    assert said.out.splitlines()[-2:][0] == ""
    assert said.out.splitlines()[-1].startswith("adopted; the log ends at ")


def test_a_broker_that_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """69, as for a node; it was called damaged. What it is writing is no damage either."""
    root = unpack("03b-torn-tail", tmp_path)
    monkeypatch.setattr("twinlog.store.marks._locked", lambda path: True)
    assert main(["store", "adopt", str(root), "--cluster", "c", "--node", "n1", "--yes"], {}) == 69
    assert f"{root} is in use" in capsys.readouterr().err
    assert main(["log", "info", str(root)], {}) == 0
    assert "RocketMQ · running ·" in capsys.readouterr().out
    assert main(["log", "verify", str(root)], {}) == 0


def test_hints_name_every_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without its other folders the store would be another one."""
    root = unpack("03-crash", tmp_path)
    (tmp_path / "more").mkdir()
    last = max((root / "commitlog").iterdir())
    last.rename(tmp_path / "more" / last.name)
    named = f"{root},{tmp_path / 'more'}"
    assert main(["store", "adopt", named, "--cluster", "c", "--node", "n1"], {}) == 65
    assert f"or: twinlog log repair {named}\n" in capsys.readouterr().err
    assert main(["log", "cat", named, "--topic", "nosuch"], {}) == 66
    assert f"see: twinlog log info {named} --queues" in capsys.readouterr().err
    assert main(["log", "repair", named, "--index-slots", "100", "--yes"], {}) == 0
    assert f"what was cut is in {root / 'cut' / 'repair-1'}\n" in capsys.readouterr().out


REFUSED = (
    ("03-crash", 65, "it was not stopped cleanly", "or: twinlog log repair {root}\n"),
    ("17-lost-queue-clean", 65, "have no entry", "see: twinlog log verify {root}; then: "),
    (
        "02-rollover",
        65,
        "00000000000000000000: the body does not match its CRC",
        "see: twinlog log verify {root}",
    ),
    ("18-cqext", 64, "has an extension (consumequeue_ext)", "read it with twinlog log\n"),
)
"""Case, exit code, what is said, which hint is given."""


def test_what_is_no_store(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """66 where nothing is; 65 with the reason where it is damaged or has no certain end.

    64 where another command is the right one. The hint names the directory: it can be pasted.
    """
    assert main(["store", "adopt", str(tmp_path / "none")], {}) == 66
    named = ["--cluster", "c", "--node", "n", "--yes"]
    for case, code, text, hint in REFUSED:
        root = unpack(case, tmp_path / case)
        if case == "02-rollover":
            flip(root / "commitlog" / f"{0:020d}", 88)
        assert main(["store", "adopt", str(root), *named], {}) == code, case
        err = capsys.readouterr().err
        assert text in err
        assert hint.format(root=root) in err
        assert not (root / "twinlog").exists()
    (tmp_path / "empty" / "commitlog").mkdir(parents=True)
    assert main(["store", "adopt", str(tmp_path / "empty"), *named], {}) == 66
    assert "it has no log file" in capsys.readouterr().err


def test_an_adoption_that_ended_early_is_finished(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its identity but without an epoch it is no store yet, whatever its marks say."""
    root = unpack("01-basic", tmp_path)
    words = ["store", "adopt", str(root), "--cluster", "demo", "--node", "n1", "--yes"]
    with monkeypatch.context() as patch:
        patch.setattr("storage.tools.adopt._first_epoch", lambda *_: 0)
        assert main(words, {}) == 0
    with StoreReader(root) as reader:
        assert [epoch for epoch, _ in reader.epochs()] == [0]
    assert main(words, {}) == 0
    with StoreReader(root) as reader:
        assert [epoch for epoch, _ in reader.epochs()] == [0, 1]
        assert not any(one.grade is Grade.DAMAGE for one in verify(reader).findings)
    capsys.readouterr()
    assert main(words, {}) == 0
    assert "is the store of n1 already" in capsys.readouterr().err

"""What `restore` must not do: say done of what is not, or touch what is another's."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cli.app import main
from storage.disk.packing import seal
from tests.stores.sample import SEGMENT
from twinlog.errors import CorruptionError, UsageError
from twinlog.spark.archive.archive_dir import ArchiveDir
from twinlog.spark.archive.manifest import Segment
from twinlog.spark.archive.restore import RestoreSettings, restore
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.engine.report import Verdict

PLAIN = {"TWINLOG_SPARK_ENGINE": "plain"}


def owned(root: Path, cluster: str, group: str) -> None:
    """Let a directory say whose it is."""
    file = root / "twinlog" / "identity"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(seal({"cluster": cluster, "group": group}))


def segments(kept: Path) -> list[Segment]:
    """Its segments."""
    return list(ArchiveDir(kept).newest().segments)


def test_a_batch_index_that_was_damaged_is_not_restored(kept: Path, tmp_path: Path) -> None:
    """It is a file of the manifest like every other one."""
    held = next(file for file in segments(kept)[0].files if file.kind == "batches")
    data = bytearray((kept / held.path).read_bytes())
    data[20] ^= 1
    (kept / held.path).write_bytes(data)
    words = ["spark", "restore", "--archive", str(kept), "--to", str(tmp_path / "back")]
    assert main(words, PLAIN) == 65
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("kind", ["data", "batches"])
@pytest.mark.parametrize("instead", ["nothing", "a directory"])
def test_a_file_that_is_gone_is_damage_and_is_named(
    kind: str, instead: str, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 65, of the check and of the restore."""
    held = next(file for file in segments(kept)[1].files if file.kind == kind)
    (kept / held.path).unlink()
    if instead == "a directory":
        (kept / held.path).mkdir()
    words = ["spark", "restore", "--archive", str(kept)]
    for more in (["--check"], ["--to", str(tmp_path / "back")]):
        assert main([*words, *more], PLAIN) == 65
        said = "".join(capsys.readouterr())
        assert held.path in said
    assert not (tmp_path / "back").exists()


def test_places_that_are_none(kept: Path, tmp_path: Path) -> None:
    """A file, a link to nothing, the root; a file where a directory of the store must be."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "odd" / "commitlog").mkdir(parents=True)
    (tmp_path / "odd" / "twinlog").write_text("x")
    before = sorted(tmp_path.iterdir())
    for name in ("file", "link", "odd"):
        words = ["spark", "restore", "--archive", str(kept), "--to", str(tmp_path / name)]
        assert main(words, PLAIN) == 64, name
    assert main(["spark", "restore", "--archive", str(kept), "--to", "/"], PLAIN) == 64
    assert sorted(tmp_path.iterdir()) == before
    for name in ("file", "link"):
        words = ["spark", "archive", "--path", str(tmp_path / "s"), "--to", str(tmp_path / name)]
        assert main(words, PLAIN) == 64, name
    assert main([*words[:-1], str(tmp_path / "s" / "archive")], PLAIN) == 64, "inside of the store"
    assert not (tmp_path / "s" / "archive").exists()


def test_what_a_range_names_and_nobody_has_is_missing(kept: Path, tmp_path: Path) -> None:
    """Before the first and behind the last segment as well; without a number it means what is."""
    all_of = segments(kept)
    end = all_of[-1].end
    words = ["spark", "restore", "--archive", str(kept), "--check", "--range"]
    for text, code in (
        ("start:", 0), (":end", 0), ("0:", 0), (f"0:{end}", 0), (f"0:{end + 1}", 1),
        (f"{SEGMENT}:{2 * SEGMENT}", 0),
    ):  # fmt: skip
        assert main([*words, text], PLAIN) == code, text
    found = restore(PlainEngine(), RestoreSettings(kept, tmp_path / "back", end=end + 7))
    assert found.verdict is Verdict.NO and list(found.tables["missing"].rows) == [(end, end + 7)]


def test_a_hole_to_what_is_there_already_is_missing(kept: Path, tmp_path: Path) -> None:
    """Retention left the end, restored is the beginning: a store with a hole is not done."""
    to, last = tmp_path / "s", segments(kept)[-1]
    for path in sorted((to / "commitlog").iterdir()):
        if int(path.name) < last.end:
            path.unlink()
    found = restore(PlainEngine(), RestoreSettings(kept, to, end=SEGMENT))
    assert found.verdict is Verdict.FINE, "the range is there"
    found = restore(PlainEngine(), RestoreSettings(kept, to, start=0))
    assert found.verdict is Verdict.FINE, "all of it"
    (to / "commitlog" / f"{SEGMENT:020d}").unlink()
    both = ArchiveDir(kept).newest()
    part = tmp_path / "part"
    ArchiveDir(part).path_of(1).parent.mkdir(parents=True)
    manifest = ArchiveDir(part).path_of(1)
    manifest.write_text(replace(both, segments=[both.segments[0]]).text())
    for name in ("data", "keys", "_twinlog/batches"):
        (part / name).symlink_to(kept / name)
    found = restore(PlainEngine(), RestoreSettings(part, to))
    assert found.verdict is Verdict.NO
    assert list(found.tables["missing"].rows) == [(SEGMENT, 2 * SEGMENT)]


HOLD = """
import fcntl, sys
held = open(sys.argv[1], "r+b")
fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_store_that_a_node_runs_on_is_left_alone(kept: Path, tmp_path: Path) -> None:
    """Its lock is asked for, as by whatever else changes a store."""
    to = tmp_path / "back"
    restore(PlainEngine(), RestoreSettings(kept, to))
    (to / "commitlog" / f"{0:020d}").unlink()
    (to / "lock").touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(to / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="a node runs on"):
            restore(PlainEngine(), RestoreSettings(kept, to))
        holder.communicate()
    restore(PlainEngine(), RestoreSettings(kept, to))
    fd = os.open(to / "lock", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    os.close(fd)


def test_a_store_of_another_group_or_cluster_gets_nothing(kept: Path, tmp_path: Path) -> None:
    """Two histories in one directory would be read as one."""
    place, to = ArchiveDir(kept), tmp_path / "back"
    now = place.newest()
    place.path_of(1).write_text(replace(now, cluster="demo").text())
    for cluster, group, error in (("demo", "g2", UsageError), ("other", "g1", CorruptionError)):
        owned(to, cluster, group)
        with pytest.raises(error, match=r"belongs to the group 'g2'|of the cluster 'demo'"):
            restore(PlainEngine(), RestoreSettings(kept, to))
    owned(to, "demo", "g1")
    assert restore(PlainEngine(), RestoreSettings(kept, to)).verdict is Verdict.FINE

"""Snapshots of a store that is written to meanwhile, and stores made from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import CreateTopic, Section, Store, StoreSettings, Token, Who
from storage.disk import copies
from storage.disk.disk import RealDisk
from storage.tools.snapshot import (
    check_snapshot,
    read_manifest,
    restore_snapshot,
    take_snapshot,
)
from twinlog.errors import CorruptionError, Unavailable, UsageError
from twinlog.format.record import RecordEncoder
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify

WHO = Who("prod", "g1", "n1", 4)
SETTINGS = StoreSettings(segment_size=16384, queue_segment_entries=50)
TOKEN = Token("master", 1, 1)


def begin(root: Path) -> Store:
    """A running store with a topic."""
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=1)
    store.take_token(TOKEN)
    store.append_epoch(TOKEN, epoch=1, node="n1", session=1, wall_ms=1, reason="t", by="t")
    store.append_control(TOKEN, CreateTopic("t", 1, 1), wall_ms=2)
    append(store, 60)
    return store


def append(store: Store, batches: int) -> None:
    """Append, confirm, dispatch and flush, as a node does."""
    for number in range(batches):
        encoder = RecordEncoder("t", 0)
        for _ in range(3):
            encoder.add(b"b" * 300, properties=b"", born_timestamp=number)
        store.append(TOKEN, [Section("t", 0, 3, encoder.take())], wall_ms=3)
        store.set_confirm(store.end)
        while store.dispatch(1 << 20):
            pass
    flush = store.jobs.flush_job(thorough=True)
    assert flush is not None
    for job in (flush, store.jobs.checkpoint_job()):
        job.run()
        store.jobs.finish(job)


@pytest.mark.parametrize("links", [True, False])
def test_a_store_in_use_is_whole_in_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """The node appends before every file that is copied, over the ends of log files too."""
    data, target, made_again = tmp_path / "n1", tmp_path / "snap", tmp_path / "again"
    store, copy = begin(data), copies.copy

    def busy(source: Path, copied: Path) -> None:
        append(store, 2)
        copy(source, copied)

    monkeypatch.setattr(copies, "copy", busy)
    flushed = store.flushed
    made, linked = take_snapshot(data, target, now_ms=7, links=links)
    monkeypatch.undo()
    assert made.flushed >= flushed
    assert (linked > 0) is links
    append(store, 30)
    store.close(clean=False)
    assert restore_snapshot(target, made_again, WHO) == made == check_snapshot(target)
    again = Store.open(RealDisk(made_again), SETTINGS, WHO, wall_ms=9)
    assert again.boot.damage is None
    assert again.end >= made.flushed
    again.close(clean=True)
    with StoreReader(made_again) as reader:
        found = verify(reader).findings
        assert [one for one in found if one.grade.value != "note"] == []
    check_snapshot(target)  # what the restored store wrote is not in the snapshot


def test_a_file_that_is_deleted_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state snapshot that a newer one replaces is no failure."""
    data, target = tmp_path / "n1", tmp_path / "snap"
    store, copy = begin(data), copies.copy
    gone = data / "twinlog" / "state" / f"{7:020d}"
    gone.write_bytes(b"old")

    def busy(source: Path, copied: Path) -> None:
        if source == gone:
            gone.unlink()
        copy(source, copied)

    monkeypatch.setattr(copies, "copy", busy)
    made, _ = take_snapshot(data, target, now_ms=7)
    store.close(clean=False)
    assert f"twinlog/state/{7:020d}" not in made.files
    check_snapshot(target)


def test_a_log_file_that_retention_overtook_ends_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older files are taken and newer ones are: a gap would only be found when it is restored."""
    data, target = tmp_path / "n1", tmp_path / "snap"
    store, log = begin(data), data / "commitlog"
    last = max(int(path.name) for path in log.iterdir())
    before = store.flushed
    copy = copies.copy

    def busy(source: Path, copied: Path) -> None:
        if source.name == "checkpoint":  # the sealed files are taken; the log turns over
            while store.flushed < last + 3 * SETTINGS.segment_size:
                append(store, 2)
            (log / f"{last:020d}").unlink()
        copy(source, copied)

    monkeypatch.setattr(copies, "copy", busy)
    with pytest.raises(Unavailable, match=f"deleted the log file at {last} "):
        take_snapshot(data, target, now_ms=7)
    assert before > last
    assert not target.exists()
    store.close(clean=False)


def test_what_a_snapshot_has_linked_is_not_erased(tmp_path: Path) -> None:
    """`retention.erase` overwrites a file that leaves; the backup of it stays."""
    log, backup = tmp_path / "log", tmp_path / "backup"
    for linked in (True, False):
        log.write_bytes(b"x" * 4096)
        assert not linked or copies.link(log, backup)
        mapping = RealDisk(tmp_path).map("log", 4096, op="map")
        mapping.retire()
        mapping.erase("erase")
        mapping.close()
        assert log.read_bytes() == (b"x" if linked else bytes(1)) * 4096
        backup.unlink(missing_ok=True)


def flip(path: Path) -> None:
    """Change one byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # a link shares its bytes with the store
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda snap: flip(snap / "store" / "commitlog" / f"{0:020d}"),
        lambda snap: (snap / "store" / "twinlog" / "checkpoint").unlink(),
        lambda snap: (snap / "identity").unlink(),
        lambda snap: (snap / "manifest.json").write_text("{"),
        lambda snap: (snap / "manifest.json").write_text('{"kind": "Snapshot", "version": 1}'),
    ],
)
def test_a_damaged_snapshot_is_not_restored(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    """Nothing is written: a half restored store might be believed."""
    begin(tmp_path / "n1").close(clean=False)
    take_snapshot(tmp_path / "n1", tmp_path / "snap", now_ms=7)
    damage(tmp_path / "snap")
    with pytest.raises(CorruptionError):
        restore_snapshot(tmp_path / "snap", tmp_path / "again", WHO)
    assert not (tmp_path / "again").exists()


def test_a_manifest_names_no_file_elsewhere(tmp_path: Path) -> None:
    """What it names is below the store."""
    begin(tmp_path / "n1").close(clean=False)
    take_snapshot(tmp_path / "n1", tmp_path / "snap", now_ms=7)
    path = tmp_path / "snap" / "manifest.json"
    found = json.loads(path.read_text())
    found["files"]["../identity"] = [1, "00"]
    path.write_text(json.dumps(found))
    with pytest.raises(CorruptionError, match=r"names \.\./identity"):
        check_snapshot(tmp_path / "snap")


def test_a_snapshot_is_restored_as_its_own_node_into_an_empty_directory(tmp_path: Path) -> None:
    """Neither over another store, nor as another node, nor over another snapshot."""
    data, snap = tmp_path / "n1", tmp_path / "snap"
    begin(data).close(clean=False)
    take_snapshot(data, snap, now_ms=7)
    with pytest.raises(UsageError, match="snapshot is of node n1 of prod"):
        restore_snapshot(snap, tmp_path / "again", Who("prod", "g1", "n2", 4))
    with pytest.raises(UsageError, match="holds something"):
        restore_snapshot(snap, data, WHO)
    with pytest.raises(UsageError, match="holds something"):
        take_snapshot(data, snap, now_ms=7)
    with pytest.raises(UsageError, match="is not a snapshot"):
        read_manifest(data)
    with pytest.raises(CorruptionError, match="identity is missing"):
        take_snapshot(snap / "store", tmp_path / "other", now_ms=7)


def test_a_snapshot_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the wanted name is always whole."""
    begin(tmp_path / "n1").close(clean=False)

    def full(path: Path) -> str:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(copies, "digest", full)
    with pytest.raises(OSError, match="No space left"):
        take_snapshot(tmp_path / "n1", tmp_path / "snap", now_ms=7)
    assert [one.name for one in tmp_path.iterdir()] == ["n1"]

"""The coordinator's file: what was recorded is there after any end, and nothing else is."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from replication.coordinator.store import (
    FILE,
    CoordinatorStore,
    StoreStopped,
)
from twinlog.errors import CorruptionError, UsageError
from twinlog.run_file import read_run_file, remove_run_file, write_run_file

TAG = (1 << 64) - 1


def opened(folder: Path) -> CoordinatorStore:
    """The store of cluster demo, group g1."""
    return CoordinatorStore(folder, "demo", "g1")


def test_a_new_store_is_empty_and_keeps_its_register_id(tmp_path: Path) -> None:
    """A coordinator killed before the first change comes back as the same register."""
    store = opened(tmp_path)
    assert store.load().document is None
    first = store.register_id
    store.close()
    again = opened(tmp_path)
    assert again.register_id == first
    again.close()


def test_what_was_recorded_is_found_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.record(1, TAG, {"state": {"revision": 1}}, [])
    store.record(2, 0, {"state": {"revision": 2}}, [{"epoch": 1, "start": None}])
    store.record(3, 7, {"state": {"revision": 3}}, [{"epoch": 1, "start": 0}, {"epoch": 2}])
    store.close()
    found = opened(tmp_path)
    recorded = found.load()
    assert recorded.document == {"state": {"revision": 3}}
    assert recorded.pairs == {1: TAG, 2: 0, 3: 7}
    assert recorded.history == ({"epoch": 1, "start": 0}, {"epoch": 2})
    found.close()


def test_a_kill_in_mid_transaction_leaves_the_last_record(tmp_path: Path) -> None:
    """The copy of the files is what a kill would leave: journal and all."""
    store = opened(tmp_path / "a")
    store.record(1, 5, {"n": 1}, [])
    store._db.execute("BEGIN IMMEDIATE")
    store._db.execute("INSERT INTO pairs VALUES (2, 9)")
    (tmp_path / "b").mkdir()
    for path in (tmp_path / "a").glob(f"{FILE}*"):
        (tmp_path / "b" / path.name).write_bytes(path.read_bytes())
    store.close()
    again = opened(tmp_path / "b")
    assert again.load().pairs == {1: 5}
    again.close()


def test_every_record_is_flushed_before_it_returns(tmp_path: Path) -> None:
    """The promise rests on these two settings of SQLite."""
    store = opened(tmp_path)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


def test_an_alarm_is_kept_without_a_revision(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.record(1, 5, {"alarm": None}, [])
    store.keep({"alarm": "seen"})
    store.close()
    again = opened(tmp_path)
    assert again.load().document == {"alarm": "seen"}
    again.close()


def test_after_an_error_nothing_is_recorded_any_more(tmp_path: Path) -> None:
    """A disk that refused once is not asked twice: the second answer could be a lie."""
    store = opened(tmp_path)
    store.record(1, 5, {}, [])
    with pytest.raises(StoreStopped):
        store.record(1, 6, {}, [])
    with pytest.raises(StoreStopped, match="stopped"):
        store.record(2, 6, {}, [])
    with pytest.raises(StoreStopped, match="stopped"):
        store.keep({})
    store.close()


def test_one_process_for_a_folder(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(UsageError, match="in use") as caught:
        opened(tmp_path)
    assert caught.value.code == "directory-in-use"
    store.close()


def test_a_folder_of_another_cluster_is_refused_with_both_names(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(UsageError, match=r"cluster demo, group g1, not to cluster other") as caught:
        CoordinatorStore(tmp_path, "other", "g1")
    assert caught.value.code == "identity"


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store._db.execute("UPDATE facts SET value = '9' WHERE name = 'schema'")
    store.close()
    with pytest.raises(UsageError, match="schema 9"):
        opened(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(CorruptionError, match="damaged"):
        opened(tmp_path)


def test_a_register_that_its_pairs_do_not_know_is_damage(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.record(1, 5, {}, [])
    store._db.execute("DELETE FROM pairs")
    with pytest.raises(CorruptionError, match="revision 1 but pairs up to 0"):
        store.load()
    store._db.execute("UPDATE register SET document = 'x'")
    with pytest.raises(CorruptionError, match="no JSON"):
        store.load()
    store.close()
    with pytest.raises(sqlite3.ProgrammingError):
        store._db.execute("SELECT 1")


def test_a_folder_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreStopped, match="cannot open"):
        opened(tmp_path / "file" / "x")


def test_the_run_file_says_who_runs(tmp_path: Path) -> None:
    assert read_run_file(tmp_path) is None
    write_run_file(tmp_path, {"pid": 1})
    assert read_run_file(tmp_path) == {"pid": 1}
    (tmp_path / "twinlog" / "run.json").write_text("{")
    assert read_run_file(tmp_path) is None
    remove_run_file(tmp_path)
    remove_run_file(tmp_path)


def test_the_name_of_a_new_folder_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each folder that was made is fsynced in the one above it, before anything is answered."""
    synced: list[str] = []
    real = os.fsync

    def fsync(number: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{number}"))
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    opened(tmp_path / "a" / "b").close()
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    opened(tmp_path / "a" / "b").close()
    assert len(synced) == 2

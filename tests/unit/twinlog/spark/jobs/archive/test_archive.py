"""The archive: what comes back is what went in, and a commit is there or not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.app import main
from tests.stores.archives import committed
from tests.stores.engines import PLAIN, Racing, Stopping, ours
from tests.stores.golden import unpack
from tests.stores.sample import Ours
from twinlog.errors import CorruptionError, TwinlogError, UsageError
from twinlog.spark.archive import archive_dir as places
from twinlog.spark.archive import rows, writing
from twinlog.spark.archive.archive_dir import ArchiveDir
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.archive.manifest import MIXED, Manifest, Segment, digest, parse
from twinlog.spark.archive.restore import RestoreSettings, restore
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.engine.report import Verdict
from twinlog.store.log import Run
from twinlog.store.reader import StoreReader

pq = pytest.importorskip("pyarrow.parquet")


def unnamed(to: Path) -> list[Path]:
    """The files of segments that no manifest of an archive names."""
    place = ArchiveDir(to)
    named = place.newest().files()
    return [path for path in place.stored() if path.relative_to(to).as_posix() not in named]


@pytest.mark.parametrize("case", ["01-basic", "09-batch", "10-ipv6", "11-compressed", "15b-v2-pop"])
def test_rows_are_records_bit_for_bit(case: str, tmp_path: Path) -> None:
    """V1 and V2, both address families, inner batches, compressed bodies."""
    with StoreReader(unpack(case, tmp_path)) as store:
        for run in store.pieces():
            if isinstance(run, Run):
                data = bytes(store.series.read(run.offset, run.end - run.offset))
                starts = rows.starts_of(data, 0, len(data))
                table = rows.table_of(data, starts, len(data), [(3, 0)])
                assert bytes(rows.encoded(table)) == data
                keys = [record.key for record in store.decode_run(run)]
                assert table.column("key").to_pylist() == keys
                assert set(table.column("epoch").to_pylist()) == {3}


@pytest.mark.parametrize("make", [ours, lambda root: unpack("02-rollover", root)])
def test_a_round_trip(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """archive, drop, restore: every sealed segment has the same bytes, batch index included."""
    root, to, back = make(tmp_path / "s"), tmp_path / "archive", tmp_path / "back"
    found = archive(PlainEngine(), ArchiveSettings(root, to))
    sealed = sorted((root / "commitlog").iterdir())[:-1]
    assert found.fields["segments_added"] == len(sealed) > 0
    held = {path.name: path.read_bytes() for path in sealed}
    shutil.rmtree(root / "commitlog")
    restore(PlainEngine(), RestoreSettings(to, back))
    assert {path.name: path.read_bytes() for path in (back / "commitlog").iterdir()} == held
    for path in (root / "twinlog" / "batches").glob("*"):
        if path.name in held:
            assert (back / "twinlog" / "batches" / path.name).read_bytes() == path.read_bytes()
    again = restore(PlainEngine(), RestoreSettings(to, back))
    assert again.verdict is Verdict.FINE


def test_a_second_run_adds_what_is_new(tmp_path: Path) -> None:
    """Nothing twice: manifest 1 stays the newest when nothing was sealed since."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    archive(PlainEngine(), ArchiveSettings(root, to))
    found = archive(PlainEngine(), ArchiveSettings(root, to))
    assert (found.fields["segments_added"], found.fields["manifest"]) == (0, 1)


def test_small_topics_share_files(tmp_path: Path) -> None:
    """Three small topics in a segment: one data file for the day."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    archive(PlainEngine(), ArchiveSettings(root, to))
    segment = ArchiveDir(to).newest().segments[0]
    assert len(segment.data) == 1
    assert f"topic={MIXED}/" in segment.data[0].path
    assert {name.split("/")[0] for name in segment.data[0].queues} >= {"t0", "t1", "t2"}


def test_statistics_prune(tmp_path: Path) -> None:
    """Row groups say which offsets, times and keys they hold; keys lie sorted in their own file."""
    root, to = unpack("02-rollover", tmp_path / "s"), tmp_path / "archive"
    archive(PlainEngine(), ArchiveSettings(root, to))
    segment = ArchiveDir(to).newest().segments[0]
    data = next(file for file in segment.files if file.kind == "data")
    group = pq.ParquetFile(to / data.path).metadata.row_group(0)
    held = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert held["physical_offset"].statistics.min == data.first
    assert held["body"].statistics is None
    keys = next(file for file in segment.files if file.kind == "keys")
    listed = pq.read_table(to / keys.path).column("key").to_pylist()
    assert listed == sorted(listed) and listed


# ── faults ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_is_stopped_leaves_the_archive_as_it_was(
    at: int, after: bool, tmp_path: Path
) -> None:
    """Ctrl-C before, between and behind two segments: no manifest, no file."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    engine = Stopping(at, after=after, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        archive(engine, ArchiveSettings(root, to))
    assert ArchiveDir(to).newest() == Manifest()
    assert not [path for path in to.rglob("*") if path.is_file()]


@pytest.mark.parametrize("step", ["link", "after"])
@pytest.mark.parametrize("killed", [True, False])
def test_a_death_in_the_commit_leaves_the_old_or_the_new(
    step: str, killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL or Ctrl-C before the link: the old manifest; behind it: the new one and files."""

    class Killed(BaseException):
        pass

    real = places.os.link

    def link(source: Path, target: Path) -> None:
        if step == "after":
            real(source, target)
        raise Killed

    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    monkeypatch.setattr(places.os, "link", link)
    if killed:
        monkeypatch.setattr("twinlog.spark.archive.job.discard", lambda place, run: None)
    with pytest.raises(Killed):
        archive(PlainEngine(), ArchiveSettings(root, to))
    monkeypatch.undo()
    assert ArchiveDir(to).newest().number == (1 if step == "after" else 0)
    found = archive(PlainEngine(), ArchiveSettings(root, to))
    assert found.fields["manifest"] == 1
    assert restore(PlainEngine(), RestoreSettings(to, None, check=True)).verdict is Verdict.FINE


def test_two_archivers_at_once(tmp_path: Path) -> None:
    """One wins, the other sees it: no segment twice, the loser's files are orphans."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"

    race = Racing(lambda: archive(PlainEngine(), ArchiveSettings(root, to)))
    found = archive(race, ArchiveSettings(root, to))
    assert found.fields["segments_added"] == 0
    bases = [segment.base for segment in ArchiveDir(to).newest().segments]
    assert len(bases) == len(set(bases)) > 0
    orphans = unnamed(to)
    assert orphans and not {path.relative_to(to).as_posix() for path in orphans} & (
        ArchiveDir(to).newest().files()
    )
    archive(PlainEngine(), ArchiveSettings(root, to, orphans_after=-60))
    assert unnamed(to) == []


def test_two_commits_of_different_segments_are_both_kept(tmp_path: Path) -> None:
    """The loser of a number takes the next one."""
    place = ArchiveDir(tmp_path)
    one, two = (Segment("g1", base, base + 10, "", 0, base, "", [], []) for base in (0, 10))
    other = ArchiveDir(tmp_path)
    newest = place.newest
    calls = [lambda: (newest(), committed(other, [one]))[0]]
    place.newest = lambda: calls.pop()() if calls else newest()  # type: ignore[method-assign]
    assert committed(place, [two]).number == 2
    assert [segment.base for segment in newest().segments] == [0, 10]


class Interrupting(PlainEngine):
    """Ctrl-C when the first of the items is done."""

    def spread(self, work, items):  # type: ignore[no-untyped-def]
        """See `Engine`."""
        super().spread(work, items[:1])
        raise KeyboardInterrupt


def test_an_interrupted_restore_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C between two segments: a log that ends early would look like a whole one."""
    root, to, back = ours(tmp_path / "s"), tmp_path / "archive", tmp_path / "back"
    archive(PlainEngine(), ArchiveSettings(root, to))
    with pytest.raises(KeyboardInterrupt):
        restore(Interrupting(), RestoreSettings(to, back))
    assert {path.name for path in tmp_path.iterdir()} == {"s", "archive"}
    restore(PlainEngine(), RestoreSettings(to, back))
    names = sorted(path.name for path in (back / "commitlog").iterdir())
    (back / "commitlog" / names[1]).unlink()
    with pytest.raises(KeyboardInterrupt):
        restore(Interrupting(), RestoreSettings(to, back))
    assert sorted(path.name for path in (back / "commitlog").iterdir()) == [names[0], *names[2:]]
    restore(PlainEngine(), RestoreSettings(to, back))
    assert sorted(path.name for path in (back / "commitlog").iterdir()) == names
    assert {path.name for path in tmp_path.iterdir()} == {"s", "archive", "back"}


def test_a_flipped_bit_in_parquet_is_found(tmp_path: Path) -> None:
    """check names the file and ends with damage; restore leaves nothing behind."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    archive(PlainEngine(), ArchiveSettings(root, to))
    path = to / ArchiveDir(to).newest().segments[1].data[0].path
    group = pq.ParquetFile(path).metadata.row_group(0)
    body = next(i for i in range(group.num_columns) if group.column(i).path_in_schema == "body")
    data = bytearray(path.read_bytes())
    data[group.column(body).data_page_offset + 40] ^= 8
    path.write_bytes(data)
    found = restore(PlainEngine(), RestoreSettings(to, None, check=True))
    assert found.verdict is Verdict.DAMAGED
    assert path.name in str(found.tables["restored"].rows[1][3])
    with pytest.raises(TwinlogError):
        restore(PlainEngine(), RestoreSettings(to, tmp_path / "back", start=4096, end=4097))
    assert not list(tmp_path.glob("*back*"))


def test_damage_in_the_log_is_not_archived(tmp_path: Path) -> None:
    """A segment that holds something that is no record: an error that says where."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    path = root / "commitlog" / "00000000000000004096"
    data = bytearray(path.read_bytes())
    data[4:8] = b"\0\0\0\1"
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="at 4096"):
        archive(PlainEngine(), ArchiveSettings(root, to))
    assert ArchiveDir(to).newest().number == 0


def test_files_that_make_other_bytes_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that says something else than its record: found by comparing, nothing is left."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    real = writing.table_of

    def other(*given: Any) -> Any:
        table = real(*given)
        at = table.schema.get_field_index("flag")
        sevens = rows.arrow().array([7] * table.num_rows, rows.arrow().int32())
        return table.set_column(at, table.schema.field(at), sevens)

    monkeypatch.setattr(writing, "table_of", other)
    with pytest.raises(CorruptionError, match=r"segment 0 rebuilt differs from the log from 0 on"):
        archive(PlainEngine(), ArchiveSettings(root, to))
    assert ArchiveDir(to).newest() == Manifest()
    assert not [path for path in to.rglob("*") if path.is_file()]


def test_files_that_make_fewer_bytes_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is made is right as far as it goes, and ends before the segment does."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    real = writing.segment_bytes
    monkeypatch.setattr(writing, "segment_bytes", lambda *given: list(real(*given))[:-1])
    with pytest.raises(CorruptionError, match=r"segment 0 rebuilt ends at \d+, not at \d+"):
        archive(PlainEngine(), ArchiveSettings(root, to))
    assert ArchiveDir(to).newest() == Manifest()


def test_what_counts_is_in_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte that changes between writing and flushing: memory had the right one, the file not."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    real = writing.sync_file

    def change(path: Path) -> None:
        if "data" in path.parts:
            group = pq.ParquetFile(path).metadata.row_group(0)
            with path.open("r+b") as file:
                file.seek(group.column(0).data_page_offset + 40)
                old = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([old[0] ^ 8]))
        real(path)

    monkeypatch.setattr(writing, "sync_file", change)
    with pytest.raises(CorruptionError, match="cannot be read"):
        archive(PlainEngine(), ArchiveSettings(root, to))
    assert ArchiveDir(to).newest() == Manifest()


def test_a_full_disk_leaves_no_half_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No space while a file is made durable: no manifest and no file."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("twinlog.spark.archive.writing.sync_file", full)
    with pytest.raises(OSError, match="No space"):
        archive(PlainEngine(), ArchiveSettings(root, to))
    assert not [path for path in to.rglob("*") if path.is_file()]


def test_a_changed_manifest_is_noticed(tmp_path: Path) -> None:
    """Each names the one before; text that is none is damage."""
    place = ArchiveDir(tmp_path)
    for base in (0, 10):
        committed(place, [Segment("g1", base, base + 10, "", 0, base, "", [], [])])
    first = place.path_of(1)
    text = first.read_text()
    assert digest(text) == place.newest().previous
    first.write_text(text.replace('"base": 0', '"base": 1'))
    with pytest.raises(CorruptionError, match="does not follow"):
        place.newest()
    with pytest.raises(CorruptionError, match="not a manifest"):
        parse("{}", "x")


def test_nothing_unconfirmed_is_sealed(tmp_path: Path) -> None:
    """The last file is never archived, and a batch index that is not whole keeps its file out."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    index = root / "twinlog" / "batches" / "00000000000000004096"
    index.write_bytes(index.read_bytes()[:48])
    archive(PlainEngine(), ArchiveSettings(root, to))
    names = {segment.base for segment in ArchiveDir(to).newest().segments}
    assert 4096 not in names
    assert max(names) < max(int(path.name) for path in (root / "commitlog").iterdir())


def bases(root: Path, to: Path) -> list[int]:
    """What an archive run adds, as file numbers."""
    before = {segment.base for segment in ArchiveDir(to).newest().segments}
    archive(PlainEngine(), ArchiveSettings(root, to))
    return sorted({segment.base for segment in ArchiveDir(to).newest().segments} - before)


def test_what_is_above_confirm_is_never_archived(tmp_path: Path) -> None:
    """Not even of a store that was stopped: a former master may hold what nobody confirmed."""
    made = Ours()
    for number in range(60):
        made.batch(b"x" * 300, b"%d" % number)
    root = made.write(tmp_path / "s", confirm=3 * 4096 + 7)
    assert bases(root, tmp_path / "archive") == [0, 4096, 2 * 4096]


def test_the_file_that_a_broker_writes_is_not_sealed(tmp_path: Path) -> None:
    """RocketMQ allocates the next file ahead: a file follows, and it is all zeros."""
    full = unpack("02-rollover", tmp_path / "full")
    with StoreReader(full) as store:
        places = [record.log_offset for record in store.records()]
    files = sorted((full / "commitlog").iterdir())
    size = files[0].stat().st_size
    root, to = tmp_path / "live", tmp_path / "archive"
    shutil.copytree(full, root)
    for path in files[4:]:
        (root / "commitlog" / path.name).unlink()
    cut = next(at for at in places if at >= 3 * size + size // 2) - 3 * size
    data = files[3].read_bytes()
    (root / "commitlog" / files[3].name).write_bytes(data[:cut].ljust(size, b"\0"))
    (root / "commitlog" / files[4].name).write_bytes(bytes(size))
    (root / "abort").touch()
    assert bases(root, to) == [0, size, 2 * size]
    shutil.rmtree(root / "commitlog")
    shutil.copytree(full / "commitlog", root / "commitlog")
    (root / "abort").unlink()
    assert bases(root, to) == [int(path.name) for path in files[3:-1]]
    with StoreReader(root) as store:
        held = sum(record.log_offset < int(files[-1].name) for record in store.records())
    assert sum(segment.records for segment in ArchiveDir(to).newest().segments) == held


@pytest.mark.parametrize(
    ("case", "count"), [("03-crash", 4), ("03b-torn-tail", 4), ("03c-bad-body", 4)]
)
def test_of_a_crashed_broker_only_what_recovery_keeps(
    case: str, count: int, tmp_path: Path
) -> None:
    """Not the file in which recovery would cut, though a file follows it."""
    root = unpack(case, tmp_path / "s")
    found = bases(root, tmp_path / "archive")
    assert len(found) == count
    with StoreReader(root) as store:
        size = store.series.files[0].size
        assert found[-1] + size <= store.end


def test_a_file_that_is_not_full_and_is_followed_is_damage(tmp_path: Path) -> None:
    root = unpack("02-rollover", tmp_path / "s")
    path = sorted((root / "commitlog").iterdir())[2]
    with StoreReader(root) as store:
        base = int(path.name)
        places = [r.log_offset - base for r in store.records() if base <= r.log_offset]
    data = path.read_bytes()
    path.write_bytes(data[: places[20]].ljust(len(data), b"\0"))
    with pytest.raises(CorruptionError, match=f"holds no record at {base + places[20]}"):
        archive(PlainEngine(), ArchiveSettings(root, tmp_path / "archive"))
    assert ArchiveDir(tmp_path / "archive").newest().number == 0


def test_a_log_file_that_is_not_what_was_archived(tmp_path: Path) -> None:
    """Earlier versions archived files that were still written: no run builds on that."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    archive(PlainEngine(), ArchiveSettings(root, to))
    last = ArchiveDir(to).newest().segments[-1]
    path = root / "commitlog" / f"{last.base:020d}"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(
        CorruptionError, match=f"at {last.base} differs from what was archived of it"
    ):
        archive(PlainEngine(), ArchiveSettings(root, to))


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """archive, check, restore; an empty range and a missing archive say so."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    said = ["spark", "archive", "--path", str(root), "--to", str(to), "-o", "json"]
    assert main(said, PLAIN) == 0
    assert json.loads(capsys.readouterr().out)["manifest"] == 1
    assert main(["spark", "restore", "--archive", str(to), "--check"], PLAIN) == 0
    assert main(["spark", "restore", "--archive", str(to)], PLAIN) == 64
    assert main(["spark", "restore", "--archive", f"{to}x", "--check"], PLAIN) == 66
    assert main([*said[:-2], "--codec", "lzma"], PLAIN) == 64
    assert "write one of zstd" in capsys.readouterr().err
    with pytest.raises(UsageError, match="has nothing of g9"):
        restore(PlainEngine(), RestoreSettings(to, None, group="g9", check=True))

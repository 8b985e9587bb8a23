"""Runs of the archiver: portions, leases, whose archive it is, and what is missing in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from cli.app import main
from storage.disk.packing import seal
from tests.stores.archives import committed
from tests.stores.engines import PLAIN, Stopping, ours
from tests.stores.sample import SEGMENT, put
from twinlog.errors import CorruptionError, UnavailableError, UsageError
from twinlog.spark.archive import job, lease
from twinlog.spark.archive.archive_dir import ArchiveDir
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.archive.lease import BEAT, TAKEN, Lease, collect
from twinlog.spark.archive.manifest import Manifest, parse
from twinlog.spark.archive.restore import RestoreSettings, restore
from twinlog.spark.archive.sources import of_directory
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.engine.report import Verdict
from twinlog.spark.errors import SourceError
from twinlog.spark.source.queries import batch_query

T = TypeVar("T")
R = TypeVar("R")


def names(root: Path) -> set[str]:
    """The files of segments in an archive."""
    return {path.relative_to(root).as_posix() for path in ArchiveDir(root).stored()}


# ── portions ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_ends_early_keeps_its_portions(
    after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the second portion: the first one is committed, nothing else lies about."""
    monkeypatch.setattr(job, "PORTION_SEGMENTS", 1)
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    engine = Stopping(2, after=after, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        archive(engine, ArchiveSettings(root, to))
    first = ArchiveDir(to).newest()
    assert (first.number, [s.base for s in first.segments]) == (1, [0])
    assert names(to) == first.files()
    found = archive(PlainEngine(), ArchiveSettings(root, to))
    assert found.fields["manifest"] == 1 + int(str(found.fields["segments_added"])) >= 3
    assert restore(PlainEngine(), RestoreSettings(to, None, check=True)).verdict is Verdict.FINE


def test_portions_keep_every_task_at_work() -> None:
    """A large engine gets large portions; the order is that of the log; nothing is one portion."""
    many = list(range(100))
    assert [len(p) for p in job.portions(many, 1)] == [16] * 6 + [4]  # type: ignore[arg-type]
    assert [len(p) for p in job.portions(many, 60)] == [60, 40]  # type: ignore[arg-type]
    assert [n for p in job.portions(many, 7) for n in p] == many  # type: ignore[arg-type]
    assert job.portions([], 7) == [[]]


# ── leases ──────────────────────────────────────────────────────────────────────────────────────


class Between(PlainEngine):
    """Does something once, when the segments of a run are written."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: list[Callable[[], object]] = [work]

    def spread(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """See `PlainEngine`."""
        found = super().spread(work, items)
        if self._work:
            self._work.pop()()
        return found


def silent(to: Path, seconds: float) -> None:
    """Let all runs and files of an archive be so old."""
    for path in [*(to / lease.RUNS).glob(f"*/{BEAT}"), *ArchiveDir(to).stored()]:
        when = path.stat().st_mtime - seconds
        os.utime(path, (when, when))


@pytest.mark.slow
def test_files_of_a_living_run_are_never_taken(tmp_path: Path) -> None:
    """Its files are two days old, its beat is not: another run removes nothing of it."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"

    def others() -> None:
        silent(to, 2 * 86400)
        for path in (to / lease.RUNS).glob(f"*/{BEAT}"):
            os.utime(path)
        held = names(to)
        archive(PlainEngine(), ArchiveSettings(root, to))
        assert held and held <= names(to)

    found = archive(Between(others), ArchiveSettings(root, to))
    assert found.fields["manifest"] == 1 and found.fields["segments_added"] == 0


@pytest.mark.slow
def test_a_run_held_for_dead_cannot_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped for two days: its files go, and its commit fails instead of naming them."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    taken = list[int]()

    def stopped() -> None:
        silent(to, 2 * 86400)
        with Lease(to) as other:
            taken.append(collect(ArchiveDir(to), other, 86400.0))

    monkeypatch.setattr(job, "missing", lambda segment, root: "")
    with pytest.raises(UnavailableError, match="considered dead") as caught:
        archive(Between(stopped), ArchiveSettings(root, to))
    monkeypatch.undo()
    assert caught.value.code == "lease" and taken[0] > 0
    assert ArchiveDir(to).newest() == Manifest() and not names(to)
    assert not list((to / lease.RUNS).iterdir())
    assert archive(PlainEngine(), ArchiveSettings(root, to)).fields["manifest"] == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_renaming_decides_who_owns_the_files(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit right before it keeps its files, one right behind it fails; never half of both."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    place, real, dead = ArchiveDir(to), Path.rename, Lease(to)
    dead.folder.mkdir(parents=True)
    (dead.folder / BEAT).touch()
    settings = ArchiveSettings(root, to)
    written = job.prove(PlainEngine(), settings, dead.run, of_directory(root, "g1"))
    silent(to, 2 * 86400)
    refused = list[str]()

    def commit() -> None:
        try:
            place.commit(written, dead.folder)
        except UnavailableError as error:
            refused.append(error.code)

    def rename(self: Path, target: Path) -> Path:
        if moment == "before":
            commit()
        found = real(self, target)
        if moment == "after":
            commit()
        return found

    monkeypatch.setattr(Path, "rename", rename)
    with Lease(to) as other:
        removed = collect(place, other, 86400.0)
    kept = moment == "before"
    assert (place.newest().number, bool(removed), refused) == (
        (1, False, []) if kept else (0, True, ["lease"])
    )
    assert names(to) == place.newest().files()


def test_what_a_dead_collector_left_is_finished(tmp_path: Path) -> None:
    """It died between the renaming and the removal: the next one goes on."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    dead = Lease(to)
    (to / lease.RUNS / f"{dead.run}{TAKEN}").mkdir(parents=True)
    job.prove(PlainEngine(), ArchiveSettings(root, to), dead.run, of_directory(root, "g1"))
    assert names(to)
    with Lease(to) as other:
        assert collect(ArchiveDir(to), other, 86400.0) > 0
    assert not names(to) and not list((to / lease.RUNS).iterdir())


def test_a_beat_goes_on_while_a_run_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread touches the file; taken away, the run says so."""
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.001)
    with Lease(tmp_path) as one:
        os.utime(one.folder / BEAT, (1.0, 1.0))
        while (one.folder / BEAT).stat().st_mtime == 1.0:
            pass
        one.folder.rename(one.folder.with_name("x"))
        with pytest.raises(UnavailableError, match="considered dead"):
            one.beat()


# ── whose archive, and what of it is missing ────────────────────────────────────────────────────


def owned(root: Path, cluster: str, group: str = "g1") -> Path:
    """A store of ours that says whose it is."""
    put(root / "twinlog" / "identity", seal({"cluster": cluster, "group": group}))
    return root


def test_another_stores_archive_is_refused_with_both_names(tmp_path: Path) -> None:
    """Writing and reading, for directories that say whose they are."""
    one, to = owned(ours(tmp_path / "one"), "blue"), tmp_path / "archive"
    archive(PlainEngine(), ArchiveSettings(one, to))
    assert ArchiveDir(to).newest().cluster == "blue"
    other = owned(ours(tmp_path / "other"), "green")
    with pytest.raises(CorruptionError, match=r"cluster 'blue', .*other is of 'green'"):
        archive(PlainEngine(), ArchiveSettings(other, to))
    with pytest.raises(SourceError, match=r"cluster 'blue', group 'g1'; .* 'green', group 'g1'"):
        batch_query({"path": str(other), "archive": str(to)}).tasks(0)
    third = owned(ours(tmp_path / "third"), "blue", "g2")
    with pytest.raises(UsageError, match=r"third belongs to the group 'g2', not to 'g1'"):
        archive(PlainEngine(), ArchiveSettings(third, to))
    with pytest.raises(SourceError, match=r"group 'g1'; .* 'blue', group 'g2'"):
        batch_query({"path": str(third), "archive": str(to)}).tasks(0)
    assert batch_query({"path": str(one), "archive": str(to)}).tasks(0)
    data = (one / "twinlog" / "identity").read_bytes()
    put(one / "twinlog" / "identity", data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptionError, match="identity is damaged"):
        archive(PlainEngine(), ArchiveSettings(one, to))


def test_overlapping_segments_are_refused(tmp_path: Path) -> None:
    """Neither committed, nor believed when they stand in a manifest."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    archive(PlainEngine(), ArchiveSettings(root, to))
    place = ArchiveDir(to)
    now = place.newest()
    twice = replace(now.segments[1], base=now.segments[0].end - 1)
    with pytest.raises(CorruptionError, match=r"4095\.\.\d+ of g1, which overlap"):
        committed(place, [twice])
    assert place.newest() == now
    place.path_of(1).write_text(replace(now, segments=[now.segments[0], twice]).text())
    with pytest.raises(CorruptionError, match=r"lists 0\.\.4096 and 4095\.\.\d+ of g1, which ov"):
        batch_query({"archive": str(to)}).tasks(0)
    apart = replace(now, segments=[now.segments[0], replace(twice, group="g2")]).text()
    assert len(parse(apart, "x").segments) == 2, "groups have offsets of their own"


@pytest.mark.slow
def test_a_hole_between_segments_has_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """check and restore: exit 1 with the offsets; a range beside it is fine; damage counts more.
    The archiver says it and goes on: nobody has those offsets any more."""
    root, to = ours(tmp_path / "s"), tmp_path / "archive"
    file = root / "commitlog" / f"{2 * SEGMENT:020d}"
    file.rename(tmp_path / "aside")
    found = archive(PlainEngine(), ArchiveSettings(root, to))
    hole = (SEGMENT, 3 * SEGMENT)
    assert list(found.tables["missing"].rows) == [hole] and found.verdict is Verdict.FINE
    words = ["spark", "restore", "--archive", str(to)]
    assert main([*words, "--check"], PLAIN) == 1
    assert f"missing: offsets {hole[0]}..{hole[1]}" in capsys.readouterr().out
    assert main([*words, "--check", "--range", f"{hole[1]}:"], PLAIN) == 0
    found = restore(PlainEngine(), RestoreSettings(to, tmp_path / "back"))
    assert (found.verdict, found.fields["missing_bytes"]) == (Verdict.NO, 2 * SEGMENT)
    (tmp_path / "aside").rename(file)
    found = archive(PlainEngine(), ArchiveSettings(root, to))
    assert "missing" not in found.tables and found.fields["segments_added"] == 2
    held = ArchiveDir(to).newest()
    committed(ArchiveDir(tmp_path / "x"), [s for s in held.segments if s.base != SEGMENT])
    checked = restore(PlainEngine(), RestoreSettings(tmp_path / "x", None, check=True))
    assert checked.verdict is Verdict.DAMAGED and "missing" in checked.tables

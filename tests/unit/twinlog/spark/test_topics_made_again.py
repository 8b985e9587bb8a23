"""A topic that a broker deleted and made again: the log has both, the queues only the last one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.stores.golden import unpack
from tests.stores.rows import plain, rows
from tests.stores.sample import SEGMENT, Ours
from twinlog.errors import UsageError
from twinlog.format.record import FLAG_INNER_BATCH
from twinlog.spark.archive.archive_dir import ArchiveDir
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.archive.queue_offsets import Line, follow
from twinlog.spark.archive.view import ArchiveView
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.jobs.replay import archive as replay_archive
from twinlog.spark.jobs.replay.memory import Memory

pa = pytest.importorskip("pyarrow", reason="needs the extra spark")


def rocket(root: Path, *, before: int, again: int = 1, other: int = 0) -> tuple[Path, int]:
    """A broker's store; returns it and the log offset from which on records of t count."""
    made = Ours()
    start = 0
    for number in range(again + 1):
        made.queues.pop(("t", 0), None)
        start = made.end
        for row in range(before if number < again else 60):
            made.clock += 86_400_000 if row == 15 else 0
            made.batch(b"%d of %d" % (row, number) + b"x" * 100)
            made.batch(b"kept", topic="u")
        made.batch(*[b"other"] * other, topic="u")
    made.write(root)
    shutil.rmtree(root / "twinlog")
    return root, start


def live(whole: Path, kept: int) -> Path:
    """What retention leaves of a store."""
    to = whole.with_name(f"live{kept}")
    if not to.exists():
        shutil.copytree(whole, to)
    for path in (to / "commitlog").iterdir():
        if int(path.name) < kept:
            path.unlink()
    return to


@pytest.mark.parametrize("before", [1, 7, 12, 13, 14, 40, 80])
def test_only_the_rows_that_queues_name_are_read(before: int, tmp_path: Path) -> None:
    """Wherever in a file it began again, and wherever the tiers meet; alone as well."""
    whole, start = rocket(tmp_path / "whole", before=before)
    to = tmp_path / "archive"
    archive(PlainEngine(), ArchiveSettings(whole, to))
    end = ArchiveDir(to).newest().segments[-1].end
    wanted = plain(rows({"path": whole}))
    assert sum(row["topic"] == "t" for row in wanted) == 60
    for kept in range(start // SEGMENT * SEGMENT, end, SEGMENT):
        found = rows({"path": live(whole, kept), "archive": to})
        assert plain(found) == wanted, kept
        assert kept == 0 or {row["tier"] for row in found} == {"archive", "live"}
    assert plain(rows({"archive": to, "splitBytes": "1 KiB"})) == [
        row for row in wanted if row["physical_offset"] < end
    ]
    late = sorted(int(row["store_timestamp"].timestamp() * 1000) for row in wanted)[-70]
    for options in ({"startingTimestamp": late}, {"subscribe": "t", "range": "5:20"}):
        found = rows({"path": live(whole, end - SEGMENT), "archive": to, **options})
        assert plain(found) == plain(rows({"path": whole, **options})) and found


def test_a_broker_that_deleted_nothing(tmp_path: Path) -> None:
    """Nine files of real queues: none of them begins again."""
    root, to = unpack("02-rollover", tmp_path / "s"), tmp_path / "archive"
    archive(PlainEngine(), ArchiveSettings(root, to))
    view = ArchiveView(str(to), None)
    assert len(view.segments) == 9 and view.since == {}


def test_made_again_twice(tmp_path: Path) -> None:
    """The last one counts."""
    whole, _ = rocket(tmp_path / "whole", before=9, again=3)
    to = tmp_path / "archive"
    archive(PlainEngine(), ArchiveSettings(whole, to))
    end = ArchiveDir(to).newest().segments[-1].end
    wanted = [row for row in plain(rows({"path": whole})) if row["physical_offset"] < end]
    assert plain(rows({"archive": to})) == wanted


def test_made_again_in_what_nobody_has(tmp_path: Path) -> None:
    """The archive has the rows of before, the live store begins inside of those of now."""
    whole, start = rocket(tmp_path / "whole", before=80)
    to = tmp_path / "archive"
    archive(PlainEngine(), ArchiveSettings(whole, to))
    manifest = ArchiveDir(to).newest()
    held = [one for one in manifest.segments if one.end <= start]
    ArchiveDir(to).path_of(1).write_text(replace(manifest, segments=held).text())
    kept = live(whole, start // SEGMENT * SEGMENT + 2 * SEGMENT)
    for tier, wanted in (("auto", kept), ("archive", None)):
        found = rows({"path": kept, "archive": to, "tier": tier, "subscribe": "t"})
        if wanted is not None:
            assert plain(found) == plain(rows({"path": wanted, "subscribe": "t"})) and found
        else:
            assert len(found) > 60, "asked for alone, it is what is archived"


def test_a_manifest_that_does_not_know_of_it(tmp_path: Path) -> None:
    """Version 1: that a later file begins again below is seen all the same."""
    whole, start = rocket(tmp_path / "whole", before=40)
    to = tmp_path / "archive"
    archive(PlainEngine(), ArchiveSettings(whole, to))
    view = ArchiveView(str(to), None)
    assert view.since == {("t", 0): start} and view.extent(("t", 0)) == (
        0,
        view.extent(("t", 0))[1],
    )


def test_a_replay_of_both_is_refused(tmp_path: Path) -> None:
    """Its memory goes by queue offsets, which are there twice."""
    whole, _ = rocket(tmp_path / "whole", before=40)
    archive(PlainEngine(), ArchiveSettings(whole, tmp_path / "archive"))
    view = ArchiveView(str(tmp_path / "archive"), None)
    for topic in ("t", "u"):
        memory = Memory("w", {"topic": topic}, None)
        reading: Any = None
        if topic == "t":
            with pytest.raises(UsageError, match="t, queue 0 was deleted and created again"):
                replay_archive.planned(view, memory, reading, SEGMENT)
        else:
            assert replay_archive.planned(view, memory, reading, SEGMENT) is not None


def window(*offsets: int, inner: int = 0, place: int = 0) -> Any:
    """Records of one queue, ten bytes each; ``inner`` messages in each of them."""
    count = len(offsets)
    return pa.table(
        {
            "topic_name": pa.array([b"t"] * count, pa.binary()),
            "queue_id": pa.array([0] * count, pa.int32()),
            "queue_offset": pa.array(offsets, pa.int64()),
            "sys_flag": pa.array([FLAG_INNER_BATCH if inner else 0] * count, pa.int32()),
            "physical_offset": pa.array([place + 10 * n for n in range(count)], pa.int64()),
            "properties_raw": pa.array([b"INNER_NUM\x01%d\x02" % inner] * count, pa.binary()),
        }
    )


@pytest.mark.parametrize(
    ("windows", "line"),
    [
        ([window(4, 5, 6)], Line(4, 6)),
        ([window(4, 5), window(6, 7, place=20)], Line(4, 7)),
        ([window(4, 5), window(0, 1, place=20)], Line(0, 1, 20)),
        ([window(4, 0, 1)], Line(0, 1, 10)),
        ([window(0, 1, 0, 1, 2)], Line(0, 2, 20)),
        ([window(0, 0)], Line(0, 0, 10)),
        ([window(3, 0, 1), window(0, place=30)], Line(0, 0, 30)),
        ([window(3, 0, 1), window(2, 3, place=30)], Line(0, 3, 10)),
        ([window(0, 3, 6, inner=3), window(9, inner=3, place=30)], Line(0, 11)),
        ([window(0, 3, inner=3), window(4, inner=3, place=20)], Line(4, 6, 20)),
    ],
)
def test_where_offsets_fall(windows: list[Any], line: Line) -> None:
    """In a window, between two, several times; an inner batch stands for several offsets."""
    lines: dict[str, Line] = {}
    for one in windows:
        follow(lines, one)
    assert lines == {"t/0": line}

"""Archive and live read as one: each row once, the same row from either."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.app import main
from tests.fakes.node import Drop, FakeCluster
from tests.stores.archives import committed
from tests.stores.golden import unpack
from tests.stores.rows import plain, rows
from tests.stores.sample import SEGMENT, Ours
from twinlog.format.log_file import BLANK
from twinlog.format.record import MAGIC_BLANK
from twinlog.spark.archive.archive_dir import ArchiveDir
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.archive.scan import Sealed
from twinlog.spark.archive.view import ArchiveTask
from twinlog.spark.archive.writing import Codec, write_segment
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.errors import DataLossError, SourceError
from twinlog.spark.source.queries import batch_query, read_any
from twinlog.store.reader import StoreReader
from twinlog.units import parse_size
from twinlog.wire.frames import Type

pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra spark")

KEPT = 3 * SEGMENT
"""Where the live log begins in these tests."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A whole store, its archive, and what retention left of the store."""
    home = tmp_path_factory.mktemp("tiers")
    made = Ours()
    for epoch in (1, 2):
        made.open_epoch(epoch)
        for number in range(40):
            bodies = (b"x" * 100, b"%d" % number)
            made.batch(*bodies, topic=f"t{number % 3}", queue=number % 2)
    made.write(home / "whole", confirm=made.end)
    archive(PlainEngine(), ArchiveSettings(home / "whole", home / "archive"))
    shutil.copytree(home / "whole", home / "live")
    for folder in ("commitlog", "twinlog/batches"):
        for path in (home / "live" / folder).iterdir():
            if int(path.name) < KEPT:
                path.unlink()
    assert ArchiveDir(home / "archive").newest().segments[-1].end > KEPT, "the tiers overlap"
    return {name: home / name for name in ("whole", "archive", "live")}


def both(places: Mapping[str, Path], **more: Any) -> dict[str, Any]:
    """Options for the rest of the store with its archive."""
    return {"path": places["live"], "archive": places["archive"], **more}


@pytest.mark.parametrize("more", [{}, {"splitBytes": "2 KiB"}, {"batchRows": "3"}])
def test_every_row_once_and_the_same(places: Mapping[str, Path], more: dict[str, str]) -> None:
    """All columns equal those of the store before retention; the border is the live start."""
    found = rows(both(places, includeSystem="true", **more))
    assert plain(found) == plain(rows({"path": places["whole"], "includeSystem": "true"}))
    assert {row["tier"] for row in found if row["physical_offset"] < KEPT} == {"archive"}
    assert {row["tier"] for row in found if row["physical_offset"] >= KEPT} == {"live"}
    assert {row["epoch"] for row in found} == {1, 2}


def test_tasks_are_as_large_as_live_ones(places: Mapping[str, Path]) -> None:
    """A large file is shared by several tasks, small ones share a task."""
    many = batch_query({k: str(v) for k, v in both(places, splitBytes="1 KiB").items()}).tasks(0)
    shelves = [task.shelves for task in many if isinstance(task, ArchiveTask)]
    assert len(shelves) > KEPT // SEGMENT
    assert all(one[-1].high - one[0].low <= parse_size("2 KiB") for one in shelves)
    few = batch_query({k: str(v) for k, v in both(places).items()}).tasks(0)
    assert [len(t.shelves) for t in few if isinstance(t, ArchiveTask)] == [KEPT // SEGMENT]


def test_ranges_cross_the_border(places: Mapping[str, Path]) -> None:
    """By offset, by time, by time for each queue, by the tools' range, and by filter options."""
    whole = rows({"path": places["whole"]})
    border = next(r for r in whole if r["physical_offset"] >= KEPT and r["topic"] == "t1")
    queue, number = border["queue_id"], border["queue_offset"]
    assert number > 4
    stamps = sorted(int(row["store_timestamp"].timestamp() * 1000) for row in whole)
    early, late = stamps[len(stamps) // 5], stamps[4 * len(stamps) // 5]
    one = f'{{"t1":{{"{queue}":%d}}}}'
    for options in (
        {"assign": f'{{"t1":[{queue}]}}', "startingOffsets": one % (number - 3)},
        {"assign": f'{{"t1":[{queue}]}}', "endingOffsets": one % (number - 2)},
        {"assign": f'{{"t1":[{queue}]}}', "endingOffsets": one % (number + 2)},
        {"startingTimestamp": early, "endingTimestamp": late},
        {"startingTimestamp": late},
        {"assign": f'{{"t1":[{queue}]}}', "startingOffsetsByTimestamp": one % early},
        {"assign": f'{{"t1":[{queue}]}}', "endingOffsetsByTimestamp": one % early},
        {"subscribe": "t1", "range": f"-{number}:"},
        {"subscribe": "t0,t2", "tags": "a"},
    ):
        wanted = rows({"path": places["whole"], **options})
        assert plain(rows(both(places, **options))) == plain(wanted), options
        assert wanted, options


def test_one_tier_alone(places: Mapping[str, Path]) -> None:
    """archive with or without a store beside it; live, whose start is then its own."""
    whole = plain(rows({"path": places["whole"]}))
    end = ArchiveDir(places["archive"]).newest().segments[-1].end
    kept = [row for row in whole if row["physical_offset"] < end]
    assert plain(rows({"archive": places["archive"]})) == kept
    assert plain(rows(both(places, tier="archive"))) == kept
    live = rows(both(places, tier="live"))
    assert plain(live) == [row for row in whole if row["physical_offset"] >= KEPT]
    assert plain(rows({"path": places["live"]})) == plain(live)


@pytest.mark.parametrize("case", ["01-basic", "09-batch", "10-ipv6", "11-compressed", "15b-v2-pop"])
def test_rows_of_rocketmq(case: str, tmp_path: Path) -> None:
    """Every shape of record: from the archive the same rows as from the store."""
    root, to = unpack(case, tmp_path / "s"), tmp_path / "archive"
    first = root / "commitlog" / f"{0:020d}"
    with StoreReader(root) as store:
        end, size = store.end, first.stat().st_size
    full = tmp_path / "full" / "commitlog" / first.name
    full.parent.mkdir(parents=True)
    blank = BLANK.pack(size - end, MAGIC_BLANK) if end < size else b""
    full.write_bytes((first.read_bytes()[:end] + blank).ljust(size, b"\0"))
    sealed = Sealed(str(tmp_path / "full"), "g1", first.name, 0, size, [], batches=False)
    committed(ArchiveDir(to), [write_segment(sealed, str(to), Codec(), "run")])
    wanted = rows({"path": root, "includeSystem": "true"})
    wanted = [row for row in wanted if row["physical_offset"] < size]
    found = rows({"archive": to, "includeSystem": "true"})
    assert plain(found) == plain(wanted) and wanted


def test_a_hole_between_the_tiers_is_a_loss(places: Mapping[str, Path], tmp_path: Path) -> None:
    """It is named, with rows; where losses are allowed the rest is read."""
    manifest = ArchiveDir(places["archive"]).newest()
    place = ArchiveDir(tmp_path / "a")
    shutil.copytree(places["archive"], tmp_path / "a", ignore=lambda *_: ["_twinlog"])
    committed(place, [s for s in manifest.segments if s.base != SEGMENT])
    with pytest.raises(DataLossError, match=r"rows \d+–\d+ are gone \(neither the archive nor"):
        rows(both(places, archive=tmp_path / "a"))
    found = rows(both(places, archive=tmp_path / "a", failOnDataLoss="false"))
    whole = plain(rows({"path": places["whole"]}))
    held = [r for r in whole if not SEGMENT <= r["physical_offset"] < 2 * SEGMENT]
    assert plain(found) == held and len(held) < len(whole)


def test_a_damaged_archive_file(places: Mapping[str, Path], tmp_path: Path) -> None:
    """A flipped bit anywhere, or no file: one line that names it; the rest on request."""
    shutil.copytree(places["archive"], tmp_path / "a")
    path = tmp_path / "a" / ArchiveDir(tmp_path / "a").newest().segments[1].data[0].path
    good = path.read_bytes()
    for at in (4, len(good) // 3, len(good) // 2, len(good) - 300, len(good) - 9):
        path.write_bytes(good[:at] + bytes([good[at] ^ 8]) + good[at + 1 :])
        with pytest.raises(DataLossError, match=path.name):
            rows(both(places, archive=tmp_path / "a"))
    path.unlink()
    with pytest.raises(DataLossError, match="it is gone"):
        rows(both(places, archive=tmp_path / "a"))
    rest = rows(both(places, archive=tmp_path / "a", failOnDataLoss="false"))
    assert {r["physical_offset"] // SEGMENT for r in rest} >= {0, 2, 3}


@pytest.mark.parametrize("how", ["gone", "a directory", "another file"])
def test_a_time_is_not_looked_up_in_a_file_that_is_damaged(
    how: str, places: Mapping[str, Path], tmp_path: Path
) -> None:
    """It would name a start or an end beside which rows are left out without a word."""
    to = tmp_path / "a"
    shutil.copytree(places["archive"], to)
    one, two = (to / s.data[0].path for s in ArchiveDir(to).newest().segments[1:3])
    times = sorted(row["store_timestamp"] for row in rows({"archive": to}, columns="full"))
    held = pq.read_table(one).column("store_timestamp").to_pylist()
    ms = int(held[len(held) // 2].timestamp() * 1000)
    assert times[0] < held[0] < times[-1]
    one.unlink()
    if how == "a directory":
        one.mkdir()
    if how == "another file":
        shutil.copy(two, one)
    for name in ("startingTimestamp", "endingTimestamp"):
        with pytest.raises(DataLossError, match=f"{one.name}: it is "):
            rows({"archive": to, name: ms})
    with pytest.raises(DataLossError, match=f"{one.name}: it is "):
        rows({"archive": to})
    assert rows({"archive": to, "failOnDataLoss": "false"})


def test_a_directory_that_is_no_archive(places: Mapping[str, Path], tmp_path: Path) -> None:
    """A disk that is not mounted: what is live alone would look like all there is."""
    for given in ({"archive": tmp_path}, both(places, archive=tmp_path)):
        with pytest.raises(SourceError, match="there is no archive"):
            rows(given)
    assert main(["spark", "restore", "--archive", str(tmp_path), "--check"], {}) == 66


def test_wrong_options(places: Mapping[str, Path], tmp_path: Path) -> None:
    """Each is one line that says what to do."""
    for options, text in (
        ({"tier": "archive", "path": "x"}, "tier archive needs an archive"),
        ({"tier": "cold", "path": "x"}, "live or archive"),
        ({"tier": "live", "archive": "x"}, "tier live needs a live store"),
        ({"path": "x,y", "archive": "x"}, "an archive belongs to one store"),
        ({"path": "x", "archive": "x", "splitMode": "log"}, "not an archive"),
        ({"archive": tmp_path / "no"}, "there is no archive"),
        (both(places, subscribe="t9"), "there is no topic t9"),
    ):
        with pytest.raises(SourceError, match=text):
            rows(options)
    place = ArchiveDir(tmp_path / "two")
    segments = ArchiveDir(places["archive"]).newest().segments
    committed(place, [segments[0], replace(segments[0], group="g2")])
    with pytest.raises(SourceError, match="holds the groups g1, g2"):
        rows({"archive": tmp_path / "two"})


# ── clusters ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def cluster(places: Mapping[str, Path]) -> Iterator[FakeCluster]:
    """Nodes that hold the whole store's records; a test sets what retention took of them."""
    made = FakeCluster(epochs=[[1, 0]])
    with StoreReader(places["whole"]) as store:
        made.epochs = [[epoch, start] for epoch, start in store.epochs()]
        made.topics = dict.fromkeys(("t0", "t1", "t2"), 2)
        for record in store.records():
            if record.topic in made.topics:
                data = bytes(store.series.read(record.log_offset, record.size))
                made.queues.setdefault((record.topic, record.queue), []).append(data)
                made.end = record.log_offset + record.size
    for name in ("n1", "n2", "n3"):
        made.add_node(name)
    yield made
    made.close()


def trim(made: FakeCluster, offset: int) -> None:
    """Let retention take everything below a log offset."""
    for key, held in made.queues.items():
        made.starts[key] = sum(int.from_bytes(data[28:36], "big") < offset for data in held)


def test_a_cluster_and_its_archive(cluster: FakeCluster, places: Mapping[str, Path]) -> None:
    """Below each queue's live start from the archive, above it from slaves, all columns equal."""
    whole = rows({"path": places["whole"]})
    live = {"servers": cluster.servers, "maxStaleness": "0"}
    trim(cluster, KEPT)
    found = rows({**live, "archive": places["archive"]})
    assert plain(found) == plain(whole)
    assert {row["broker"] for row in found} == {"g1"}
    assert {row["tier"] for row in found if row["physical_offset"] < KEPT} == {"archive"}
    assert len(rows(live)) < len(whole)
    trim(cluster, 1 << 40)
    end = ArchiveDir(places["archive"]).newest().segments[-1].end
    with pytest.raises(DataLossError, match="neither the archive nor"):
        rows({**live, "archive": places["archive"]})
    found = rows({**live, "archive": places["archive"], "failOnDataLoss": "false"})
    assert plain(found) == [row for row in plain(whole) if row["physical_offset"] < end]


def test_a_topic_that_only_the_archive_has(
    cluster: FakeCluster, places: Mapping[str, Path]
) -> None:
    """Deleted in the cluster, or with fewer queues there: by name, by pattern, with all others."""
    given = {"servers": cluster.servers, "maxStaleness": "0"}
    whole = plain(rows({"path": places["whole"]}))
    end = ArchiveDir(places["archive"]).newest().segments[-1].end
    del cluster.topics["t1"]
    for held in [key for key in cluster.queues if key[0] == "t1"]:
        del cluster.queues[held]
    both = {**given, "archive": places["archive"]}
    gone = [row for row in whole if row["topic"] == "t1" and row["physical_offset"] < end]
    assert gone
    for more in ({"subscribe": "t1"}, {"subscribePattern": "t1.*"}, {"assign": '{"t1": [0, 1]}'}):
        assert plain(rows({**both, **more})) == gone, more
    assert plain(rows(both)) == [row for row in whole if row["topic"] != "t1" or row in gone]
    assert {row["topic"] for row in rows({**both, "tier": "live"})} == {"t0", "t2"}
    for options in ({**both, "subscribe": "t9"}, {**given, "subscribe": "t1"}):
        with pytest.raises(SourceError, match="there is no topic"):
            rows(options)


def test_nodes_that_deleted_at_other_times(
    cluster: FakeCluster, places: Mapping[str, Path]
) -> None:
    """A slave keeps less than the plan says: the node that still has the rows is asked, and the
    archive only where nobody has them."""
    given = {"servers": cluster.servers, "maxStaleness": "0"}
    whole = plain(rows(given))
    for name in ("n2", "n3"):
        cluster.nodes[name].own_starts = {("t1", 0): 5, ("t1", 1): 5}
    assert plain(rows(given)) == whole
    found = rows({**given, "archive": places["archive"]})
    assert plain(found) == whole and {row["tier"] for row in found} == {"live"}
    tasks = batch_query({**given, "columns": "full"}).tasks(0)
    cluster.nodes["n1"].own_starts = {("t1", 0): 2}
    with pytest.raises(DataLossError, match=r"rows 0–1 are gone \(first kept 2 on n1\)"):
        [list(read_any(task)) for task in tasks]


def test_rows_are_not_gone_while_a_node_is_silent(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover: slaves have deleted rows that the master keeps, which answers a little later."""
    given = {"servers": cluster.servers, "subscribe": "t1"}
    whole = plain(rows(given))
    tasks = batch_query({**given, "columns": "full"}).tasks(0)
    for name in ("n2", "n3"):
        cluster.nodes[name].own_starts = {("t1", 0): 5, ("t1", 1): 5}
    away = [Drop] * 3

    def drop(arrived: Any) -> None:
        if arrived.frame.type == Type.READ and away:
            raise away.pop()

    cluster.nodes["n1"].faults.append(drop)
    waits = list[float]()
    clock = SimpleNamespace(sleep=waits.append, monotonic=time.monotonic)
    monkeypatch.setattr("twinlog.spark.nodes.nodes.time", clock)
    found = [row for task in tasks for b in read_any(task) for row in b.to_pylist()]
    found.sort(key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))
    assert plain(found) == whole and not away and waits


def test_a_silent_node_is_waited_for_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the wait is over rows count as gone; further ones of the task do not wait again."""
    given = {"servers": cluster.servers, "subscribe": "t1", "failOnDataLoss": "false"}
    tasks = batch_query({**given, "maxStaleness": "60 s", "columns": "full"}).tasks(0)
    assert len(tasks) == 1, "both queues in one task"
    for name in ("n2", "n3"):
        cluster.nodes[name].own_starts = {("t1", 0): 5, ("t1", 1): 5}
    cluster.nodes["n1"].close()
    clock, waits = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += 59.0

    time = SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep)
    monkeypatch.setattr("twinlog.spark.nodes.nodes.time", time)
    found = [row["queue_offset"] for t in tasks for b in read_any(t) for row in b.to_pylist()]
    assert min(found) == 5 and len(waits) == 2, "60 s once, not for each queue"


def test_retention_between_plan_and_read(cluster: FakeCluster, places: Mapping[str, Path]) -> None:
    """Rows that were live when the query was planned come from the archive, each once."""
    given = {"servers": cluster.servers, "maxStaleness": "0", "columns": "full"}
    query = batch_query({**given, "archive": str(places["archive"])})
    trim(cluster, SEGMENT)
    tasks = query.tasks(0)
    trim(cluster, KEPT)
    found = [row for task in tasks for b in read_any(task) for row in b.to_pylist()]
    found.sort(key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))
    assert plain(found) == plain(rows({"path": places["whole"]}))
    assert {row["tier"] for row in found if row["physical_offset"] < KEPT} == {"archive"}
    alone = batch_query(given).tasks(0)
    trim(cluster, KEPT + SEGMENT)
    with pytest.raises(DataLossError, match="are gone"):
        [list(read_any(task)) for task in alone]


def test_late_rows_are_proven_too(
    cluster: FakeCluster, places: Mapping[str, Path], tmp_path: Path
) -> None:
    """An archive file that was written anew is a loss, also where retention came in between."""
    shutil.copytree(places["archive"], tmp_path / "a")
    path = tmp_path / "a" / ArchiveDir(tmp_path / "a").newest().segments[0].data[0].path
    given = {"servers": cluster.servers, "maxStaleness": "0", "archive": str(tmp_path / "a")}
    tasks = batch_query(given).tasks(0)
    careless = batch_query({**given, "checkCrc": "off"}).tasks(0)
    trim(cluster, SEGMENT)
    before = [batch.num_rows for task in tasks for batch in read_any(task)]
    pq.write_table(pq.ParquetFile(path).read(), path)
    with pytest.raises(DataLossError, match="it is not what was written"):
        [list(read_any(task)) for task in tasks]
    found = [batch.num_rows for task in careless for batch in read_any(task)]
    assert sum(found) == sum(before) > 0

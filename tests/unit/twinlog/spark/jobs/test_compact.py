"""compact: what a dict over the log holds, written as Parquet."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cli.app import main
from tests.fakes.node import FakeCluster
from tests.stores.golden import unpack
from tests.stores.sample import SEGMENT, Ours
from twinlog import kernels
from twinlog.errors import UsageError
from twinlog.format import record
from twinlog.format.log_file import file_name
from twinlog.kernels import codes
from twinlog.spark.archive.archive_dir import ArchiveDir
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.errors import DataLossError
from twinlog.spark.jobs.compact.files import (
    END_MARK,
    FileSizes,
    make_files,
    paths,
    slots,
    write_records,
)
from twinlog.spark.jobs.compact.job import CompactSettings, run, young
from twinlog.store.compacted_queues import compacted_queues
from twinlog.store.reader import StoreReader

pq = pytest.importorskip("pyarrow.parquet")


def reference(root: Path, topic: str) -> dict[tuple[int, str], bytes]:
    """The newest body of each key, by the plain reader."""
    held: dict[tuple[int, str], bytes] = {}
    with StoreReader(root) as store:
        for found in store.records():
            if found.topic == topic and found.queued and found.key is not None:
                held[found.queue, found.key] = found.body
    return {key: body for key, body in held.items() if body}


def small(root: Path) -> Path:
    """A log by hand: two queues, keys written again, a deleted key, a record without a key."""
    log, counts = bytearray(), dict[int, int]()
    items = [(0, "a", b"1"), (1, "a", b"2"), (0, "b", b"3"), (0, "a", b"4"), (0, "b", b"")]
    for queue, key, body in [*items, (0, "a b", b"5"), (0, "", b"6")]:
        number = counts[queue] = counts.get(queue, -1) + 1
        log += record.encode(
            "kv",
            queue,
            body,
            properties={"KEYS": key} if key else {},
            queue_offset=number,
            log_offset=len(log),
            store_timestamp=1_700_000_000_000 + len(log),
        )
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / file_name(0)).write_bytes(bytes(log).ljust(65_536, b"\0"))
    return root


def written(to: Path) -> dict[tuple[int, str], bytes]:
    """What the Parquet files hold."""
    rows = pq.read_table(to).to_pylist()
    return {(row["queue_id"], row["key"]): row["body"] for row in rows}


def test_tombstones_queues_and_several_keys(tmp_path: Path) -> None:
    """By hand: newest wins in its queue, an empty body deletes, KEYS counts as a whole."""
    root, to = small(tmp_path / "s"), tmp_path / "kv"
    found = run(PlainEngine(), CompactSettings(root, "kv", to))
    assert written(to) == {(0, "a"): b"4", (1, "a"): b"2", (0, "a b"): b"5"}
    assert written(to) == reference(root, "kv")
    fields = found.fields
    assert (fields["records"], fields["kept"], fields["without_key"]) == (7, 3, 1)
    with pytest.raises(UsageError, match="exists already"):
        run(PlainEngine(), CompactSettings(root, "kv", to))
    with pytest.raises(UsageError, match="no record of nothing"):
        run(PlainEngine(), CompactSettings(root, "nothing"))


def test_a_young_tombstone_is_a_row(tmp_path: Path) -> None:
    """By store time: with the age that it has it goes, a millisecond before it stays."""
    root = small(tmp_path / "s")
    with StoreReader(root) as store:
        (stored,) = [r.store_timestamp for r in store.records() if r.key and not r.body]
    live = reference(root, "kv")
    for now, rows in ((stored + 5000, live), (stored + 4999, {**live, (0, "b"): b""})):
        to = tmp_path / str(now)
        settings = CompactSettings(root, "kv", to, young_ms=young(now, 5.0))
        found = run(PlainEngine(), settings)
        assert written(to) == rows
        fields, kept = found.fields, len(rows) - len(live)
        assert (fields["kept"], fields["deleted_keys"], fields["tombstones"]) == (3 + kept, 1, kept)
        assert found.tables["queues"].rows == [
            ("kv", 0, 3, 2 + kept, 1, kept),
            ("kv", 1, 1, 1, 0, 0),
        ]


def test_a_store_of_rocketmq(tmp_path: Path) -> None:
    """The dict over a golden store, whatever the cut."""
    root = unpack("14-compaction", tmp_path / "s")
    with StoreReader(root) as store:
        topics = {found.topic for found in store.records() if found.key}
    for topic in sorted(topics):
        to = tmp_path / topic.replace("%", "_")
        run(PlainEngine(), CompactSettings(root, topic, to, 3000))
        assert written(to) == reference(root, topic)
        assert reference(root, topic)


def test_compaction_files_are_those_of_rocketmq(tmp_path: Path) -> None:
    """What the broker had compacted, from the log as it was then: the same bytes."""
    root = unpack("14-compaction", tmp_path / "s")
    text = (root / "compaction/position-checkpoint").read_text()
    sizes, made = FileSizes(23_000, 4_600), tmp_path / "made"
    for name, last in json.loads(text)["queueOffsetMap"].items():
        topic, _, queue = name.rpartition("_")
        newest: dict[str, bytes] = {}
        with StoreReader(root) as store:
            for found in store.records():
                own = (found.topic, found.queue) == (topic, int(queue))
                if own and found.key is not None and found.queue_offset <= last:
                    newest.pop(found.key, None)
                    data = store.series.read(found.log_offset, found.size)
                    newest[found.key] = bytes(data) if found.body else b""
        records = [data for data in newest.values() if data]
        given = list(slots(topic, int(queue), map(len, records), sizes))
        make_files(made, {(topic, int(queue)): [(given[-1], len(records[-1]))]}, sizes)
        write_records(made, zip(records, given, strict=True))
        for path in paths(made, given[0]):
            assert path.read_bytes() == (root / path.relative_to(made)).read_bytes()


@pytest.mark.parametrize("sizes", [FileSizes(), FileSizes(1500, 460), FileSizes(9000, 184)])
def test_compaction_files_are_read_back(sizes: FileSizes, tmp_path: Path) -> None:
    """The records of the reference in their order; full files end in a blank and an end mark."""
    root, to = unpack("14-compaction", tmp_path / "s"), tmp_path / "to"
    with StoreReader(root) as store:
        (topic,) = {key[0] for key in store.compacted}
        newest = {(r.queue, r.key): r for r in store.records() if r.topic == topic and r.queued}
    run(PlainEngine(), CompactSettings(root, topic, to, 3000, files=sizes))
    kept = sorted(((r.queue, r.queue_offset), r) for r in newest.values() if r.body)
    found = [
        record.decode(data)
        for _, queue in sorted(compacted_queues(to).items())
        for data in queue.records()
    ]
    assert found == [
        replace(one, log_offset=two.log_offset) for (_, one), two in zip(kept, found, strict=True)
    ]
    for queue in compacted_queues(to).values():
        assert not queue.unindexed()
        names = sorted(
            p for p in (to / f"compaction/compactionLog/{topic}/{queue.queue}").iterdir()
        )
        for path in names:
            data = memoryview(path.read_bytes())
            assert len(data) == sizes.log
            stop, code = kernels.walk(data, 0, len(data))[1:3]
            assert (code == codes.BLANK) == (path != names[-1]), path
            if path != names[-1]:
                units = (
                    to / f"compaction/compactionCq/{topic}/{queue.queue}/{path.name}"
                ).read_bytes()
                assert int.from_bytes(data[stop : stop + 4], "big") == sizes.log - stop
                assert END_MARK in units
    with pytest.raises(UsageError, match="fits into no file of 100"):
        run(PlainEngine(), CompactSettings(root, topic, tmp_path / "no", files=FileSizes(100, 460)))
    assert not list(tmp_path.glob("no*"))


def test_an_interrupted_compaction_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while the winners are written; a run beside it keeps its own directory."""

    class Interrupting(PlainEngine):
        def spread(self, work, items):  # type: ignore[no-untyped-def]
            found = super().spread(work, items)
            if list(tmp_path.glob("kv.*.building/part-*")):
                raise KeyboardInterrupt
            return found

    root, to = small(tmp_path / "s"), tmp_path / "kv"
    with pytest.raises(KeyboardInterrupt):
        run(Interrupting(), CompactSettings(root, "kv", to))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


SIXTY = 60


def changing(home: Path) -> tuple[Path, Path, Path]:
    """A store whose keys change and go, its archive, and what retention left of the store."""
    made = Ours()
    for number in range(SIXTY):
        body = b"" if number % 20 in (7, 9) else b"%d" % number + b"x" * 100
        made.properties = {"TAGS": "a", "KEYS": f"k{number % 20}"}
        made.batch(body, topic="kv", queue=number % 2)
        made.properties = {"TAGS": "a"}
        made.batch(b"no key", topic="kv")
    whole = made.write(home / "whole", confirm=made.end)
    archive(PlainEngine(), ArchiveSettings(whole, home / "archive"))
    live = Path(shutil.copytree(whole, home / "live"))
    for folder in ("commitlog", "twinlog/batches"):
        for path in (live / folder).iterdir():
            if int(path.name) < 2 * SEGMENT:
                path.unlink()
    return whole, live, home / "archive"


def rows_of(to: Path) -> list[dict[str, object]]:
    """All rows of a result, with every column, in log order."""
    found = pq.read_table(to).to_pylist()
    return sorted(found, key=lambda row: row["physical_offset"])


@pytest.mark.slow
def test_archive_and_live_as_one(tmp_path: Path) -> None:
    """The archive before a directory or a cluster: the rows and counts of the whole store."""
    whole, live, kept = changing(tmp_path)
    wanted = run(PlainEngine(), CompactSettings(whole, "kv", tmp_path / "wanted", young_ms=0))
    assert written(tmp_path / "wanted").keys() == {(n % 2, f"k{n}") for n in range(20)}
    nodes = FakeCluster(epochs=[[1, 0]], topics={"kv": 2})
    with StoreReader(whole) as store:
        for found in store.records():
            data = bytes(store.series.read(found.log_offset, found.size))
            nodes.queues.setdefault((found.topic, found.queue), []).append(data)
            nodes.end = found.log_offset + found.size
    for name in ("n1", "n2"):
        nodes.add_node(name)
    servers = nodes.servers
    cases = {
        "tiers": CompactSettings(live, "kv", archive=kept),
        "cluster": CompactSettings(None, "kv", servers=servers),
        "both": CompactSettings(None, "kv", servers=servers, archive=kept),
    }
    try:
        for name, settings in cases.items():
            if name == "both":
                nodes.starts = {("kv", 0): 20, ("kv", 1): 5}
            to = tmp_path / name
            made = run(PlainEngine(), replace(settings, to=to, young_ms=0))
            assert rows_of(to) == rows_of(tmp_path / "wanted"), name
            assert made.tables == wanted.tables, name
            for field in ("records", "without_key", "kept", "deleted_keys", "tombstones"):
                assert made.fields[field] == wanted.fields[field]
    finally:
        nodes.close()


@pytest.mark.slow
def test_an_archive_alone(tmp_path: Path) -> None:
    """What a dict over its records holds; nothing is left when the second reading ends early."""
    whole, _, kept = changing(tmp_path)
    end = ArchiveDir(kept).newest().segments[-1].end
    held: dict[tuple[int, str], bytes] = {}
    with StoreReader(whole) as store:
        for found in store.records():
            if found.log_offset < end and found.topic == "kv" and found.key:
                held[found.queue, found.key] = found.body
    to = tmp_path / "kv"
    run(PlainEngine(), CompactSettings(None, "kv", to, archive=kept))
    assert written(to) == {key: body for key, body in held.items() if body}

    class Losing(PlainEngine):
        """Between the two readings a file of the archive goes."""

        def spread(self, work, items):  # type: ignore[no-untyped-def]
            found = super().spread(work, items)
            for segment in ArchiveDir(kept).newest().segments:
                (kept / segment.data[0].path).unlink(missing_ok=True)
            return found

    with pytest.raises(DataLossError, match="it is gone"):
        run(Losing(), CompactSettings(None, "kv", tmp_path / "no", archive=kept))
    assert not list(tmp_path.glob("no*"))


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        ([], "a compaction reads a directory or a cluster", 64),
        (["--path", "{}/s", "--from-servers", "n:1"], "a compaction reads a directory or", 64),
        (["--path", "{}/s", "--to", "x", "--to-topic", "y"], "both given", 64),
        (["--path", "{}/s", "--servers", "n:1"], "go with --to-topic", 64),
        (["--archive", "{}", "--to", "x"], "is no archive: it has no directory", 66),
        (["--archive", "{}/none"], "there is no directory", 66),
        (["--path", "{}/s", "--delete-retention", "1 parsec"], "parsec", 64),
        (["--path", "{}/s", "--to-topic", "y", "--servers", "n:1"], "this needs Spark", 64),
    ],
)
def test_wrong_calls(
    words: list[str], said: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a session is started."""
    small(tmp_path / "s")
    call = ["spark", "compact", "--topic", "kv", *(word.format(tmp_path) for word in words)]
    made = main(call, {"TWINLOG_SPARK_ENGINE": "plain"})
    err = capsys.readouterr().err
    assert (made, said in err) == (code, True), err

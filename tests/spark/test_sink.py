"""The sink through Spark: batch writes, streams that are replayed, errors before a task starts."""

from __future__ import annotations

import importlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.app import main
from tests.fixtures.processes import Processes
from tests.stores.sample import SEGMENT, Ours
from twinlog import Client, Message
from twinlog.errors import UsageError
from twinlog.format.record import Record
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.jobs.replay import job as replay
from twinlog.spark.jobs.replay.job import run
from twinlog.spark.jobs.replay.settings import LEFT_BEHIND, ReplaySettings
from twinlog.spark.sink.settings import SOURCE_PROPERTY, Rate
from twinlog.store.reader import StoreReader
from twinlog.units import MiB


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of one node with the topics of these tests, and small files to archive."""
    found = Processes(tmp_path_factory.mktemp("sink"), nodes=1, segment_size=MiB)
    try:
        found.start_all()
        address = "{}:{}".format(*found.address("n1"))
        with Client(address) as client:
            for topic in ("batch", "stream", "commits", "again", "kept", "replayed"):
                client.create_topic(topic, 4)
        yield address
    finally:
        found.close()


def source(spark: Any, golden: Path) -> Any:
    """The rows of a golden store, with the columns that the sink takes."""
    frame = spark.read.format("twinlog").load(str(golden))
    return frame.select("key", "tags", "body")


def test_a_batch_write(spark: Any, golden: Path, servers: str) -> None:
    """Every row with key, tag, properties and body; several tasks at once."""
    frame = source(spark, golden)
    wanted = Counter((row.key, row.tags, bytes(row.body)) for row in frame.collect())
    write = frame.repartition(3).write.format("twinlog").mode("append")
    write.option("servers", servers).option("topic", "batch").save()
    with Client(servers) as client:
        found = list(client.read("batch"))
    assert Counter((m.key, m.tag, m.body) for m in found) == wanted
    assert len({m.properties[SOURCE_PROPERTY] for m in found}) == len(found)


def test_a_replayed_batch_is_stored_once(
    spark: Any, golden: Path, servers: str, tmp_path: Path
) -> None:
    """A driver that dies between the sink's commit and the source's: the batch comes again."""
    checkpoint = tmp_path / "checkpoint"

    def copy() -> int:
        stream = spark.readStream.format("twinlog").option("startingOffsets", "earliest")
        stream = stream.option("maxOffsetsPerTrigger", "500").load(str(golden))
        query = (
            stream.select("key", "body")
            .writeStream.format("twinlog")
            .option("servers", servers)
            .option("topic", "stream")
            .option("writeId", "copy")
            .option("commitTopic", "commits")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(600)
        assert query.exception() is None
        return int(query.lastProgress["batchId"])

    last = copy()
    assert last >= 1
    for path in (checkpoint / "commits").glob(f"*{last}*"):
        path.unlink()  # what a death before the source's commit leaves behind
    assert copy() == last
    with Client(servers) as client:
        names = [m.properties[SOURCE_PROPERTY] for m in client.read("stream")]
        commits = list(client.read("commits"))
    rows = spark.read.format("twinlog").load(str(golden)).count()
    assert len(names) == len(set(names)) == rows
    assert len(commits) == last + 1


def _told(row: Message | Record) -> tuple[object, ...]:
    """What a replay keeps of a record, by the plain readers."""
    kept = {name: text for name, text in row.properties.items() if name not in LEFT_BEHIND}
    return row.body, row.key, row.tag, kept


def test_a_replay_can_be_resumed(spark: Any, golden: Path, servers: str, tmp_path: Path) -> None:
    """Counts first; sent once, then again with the same memory: nothing new; origins are named."""
    with StoreReader(golden) as store:
        topics = Counter(record.topic for record in store.records() if record.queued)
    topic, count = topics.most_common(1)[0]
    settings = ReplaySettings(golden, topic, servers, "again", dry_run=True)
    assert run(spark, settings).fields["rows"] == count
    with Client(servers) as client:
        assert not list(client.read("again"))
        rate = Rate(count / 2)
        settings = replace(
            settings, dry_run=False, resume=tmp_path / "state", rate=rate, keep_time=True
        )
        began = time.monotonic()
        assert run(spark, settings).fields["seconds_at_rate"] == 2
        assert time.monotonic() - began >= 0.9 * 2, "not quicker than the rate allows"
        settings = replace(settings, rate=None)
        first = list(client.read("again"))
        again = run(spark, settings)
        assert (again.fields["rows"], again.fields["sent"]) == (count, 0), "nothing is left to send"
        with pytest.raises(UsageError, match="whose to-topic is 'again', not 'kept'"):
            run(spark, replace(settings, to_topic="kept"))
        assert [m.log_offset for m in client.read("again")] == [m.log_offset for m in first]
    origins = {m.properties["TL_ORIGIN"].rpartition("/")[2] for m in first}
    with StoreReader(golden) as store:
        records = [r for r in store.records() if r.topic == topic and r.queued]
    assert origins == {str(r.log_offset) for r in records} and len(first) == count
    sent = {m.properties["TL_ORIGIN"].rpartition("/")[2]: _told(m) for m in first}
    assert sent == {str(r.log_offset): _told(r) for r in records}, "the reference, row for row"
    born = Counter(message.born_timestamp for message in first)
    assert born == Counter(record.born_timestamp for record in records), "--keep-time"


def test_an_archive_is_replayed_and_compacted(spark: Any, servers: str, tmp_path: Path) -> None:
    """The archive and the rest of its store as one, into topics; as the plain engine counts."""
    made = Ours(clock=int(time.time() * 1000) - 48 * 3_600_000)
    for number in range(60):
        body = b"" if number % 20 in (7, 9) else b"%d" % number + b"x" * 100
        made.clock += 47 * 3_600_000 if number == 48 else 0
        made.properties = {"TAGS": "a", "KEYS": f"k{number % 20}"}
        made.batch(body, topic="kv", queue=number % 2)
        made.properties = {"TAGS": "a"}
        made.batch(b"no key", topic="kv")
    whole = made.write(tmp_path / "whole", confirm=made.end)
    archive(PlainEngine(), ArchiveSettings(whole, tmp_path / "archive"))
    live = Path(shutil.copytree(whole, tmp_path / "live"))
    for folder in ("commitlog", "twinlog/batches"):
        for path in (live / folder).iterdir():
            if int(path.name) < 2 * SEGMENT:
                path.unlink()

    def told(job: str, *words: str, engine: str = "spark") -> Any:
        call = ["spark", job, "--topic", "kv", *words, "--report", str(tmp_path / "report")]
        assert main(call, {"TWINLOG_SPARK_ENGINE": engine}) == 0
        return json.loads((tmp_path / "report").read_text())

    assert spark is not None
    both = ("--archive", str(tmp_path / "archive"), "--path", str(live), "--servers", servers)
    again = ("--to-topic", "replayed", "--resume", str(tmp_path / "state"))
    assert told("replay", *both, *again)["sent"] == 120, "the archive, then what follows it live"
    assert told("replay", *both, *again)["sent"] == 0
    age = ("--delete-retention", "24h")
    counted = told("compact", "--path", str(whole), *age, engine="plain")
    found = told("compact", *both, "--to-topic", "kept", "--same-queues", *age)
    places = ("directory", "to", "source", "archive", "to_topic")
    assert {k: v for k, v in found.items() if k not in places} == {
        k: v for k, v in counted.items() if k not in places
    }
    assert (found["kept"], found["deleted_keys"], found["tombstones"]) == (19, 2, 1)
    to = tmp_path / "parquet"
    assert told("compact", *both[:4], "--to", str(to), *age)["kept"] == 19
    with StoreReader(whole) as store:
        records = [r for r in store.records() if r.topic == "kv"]
    newest = {(r.queue, r.key): r for r in records if r.key and r.key != "k7"}
    with Client(servers) as client:
        rows = {topic: list(client.read(topic)) for topic in ("kept", "replayed")}
    origins = {
        topic: sorted(int(m.properties["TL_ORIGIN"].rpartition("/")[2]) for m in rows[topic])
        for topic in rows
    }
    assert origins["replayed"] == [r.log_offset for r in records]
    table = importlib.import_module("pyarrow.parquet").read_table(to)
    assert sorted(table["physical_offset"].to_pylist()) == origins["kept"], "Parquet, the same rows"
    assert origins["kept"] == sorted(r.log_offset for r in newest.values())
    assert {(m.queue, m.key): m.body for m in rows["kept"]} == {
        place: r.body for place, r in newest.items()
    }


def test_a_cluster_and_its_archive_are_replayed_and_resumed(
    spark: Any, servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between the two, the archive grown meanwhile, then new rows: each row once."""
    assert spark is not None
    report, kept = tmp_path / "report", tmp_path / "archive"

    def grown(first: int, count: int, *, archived: bool) -> None:
        with Client(servers) as client, client.producer("source") as producer:
            for number in range(first, first + count):
                producer.send(b"%01000d" % number, key=f"k{number}", tag="ab"[number % 2])
        if archived:
            archive(PlainEngine(), ArchiveSettings(None, kept, servers=(servers,)))

    def replayed(code: int) -> Any:
        words = ["--topic", "source", "--to-topic", "target", "--from-servers", servers]
        words += ["--servers", servers, "--archive", str(kept), "--resume", str(tmp_path / "state")]
        assert main(["spark", "replay", *words, "--report", str(report)], {}) == code
        return None if code else json.loads(report.read_text())["sent"]

    def killed(*_: object) -> int:
        raise KeyboardInterrupt

    with Client(servers) as client:
        client.create_topic("source", 2)
        client.create_topic("target", 2)
        grown(0, 3000, archived=True)
        with monkeypatch.context() as patched:
            patched.setattr(replay, "_stream", killed)
            replayed(130)
        first = len(list(client.read("target")))
        assert 0 < first < 3000, "what the archive has, and nothing of what is live"
        grown(3000, 1500, archived=True)
        assert replayed(0) == 4500 - first
        grown(4500, 20, archived=False)
        assert (replayed(0), replayed(0)) == (20, 0)
        found = list(client.read("target"))
        source = {str(m.log_offset): (m.body, m.key, m.tag) for m in client.read("source")}
    assert len(found) == len(source) == 4520
    assert {
        m.properties["TL_ORIGIN"].rpartition("/")[2]: (m.body, m.key, m.tag) for m in found
    } == source
    assert {m.properties["TL_ORIGIN"].partition("/")[0] for m in found} == {"g1"}


@pytest.mark.parametrize(
    ("options", "mode", "words"),
    [
        ({"topic": "batch"}, "append", "writes to a cluster"),
        ({"topic": "batch", "servers": "{}", "acks": "all"}, "append", "no option 'acks'"),
        ({"topic": "batch", "servers": "{}"}, "overwrite", "never overwritten"),
    ],
)
def test_wrong_writes(
    options: dict[str, str], mode: str, words: str, spark: Any, servers: str
) -> None:
    """The last line says what is wrong."""
    frame = spark.createDataFrame([(bytearray(b"x"),)], "body BINARY")
    write = frame.write.format("twinlog").mode(mode)
    for name, value in options.items():
        write = write.option(name, value.format(servers))
    with pytest.raises(Exception, match=words):
        write.save()

"""What options, columns and pieces of the Spark source take, and the words for what they do not.

Needs no Spark: these are functions of texts.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from twinlog.errors import CorruptionError
from twinlog.spark.archive import manifest
from twinlog.spark.errors import DataLossError, SourceError
from twinlog.spark.jobs.reports.reference import failovers, kind_of
from twinlog.spark.plan import columns, options
from twinlog.spark.plan.decoding import _items, inflate
from twinlog.spark.plan.option_parser import parse, schema_options
from twinlog.spark.plan.option_values import EARLIEST, LATEST
from twinlog.spark.plan.selection import selected
from twinlog.spark.sink.settings import Identity, queue_for
from twinlog.spark.source.data_source import nullable_of

WHERE = {"path": "/d"}


def batch(**given: str) -> options.Options:
    """The options of a batch query over a directory."""
    return parse({**WHERE, **given}, use="batch")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"splitBytes": "0"}, "at least one byte"),
        ({"splitBytes": "many"}, "a size"),
        ({"minPartitions": "0"}, "a whole number from 1 on"),
        ({"subscribe": " , "}, "at least one name"),
        ({"servers": "n1:port"}, "addresses such as"),
        ({"tags": " || "}, 'with "||" between them'),
        ({"subscribePattern": "("}, "a regular expression"),
        ({"range": "x"}, "a range"),
        ({"startingTimestamp": "soon"}, "milliseconds since 1970"),
        ({"startingTimestamp": "9" * 18}, "a time that exists"),
        ({"startingTimestamp": "9" * 5000}, "milliseconds since 1970"),
        ({"maxStaleness": "5"}, "a duration: write numbers with units"),
        ({"minPartitions": "9" * 5000}, "a whole number from 1 on"),
        ({"startingOffsets": '{"t": {"%s": 1}}' % ("9" * 5000)}, "JSON such as"),
        ({"startingOffsets": "first"}, "earliest, latest or JSON"),
        ({"startingOffsets": "{"}, "JSON such as"),
        ({"startingOffsets": '{"t": 1}'}, "JSON such as"),
        ({"startingOffsets": '{"t": {"x": 1}}'}, "JSON such as"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "-2 for the start"),
        ({"assign": "{"}, "JSON such as"),
        ({"assign": '{"t": 1}'}, "JSON such as"),
        ({"assign": '{"t": [-1]}'}, "JSON such as"),
        ({"assign": "{}"}, "JSON such as"),
        ({"splitMode": "rows"}, "splitMode is 'rows'"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "are given"),
        ({"servers": "h:1"}, "servers and path are given"),
        ({"endingOffsets": "earliest"}, "an end cannot be earliest"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "an end cannot be earliest"),
        ({"range": "0:", "startingOffsets": "earliest"}, "together with a start or an end"),
        ({"splitMode": "log", "range": "0:"}, "splitMode log reads the whole log"),
        ({"includeHeaders": "true"}, "belongs to kafkaColumns"),
        ({"topic": "a", "subscribe": "b"}, "topic and subscribe are given, which is one option"),
        ({"subscribe": "a,%LMQ%b", "splitMode": "log"}, "where no record is of %LMQ%b"),
        ({"path": "/a,/b,/a/"}, "a directory is named twice in /a, /b, /a/"),
        ({"maxOffsetsPerTrigger": "5"}, "for streams only"),
        ({"bootstrap.servers": "h"}, "there is no option"),
        ({"kafka.zzzzzzzz.qqqq": "h"}, "options of Kafka's client mean nothing here"),
    ],
)
def test_what_an_option_is_not(given: dict[str, str], told: str) -> None:
    """The error names the option, what was written, and what would do."""
    with pytest.raises(SourceError) as caught:
        batch(**given)
    assert told in str(caught.value)


def test_something_says_where_the_records_are() -> None:
    """A directory, or servers; splitMode log and isolation written only for directories."""
    with pytest.raises(SourceError, match="nothing says where"):
        parse({}, use="batch")
    servers = {"servers": "h:7"}
    assert parse(servers, use="batch").servers == ("h:7",)
    for odd in ({"splitMode": "log"}, {"isolation": "written"}):
        with pytest.raises(SourceError, match="reads directories"):
            parse({**servers, **odd}, use="batch")
    for odd in ({"endingOffsets": "latest"}, {"endingTimestamp": "1"}):
        with pytest.raises(SourceError, match="batch queries only"):
            parse({**servers, **odd}, use="stream")
    with pytest.raises(SourceError, match="%LMQ%a is a light queue: Spark reads those of dir"):
        parse({**servers, "subscribe": "t,%LMQ%a"}, use="batch")
    both = {"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "5 MiB"}
    with pytest.raises(SourceError, match="are given"):
        parse({**servers, **both}, use="stream")


def test_what_options_mean() -> None:
    """Names in any case; groups between a topic and its queues are looked through."""
    found = batch(
        SUBSCRIBE="a, b", tags="x || y", startingoffsets='{"a": {"g": {"0": 7, "1": -1}}}'
    )
    assert (found.subscribe, found.tags) == (("a", "b"), ("x", "y"))
    assert found.starting_offsets is not None
    assert found.starting_offsets.of("a", 0) == 7
    assert found.starting_offsets.of("b", 0) == EARLIEST
    assert batch(endingOffsets="latest").ending_offsets.of("a", 0) == LATEST
    assert batch(startingTimestamp="86400000").starting_timestamp is not None
    assert batch(startingTimestamp="2026-11-21T10:00Z").starting_timestamp is not None
    assert batch(assign='{"a": [0, 2]}').assign == {"a": (0, 2)}
    assert batch(subscribePattern="a.*").pattern == "a.*"
    assert batch(owner="me", **{"option.subscribe": "b"}).subscribe is None, "Spark's own"
    assert "`splitMode`" in options.reference()


def test_whether_a_batch_or_a_stream_is_meant() -> None:
    """A schema is asked for before that is known: an option of streams alone says it."""
    found = schema_options({**WHERE, "MAXoffsetsPerTrigger": "5"})
    assert found.max_offsets_per_trigger == 5
    assert schema_options({**WHERE, "endingOffsets": "latest"}).split_mode == "auto"
    with pytest.raises(SourceError, match="batch queries only"):
        schema_options({**WHERE, "maxOffsetsPerTrigger": "5", "endingOffsets": "latest"})


def test_columns_by_name_and_schema() -> None:
    """Upper and lower case are the same but for a schema, whose names Spark compares; a type that
    differs is told, with the cast."""
    assert [one.name for one in columns.chosen("Topic, queue_id", kafka=False, headers=False)] == [
        "topic",
        "queue_id",
    ]
    kafka = columns.chosen("", kafka=True, headers=False)
    assert columns.chosen("", kafka=True, headers=True) == (*kafka, columns.KAFKA[-1])
    assert len(columns.chosen("full", kafka=False, headers=False)) == len(columns.TABLE)
    with pytest.raises(SourceError, match="there is no column topc"):
        columns.named("topc", columns.TABLE)
    for odd, told in ((" , ", "names no column"), ("size,topic,Size", "names size twice")):
        with pytest.raises(SourceError, match=told):
            columns.chosen(odd, kafka=False, headers=False)
    (topic,) = columns.of_schema([("topic", "string")], kafka=False)
    assert columns.ddl([topic]) == "`topic` STRING"
    with pytest.raises(SourceError, match="names column TOPIC, which is topic"):
        columns.of_schema([("TOPIC", "string")], kafka=False)
    strict = SimpleNamespace(name="topic", nullable=False)
    with pytest.raises(SourceError, match="column topic is NOT NULL in the schema"):
        nullable_of(SimpleNamespace(fields=[strict]))
    with pytest.raises(SourceError, match="column topic is STRING, not INT"):
        columns.of_schema([("topic", "int")], kafka=False)
    assert "`topic`" in columns.reference()


def test_queues_that_are_chosen() -> None:
    """All but the store's own, those of a pattern, or those that are named, which must be there."""
    queues = [("a", 0), ("a", 1), ("b", 0), ("rmq_sys_x", 0)]

    def choose(known: tuple[str, ...] | None = None, **given: str) -> list[tuple[str, int]]:
        return selected(queues, batch(**given), known=known)

    assert choose() == queues[:3]
    assert choose(subscribePattern="b|r.*") == queues[2:]
    assert choose(assign='{"a": [1]}') == [("a", 1)]
    with pytest.raises(SourceError, match="topic a has no queue 7"):
        choose(assign='{"a": [7]}')
    assert choose(("a", "b"), assign='{"a": [7]}') == []
    for odd in ({"assign": '{"c": [0]}'}, {"subscribe": "c"}):
        with pytest.raises(SourceError):
            choose(**odd)


def test_what_a_record_is_in_the_life_of_a_message() -> None:
    """By its topic, then by the flag of a transaction."""
    topics = {
        "%RETRY%g": "retry", "%DLQ%g": "dead letter", "RMQ_SYS_TRANS_HALF_TOPIC": "half",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": "op", "SCHEDULE_TOPIC_XXXX": "waiting", "t": "message",
    }  # fmt: skip
    assert {topic: kind_of(topic, 0) for topic in topics} == topics
    assert [kind_of("t", flag) for flag in (4, 8, 12)] == ["prepared", "committed", "rolled back"]


def test_an_epoch_begins_after_a_gap() -> None:
    """Records of the store's own do not count, nor does one from before every epoch."""

    def record(at: int, ms: int, topic: str = "t") -> Any:
        return SimpleNamespace(log_offset=at, store_timestamp=ms, topic=topic)

    rows = failovers(
        [record(5, 90), record(10, 100), record(20, 110), record(30, 115, "rmq_sys_TWINLOG_EPOCH"),
         record(40, 150)],
        SimpleNamespace(epochs=[(1, 10), (2, 30), (3, 90)]),  # type: ignore[arg-type]
    )  # fmt: skip
    assert rows == [(1, 10, 100, 110, 2, None), (2, 30, 150, 150, 1, 40)]


def test_bodies_that_do_not_decompress() -> None:
    """Cut off, too large, another library's, or of a kind that nobody knows."""
    packed = zlib.compress(b"x" * 1000)
    assert inflate(packed, 3 << 8) == inflate(packed, 0) == b"x" * 1000
    for body, flag in ((packed[:-4], 0), (b"x", 1 << 8), (b"x", 2 << 8), (packed, 5 << 8)):
        with pytest.raises(DataLossError):
            inflate(body, flag)


@pytest.mark.parametrize("body", [b"\0" * 8, b"\0" * 30, b"\0" * 12 + b"\xff" * 30])
def test_an_inner_batch_holds_whole_messages(body: bytes) -> None:
    """What is left over is no message."""
    with pytest.raises(DataLossError, match="does not hold whole messages"):
        list(_items(body, 7))


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "{}",
        '{"version": 99}',
        '{"version": 1, "segments": [{"files": 1, "epochs": []}]}',
        '{"version": 1, "segments": [{"files": [{"queues": []}], "epochs": []}]}',
    ],
)
def test_texts_that_are_no_manifest(text: str) -> None:
    """Of another version, of another shape, or nothing at all: the file is named."""
    with pytest.raises(CorruptionError, match=r"m\.json"):
        manifest.parse(text, "m.json")


def test_a_tasks_rows_go_where_they_went_before() -> None:
    """Named queue, order key, else in turns; a name for each row."""
    assert queue_for(None, 3, 0, 4) == 3
    assert queue_for("a", None, 9, 4) == 1
    assert queue_for(None, None, 1024, 4) == 1
    who = Identity("w", 3, 1)
    assert (who.epoch, who.row(7)) == (3, "w/3/1/7")
    assert who.producer == Identity("w", 4, 1).producer != Identity("w", 3, 2).producer


def test_segments_with_other_bytes_are_of_another_log() -> None:
    """The same again is no news; the same place with other bytes is refused."""
    segment = manifest.Segment("g", 0, 9, "aa", 1, 9, "", (), ())
    held = manifest.Manifest().after([segment], "")
    assert held.after([segment], "d").segments == [segment]
    with pytest.raises(CorruptionError, match="the archive has other bytes of g at 0"):
        held.after([replace(segment, sha256="bb")], "d")

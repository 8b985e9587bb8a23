"""The reports without Spark, on stores of RocketMQ and by hand."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from pathlib import Path

import pytest

from cli.app import main
from tests.stores.golden import unpack
from twinlog.format.record import Record, decode, encode
from twinlog.spark.jobs.reports import reference as plain
from twinlog.spark.jobs.reports import tables
from twinlog.spark.jobs.reports.queries import STATS
from twinlog.spark.jobs.reports.reference import Facts

PLAIN = {"TWINLOG_SPARK_ENGINE": "plain"}


def record(topic: str, body: bytes, stored: int, **properties: str) -> Record:
    """A record stored at ``stored``, made 5 ms before."""
    data = encode(
        topic, 0, body, properties=properties, store_timestamp=stored, born_timestamp=stored - 5
    )
    return decode(data)


def test_rates_sizes_and_latency_by_hand() -> None:
    """Two minutes, two topics, a system topic that does not count."""
    held = [
        record("a", b"12", 60_000),
        record("a", b"1234", 119_999),
        record("b", b"", 120_000),
        record("%RETRY%g", b"", 120_000),
    ]
    sizes = [item.size for item in held]
    assert plain.rates(held, Facts()) == [
        ("a", 60_000, 2, sizes[0] + sizes[1]),
        ("b", 120_000, 1, sizes[2]),
    ]
    assert plain.sizes(held, Facts())[0] == ("a", 2, sum(sizes[:2]), sizes[0], sizes[1], sizes[1])
    assert plain.latency(held, Facts())[0] == ("a", 60_000, 2, 5, 5, 5)


def test_hot_keys_by_hand() -> None:
    """Several keys in one record count one by one; ties by name."""
    held = [record("a", b"", 1, KEYS="x y"), record("a", b"", 2, KEYS="y"), record("a", b"", 3)]
    assert plain.hot_keys(held, Facts(top=1)) == [("a", 1, "y", 2)]
    assert plain.hot_keys(held, Facts(top=5)) == [("a", 1, "y", 2), ("a", 2, "x", 1)]


def test_deliveries_by_hand() -> None:
    """The earliest first delivery of each message to each group, from when it was made."""

    def sub(at: object, group: str, name: str, again: str = "0", *, keys: str = "\x01k") -> str:
        return f"SubBefore\x01{at}\x01cn\x01{group}\x01R\x01{name}\x01{again}{keys}\x02"

    traced = [
        sub(1_100, "g", "A") + sub(1_050, "g", "A") + sub(2_000, "h", "A") + sub(9, "g", "A", "1"),
        "Pub\x011\x01cn\x01g\x01t\x01A\x02" + sub(1_300, "g", "B") + sub(5, "g", "nobody"),
        sub("x", "g", "A") + sub("", "g", "A") + sub("9" * 5000, "g", "A") + sub("-1", "g", "A"),
        sub(1, "", "A") + sub(1, "g g", "A") + sub(1, "g\n", "A") + sub("1\n", "g", "A"),
        sub(1, "g", "A", keys="") + "SubBefore\x01\x02\x02SubBefore",
    ]
    bodies = [text.encode() for text in traced]
    held = [
        record("t", b"", 1_005, UNIQ_KEY="A"),
        record("u", b"", 9_999, UNIQ_KEY="A"),
        record("%RETRY%g", b"", 3, UNIQ_KEY="B"),
        *(record(plain.TRACE_TOPIC, body, 1) for body in [*bodies, b"\xff\xfe" + bodies[0]]),
        decode(encode(plain.TRACE_TOPIC, 0, zlib.compress(bodies[1]), sys_flag=0x301)),
        record("t", b"", 1_105, UNIQ_KEY="B"),
    ]
    assert plain.delivery(held, Facts()) == [
        ("t", "g", 2, 50, 200, 200),
        ("t", "h", 1, 1_000, 1_000, 1_000),
    ]


def test_lag_reads_the_brokers_offsets(tmp_path: Path) -> None:
    """Groups, ends and backlog of the golden store whose groups had consumed."""
    origin = tables.ReportSource(unpack("07-consuming", tmp_path))
    facts = tables.facts_of(origin, now=2_000_000_000_000)
    rows = plain.lag(tables.records_of(origin), facts)
    assert ("PopA_978ac007", "Pop_978ac007", 0, 12) in [row[:4] for row in rows]
    assert all(row[5] == max(int(str(row[4])) - int(str(row[3])), 0) for row in rows)
    behind = [row for row in rows if row[5]]
    assert all(isinstance(row[6], int) and row[6] > 0 for row in behind)


@pytest.mark.parametrize("case", ["04-delay", "05-timer"])
def test_the_timeline_of_delayed_messages(case: str, tmp_path: Path) -> None:
    """Delivered ones were not early, and every state is one of three."""
    origin = tables.ReportSource(unpack(case, tmp_path))
    rows = plain.timeline(tables.records_of(origin), Facts())
    assert rows
    states = {row[3] for row in rows}
    assert states <= {"pending", "delivered", "rolled"} and "delivered" in states
    assert all(int(str(row[5])) >= -1000 for row in rows if row[3] == "delivered")


def test_a_delayed_message_that_was_put_off_again() -> None:
    """RocketMQ's timer stores a long wait anew: only the newest of them is due."""
    wheel = plain.TIMER_TOPIC
    held = [
        decode(encode(topic, 0, b"", properties=text, store_timestamp=at, log_offset=at * 100))
        for topic, at, text in (
            (wheel, 1, {"UNIQ_KEY": "a", "REAL_TOPIC": "t", "TIMER_OUT_MS": "7"}),
            (wheel, 2, {"UNIQ_KEY": "a", "REAL_TOPIC": "t", "TIMER_OUT_MS": "9"}),
            (wheel, 3, {"UNIQ_KEY": "b", "REAL_TOPIC": "t", "TIMER_OUT_MS": "9" * 5000}),
            ("t", 11, {"UNIQ_KEY": "a"}),
        )
    ]
    found = [(row[0], row[3], row[4], row[5]) for row in plain.timeline(held, Facts())]
    assert found == [
        (None, "pending", None, None),
        (7, "rolled", 11, None),
        (9, "delivered", 11, 2),
    ]


def test_a_trace_by_index_and_by_scan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both find the same record of a key; an unknown key is exit 1."""
    root = unpack("01-basic", tmp_path)
    origin = tables.ReportSource(root)
    key = next(r.keys[0] for r in tables.records_of(origin) if r.keys)
    words = ["spark", "trace", key, "--path", str(root), "-o", "json"]
    assert main(words, PLAIN) == 0
    first = json.loads(capsys.readouterr().out)["rows"]
    assert main([*words, "--scan"], PLAIN) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == first
    assert key in first[0]["key"]
    assert main(["spark", "trace", "nobody", "--path", str(root)], PLAIN) == 1


def test_calls_of_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every name works; a wrong one gets the nearest; a source is needed."""
    root = str(unpack("01-basic", tmp_path))
    for name in STATS:
        assert main(["spark", "stats", name, "--path", root], PLAIN) == 0
    assert main(["spark", "lag", "--path", root], PLAIN) == 0
    assert main(["spark", "timeline", "--path", root], PLAIN) == 0
    assert main(["spark", "stats", "rate", "--path", root], PLAIN) == 64
    assert 'the nearest is "rates"' in capsys.readouterr().err
    assert main(["spark", "lag"], PLAIN) == 64
    assert main(["spark", "lag", "--path", root, "--servers", "x:1"], PLAIN) == 64
    assert main(["spark", "sql", "SELECT 1", "--path", root], PLAIN) == 64


@pytest.mark.parametrize("case", ["08-lmq", "09-batch", "10-ipv6", "15-propcrc-v2"])
def test_plain_python_sees_the_rows_that_spark_gets(case: str, tmp_path: Path) -> None:
    """Messages of inner batches one by one, and no record twice for its light queues."""
    pytest.importorskip("pyarrow", reason="needs the extra spark")
    from twinlog.spark.source.batch import DirectoryQuery, read_task

    root = unpack(case, tmp_path)
    columns = "topic,queue_id,queue_offset,physical_offset,size,key,tags,message_id"
    given = {"path": str(root), "columns": columns, "subscribePattern": tables.NOT_LIGHT}
    tasks = DirectoryQuery.make(given).tasks(0)
    rows = [tuple(row.values()) for task in tasks for one in read_task(task)
            for row in one.to_pylist()]  # fmt: skip
    plainly = [
        (r.topic, r.queue, r.queue_offset, r.log_offset, r.size, r.key, r.tag, r.unique_id)
        for r in tables.records_of(tables.ReportSource(root))
        if r.queued
    ]
    assert Counter(rows) == Counter(plainly) and len(set(rows)) == len(rows)

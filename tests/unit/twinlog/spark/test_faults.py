"""Damage, forgery and odd stores: named, counted or harmless, never wrong rows."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from tests.stores.rows import crafted, places, read
from tests.stores.sample import SEGMENT, Ours, flip, put, sample
from twinlog.format import record
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.log_file import file_name
from twinlog.spark.errors import DataLossError, SourceError
from twinlog.spark.source.batch import DirectoryQuery, read_task
from twinlog.spark.source.stream_directory import DirectoryStream


def test_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert read(tmp_path) == []
    assert read(tmp_path, splitMode="log") == []


def test_no_store_at_all(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"twinlog: .* not a store: .* name the data directory"):
        read(tmp_path)


def test_a_bit_flipped_in_a_body(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Named with file, place and row; or left out and counted."""
    ours = sample()
    root = ours.write(tmp_path)
    good = read(root)
    victim = good[5]
    at = victim["physical_offset"] + 88 + 4
    flip(root / "commitlog" / file_name(at // SEGMENT * SEGMENT), at % SEGMENT)
    with pytest.raises(DataLossError) as refused:
        read(root)
    line = str(refused.value)
    assert f"topic t, queue {victim['queue_id']}, offset {victim['queue_offset']}" in line
    assert f"log offset {victim['physical_offset']}" in line and "CRC" in line
    with caplog.at_level(logging.WARNING):
        assert places(read(root, failOnDataLoss="false")) == sorted(
            set(places(good)) - {victim["physical_offset"]}
        )
    assert "rows 1 damaged" in caplog.text
    unchecked = read(root, checkCrc="off", columns="full")
    assert [row["crc_ok"] for row in unchecked].count(False) == 1


@pytest.mark.parametrize("byte", [3, 7, 11])
def test_a_bit_flipped_in_a_queue_entry(tmp_path: Path, byte: int) -> None:
    """Offset or size: the entry leads to no record, and the row is named."""
    root = sample().write(tmp_path)
    good = read(root)
    flip(root / "consumequeue" / "t" / "0" / file_name(0), 2 * 20 + byte)
    with pytest.raises(DataLossError, match=r"topic t, queue 0, offset 2|queue file"):
        read(root)
    kept = read(root, failOnDataLoss="false")
    assert len(kept) == len(good) - 1


def test_a_queue_whose_entries_are_shifted(tmp_path: Path) -> None:
    root = sample().write(tmp_path)
    path = root / "consumequeue" / "t" / "0" / file_name(0)
    data = path.read_bytes()
    put(path, data[20:40] + data[20:])
    with pytest.raises(DataLossError, match=r"number 1 of queue 0.*twinlog spark rebuild"):
        read(root)


@pytest.mark.slow
def test_a_record_forged_inside_a_body(tmp_path: Path) -> None:
    """It names its own place and has a good CRC; no cut ever begins there."""
    ours = Ours()
    ours.batch(b"x" * 100)
    at = len(ours.log) + 88
    forged = record.encode("t", 0, b"forged", queue_offset=1, log_offset=at)
    ours.batch(forged + b"y" * 50)
    for number in range(20):
        ours.batch(bytes([97 + number]) * 100)
    root = ours.write(tmp_path)
    for mode in ("queue", "log"):
        for size in ("1", "150", "333", "4 KiB"):
            found = [
                row for row in read(root, splitMode=mode, splitBytes=size) if row["topic"] == "t"
            ]
            assert len(found) == 22, (mode, size)
            assert all(row["body"] != b"forged" for row in found)


@pytest.mark.slow
def test_splits_of_any_size_hold_the_same_rows(tmp_path: Path) -> None:
    root = sample().write(tmp_path)
    whole = places(read(root))
    for size in (1, 91, 500, 4095, 4097, 1 << 30):
        for rows in ("1", "3", "8192"):
            assert places(read(root, splitBytes=str(size), batchRows=rows)) == whole
            assert places(read(root, splitBytes=str(size), batchBytes=rows)) == whole


@pytest.mark.slow
def test_many_small_topics_share_tasks(tmp_path: Path) -> None:
    ours = Ours()
    for number in range(300):
        ours.batch(b"only", topic=f"topic{number}")
    root = ours.write(tmp_path)
    query = DirectoryQuery.make({"path": str(root)})
    assert len(query.tasks(0)) <= len(list((root / "commitlog").iterdir()))
    assert len(read(root)) == 300


@pytest.mark.slow
def test_queues_of_ten_thousand_topics_are_planned_in_seconds(tmp_path: Path) -> None:
    """One record each; as many splits as the log asks for, not as there are queues."""
    body, log = record.encode("t", 0, b"x" * 20), bytearray()
    entry = len(body)
    for number in range(10_000):
        data = bytearray(record.encode("t", 0, b"x" * 20, log_offset=len(log)))
        put(
            tmp_path / "consumequeue" / f"topic{number}" / "0" / file_name(0),
            QUEUE_ENTRY.pack(len(log), entry, 0) + bytes(20),
        )
        log += data
    put(tmp_path / "commitlog" / file_name(0), log + bytes(100))
    query = DirectoryQuery.make({"path": str(tmp_path), "splitBytes": "400 KiB"})
    tasks = query.tasks(0)
    assert len(tasks) == 3
    assert sum(len(task.split.pieces) for task in tasks) == 10_000
    assert sum(batch.num_rows for task in tasks for batch in read_task(task)) == 10_000


def test_one_queue_with_everything_is_shared_by_many_tasks(tmp_path: Path) -> None:
    ours = Ours()
    for number in range(60):
        ours.batch(bytes([number]) * 200)
    root = ours.write(tmp_path)
    tasks = DirectoryQuery.make({"path": str(root), "splitBytes": "1 KiB"}).tasks(0)
    assert len(tasks) > 10
    sizes = [piece.stop - piece.first for task in tasks for piece in task.split.pieces]
    assert max(sizes) <= 2 * sum(sizes) // len(sizes)
    assert len(read(root, splitBytes="1 KiB")) == 60


def test_retention_between_plan_and_read(tmp_path: Path) -> None:
    root = sample().write(tmp_path)
    query = DirectoryQuery.make({"path": str(root)})
    tasks = query.tasks(0)
    (root / "commitlog" / file_name(0)).unlink()
    with pytest.raises(DataLossError, match="no longer exists; retention or a cut was faster"):
        [batch for task in tasks for batch in read_task(task)]


def test_a_start_before_what_is_kept(tmp_path: Path) -> None:
    root = sample().write(tmp_path)
    (root / "commitlog" / file_name(0)).unlink()
    (root / "twinlog" / "batches" / file_name(0)).unlink()
    with pytest.raises(DataLossError, match="topic t, queue 0: rows 0–"):
        read(root, startingOffsets='{"t":{"0":0}}')
    assert read(root, startingOffsets='{"t":{"0":0}}', failOnDataLoss="false")


def test_a_file_cut_short_while_it_is_read(tmp_path: Path) -> None:
    """No SIGBUS: fewer bytes come, and that is an error of ours."""
    root = sample().write(tmp_path)
    tasks = DirectoryQuery.make({"path": str(root)}).tasks(0)
    path = root / "commitlog" / file_name(SEGMENT)
    with path.open("r+b") as opened:
        opened.truncate(700)
    with pytest.raises(DataLossError, match="no longer exists; retention or a cut"):
        [batch for task in tasks for batch in read_task(task)]


def test_a_live_directory_ends_at_its_confirm_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from twinlog.spark.directory import view
    from twinlog.store.marks import Marks

    ours = sample()
    root = ours.write(tmp_path)
    confirm = ours.entries[10].start
    monkeypatch.setattr(view, "read_marks", lambda _: Marks(flushed=0, confirm=confirm, live=True))
    found = read(root)
    assert max(places(found)) < confirm
    assert places(found) == sorted(
        entry
        for (topic, _), held in ours.queues.items()
        if topic == "t"
        for entry, _, _ in QUEUE_ENTRY.iter_unpack(held)
        if entry < confirm
    )


@pytest.mark.parametrize("clean", [True, False])
def test_a_stopped_directory_ends_at_its_confirm_offset(tmp_path: Path, clean: bool) -> None:
    """Nobody knows what becomes of what lies above; asked for, it is shown."""
    ours = sample()
    confirm = ours.entries[10].start
    root = ours.write(tmp_path, clean=clean, confirm=confirm)
    every = sorted(
        entry
        for entry, _, _ in QUEUE_ENTRY.iter_unpack(b"".join(ours.queues["t", n] for n in (0, 1)))
    )
    assert places(read(root)) == [place for place in every if place < confirm]
    assert places(read(root, isolation="written")) == every
    shutil.rmtree(root / "consumequeue")  # recovery would make the entries
    assert places(read(root)) == [place for place in every if place < confirm]
    assert places(read(root, isolation="written")) == every
    with pytest.raises(SourceError, match="isolation written reads directories"):
        DirectoryStream.make({"path": str(root), "isolation": "written"})
    (root / "twinlog" / "checkpoint").unlink()
    assert places(read(root)) == every, "nothing tells what was confirmed"


FILTERS = [
    ({"tags": "a"}, 36),
    ({"tags": "b || c"}, 0),
    ({"keys": "none"}, 0),
    ({"range": "-3:"}, 6),
    ({"range": "+2"}, 4),
    ({"startingOffsets": '{"t":{"0":3}}', "endingOffsets": '{"t":{"0":5,"1":1}}'}, 3),
    ({"assign": '{"t":[1]}', "endingOffsets": '{"t":{"1":4}}'}, 4),
    ({"subscribePattern": "t|u"}, 36),
]


@pytest.mark.parametrize(("options", "count"), FILTERS)
def test_what_options_choose(tmp_path: Path, options: dict[str, str], count: int) -> None:
    assert len(read(sample().write(tmp_path), **options)) == count


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subscribe": "orders"},
        {"subscribe": "orders", "includeSystem": "true"},
        {"subscribePattern": "ord.*"},
        {"subscribePattern": "ord.*", "includeSystem": "true"},
        {"assign": '{"orders":[0]}'},
        {"assign": '{"orders":[1],"secret":[0,1]}', "includeSystem": "true"},
        {"includeSystem": "true"},
        {"minPartitions": "3"},
        {"tags": "a", "subscribe": "secret"},
    ],
)
def test_the_whole_log_holds_the_rows_that_queues_hold(
    options: dict[str, str], tmp_path: Path
) -> None:
    """However topics and queues are chosen; nobody gets rows that were not asked for."""
    ours = Ours()
    for number in range(8):
        for topic in ("orders", "secret"):
            ours.batch(b"x" * 100, topic=topic, queue=number % 2)
    root = ours.write(tmp_path)
    by_queue, by_log = (read(root, splitMode=mode, **options) for mode in ("queue", "log"))
    assert by_queue and places(by_log) == places(by_queue)


def test_min_partitions_divides_the_whole_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = sample().write(tmp_path)
    given = {"path": str(root), "splitMode": "log"}
    assert len(DirectoryQuery.make({**given, "minPartitions": "12"}).tasks(0)) == 3, "small enough"
    monkeypatch.setattr("twinlog.spark.plan.splits.SPLIT_BYTES_MIN", 1)
    assert len(DirectoryQuery.make(given).tasks(0)) == 3
    assert len(DirectoryQuery.make({**given, "minPartitions": "12"}).tasks(0)) >= 12


def test_starts_and_ends_by_time(tmp_path: Path) -> None:
    root = sample().write(tmp_path)
    rows = read(root)
    stamps = sorted(round(row["store_timestamp"].timestamp() * 1000) for row in rows)
    middle = stamps[len(stamps) // 2]
    late = read(root, startingTimestamp=str(middle), endingTimestamp=str(stamps[-2]))
    found = sorted(round(row["store_timestamp"].timestamp() * 1000) for row in late)
    assert found == [stamp for stamp in stamps if middle <= stamp < stamps[-2]]
    with pytest.raises(SourceError, match="holds nothing stored at or after"):
        read(root, startingTimestamp=str(stamps[-1] + 1))
    options = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(root, startingTimestamp=str(stamps[-1] + 1), **options) == []


WRONG = [
    ({"subscribes": "t"}, "there is no option subscribes; the nearest is subscribe"),
    ({"kafka.group.id": "g"}, "there is no option kafka.group.id; options of Kafka's client"),
    ({"splitBytes": "many"}, "option splitBytes is 'many', which is not a size"),
    ({"failOnDataLoss": "flase"}, "which is not true or false; the nearest is false"),
    ({"checkCrc": "recrod"}, "chunk, record or off"),
    ({"subscribe": "tt"}, "there is no topic tt; the nearest is t"),
    ({"subscribe": "t", "assign": '{"t":[0]}'}, "subscribe and assign are given"),
    ({"assign": '{"t":[9]}'}, "topic t has no queue 9; it has 0, 1"),
    ({"columns": "bodi"}, "there is no column bodi; the nearest is body"),
    ({"endingOffsets": "earliest"}, "an end cannot be"),
    ({"range": "5:3"}, "which is not a range"),
    ({"startingOffsets": '{"t":[1]}'}, "which is not JSON such as"),
    ({"maxOffsetsPerTrigger": "5"}, "is for streams only"),
    ({"isolation": "dirty"}, "option isolation is 'dirty', which is not confirmed or written"),
    ({"splitMode": "log", "range": "-5:"}, "splitMode log reads the whole log"),
    (
        {"range": "-5:", "startingOffsets": "earliest"},
        "range is given together with a start or an end",
    ),
    (
        {"range": "-5:", "startingTimestamp": "-2h"},
        "range is given together with a start or an end",
    ),
    ({"startingOffsets": '{"tt":{"0":1}}'}, "names topic tt, which is not read; the nearest is t"),
    (
        {"endingOffsets": '{"t":{"7":1}}'},
        "names queue 7 of topic t, which is not read; it has 0, 1",
    ),
    (
        {"startingOffsetsByTimestamp": '{"u":{"0":1}}', "subscribe": "t"},
        "startingOffsetsByTimestamp names topic u, which is not read; there are t",
    ),
]


@pytest.mark.parametrize(("options", "line"), WRONG)
def test_wrong_options_are_named_with_the_nearest(
    tmp_path: Path, options: dict[str, str], line: str
) -> None:
    with pytest.raises((SourceError, DataLossError)) as refused:
        read(sample().write(tmp_path), **options)
    assert line in str(refused.value)
    assert str(refused.value).startswith("twinlog: ") and "\n" not in str(refused.value)


def test_times_before_1970(tmp_path: Path) -> None:
    """An end alone says nothing about where rows begin."""
    size = len(record.encode("t", 0, b"x"))
    made = [
        record.encode("t", 0, b"x", queue_offset=n, log_offset=n * size, store_timestamp=n - 9)
        for n in range(5)
    ]
    root = crafted(tmp_path, *made)
    assert len(read(root)) == 5
    assert len(read(root, endingTimestamp="1970-01-01")) == 5

"""The real RocketMQ 5.3.3 opens stores that twinlog wrote and reads every record as we do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage import CreateTopic, Outcome, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from storage.log.log_folders import Folders, multi_folder_disk
from tests.interop.shapes import ODD, QUEUE_ENTRIES, SEGMENT_SIZE, SHAPES, encoded
from twinlog.store.reader import StoreReader

pytestmark = pytest.mark.interop

TOKEN = Token("master", 1, 1)


def write_store(root: Path, *, family: int, rounds: int = 60, more: tuple[Path, ...] = ()) -> None:
    """A store of several log and queue files, with every shape of record."""
    host = ("127.0.0.1", 7410) if family == 4 else ("::1", 7410)
    settings = StoreSettings(
        segment_size=SEGMENT_SIZE, queue_segment_entries=QUEUE_ENTRIES, store_host=host
    )
    root.mkdir()
    disk = multi_folder_disk(RealDisk(root), Folders(tuple(map(str, more))))
    store = Store.open(
        disk, settings, Who("interop", "g1", "n1", family), wall_ms=1_700_000_000_000
    )
    store.registered()
    store.take_token(TOKEN)
    store.append_epoch(
        TOKEN, epoch=1, node="n1", session=1, wall_ms=1_700_000_000_001, reason="test", by="test"
    )
    for name, queues in SHAPES.items():
        made = store.append_control(TOKEN, CreateTopic(name, queues, 1), wall_ms=1_700_000_000_002)
        assert made.outcome is Outcome.STORED, made
        store.set_confirm(store.end)
    for number in range(rounds):
        sections = [Section(*one) for one in encoded(number, family)]
        for result in store.append(TOKEN, sections, wall_ms=1_700_000_000_010 + number):
            assert result.outcome is Outcome.STORED, result
        store.set_confirm(store.end)
        while store.dispatch(1 << 20):
            pass
    store.close(clean=True)


def what_we_read(root: Path) -> dict[tuple[str, int, int], dict[str, object]]:
    """Every queued record of the directory, as our own reader finds it."""
    found = {}
    with StoreReader(root) as reader:
        for record in reader.records():
            found[record.topic, record.queue, record.queue_offset] = {
                "physical_offset": record.log_offset,
                "size": record.size,
                "sys_flag": record.sys_flag,
                "flag": record.flag,
                "born_timestamp": record.born_timestamp,
                "store_timestamp": record.store_timestamp,
                "body_crc": record.body_crc,
                "body": record.body.hex(),
                "properties": dict(record.properties),
            }
    return found


def queue_files(root: Path) -> dict[str, bytes]:
    """Queue files by their path below ``consumequeue``."""
    top = root / "consumequeue"
    files = sorted(path for path in top.rglob("*") if path.is_file())
    return {path.relative_to(top).as_posix(): path.read_bytes() for path in files}


def open_by_rocketmq(judge, root: Path) -> dict[str, object]:
    """Let RocketMQ open, read and close a directory of ours."""
    opened = judge.ask(
        "open", dir=str(root), commit_log_size=SEGMENT_SIZE, queue_size=20 * QUEUE_ENTRIES
    )
    assert opened["loaded"] is True
    found = judge.ask("dump")
    judge.ask("close")
    return {**opened, **found}


@pytest.mark.parametrize("family", [4, 6])
def test_rocketmq_reads_every_record_of_ours(judge, tmp_path: Path, family: int) -> None:
    """Offsets, tags, bodies and properties are the same on both sides, for every record."""
    write_store(tmp_path / "ours", family=family)
    ours = what_we_read(tmp_path / "ours")
    shutil.copytree(tmp_path / "ours", tmp_path / "copy")
    found = open_by_rocketmq(judge, tmp_path / "copy")

    assert found["max_offset"] == end_of(tmp_path / "ours")
    theirs = {
        (one["topic"], one["queue_id"], one["queue_offset"]): {
            name: one[name] for name in next(iter(ours.values()))
        }
        for one in found["messages"]
    }
    assert len(ours) > 500
    assert sorted(theirs) == sorted(ours)
    for place, record in ours.items():
        assert theirs[place] == record, place
    assert {"flights", ODD} <= set(found["topics"])


def test_rocketmq_goes_on_in_several_folders(judge, tmp_path: Path) -> None:
    """It reads a log that we spread over three folders, appends new files in turn; we read all."""
    root, more = tmp_path / "ours", (tmp_path / "far", tmp_path / "further")
    write_store(root, family=4, more=more)
    ours, folders = what_we_read(root), [root / "commitlog", *more]
    before = [len(list(folder.glob("[0-9]*"))) for folder in folders]
    assert min(before) >= 1
    opened = judge.ask(
        "open", dir=str(root), commit_log_size=SEGMENT_SIZE, queue_size=20 * QUEUE_ENTRIES,
        commit_logs=",".join(map(str, folders)),
    )  # fmt: skip
    assert opened["loaded"] is True
    found = judge.ask("dump")["messages"]
    theirs = {(one["topic"], one["queue_id"], one["queue_offset"]): one["body"] for one in found}
    assert theirs == {place: record["body"] for place, record in ours.items()}
    one = {"topic": "flights", "queue": 1, "body": "55" * 4000, "properties": {"KEYS": "theirs"}}
    put = judge.ask("put", messages=[one] * 60)
    assert {result["status"] for result in put["results"]} == {"PUT_OK"}
    judge.ask("close")
    after = [len(list(folder.glob("[0-9]*"))) for folder in folders]
    assert all(now > then for now, then in zip(after, before, strict=True))
    with StoreReader(root, rocketmq=True) as reader:
        assert sum("theirs" in record.keys for record in reader.records()) == 60


def end_of(root: Path) -> int:
    """End of the log as our reader finds it."""
    with StoreReader(root) as reader:
        return reader.end


def test_queues_rebuilt_by_rocketmq_are_ours_byte_for_byte(judge, tmp_path: Path) -> None:
    """RocketMQ, given only our log, writes the queue files that we wrote."""
    write_store(tmp_path / "ours", family=4)
    shutil.copytree(tmp_path / "ours", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "consumequeue")
    (tmp_path / "copy" / "abort").write_text("1")
    open_by_rocketmq(judge, tmp_path / "copy")
    ours, theirs = queue_files(tmp_path / "ours"), queue_files(tmp_path / "copy")
    assert sorted(ours) == sorted(theirs)
    assert [name for name in ours if ours[name] != theirs[name]] == []


def test_rocketmq_appends_behind_our_log(judge, tmp_path: Path) -> None:
    """RocketMQ goes on where we ended: next log offset, next queue offset, key found."""
    write_store(tmp_path / "ours", family=4, rounds=8)
    end = end_of(tmp_path / "ours")
    judge.ask(
        "open",
        dir=str(tmp_path / "ours"),
        commit_log_size=SEGMENT_SIZE,
        queue_size=20 * QUEUE_ENTRIES,
    )
    put = judge.ask(
        "put",
        messages=[
            {"topic": "flights", "queue": 1, "body": b"theirs".hex(), "properties": {"KEYS": "k9"}}
        ],
    )
    queried = judge.ask("query", topic="flights", key="k9")
    judge.ask("close")
    assert put["results"] == [{"status": "PUT_OK", "physical_offset": end, "queue_offset": 14}]
    assert queried["physical_offsets"] == [end]

"""Whatever RocketMQ read from its own stores, the reader finds: nothing more, nothing less.

``generator`` and ``notes`` say how a store was made: nothing to find in it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stores.golden import cases, manifest, unpack
from twinlog.store.damage import Harm
from twinlog.store.key_index import KeyIndex
from twinlog.store.reader import Record, StoreReader
from twinlog.store.timers import Timers


@pytest.fixture(scope="module", params=cases())
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def store(case: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreReader]:
    with StoreReader(unpack(case, tmp_path_factory.mktemp(case))) as opened:
        yield opened


def as_message(record: Record) -> dict[str, Any]:
    """A record under the manifests' names."""
    return {
        "topic": record.topic,
        "queue_id": record.queue,
        "queue_offset": record.queue_offset,
        "physical_offset": record.log_offset,
        "size": record.size,
        "magic": record.magic,
        "sys_flag": record.sys_flag,
        "flag": record.flag,
        "born_timestamp": record.born_timestamp,
        "born_host": record.born_host,
        "store_timestamp": record.store_timestamp,
        "store_host": record.store_host,
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_transaction_offset,
        "body_crc": record.body_crc,
        "body_sha256": hashlib.sha256(record.body).hexdigest(),
        "body_len": len(record.body),
        "msg_id": record.message_id,
        "properties": dict(record.properties),
        "tags_code": record.tags_code,
    }


def test_log(case: str, store: StoreReader) -> None:
    """The log begins and ends where RocketMQ's recovery says, with the same blanks."""
    log = manifest(case)["log"]
    assert (store.start, store.end) == (log["min_offset"], log["max_offset"])
    assert [list(blank) for blank in store.blanks()] == log["blanks"]
    assert not [harm for harm in store.damage if harm.harm is Harm.DAMAGE]


def test_messages(case: str, store: StoreReader) -> None:
    """Every record with every field, in log order, and whether a queue names it."""
    queued = {e.log_offset for queue in store.queues() for e in queue.entries(0)}
    found = [
        as_message(record) | {"in_cq": record.log_offset in queued} for record in store.records()
    ]
    wanted = [
        {name: value for name, value in message.items() if not name.startswith("plain_")}
        for message in manifest(case)["messages"]
    ]
    assert found == wanted


def test_queues(case: str, store: StoreReader) -> None:
    """Every queue with its offsets, its entries and its extension."""
    wanted = sorted(manifest(case)["queues"], key=lambda queue: (queue["topic"], queue["queue_id"]))
    assert [(q.topic, q.queue) for q in store.queues()] == [
        (q["topic"], q["queue_id"]) for q in wanted
    ]
    for queue, want in zip(store.queues(), wanted, strict=True):
        assert (queue.min, queue.max, queue.kind) == (want["min"], want["max"], want["type"])
        assert queue.max_log_offset == want["max_physic_offset"]
        assert [
            [e.queue_offset, e.log_offset, e.size, e.tags_code]
            + ([e.count, e.compacted] if queue.kind == "BatchCQ" else [])
            for e in queue.entries()
        ] == want["entries"]
        extensions = [
            [x.queue_offset, x.tags_code, x.store_timestamp, x.bitmap.hex()]
            for x in queue.extensions()
        ]
        assert extensions == want.get("ext", [])


def test_get_queries(case: str, store: StoreReader) -> None:
    """Reads at the edges: status, where to go on, what is found."""
    for query in manifest(case)["get_queries"]:
        pull = store.get(query["topic"], query["queue_id"], query["offset"], query["max_num"])
        found = (pull.status.value, pull.next, [entry.log_offset for entry in pull.entries])
        wanted = (query["status"], query["next_begin_offset"], query["physical_offsets"])
        assert found == wanted, query


def test_time_queries(case: str, store: StoreReader) -> None:
    """The queue offset for a time, both boundaries."""
    for query in manifest(case)["time_queries"]:
        at = (query["topic"], query["queue_id"], query["timestamp"])
        found = (store.offset_by_time(*at), store.offset_by_time(*at, upper=True))
        assert found == (query["lower"], query["upper"]), query


def test_key_queries(case: str, store: StoreReader) -> None:
    """The records under a key, newest first, collisions included."""
    for query in manifest(case)["key_queries"]:
        assert store.find_key(query["topic"], query["key"]) == query["physical_offsets"], query


def test_epochs(case: str, store: StoreReader) -> None:
    """The epoch history of a store in controller mode."""
    wanted = [(entry["epoch"], entry["start_offset"]) for entry in manifest(case)["epochs"]]
    assert store.epochs() == wanted


def as_timer(timers: Timers) -> dict[str, Any] | None:
    """The timer files under the manifests' names."""
    slots = [
        {
            "index": slot.index,
            "time_ms": slot.time_ms,
            "first_pos": slot.first,
            "last_pos": slot.last,
            "num": slot.count,
            "magic": slot.magic,
            "units": [
                {
                    "pos": unit.position,
                    "size": unit.size,
                    "prev_pos": unit.before,
                    "magic": unit.magic,
                    "write_time": unit.write_time_ms,
                    "delay_ms": unit.delay_ms,
                    "physical_offset": unit.log_offset,
                    "record_size": unit.record_size,
                    "real_topic_hash": unit.topic_hash,
                    "reserved": unit.reserved,
                }
                for unit in timers.chain(slot)
            ],
        }
        for slot in timers.slots()
    ]
    check = timers.check
    if check is None:
        return None
    return {
        "checkpoint": {
            "last_read_time_ms": check.last_read_time_ms,
            "last_timer_log_flush_pos": check.last_flush_position,
            "last_timer_queue_offset": check.last_queue_offset,
            "master_timer_queue_offset": check.master_queue_offset,
            "data_version": {
                "counter": check.counter,
                "stateVersion": check.state_version,
                "timestamp": check.timestamp,
            },
        },
        "slots": slots,
    }


def test_timers(case: str, store: StoreReader) -> None:
    """Every slot in use, each with its chain of units; the timer's checkpoint."""
    assert as_timer(Timers(store.root)) == manifest(case).get("timer")


def test_config(case: str, store: StoreReader) -> None:
    """Every config file, field for field."""
    assert store.config() == manifest(case)["config"]


def test_before_open(case: str, store: StoreReader) -> None:
    """What the archive says before anybody opens it: abort mark, checkpoint, index headers."""
    before = manifest(case)["before_open"]
    assert store.clean is not before["abort_present"]
    mark = store.checkpoint
    assert {
        "physic_msg_timestamp": mark.physic_timestamp,
        "logics_msg_timestamp": mark.logics_timestamp,
        "index_msg_timestamp": mark.index_timestamp,
        "master_flushed_offset": mark.master_flushed,
        "confirm_phy_offset": mark.confirm,
        "min_timestamp": mark.trusted_timestamp,
    } == before["checkpoint"]
    files = KeyIndex(store.root / "index", None).files
    assert [
        {
            "name": file.name,
            "size": len(file.view),
            "begin_timestamp": file.header.begin_timestamp,
            "end_timestamp": file.header.end_timestamp,
            "begin_phy_offset": file.header.begin_offset,
            "end_phy_offset": file.header.end_offset,
            "hash_slot_count": file.header.slots_used,
            "index_count": file.header.next_cell,
        }
        for file in files
    ] == before["index_files"]


REBUILT = ["01-basic", "02-rollover", "07-consuming", "10-ipv6", "13-trimmed", "15b-v2-pop"]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", REBUILT)
def test_queues_and_keys_are_made_from_the_log_alone(
    tmp_path: Path, name: str, clean: bool
) -> None:
    """Without queue and index files recovery enters every record again; so does the reader."""
    root = unpack(name, tmp_path)
    for folder in ("consumequeue", "index"):
        shutil.rmtree(root / folder)
    if not clean:  # with a checkpoint RocketMQ would read from a newer file on
        (root / "abort").touch()
        (root / "checkpoint").unlink()
    wanted = {(q["topic"], q["queue_id"]): q for q in manifest(name)["queues"] if q["entries"]}
    with StoreReader(root) as store:
        assert {(q.topic, q.queue) for q in store.queues()} == set(wanted)
        for queue in store.queues():
            want = wanted[queue.topic, queue.queue]
            assert (queue.min, queue.max) == (want["min"], want["max"])
            assert [
                [e.queue_offset, e.log_offset, e.size, e.tags_code] for e in queue.entries()
            ] == want["entries"]
        kept = {message["physical_offset"] for message in manifest(name)["messages"]}
        for query in manifest(name)["key_queries"]:
            found = store.find_key(query["topic"], query["key"])
            assert set(found) == set(query["physical_offsets"]) & kept


def test_light_queue_extension_and_batch_queue_are_cut(tmp_path: Path) -> None:
    """A queue of another kind loses what points after the end of the log, too."""
    root = unpack("09-batch", tmp_path)
    (root / "abort").touch()
    message = [m for m in manifest("09-batch")["messages"] if m["topic"].startswith("BatchCq")][-1]
    file = message["physical_offset"] // 65536 * 65536
    path = root / "commitlog" / f"{file:020d}"
    data = bytearray(path.read_bytes())
    data[message["physical_offset"] - file + 90] ^= 1
    path.write_bytes(data)
    with StoreReader(root) as store:
        assert store.end == message["physical_offset"]
        queue = store.queue(message["topic"], message["queue_id"])
        assert queue is not None
        assert queue.max == message["queue_offset"]
        assert queue.max_log_offset < store.end


def test_raw_shows_what_recovery_drops(tmp_path: Path) -> None:
    """03c loses 131 records to one flipped bit; raw goes on behind it."""
    root = unpack("03c-bad-body", tmp_path)
    kept = {record.log_offset for record in StoreReader(root).records()}
    raw = StoreReader(root, raw=True)
    offsets = {record.log_offset for record in raw.records()}
    everything = {m["physical_offset"] for m in manifest("03-crash")["messages"]}
    assert kept < offsets == everything - {578924}
    assert [(d.offset, d.length > 0) for d in raw.damage] == [(578924, True)]
    assert [d.harm for d in StoreReader(root).damage] == [Harm.TAIL]

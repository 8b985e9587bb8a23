"""Foreign bytes: noticed at a start, refused for a member, taken by an adoption."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage import CreateTopic, Outcome, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from storage.errors import ForeignStore
from storage.tools.recover import identity_of, settings_of
from tests.stores.adopted import WHO, adopt
from tests.stores.golden import manifest, unpack
from twinlog.format.batch_index import KIND_FILLER, KIND_REBUILT
from twinlog.format.inner_batches import InnerEncoder
from twinlog.format.messages import messages_of
from twinlog.format.record import RecordEncoder
from twinlog.format.system_topics import SYSTEM_TOPIC_EPOCH
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify


def logs(root: Path) -> dict[str, bytes]:
    """Log files and batch index by name."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for folder in ("commitlog", "twinlog/batches", "consumequeue")
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    "case", ["01-basic", "02-rollover", "09-batch", "10-ipv6", "13-trimmed", "15b-v2-pop"]
)
def test_rocketmqs_store_goes_on_as_ours(tmp_path: Path, case: str) -> None:
    """Every record and queue entry stays; our epoch begins in a new file; sends go on behind."""
    root = unpack(case, tmp_path)
    wanted = manifest(case)
    with pytest.raises(ForeignStore, match="did not write"):
        Store.open(RealDisk(root), StoreSettings(segment_size=65536), WHO, wall_ms=1)
    value = adopt(root)
    who = Who("adopted", "g1", "n1", value.family)
    size = value.segment_size
    assert (value.end, value.border) == (wanted["log"]["max_offset"], -(-value.end // size) * size)
    with StoreReader(root) as reader:
        found = [r.log_offset for r in reader.records() if r.log_offset < value.border]
        assert found == [message["physical_offset"] for message in wanted["messages"]]
        assert reader.epochs() == [(0, value.start), (value.epoch, value.border)]
        assert [f for f in verify(reader).findings if f.grade.value != "note"] == []
        for queue in wanted["queues"]:
            held = reader.queue(queue["topic"], queue["queue_id"])
            assert held is not None
            assert (held.min, held.max) == (queue["min"], queue["max"])
    known = dict(value.topics)
    name, queue = next(
        (q["topic"], q) for q in wanted["queues"] if q["entries"] and q["topic"] in known
    )
    store = Store.open(
        RealDisk(root), settings_of(identity_of(RealDisk(root))), who, wall_ms=value.timestamp
    )
    assert (store.boot.clean, store.damage) == (True, None)
    assert store.reads.queue_range(name, queue["queue_id"]) == (queue["min"], queue["max"])
    token = Token("master", value.epoch + 1, 1)
    store.take_token(token)
    store.append_epoch(
        token, epoch=value.epoch + 1, node="n1", session=1, wall_ms=value.timestamp,
        reason="test", by="test",
    )  # fmt: skip
    encoder = RecordEncoder(name, queue["queue_id"], family=value.family)
    encoder.add(b"ours", born_timestamp=1)
    section = Section(name, queue["queue_id"], 1, encoder.take())
    [result] = store.append(token, [section], wall_ms=value.timestamp)
    assert (result.outcome, result.queue_offset) == (Outcome.STORED, queue["max"])
    store.set_confirm(store.end)
    store.close(clean=True)


def test_batch_queues_go_on_where_rocketmq_left_them(tmp_path: Path) -> None:
    """Each message of an inner batch is read; the next one gets the number behind; restarts too."""
    root = unpack("09-batch", tmp_path)
    value = adopt(root)
    [name] = value.batched
    settings = settings_of(identity_of(RealDisk(root)))
    wanted = {q["queue_id"]: (q["min"], q["max"]) for q in manifest("09-batch")["queues"]
              if q["topic"] == name}  # fmt: skip
    for turn in (1, 2):
        store = Store.open(RealDisk(root), settings, WHO, wall_ms=value.timestamp)
        assert not store.boot.queues_rebuilt
        assert {queue: store.reads.queue_range(name, queue) for queue in wanted} == wanted
        token = Token("master", value.epoch + turn, turn)
        store.take_token(token)
        store.append_epoch(
            token, epoch=value.epoch + turn, node="n1", session=turn, wall_ms=value.timestamp,
            reason="test", by="test",
        )  # fmt: skip
        store.set_confirm(store.end)
        for queue, (start, end) in wanted.items():
            answer = store.reads.read(name, queue, start, max_bytes=1 << 20, max_records=999)
            found = messages_of(b"".join(answer.slices))
            assert [one.queue_offset for one in found] == list(range(start, end))
            encoder = InnerEncoder(RecordEncoder(name, queue), 1 << 20)
            for body in (b"a", b"b", b"c"):
                encoder.add(body, b"", sys_flag=0, born_timestamp=1, key=None, tag=None)
            section = Section(name, queue, 1, encoder.take(b"")[0])
            [result] = store.append(token, [section], wall_ms=value.timestamp)
            assert (result.outcome, result.queue_offset) == (Outcome.STORED, end)
        wanted = {queue: (start, end + 3) for queue, (start, end) in wanted.items()}
        store.set_confirm(store.end)
        store.close(clean=True)
    with StoreReader(root) as reader:
        assert verify(reader).findings == []


def test_copies_are_adopted_alike(tmp_path: Path) -> None:
    """Whatever node it is for: equal logs, equal batches, equal queues."""
    first = unpack("02-rollover", tmp_path / "a")
    second = unpack("02-rollover", tmp_path / "b")
    adopt(first)
    adopt(second, Who("adopted", "g1", "n2", 4))
    assert logs(first) == logs(second)


def test_what_is_written_over_is_kept(tmp_path: Path) -> None:
    """The old exports, and after a second adoption the whole folder of ours."""
    root = unpack("01-basic", tmp_path)
    topics = (root / "config" / "topics.json").read_bytes()
    adopt(root)
    assert (root / "cut" / "adopt-1" / "topics.json").read_bytes() == topics
    before = (root / "twinlog" / "identity").read_bytes()
    again = adopt(root, Who("other", "g1", "n1", 4))
    assert (root / "cut" / "adopt-2" / "twinlog" / "identity").read_bytes() == before
    assert again.epoch == 2
    assert again.foreign == 0
    with StoreReader(root) as reader:
        assert reader.epochs() == [(0, 0), (2, again.border)]


def test_our_batches_keep_their_borders(tmp_path: Path) -> None:
    """What was proven before is proven after, byte by byte, as epoch 0."""
    root = tmp_path / "store"
    settings = StoreSettings(segment_size=65536, queue_segment_entries=50)
    store = Store.open(RealDisk(root), settings, WHO, wall_ms=1)
    token = Token("master", 3, 1)
    store.take_token(token)
    store.append_epoch(token, epoch=3, node="n1", session=1, wall_ms=1, reason="t", by="t")
    store.append_control(token, CreateTopic("t", 1, 1), wall_ms=2)
    store.set_confirm(store.end)
    before = store.entries(0, max_bytes=1 << 20)
    store.close(clean=True)
    value = adopt(root)
    assert (value.epoch, value.proven, value.foreign) == (4, value.end, 0)
    opened = Store.open(RealDisk(root), settings, WHO, wall_ms=3)
    after = opened.entries(0, max_bytes=1 << 20, end=65536)
    opened.close(clean=False)
    assert [(e.start, e.length, e.count, e.crc) for e in after[:-1]] == [
        (e.start, e.length, e.count, e.crc) for e in before
    ]
    assert {(e.epoch, e.kind) for e in after} == {(0, KIND_REBUILT), (0, KIND_FILLER)}
    assert opened.reads.topics() == {"t": 1}


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("03-crash", "not stopped cleanly"),
        ("17-lost-queue-clean", "have no entry"),
        ("18-cqext", "extension"),
    ],
)
def test_what_cannot_be_adopted_is_left_as_it_is(tmp_path: Path, case: str, why: str) -> None:
    """Refused with the reason, and not a byte is touched."""
    root = unpack(case, tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    with pytest.raises(ForeignStore, match=why):
        adopt(root)
    assert logs(root) == logs(copy)


def test_bytes_behind_a_clean_end_are_foreign(tmp_path: Path) -> None:
    """Whoever wrote them restored every other trace: the log itself tells."""
    root = unpack("01-basic", tmp_path)
    value = adopt(root)
    with StoreReader(root) as reader:
        end = reader.end
    path = root / "commitlog" / f"{value.border:020d}"
    data = bytearray(path.read_bytes())
    data[end - value.border + 3] = 91
    path.write_bytes(data)
    with pytest.raises(ForeignStore, match="beyond the end of the clean stop"):
        Store.open(RealDisk(root), settings_of(identity_of(RealDisk(root))), WHO, wall_ms=2)


def test_damaged_timers_are_no_obstacle(tmp_path: Path) -> None:
    """A store of ours does not use RocketMQ's timer files."""
    root = unpack("05-timer", tmp_path)
    (root / "config" / "timercheck").unlink()
    assert adopt(root).records


def test_an_epoch_record_that_is_none(tmp_path: Path) -> None:
    """Whose tail it is cannot be told then: the damage is named, the tail is not passed over."""
    root = unpack("01-basic", tmp_path)
    value = adopt(root)
    path = root / "commitlog" / f"{value.border:020d}"
    data = bytearray(path.read_bytes())
    data[data.index(SYSTEM_TOPIC_EPOCH.encode())] ^= 1
    path.write_bytes(data)
    with pytest.raises(ForeignStore, match=f"{path.name} at {value.border}"):
        adopt(root)

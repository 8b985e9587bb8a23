"""Repairs: what follows from the log is made again, what was flushed is never cut."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage import CreateTopic, Damage, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from storage.errors import DirectoryInUse
from storage.tools.recover import recover
from storage.tools.repair import Kind, Repair, carry_out, plan_repair
from tests.stores.golden import manifest, unpack
from twinlog.errors import CorruptionError, UsageError
from twinlog.format.batch_index import KIND_REBUILT
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.log_file import file_name
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify

WHO = Who("repaired", "g1", "n1", 4)
SETTINGS = StoreSettings(segment_size=16384, queue_segment_entries=50)
CRASHED = ["03-crash", "03b-torn-tail", "03c-bad-body", "03d-queues-behind", "03e-queue-lost"]
REBUILT = ["01-basic", "02-rollover", "04-delay", "06-transaction", "07-consuming", "10-ipv6"]


def repair(root: Path) -> tuple[Repair, str]:
    """Repair the directory; return the plan and where things were kept."""
    with StoreReader(root) as reader:
        plan = plan_repair(reader)
        folder = carry_out(RealDisk(root), plan, reader=reader, wall_ms=1_795_000_000_000)
    return plan, folder


def files(root: Path, folder: str) -> dict[str, bytes]:
    """Files below a folder by name."""
    top = root / folder
    return {p.relative_to(top).as_posix(): p.read_bytes() for p in top.rglob("*") if p.is_file()}


@pytest.mark.parametrize("case", [*CRASHED, "17-lost-queue-clean"])
def test_rocketmqs_stores_become_what_its_recovery_would_leave(tmp_path: Path, case: str) -> None:
    """The manifest is the state after RocketMQ's recovery; 17 shows that we rebuild more."""
    root, wanted = unpack(case, tmp_path), manifest(case)
    before = files(root, ".")
    plan, folder = repair(root)
    assert plan.lost == ()
    with StoreReader(root) as reader:
        assert reader.clean
        assert (reader.end, reader.damage) == (wanted["log"]["max_offset"], [])
        assert verify(reader).findings == []
        assert [r.log_offset for r in reader.records()] == [
            m["physical_offset"] for m in wanted["messages"]
        ]
        for queue in wanted["queues"]:
            held = reader.queue(queue["topic"], queue["queue_id"])
            assert held is not None
            stored = [[e.queue_offset, e.log_offset, e.size, e.tags_code] for e in held.entries()]
            assert stored == queue["entries"]
            assert reader.stored_queues[held.topic, held.queue].max == held.max
        for query in wanted["key_queries"]:
            found = reader.find_key(query["topic"], query["key"])
            assert set(query["physical_offsets"]) <= set(found)
        if case.startswith("17"):
            lost = [q for q in reader.queues() if q.queue == 1]
            assert [q.max for q in lost] == [30]
    with StoreReader(root) as reader:
        assert plan_repair(reader).actions == ()
    kept = files(root, folder)
    for action in plan.actions:
        if action.kind is Kind.CUT and action.offset is not None:
            name = action.path.removeprefix("commitlog/")
            at = action.offset - int(name)
            data = before[action.path][at : at + action.length]
            assert kept[f"log-{action.offset:020d}"] == data


def test_a_tail_that_begins_with_a_file_leaves_no_gap(tmp_path: Path) -> None:
    """RocketMQ reads over a missing file: its log would go on behind the gap."""
    root = unpack("03-crash", tmp_path)
    size, at, last = 131072, 524288, 655360
    path = root / "commitlog" / file_name(at)
    data = bytearray(path.read_bytes())
    data[4] ^= 1  # the magic of the file's first record
    path.write_bytes(data)
    assert not any((root / "commitlog" / file_name(last)).read_bytes())  # prepared ahead
    late = root / "consumequeue" / "late" / "0" / file_name(0)
    late.parent.mkdir(parents=True)
    late.write_bytes(QUEUE_ENTRY.pack(at + 200, 100, 0).ljust(2000, b"\0"))
    plan, folder = repair(root)
    assert plan.lost == ()
    names = sorted(entry.name for entry in (root / "commitlog").iterdir())
    assert names == [file_name(start) for start in range(0, at + size * len(names[4:]), size)]
    assert names[-1] >= file_name(at)
    assert path.read_bytes() == bytes(size)
    assert files(root, folder)[f"log-{at:020d}"] == bytes(data).rstrip(b"\0")
    assert not late.exists()
    with StoreReader(root) as reader:
        assert (reader.end, reader.damage) == (at, [])
        assert verify(reader).findings == []
        assert ("late", 0) not in reader.stored_queues
        assert plan_repair(reader).actions == ()


def test_files_behind_the_end_go_with_all_that_follow_them(tmp_path: Path) -> None:
    """The end lies in the middle of a file: that stays, written ones behind it go, none between."""
    root = unpack("03-crash", tmp_path)
    at = next(m["physical_offset"] for m in manifest("03-crash")["messages"][700:])
    start = at // 131072 * 131072
    path = root / "commitlog" / file_name(start)
    data = bytearray(path.read_bytes())
    data[at - start + 4] ^= 1
    path.write_bytes(data)
    repair(root)
    names = sorted(entry.name for entry in (root / "commitlog").iterdir())
    assert names == [file_name(one) for one in range(0, start + 1, 131072)]
    with StoreReader(root) as reader:
        assert reader.end == at
        assert verify(reader).findings == []


@pytest.mark.parametrize("case", REBUILT)
def test_queues_are_rebuilt_byte_for_byte(tmp_path: Path, case: str) -> None:
    """Given only the log, the queue files are those that RocketMQ wrote."""
    root = unpack(case, tmp_path)
    theirs = files(root, "consumequeue")
    shutil.rmtree(root / "consumequeue")
    wanted = {f"{q['topic']}/{q['queue_id']}" for q in manifest(case)["queues"] if q["entries"]}
    # a queue file size stands in no file that is left, so one queue stays
    keep = sorted(wanted)[0]
    for name, data in theirs.items():
        if name.startswith(f"{keep}/"):
            path = root / "consumequeue" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    repair(root)
    ours = files(root, "consumequeue")
    assert {n: d for n, d in theirs.items() if n.rsplit("/", 1)[0] in wanted} == ours


def test_a_batch_queue_is_rebuilt_byte_for_byte(tmp_path: Path) -> None:
    """A lost one, and one with a unit that tells something else than its record."""
    root = unpack("09-batch", tmp_path)
    theirs = files(root, "batchconsumequeue")
    lost, bad, *_ = sorted({name.rsplit("/", 1)[0] for name in theirs})
    shutil.rmtree(root / "batchconsumequeue" / lost)
    path = root / "batchconsumequeue" / sorted(n for n in theirs if n.startswith(bad))[0]
    data = bytearray(path.read_bytes())
    data[46 + 35] ^= 1  # the number of the second unit's first message
    path.write_bytes(data)
    with StoreReader(root) as reader:
        assert len(verify(reader).findings) == 2
    repair(root)
    assert files(root, "batchconsumequeue") == theirs


@pytest.mark.parametrize("case", REBUILT)
def test_the_key_index_is_rebuilt_alike(tmp_path: Path, case: str) -> None:
    """The same cells and chains: every key query answers as before."""
    root = unpack(case, tmp_path)
    (next((root / "index").iterdir())).write_bytes(b"torn")
    repair(root)
    with StoreReader(root) as reader:
        for query in manifest(case)["key_queries"]:
            found = reader.find_key(query["topic"], query["key"])
            assert found == query["physical_offsets"], query


def write(root: Path, *, batches: int = 60) -> list[int]:
    """A store of ours over several files, flushed and killed; return where batches begin."""
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=1)
    token = Token("master", 1, 1)
    store.take_token(token)
    store.append_epoch(token, epoch=1, node="n1", session=1, wall_ms=1, reason="t", by="t")
    store.append_control(token, CreateTopic("t", 1, 1), wall_ms=2)
    store.set_confirm(store.end)
    for number in range(batches):
        encoder = RecordEncoder("t", 0)
        for _ in range(3):
            encoder.add(b"b" * 300, properties=b"", born_timestamp=number)
        store.append(token, [Section("t", 0, 3, encoder.take())], wall_ms=3)
        store.set_confirm(store.end)
    starts = [entry.start for entry in store.entries(0, max_bytes=1 << 24)]
    flush = store.jobs.flush_job(thorough=True)
    assert flush is not None
    for job in (flush, store.jobs.checkpoint_job()):
        job.run()
        store.jobs.finish(job)
    while store.dispatch(1 << 20):
        pass
    store.close(clean=False)
    return starts


def test_one_lost_entry_of_a_batch_index_is_proven_again(tmp_path: Path) -> None:
    """The next file's head names the index: one entry that is made anew is the old one."""
    root = tmp_path / "store"
    write(root)
    recover(RealDisk(root), wall_ms=2)
    path = root / "twinlog" / "batches" / f"{0:020d}"
    whole = path.read_bytes()
    path.write_bytes(whole[:96] + bytes(48) + whole[144:])
    plan, _ = repair(root)
    assert [action.kind for action in plan.actions] == [Kind.BATCHES, Kind.MARKS]
    assert plan.lost == ()
    ours, theirs = path.read_bytes(), whole
    for at in range(0, len(theirs.rstrip(b"\0")), 48):  # flushed and the CRC over it may differ
        assert ours[at : at + 36] == theirs[at : at + 36]
    with StoreReader(root) as reader:
        assert [f for f in verify(reader).findings if f.grade.value != "note"] == []


def test_a_lost_batch_index_is_made_from_the_records(tmp_path: Path) -> None:
    """Unproven, so of kind 2; topics come back even if every snapshot is gone."""
    root = tmp_path / "store"
    write(root)
    recover(RealDisk(root), wall_ms=2)
    (root / "twinlog" / "batches" / f"{0:020d}").unlink()
    for snapshot in (root / "twinlog" / "state").iterdir():
        snapshot.unlink()
    plan, _ = repair(root)
    assert plan.lost == ()
    with StoreReader(root) as reader:
        assert [f for f in verify(reader).findings if f.grade.value != "note"] == []
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=3)
    assert store.damage is None
    assert store.reads.topics() == {"t": 1}
    assert store.reads.queue_range("t", 0) == (0, 180)
    assert KIND_REBUILT in {e.kind for e in store.entries(0, max_bytes=1 << 24)}
    store.close(clean=False)


def test_a_quarantine_ends_once_what_was_found_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch was damaged when it was read; with its bytes back the repair has verified it."""
    root = tmp_path / "store"
    starts = write(root)
    recover(RealDisk(root), wall_ms=2)
    monkeypatch.setattr("storage.recovery.open.PROVE_BACK", 2048)
    path = root / "commitlog" / f"{0:020d}"
    good = path.read_bytes()
    path.write_bytes(good[: starts[3] + 99] + b"?" + good[starts[3] + 100 :])
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=2)
    with pytest.raises(CorruptionError):
        store.reads.read("t", 0, 0, max_bytes=1 << 20, max_records=99)
    store.close(clean=False)
    plan, _ = repair(root)
    assert starts[3] in {finding.offset for finding in plan.lost}
    assert (root / "twinlog" / "quarantine").exists(), "it is still damaged"
    path.write_bytes(good)
    plan, _ = repair(root)
    assert Kind.QUARANTINE in {action.kind for action in plan.actions}
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=3)
    assert store.damage is None
    store.close(clean=False)


def test_a_log_that_peers_call_different_is_not_repaired_here(tmp_path: Path) -> None:
    """Its own check sums cannot tell: the node is to begin with an empty directory."""
    root = tmp_path / "store"
    write(root)
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=2)
    store.mark_quarantine(Damage("", 0, store.end, "differs from n2"))
    store.close(clean=False)
    plan, _ = repair(root)
    assert [one.what for one in plan.lost] == [
        "differs from n2: start this node with an empty directory"
    ]
    assert (root / "twinlog" / "quarantine").exists()


def test_a_torn_tail_is_kept_and_cut(tmp_path: Path) -> None:
    """Ours, killed, with a batch that was never flushed and is torn."""
    root = tmp_path / "store"
    write(root)
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=2)
    token = Token("master", 2, 1)
    store.take_token(token)
    store.append_epoch(token, epoch=2, node="n1", session=1, wall_ms=1, reason="t", by="t")
    start, end = store.border_at_or_below(store.end - 1), store.end
    store.close(clean=False)
    path = root / "commitlog" / f"{start - start % 16384:020d}"
    data = bytearray(path.read_bytes())
    data[start % 16384 + 20] ^= 1
    path.write_bytes(data)
    plan, folder = repair(root)
    assert (plan.end, plan.lost) == (start, ())
    kept = files(root, folder)[f"log-{start:020d}"]
    assert kept == bytes(data[start % 16384 : start % 16384 + end - start])
    with StoreReader(root) as reader:
        assert (reader.end, reader.damage, reader.clean) == (start, [], True)


def test_damage_of_what_was_flushed_is_lost_and_left(tmp_path: Path) -> None:
    """Nothing is cut; the plan names it; a queue beside it is still put right."""
    root = tmp_path / "store"
    starts = write(root)
    recover(RealDisk(root), wall_ms=2)
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[starts[3] + 120] ^= 1
    path.write_bytes(data)
    shutil.rmtree(root / "consumequeue" / "t")
    with StoreReader(root) as reader:
        plan = plan_repair(reader)
    assert [finding.offset for finding in plan.lost] == [starts[3]]
    assert Kind.CUT not in {action.kind for action in plan.actions}
    assert path.read_bytes() == bytes(data)


def test_a_broken_key_index_of_ours_is_built_again(tmp_path: Path) -> None:
    """A cell that is no link of its chain: the files go aside and recovery builds new ones."""
    root = tmp_path / "store"
    settings = replace(SETTINGS, index_slots=100, index_cells=400)
    store = Store.open(RealDisk(root), settings, WHO, wall_ms=1)
    token = Token("master", 1, 1)
    store.take_token(token)
    store.append_epoch(token, epoch=1, node="n1", session=1, wall_ms=1, reason="t", by="t")
    store.append_control(token, CreateTopic("t", 1, 1), wall_ms=2)
    store.set_confirm(store.end)
    encoder = RecordEncoder("t", 0)
    for number in range(5):
        keys = encode_properties({"KEYS": f"key{number}"})
        encoder.add(b"b", properties=keys, born_timestamp=number)
    [result] = store.append(token, [Section("t", 0, 5, encoder.take())], wall_ms=1_700_000_000_000)
    store.set_confirm(store.end)
    store.close(clean=True)
    [path] = (root / "index").iterdir()
    data = bytearray(path.read_bytes())
    data[440 + 20 * 3 + 16 : 440 + 20 * 3 + 20] = b"\0\0\0\x01"
    path.write_bytes(data)
    plan, folder = repair(root)
    assert [action.kind for action in plan.actions] == [Kind.KEYS, Kind.MARKS]
    assert files(root, folder)[f"index/{path.name}"] == bytes(data)
    with StoreReader(root) as reader:
        assert [f for f in verify(reader).findings if f.grade.value != "note"] == []
        [found] = reader.find_key("t", "key0")
    assert found == result.log_offset


def test_a_key_index_of_another_capacity(tmp_path: Path) -> None:
    """Built again only by who says how large it is; a sound one is left alone."""
    root = unpack("01-basic", tmp_path)
    for path in (root / "index").iterdir():
        path.write_bytes(path.read_bytes() + bytes(7 * 20))  # 100 slots, 407 cells
    with StoreReader(root) as reader, pytest.raises(UsageError, match="four cells"):
        plan_repair(reader)
    with StoreReader(root, index_capacity=(100, 407)) as reader:
        assert plan_repair(reader, index_slots=100).actions == ()
        key = next(record for record in reader.records() if record.keys)
    path = min((root / "index").iterdir())
    data = bytearray(path.read_bytes())
    data[36:40] = b"\0\0\x09\0"
    path.write_bytes(data)
    with StoreReader(root, index_capacity=(100, 407)) as reader:
        plan = plan_repair(reader, index_slots=100)
        assert plan.actions[0].what.endswith("built with 100 slots and 407 cells")
        carry_out(RealDisk(root), plan, reader=reader, wall_ms=1)
    assert {path.stat().st_size for path in (root / "index").iterdir()} == {40 + 400 + 407 * 20}
    with StoreReader(root, index_capacity=(100, 407)) as reader:
        assert plan_repair(reader, index_slots=100).actions == ()
        assert key.log_offset in reader.find_key(key.topic, key.keys[0])


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    """Nothing is touched while somebody holds the lock."""
    root = unpack("03d-queues-behind", tmp_path)
    holder = RealDisk(root)
    holder.lock("test")
    before = files(root, ".")
    with StoreReader(root) as reader:
        plan = plan_repair(reader)
        with pytest.raises(DirectoryInUse):
            carry_out(RealDisk(root), plan, reader=reader, wall_ms=1)
    holder.unlock()
    assert files(root, ".") == before

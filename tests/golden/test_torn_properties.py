"""A record torn in its properties: RocketMQ keeps it without them (03f), we notice.

No checksum of RocketMQ's covers properties. Our batch index covers every byte, so the same tear in
a store of ours is the torn tail where nothing was flushed, and damage where it was.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import CreateTopic, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from tests.stores.golden import manifest, unpack
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.store.damage import Harm
from twinlog.store.reader import StoreReader

WHO = Who("golden", "g1", "n1", 4)
SETTINGS = StoreSettings(segment_size=65536, queue_segment_entries=50)
TOKEN = Token("master", 1, 1)
PROPERTIES = encode_properties({"KEYS": "k", "TAGS": "a", "text": "long enough to tear"})


def write(root: Path, *, flushed: bool) -> int:
    """A store of ten batches, killed; return where the last one begins."""
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=1)
    store.registered()
    store.take_token(TOKEN)
    store.append_epoch(TOKEN, epoch=1, node="n1", session=1, wall_ms=1, reason="test", by="test")
    store.append_control(TOKEN, CreateTopic("t", 1, 1), wall_ms=2)
    store.set_confirm(store.end)
    last = 0
    for number in range(10):
        encoder = RecordEncoder("t", 0)
        encoder.add(b"body", properties=PROPERTIES, born_timestamp=number)
        last = store.append(TOKEN, [Section("t", 0, 1, encoder.take())], wall_ms=3)[0].log_offset
    store.set_confirm(store.end)
    job = store.jobs.flush_job(thorough=True) if flushed else None
    if job is not None:
        job.run()
        store.jobs.finish(job)
        mark = store.jobs.checkpoint_job()
        mark.run()
        store.jobs.finish(mark)
    store.close(clean=False)
    return last


def tear(root: Path, offset: int) -> None:
    """Zero the last record from the sixth byte of its properties on, as in 03f."""
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[offset : offset + 4], "big")
    at = offset + size - len(PROPERTIES) + 5
    data[at : offset + size] = bytes(offset + size - at)
    path.write_bytes(data)


def test_rocketmq_keeps_a_record_without_its_properties(tmp_path: Path) -> None:
    """The manifest's last message has lost them and nobody says so."""
    last = manifest("03f-torn-properties")["messages"][-1]
    assert last["properties"] == {}
    whole = {m["physical_offset"]: m for m in manifest("03-crash")["messages"]}
    assert whole[last["physical_offset"]]["properties"]
    with StoreReader(unpack("03f-torn-properties", tmp_path)) as store:
        assert list(store.records())[-1].properties == {}
        assert store.damage == []


@pytest.mark.parametrize("flushed", [False, True])
def test_ours_is_noticed(tmp_path: Path, flushed: bool) -> None:
    """Not flushed: the batch is cut like any torn tail. Flushed: damage, which waits for a copy."""
    root = tmp_path / "store"
    last = write(root, flushed=flushed)
    tear(root, last)
    with StoreReader(root) as reader:
        [found] = reader.damage
        assert (found.harm, found.offset) == (Harm.DAMAGE if flushed else Harm.TAIL, last)
        assert all(record.log_offset < last for record in reader.records())
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=9)
    assert [one.offset for one in ([store.damage] if store.damage else [])] == [last] * flushed
    assert (store.end == last) is not flushed
    assert store.dispatched <= last
    store.close(clean=False)

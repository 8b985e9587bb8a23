"""Store directories of ours: where the log ends, what damage does, what live directories show."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.golden import unpack
from tests.stores.sample import SEGMENT, Ours, flip, put, sample
from twinlog.errors import UsageError
from twinlog.format.log_file import file_name
from twinlog.format.system_topics import SYSTEM_TOPIC_EPOCH
from twinlog.store.damage import Harm
from twinlog.store.reader import Status, StoreReader


def offsets(store: StoreReader) -> list[int]:
    return [record.log_offset for record in store.records()]


def test_a_sound_directory_shows_everything(tmp_path: Path) -> None:
    """Each record, blank, queue entry and epoch of it, and no damage."""
    ours = sample()
    store = StoreReader(ours.write(tmp_path))
    assert store.ours
    assert (store.start, store.end) == (0, ours.end)
    assert store.damage == []
    assert sum(1 for _ in store.records()) == sum(entry.count for entry in ours.entries)
    assert [size for _, size in store.blanks()] == [
        entry.length for entry in ours.entries if entry.kind == 1
    ]
    assert [epoch for epoch, _ in store.epochs()] == [1, 2]
    assert store.topics() == {SYSTEM_TOPIC_EPOCH: [0], "t": [0, 1]}
    first = store.get("t", 0, 0, 5)
    assert (first.status, first.next) == (Status.FOUND, 5)
    entry = next(iter(first.entries))
    record = store.record_at(entry.log_offset)
    assert record is not None
    assert (record.queue, record.queue_offset, record.tag) == (0, 0, "a")
    assert store.record_at(entry.log_offset + 1) is None
    assert store.record_at(ours.end) is None
    assert store.get("nobody", 0, 0).status is Status.NO_MATCHED_LOGIC_QUEUE


def test_a_window_begins_and_ends_at_records(tmp_path: Path) -> None:
    """A record belongs to a window when it begins in it."""
    store = StoreReader(sample().write(tmp_path))
    everything = offsets(store)
    low, high = everything[3], everything[9]
    assert [r.log_offset for r in store.records(low, high)] == everything[3:9]
    assert [r.log_offset for r in store.records(low + 1, high + 1)] == everything[4:10]
    assert list(store.records(high, high)) == []


@pytest.mark.parametrize("clean", [True, False])
def test_bytes_without_an_entry_are_not_the_log(tmp_path: Path, clean: bool) -> None:
    """A batch whose entry was never written was never there."""
    ours = sample()
    last = ours.entries.pop()
    store = StoreReader(ours.write(tmp_path, clean=clean))
    assert store.end == last.start
    assert [(d.offset, d.harm) for d in store.damage] == [(last.start, Harm.LEFTOVER)]
    assert last.start in offsets(StoreReader(tmp_path, raw=True))


def test_a_torn_tail_ends_the_log(tmp_path: Path) -> None:
    """A bad batch that nothing proves flushed is cut."""
    ours = sample()
    last = ours.entries[-1]
    ours.write(tmp_path, clean=False)
    flip(
        tmp_path / "commitlog" / file_name(last.start // SEGMENT * SEGMENT),
        last.start % SEGMENT + 95,
    )
    store = StoreReader(tmp_path)
    assert store.end == last.start
    assert [(d.offset, d.length, d.harm) for d in store.damage] == [
        (last.start, last.length, Harm.TAIL)
    ]


def test_a_flushed_batch_that_is_bad_cuts_nothing(tmp_path: Path) -> None:
    """Below the checkpointed flushed offset a bad batch is damage; the log goes on behind it."""
    ours = sample()
    bad = ours.entries[4]
    ours.write(tmp_path, clean=False, flushed=ours.end, confirm=ours.end)
    flip(tmp_path / "commitlog" / file_name(0), bad.start + 40)
    store = StoreReader(tmp_path)
    assert store.end == ours.end
    [damage] = store.damage
    assert (damage.offset, damage.length) == (bad.start, bad.length)
    assert (damage.name, damage.harm) == (f"commitlog/{file_name(0)}", Harm.DAMAGE)
    lost = set(offsets(StoreReader(sample().write(tmp_path / "whole")))) - set(offsets(store))
    assert all(bad.start <= offset < bad.end for offset in lost)
    assert len(lost) == bad.count


@pytest.mark.parametrize("number", [3, -1])
def test_a_bad_index_entry(tmp_path: Path, number: int) -> None:
    """Its batch cannot be proven; batches behind it are read."""
    ours = sample()
    entry = ours.entries[number]
    ours.write(tmp_path, flushed=ours.end)
    start = entry.start // SEGMENT * SEGMENT
    place = [e.start for e in ours.entries if e.start >= start].index(entry.start)
    flip(tmp_path / "twinlog" / "batches" / file_name(start), 48 * place + 9)
    store = StoreReader(tmp_path)
    [damage] = store.damage
    assert (damage.offset, damage.length) == (entry.start, entry.length)
    assert (damage.name, damage.harm) == (f"twinlog/batches/{file_name(start)}", Harm.DAMAGE)
    assert store.end == ours.end


def test_a_lost_index_file_in_the_middle(tmp_path: Path) -> None:
    """Nothing proves that file; raw shows its records all the same."""
    ours = sample()
    ours.write(tmp_path)
    (tmp_path / "twinlog" / "batches" / file_name(SEGMENT)).unlink()
    store = StoreReader(tmp_path)
    assert [(d.offset, d.length) for d in store.damage] == [(SEGMENT, SEGMENT)]
    assert store.end == ours.end
    assert any(SEGMENT <= at < 2 * SEGMENT for at in offsets(StoreReader(tmp_path, raw=True)))


def test_raw_goes_on_behind_damage_at_the_next_batch(tmp_path: Path) -> None:
    """A size field that lies does not hide the batches behind it."""
    ours = sample()
    bad = ours.entries[2]
    ours.write(tmp_path)
    flip(tmp_path / "commitlog" / file_name(0), bad.start + 2)
    raw = StoreReader(tmp_path, raw=True)
    assert [d.offset for d in raw.damage] == [bad.start]
    assert ours.entries[3].start in offsets(raw)


def test_queues_are_completed_and_cut(tmp_path: Path) -> None:
    """Lost, lagging and leading queue files end up as the log has it."""
    ours = sample()
    want = list(StoreReader(ours.write(tmp_path / "whole")).queues()[1].entries())
    behind = sample()
    for held in behind.queues.values():
        del held[-60:]
    del behind.queues["t", 1]
    store = StoreReader(behind.write(tmp_path / "behind", clean=False))
    assert list(store.queues()[1].entries()) == want
    assert [q.max for q in store.queues()] == [
        q.max for q in StoreReader(tmp_path / "whole").queues()
    ]
    ahead = sample()
    dropped = ahead.entries.pop()
    store = StoreReader(ahead.write(tmp_path / "ahead", clean=False))
    assert all(e.log_offset < dropped.start for q in store.queues() for e in q.entries())


def test_a_directory_that_is_no_store(tmp_path: Path) -> None:
    """The error says what is missing."""
    with pytest.raises(UsageError) as caught:
        StoreReader(tmp_path)
    assert caught.value.code == "not-a-store"


def test_an_empty_log(tmp_path: Path) -> None:
    """No file, an empty file and a file of zeros hold nothing and are not damaged."""
    (tmp_path / "commitlog").mkdir()
    assert (StoreReader(tmp_path).end, StoreReader(tmp_path).damage) == (0, [])
    put(tmp_path / "commitlog" / file_name(0), bytes(SEGMENT))
    put(tmp_path / "commitlog" / file_name(SEGMENT), b"")
    store = StoreReader(tmp_path)
    assert (store.end, store.damage, list(store.records())) == (0, [], [])
    assert store.queues() == []
    assert store.offset_by_time("t", 0, 5) == 0


HOLDER = """
import fcntl, sys
held = open(sys.argv[1], "r+")
fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Ours, Path]]:
    """A directory whose lock another process holds, confirmed up to its sixth batch."""
    ours = sample()
    ours.write(tmp_path, clean=False, confirm=ours.entries[5].end, flushed=1)
    put(tmp_path / "lock", b"lock")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    yield ours, tmp_path
    holder.communicate(b"")


def test_a_live_directory_ends_at_the_confirm_offset(live: tuple[Ours, Path]) -> None:
    """Bytes above the checkpointed confirm offset may still be cut, so nobody sees them."""
    ours, root = live
    store = StoreReader(root)
    assert store.marks.live
    assert store.end == ours.entries[5].end
    assert max(offsets(store)) < store.end
    assert all(e.log_offset < store.end for q in store.queues() for e in q.entries())
    assert StoreReader(root, raw=True).end > store.end


def test_the_lock_is_only_asked_for(live: tuple[Ours, Path]) -> None:
    """Reading must not take the lock of the node."""
    _, root = live
    StoreReader(root).close()
    with (root / "lock").open("r+") as other, pytest.raises(OSError, match=r"unavailable|denied"):
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)


def test_a_torn_checkpoint_counts_as_the_older_one(tmp_path: Path) -> None:
    """Of two slots the valid one counts."""
    ours = sample()
    ours.write(tmp_path, flushed=500, confirm=400)
    assert (StoreReader(tmp_path).marks.flushed, StoreReader(tmp_path).marks.confirm) == (500, 400)
    flip(tmp_path / "twinlog" / "checkpoint", 21)
    assert StoreReader(tmp_path).marks.flushed == 0


def test_flushed_bytes_without_any_entry_are_damage(tmp_path: Path) -> None:
    """An index whose last entry is gone, below the flushed offset: nothing is cut silently."""
    ours = sample()
    last = ours.entries.pop()
    store = StoreReader(ours.write(tmp_path, flushed=last.end))
    assert [(d.offset, d.length, d.harm) for d in store.damage] == [
        (last.start, last.length, Harm.DAMAGE)
    ]
    assert store.end == last.end


def test_a_filler_belongs_to_the_log(tmp_path: Path) -> None:
    """Our filler is a batch: the log ends behind it."""
    ours = sample()
    filler = next(e for e in reversed(ours.entries) if e.kind == 1)
    del ours.entries[ours.entries.index(filler) + 1 :]
    del ours.log[filler.end :]
    assert StoreReader(ours.write(tmp_path)).end == ours.end
    assert ours.end % SEGMENT == 0


def test_the_last_record_of_a_clean_rocketmq_store(tmp_path: Path) -> None:
    """A queue entry names it, so flipping its bits is damage and not the end of the log."""
    root = unpack("01-basic", tmp_path)
    whole = StoreReader(root)
    last = list(whole.records())[-1]
    flip(root / "commitlog" / file_name(0), last.log_offset + 5)
    store = StoreReader(root)
    assert [(d.offset, d.length, d.harm) for d in store.damage] == [
        (last.log_offset, last.size, Harm.DAMAGE)
    ]
    assert store.end == whole.end


def test_an_empty_file_ahead_of_a_rocketmq_log(tmp_path: Path) -> None:
    """RocketMQ allocates ahead: with an empty file behind it, a blank does belong to the log."""
    root = unpack("02-rollover", tmp_path)
    whole = StoreReader(root)
    *_, (blank, size) = whole.blanks()
    for file in whole.series.files:
        if file.start > blank:
            put(file.path, bytes(file.size))
    for folder in ("consumequeue", "index"):
        shutil.rmtree(root / folder)
    store = StoreReader(root)
    assert (store.end, store.damage) == (blank + size, [])
    for file in store.series.files:
        if file.start > blank:
            file.path.unlink()
    assert StoreReader(root).end == blank


def test_queue_places_behind_the_end_are_duplicates(tmp_path: Path) -> None:
    """A record whose place in the queue is taken already is not entered again."""
    ours = sample()
    ours.queues["t", 0][:] = ours.queues["t", 0][:20] * 30
    store = StoreReader(ours.write(tmp_path, clean=False))
    queue = store.queue("t", 0)
    assert queue is not None
    assert queue.max == 30


def test_the_oldest_epoch_keeps_its_start(tmp_path: Path) -> None:
    """After the file in which it began is gone, the next file's head still says where."""
    ours = sample()
    ours.write(tmp_path)
    for folder in ("commitlog", "twinlog/batches"):
        (tmp_path / folder / file_name(0)).unlink()
    store = StoreReader(tmp_path)
    assert store.start == SEGMENT
    assert store.epochs()[0] == (1, 0)
    assert all(queue.min > 0 for queue in store.queues() if queue.topic == "t")


def test_old_bytes_behind_a_clean_rocketmq_log(tmp_path: Path) -> None:
    """RocketMQ leaves them when it cuts; they are neither records nor damage."""
    root = unpack("01-basic", tmp_path)
    end = StoreReader(root).end
    path = root / "commitlog" / file_name(0)
    data = bytearray(path.read_bytes())
    data[end : end + 50] = data[100:150]
    put(path, data)
    store = StoreReader(root)
    assert (store.end, [(d.offset, d.harm) for d in store.damage]) == (end, [(end, Harm.LEFTOVER)])

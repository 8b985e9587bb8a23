"""Key queries on a directory: RocketMQ's time bounds, capacities, stores of ours that run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage import CreateTopic, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from tests.stores.golden import manifest, unpack
from twinlog.errors import UsageError
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.store.find import by_key
from twinlog.store.reader import StoreReader

ODD = StoreSettings(segment_size=65536, queue_segment_entries=100, index_slots=30, index_cells=100)
FOUR = StoreSettings(segment_size=65536, queue_segment_entries=100, index_slots=25, index_cells=100)


def write(root: Path, settings: StoreSettings, count: int = 90) -> Store:
    """A store with so many records of key k, still open."""
    store = Store.open(RealDisk(root), settings, Who("c", "g1", "n1"), wall_ms=1)
    token = Token("master", 1, 1)
    store.take_token(token)
    store.append_epoch(token, epoch=1, node="n1", session=1, wall_ms=1, reason="t", by="t")
    store.append_control(token, CreateTopic("t", 1, 1), wall_ms=1)
    store.set_confirm(store.end)
    for number in range(count):
        encoder = RecordEncoder("t", 0)
        properties = encode_properties({"KEYS": f"k k{number}"})
        encoder.add(b"%d" % number, properties=properties, born_timestamp=1)
        store.append(token, [Section("t", 0, 1, encoder.take())], wall_ms=1000 * number + 1)
    store.set_confirm(store.end)
    while store.dispatch(1000):
        pass
    return store


def bodies(root: Path, key: str = "k", capacity: tuple[int, int] | None = None) -> list[int]:
    """What the reader finds, newest first."""
    with StoreReader(root, index_capacity=capacity) as reader:
        return [int(record.body) for record in by_key(reader, "t", key)]


@pytest.mark.parametrize("case", ["01-basic", "02-rollover"])
def test_times_bound_as_rocketmq_bounds_them(case: str, tmp_path: Path) -> None:
    """A walk over the files by the letter of RocketMQ's loop gives the same."""
    wanted = manifest(case)
    stamps = {m["physical_offset"]: m["store_timestamp"] for m in wanted["messages"]}
    times = sorted(stamps.values())
    with StoreReader(unpack(case, tmp_path)) as reader:
        for query in wanted["key_queries"][::7]:
            at = (query["topic"], query["key"])
            everything = reader.find_key(*at)
            for begin, end in ((times[0], times[-1]), (times[len(times) // 2], times[-1])):
                found = reader.find_key(*at, begin=begin, end=end)
                assert [one for one in everything if one in found] == found
                sure = [one for one in everything if begin + 1000 <= stamps[one] <= end]
                assert set(sure) <= set(found)
                assert all(begin <= stamps[one] < end + 1000 for one in found)
            assert reader.find_key(*at, begin=times[-1] + 1) == []
            assert reader.find_key(*at, end=times[0] - 1) == []


def test_capacity_is_told_by_size_or_by_the_caller_or_refused(tmp_path: Path) -> None:
    """Four cells for each slot are known; other files are refused until somebody says."""
    write(tmp_path / "four", FOUR).close(clean=True)
    assert bodies(tmp_path / "four", "k7") == [7]
    write(tmp_path / "odd", ODD).close(clean=True)
    with pytest.raises(UsageError, match="four cells") as caught:
        bodies(tmp_path / "odd")
    assert caught.value.code == "index-capacity"
    assert "--index-slots" in str(caught.value.hint)
    assert bodies(tmp_path / "odd", "k7", (30, 100)) == [7]
    everything = list(reversed(range(90)))
    assert bodies(tmp_path / "odd", capacity=(30, 100)) == everything


@pytest.mark.parametrize("stop", ["clean", "killed", "running"])
def test_our_store_is_searched_in_any_state(tmp_path: Path, stop: str) -> None:
    """The file that grows is half in memory: the reader takes the log instead."""
    store = write(tmp_path, FOUR)
    for make in (
        lambda: store.jobs.snapshot_job(force=True), lambda: store.jobs.flush_job(thorough=True),
        store.jobs.checkpoint_job,
    ):  # fmt: skip
        job = make()
        if job is not None:
            job.run()
            store.jobs.finish(job)
    if stop != "running":
        store.close(clean=stop == "clean")
    for number in (0, 30, 60, 89):
        assert bodies(tmp_path, f"k{number}") == [number]
    assert bodies(tmp_path)[:60] == list(reversed(range(90)))[:60]
    if stop == "running":
        store.close(clean=False)


def test_without_index_files_the_log_is_enough(tmp_path: Path) -> None:
    """Somebody has removed them."""
    write(tmp_path, FOUR).close(clean=True)
    shutil.rmtree(tmp_path / "index")
    assert bodies(tmp_path, "k42") == [42]

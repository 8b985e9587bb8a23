"""What the server wrote, the reader finds, record by record; while it runs, stopped, and killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage import CreateTopic, Store
from storage.disk.disk import RealDisk
from tests.stores.workbench import (
    SETTINGS,
    TOPIC,
    WHO,
    append,
    fill,
    lead,
    run,
    section,
    settle,
    token,
)
from twinlog.format.system_topics import SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_META
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify
from twinlog.store.verify.compare import compare


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A real directory with forty sections in several files, confirmed."""
    opened = Store.open(RealDisk(tmp_path / "data"), SETTINGS, WHO, wall_ms=1000)
    lead(opened, epoch=1)
    append_topic(opened)
    fill(opened, 40)
    settle(opened)
    return opened


def append_topic(store: Store) -> None:
    store.append_control(token(1), CreateTopic(TOPIC, 4, 1), wall_ms=1000)
    settle(store)


def same(store: Store, root: Path) -> None:
    """The reader's log, queues and epochs are the store's."""
    with StoreReader(root) as reader:
        assert reader.ours
        assert (reader.start, reader.end) == (store.start, store.end)
        assert reader.epochs() == [(epoch.epoch, epoch.start) for epoch in store.epochs]
        for queue in reader.queues():
            if queue.topic == TOPIC:
                assert (queue.min, queue.max) == store.reads.queue_range(TOPIC, queue.queue)
        for record in reader.records():
            found = store.reads.record_at(record.log_offset)
            assert found is not None
            assert len(found) == record.size
        assert set(reader.topics()) == {TOPIC, SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_META}
        verdict = verify(reader)
        assert [f for f in verdict.findings if f.grade.value != "note"] == []


def test_while_it_runs(store: Store, tmp_path: Path) -> None:
    """A live directory ends at the checkpointed confirm offset."""
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    same(store, tmp_path / "data")
    confirmed = store.confirm
    append(store, section(7, queue=1, mark=99))
    with StoreReader(tmp_path / "data") as reader:
        assert reader.marks.live
        assert reader.end == confirmed < store.end


def test_after_a_clean_stop(store: Store, tmp_path: Path) -> None:
    """Nothing is found wrong, not even a note."""
    run(store, store.jobs.flush_job(thorough=True))
    store.close(clean=True)
    same(store, tmp_path / "data")
    with StoreReader(tmp_path / "data") as reader:
        assert reader.clean
        assert verify(reader).findings == []
        found = compare(reader, reader)
        assert (found.difference, found.consistent) == (None, store.end)


def test_after_a_kill(store: Store, tmp_path: Path) -> None:
    """Entered but never confirmed records are in the log, and their queue entries are made up."""
    append(store, section(7, queue=1, mark=99))
    shutil.copytree(tmp_path / "data", tmp_path / "copy")  # what a kill leaves
    with StoreReader(tmp_path / "copy") as reader:
        assert not reader.clean
        assert reader.end == store.end
        assert sum(record.body.startswith(b"99/") for record in reader.records()) == 7
        queue = reader.queue(TOPIC, 1)
        assert queue is not None
        assert queue.max == store.reads.queue_range(TOPIC, 1)[1] + 7

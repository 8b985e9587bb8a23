"""Which pages of the log are in memory: touched once ahead of the writer, let go once behind."""

from __future__ import annotations

import pytest

from storage import StoreSettings
from storage.log.page_advice import (
    CALM,
    HOT_MIN,
    TOUCH_ASYNC,
    TOUCH_MOST,
    TOUCH_SYNC,
    Paging,
)
from tests.fakes.disk import FakeDisk
from tests.fakes.files import FakeMapping
from tests.stores.workbench import append, fill, master, run, section

MiB = 1024 * 1024
SIZE = 64 * MiB


def walk(paging: Paging, end: int, *, step: int = MiB, lag: int = 0) -> tuple[list[int], list[int]]:
    """Let the log grow to ``end``; returns the pages touched and let go, in order, in MiB."""
    touched: list[int] = []
    released: list[int] = []
    for at in range(step, end + 1, step):
        if at % SIZE == step:
            paging.began(at - step, paging.first)
            touched += range((at - step) // MiB, (at - step + paging.first) // MiB)
        if (due := paging.due(at, at - lag)) is not None:
            touched += range(due.touch[0] // MiB, due.touch[1] // MiB) if due.touch else []
            released += range(due.release[0] // MiB, due.release[1] // MiB) if due.release else []
            assert due.release is None or due.release[1] <= at - max(lag, HOT_MIN)
    return touched, released


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_every_page_is_touched_once_and_not_too_early(flush: str) -> None:
    """Whole files without a gap, half a window before the writer arrives at the latest."""
    settings = StoreSettings(segment_size=SIZE, flush=flush, hot_bytes=1 << 40)
    touched, released = walk(Paging(settings, 0), 3 * SIZE)
    assert touched == list(range(3 * SIZE // MiB))
    assert released == []
    ahead = TOUCH_SYNC if flush == "sync" else TOUCH_ASYNC
    short, _ = walk(Paging(settings, 0), SIZE // 2)
    assert SIZE // 2 + ahead // 2 <= len(short) * MiB <= SIZE // 2 + ahead


def test_a_warm_store_touches_whole_files() -> None:
    settings = StoreSettings(segment_size=SIZE, warm=True, hot_bytes=1 << 40)
    touched, _ = walk(Paging(settings, 0), 2 * MiB)
    assert touched == list(range(SIZE // MiB))


def test_what_is_flushed_and_far_behind_goes_once() -> None:
    """In order, without a gap, and never nearer than what is hot."""
    settings = StoreSettings(segment_size=SIZE, hot_bytes=100 * MiB)
    _, released = walk(Paging(settings, 0), 5 * SIZE)
    assert released == list(range(len(released)))
    assert 5 * SIZE // MiB - 100 - 4 <= len(released) <= 5 * SIZE // MiB - 100


def test_no_pages_go_right_behind_a_file_change() -> None:
    """Though what is hot is a number of files: the appends there have work enough."""
    settings = StoreSettings(segment_size=SIZE, hot_bytes=2 * SIZE)
    paging = Paging(settings, 0)
    walk(paging, 3 * SIZE - MiB)
    paging.began(3 * SIZE, paging.first)
    assert paging.due(3 * SIZE + CALM - 1, 3 * SIZE) is None
    due = paging.due(3 * SIZE + CALM, 3 * SIZE)
    assert due is not None
    assert due.release is not None
    assert due.release[1] == SIZE


def test_nothing_unflushed_goes() -> None:
    settings = StoreSettings(segment_size=SIZE, hot_bytes=0)
    _, released = walk(Paging(settings, 0), 4 * SIZE, lag=200 * MiB)
    assert len(released) <= 4 * SIZE // MiB - 200


def test_after_a_cut_pages_are_looked_after_again() -> None:
    settings = StoreSettings(segment_size=SIZE, hot_bytes=100 * MiB)
    paging = Paging(settings, 0)
    walk(paging, 4 * SIZE)
    paging.cut(SIZE)
    due = paging.due(SIZE + MiB, SIZE)
    assert due is not None
    assert due.touch is not None
    assert due.touch[0] == SIZE + MiB
    assert due.release is None


def test_memory_that_may_not_be_locked_is_counted() -> None:
    """The store goes on without; the figure says how much lacks the lock."""
    disk = FakeDisk()
    settings = StoreSettings(segment_size=32 * 1024, lock_memory=True)
    disk.may_lock = False
    store = master(disk, settings=settings)
    fill(store, 12)
    run(store, store.jobs.prepare_job())
    assert store.unlocked_bytes == 32 * 1024
    disk.may_lock = True
    fill(store, 18)
    run(store, store.jobs.prepare_job())
    assert store.unlocked_bytes == 32 * 1024


def test_a_full_file_leaves_huge_pages_with_the_next_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone it is no reason for a job, which would meet the appends around the change."""
    said: list[bool] = []
    monkeypatch.setattr(FakeMapping, "expect_writes", lambda self, huge: said.append(huge))
    store = master(FakeDisk(), settings=StoreSettings(segment_size=32 * 1024))
    while store.end <= 32 * 1024:
        append(store, section(10, size=300))
    said.clear()
    assert store.jobs.prepare_job() is None
    while not said:
        append(store, section(10, size=300))
        run(store, store.jobs.prepare_job())
    assert said == [False, True]
    assert store.end < 64 * 1024


def test_a_full_file_is_unlocked_and_leaves_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        FakeMapping, "unlock", lambda self, start, end: said.append(f"unlock {start}..{end}")
    )
    monkeypatch.setattr(FakeMapping, "expect_writes", lambda self, huge: said.append(f"{huge}"))
    store = master(FakeDisk(), settings=StoreSettings(segment_size=32 * 1024, lock_memory=True))
    assert said == ["True"]
    while store.end <= 32 * 1024:
        append(store, section(10, size=300))
    said.clear()
    run(store, store.jobs.prepare_job())
    assert said == ["False", "unlock 0..32768"]


@pytest.mark.parametrize(("flush", "most"), [("sync", TOUCH_SYNC), ("async", TOUCH_MOST)])
def test_a_fast_writer_gets_a_longer_window(flush: str, most: int) -> None:
    """It comes to pages that are not there: twice as many are populated, up to a limit."""
    settings = StoreSettings(segment_size=16 * SIZE, flush=flush, hot_bytes=1 << 40)
    paging = Paging(settings, 0)
    paging.began(0, paging.first)
    windows: list[int] = []
    end = paging.first - MiB
    for _ in range(8):
        due = paging.due(end, 0)
        assert due is not None
        assert due.touch is not None
        windows.append(due.touch[1] - end)
        end = due.touch[1] + MiB  # the writer is past it already
    assert windows[-1] == most
    assert windows == sorted(windows)
    assert paging.first == most


def test_a_slow_writer_keeps_the_short_window() -> None:
    """Every page it comes to is there."""
    paging = Paging(StoreSettings(segment_size=SIZE, hot_bytes=1 << 40), 0)
    walk(paging, 5 * SIZE, step=MiB)
    assert paging.first == TOUCH_ASYNC

"""When a flush is due, by each setting."""

from __future__ import annotations

from storage import StoreSettings
from storage.flush_policy import Flush, FlushPolicy


def test_sync_flushes_for_whoever_waits_one_at_a_time() -> None:
    """Those who come while a flush runs are served by the next one."""
    policy = FlushPolicy(StoreSettings(flush="sync"), 0.0)
    assert policy.decide(0.0, flushed=10, end=10, wanted=10) is Flush.NOTHING
    assert policy.decide(0.0, flushed=0, end=10, wanted=10) is Flush.THOROUGH
    policy.began()
    assert policy.decide(0.0, flushed=0, end=20, wanted=20) is Flush.NOTHING
    assert policy.deadline(flushed=0, end=20) is None
    policy.ended(0.1, flushed=10, end=20)
    assert policy.decide(0.1, flushed=10, end=20, wanted=20) is Flush.THOROUGH


def test_async_flushes_pages_each_interval_and_everything_now_and_then() -> None:
    """500 ms with four dirty pages, 10 s with one dirty byte, at once for one who waits."""
    policy = FlushPolicy(StoreSettings(), 0.0)
    assert policy.decide(0.4, flushed=0, end=1 << 20, wanted=0) is Flush.NOTHING
    assert policy.deadline(flushed=0, end=1 << 20) == 0.5
    assert policy.decide(0.5, flushed=0, end=1 << 20, wanted=0) is Flush.PAGES
    policy.began()
    policy.ended(0.6, flushed=1 << 20, end=1 << 20)
    assert policy.deadline(flushed=5, end=5) is None
    assert policy.decide(1.2, flushed=0, end=100, wanted=0) is Flush.NOTHING
    assert policy.decide(1.2, flushed=0, end=100, wanted=50) is Flush.THOROUGH
    assert policy.decide(10.7, flushed=0, end=100, wanted=0) is Flush.THOROUGH


def test_four_dirty_pages_are_flushed_at_once_on_wish() -> None:
    """``flush_on_write`` waits for no interval."""
    for wish, found in ((True, Flush.PAGES), (False, Flush.NOTHING)):
        policy = FlushPolicy(StoreSettings(flush_on_write=wish), 0.0)
        assert policy.decide(0.1, flushed=0, end=4 * 4096 - 1, wanted=0) is Flush.NOTHING
        assert policy.decide(0.1, flushed=0, end=4 * 4096, wanted=0) is found

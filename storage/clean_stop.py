"""The clean stop of a store: what is done before its marks say so.

Everything below confirm is dispatched, everything is flushed; a snapshot, both checkpoints and the
exports are written; then the marks (`storage.recovery.close`).

Not here: who may stop it, the lock (`storage.store`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from storage.background import StoreJobs
from storage.errors import DiskFull
from storage.jobs import Job
from storage.key_index.index import CLOSE_MAX
from storage.log import reserve
from storage.log.segment import remove_ahead
from storage.log.stretches import STRETCH_MAX
from storage.recovery import close as closing
from storage.recovery.opened import Opened
from twinlog.errors import CorruptionError


def stop_cleanly(opened: Opened, jobs: StoreJobs, dispatch: Callable[[int], bool]) -> bool:
    """Bring the store to where RocketMQ may open it; returns whether it is there.

    The log is committed and has no writer any more. ``dispatch`` is that of the store.

    Raises:
        DiskError: The stop is not clean.
    """
    log, derived = opened.log, opened.derived
    while derived.dispatcher.position < opened.confirm and dispatch(STRETCH_MAX):
        pass
    _finish_index(opened)
    if opened.damage is not None:
        return False
    log.drop_ahead("close.ahead")
    remove_ahead(opened.disk, "close.ahead")
    reserve.give_up(opened.disk, "close")
    segments = log.segments.between(log.flushed, log.end)
    log.flush_to(log.end, segments, "close.log")
    log.flushed_to(log.end, segments)
    for due in (partial(jobs.snapshot_job, force=True), partial(jobs.checkpoint_job, export=True)):
        try:
            if (job := due()) is not None:
                _run(job, jobs)
        except DiskFull:
            pass  # a start rebuilds both from the log
        except CorruptionError as error:
            opened.damaged(error)
            return False
    closing.mark_clean(
        opened.disk, log, opened.run.value, confirm=derived.dispatcher.position,
        index_timestamp=derived.full_index_timestamp,
    )  # fmt: skip
    return True


def _finish_index(opened: Opened) -> None:
    """Enter what the key index lacks, if it is not too much for a stop."""
    keys = opened.derived.keys
    lag = opened.confirm - keys.position if keys is not None else 0
    if keys is None or opened.damage is not None or lag > CLOSE_MAX:
        return
    try:
        while keys.step(opened.log.segments, opened.confirm, STRETCH_MAX, 0):
            pass
    except DiskFull:
        pass  # the next start goes on
    except CorruptionError as error:
        opened.damaged(error)


def _run(job: Job, jobs: StoreJobs) -> None:
    try:
        job.run()
    finally:
        jobs.finish(job)

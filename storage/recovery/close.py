"""The last steps of a clean stop: its marks.

Everything is flushed when they are written. Order: RocketMQ's checkpoint, the clean mark with its
CRC, and last ``abort`` is removed: a start reads the marks correctly after a crash between any two
steps.

Not here: flushing and the snapshot (`storage.store`), reading the marks (`storage.recovery.open`).
"""

from __future__ import annotations

from storage.disk.disk import Disk
from storage.log.commit_log import CommitLog
from storage.marks.checkpoint import write_rocketmq_checkpoint
from storage.marks.run import ABORT, CleanMark, Run, write_clean_mark
from twinlog.format.checkpoint import Checkpoint
from twinlog.kernels import crc32c


def mark_clean(
    disk: Disk, log: CommitLog, run: Run | None, *, confirm: int, index_timestamp: int
) -> None:
    """Write the marks of a clean stop; everything below ``confirm`` is in its queue.

    ``index_timestamp`` goes into RocketMQ's checkpoint: the end of its full key-index files.

    Records beyond confirm have no queue entries yet. RocketMQ's normal recovery would skip the
    first of them, so ``abort`` stays then, with twinlog's line, which the next start recognizes: it
    makes RocketMQ enter the whole log again.

    Raises:
        DiskError: The stop is not clean.
    """
    logics = log.timestamp_before(confirm)
    value = Checkpoint(log.timestamp, logics, index_timestamp, 0, confirm)
    data = write_rocketmq_checkpoint(disk, value, "close.checkpoint")
    start_id = run.start_id if run is not None else ""
    write_clean_mark(disk, CleanMark(log.end, start_id, crc32c(data)))
    if disk.exists(ABORT) and confirm == log.end:
        disk.remove(ABORT, "close.abort")
        disk.fsync_dir(".", "close.abort.dir")

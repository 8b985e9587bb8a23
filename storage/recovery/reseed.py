"""Beginning a store again at another log offset, from a master's *seed*.

A replica that lacks bytes which its master no longer keeps cannot continue its log: no consistent
point exists. Such a replica deletes its log and starts at the master's first log file. The seed
replaces the deleted records: it is a state snapshot (`storage.recovery.snapshot`) as of that
offset, with topics, epochs, producers, and the queue offset at which each queue continues. The log
from there on arrives as ordinary batches.

Steps, each of which may be repeated after a crash:

1. the seed is written durably to ``twinlog/seed``; from here on the old content is lost;
2. log files and batch indexes are deleted, then snapshots and consume queues; the archive's mark
   falls, because this node can no longer prove bytes below the seed;
3. the seed becomes the newest snapshot, and the checkpoint names its offset as start, flushed and
   confirmed;
4. ``twinlog/seed`` is removed.

A start that finds ``twinlog/seed`` repeats steps 2 to 4 before anything else (R57).

Not here: whether a replica may give up its log (`replication.core.following`): it must not be a
member of the in-sync set or the ELR.
"""

from __future__ import annotations

from functools import partial

from storage.disk.disk import Disk
from storage.errors import DiskError
from storage.jobs import Job
from storage.log.batch_index import DIRECTORY as INDEX_DIRECTORY
from storage.log.segment import DIRECTORY as LOG_DIRECTORY
from storage.log.segment import flush_names, remove_ahead, remove_segment
from storage.marks.archive_mark import ArchiveMark
from storage.marks.checkpoint import CheckpointFile, Trusted
from storage.queues.entry_check import fetch_head
from storage.queues.queues import ConsumeQueues
from storage.recovery.opened import Opened
from storage.recovery.snapshot import Snapshot, Snapshots, decode_snapshot, encode_snapshot
from twinlog.errors import CorruptionError

SEED = "twinlog/seed"


def seed_job(opened: Opened) -> Job:
    """Return a job that makes the seed at this store's log start, encoded; None: ask again.

    Topics, groups and producers are the present ones although the seed is older, which is correct:
    all of them ignore records that they have already applied. Queue starts must be exact: a reader
    of the new replica must never see a queue begin after a record that the log still has, so each
    queue's first kept entry is looked up.

    The lookups read queue files, so they run in a worker thread. A cut or a file that is deleted
    meanwhile makes the seed stale; the job's result is None then.
    """
    log, derived, shape = opened.log, opened.derived, opened.shape
    start, check = log.start, partial(fetch_head, opened.log)
    queues = list(derived.queues)
    layers = derived.layers.confirmed
    topics, batched = tuple(layers.topics.values()), tuple(sorted(layers.batched))
    producers = tuple(derived.producers.confirmed())
    groups, messaging = tuple(layers.groups.values()), derived.messaging.values()
    deleted = tuple(layers.deleted.values())
    epochs = tuple(epoch for epoch in log.history.epochs if epoch.start < start)
    access = layers.access

    def work() -> bytes | None:
        rows: list[tuple[str, int, int, int]] = []
        try:
            for one in queues:
                first = one.kept_from(start, check)[0] if one.leads_below(start) else one.start
                rows.append((one.topic, one.queue, first, first))
        except (CorruptionError, DiskError, IndexError, ValueError):
            if shape is None or shape != opened.shape or start != log.start:
                return None
            raise
        if shape is None or shape != opened.shape or start != log.start:
            return None
        seed = Snapshot(
            start, epochs, topics, tuple(rows), producers, start=start, batched=batched,
            lowest=start, groups=groups, messaging=messaging, access=access, deleted=deleted,
        )  # fmt: skip
        return encode_snapshot(seed)

    return Job("seed", work, lambda job: None)


def decode_seed(data: bytes, segment_size: int) -> Snapshot:
    """Return the seed that a master sent.

    Raises:
        CorruptionError: Its CRC or shape is wrong, or its offset is not where a log file begins.
    """
    seed = decode_snapshot(data)
    if seed.offset % segment_size or seed.offset != seed.start:
        raise CorruptionError(f"the seed is at {seed.offset}, which is not the start of a log file")
    return seed


def write_seed(disk: Disk, seed: Snapshot) -> None:
    """Write the seed durably: step 1.

    Raises:
        DiskError: Nothing was deleted; the old content is unchanged.
    """
    disk.write_file(SEED, encode_snapshot(seed), "reseed.seed")


def read_seed(disk: Disk) -> Snapshot | None:
    """Return the seed of a reseed that a crash interrupted; None without one.

    Raises:
        CorruptionError: The file is damaged; the old content may be partly deleted.
    """
    if not disk.exists(SEED):
        return None
    try:
        return decode_snapshot(disk.read(SEED, "reseed.seed.read"))
    except CorruptionError:
        raise CorruptionError(
            f"{SEED} is damaged: the node was about to begin again with its master's log",
            hint="start the node with an empty data directory",
            file=SEED,
            offset=0,
        ) from None


def carry_out(
    disk: Disk,
    seed: Snapshot,
    *,
    queue_file_size: int,
    checkpoint: CheckpointFile,
    archive: ArchiveMark,
) -> None:
    """Do steps 2 to 4; see the module's text.

    Args:
        disk: The data directory.
        seed: The content of ``twinlog/seed``.
        queue_file_size: Bytes of a consume queue's file.
        checkpoint: Says afterwards that the log starts and ends at the seed's offset.
        archive: Lowered to the seed's offset.

    Raises:
        DiskError: The seed stays; the steps must be carried out again before the store is used.
    """
    archive.lower_to(seed.offset)
    remove_ahead(disk, "reseed.ahead")
    names = {*disk.list(LOG_DIRECTORY), *disk.list(INDEX_DIRECTORY)}
    for start in sorted((int(name) for name in names if name.isdigit()), reverse=True):
        remove_segment(disk, start, "reseed.remove")
    flush_names(disk, "reseed")
    snapshots = Snapshots(disk)
    snapshots.cut(-1)
    ConsumeQueues(disk, queue_file_size, frozenset()).reset()
    # Snapshot before checkpoint: a checkpoint that starts the log here is only readable with the
    # state that the deleted files held.
    snapshots.write(seed, "reseed.snapshot")
    checkpoint.start = seed.offset
    checkpoint.untidy = True
    checkpoint.write(Trusted(seed.offset, seed.offset), "reseed.checkpoint")
    disk.remove(SEED, "reseed.clear")
    disk.fsync_dir("twinlog", "reseed.clear.dir")

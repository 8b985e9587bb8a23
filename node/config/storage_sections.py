"""The sections of ``cluster.toml`` about the log and its files: storing, deleting, archiving.

Units and rules: ``node.config.sections``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node.config.section import Section
from node.config.values import (
    Hours,
    OptionalSize,
    Seconds,
    SecondsOrNone,
    Share,
    Size,
    SizeOrNone,
)

KiB, MiB, GiB = 1024, 1024**2, 1024**3


class StorageSection(Section):
    """The log and its files."""

    segment_size: Size = Field(
        1 * GiB,
        ge=64 * KiB,
        le=2 * GiB - 4096,
        multiple_of=4096,
        description="Size of one log file; the default is RocketMQ's. The same for the whole "
        "group; fixed when a store is created.",
    )
    flush: Literal["sync", "async", "async-buffered"] = Field(
        "async",
        description="sync: every acknowledgement waits for the disk. async: flushed in the "
        "background. async-buffered: a master appends to a memory pool first and writes the file "
        "in the background; the least durable: `written` is answered from memory, marked "
        "`buffered`, and lost if the process is killed.",
    )
    flush_timeout: Seconds = Field(
        5.0,
        ge=0.1,
        le=600,
        description="How long a `flushed` send waits for the disk; then the answer is "
        '"stored, not known flushed".',
    )
    flush_interval: Seconds = Field(
        0.5, ge=0.01, le=60, description="async: longest time between two flushes under load."
    )
    hot_memory: OptionalSize = Field(
        None,
        ge=64 * MiB,
        le=1024 * GiB,
        description="How much of the log, counted from its end, is kept in memory; older bytes "
        "are released once they are flushed. Reads of released bytes that must wait for the disk "
        "are redirected from a master to a slave. The default is 40 % of the machine's memory, as "
        "in RocketMQ; set less if several nodes share a machine.",
    )
    warm: bool = Field(
        False,
        description="Make the whole next log file present in memory in advance, not only the "
        "pages the writer needs next: no page faults under load, one file of memory more.",
    )
    lock_memory: bool = Field(
        False,
        description="Lock the pages ahead of the writer in memory. What exceeds RLIMIT_MEMLOCK "
        "is not locked; the node warns once and counts the bytes.",
    )
    flush_on_write: bool = Field(
        False,
        description="async: flush as soon as 4 pages are dirty, not at a fixed rate; RocketMQ's "
        "`flushCommitLogTimed=false`.",
    )
    buffer_pool: Size = Field(
        64 * MiB,
        ge=1 * MiB,
        le=16 * GiB,
        multiple_of=4096,
        description="async-buffered: memory for batches not yet written to the file, locked if "
        "RLIMIT_MEMLOCK allows it. When it is full, batches are written to the file directly.",
    )
    commit_interval: Seconds = Field(
        0.2,
        ge=0.01,
        le=60,
        description="async-buffered: how long batches may stay only in memory; 4 full pages are "
        "written at once.",
    )
    message_size_max: Size = Field(
        4 * MiB,
        ge=1 * KiB,
        le=4 * MiB,
        description="Largest body of a message; the default is RocketMQ's.",
    )
    queue_segment_entries: int = Field(
        300_000, ge=64, le=10_000_000, description="Entries of 20 bytes in one consume-queue file."
    )
    key_index: bool = Field(
        True, description="Maintain the index that finds messages by key or unique id."
    )
    key_index_slots: int = Field(
        5_000_000,
        ge=16,
        le=50_000_000,
        description="Hash slots of a new index file, RocketMQ's default; each takes 4 bytes of "
        "memory.",
    )
    key_index_cells: int = Field(
        20_000_000,
        ge=64,
        le=100_000_000,
        description="Keys that fit into a new index file, 20 bytes of disk each; four per slot, "
        "so that both numbers follow from the length of the file.",
    )
    scrub_rate: SizeOrNone = Field(
        16 * MiB,
        ge=64 * KiB,
        le=16 * GiB,
        description="How much of the sealed log files is compared with its check sums in a second; "
        "none: only what is read. It waits while the node is busy.",
    )
    scrub_every: Seconds = Field(
        86400.0,
        ge=1,
        le=365 * 86400,
        description="How often a comparison of all sealed files begins, at most.",
    )
    disk_clean: Share = Field(
        0.75,
        ge=0.01,
        le=1,
        description="Disk usage above which expired files are deleted at any time of day.",
    )
    disk_force: Share = Field(
        0.85,
        ge=0.01,
        le=1,
        description="Disk usage above which the oldest files are deleted whatever their age.",
    )
    disk_refuse: Share = Field(
        0.90, ge=0.01, le=1, description="Disk usage above which writes are refused; reads go on."
    )
    drill_faults: bool = Field(
        False,
        description="For `twinlog drill` only: obey DATA/twinlog/drill-faults.json, which makes "
        "the disk slow, full or faulty, or the clock wrong, and note what was flushed.",
    )


class RetentionSection(Section):
    """What is deleted, and when. Nothing above the older state snapshot is ever deleted."""

    keep: SecondsOrNone = Field(
        72 * 3600.0,
        ge=1,
        description="A log file may be deleted when its newest record is older; none: never delete "
        "by age.",
    )
    keep_bytes: SizeOrNone = Field(
        None,
        ge=64 * KiB,
        description="The oldest files of a longer log may be deleted; none: no limit.",
    )
    delete_at: Hours = Field(
        "04:00", description="Hours of the day, by the node's clock, in which files are deleted."
    )
    archive: bool = Field(
        False,
        description="Delete only what an archive is proven to have, even if the disk is full.",
    )
    erase: bool = Field(
        False,
        description="Overwrite files with zeros before deleting them. A solid-state disk, a "
        "copy-on-write file system, a snapshot or a backup may still keep the old bytes: where "
        "that matters, encrypt the disk.",
    )
    look: Seconds = Field(
        10.0,
        ge=0.1,
        le=3600,
        description="How often to check whether files may be deleted and how full the disk is.",
    )
    pause: Seconds = Field(0.1, ge=0, le=3600, description="Pause between two file deletions.")
    hold: Seconds = Field(
        120.0,
        ge=0,
        le=86400,
        description="How long a deletion waits for readers that use the file; then its name is "
        "removed, and they keep its bytes until they finish.",
    )
    wait_for_slaves: Seconds = Field(
        3600.0,
        ge=0,
        le=30 * 86400,
        description="How long the bytes that a slave lacks are kept after it was last heard from.",
    )
    keep_cut: Seconds = Field(
        7 * 86400.0,
        ge=0,
        le=365 * 86400,
        description="How long unconfirmed bytes that were cut off are kept in a separate folder.",
    )


class ArchiveSection(Section):
    """What `twinlog spark archive --follow` does with the sealed files of the log."""

    every: Seconds = Field(
        600.0, ge=1, le=30 * 86400, description="Pause between the end of a run and the next one."
    )
    to: str = Field(
        "", description="Directory of the archive; empty: given to the command with `--to`."
    )

"""Mutants of the store.

Names are those of docs/protocol.md; see `tests.sim.mutants.mutant`. Where the rule is about a call
that the disk carries out, the mutant takes the call away at the place that makes it.

Not here: mutants of replication (`tests.sim.mutants.replication`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from storage import scrub
from storage.append import appender
from storage.append.appender import Appender
from storage.append.receiver import Receiver
from storage.disk.disk import Disk
from storage.key_index.index import Flush as IndexFlush
from storage.key_index.index import KeyIndex
from storage.log.batch_index import BatchIndex, index_path
from storage.log.commit_log import CommitLog
from storage.log.epoch_history import EpochRecord
from storage.log.segment import Segment, log_path
from storage.marks.checkpoint import CheckpointFile, Trusted
from storage.queues.consume_queue import Unflushed
from storage.recovery import open as opening
from storage.recovery import truncate
from storage.recovery.log_end import Found
from storage.recovery.log_end import Plan as RecoveryPlan
from storage.retention.removal import LogHead
from storage.scrub import StoreScrub
from storage.state.layers import Layers
from storage.state.producers import Producers
from storage.state.sections import Outcome, Section, SectionResult
from storage.store import Store
from storage.token import Token
from tests.fakes.disk import FakeDisk
from tests.fakes.files import FakeMapping
from tests.sim.mutants.mutant import Mutant, always, bend
from tests.sim.patches import Patches
from tests.sim.stories import tales
from tests.sim.swarm import Plan
from twinlog.format.batch_index import KIND_EPOCH, KIND_REBUILT, KIND_RECORDS, BatchEntry
from twinlog.kernels import crc32c, verify_records

_POWER = bend(power=0.3, failover=0.15, kill=0.1)


def _entry_before_bytes(patches: Patches) -> None:
    """A crash between entry and bytes: the entry is there, the bytes are not."""

    def place(self: Receiver, entry: BatchEntry, data: memoryview) -> EpochRecord | None:
        log = self._log
        last = log.segments.last
        assert last is not None
        index = last.growing
        index.append(replace(entry, flushed=log.flushed).pack(), "log.entry")
        log._disk.exists("anything")
        index._disk.read_at(index.path, 0, 1, "log.between")
        del index._raw[-48:]
        return real(self, entry, data)  # type: ignore[no-any-return]

    real = Receiver.__dict__["_place"]
    patches.set(Receiver, "_place", place)
    patches.set(Receiver, "alone", always(False))


def _flushed_without_index(patches: Patches) -> None:
    def flush(self: Segment, start: int, end: int, op: str) -> None:
        self.mapping.flush_range(start - self.start, end - self.start, op)

    patches.set(Segment, "flush", flush)


def _no_zero_beyond_end(patches: Patches) -> None:
    real = FakeMapping.__dict__["zero"]

    def zero(self: FakeMapping, start: int, end: int, op: str) -> None:
        if op != "open.log.zero":
            real(self, start, end, op)

    patches.set(FakeMapping, "zero", zero)


def _no_wipe(patches: Patches) -> None:
    patches.set(CommitLog, "wipe", always(None))


def _index_not_cut(patches: Patches) -> None:
    patches.set(truncate, "_zero_index", always(None))


def _lazy_trunc(patches: Patches) -> None:
    real = FakeMapping.__dict__["flush_range"]

    def flush_range(self: FakeMapping, start: int, end: int, op: str) -> None:
        if not op.startswith("cut."):
            real(self, start, end, op)

    patches.set(FakeMapping, "flush_range", flush_range)
    real_fsync = FakeDisk.__dict__["fsync"]

    def fsync(self: FakeDisk, path: str, op: str) -> None:
        if op != "cut.index.fsync":
            real_fsync(self, path, op)

    patches.set(FakeDisk, "fsync", fsync)


def _no_intent(patches: Patches) -> None:
    patches.set(truncate, "read_intent", always(None))


def _no_second_token_check(patches: Patches) -> None:
    def check(self: Store, token: Token) -> None:
        return None

    patches.set(Store, "_check", check)


def _map_unverified(patches: Patches) -> None:
    def place(self: Receiver, entry: BatchEntry, data: memoryview) -> EpochRecord | None:
        view = self._log.window(entry.start, len(data))
        view[:] = data
        return self._epoch(entry, view) if entry.kind == KIND_EPOCH else None

    patches.set(Receiver, "_place", place)
    patches.set(Receiver, "alone", always(False))


def _always_clean(patches: Patches) -> None:
    patches.set(opening, "decide_clean", always(""))


def _never_clean(patches: Patches) -> None:
    patches.set(opening, "decide_clean", always("mutant"))


def _trust_entries(patches: Patches) -> None:
    real = opening.__dict__["plan"]

    def plan(*args: object, **names: object) -> RecoveryPlan:
        names["check"] = always(None)
        return real(*args, **names)  # type: ignore[no-any-return]

    patches.set(opening, "plan", plan)


def _scan_tail(patches: Patches) -> None:
    """A start believes records behind the last entry, too, and makes entries for them."""
    real = opening.__dict__["_found"]

    def found(disk: Disk, start: int) -> Found:
        file: Found = real(disk, start)
        entries = opening._stripped(file.entries)
        last = BatchEntry.unpack(entries[-48:])
        if last is None or last.end >= start + file.size or not file.size:
            return file
        data, end = disk.read(log_path(start), "open.scan"), last.end
        made: list[bytes] = []
        while (size := int.from_bytes(data[end - start : end - start + 4], "big")) > 90:
            record = data[end - start : end - start + size]
            if verify_records(record, 0, len(record), end)[2] or len(record) < size:
                break
            stamp = last.store_timestamp
            one = BatchEntry(end, size, 1, last.epoch, crc32c(record), stamp, KIND_REBUILT, 0)
            made.append(one.pack())
            end += size
        if not made:
            return file
        disk.write_at(index_path(start), len(entries), b"".join(made), "open.scan")
        return real(disk, start)  # type: ignore[no-any-return]

    patches.set(opening, "_found", found)


def _rebuild_from_confirm(patches: Patches) -> None:
    def rebuild(self: Store) -> None:
        self._appender.rebuild(self.confirm)
        self._rebuilt = True

    patches.set(Store, "rebuild_pending", rebuild)


def _no_rebuild(patches: Patches) -> None:
    def rebuild(self: Store) -> None:
        self._appender.rebuild(self._log.end)
        self._rebuilt = True

    patches.set(Store, "rebuild_pending", rebuild)


def _one_layer_dedupe(patches: Patches) -> None:
    def forget(self: Producers) -> None:
        self._confirmed.update(self._pending)
        self._pending.clear()

    patches.set(Producers, "forget_pending", forget)


def _no_dedupe(patches: Patches) -> None:
    patches.set(Appender, "_judge", always(None))


def _split_producer_batch(patches: Patches) -> None:
    real = Appender.__dict__["append"]

    def append(
        self: Appender, sections: Sequence[Section], wall_ms: int, *, system: bool = False
    ) -> list[SectionResult]:
        results: list[SectionResult] = []
        for section in sections:
            size = int.from_bytes(bytes(section.data[:4]), "big")
            head = replace(section, count=section.count, data=section.data)
            if section.count < 2:
                results += real(self, [head], wall_ms, system=system)
                continue
            room = self._settings.segment_size
            whole = real(self, [section], wall_ms, system=system)
            if whole[0].outcome is Outcome.STORED:
                _split_last(self._log, size, room)
            results += whole
        return results

    patches.set(Appender, "append", append)


def _split_last(log: CommitLog, size: int, room: int) -> None:
    """Replace the last batch by two, the first of which has ``size`` bytes."""
    last = log.segments.last
    assert last is not None
    index = last.growing
    entry = index.entry(index.count - 1)
    if entry.length <= size or entry.kind != 0 or entry.length >= room:
        return
    data = last.view(entry.start, entry.end)
    first = replace(entry, length=size, count=1, crc=crc32c(data[:size]))
    second = replace(
        entry, start=entry.start + size, length=entry.length - size, count=entry.count - 1,
        crc=crc32c(data[size:]),
    )  # fmt: skip
    del index._raw[-48:]
    index.append(first.pack() + second.pack(), "log.append")


def _queues_not_flushed(patches: Patches) -> None:
    patches.set(Unflushed, "flush", always(None))


def _snapshot_above_flushed(patches: Patches) -> None:
    real = CommitLog.__dict__["flush_to"]

    def flush_to(self: CommitLog, *rest: object) -> None:
        if "snapshot.log" not in rest:
            real(self, *rest)

    patches.set(CommitLog, "flush_to", flush_to)


def _filler_of_old_epoch(patches: Patches) -> None:
    real = CommitLog.fill_up

    def fill_up(self: CommitLog, epoch: int, op: str) -> None:
        real(self, self.history.last, op)

    patches.set(CommitLog, "fill_up", fill_up)


def _names_not_flushed(patches: Patches) -> None:
    from storage.log import commit_log

    patches.set(commit_log, "flush_names", always(None))


def _no_take_back(patches: Patches) -> None:
    patches.set(BatchIndex, "take_back", always(None))


def _dispatch_beyond_confirm(patches: Patches) -> None:
    def dispatch(self: Store, max_bytes: int, *, wall_ms: int = 0) -> bool:
        return self._opened.derived.dispatcher.step(self.end, max_bytes)

    patches.set(Store, "dispatch", dispatch)


def _checkpoint_leads(patches: Patches) -> None:
    real = CheckpointFile.__dict__["write"]

    def write(self: CheckpointFile, trusted: Trusted, op: str) -> None:
        real(self, replace(trusted, confirm=trusted.flushed), op)

    patches.set(CheckpointFile, "write", write)


def _flush_without_trace(patches: Patches) -> None:
    patches.set(CheckpointFile, "trace", always(None))


def _receiver_splits(patches: Patches) -> None:
    real = Receiver.__dict__["_write"]

    def write(self: Receiver, ready: list[BatchEntry]) -> None:
        last = self._log.segments.last
        assert last is not None
        split: list[BatchEntry] = []
        for entry in ready:
            data = last.view(entry.start, entry.end)
            size = int.from_bytes(bytes(data[:4]), "big")
            if entry.kind != KIND_RECORDS or entry.count < 2 or size >= entry.length:
                split.append(entry)
                continue
            first = replace(entry, length=size, count=1, crc=crc32c(data[:size]))
            rest = replace(
                entry, start=entry.start + size, length=entry.length - size,
                count=entry.count - 1, crc=crc32c(data[size:]),
            )  # fmt: skip
            split += [first, rest]
        ready[:] = split
        real(self, ready)

    patches.set(Receiver, "_write", write)


def _late_pool_commit(patches: Patches) -> None:
    """The pool outlives the role that filled it, and is committed under the next one."""

    def buffer(self: CommitLog, wanted: bool) -> None:
        self._buffering, self._direct = wanted and self._pool is not None, False

    patches.set(CommitLog, "buffer", buffer)


def _buffering(change: Callable[[Plan], None]) -> Callable[[Plan], None]:
    def bent(plan: Plan) -> None:
        change(plan)
        plan.flush = "async-buffered"

    return bent


def _retention_below_snapshot(patches: Patches) -> None:
    def limit(self: LogHead, confirm: int) -> int:
        return min(confirm, self._log.flushed)

    patches.set(LogHead, "limit", limit)


def _retention_without_mark(patches: Patches) -> None:
    patches.set(CheckpointFile, "advance", always(None))


def _keys_not_cut(patches: Patches) -> None:
    patches.set(KeyIndex, "cut", always(None))


def _keys_not_flushed(patches: Patches) -> None:
    patches.set(IndexFlush, "run", always(None))


def _keys_lag(patches: Patches) -> None:
    patches.set(KeyIndex, "catch_up", always(True))


def _numbers_count_records(patches: Patches) -> None:
    patches.set(Layers, "batched", always(frozenset()))


def _lights_not_rebuilt(patches: Patches) -> None:
    patches.set(appender, "light_runs", always(()))


def _repair_unproven(patches: Patches) -> None:
    patches.set(scrub, "is_copy", always(True))
    patches.set(StoreScrub, "is_repaired", always(True))


def _with_lights(change: Callable[[Plan], None]) -> Callable[[Plan], None]:
    def bent(plan: Plan) -> None:
        change(plan)
        plan.lights = True

    return bent


def _with_batches(change: Callable[[Plan], None]) -> Callable[[Plan], None]:
    def bent(plan: Plan) -> None:
        change(plan)
        plan.batches = True

    return bent


def _of_two(change: Callable[[Plan], None]) -> Callable[[Plan], None]:
    """Rot needs a second copy of what is confirmed."""

    def bent(plan: Plan) -> None:
        change(plan)
        plan.in_sync_min = min(2, len(plan.nodes))

    return bent


MUTANTS = (
    Mutant("entry_before_bytes", "an entry is written after its bytes", _entry_before_bytes,
           bend(crash_in_call=0.6)),
    Mutant("flushed_without_index", "flushed covers log and index", _flushed_without_index, None),
    Mutant("flush_without_trace", "what counts as flushed is known to a start",
           _flush_without_trace, None, tale=tales.the_last_flush_rots),
    Mutant("names_not_flushed", "flushed covers the files' names", _names_not_flushed, None),
    Mutant("no_zero_beyond_end", "a start zeroes what lies beyond the end", _no_zero_beyond_end,
           _POWER),
    Mutant("no_take_back", "a start zeroes entries beyond the end", _no_take_back, _POWER),
    Mutant("no_wipe", "an abandoned receive leaves zeros", _no_wipe,
           bend(damage=0.05, stream_cut=0.2, disk_full=0.1)),
    Mutant("index_not_cut", "a cut zeroes the index", _index_not_cut,
           bend(failover=0.3, partition=0.3, pause=0.2, kill=0.1)),
    Mutant("lazy_trunc", "a cut is durable", _lazy_trunc,
           bend(failover=0.4, partition=0.3, pause=0.2, power=0.4)),
    Mutant("no_intent", "an interrupted cut is finished", _no_intent,
           bend(failover=0.4, partition=0.4, crash_in_call=0.6)),
    Mutant("no_second_token_check", "an ended writer writes nothing", _no_second_token_check,
           bend(failover=0.4, partition=0.3, pause=0.3, disk_full=0.2, late_writer=0.5)),
    Mutant("map_unverified", "received bytes are compared with their CRC", _map_unverified,
           bend(damage=0.05)),
    Mutant("always_clean", "a start after a loss of power is not clean", _always_clean, _POWER),
    Mutant("late_pool_commit", "the end of a role discards its memory pool", _late_pool_commit,
           _buffering(bend(failover=0.4, pause=0.2, partition=0.3))),
    Mutant("never_clean", "a start after a kill is clean", _never_clean, bend(kill=0.2)),
    Mutant("trust_entries", "recovery compares bytes with their CRC", _trust_entries, _POWER),
    Mutant("scan_tail", "a start believes entries, not records", _scan_tail,
           bend(crash_in_call=0.6, failover=0.2)),
    Mutant("rebuild_from_confirm", "the pending layer is rebuilt from the dispatcher",
           _rebuild_from_confirm, bend(disk_full=0.4, failover=0.4)),
    Mutant("no_rebuild", "the pending layer is rebuilt at promotion", _no_rebuild,
           bend(failover=0.4, pause=0.2)),
    Mutant("numbers_count_records", "a new master numbers a batch topic by its messages",
           _numbers_count_records, _with_batches(bend(failover=0.4, pause=0.2))),
    Mutant("lights_not_rebuilt", "a new master numbers light queues by the log",
           _lights_not_rebuilt, _with_lights(bend(failover=0.4, pause=0.2))),
    Mutant("one_layer_dedupe", "a cut drops what was pending", _one_layer_dedupe,
           bend(failover=0.4, partition=0.4, pause=0.3)),
    Mutant("no_dedupe", "a section is stored once", _no_dedupe, bend(failover=0.3, pause=0.3)),
    Mutant("split_producer_batch", "a section is one batch", _split_producer_batch,
           bend(quality="durable", power=0.4, blackout=0.3, failover=0.2)),
    Mutant("queues_not_flushed", "a snapshot's queues are durable", _queues_not_flushed, _POWER),
    Mutant("snapshot_above_flushed", "a snapshot covers flushed bytes only",
           _snapshot_above_flushed, _POWER),
    Mutant("filler_of_old_epoch", "a new master's filler is of its epoch", _filler_of_old_epoch,
           bend(failover=0.5, partition=0.3, pause=0.2)),
    Mutant("checkpoint_leads", "the checkpointed confirm offset never leads", _checkpoint_leads,
           bend(failover=0.4, kill=0.3, partition=0.3), alone="ConfirmNeverFalls"),
    Mutant("receiver_splits", "batches have the same borders on every node", _receiver_splits,
           bend(failover=0.2), alone="BatchesEqual"),
    Mutant("retention_below_snapshot", "what the older snapshot needs is kept",
           _retention_below_snapshot, bend(keep_files=1)),
    Mutant("retention_without_mark", "the start is durable before a file goes",
           _retention_without_mark, bend(keep_files=1, kill=0.2)),
    Mutant("keys_lag", "a query sees every confirmed record", _keys_lag, bend(failover=0.1),
           alone="KeysFindRecords"),
    Mutant("keys_not_cut", "a cut takes its entries out of the key index", _keys_not_cut,
           bend(failover=0.4, partition=0.3),
           redundant="nothing above confirm is entered, and a cut below it is a damaged store's"),
    Mutant("keys_not_flushed", "the index of a snapshot is durable", _keys_not_flushed,
           bend(power=0.3, restart=0.3, kill=0.1)),
    Mutant("repair_unproven", "a batch is repaired with what its own entry says", _repair_unproven,
           _of_two(bend(rot=1.0, damage=0.4))),
    Mutant("dispatch_beyond_confirm", "queues end at the confirm offset",
           _dispatch_beyond_confirm, bend(failover=0.3, partition=0.3)),
)  # fmt: skip

"""The store: everything a node keeps on its disk.

Synchronous, without tasks or threads of its own. One owner calls it from the event loop; only
`Job.run` may run elsewhere (`storage.jobs`). Positions and their order are explained in `storage`.

One writer: bytes are written under a `Token` (role, epoch, session). Taking a token ends the
previous one: its pending layer is dropped and bytes that it placed beyond the end are zeroed. A cut
voids every job that was made before it.

A quarantined store (`damage`) writes no batch and cuts nothing; undamaged records can be read.

Not here: periodic jobs (`storage.background`), cuts (`storage.cuts`), reads (`storage.reads`);
roles, sessions, the in-sync set (``replication``). Time and randomness are arguments.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace

from storage.append.appender import Appender
from storage.append.own_records import OwnRecords
from storage.append.receiver import Receiver
from storage.background import StoreJobs
from storage.clean_stop import stop_cleanly
from storage.cuts import StoreCuts
from storage.damage import Damage
from storage.disk.disk import Disk
from storage.errors import DiskError, DiskFull, StaleToken
from storage.jobs import Job
from storage.key_index.index import LAZY_BYTES
from storage.log.epoch_history import EpochRecord
from storage.marks.handed_over import check_kept
from storage.marks.identity import Who
from storage.marks.promise import Promise
from storage.marks.quarantine import FoundBy
from storage.progress import StoreMessaging
from storage.reads import StoreReads
from storage.recovery import reseed
from storage.recovery.open import open_store
from storage.recovery.opened import Opened
from storage.retention.removal import LogHead
from storage.scrub import StoreScrub
from storage.settings import StoreSettings
from storage.state.ages import Ages
from storage.state.control import Control
from storage.state.producers import IDLE_SECONDS, RETRY_SECONDS_MAX
from storage.state.sections import Section, SectionResult, Together
from storage.token import Token
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import BatchEntry
from twinlog.format.epoch_history import Epoch
from twinlog.format.group_rows import Row
from twinlog.levels import LEVEL


class Store:
    """One open store; made by `Store.open`.

    Attributes:
        reads: Records, topics, offsets below confirm.
        messaging: What groups have consumed.
        jobs: The periodic jobs.
        head: Removes the log's oldest files. ``scrub``: compares the sealed ones.
        boot: What the start found.
        settings: As given.
        who: The owner: cluster, group, node.
    """

    def __init__(self, opened: Opened, who: Who) -> None:
        self._opened = opened
        self._disk = opened.disk
        self._log = opened.log
        self._receiver = Receiver(opened.log, opened.settings)
        self._level = LEVEL
        self._wire()
        self._token: Token | None = None
        self._rebuilt = False
        self.reads = StoreReads(opened)
        self.messaging = StoreMessaging(opened)
        self.head = LogHead(opened)
        self.jobs = StoreJobs(opened, self.head)
        self._cuts = StoreCuts(opened, self.head, self.jobs, self._rewire)
        self.scrub = StoreScrub(opened, self._cuts.derive_again)
        self.settings = opened.settings
        self.boot = opened.boot
        self.who = who
        self._ages = Ages(IDLE_SECONDS), Ages(RETRY_SECONDS_MAX)

    @classmethod
    def open(cls, disk: Disk, settings: StoreSettings, who: Who, *, wall_ms: int) -> Store:
        """Open or make the store in ``disk``; `storage.recovery.open` says what is refused."""
        check_kept(disk)
        opened = open_store(disk, settings, who, guard=threading.Lock(), wall_ms=wall_ms)
        return cls(opened, who)

    def _wire(self) -> None:
        """Make what appends to the log with what is derived from it."""
        opened, derived = self._opened, self._opened.derived
        derived.layers.level = self._level
        self._appender = Appender(
            opened.log, opened.settings, derived.layers, derived.queues, derived.producers,
            lambda: derived.messaging,
        )  # fmt: skip
        self._own = OwnRecords(
            opened.log, opened.settings, appender=self._appender, layers=derived.layers,
            producers=derived.producers, ahead=derived.ahead, dispatcher=derived.dispatcher,
        )  # fmt: skip

    # -- state

    @property
    def promise(self) -> Promise:
        """The newest durable promise."""
        return self._opened.promise

    @property
    def damage(self) -> Damage | None:
        """Why the store is quarantined; None normally."""
        return self._opened.damage

    @property
    def disk_full(self) -> bool:
        """Whether the last write met a full disk."""
        return self._opened.disk_full

    def note_facts(self, quality: str, level: int) -> None:
        """Take facts of the group: its level (R74), and the quality that this node acknowledges by
        from now on, which is durable on return.

        After a ``durable`` run, a start trusts that nothing acknowledged is missing (R26). So
        ``received`` is recorded before the first such acknowledgement; ``durable`` counts only from
        the next start on that is configured so, because this run may have acknowledged less.

        Raises:
            DiskError: It is unknown whether the next start will see it.
        """
        self._level = self._opened.derived.layers.level = level
        run = self._opened.run
        if quality == "received" and run.value is not None and run.value.quality != quality:
            run.write(replace(run.value, quality=quality), "quality")

    def mark_quarantine(self, damage: Damage) -> None:
        """Stop writing, also after restarts: peers have shown that this log differs."""
        self._opened.quarantine(damage, FoundBy.PEERS)

    # -- positions

    @property
    def start(self) -> int:
        """First byte still kept."""
        return self._log.start

    @property
    def end(self) -> int:
        """First byte not yet written, to the file or to the memory pool."""
        return self._log.tail

    @property
    def committed(self) -> int:
        """Everything below is in the file and has its entry; equal to `end` without a pool."""
        return self._log.end

    @property
    def flushed(self) -> int:
        """Everything below is flushed, log and batch index."""
        return self._log.flushed

    @property
    def confirm(self) -> int:
        """Confirm offset; falls only in a cut below it."""
        return self._opened.confirm

    @property
    def checkpointed(self) -> int:
        """Flushed offset of the last checkpoint."""
        return self.jobs.checkpointed

    @property
    def unlocked_bytes(self) -> int:
        """Bytes of memory that should be locked, for which the system refused the lock."""
        return self._log.unlocked

    @property
    def dispatched(self) -> int:
        """Queues are built up to here."""
        return self._opened.derived.dispatcher.position

    @property
    def snapshot_at(self) -> int:
        """Log offset that the newest state snapshot covers."""
        return self._opened.derived.snapshot_at

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The epochs of the log, oldest first."""
        return self._log.history.epochs

    @property
    def last_epoch(self) -> int:
        """The newest epoch in the log; 0 when it is empty."""
        return self._log.history.last

    # -- one writer

    def take_token(self, token: Token) -> None:
        """Make ``token`` the current writer; any previous token becomes stale."""
        self.drop_token()
        self._token = token
        self._log.buffer(token.role == "master")

    def drop_token(self) -> None:
        """End the present writer, if any."""
        self._token = None
        self._rebuilt = False
        self._discard()
        self._log.wipe("token")  # R16: an ended writer leaves nothing behind

    def _discard(self) -> None:
        """Drop state that is only in memory: the pending layer and uncommitted batches."""
        self._appender.forget()
        self._opened.derived.ahead.forget()
        self._log.buffer(False)
        self._opened.derived.layers.cut(self._log.end)  # controls of uncommitted batches

    def _check(self, token: Token) -> None:
        opened = self._opened
        if (damage := opened.damage) is not None:
            what, file, offset = damage.what, damage.file, damage.offset
            raise CorruptionError(f"the store is quarantined: {what}", file=file, offset=offset)
        if (token is not self._token and token != self._token) or opened.cutting:
            raise StaleToken(f"the writer {token} has ended")

    # -- master

    def rebuild_pending(self) -> None:
        """Make the master's pending layer by scanning from the dispatcher to the end.

        `append_epoch` calls it if this was not done since the token was taken.

        Raises:
            CorruptionError: The log is damaged there; the store is quarantined.
        """
        try:
            self._log.segments.prove(self.dispatched, self._log.end)
            self._appender.rebuild(self.dispatched)
        except CorruptionError as error:
            self._opened.damaged(error)
            raise
        self._rebuilt = True

    def append_epoch(
        self,
        token: Token,
        *,
        epoch: int,
        node: str,
        session: int,
        wall_ms: int,
        reason: str,
        by: str,
    ) -> int:
        """Append the record that opens ``epoch``; returns the new end.

        Raises:
            StaleToken: Nothing was written.
            DiskFull: Nothing was written; may be tried again.
        """
        self._check(token)
        if not self._rebuilt:
            self.rebuild_pending()
        # After a failed attempt the epoch may already be open, by a filler.
        previous = next((one.epoch for one in reversed(self.epochs) if one.epoch != epoch), 0)
        value = EpochRecord(
            epoch, self.committed, node, session, wall_ms, previous, self.confirm, self.committed,
            reason, by,
        )  # fmt: skip
        self._appender.open_epoch(value, wall_ms)
        self._opened.derived.ahead.since = self.committed
        return self.committed

    def append(
        self, token: Token, sections: Sequence[Section], *, wall_ms: int
    ) -> list[SectionResult]:
        """Append sections in order; one result each. A full disk is a refusal, not an exception."""
        self._check(token)
        results = self._appender.append(sections, wall_ms)
        full = False
        for result in results:
            if result.code == "disk-full":
                full = True
        self._opened.disk_full = full
        return results

    def commit(self) -> None:
        """Move what is in the memory pool into the file; `committed` moves up to `end`.

        Raises:
            DiskFull: All of it is still in memory; may be tried again.
        """
        self._log.commit("log.commit")

    def append_control(self, token: Token, change: Control, *, wall_ms: int) -> SectionResult:
        """Append a control record, as a batch of its own.

        An existing equal topic is a duplicate; ``end`` is the offset that must be confirmed first.
        """
        self._check(token)
        result = self._own.append_control(change, wall_ms)
        self._opened.disk_full = result.code == "disk-full"
        return result

    def append_rows(self, token: Token, rows: Sequence[Row], *, wall_ms: int) -> SectionResult:
        """Append rows of what groups have consumed, in one record; they bind at once.

        Refused as ``not-ready`` until `messaging` is.
        """
        self._check(token)
        result = self._own.append_rows(rows, wall_ms)
        self._opened.disk_full = result.code == "disk-full"
        return result

    def append_together(
        self, token: Token, sections: Sequence[Section], rows: Sequence[Row], *, wall_ms: int
    ) -> Together:
        """Append sections and rows in one batch, or nothing of it; rows as `append_rows`."""
        self._check(token)
        result = self._own.append_together(sections, rows, wall_ms)
        self._opened.disk_full = result.code == "disk-full"
        return result

    def stored_before(self, sections: Sequence[Section]) -> int | None:
        """Return the log offset after the originals when all sections are duplicates; else None."""
        return self._own.stored_before(sections)

    def stale_producers(self, now: float) -> int:
        """Return the log offset below which idempotent producers may be forgotten; 0 for none.

        The master then appends a `storage.state.controls.ForgetProducers`. Call it every minute or
        so on every node: a node knows the age only of what it has seen arrive.

        Args:
            now: A monotonic clock, as a jump of the wall clock must forget no producer that may
                still send again.
        """
        cuts = self._opened.shape
        if cuts is None:
            return 0
        idle, late = (ages.older(now, self._log.end, cuts) for ages in self._ages)
        return self._opened.derived.producers.stale_below(idle, late)

    # -- slave

    def receive(self, token: Token, entries: Sequence[BatchEntry], payload: memoryview) -> int:
        """Store whole batches of the master; returns the new end.

        Args:
            token: The writer.
            entries: Consecutive batches from the end on; their ``flushed`` is replaced by ours.
            payload: Their bytes, a filler as its first 8.

        Raises:
            StaleToken: Nothing was written.
            Gap: The batches do not continue the log.
            BadBatch: A batch breaks a rule; names its start and length.
            DiskFull: `end` may have moved: whole files before the bad batch may be stored.
        """
        self._check(token)
        before = self.end
        try:
            self._receiver.receive(entries, payload)
            self._opened.disk_full = False
        except DiskFull:
            self._opened.disk_full = True
            raise
        finally:
            self._opened.derived.note_controls(self._log, entries, before)
        return self.end

    def receive_alone(self, token: Token, entry: bytes, payload: memoryview) -> bool:
        """Fast path: store one small batch that needs no special handling; False: use `receive`.

        Args:
            token: The writer.
            entry: The batch's entry as it travels between nodes (``replication.core.messages``).
            payload: Its bytes.

        Raises:
            StaleToken: Nothing was written.
            DiskFull: Nothing was stored.
        """
        self._check(token)
        try:
            stored = self._receiver.alone(entry, payload)
        except DiskFull:
            self._opened.disk_full = True
            raise
        if stored:
            self._opened.disk_full = False
        return stored

    # -- shared

    def entries(self, start: int, *, max_bytes: int, end: int | None = None) -> list[BatchEntry]:
        """Return the entries of whole batches from border ``start`` on.

        Their bytes on the wire (a filler counts 8) stay within ``max_bytes``, unless the first
        batch alone is larger.

        Raises:
            CorruptionError: An entry is damaged or lost; the store is quarantined.
            DiskError: Entries of an old file cannot be read.
        """
        last = self.committed if end is None else end
        try:
            return self._log.segments.whole_batches(start, last, max_bytes)
        except CorruptionError as error:
            self._opened.damaged(error)
            raise

    def lone_batch(self, start: int) -> tuple[bytes, memoryview] | None:
        """Return packed entry and bytes of the only batch after ``start``; None: use `entries`.

        What this and `receive_alone` save: ``benchmarks/log/fast_ways.py``.
        """
        log = self._log
        packed = log.segments.packed
        if int.from_bytes(packed[:8], "big") != start or not packed:
            return None
        last = log.segments.all[-1]
        return packed, last.mapping.buffer[start - last.start : log.end - last.start]

    def view(self, start: int, end: int) -> memoryview:
        """Return bytes of the log within one segment, not compared with any CRC."""
        return self._log.segments.view(start, end)

    def read_ahead(self, start: int, length: int) -> None:
        """Ask the system to read a range of the log ahead; advice, never waits for the disk."""
        with contextlib.suppress(CorruptionError):  # a lost file: reading it says so
            self._log.segments.read_ahead(start, length)

    def verify(self, start: int, end: int) -> None:
        """Compare the batches that hold ``start..end`` with their CRCs, even if proven before.

        Raises:
            CorruptionError: Names file, offset and length of the first bad batch.
        """
        self._log.segments.prove(start, min(end, self.committed), again=True)

    def chain_crc(self, start: int, end: int) -> int:
        """Return crc32c over (start, length, count, epoch, crc) of the entries of a range.

        Raises as `entries`.
        """
        try:
            return self._log.segments.chain(start, end)
        except CorruptionError as error:
            self._opened.damaged(error)
            raise

    def border_at_or_below(self, offset: int) -> int:
        """Return the last batch border that is not beyond ``offset``; raises as `entries`."""
        if offset >= self.committed:
            return self.committed  # also for an empty log, which has no files
        try:
            return self._log.segments.border_at_or_below(offset)
        except CorruptionError as error:
            self._opened.damaged(error)
            raise

    def set_confirm(self, confirm: int) -> None:
        """Move the confirm offset, never back; control records below it take effect."""
        confirm = min(confirm, self.committed)
        if confirm > self.confirm:
            self._opened.confirm = confirm
            self._opened.derived.layers.confirm(confirm)

    @property
    def behind(self) -> bool:
        """Whether `dispatch` has work: for queues, or enough for the key index.

        False with damage, and while a cut removes confirmed records.
        """
        if self.damage is not None or self._opened.losing:
            return False
        return self.dispatched < self.confirm or self._index_lag >= LAZY_BYTES

    @property
    def _index_lag(self) -> int:
        keys = self._opened.derived.keys
        return self.confirm - keys.position if keys is not None else 0

    def dispatch(self, max_bytes: int, *, wall_ms: int = 0) -> bool:
        """Enter records below confirm into queues; returns whether more can be done now.

        The key index follows, up to `LAZY_BYTES` later; one that cannot be written stays behind. On
        a full disk the rest is left for a later call; damage quarantines the store.

        Args:
            max_bytes: About how much log to process, for queues and for the index each.
            wall_ms: The time; names a new file of the key index. 0: its first record's.
        """
        if not self.behind:
            return False
        try:
            more = self._opened.derived.dispatcher.step(self.confirm, max_bytes)
            self._opened.disk_full = False
            keys = self._opened.derived.keys
            if keys is not None and self._index_lag >= LAZY_BYTES:
                went = keys.follow(self._log.segments, self.confirm, max_bytes, wall_ms)
                more = more or (went and self._index_lag >= LAZY_BYTES)
        except DiskFull:
            self._opened.disk_full = True
            return False
        except CorruptionError as error:
            self._opened.damaged(error)
            return False
        return more

    def registered(self) -> None:
        """Clear the unclean mark: the coordinator has answered this start's registration."""
        run = self._opened.run
        if run.value is not None and (run.value.unclean_since is not None or run.value.unseen):
            run.write(replace(run.value, unclean_since=None, unseen=()), "registered")

    # -- cuts

    def cut_job(self, token: Token, to: int) -> Job:
        """Return a job that cuts the log at border ``to``; until it is finished nothing is written.

        See `storage.cuts.StoreCuts.cut_job`.

        Raises:
            StaleToken: Not the writer; nothing has changed.
        """
        assert to <= self.committed
        assert to == self.border_at_or_below(to)
        self._end_for_cut(token)
        return self._cuts.cut_job(to)

    def seed_job(self) -> Job:
        """Return a job whose result is the seed of a replica that lacks what this log deleted.

        See `storage.recovery.reseed.seed_job`.
        """
        return reseed.seed_job(self._opened)

    def reseed_job(self, token: Token, data: bytes) -> Job:
        """Return a job that deletes the log and begins it again at a master's seed.

        See `storage.cuts.StoreCuts.reseed_job`.

        Raises:
            StaleToken: Not the writer; nothing has changed.
            CorruptionError: ``data`` is not a seed for this store; nothing has changed.
        """
        seed = reseed.decode_seed(data, self.settings.segment_size)
        self._end_for_cut(token)
        return self._cuts.reseed_job(seed)

    def _end_for_cut(self, token: Token) -> None:
        """Drop the writer's unsaved state; the same writer may repeat a failed cut."""
        if self.damage is not None or token != self._token:
            self._check(token)
        self._discard()
        self._rebuilt = False

    def _rewire(self) -> None:
        self._wire()
        self.reads.rewire()

    # -- the end

    def close(self, *, clean: bool) -> bool:
        """Release the data directory; return whether the stop is clean.

        With ``clean``: everything below confirm is dispatched, everything is flushed, a snapshot,
        both checkpoints and the exports are written, then the marks of a clean stop; RocketMQ may
        open the store. Without, with damage, or if the disk is too full for the marks, only the
        lock is released, as after a kill: the next start recovers everything, it just takes longer.

        Raises:
            DiskError: Not a full disk; the stop is not clean, and the lock is released.
        """
        try:
            if clean and self.damage is None and not self._opened.cutting:
                self._log.commit("close.commit")
                self.drop_token()
                return stop_cleanly(self._opened, self.jobs, self.dispatch)
        except DiskFull:
            self._opened.disk_full = True
        except DiskError:
            self._opened.run.note_io_error()
            raise
        finally:
            self._token = None
            self._disk.unlock()
        return False

"""A store in memory with the API that the driver uses: batches, epochs, promises, jobs.

Records are opaque bytes here; a batch is the bytes of one append. A file ends with a filler and
begins with an epoch record, as in a real store. What a power loss takes is what was not flushed.

It is held to the real store by `tests.conformance.test_store`. The dialogues do not run on that one
because they make the disk full or a log damaged at a word, in the middle of a file, and because
their offsets can be added up in the head: a real disk is full only where a file begins.

Not here: queues, topics, producers, bytes on a disk (``storage``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from storage import Damage, Job, Outcome, Promise, Section, SectionResult, StoreSettings, Token, Who
from storage.errors import BadBatch, DiskFull, Gap, StaleToken
from twinlog.format.batch_index import KIND_EPOCH, KIND_FILLER, KIND_RECORDS, BatchEntry
from twinlog.format.epoch_history import Epoch
from twinlog.kernels import crc32c

EPOCH_BYTES = 100


@dataclass(frozen=True, slots=True)
class Boot:
    """What the driver reads of ``BootSummary``."""

    store_id: str
    start_id: str
    unseen: tuple[str, ...] = ()
    clean: bool = True
    why_unclean: str = ""
    damage: Damage | None = None


class FakeScrub:
    """Files that never rot: nothing to look at, nothing to repair."""

    sealed, wounds = (0, 0), ()

    def begin(self) -> None:
        """Nothing to do."""

    doubt = begin

    def note(self, start: int) -> bool:
        """No batch can be repaired here."""
        return False


class FakeStore:
    """See the module."""

    def __init__(self, boot: Boot, settings: StoreSettings, who: Who) -> None:
        self.boot = boot
        self.settings = settings
        self.who = who
        self.reads = self.jobs = self  # one class for all three
        self.scrub = FakeScrub()
        self.log = bytearray()
        self.batches: list[BatchEntry] = []
        self.history: list[Epoch] = []
        self.start = 0
        self.flushed = 0
        self.confirm = 0
        self.dispatched = 0
        self.promise = Promise()
        self.durable_promise = Promise()
        self.token: Token | None = None
        self.full = False
        self.registered_times = 0
        self.damage: Damage | None = boot.damage
        self.quarantined: Damage | None = None
        self.cuts: list[tuple[int, int]] = []
        self.rebuilt = 0

    # -- positions

    @property
    def end(self) -> int:
        """Log end."""
        return len(self.log)

    @property
    def committed(self) -> int:
        """Always the end here."""
        return len(self.log)

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """History."""
        return tuple(self.history)

    @property
    def last_epoch(self) -> int:
        """Epoch of the last byte."""
        return self.history[-1].epoch if self.history else 0

    # -- one writer

    def take_token(self, token: Token) -> None:
        """Make ``token`` the writer."""
        self.token = token

    def drop_token(self) -> None:
        """No writer."""
        self.token = None

    def check(self, token: Token) -> None:
        """Refuse an old writer."""
        if token != self.token:
            raise StaleToken(f"{token} is not {self.token}")

    # -- master

    def _add(self, data: bytes, kind: int, epoch: int, count: int, wall_ms: int) -> int:
        if self.full:
            raise DiskFull("log.append", "log", 28)
        start = len(self.log)
        entry = BatchEntry(
            start, len(data), count, epoch, crc32c(data), wall_ms, kind, self.flushed
        )
        self.log += data
        self.batches.append(entry)
        return len(self.log)

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
        """Append the record that begins an epoch."""
        self.check(token)
        self._room(EPOCH_BYTES, wall_ms, roll_epoch=False)
        start = len(self.log)
        end = self._add(_epoch_bytes(epoch), KIND_EPOCH, epoch, 1, wall_ms)
        self.history.append(Epoch(epoch, start))
        return end

    def _room(self, size: int, wall_ms: int, *, roll_epoch: bool = True) -> None:
        """Roll to the next file when ``size`` and a filler do not fit."""
        file = self.settings.segment_size
        used = len(self.log) % file
        if used and used + size + 8 > file:
            data = (b"filler!!" + bytes(file))[: file - used]
            start = len(self.log)
            self.log += data
            crc = crc32c(data[:8])
            self.batches.append(
                BatchEntry(start, len(data), 1, self.last_epoch, crc, wall_ms, KIND_FILLER, 0)
            )
            if roll_epoch:
                epoch = self.last_epoch
                self._add(_epoch_bytes(epoch), KIND_EPOCH, epoch, 1, wall_ms)

    def append(
        self, token: Token, sections: Sequence[Section], *, wall_ms: int
    ) -> list[SectionResult]:
        """Append each section as one batch."""
        self.check(token)
        results: list[SectionResult] = []
        for section in sections:
            data = bytes(section.data)
            if self.full:
                results.append(SectionResult(Outcome.REFUSED, 0, 0, 0, "disk-full", "full", 0))
                continue
            self._room(len(data), wall_ms)
            start = len(self.log)
            end = self._add(data, KIND_RECORDS, self.last_epoch, section.count, wall_ms)
            results.append(SectionResult(Outcome.STORED, 0, start, end, "", "", 0))
        return results

    def append_control(self, token: Token, change: object, *, wall_ms: int) -> SectionResult:
        """Append a control record."""
        data = repr(change).encode()
        return self.append(token, [Section("meta", 0, 1, data)], wall_ms=wall_ms)[0]

    def rebuild_pending(self) -> None:
        """Counted only."""
        self.rebuilt += 1

    # -- slave

    def receive(self, token: Token, entries: Sequence[BatchEntry], payload: memoryview) -> int:
        """Store batches of a master, or nothing of them."""
        self.check(token)
        if self.full:
            raise DiskFull("log.receive", "log", 28)
        at, taken, ready, log = len(self.log), 0, [], bytearray()
        for entry in entries:
            if entry.start != at:
                raise Gap(f"a batch at {entry.start}, the log ends at {at}")
            size = 8 if entry.kind == KIND_FILLER else entry.length
            data = bytes(payload[taken : taken + size])
            if crc32c(data) != entry.crc:
                raise BadBatch(entry.start, entry.length, "bytes do not match the batch's CRC")
            log += data + bytes(entry.length - size)
            taken, at = taken + size, entry.start + entry.length
            ready.append(replace(entry, flushed=self.flushed))
        for entry in ready:
            if entry.kind == KIND_EPOCH and entry.epoch > self.last_epoch:
                self.history.append(Epoch(entry.epoch, entry.start))
        self.log += log
        self.batches += ready
        return len(self.log)

    def receive_alone(self, token: Token, entry: bytes, payload: memoryview) -> bool:
        """Leave every batch to `receive`."""
        self.check(token)
        return False

    # -- shared

    def entries(self, start: int, *, max_bytes: int, end: int | None = None) -> list[BatchEntry]:
        """Whole batches from a border, at least one."""
        found: list[BatchEntry] = []
        size = 0
        for entry in self.batches:
            if entry.start < start:
                continue
            size += entry.length
            if found and size > max_bytes:
                break
            found.append(entry)
        return found

    def lone_batch(self, start: int) -> tuple[bytes, memoryview] | None:
        """Always by way of `entries`."""
        return None

    def read_ahead(self, start: int, length: int) -> None:
        """All of it is in memory."""

    def view(self, start: int, end: int) -> memoryview:
        """A copy, so that the log may grow."""
        return memoryview(bytes(self.log[start:end]))

    def chain_crc(self, start: int, end: int) -> int:
        """CRC over the entries between two borders."""
        value = 0
        for entry in self.batches:
            if start <= entry.start < end:
                value = crc32c(replace(entry, store_timestamp=0, kind=0, flushed=0).pack(), value)
        return value

    def border_at_or_below(self, offset: int) -> int:
        """The last border not beyond ``offset``."""
        borders = [
            self.start if not self.batches else 0,
            *(entry.start + entry.length for entry in self.batches),
        ]
        return max(border for border in borders if border <= max(offset, 0))

    def set_confirm(self, confirm: int) -> None:
        """Never falls, never beyond the end."""
        assert self.confirm <= confirm <= self.end, (self.confirm, confirm, self.end)
        self.confirm = confirm

    @property
    def behind(self) -> bool:
        """Whether there is something to dispatch."""
        return self.damage is None and self.dispatched < self.confirm

    def dispatch(self, max_bytes: int, *, wall_ms: int = 0) -> bool:
        """All at once."""
        self.dispatched = self.confirm
        return False

    def index_notes(self) -> list[str]:
        """There is no key index."""
        return []

    # -- jobs

    def flush_job(self, thorough: bool = False) -> Job | None:
        """Flush what is there now."""
        end = self.end
        if end == self.flushed:
            return None

        def then() -> None:
            self.flushed = max(self.flushed, min(end, self.end))

        return Job("flush", lambda: None, lambda job: then() if job.error is None else None)

    def save_promise_job(self, promise: Promise) -> Job:
        """Make a promise durable."""

        def work() -> None:
            self.durable_promise = promise

        def then() -> None:
            self.promise = promise

        return Job("promise", work, lambda job: then() if job.error is None else None)

    def cut_job(self, token: Token, to: int) -> Job:
        """Cut the log."""
        self.check(token)

        def work() -> None:
            self.cuts.append((to, len(self.log)))
            del self.log[to:]
            self.batches = [entry for entry in self.batches if entry.start < to]
            self.history = [epoch for epoch in self.history if epoch.start < to]
            self.flushed = min(self.flushed, to)

        return Job("cut", work, lambda job: None)

    def seed_job(self) -> Job:
        """The start, and the epochs before it."""
        epochs = [list(epoch) for epoch in self.history if epoch.start < self.start]
        seed = json.dumps([self.start, epochs]).encode()
        return Job("seed", lambda: seed, lambda job: None)

    def reseed_job(self, token: Token, data: bytes) -> Job:
        """Begin again at a seed; what lies before its start is zeros."""
        self.check(token)
        start, epochs = json.loads(data)

        def work() -> None:
            self.log[:] = bytes(start)
            self.batches = []
            self.history = [Epoch(*epoch) for epoch in epochs]
            self.start = self.flushed = self.confirm = self.dispatched = start

        return Job("reseed", work, lambda job: None)

    def checkpoint_job(self) -> Job:
        """Nothing."""
        return Job("checkpoint", lambda: None, lambda job: None)

    def prepare_job(self) -> Job | None:
        """Nothing to do."""
        return None

    def snapshot_job(self) -> Job | None:
        """Nothing to do."""
        return None

    def finish(self, job: Job) -> None:
        """Take a job's result."""
        job.apply(job)

    def registered(self) -> None:
        """Counted only."""
        self.registered_times += 1

    only_copy = False

    def note_facts(self, quality: str, level: int) -> None:
        """Nothing here is durable."""

    def refused_batches(self) -> list[Damage]:
        """Nothing is read here."""
        return []

    def mark_quarantine(self, damage: Damage) -> None:
        """Remember it."""
        self.damage = self.quarantined = damage

    # -- life

    def reopened(self, start_id: str, *, power_lost: bool = False) -> FakeStore:
        """Return the store as the next process finds it."""
        unseen = (*self.boot.unseen, self.boot.start_id)
        boot = replace(self.boot, start_id=start_id, unseen=unseen, clean=not power_lost)
        store = FakeStore(boot, self.settings, self.who)
        end = self.flushed if power_lost else len(self.log)
        store.log = bytearray(self.log[:end])
        store.batches = [entry for entry in self.batches if entry.start < end]
        store.history = [epoch for epoch in self.history if epoch.start < end]
        store.flushed = min(self.flushed, end)
        store.confirm = min(self.confirm, end)
        store.dispatched = store.confirm
        store.promise = store.durable_promise = self.durable_promise
        return store


def _epoch_bytes(epoch: int) -> bytes:
    return f"epoch {epoch}".encode().ljust(EPOCH_BYTES, b".")

"""Histories of a store: scripted, with a model of what they have promised so far, and the judge.

A test plays one until the process dies in some disk call, loses a part of what was not flushed
(`lose`), and has the judge look at the store that opens again (`examine`, `go_on`).

Not here: which calls to die in (`tests.crash.rotation`).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from storage import CreateTopic, Outcome, Section, Store
from storage.log.segments import covered
from storage.queues.queues import ConsumeQueues
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import Forgetful
from tests.stores.workbench import (
    SETTINGS,
    append,
    bodies,
    covered_views,
    examine_index,
    examine_light,
    examine_queues,
    index_files,
    lead,
    log_records,
    master,
    open_store,
    rocketmq_index,
    run,
    section,
    settle,
    token,
)
from twinlog.format.batch_index import BatchEntry
from twinlog.format.inner_batches import InnerEncoder
from twinlog.format.messages import messages_of
from twinlog.format.record import RecordEncoder
from twinlog.kernels import gather_units

Border = tuple[int, int, int]

LIGHT = ("%LMQ%a", "%LMQ%b")
BATCH_TOPIC, BATCH_FOLDER = "together", "batchconsumequeue"


class History:
    """The scripted history and what it has promised so far.

    Attributes:
        log: (start, length, crc) of every batch that exists, in order.
        flushed: What a power loss must leave.
        confirm: Largest confirm offset set.
        cutting: Where to a cut is under way; None normally.
        start: Where the log begins, as readers were told.
        gone: Where it begins at least, for files below were being removed.
    """

    settings = SETTINGS
    unnoted_max = 4
    """Batches that one step may leave behind what the model has noted."""

    def __init__(self, disk: FakeDisk) -> None:
        self.disk = disk
        self.log: list[Border] = []
        self.flushed = 0
        self.confirm = 0
        self.cutting: int | None = None
        self.start = 0
        self.gone = 0
        self.store: Store | None = None
        self.epoch = 1

    @property
    def end(self) -> int:
        """End of the log as the model knows it."""
        return self.log[-1][0] + self.log[-1][1] if self.log else 0

    def note(self) -> None:
        """Take over what the store says now."""
        store = self.store
        assert store is not None
        self.log = [key(one) for one in store.entries(store.start, max_bytes=1 << 30)]
        self.start = store.start
        self.flushed, self.confirm = store.flushed, store.confirm

    def step(self, number: int) -> None:
        """One step; most of them are appends."""
        store = self.store
        assert store is not None
        queue = number % 4
        made = section(
            1 + number % 7, queue=queue, mark=number, size=40 + 13 * (number % 5),
            key=f"k{number % 3}", light=LIGHT[: number % 3],
        )  # fmt: skip
        append(store, made, section(3, queue=1, mark=number), epoch=self.epoch)
        self.note()
        if number % 2 == 0:
            run(store, store.jobs.prepare_job())
        if number % 3 == 0:
            run(store, store.jobs.flush_job(thorough=True))
            self.note()
        if number % 4 == 0:
            store.set_confirm(store.border_at_or_below(store.end - 500))
            self.note()
            store.dispatch(3000)
        if number % 5 == 0:
            run(store, store.jobs.checkpoint_job())
        if number % 6 == 0:
            settle(store)
            examine_index(store)
            self.note()
            run(store, store.jobs.snapshot_job(force=number % 12 == 0))
            self.note()

    def cut(self, *, back: int = 0) -> None:
        """Step down and lose what was not confirmed, or ``back`` bytes more than that."""
        store = self.store
        assert store is not None
        to = store.border_at_or_below(store.confirm - back)
        for number in range(40, 50):
            append(store, section(6, queue=3, mark=number), epoch=self.epoch)
            self.note()
        run(store, store.jobs.flush_job(thorough=True))
        self.note()
        run(store, store.jobs.checkpoint_job())
        store.take_token(token(self.epoch))
        self.cutting = to
        run(store, store.cut_job(token(self.epoch), to))
        self.cutting = None
        self.note()
        self.promote()

    def retain(self, *, erase: bool) -> None:
        """Let go of all but the last two files that may go."""
        store = self.store
        assert store is not None
        settle(store)
        self.note()
        run(store, store.jobs.flush_job(thorough=True))
        self.note()
        run(store, store.jobs.snapshot_job(force=True))
        size = store.settings.segment_size
        limit = store.head.limit(store.confirm)
        while store.start + size <= limit:
            self.start = store.start + size
            store.head.leave(self.start, store.confirm, 0.0)
            left = [one.start for one in store.head.left()]
            run(store, store.head.remove_job(left, erase=erase))
            self.gone = self.start
        self.note()
        run(store, store.jobs.snapshot_job())
        run(store, store.head.tidy_job())

    def promote(self) -> None:
        """Open the next epoch."""
        assert self.store is not None
        self.epoch += 1
        lead(self.store, epoch=self.epoch)
        self.note()

    def restart(self, *, clean: bool) -> None:
        """Stop, start, lead."""
        assert self.store is not None
        self.store.close(clean=clean)
        for segment in self.store._log.segments.all:
            segment.mapping.close()  # a process that has ended holds no file
        self.store = open_store(self.disk, settings=self.settings)
        self.note()
        self.promote()

    def play(self) -> None:
        """Run the whole history."""
        self.store = master(self.disk, settings=self.settings)
        self.note()
        for number in range(14):
            self.step(number)
        self.cut()
        for number in range(14, 20):
            self.step(number)
        self.cut(back=6000)
        self.retain(erase=False)
        self.restart(clean=True)
        for number in range(20, 26):
            self.step(number)
        self.restart(clean=False)
        self.retain(erase=True)
        for number in range(26, 36):
            self.step(number)
        self.store.close(clean=True)


def key(entry: BatchEntry) -> Border:
    """What identifies a batch."""
    return entry.start, entry.length, entry.crc


LOSSES = ("nothing", "everything", "some")


def lose(disk: FakeDisk, kind: str, number: int) -> None:
    """What the crash takes."""
    match kind:
        case "nothing":
            disk.crash(keep_page_cache=True, rng=Random(number))
        case "everything":
            disk.crash(keep_page_cache=False, rng=Forgetful())
        case _:
            disk.crash(keep_page_cache=False, rng=Random(number))


def examine(
    disk: FakeDisk,
    history: History,
    kind: str,
    also: Callable[[FakeDisk, Store], None] = lambda disk, store: None,
) -> None:
    """Open what is left and compare it with the model; ``also`` looks at it as it was opened."""
    store = open_store(disk)
    boot = store.boot
    assert boot.damage is None, boot
    found = [key(one) for one in store.entries(store.start, max_bytes=1 << 30)]
    assert history.gone <= store.start <= history.start
    known = [one for one in history.log if one[0] >= store.start]
    least = history.end if kind == "nothing" else history.flushed
    if history.cutting is not None:
        least = min(least, history.cutting)
    assert store.end >= least, (store.end, least, boot)
    shared = min(len(found), len(known))
    assert found[:shared] == known[:shared]
    assert len(found) <= len(known) + history.unnoted_max, "batches of one step at most"
    for one in store.entries(store.start, max_bytes=1 << 30):
        assert store.view(one.start, one.start + covered(one)) is not None
    store.verify(store.start, store.end)
    examine_index(store)
    examine_light(store, LIGHT)
    examine_queues(disk, store)
    also(disk, store)
    assert store.dispatched == store.confirm <= store.end
    assert store.flushed == store.end
    size = store.settings.segment_size
    if store.end % size:
        assert not any(store.view(store.end, store.end + size - store.end % size))
    assert len(disk.list("commitlog")) == -(-store.end // size) - store.start // size
    go_on(disk, store, history)


def go_on(disk: FakeDisk, store: Store, history: History) -> None:
    """A store that has come back is a store: it leads, stores, stops cleanly, starts cleanly."""
    epoch = history.epoch + 5
    lead(store, epoch=epoch)
    settle(store)
    if store.reads.topics():
        before = len(bodies(store, 2))
        append(store, section(2, queue=2, mark=99), epoch=epoch)
        settle(store)
        assert len(bodies(store, 2)) == before + 2
    store.registered()
    examine_index(store)
    examine_light(store, LIGHT)
    records = log_records(store)
    end, ranges = store.end, [store.reads.queue_range(t, 0) for t in store.reads.topics()]
    store.close(clean=True)
    if not store.start:  # else the index has keys of records that are gone, which is no harm
        assert index_files(disk) == rocketmq_index(records)
    again = open_store(disk)
    assert (again.end, again.boot.clean, again.boot.cut_bytes) == (end, True, 0), again.boot
    assert [again.reads.queue_range(t, 0) for t in again.reads.topics()] == ranges
    again.close(clean=True)


class BatchHistory(History):
    """Sends to the batch topic, too."""

    def step(self, number: int) -> None:
        """One step, and three sections more, whose first records are inner batches."""
        assert self.store is not None
        if BATCH_TOPIC not in self.store.reads.topics():
            made = CreateTopic(BATCH_TOPIC, 2, 1, batch=True)
            self.store.append_control(token(self.epoch), made, wall_ms=1000)
            settle(self.store)
            self.note()
        encoder = InnerEncoder(RecordEncoder(BATCH_TOPIC, number % 2), 1 << 20)
        for index in range(2 + number % 5):
            tag = "last" if index == 1 + number % 5 else "x"
            encoder.add(b"%d" % index, b"", sys_flag=0, born_timestamp=1, key=None, tag=tag)
        data, records, *_ = encoder.take(b"")
        sent = Section(BATCH_TOPIC, number % 2, records, data)
        for result in append(self.store, sent, sent, sent, epoch=self.epoch):
            assert result.outcome is Outcome.STORED
        self.note()
        super().step(number)


def examine_batches(disk: FakeDisk, store: Store) -> None:
    """Files and messages are those of the log, as far as it is kept."""
    if BATCH_TOPIC not in store.reads.topics():
        return
    fresh = FakeDisk()
    queues = ConsumeQueues(fresh, SETTINGS.queue_file_size, {BATCH_TOPIC})
    for start, view in covered_views(store, store.dispatched):
        for name, queue, first, _, units in gather_units(view, 0, len(view), start, {b"together"}):
            queues.write(name.decode(), queue, first, units)
    for queue in (0, 1):
        start, end = store.reads.queue_range(BATCH_TOPIC, queue)
        wanted = queues.get(BATCH_TOPIC, queue)
        if wanted is not None:
            assert (start, end) == (wanted.start, wanted.end)
        at = start
        while at < end:
            answer = store.reads.read(
                BATCH_TOPIC, queue, at, max_bytes=1 << 20, max_records=1 << 20
            )
            found = messages_of(b"".join(answer.slices))
            assert [one.queue_offset for one in found] == list(range(at, answer.next))
            at = answer.next
        if not store.start:
            folder = f"{BATCH_FOLDER}/{BATCH_TOPIC}/{queue}"
            ours = [disk.read(f"{folder}/{name}", "test") for name in disk.list(folder)]
            assert ours == [fresh.read(f"{folder}/{name}", "test") for name in fresh.list(folder)]

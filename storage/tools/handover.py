"""Makes a stopped store exact for RocketMQ: ``twinlog store handover``.

A RocketMQ group has one position in a queue. A shared group of twinlog may have settled messages
after the first one that it has not: a broker would give those out again. Here what is not settled
is copied to the group's retry topic, as RocketMQ's own consumers give messages back, and settled
with the copy, in one batch of the log; the position then is after everything that was handed out.

* ``%RETRY%`` and the group, queue 0: a consumer of RocketMQ reads it beside its topics. For groups
  that use POP it is ``%RETRY%``, the group, ``_`` and the topic.
* `RETRY_TOPIC`, `ORIGIN_MESSAGE_ID`; the attempts are added to ``reconsumeTimes``, so RocketMQ goes
  on counting. A copy is due at once: pauses between attempts, and leases, end.
* Ordered groups keep their order, so nothing is copied for them, nor of light queues, for which
  RocketMQ has no retries: they go on at the first message that is not settled, and what was settled
  after it comes again. The plan names them.
* What the queue does not keep any more is settled without a copy.

Every batch is whole or not there, and says itself what it did: the work may be interrupted
anywhere, and is repeated from what the log says. The records are no group's: the store is marked
first (`storage.marks.handed_over`), and no node opens it afterwards. A store in which nothing has
to be copied is not changed, nor marked.

Not here: the files that RocketMQ reads, which the clean stop writes
(`storage.recovery.config_export`); taking a store back (`storage.tools.adopt`).

Sources: RocketMQ 5.3 (``AbstractSendMessageProcessor.consumerSendMsgBack``, ``PopReviveService``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from errno import ENOSPC

from storage.disk.disk import Disk
from storage.errors import DiskFull, ForeignStore
from storage.log.stretches import STRETCH_MAX
from storage.marks.handed_over import forget_handover, is_handed_over, note_handover
from storage.marks.identity import Who
from storage.marks.run import read_clean_mark
from storage.messaging.copies import Copy, sent_back
from storage.messaging.fold import MEMBER_SIGN
from storage.messaging.groups import Group
from storage.messaging.share import SETTLED, Run, Share
from storage.read.result import ReadResult, ReadStatus
from storage.settings import StoreSettings
from storage.state.controls import CreateTopic, decode_control
from storage.state.layers import Layers
from storage.state.sections import Outcome, Section
from storage.state.topics import State
from storage.store import Store
from storage.token import Token
from storage.tools.recover import index_capacity, opened_by_tool, require_marks, settings_of
from storage.tools.waiting import folded, newest_snapshot
from twinlog.errors import CorruptionError
from twinlog.format.group_rows import AckRow, Row, ShareRow
from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.format.system_topics import RETRY_PREFIX, SYSTEM_TOPIC_META
from twinlog.store.reader import StoreReader
from twinlog.units import KiB

REASON = "store handover"
"""Reason in the record of the epoch that a handover begins."""
COPY_BYTES = 256 * KiB
"""Bytes of records that are copied by one batch, but at least one record."""
ROWS_TOGETHER = 40
"""Runs that one batch settles."""
ORDERED, LIGHT = "ordered", "light-queue"
"""Why a share is left as it is."""


@dataclass(frozen=True, slots=True)
class Queue:
    """What one group has open in one queue.

    Attributes:
        group: Its name.
        topic: Topic name.
        queue: Queue number.
        low: Queue offset of the first message that is not settled.
        next: Nothing from here on was handed out.
        unsettled: Messages between the two that are not settled.
        again: Messages between the two that are settled.
        why: `ORDERED`, `LIGHT`; empty: what is not settled is copied.
        retry: Where to.
    """

    group: str
    topic: str
    queue: int
    low: int
    next: int
    unsettled: int
    again: int
    why: str
    retry: str


@dataclass(frozen=True, slots=True)
class Handover:
    """What a handover will do.

    Attributes:
        queues: In which something was handed out and not settled.
        end: End of the log.
        begun: One was done before, or has begun.
        unfinished: It met its end early, so the store was not stopped.
    """

    queues: tuple[Queue, ...]
    end: int
    begun: bool
    unfinished: bool = False

    @property
    def copied(self) -> tuple[Queue, ...]:
        """Queues of which messages are copied."""
        return tuple(one for one in self.queues if not one.why)


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What a handover did.

    Attributes:
        copies: Messages that were copied.
        missing: Messages that the log does not keep any more, or that their queue leaves out.
        end: End of the log.
    """

    copies: int
    missing: int
    end: int


def plan_handover(disk: Disk, reader: StoreReader, *, pop: bool = False) -> Handover:
    """Return what a handover of the store would do; nothing is written.

    Args:
        disk: The directory.
        reader: The same.
        pop: The groups use POP.

    Raises:
        ForeignStore: twinlog did not make it (``not-ours``), or it was not stopped cleanly, or is
            damaged (``unsound-store``); says what to do first.
        CorruptionError: A small file that a start needs is missing.
    """
    require_marks(disk)
    begun = is_handed_over(disk)
    if damage := [one for one in reader.damage if one.harm.in_log and not one.harm.cut_by_recovery]:
        text = f"{damage[0].name} at {damage[0].offset}: {damage[0].what}"
        raise _refused(f"it is damaged: {text}", f"twinlog log repair {reader.name}")
    if not begun and read_clean_mark(disk) is None:
        raise _refused("it was not stopped cleanly", f"twinlog log recover {reader.name}")
    found = open_queues(_groups(reader), folded(reader).shares(), pop=pop)
    return Handover(found, reader.end, begun, begun and not reader.clean)


def _refused(text: str, hint: str) -> ForeignStore:
    return ForeignStore(f"the store cannot be handed over: {text}", hint=hint, code="unsound-store")


def _groups(reader: StoreReader) -> Mapping[str, Group]:
    """Return the groups as the whole log defines them."""
    base = newest_snapshot(reader)
    state = State() if base is None else State(base.topics, base.batched, base.groups)
    layers, after = Layers(state), 0 if base is None else base.offset
    queue = reader.queue(SYSTEM_TOPIC_META, 0)
    for entry in queue.entries() if queue is not None else ():
        record = reader.record_at(entry.log_offset) if entry.log_offset >= after else None
        if record is not None:
            layers.append(record.log_offset + record.size, decode_control(record.body))
    return layers.whole().groups


def open_queues(
    groups: Mapping[str, Group], shares: Iterable[Share], *, pop: bool = False
) -> tuple[Queue, ...]:
    """Return the queues in which groups have something open, in order."""
    found: list[Queue] = []
    for one in shares:
        group = groups.get(one.group)
        if group is None or MEMBER_SIGN in one.group or not one.runs:
            continue
        again = one.count(SETTLED)
        light = one.topic.startswith(LIGHT_PREFIX) or group.name.startswith(LIGHT_PREFIX)
        why = LIGHT if light else ORDERED if group.mode == "ordered" else ""
        retry = _retry_topic(group.name, one.topic, pop=pop)
        found.append(
            Queue(
                one.group, one.topic, one.queue, one.low, one.next,
                one.next - one.low - again, again, why, "" if why else retry,
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda one: (one.group, one.topic, one.queue)))


def _retry_topic(group: str, topic: str, *, pop: bool) -> str:
    own = f"{RETRY_PREFIX}{group}"
    if topic == own or topic.startswith(f"{own}_"):  # a retry is given back to where it was
        return topic
    return f"{own}_{topic}" if pop else own


def carry_out(disk: Disk, *, wall_ms: int, pop: bool = False) -> HandedOver:
    """Hand the store over, and stop it cleanly; the plan found something to copy.

    May be repeated after whatever ended it early.

    Raises:
        DirectoryInUse: A node uses it; nothing was changed.
        ForeignStore: Another program changed it; nothing was changed.
        CorruptionError: It is damaged.
        DiskError: Not all of it is done; the call can be repeated.
    """
    identity = require_marks(disk)
    settings = settings_of(identity, index_capacity(disk))
    store = _opened(disk, settings, identity.who, wall_ms)
    clean = False
    try:
        if store.damage is not None:
            raise CorruptionError(
                f"the store is damaged: {store.damage.what}", file=store.damage.file,
                offset=store.damage.offset, hint="see: twinlog log repair",
            )  # fmt: skip
        work = _Work(store, wall_ms, identity.who.family, pop=pop)
        work.begin()
        for one in open_queues(work.groups(), store.messaging.confirmed.shares(), pop=pop):
            if not one.why:
                work.hand_over(one)
        clean = True
    finally:
        clean = store.close(clean=clean)
    if not clean:
        raise _refused("it could not be stopped cleanly", "see: twinlog log verify")
    return HandedOver(work.copies, work.missing, work.end)


def _opened(disk: Disk, settings: StoreSettings, who: Who, wall_ms: int) -> Store:
    """Open the store, which has the mark of a handover before anything else changes."""
    before = is_handed_over(disk)
    disk.lock("handover.lock")
    try:
        note_handover(disk)  # once it is open it has no mark of a clean stop
    finally:
        disk.unlock()
    try:
        return opened_by_tool(disk, settings, who, wall_ms=wall_ms)
    except ForeignStore:
        if not before:
            forget_handover(disk)
        raise


class _Work:
    """One handover over an open store; every step is confirmed before the next."""

    def __init__(self, store: Store, wall_ms: int, family: int, *, pop: bool) -> None:
        self.copies = self.missing = self.end = 0
        self._store = store
        self._wall_ms = max(wall_ms, store.reads.timestamp)
        self._family = family
        self._pop = pop
        self._token = Token("master", store.last_epoch + 1, 0)

    def begin(self) -> None:
        """Begin an epoch, to which no other bytes of this store belong."""
        self._store.take_token(self._token)
        self._store.append_epoch(
            self._token, epoch=self._token.epoch, node="-", session=0, wall_ms=self._wall_ms,
            reason=REASON, by="-",
        )  # fmt: skip
        self._settle()

    def groups(self) -> dict[str, Group]:
        """The groups."""
        messaging = self._store.messaging
        found = {name: messaging.group(name) for name in messaging.groups()}
        return {name: one for name, one in found.items() if one is not None}

    def hand_over(self, queue: Queue) -> None:
        """Copy what is not settled of one queue, and settle it."""
        made = self._store.append_control(
            self._token, CreateTopic(queue.retry, 1, self._wall_ms), wall_ms=self._wall_ms
        )
        self._check(made.outcome, made.code, made.text)
        self._settle()
        after = queue.low
        while (share := self._share(queue)) is not None and share.runs:
            runs = [one for one in share.runs if one.state != SETTLED and one.last >= after]
            if not runs:
                return
            after = self._step(queue, share, runs[:ROWS_TOGETHER])

    def _share(self, queue: Queue) -> Share | None:
        return self._store.messaging.confirmed.find(queue.group, queue.topic, queue.queue)

    def _step(self, queue: Queue, share: Share, runs: list[Run]) -> int:
        """Copy some of the messages; return up to where all is settled."""
        first, last = runs[0].first, runs[-1].last
        found = self._read(queue, first, last)
        after, sections = last + 1, list[Section]()
        if found.status is ReadStatus.BEFORE_START:
            after = min(found.start, after)
        elif found.status is ReadStatus.FOUND:
            after = min(found.next, after)
            copy = self._copy(queue, found, runs)
            if copy.records:
                sections.append(Section(copy.topic, 0, copy.records, copy.data, own=True))
        done = [one for one in runs if one.first < after]
        rows: list[Row] = [
            AckRow(share.id, one.n, one.first, min(one.last, after - 1)) for one in done
        ]
        self._begin_retries(queue, rows)
        result = self._store.append_together(self._token, sections, rows, wall_ms=self._wall_ms)
        self._check(result.outcome, result.code, result.text)
        self._settle()
        copies = sum(one.count for one in sections)
        self.copies += copies
        self.missing += sum(min(one.last, after - 1) - one.first + 1 for one in done) - copies
        return after

    def _begin_retries(self, queue: Queue, rows: list[Row]) -> None:
        """Let the group begin with its retry topic where its first copy will be."""
        confirmed = self._store.messaging.confirmed
        if confirmed.find(queue.group, queue.retry, 0) is None:
            _, end = self._store.reads.queue_range(queue.retry, 0)
            number = confirmed.next_share()
            rows.append(ShareRow(number, queue.group, queue.retry, 0, 0, end))

    def _read(self, queue: Queue, first: int, last: int) -> ReadResult:
        reads = self._store.reads
        found = reads.read(
            queue.topic, queue.queue, first, max_bytes=COPY_BYTES, max_records=last - first + 1
        )
        return reads.fetched(found, found.outcome()) if found.cold and found.count else found

    def _copy(self, queue: Queue, found: ReadResult, runs: list[Run]) -> Copy:
        def attempts(offset: int) -> int | None:
            return next((one.attempt for one in runs if one.first <= offset <= one.last), None)

        return sent_back(
            found.slices, queue.retry, attempts, family=self._family,
            pop_ms=self._wall_ms if self._pop else 0,
        )  # fmt: skip

    def _check(self, outcome: Outcome, code: str, text: str) -> None:
        if outcome is not Outcome.REFUSED:
            return
        if code == "disk-full":
            raise DiskFull("handover.append", "commitlog", ENOSPC)
        raise ForeignStore(f"the store cannot be handed over: {text}", code=code)

    def _settle(self) -> None:
        store = self._store
        store.commit()
        store.set_confirm(store.end)
        while store.dispatch(STRETCH_MAX):
            pass
        self.end = store.end

"""Who gets which messages: one POP against the shares of its group.

Due retries come first, at most half of what is asked while there are new messages; then new ones,
queues in turn; then more retries. Each stretch becomes a lease, one row ``L``. What a filter leaves
out is settled with the row of what comes after it.

A lease of records that lie on the disk is decided from their queue entries; the records are fetched
while the row is confirmed (`Part.found`). What a filter over properties leaves out then is settled
afterwards.

Reaches records only through `Records`. Units: offsets are those of queues, counts are messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from node.leases.due import Due, over
from node.leases.filters import wanted as wanted_by
from node.leases.limits import LOOKS_MAX, GroupLimits
from node.leases.ordering import available, head, holder
from node.leases.scratch import Scratch
from storage.messaging.groups import Group
from storage.messaging.share import LEASED, Run, Share
from storage.read.filters import PropertyFilter
from storage.read.result import ReadResult, ReadStatus
from twinlog.errors import CorruptionError
from twinlog.format.group_rows import LEFT_OUT, GivenUpRow, LeaseRow, ShareRow
from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.format.messages import in_light_queue, messages_of

OFFSET_AT = 20
"""Place of the queue offset in a stored record."""
DAMAGE_MS = 1_000
"""A retry whose record is damaged is tried again after this: another node's copy may replace it."""


class Records(Protocol):
    """What leasing needs of a store; `storage.reads.StoreReads` is one."""

    def queues(self, topic: str) -> int | None:
        """Return how many queues a confirmed topic has; None: there is no such topic."""
        ...

    def queue_range(self, topic: str, queue: int) -> tuple[int, int]:
        """Return (start, end) of a queue."""
        ...

    def offset_at(self, topic: str, queue: int, ms: int) -> int:
        """Return the first queue offset whose record was stored at ``ms`` or later."""
        ...

    def read(
        self,
        topic: str,
        queue: int,
        queue_offset: int,
        *,
        max_bytes: int,
        max_records: int,
        tag_hashes: frozenset[int] | None = None,
        where: PropertyFilter | None = None,
    ) -> ReadResult:
        """Return confirmed records; see `storage.read.reader.Reader.read`."""
        ...


class Starts(Protocol):
    """Knows where groups begin; `storage.progress.StoreMessaging` does."""

    def first_offset(self, group: Group, topic: str, queue: int) -> int | None:
        """Return where a group begins in a queue; None: by time."""
        ...


@dataclass(slots=True)
class Wish:
    """What a POP asks for. Treat as immutable; a frozen value costs more than a small pop's rows.

    Attributes:
        member: Who asks.
        pop: The member's number of the request.
        topics: Of which the messages may be.
        records: Most messages.
        size: Most bytes, unless the first record alone is larger.
        invisible_ms: How long the lease lasts.
        queues: How many queues of an ordered group the member may have; 0: any number.
    """

    member: int
    pop: int
    topics: tuple[str, ...]
    records: int
    size: int
    invisible_ms: int
    queues: int = 0


@dataclass(slots=True)
class Part:
    """One lease with where its records are.

    Attributes:
        share: Of which queue.
        run: The lease.
        found: The records: at hand, or cold.
        records: How many stored records of ``found`` are the lease's.
        size: Their bytes.
    """

    share: Share
    run: Run
    found: ReadResult
    records: int
    size: int

    def row(self) -> list[object]:
        """Return the row of the answer; see `twinlog.wire.groups`."""
        share, run = self.share, self.run
        count = run.last - run.first + 1
        return [
            share.topic, share.queue, share.id, run.n, run.first, count, run.attempt, run.until,
            self.records, self.size,
        ]  # fmt: skip


@dataclass(slots=True)
class Handed:
    """What a POP gets.

    Attributes:
        parts: Its leases.
        read: Answers to reads, each once, in the order of their records.
        records, size: Messages and bytes of all parts.
    """

    parts: list[Part] = field(default_factory=list[Part])
    read: list[ReadResult] = field(default_factory=list[ReadResult])
    records: int = 0
    size: int = 0


class Leasing:
    """Leases of one turn.

    Args:
        scratch: What the turn has decided so far.
        due: What may be handed out again.
        records: The store.
        starts: Knows where groups begin.
        now_ms: The clock.
        limits: Of shares.
        turns: By group: at which queue the next pop begins; kept by the caller.
        lasting_ms: Leases that end after this last; by default ``now_ms``.
    """

    def __init__(
        self,
        scratch: Scratch,
        due: Due,
        records: Records,
        starts: Starts,
        now_ms: int,
        limits: GroupLimits,
        turns: dict[str, int],
        lasting_ms: int | None = None,
    ) -> None:
        self._scratch = scratch
        self._due = due
        self._records = records
        self._starts = starts
        self._now_ms = now_ms
        self._limits = limits
        self._turns = turns
        self._lasting_ms = now_ms if lasting_ms is None else lasting_ms
        self.redelivered = 0
        """Messages handed out again by this turn."""
        self.full: list[Share] = []
        """Shares that were met and have reached a limit."""
        self._damage: CorruptionError | None = None

    def hand_out(self, group: Group, wish: Wish) -> Handed:
        """Lease what a POP may have; nothing: no message is there for it.

        A damaged record does not keep the messages of other queues back.

        Raises:
            CorruptionError: There is nothing but messages that are damaged, or come after one.
        """
        handed, self._damage = Handed(), None
        if group.mode == "ordered":
            self._in_order(group, wish, handed)
        else:
            self._in_any_order(group, wish, handed)
        if self._damage is not None and not handed.parts:
            raise self._damage
        return handed

    def _in_any_order(self, group: Group, wish: Wish, handed: Handed) -> None:
        ready = self._due.shares(group.name)
        if ready:
            self._again(group, wish, handed, ready, max(1, wish.records // 2))
        self._new(group, wish, handed)
        if ready and handed.records < wish.records and handed.size < wish.size:
            self._again(group, wish, handed, ready, wish.records)

    def find(self, group: Group, wish: Wish) -> Handed:
        """Return what this very request got before, as far as it still has it."""
        handed = Handed()
        for share in self._scratch.shares_of(group.name):
            for run in share.runs:
                if run.state == LEASED and run.member == wish.member and run.pop == wish.pop:
                    self._find(share, run, handed)
        return handed

    def _find(self, share: Share, run: Run, handed: Handed) -> None:
        at = run.first
        while at <= run.last:
            found = self._read(share, at, run.last + 1 - at, self._limits.bytes_max)
            if found.status is not ReadStatus.FOUND or not found.count:
                return
            after = min(found.next, run.last + 1)
            self._hand(handed, share, run._replace(first=at, last=after - 1), found)
            at = after

    def _read(self, share: Share, at: int, count: int, size: int, wanted: str = "") -> ReadResult:
        tags, where = wanted_by(wanted) if wanted else (None, None)
        return self._records.read(
            share.topic, share.queue, at, max_bytes=max(size, 1), max_records=count,
            tag_hashes=tags, where=where,
        )  # fmt: skip

    def _hand(self, handed: Handed, share: Share, run: Run, found: ReadResult) -> None:
        size = sum([len(piece) for piece in found.slices])
        handed.parts.append(Part(share, run, found, found.count, size))
        handed.read.append(found)
        handed.records += run.last - run.first + 1
        handed.size += size

    # ── again ───────────────────────────────────────────────────────────────────────────────────

    def _again(
        self, group: Group, wish: Wish, handed: Handed, ready: Sequence[int], most: int
    ) -> None:
        for number in ready:
            share = self._scratch.share(number)
            if share is not None and share.topic not in wish.topics:
                continue
            while handed.records < most and handed.size < wish.size:
                entry = self._due.take(group.name, number)
                if entry is None:
                    break
                share = self._scratch.share(number)
                runs = over(share, entry, self._now_ms) if share is not None else []
                for run in runs:
                    if run.attempt >= group.attempts:  # the group allows fewer by now
                        self._due.add(run.until, number, run.n, run.first, run.last)
                        continue
                    if handed.records >= most or handed.size >= wish.size:
                        self._due.put_back(
                            group.name, (entry[0], number, run.n, run.first, entry[4])
                        )
                        break
                    try:
                        self._lease_again(group, wish, handed, run, number, most)
                    except CorruptionError as error:
                        self._damage = error
                        at = self._now_ms + DAMAGE_MS
                        self._due.add(at, number, run.n, run.first, run.last)

    def _lease_again(
        self, group: Group, wish: Wish, handed: Handed, run: Run, number: int, most: int
    ) -> None:
        share = self._scratch.share(number)
        assert share is not None, "it has this run"
        room = min(most - handed.records, run.last - run.first + 1)
        wanted = group.filters.get(share.topic, "")
        found = self._read(share, run.first, room, wish.size - handed.size, wanted)
        if found.status is ReadStatus.BEFORE_START:  # retention has taken it
            gone = min(found.start - 1, run.last)
            self._scratch.write(GivenUpRow(number, run.n, run.first, gone, LEFT_OUT))
            if gone < run.last:
                self._due.put_back(group.name, (run.until, number, run.n, gone + 1, run.last))
            return
        if found.status is not ReadStatus.FOUND:
            return
        after, before = min(found.next, run.last + 1), handed.records
        attempt = run.attempt + 1
        if not _leaves_out(found, wanted):
            self._lease(wish, handed, share, run.first, after - run.first, attempt, found)
        else:
            for first, records, pieces in stretches(found.slices, share.topic):
                if first < after:
                    part = ReadResult(ReadStatus.FOUND, pieces, records, first + records)
                    self._lease(wish, handed, share, first, records, attempt, part)
                    share = self._scratch.share(number) or share
            # What was leased again has another number by now: this settles the rest.
            self._scratch.write(GivenUpRow(number, run.n, run.first, after - 1, LEFT_OUT))
        self.redelivered += handed.records - before
        if after <= run.last:
            self._due.put_back(group.name, (run.until, number, run.n, after, run.last))

    def _lease(
        self,
        wish: Wish,
        handed: Handed,
        share: Share,
        first: int,
        count: int,
        attempt: int,
        found: ReadResult,
    ) -> None:
        until = self._now_ms + wish.invisible_ms
        n = share.n + 1
        row = LeaseRow(share.id, n, first, count, wish.member, wish.pop, until, attempt)
        wrote = self._scratch.write(row)
        assert wrote, f"the share does not take {row}"
        last = first + count - 1
        self._due.add(until, share.id, n, first, last)
        run = Run(first, last, LEASED, n, attempt, until, wish.member, wish.pop)
        self._hand(handed, share, run, found)

    # ── in order ────────────────────────────────────────────────────────────────────────────────

    def _in_order(self, group: Group, wish: Wish, handed: Handed) -> None:
        """Lease what comes next in each queue that is the member's, or free; see `ordering`."""
        shares = self._scratch.shares_of(group.name)
        mine = [share.id for share in shares if holder(share) == wish.member]
        held, kept = set(mine), set(mine[: wish.queues])
        for topic, queue in self._places(group, wish):
            if handed.records >= wish.records or handed.size >= wish.size:
                return
            share = self._scratch.find(group.name, topic, queue)
            number = share.id if share is not None else 0
            own = number in held
            if wish.queues and (number not in kept if own else len(held) >= wish.queues):
                continue
            before = handed.records
            try:
                if not number or self._heads(group, wish, handed, number):
                    self._from_queue(group, wish, handed, topic, queue)
            except CorruptionError as error:
                self._damage = error
            if handed.records > before:
                self._turns[group.name] = queue + 1
                taken = self._scratch.find(group.name, topic, queue)
                if taken is not None and not own:
                    held.add(taken.id)

    def _heads(self, group: Group, wish: Wish, handed: Handed, number: int) -> bool:
        """Lease again what a queue begins with; whether its new messages may follow."""
        for _ in range(LOOKS_MAX):
            share = self._scratch.share(number)
            assert share is not None, "it was there"
            at = head(share, wish.member, self._lasting_ms)
            if at == share.next:
                return True
            if at is None or handed.records >= wish.records or handed.size >= wish.size:
                return False
            found = available(self._ready(group, share), at)
            if found is None:
                return False
            if found.attempt >= group.attempts:  # the group allows fewer by now
                self._due.add(found.until, number, found.n, found.first, found.last)
                return False
            try:
                self._lease_again(group, wish, handed, found, number, wish.records)
            except CorruptionError:
                at_ms = self._now_ms + DAMAGE_MS
                self._due.add(at_ms, number, found.n, found.first, found.last)
                raise
        return False

    def _ready(self, group: Group, share: Share) -> list[Run]:
        """Return what of a share can be leased again; entries that are true no more are dropped."""
        found: list[Run] = []
        entries = dict.fromkeys(iter(lambda: self._due.take(group.name, share.id), None))
        for entry in reversed(entries):
            runs = over(share, entry, self._now_ms)
            found += runs
            if runs:
                self._due.put_back(group.name, entry)
        return found

    # ── new ─────────────────────────────────────────────────────────────────────────────────────

    def _places(self, group: Group, wish: Wish) -> Iterator[tuple[str, int]]:
        """Yield the queues of all topics, those whose turn it is first."""
        turn = self._turns.get(group.name, 0)
        for topic in wish.topics:
            queues = self._records.queues(topic) or 0
            for at in range(queues):
                yield topic, (turn + at) % queues

    def _new(self, group: Group, wish: Wish, handed: Handed) -> None:
        for topic, queue in self._places(group, wish):
            if handed.records >= wish.records or handed.size >= wish.size:
                return
            try:
                if self._from_queue(group, wish, handed, topic, queue):
                    self._turns[group.name] = queue + 1
            except CorruptionError as error:
                self._damage = error

    def _from_queue(self, group: Group, wish: Wish, handed: Handed, topic: str, queue: int) -> bool:
        """Lease new messages of one queue; whether there were any."""
        share = self._scratch.find(group.name, topic, queue)
        start, end = self._records.queue_range(topic, queue)
        if share is None:
            if start == end:
                return False
            share = self.begin(group, topic, queue)
        at, before = max(share.next, start), handed.records
        wanted = group.filters.get(topic, "")
        for _ in range(LOOKS_MAX):
            if at >= end or handed.records >= wish.records or handed.size >= wish.size:
                break
            if share.full(self._limits.span_max, self._limits.runs_max):
                self.full.append(share)
                break
            room = min(wish.records - handed.records, self._limits.span_max - share.span)
            found = self._read(share, at, room, wish.size - handed.size, wanted)
            if found.status is not ReadStatus.FOUND:
                break
            at = self._lease_found(wish, handed, share, at, found, wanted)
            share = self._scratch.share(share.id) or share
        return handed.records > before

    def _lease_found(
        self,
        wish: Wish,
        handed: Handed,
        share: Share,
        at: int,
        found: ReadResult,
        wanted: str,
    ) -> int:
        """Lease what a read found; return the offset after it."""
        after = found.next
        if not found.count:
            self._pass_over(wish, share, after)
            return after
        if not _leaves_out(found, wanted):
            self._lease(wish, handed, share, at, after - at, 1, found)
            return after
        for first, records, pieces in stretches(found.slices, share.topic):
            share = self._scratch.share(share.id) or share
            part = ReadResult(ReadStatus.FOUND, pieces, records, first + records)
            self._lease(wish, handed, share, first, records, 1, part)
        share = self._scratch.share(share.id) or share
        if share.next < after:
            self._pass_over(wish, share, after)
        return after

    def _pass_over(self, wish: Wish, share: Share, after: int) -> None:
        """Settle new messages that the filter leaves out."""
        row = LeaseRow(share.id, share.n + 1, after, 0, wish.member, wish.pop, 0, 0)
        self._scratch.write(row)

    def begin(self, group: Group, topic: str, queue: int, name: str = "") -> Share:
        """Begin a share where the group begins; ``name`` is another name it is kept under."""
        scratch = self._scratch
        start = self._starts.first_offset(group, topic, queue)
        if start is None:
            start = self._records.offset_at(topic, queue, group.start)
        row = ShareRow(scratch.next_share(), name or group.name, topic, 0, queue, start)
        scratch.write(row)
        share = scratch.find(row.group, topic, queue)
        assert share is not None, "it was written"
        return share


def _leaves_out(found: ReadResult, wanted: str) -> bool:
    """Whether records were left out of what was found; of cold ones it is not known yet."""
    return bool(wanted) and not found.cold


def stretches(
    slices: Sequence[memoryview], topic: str = ""
) -> Iterator[tuple[int, int, list[memoryview]]]:
    """Yield (first queue offset, records, pieces) of neighbours among stored records.

    Offsets are those of ``topic`` where that is a light queue, else of the records' own queue.
    """
    light = topic if topic.startswith(LIGHT_PREFIX) else ""
    first, count, pieces = -1, 0, list[memoryview]()
    for each in slices:
        at = 0
        while at < len(each):
            size = int.from_bytes(each[at : at + 4], "big")
            place = at + OFFSET_AT
            offset = int.from_bytes(each[place : place + 8], "big")
            if light:
                [message] = messages_of(each[at : at + size])
                offset = in_light_queue(message, light).queue_offset
            if offset != first + count:
                if count:
                    yield first, count, pieces
                first, count, pieces = offset, 0, []
            count += 1
            pieces.append(each[at : at + size])
            at += size
    if count:
        yield first, count, pieces

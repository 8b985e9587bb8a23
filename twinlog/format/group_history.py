"""What work queues did, told from the rows in the log: who was given what, and what became of it.

`History` takes the rows of ``rmq_sys_TWINLOG_GROUP`` in their order and tells them as steps. A row
names its queue by the number of a share and its member by a number: what those stand for is in
earlier rows, or in the documents of groups as they are now (`History.know`). A row whose share is
in neither is left out, not guessed.

A row that settles names a range and a lease; what of the range was settled before, or handed out
again since, is not what the row is about and is left out, as far as the rows show the leases.

Units: queue offsets, ranges inclusive; ms since 1970. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, cast

from twinlog.format.group_rows import (
    DEAD_LETTER,
    DROPPED,
    AckRow,
    CancelRow,
    CheckRow,
    DelayRow,
    ExtendRow,
    ForgottenRow,
    GivenUpRow,
    HalfRow,
    LeaseRow,
    MemberRow,
    OpenRow,
    PositionRow,
    ReleaseRow,
    ResetRow,
    Row,
    ShareRow,
    TimerRow,
    UnknownRow,
    WaitsRow,
    decode_rows,
)
from twinlog.kernels.plain import Buffer

SIGN = "~"
"""Between a broadcast group and the name of its member, in the name that a share is kept under."""

LEASED, ACKED, DEAD = "leased", "acked", "dead"
_HOW = {DEAD_LETTER: DEAD, DROPPED: "dropped"}


class Step(NamedTuple):
    """One thing that happened to some messages of a queue, or to a group's members.

    Attributes:
        at_ms: When: store time of its row.
        group: Which group.
        what: ``joined``, ``left``; ``begun`` (the group begins with a queue), ``leased``,
            ``acked``, ``given back``, ``unused`` (given back, and the attempt does not count),
            ``extended``, ``dead``, ``dropped`` (given up in a group without dead letters), ``left
            out`` (by a filter, or deleted by retention), ``position`` (read up to there),
            ``reset``, ``forgotten``.
        member: Number of the member; 0: none, or unknown.
        name: What the member calls itself; "": unknown.
        topic: Of the queue; "" where it is about a member.
        queue: Queue number; -1 likewise.
        first: First message. Of ``begun`` and ``reset``: where the group goes on.
        last: Last message; -1: does not apply, or unknown.
        attempt: How often the messages were handed out, this time included; 0: does not apply.
        until_ms: End of the lease; of ``given back``: from when on they may be handed out again.
        why: Of a reset: the reason that was given.
    """

    at_ms: int
    group: str
    what: str
    member: int = 0
    name: str = ""
    topic: str = ""
    queue: int = -1
    first: int = -1
    last: int = -1
    attempt: int = 0
    until_ms: int = 0
    why: str = ""


@dataclass(slots=True)
class _Held:
    """Messages that were handed out and are not settled."""

    first: int
    last: int
    n: int
    member: int
    attempt: int


@dataclass(slots=True)
class _Queue:
    """A share, as far as the rows show it.

    Attributes:
        group, name: Whose it is; a name only for a member of a broadcast group.
        topic: Of the queue.
        queue: Its number.
        next: First message that was never handed out; -1: unknown.
        whole: Everything since the group began with it is in the rows.
        since: First lease in the rows; None: none yet.
        held: What is handed out, in order.
    """

    group: str
    name: str
    topic: str
    queue: int
    next: int = -1
    whole: bool = False
    since: int | None = None
    held: list[_Held] = field(default_factory=list[_Held])

    def lease(self, row: LeaseRow) -> None:
        self.since = row.n if self.since is None else self.since
        first, last = row.first, row.first + row.messages - 1
        for _ in self.take(None, first, last):
            pass
        at = bisect_right(self.held, first, key=_FIRST)
        self.held.insert(at, _Held(first, last, row.n, row.member, row.attempt))
        self.next = max(self.next, last + 1)

    def take(
        self, n: int | None, first: int, last: int, *, keep: bool = False
    ) -> Iterator[tuple[int, int, _Held | None]]:
        """Yield the parts of a range that lease ``n`` holds, and remove them unless ``keep``.

        None: any lease. A lease from before the first one in the rows yields what no other holds,
        with None.
        """
        begin = max(0, bisect_right(self.held, first, key=_FIRST) - 1)
        kept, parts, at, end = list[_Held](), list[tuple[int, int, _Held | None]](), first, begin
        early = n is not None and (self.since is None or n < self.since)
        while end < len(self.held) and (one := self.held[end]).first <= last:
            end += 1
            low, high = max(first, one.first), min(last, one.last)
            if low > high:
                kept.append(one)
                continue
            if early and at < low:
                parts.append((at, low - 1, None))
            at = high + 1
            if n is not None and one.n != n:
                kept.append(one)
                continue
            parts.append((low, high, one))
            if one.first < low:
                kept.append(_Held(one.first, low - 1, one.n, one.member, one.attempt))
            if one.last > high:
                kept.append(_Held(high + 1, one.last, one.n, one.member, one.attempt))
        if early and at <= last:
            parts.append((at, last, None))
        if not keep:
            self.held[begin:end] = kept
        yield from parts


_FIRST = attrgetter("first")


class History:
    """Tells rows as steps; see the module."""

    def __init__(self) -> None:
        self._queues: dict[int, _Queue] = {}
        self._names: dict[int, str] = {}

    def know(self, document: Mapping[str, object]) -> None:
        """Take the queues and members that a group has now, as GROUP ``show`` names them."""
        group = str(document.get("name"))
        for queue in _maps(document.get("queues")):
            share, number = queue.get("share"), queue.get("queue")
            if isinstance(share, int) and isinstance(number, int):
                name, topic = str(queue.get("name") or ""), str(queue.get("topic"))
                self._queues[share] = _Queue(group, name, topic, number)
        for member in _maps(document.get("people")):
            number = member.get("member")
            if isinstance(number, int):
                self._names[number] = str(member.get("name") or "")

    def low(self, share: int) -> tuple[str, str, int, int] | None:
        """Return (group, topic, queue, first message that is not settled) after the rows so far.

        Of a member of a broadcast group the name is ``group~member``. None: there is no such share,
        or the rows do not show where its group is.
        """
        queue = self._queues.get(share)
        if queue is None or not queue.whole:
            return None
        name = queue.group + SIGN + queue.name if queue.name else queue.group
        low = queue.held[0].first if queue.held else queue.next
        return name, queue.topic, queue.queue, low

    def told(self, body: Buffer, at_ms: int) -> list[Step]:
        """Return the steps of one record; ``at_ms`` is its store time."""
        return [step for row in decode_rows(body) for step in self.steps(row, at_ms)]

    def steps(self, row: Row | UnknownRow, at_ms: int) -> Iterable[Step]:
        """Return the steps of one row."""
        match row:
            case UnknownRow() | DelayRow() | TimerRow() | CancelRow() | WaitsRow():
                return ()
            case HalfRow() | CheckRow() | OpenRow():
                return ()
            case MemberRow():
                self._names[row.member] = row.name
                what = "joined" if row.joined else "left"
                return (Step(at_ms, row.group, what, row.member, row.name),)
            case ShareRow():
                group, _, name = row.group.partition(SIGN)
                queue = _Queue(group, name, row.topic, row.queue, row.start, whole=True)
                self._queues[row.share] = queue
                return (_step(queue, at_ms, "begun", row.start),)
            case _:
                found = self._queues.get(row.share)
                return () if found is None else self._of_queue(found, row, at_ms)

    def _of_queue(
        self,
        queue: _Queue,
        row: LeaseRow | AckRow | GivenUpRow | ReleaseRow | ExtendRow | PositionRow | ResetRow
        | ForgottenRow,
        at_ms: int,
    ) -> Iterable[Step]:  # fmt: skip
        match row:
            case LeaseRow():
                return self._leased(queue, row, at_ms)
            case AckRow():
                return self._held(queue, row, at_ms, ACKED)
            case GivenUpRow():
                return self._held(queue, row, at_ms, _HOW.get(row.how, "left out"))
            case ReleaseRow():
                what = "unused" if row.unused else "given back"
                return self._held(queue, row, at_ms, what, row.at, keep=True)
            case ExtendRow():
                return self._held(queue, row, at_ms, "extended", row.until, keep=True)
            case PositionRow():
                begin, queue.next, queue.whole = queue.next, row.next, True
                step = _step(queue, at_ms, "position", begin, row.next - 1)
                name = queue.name or self._name(row.member)
                return (step._replace(member=row.member, name=name),)
            case ResetRow():
                queue.held.clear()
                queue.next, queue.whole = row.next, True
                return (_step(queue, at_ms, "reset", row.next)._replace(why=row.why),)
            case _:
                del self._queues[row.share]
                return (_step(queue, at_ms, "forgotten"),)

    def _leased(self, queue: _Queue, row: LeaseRow, at_ms: int) -> Iterator[Step]:
        if 0 <= queue.next < row.first:
            yield _step(queue, at_ms, "left out", queue.next, row.first - 1)
        queue.next = max(queue.next, row.first)
        if not row.messages:
            return
        queue.lease(row)
        yield _step(queue, at_ms, LEASED, row.first, row.first + row.messages - 1)._replace(
            member=row.member, name=self._name(row.member), attempt=row.attempt,
            until_ms=row.until,
        )  # fmt: skip

    def _held(
        self,
        queue: _Queue,
        row: AckRow | GivenUpRow | ReleaseRow | ExtendRow,
        at_ms: int,
        what: str,
        until_ms: int = 0,
        *,
        keep: bool = False,
    ) -> Iterator[Step]:
        for first, last, held in queue.take(row.n, row.first, row.last, keep=keep):
            step = _step(queue, at_ms, what, first, last)._replace(until_ms=until_ms)
            if held is not None:
                who = self._name(held.member)
                step = step._replace(member=held.member, name=who, attempt=held.attempt)
            yield step

    def _name(self, member: int) -> str:
        return self._names.get(member, "")


def _step(queue: _Queue, at_ms: int, what: str, first: int = -1, last: int = -1) -> Step:
    name = queue.name
    return Step(
        at_ms, queue.group, what, name=name, topic=queue.topic, queue=queue.queue, first=first,
        last=last,
    )  # fmt: skip


def _maps(value: object) -> list[Mapping[str, object]]:
    if not isinstance(value, (list, tuple)):
        return []
    items = cast("Iterable[object]", value)
    return [cast("Mapping[str, object]", item) for item in items if isinstance(item, dict)]

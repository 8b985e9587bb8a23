"""Holds a history against what a log promises, without knowing how the log works.

What is found has a kind:

* *phantom*: a message was read that was never sent, was refused, or was sent later;
* *duplicate*: a message stands at two places of a queue;
* *disagreement*: two readers saw different messages at one place, or a sender heard of another;
* *lost*: a confirmed message is missing where it must be seen;
* *gap*: a section is torn, or places of a queue are held by no message that was sent;
* *order*: messages of one producer do not stand in the order in which they were sent;
* *not-linearizable*: the answers are right one by one, and no order of events explains all of them.

Each queue is checked by itself (a history of independent parts is linearizable if each part is).
A queue only grows at its end, so the state of the search is its length: a send adds its messages
at its place, and an answer about the end must be the length. Which message stands where is known
from all reads together, after they have been found to agree. Sends whose outcome is unknown, and
those acknowledged with less than ``confirmed``, count if they were ever seen.

An answer that calls itself settled and comes from a smaller epoch than one that ended before it
began is *old*: a master that does not yet know that it is deposed. It is counted, not held against
the log (docs/guarantees.md).

Pure. Not here: the file (``cli.history.operations``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf

from cli.history.linearizable import Call, linearizable
from cli.history.operations import CONFIRMED, Operation
from twinlog.errors import UsageError

FINDINGS_MAX = 20
"""Of one kind in one queue; the others are only counted."""

Queue = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and the operations that show it."""

    kind: str
    text: str
    operations: tuple[str, ...] = ()


@dataclass(slots=True)
class Verdict:
    """What a history says.

    Attributes:
        findings: What is wrong; empty: one log explains every answer.
        counts: Operations by kind and outcome, messages seen, old answers.
        unsure: Queues whose search was given up: neither right nor wrong.
    """

    findings: list[Finding] = field(default_factory=list[Finding])
    counts: Counter[str] = field(default_factory=Counter[str])
    unsure: list[Queue] = field(default_factory=list[Queue])

    @property
    def holds(self) -> bool:
        """True when nothing is wrong and every queue was searched to the end."""
        return not self.findings and not self.unsure


def check(operations: Iterable[Operation]) -> Verdict:
    """Check a whole history.

    Raises:
        UsageError: Two sends name the same message, so nothing can be said of it.
    """
    verdict = Verdict()
    queues: dict[Queue, list[Operation]] = defaultdict(list)
    everything = sorted(operations, key=lambda one: one.begin)
    newest = _newest_epochs(everything)
    for one in everything:
        verdict.counts[f"{one.op} {one.outcome}"] += 1
        if one.settled and 0 < one.epoch < newest(one.begin):
            verdict.counts["old"] += 1
            if one.op == "end":
                continue
            one = _without_word(one)
        queues[one.topic, one.queue].append(one)
    for queue, some in sorted(queues.items()):
        verdict.counts["queues"] += 1
        _OneQueue(queue, some, verdict).check()
    return verdict


def _without_word(one: Operation) -> Operation:
    """Return a read whose word that there is nothing more does not count."""
    return Operation(
        one.id, one.client, one.op, one.topic, one.queue, one.begin, one.end, one.outcome,
        one.records, start=one.start, epoch=one.epoch,
    )  # fmt: skip


def _newest_epochs(operations: Sequence[Operation]) -> Callable[[float], int]:
    """Return a function of a moment: the newest epoch that had answered before it."""
    ended = sorted((one.end, one.epoch) for one in operations if one.end is not None and one.epoch)
    moments = [moment for moment, _ in ended]
    epochs = list(accumulate((epoch for _, epoch in ended), max))

    def newest(moment: float) -> int:
        at = bisect_left(moments, moment)
        return epochs[at - 1] if at else 0

    return newest


class _OneQueue:
    """The operations of one queue, and what they say together."""

    def __init__(self, queue: Queue, operations: list[Operation], verdict: Verdict) -> None:
        self._name = f"{queue[0]}/{queue[1]}"
        self._queue = queue
        self._verdict = verdict
        self._found: Counter[str] = Counter()
        self._sends = [one for one in operations if one.op == "send"]
        self._reads = [one for one in operations if one.op == "read" and one.outcome == "ok"]
        self._ends = [
            (one, one.value if one.op == "end" else one.start + len(one.records))
            for one in operations
            if one.op != "send" and one.outcome == "ok" and one.settled
        ]
        self._sender: dict[str, Operation] = {}
        self._at: dict[int, str] = {}
        self._place: dict[str, int] = {}
        self._first_seen: dict[str, Operation] = {}
        self._base: dict[str, int] = {}  # of a send, by its id

    def _find(self, kind: str, text: str, *operations: Operation) -> None:
        self._found[kind] += 1
        if self._found[kind] <= FINDINGS_MAX:
            ids = tuple(one.id for one in operations)
            self._verdict.findings.append(Finding(kind, f"{self._name}: {text}", ids))

    def check(self) -> None:
        for one in self._sends:
            for name in one.records:
                if name in self._sender:
                    text = f"{self._name}: two sends name the message {name!r}"
                    raise UsageError(text, code="history")
                self._sender[name] = one
        self._readers_agree()
        self._no_phantom()
        self._sections_are_whole()
        self._producers_in_order()
        self._nothing_lost()
        self._verdict.counts["messages seen"] += len(self._place)
        if not self._found:
            self._one_order()

    # -- what was read

    def _readers_agree(self) -> None:
        for one in self._reads:
            for number, name in enumerate(one.records):
                at = one.start + number
                held = self._at.get(at)
                if held == name:
                    seen = self._first_seen[name]
                    if one.end is not None and (seen.end is None or one.end < seen.end):
                        self._first_seen[name] = one
                    continue
                if held is not None:
                    text = f"{at} is {held!r} and {name!r}"
                    self._find("disagreement", text, self._first_seen[held], one)
                elif name in self._place:
                    text = f"{name!r} stands at {self._place[name]} and {at}"
                    self._find("duplicate", text, self._first_seen[name], one)
                else:
                    self._at[at], self._place[name] = name, at
                    self._first_seen[name] = one

    def _no_phantom(self) -> None:
        for name, seen in self._first_seen.items():
            sent = self._sender.get(name)
            at = self._place[name]
            if sent is None:
                self._find("phantom", f"{name!r} at {at} was never sent", seen)
            elif sent.outcome == "fail":
                self._find("phantom", f"{name!r} at {at} was refused", sent, seen)
            elif seen.end is not None and seen.end < sent.begin:
                self._find("phantom", f"{name!r} at {at} was read before it was sent", sent, seen)

    def _sections_are_whole(self) -> None:
        for one in self._sends:
            seen = [(n, self._place[name]) for n, name in enumerate(one.records)
                    if name in self._place]  # fmt: skip
            told = one.offset if one.outcome == "ok" and one.ack == CONFIRMED else None
            if not seen and told is None:
                continue
            base = seen[0][1] - seen[0][0] if seen else told
            assert base is not None
            if told not in (None, base):
                self._find("disagreement", f"{one.records[0]!r} at {base}, told {told}", one)
                continue
            for number, name in enumerate(one.records):
                held = self._at.get(base + number, name)
                if held != name:
                    kind = "gap" if seen else "lost"
                    text = f"{name!r} belongs at {base + number}, which is {held!r}"
                    self._find(kind, text, one, self._first_seen[held])
                    break
            self._base[one.id] = base

    def _producers_in_order(self) -> None:
        lines: dict[str, list[tuple[int, int, Operation]]] = defaultdict(list)
        for one in self._sends:
            if one.producer and one.sequence is not None and one.id in self._base:
                lines[one.producer].append((one.sequence, self._base[one.id], one))
        for producer, line in lines.items():
            line.sort(key=lambda place: place[:2])
            for (low, before, first), (high, after, second) in pairwise(line):
                if low < high and before >= after:
                    text = f"{producer}: {low} at {before}, {high} at {after}"
                    self._find("order", text, first, second)

    def _is_confirmed(self, one: Operation) -> bool:
        return one.outcome == "ok" and one.ack == CONFIRMED

    def _nothing_lost(self) -> None:
        known = sorted(
            (one.end, self._base[one.id] + len(one.records))
            for one in self._sends
            if self._is_confirmed(one) and one.end is not None and one.id in self._base
        )
        moments = [moment for moment, _ in known]
        needed = list(accumulate((top for _, top in known), max))
        for one, value in self._ends:
            at = bisect_left(moments, one.begin)
            if at and value < needed[at - 1]:
                text = f"ends at {value}, confirmed before up to {needed[at - 1]}"
                self._find("lost", text, one)
        whole = max((value for _, value in self._ends), default=0)
        if all(at in self._at for at in range(whole)):
            last = max((one.begin for one, value in self._ends if value == whole), default=-inf)
            for one in self._sends:
                told = one.end if self._is_confirmed(one) and one.id not in self._base else None
                if told is not None and told < last:
                    text = f"{one.records[0]!r} was confirmed and is nowhere in 0..{whole}"
                    self._find("lost", text, one)

    # -- one order of all

    def _one_order(self) -> None:
        taken = set(self._at)
        for one in self._sends:
            if one.id in self._base:
                taken.update(range(self._base[one.id], self._base[one.id] + len(one.records)))
        top = max([-1, *taken]) + 1
        top = max([top, *(value for _, value in self._ends)])  # the newest may never be read
        low = min((value for _, value in self._ends), default=top)
        low = min(low, min(taken, default=low))
        holes = sum(at not in taken for at in range(low, top))
        calls = self._calls_with_a_place()
        if calls is None:
            return
        if holes:
            spare = [one for one in self._sends if one.id not in self._base and _may_be(one)]
            if sum(len(one.records) for one in spare) < holes:
                text = f"{holes} places below {top} are held by no message that was sent"
                self._find("gap", text)
                return
            calls += [_somewhere(one, taken) for one in spare]
        self._search(calls, low)

    def _calls_with_a_place(self) -> list[Call] | None:
        by = self._deadlines()
        calls = [
            Call(one.begin, one.end if one.end is not None else inf, _ends_at(value),
                 f"{one.id}: {self._name} ends at {value}")
            for one, value in self._ends
        ]  # fmt: skip
        for one in self._sends:
            base = self._base.get(one.id)
            if base is None:
                continue
            end = one.end if self._is_confirmed(one) and one.end is not None else inf
            end = min(end, by(base))
            if end < one.begin:
                text = f"what is after {one.records[0]!r} was there before it was sent"
                self._find("not-linearizable", text, one)
                return None
            what = f"{one.id}: send of {one.records[0]!r} at {base}"
            calls.append(Call(one.begin, end, _stored_at(base, len(one.records)), what))
        return calls

    def _deadlines(self) -> Callable[[int], float]:
        """Return when the message at a place must have been there: seen, or another one after."""
        tops = [(one.start + len(one.records), one.end) for one in self._reads if one.records]
        tops += [
            (self._base[one.id] + len(one.records), one.end)
            for one in self._sends
            if one.id in self._base and self._is_confirmed(one)
        ]
        ordered = sorted((top, inf if end is None else end) for top, end in tops)
        least = list(accumulate((end for _, end in reversed(ordered)), min))[::-1]
        places = [top for top, _ in ordered]

        def by(place: int) -> float:
            at = bisect_right(places, place)
            return least[at] if at < len(least) else inf

        return by

    def _search(self, calls: list[Call], state: int) -> None:
        """Search part after part: where no operation is under way, everything before is done."""
        calls.sort(key=lambda call: call.begin)
        part: list[Call] = []
        until = -inf
        for call in [*calls, None]:
            if call is not None and (not part or call.begin <= until):
                part.append(call)
                until = max(until, call.end)
                continue
            answer = linearizable(part, state)
            if answer.holds is None:
                self._verdict.unsure.append(self._queue)
                return
            if not answer.holds:
                what = answer.stuck.what if answer.stuck is not None else "nothing"
                self._find("not-linearizable", f"length {answer.state} does not allow {what}")
                return
            state = answer.state
            if call is not None:
                part, until = [call], call.end


def _may_be(one: Operation) -> bool:
    return one.outcome == "unknown" or (one.outcome == "ok" and bool(one.records))


def _ends_at(value: int) -> Callable[[int], int | None]:
    return lambda state: state if state == value else None


def _stored_at(base: int, count: int) -> Callable[[int], int | None]:
    return lambda state: base + count if state == base else None


def _somewhere(one: Operation, taken: set[int]) -> Call:
    """Return a send that no read has seen: it may hold places that no other one holds."""
    count = len(one.records)

    def step(state: int) -> int | None:
        free = all(at not in taken for at in range(state, state + count))
        return state + count if free else None

    return Call(one.begin, inf, step, f"{one.id}: send of {one.records[0]!r}, place unknown")

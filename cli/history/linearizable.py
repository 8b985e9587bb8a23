"""Whether operations that overlapped can be put into one order: Wing and Gong's search.

A history is *linearizable* if each operation can be given one moment between its begin and its end
so that, done one after another at these moments, all answers are right. The search is that of Wing
and Gong with Lowe's memory of what was tried, as in Porcupine: events are a linked list; an
operation that may come next is lifted out of it; at the end of an operation that was not taken the
last choice is undone. A set of operations done together with the state they made is tried once.

    G. Lowe, "Testing for linearizability", Concurrency and Computation 29 (2017).
    A. Athalye, "Porcupine: a fast linearizability checker in Go", github.com/anishathalye/porcupine

Pure. Not here: what an operation does (`Call.step`), how a history becomes calls
(``cli.history.checker``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

STEPS_MAX = 5_000_000
"""Of one search; beyond, the answer is that it is not known. Each is some microseconds."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation.

    Attributes:
        begin: When it began; it takes effect no earlier.
        end: When it had ended; it takes effect no later. Infinite: it may have no effect at all.
        step: Returns the state after it, None when its answer is not possible in that state.
        what: The operation, for a person.
    """

    begin: float
    end: float
    step: Callable[[int], int | None]
    what: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the search found.

    Attributes:
        holds: There is such an order; None: the search gave up after `STEPS_MAX`.
        stuck: The operation that could never take effect in time, of the longest attempt.
        state: The state after the last operation of that order, or of that attempt.
    """

    holds: bool | None
    stuck: Call | None = None
    state: int = 0


class _Entry:
    """An event: the begin of an operation, or its end."""

    __slots__ = ("after", "before", "call", "end", "number")

    def __init__(self, call: Call, number: int) -> None:
        self.call = call
        self.number = number
        self.end: _Entry | None = None  # of a begin: the end
        self.before: _Entry = self
        self.after: _Entry | None = None


def linearizable(calls: Sequence[Call], state: int) -> Answer:
    """Search for an order of ``calls`` from ``state``."""
    head = _linked(calls)
    wanted = sum(call.end < inf for call in calls)
    done, taken, steps = 0, 0, 0
    tried: set[tuple[int, int]] = {(0, state)}
    chosen: list[tuple[_Entry, int]] = []
    best = Answer(False)
    furthest = -1
    entry = head.after
    while wanted > taken:
        steps += 1
        if steps > STEPS_MAX:
            return Answer(None, best.stuck, best.state)
        assert entry is not None, "the end of an operation that must be done comes first"
        if entry.end is not None:
            after = entry.call.step(state)
            if after is not None and (done | 1 << entry.number, after) not in tried:
                done |= 1 << entry.number
                tried.add((done, after))
                chosen.append((entry, state))
                taken += entry.call.end < inf
                state = after
                _lift(entry)
                entry = head.after
            else:
                entry = entry.after
            continue
        if taken > furthest:
            furthest, best = taken, Answer(False, entry.call, state)
        if not chosen:
            return best
        last, state = chosen.pop()
        done &= ~(1 << last.number)
        taken -= last.call.end < inf
        _put_back(last)
        entry = last.after
    return Answer(True, None, state)


def _linked(calls: Sequence[Call]) -> _Entry:
    """Return the events in order of time, after a head; at one moment begins come first."""
    events: list[tuple[float, bool, int, _Entry]] = []
    for number, call in enumerate(calls):
        begin, end = _Entry(call, number), _Entry(call, number)
        begin.end = end
        events.append((call.begin, False, number, begin))
        events.append((call.end, True, number, end))
    events.sort(key=lambda event: event[:3])
    head = last = _Entry(Call(0, 0, lambda state: state, "head"), -1)
    for *_, entry in events:
        entry.before, last.after = last, entry
        last = entry
    return head


def _lift(entry: _Entry) -> None:
    """Take a begin and its end out of the list; they remember their places."""
    assert entry.end is not None
    for one in (entry, entry.end):
        one.before.after = one.after
        if one.after is not None:
            one.after.before = one.before


def _put_back(entry: _Entry) -> None:
    """Undo `_lift`, newest first."""
    assert entry.end is not None
    for one in (entry.end, entry):
        if one.after is not None:
            one.after.before = one
        one.before.after = one

"""Where do the logs of two store directories part?

`compare` reads the bytes of two logs where both have them, and asks their epoch histories up to
where they should be equal. The two answers differ when bytes were damaged: the bytes say what is,
the histories what replication relies on.

Units: log offsets in bytes; ends are exclusive.

Not here: whether a directory is sound (`twinlog.store.verify.check`), repairs.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinlog.errors import CorruptionError
from twinlog.format.epoch_history import HistoriesDiffer, consistent_point
from twinlog.store.reader import StoreReader

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """Where two logs part.

    Attributes:
        start: First offset that both logs have.
        end_first: End of the first log.
        end_second: End of the second log.
        equal_to: End of the bytes found equal.
        difference: Offset of the first byte that differs where both have bytes; None: none does.
        consistent: Offset up to which the epoch histories say the logs are equal; None when they
            share no epoch, one is missing, or they contradict each other.
        conflict: How the histories contradict each other; None when they do not. Two logs whose
            histories conflict are not of the same group.
        unread: Offset of the first byte that a side should have and that cannot be read, because
            its file is missing or unreadable; None when everything was read.
        apart: No byte was compared: one log ends before the other begins.
    """

    start: int
    end_first: int
    end_second: int
    equal_to: int
    difference: int | None
    consistent: int | None
    conflict: str | None = None
    unread: int | None = None
    apart: bool = False


def compare(first: StoreReader, second: StoreReader) -> Comparison:
    """Compare the logs of two directories byte by byte, where both have them."""
    start = max(first.start, second.start)
    end = min(first.end, second.end)
    difference, unread = _first_difference(first, second, start, end)
    stops = [at for at in (difference, unread) if at is not None]
    consistent, conflict = _promised(first, second)
    return Comparison(
        start=start,
        end_first=first.end,
        end_second=second.end,
        equal_to=min(stops, default=max(end, start)),
        difference=difference,
        consistent=consistent,
        conflict=conflict,
        unread=unread,
        apart=start >= end and first.start != second.start,
    )


def _promised(first: StoreReader, second: StoreReader) -> tuple[int | None, str | None]:
    """Return the consistent point, and how the histories contradict each other."""
    try:
        return consistent_point(_history(first), first.end, _history(second), second.end), None
    except HistoriesDiffer as conflict:
        return None, str(conflict)


def _history(store: StoreReader) -> list[tuple[int, int]]:
    """Return the epochs of a log; empty when their file is damaged, which verification reports."""
    try:
        return store.kept_epochs()
    except CorruptionError:
        return []


def _first_difference(
    first: StoreReader, second: StoreReader, start: int, end: int
) -> tuple[int | None, int | None]:
    """Return the first offset where bytes differ, and the first that a side cannot read."""
    at, unread = start, None
    while at < end:
        size = min(_CHUNK, end - at)
        one, two = first.series.read(at, size), second.series.read(at, size)
        size = min(len(one), len(two))
        if not size:
            unread = at if unread is None else unread
            at = max(
                side.series.behind(at) for side, data in ((first, one), (second, two)) if not data
            )
            continue
        if one[:size] != two[:size]:
            return at + _differs(one[:size], two[:size]), unread
        at += size
    return None, unread


def _differs(one: memoryview, two: memoryview) -> int:
    """Return the index of the first byte that differs; the two must not be equal."""
    low, high = 0, len(one)
    while high - low > 1:
        mid = (low + high) // 2
        low, high = (mid, high) if one[low:mid] == two[low:mid] else (low, mid)
    return low

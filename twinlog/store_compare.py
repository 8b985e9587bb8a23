"""Where do the logs of two store directories part?

`compare` works on the bytes of two logs where both have them; `consistent_point` on their epoch
histories. They answer different questions: bytes say what is, histories what was promised.

Units: log offsets in bytes; ends are exclusive.

Not here: whether a directory is sound (`store_check`), cutting anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinlog.errors import CorruptionError
from twinlog.store_reader import StoreReader

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """Where two logs part.

    ``difference`` is the log offset of the first byte that differs where both have bytes; None when
    there is none. ``unread`` is the first byte that a side should have and that cannot be read: its
    file is lost or unreadable. ``equal_to`` is the end of what is equal. ``consistent`` is what the
    two epoch histories promise to be equal; None where a side has no history. ``apart``: no byte
    was compared, for one log begins where the other has ended already.
    """

    start: int
    end_first: int
    end_second: int
    equal_to: int
    difference: int | None
    consistent: int | None
    unread: int | None = None
    apart: bool = False


def compare(first: StoreReader, second: StoreReader) -> Comparison:
    """Compare the logs of two directories byte by byte, where both have them."""
    start = max(first.start, second.start)
    end = min(first.end, second.end)
    difference, unread = _first_difference(first, second, start, end)
    stops = [at for at in (difference, unread) if at is not None]
    return Comparison(
        start=start,
        end_first=first.end,
        end_second=second.end,
        equal_to=min(stops, default=max(end, start)),
        difference=difference,
        consistent=consistent_point(_history(first), first.end, _history(second), second.end),
        unread=unread,
        apart=start >= end and first.start != second.start,
    )


def _history(store: StoreReader) -> list[tuple[int, int]]:
    """Return the epochs of a log; none where their file is damaged, as `store_check` says."""
    try:
        return store.kept_epochs()
    except CorruptionError:
        return []


def _first_difference(
    first: StoreReader, second: StoreReader, start: int, end: int
) -> tuple[int | None, int | None]:
    """Return where bytes differ first, and where a side has none first."""
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
    """Return the index of the first byte that differs; there is one."""
    low, high = 0, len(one)
    while high - low > 1:
        mid = (low + high) // 2
        low, high = (mid, high) if one[low:mid] == two[low:mid] else (low, mid)
    return low


def consistent_point(
    ours: list[tuple[int, int]], our_end: int, theirs: list[tuple[int, int]], their_end: int
) -> int | None:
    """Return up to where two epoch histories (epoch, start) promise equal bytes.

    None when a side has no history. 0 when they share no epoch.

    >>> consistent_point([(1, 0), (2, 80)], 140, [(1, 0), (2, 80), (3, 100)], 160)
    100
    """
    if not ours or not theirs:
        return None
    ends = [
        {
            entry: (history[i + 1][1] if i + 1 < len(history) else end)
            for i, entry in enumerate(history)
        }
        for history, end in ((ours, our_end), (theirs, their_end))
    ]
    shared = [entry for entry in ends[0] if entry in ends[1]]
    return min(ends[0][shared[-1]], ends[1][shared[-1]]) if shared else 0

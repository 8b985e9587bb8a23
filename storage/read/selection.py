"""Which queue entries an answer takes, and where their records lie in the log.

Pure. Not here: reading entries and records (`storage.read.stretches`, `storage.read.scattered`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from operator import add, ne

from storage.read.filters import SIFT_BYTES, SIFT_RECORDS, Entries, Wanted


@dataclass(frozen=True, slots=True)
class Place:
    """Neighbouring records in the log; ``edges`` are number, offset, size of first and last."""

    start: int
    end: int
    count: int
    edges: tuple[tuple[int, int, int], ...]


def picked(
    entries: Entries, codes: Sequence[int], numbers: Sequence[int], wanted: Wanted
) -> tuple[Entries, int]:
    """Return the entries to be served or looked at, and the queue offset to go on with.

    ``numbers`` are those of the entries and the one after them.
    """
    following = numbers[-1]
    tagged = wanted.tagged(codes)
    if tagged is not None:
        entries = entries.only(tagged)
    if wanted.where is None:
        count = fit(entries.sizes, wanted.bytes, wanted.records)
    else:
        count = fit(entries.sizes, SIFT_BYTES, SIFT_RECORDS)
    if count < len(entries):
        following = entries.numbers[count]
        entries = entries.first(count)
    return entries, following


def fitting(kept: Entries, wanted: Wanted, following: int) -> tuple[Entries, int]:
    """Return as many as an answer may hold, and the queue offset to go on with."""
    count = fit(kept.sizes, wanted.bytes, wanted.records)
    if count < len(kept):
        return kept.first(count), kept.numbers[count]
    return kept, following


def parts_of(
    places: Sequence[Place], copies: Sequence[memoryview], wanted: Sequence[Place]
) -> Iterator[memoryview]:
    """Yield the bytes of places that lie, in the same order, within those that were copied."""
    at = 0
    for one in wanted:
        while not places[at].start <= one.start < one.end <= places[at].end:
            at += 1
        yield copies[at][one.start - places[at].start : one.end - places[at].start]


def joined(entries: Entries) -> list[Place]:
    """Return where the records lie, neighbours joined; touches nothing of the log."""
    count = len(entries)
    if not count:
        return []
    offsets, sizes, numbers = entries.offsets, entries.sizes, entries.numbers
    ends = tuple(map(add, offsets, sizes))
    places: list[Place] = []
    begin = 0
    for stop in [*compress(range(1, count), map(ne, offsets[1:], ends)), count]:
        edges = ((numbers[at], offsets[at], sizes[at]) for at in (begin, stop - 1))
        places.append(Place(offsets[begin], ends[stop - 1], stop - begin, tuple(edges)))
        begin = stop
    return places


def fit(sizes: Sequence[int], max_bytes: int, max_records: int) -> int:
    """Return how many records fit, at least one if there is one."""
    count = min(len(sizes), max(max_records, 1))
    if sum(sizes[:count]) <= max_bytes:
        return count
    fitting = sum(1 for total in accumulate(sizes[:count]) if total <= max_bytes)
    return max(fitting, 1)

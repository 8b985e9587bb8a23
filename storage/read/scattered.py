"""Records that do not lie in one stretch of the log, or that a filter chose: one by one.

Neighbours are joined into places; each place is compared with its queue entries at both ends and
with the CRCs of its batches before anything of it is served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat, takewhile
from operator import add

from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.entry_check import check_entry, check_record, wrong_entry
from storage.read.filters import Entries, PropertyFilter, Wanted
from storage.read.result import ReadResult, ReadStatus
from storage.read.selection import Place, fitting, joined, parts_of
from twinlog.format.consume_queue import QUEUE_ENTRY


class Scattered:
    """Serves chosen entries of one log."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def served(
        self,
        queue: ConsumeQueue,
        entries: Entries,
        following: int,
        wanted: Wanted,
        *,
        cold: bool,
        unsifted: bool = False,
    ) -> ReadResult:
        """Return chosen records; cold ones with the function that fetches them.

        Raises:
            CorruptionError: Log or queue is damaged there.
        """
        range_ = queue.start, queue.end
        places = joined(entries)
        slices = [self._view(queue, one.edges[0][0], one) for one in places]

        found = ReadResult(
            ReadStatus.FOUND, slices, len(entries), following, *range_, cold, unsifted=unsifted
        )
        if not cold:
            self._prove(queue, places)
            return found

        def fetch() -> ReadResult:
            copies = [self._copy(queue, place) for place in places]
            whole = replace(found, slices=copies, fetch=None)
            if wanted.where is None:
                return whole
            keep = _matching_copies(queue, entries, wanted.where, (places, copies))
            kept, following = fitting(entries.only(keep), wanted, whole.next)
            slices = list(parts_of(places, copies, joined(kept)))
            return replace(whole, slices=slices, count=len(kept), next=following)

        return replace(found, fetch=fetch, lowest=min(entries.offsets, default=self._log.end))

    def _copy(self, queue: ConsumeQueue, place: Place) -> memoryview:
        """Return a checked copy of neighbouring records; in a worker thread."""
        data = self._log.segments.fetch(place.start, place.end)
        for number, offset, size in place.edges:
            at = offset - place.start
            check_record(queue, number, offset, size, data[at : at + size])
        return data

    def sifted(
        self, queue: ConsumeQueue, entries: Entries, following: int, wanted: Wanted
    ) -> ReadResult:
        """Return the records among ``entries`` whose properties match, as far as they fit."""
        assert wanted.where is not None
        self._prove(queue, joined(entries))
        kept = entries.only(self._matching(queue, entries, wanted.where))
        kept, following = fitting(kept, wanted, following)
        slices = [self._view(queue, place.edges[0][0], place) for place in joined(kept)]
        range_ = queue.start, queue.end
        return ReadResult(ReadStatus.FOUND, slices, len(kept), following, *range_)

    def _matching(self, queue: ConsumeQueue, entries: Entries, where: PropertyFilter) -> list[bool]:
        """Return for each entry whether its record matches: a kernel call for each log file."""
        found: list[bool] = []
        offsets, sizes = entries.offsets, entries.sizes
        while len(found) < len(entries):
            begin = len(found)
            segment = self._log.segments.at(offsets[begin])
            stop = begin + sum(1 for _ in takewhile(segment.end.__gt__, offsets[begin:]))
            part = slice(begin, stop)
            first, end = min(offsets[part]), max(map(add, offsets[part], sizes[part]))
            if first < segment.start:
                raise wrong_entry(queue, entries.numbers[begin], first, end - first)
            packed = b"".join(map(QUEUE_ENTRY.pack, offsets[part], sizes[part], repeat(0)))
            kept = where.keep(segment.view(first, end), first, packed)
            if isinstance(kept, int):
                at = begin + kept
                raise wrong_entry(queue, entries.numbers[at], offsets[at], sizes[at])
            found += kept
        return found

    def _view(self, queue: ConsumeQueue, number: int, place: Place) -> memoryview:
        log = self._log
        inside = log.start <= place.start < place.end <= log.end
        if inside and place.end <= log.segments.at(place.start).end:
            return log.segments.view(place.start, place.end)
        raise wrong_entry(queue, number, place.start, place.end - place.start)

    def _prove(self, queue: ConsumeQueue, places: Sequence[Place]) -> None:
        for place in places:
            for number, offset, size in place.edges:
                check_entry(self._log, queue, number, offset, size)
            self._log.segments.prove(place.start, place.end)


_Copies = tuple[Sequence[Place], Sequence[memoryview]]


def _matching_copies(
    queue: ConsumeQueue, entries: Entries, where: PropertyFilter, copied: _Copies
) -> list[bool]:
    """Return for each entry whether its record matches: a kernel call for each place."""
    found: list[bool] = []
    for place, data in zip(*copied, strict=True):
        part = slice(len(found), len(found) + place.count)
        offsets, sizes = entries.offsets[part], entries.sizes[part]
        packed = b"".join(map(QUEUE_ENTRY.pack, offsets, sizes, repeat(0)))
        kept = where.keep(data, place.start, packed)
        if isinstance(kept, int):
            at = part.start + kept
            raise wrong_entry(queue, entries.numbers[at], entries.offsets[at], entries.sizes[at])
        found += kept
    return found

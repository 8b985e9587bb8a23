"""Where records with a key may be, as the key index says: a plan with ``keys`` reads only those.

The index is a hint that spares reading, never an answer: rows are compared with the keys as without
it. What must not happen is that it hides a row, so it counts only where it can be trusted:

* **a directory**: after the first record of each index file and before its last one; what is
  between, in front and behind is read as a whole. The file that grows counts only in a store that
  was stopped cleanly, and after a crash none does. A chain that does not hold together, or a cell
  that points to no record, and the topic is read as a whole. Bytes that were lost without such a
  trace are for ``twinlog spark verify`` to find;
* **a cluster**: a node answers after its index has caught up with confirm, and proves each cell.
  Nodes that have confirmed less than the view, have no index or are building it are passed over;
  when no node serves, the topic is read as a whole.

Queues of batches and light queues (``%LMQ%``) are read as a whole: the index knows their records by
other names.

Limits: `HITS_MAX` records of a topic, `LOOKS_MAX` cells; after them the topic is read as a whole.

Units: queue offsets count records, log offsets are bytes; ends are exclusive.

Sources: RocketMQ 5.3 (``IndexFile``, ``IndexService.buildIndex``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from twinlog.format.key_index import INDEX_CELL, INDEX_SLOT, BrokenChain, cell_at, slot_at, walk
from twinlog.kernels import key_hash
from twinlog.spark.arrow import np
from twinlog.spark.directory.view import Directory
from twinlog.spark.nodes.nodes import Nodes
from twinlog.spark.plan.splits import Piece
from twinlog.store.key_index import IndexFile, KeyIndex
from twinlog.wire.frames import Frame, Type

HITS_MAX = 4096
"""Records of one topic that are looked up one by one; with more, reading it is as quick."""
LOOKS_MAX = 100_000
"""Cells of one key that are looked at in one file: some tenths of a second."""
PAGE_MAX = 64
"""Records of one answer, as RocketMQ's ``maxMsgsNumBatch``."""
FIND_MS = 4_000
"""How long a node may search; it is asked for a little longer."""

_PLACE = slice(28, 36)
Hits = Mapping[int, Sequence[int]]
"""Queue offsets of records that may have a key, by queue."""
Look = Callable[[str, Sequence[str]], "Hits | None"]
"""Takes a topic and keys; None: the index says nothing of the topic."""
Span = tuple[int, int]


def fewer(
    pieces: Sequence[Piece],
    keys: Sequence[str] | None,
    look: Look,
    whole: Callable[[Piece], Sequence[Span] | None],
) -> tuple[Piece, ...]:
    """Return what of some pieces has to be read, in their order.

    Args:
        pieces: What the query means.
        keys: Rows have one of these keys; None: any.
        look: The index.
        whole: The queue offsets of a piece that the index does not cover; None: all.
    """
    if keys is None or not all(_searchable(key) for key in keys):
        return tuple(pieces)
    found: list[Piece] = []
    known: dict[str, Hits | None] = {}
    for piece in pieces:
        spans = None if piece.topic.startswith("%LMQ%") else whole(piece)
        if spans is not None and piece.topic not in known:
            known[piece.topic] = look(piece.topic, keys)
        hits = known.get(piece.topic)
        if spans is None or hits is None:
            found.append(piece)
            continue
        single = [(at, at + 1) for at in hits.get(piece.queue, ())]
        found += [
            replace(piece, first=first, stop=stop)
            for first, stop in joined([*spans, *single], piece.first, piece.stop)
        ]
    return tuple(found)


def _searchable(key: str) -> bool:
    """Whether the index knows all records whose text of keys, as it is shown, has the key."""
    return bool(key) and " " not in key and "\ufffd" not in key


def joined(spans: Iterable[Span], first: int, stop: int) -> list[Span]:
    """Return spans cut to ``first..stop``, in order, neighbours as one.

    >>> joined([(7, 8), (2, 3), (3, 5), (0, 1)], 1, 8)
    [(2, 5), (7, 8)]
    """
    found: list[Span] = []
    for low, high in sorted((max(low, first), min(high, stop)) for low, high in spans):
        if low >= high:
            continue
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return found


# -- directories ----------------------------------------------------------------------------------


class DirectoryKeys:
    """The key index of a pinned directory.

    Args:
        directory: The view.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        crashed = (directory.root / "abort").exists() and not directory.live
        index = KeyIndex(directory.root / "index", None)
        usable = not crashed and not index.unreadable
        files = [file for file in index.files if file.header.next_cell > 1] if usable else []
        self._files = files[:-1] if directory.live else files

    def pieces(self, pieces: Sequence[Piece], keys: Sequence[str] | None) -> tuple[Piece, ...]:
        """Return what of some pieces has to be read for rows with one of some keys."""
        return fewer(pieces, keys, self._look, self._whole) if self._files else tuple(pieces)

    def _whole(self, piece: Piece) -> Sequence[Span] | None:
        queue = self._directory.queues[piece.topic, piece.queue]
        if queue.files is None or queue.files.batch:
            return None
        # the keys of the first and of the last record of a file may stand in its neighbour too
        points = [
            point
            for file in self._files
            for point in (file.header.begin_offset + 1, file.header.end_offset)
        ]
        cuts = queue.cuts(piece.first, piece.stop, np.array(points, np.int64)).tolist()
        edges = [piece.first, *cuts, piece.stop]
        return list(zip(edges[::2], edges[1::2], strict=True))

    def _look(self, topic: str, keys: Sequence[str]) -> Hits | None:
        found: dict[int, set[int]] = {}
        count = 0
        for key in keys:
            wanted = key_hash(f"{topic}#{key}".encode())
            for file in self._files:
                offsets = chain(file, wanted)
                if offsets is None:
                    return None
                for offset in offsets:
                    place = self._place(offset)
                    if place is None:
                        return None
                    count += 1
                    found.setdefault(place[0], set()).add(place[1])
                if count > HITS_MAX:
                    return None
        return {queue: sorted(numbers) for queue, numbers in found.items()}

    def _place(self, offset: int) -> Span | None:
        """Return queue and queue offset of a record; None where none begins.

        A record that retention took, or that is above the view's end, is of no queue.
        """
        if not self._directory.start <= offset < self._directory.end:
            return -1, 0
        data = self._directory.read(offset, 36)
        if len(data) < 36 or int.from_bytes(data[_PLACE], "big") != offset:
            return None
        return int.from_bytes(data[12:16], "big"), int.from_bytes(data[20:28], "big")


def chain(file: IndexFile, wanted: int) -> list[int] | None:
    """Return the log offsets under a hash in one file; None where its chain is damaged or too long.

    Unlike `IndexFile.hits`, which continues as RocketMQ does, nothing odd is passed over: a row
    that the index hides would be missing from the answer.
    """
    header, view, slot = file.header, file.view, wanted % file.slots

    def read(number: int) -> bytes:
        at = cell_at(file.slots, number)
        return bytes(view[at : at + INDEX_CELL.size])

    (newest,) = INDEX_SLOT.unpack_from(view, slot_at(slot))
    found: list[int] = []
    if cell_at(file.slots, header.next_cell) > len(view):
        return None
    try:
        for looks, (_, cell) in enumerate(walk(file.slots, header, slot, newest, read)):
            known = header.begin_offset <= cell.offset <= header.end_offset
            if not known or looks >= LOOKS_MAX:
                return None
            if cell.hashed == wanted:
                found.append(cell.offset)
    except BrokenChain:
        return None
    return found


# -- clusters -------------------------------------------------------------------------------------


class ClusterKeys:
    """The key indexes of a cluster's nodes.

    Args:
        nodes: Of the view; open.
        end: Log offset up to which the view shows what is there.
        batched: Topics whose queues are queues of batches.
    """

    def __init__(self, nodes: Nodes, end: int, batched: frozenset[str]) -> None:
        self._nodes = nodes
        self._end = end
        self._batched = batched

    def pieces(self, pieces: Sequence[Piece], keys: Sequence[str] | None) -> tuple[Piece, ...]:
        """Return what of some pieces has to be read for rows with one of some keys."""
        return fewer(pieces, keys, self._look, self._whole)

    def _whole(self, piece: Piece) -> Sequence[Span] | None:
        return None if piece.topic in self._batched else ()

    def _look(self, topic: str, keys: Sequence[str]) -> Hits | None:
        found: dict[int, set[int]] = {}
        left = HITS_MAX
        for key in keys:
            page: _Page | None = None
            while page is None or page.more:
                page = self._page(topic, key, page)
                if page is None or left <= 0:
                    return None
                left -= len(page.places)
                for queue, number in page.places:
                    found.setdefault(queue, set()).add(number)
        return {queue: sorted(numbers) for queue, numbers in found.items()}

    def _page(self, topic: str, key: str, before: _Page | None) -> _Page | None:
        fields: dict[str, object] = {
            "topic": topic,
            "key": key,
            "max": PAGE_MAX,
            "begin": 0,
            "end": None,
            "before": None if before is None else before.last,
            "unique": False,
            "timeout_ms": FIND_MS,
        }
        answer = self._nodes.once(Type.FIND, fields, self._usable)
        return None if answer is None else _page_of(answer)

    def _usable(self, answer: Frame) -> str | None:
        confirm = answer.fields["confirm"]
        if answer.fields["complete"] is not True:
            return "has too many entries of that key"
        if not isinstance(confirm, int) or confirm < self._end:
            return f"lags: it has confirmed {confirm}"
        return None


@dataclass(frozen=True, slots=True)
class _Page:
    """(queue, queue offset) of the records of one answer, newest first; whether there are more."""

    places: Sequence[Span]
    last: int
    more: bool


def _page_of(answer: Frame) -> _Page:
    data, at, places, last = bytes(answer.payload), 0, list[Span](), 0
    while at + 36 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        last = int.from_bytes(data[at + 28 : at + 36], "big")
        queue = int.from_bytes(data[at + 12 : at + 16], "big")
        places.append((queue, int.from_bytes(data[at + 20 : at + 28], "big")))
        at += max(size, 36)
    return _Page(places, last, answer.fields["more"] is True and bool(places))

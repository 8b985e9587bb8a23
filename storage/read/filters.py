"""Which records of a read are wanted: by tag hash, by a filter over properties.

A tag is compared with the queue entry alone; the log is not read, and the client, which compares
the texts, notices collisions of hashes. A filter is applied to the properties of the record: one
kernel call extracts the named ones from many records, and verdicts on rows of texts are cached,
because rows repeat.

Work is bounded: a read with a filter looks at most at `SIFT_RECORDS` entries and `SIFT_BYTES` of
records (at least one), and says how far it got.

Pure. Not here: where records lie and whether they are intact (`storage.read.reader`), the grammar
(``twinlog.filters.sql92``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress

from twinlog.filters.sql92 import Filter, parse_filter
from twinlog.kernels import pick_properties
from twinlog.kernels.plain import Buffer

SIFT_RECORDS = 1024
"""Entries that one read with a filter looks at: some milliseconds when every row is new."""
SIFT_BYTES = 8 * 1024 * 1024
"""Bytes of the records that one read with a filter looks at: bounds the proof of their CRCs."""
SIEVES_MAX = 64
"""Filters whose parsed form and verdicts are kept."""
VERDICTS_MAX = 1024
"""Verdicts kept for one filter."""
ROW_MAX = 256
"""Characters of a row whose verdict is kept; with the two above, 32 MiB in all at most."""

TAG_MASK = 0xFFFFFFFF

Row = tuple[str | None, ...]


class _Verdicts(dict[Row, bool]):
    """Verdicts on rows, made when they are asked for."""

    def __init__(self, wanted: Filter) -> None:
        super().__init__()
        self._wanted = wanted

    def __missing__(self, row: Row) -> bool:
        verdict = self._wanted.matches_row(row)
        if sum(len(text) for text in row if text) <= ROW_MAX:
            if len(self) >= VERDICTS_MAX:
                self.clear()
            self[row] = verdict
        return verdict


class PropertyFilter:
    """A filter, ready to be laid over records; may be used from several threads."""

    def __init__(self, wanted: Filter) -> None:
        self.text = wanted.text
        self._names = tuple(name.encode() for name in wanted.names)
        self._verdicts = _Verdicts(wanted)

    def keep(self, data: Buffer, base: int, entries: Buffer) -> list[bool] | int:
        """Return which of the records match that ``entries`` point to.

        ``data`` begins at log offset ``base``; if an entry points to no record in it, its number is
        returned instead.
        """
        rows = pick_properties(data, base, entries, self._names)
        if isinstance(rows, int):
            return rows
        return list(map(self._verdicts.__getitem__, rows))


@lru_cache(SIEVES_MAX)
def property_filter(text: str) -> PropertyFilter:
    """Return the filter of an expression, made once while it is among the newest.

    Raises:
        FilterError: It is no filter.
    """
    return PropertyFilter(parse_filter(text))


@dataclass(slots=True)
class Wanted:
    """Limits and filters of one read. Treat as immutable.

    Attributes:
        bytes: Bytes of records, unless the first alone is larger.
        records: Records; at least 1.
        tag_hashes: Only records whose tag has one of these Java hashes.
        where: Only records that match.
    """

    bytes: int
    records: int
    tag_hashes: frozenset[int] | None = None
    where: PropertyFilter | None = None

    @property
    def filtered(self) -> bool:
        """Whether records may be left out."""
        return self.tag_hashes is not None or self.where is not None

    def tagged(self, codes: Sequence[int]) -> list[bool] | None:
        """Return which tags codes are wanted; None when all are."""
        if self.tag_hashes is None:
            return None
        tags = frozenset(tag & TAG_MASK for tag in self.tag_hashes)
        return [code & TAG_MASK in tags for code in codes]


@dataclass(frozen=True, slots=True)
class Entries:
    """Queue entries as columns, with the queue offset of each."""

    numbers: Sequence[int]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def only(self, keep: Sequence[bool]) -> Entries:
        """Return those that are to be kept."""
        return Entries(
            tuple(compress(self.numbers, keep)),
            tuple(compress(self.offsets, keep)),
            tuple(compress(self.sizes, keep)),
        )

    def first(self, count: int) -> Entries:
        """Return the first ``count``."""
        return Entries(self.numbers[:count], self.offsets[:count], self.sizes[:count])

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.offsets)

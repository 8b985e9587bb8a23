"""Which pages of the log to populate ahead of the writer, and which to release. Pure.

Ahead: a page fault in a new file costs the event loop some 20 us, so pages are made present and
writable before the writer gets there. Touched pages are dirty, and a flush writes them as zeros
first: little compared with the data of an async flush, but senders wait for a sync flush, so the
distance is shorter then. With ``warm`` a file made ahead is touched as a whole. A writer that comes
to pages which are not there yet, as a slave that catches up does, doubles the distance from then
on: a thread populates them, but begins only when it is asked.

Behind: flushed bytes further from the end than ``hot_bytes`` are released, no faster than new pages
are populated, so that the freed pages are the ones reused. Reads from there are cold
(`storage.read.reader`) and never rely on memory.

With ``lock_memory`` populated pages are locked, and unlocked when their file is full.

Ranges are log offsets in bytes, ends exclusive, each within one file. Each is returned once.

Not here: calls to the kernel (`storage.disk.mapping`), when this is called
(``replication.driver.background_jobs``).
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.settings import StoreSettings

TOUCH_ASYNC = 16 * 1024 * 1024
TOUCH_SYNC = 2 * 1024 * 1024
TOUCH_MOST = 64 * 1024 * 1024
"""With asynchronous flushes: what the distance grows to; 60 ms of a writer of 1 GiB/s."""
RELEASE_STEP = 4 * 1024 * 1024
"""Pages are released in pieces of at least this size, in whole pages of 2 MiB."""
HOT_MIN = 32 * 1024 * 1024
"""This much before the end always stays in memory: slaves and the dispatcher read there."""
HUGE_PAGE = 2 * 1024 * 1024
CALM = 2 * 1024 * 1024
"""No pages are released in the first bytes of a file: ``hot_bytes`` is often a multiple of the file
size, so the release would always coincide with a file change, when appends have enough to do."""

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Pages:
    """The advice that is due now; None: none.

    Attributes:
        touch: Pages to populate, and to lock if the settings say so.
        release: Pages to release.
    """

    touch: Range | None
    release: Range | None


class Paging:
    """Decides; see the module's text.

    Args:
        settings: Flush mode, ``hot_bytes``, ``warm``.
        end: End of the log; pages before it were not populated by this process.
    """

    def __init__(self, settings: StoreSettings, end: int) -> None:
        self._size = settings.segment_size
        self._hot = max(settings.hot_bytes, HOT_MIN)
        self._ahead = TOUCH_SYNC if settings.flush == "sync" else TOUCH_ASYNC
        self._touched = end
        self._kept_from = end
        self._most = self._ahead if settings.flush == "sync" else TOUCH_MOST
        self._warm = settings.warm

    @property
    def first(self) -> int:
        """Bytes at the beginning of a file made ahead that are populated when it is made."""
        return self._size if self._warm else min(self._size, self._ahead)

    def began(self, start: int, touched: int) -> None:
        """Note that a file begins at ``start``; its first ``touched`` bytes are populated."""
        self._touched = start + touched

    def due(self, end: int, flushed: int) -> Pages | None:
        """Return what is due for a log that ends at ``end``; it counts as done from now on."""
        base = end - end % self._size
        touch = self._touch(end, base + self._size)
        calm = end - base < min(CALM, self._size // 8)
        release = None if calm else self._release(min(end - self._hot, flushed))
        return Pages(touch, release) if touch or release else None

    def _touch(self, end: int, stop: int) -> Range | None:
        if self._size < self._ahead or end == stop - self._size:
            return None  # a small file is populated as a whole, when it is made ahead
        if stop > end > self._touched > stop - self._size:
            self._ahead = min(2 * self._ahead, self._most, self._size)
        start, until = max(self._touched, end), min(end + self._ahead, stop)
        if start >= until or start - end > self._ahead // 2:
            return None
        self._touched = until
        return start, until

    def _release(self, until: int) -> Range | None:
        start = self._kept_from
        stop = min(until, start - start % self._size + self._size)
        if stop % self._size:
            stop -= stop % self._size % HUGE_PAGE
            if stop - start < RELEASE_STEP:
                return None
        if stop <= start:
            return None
        self._kept_from = stop
        return start, stop

    def cut(self, end: int) -> None:
        """Note that the log was cut to ``end``."""
        self._touched = end
        self._kept_from = min(self._kept_from, end)

"""When the log must be flushed: a policy. Pure: time comes in, a decision goes out.

* ``sync``: as soon as somebody waits for bytes beyond the flushed offset, and no flush is under
  way. All who waited meanwhile are served by the next one: one fdatasync in flight, grouped commit.
* ``async``: every ``flush_interval_seconds`` if at least ``flush_pages_min`` pages are dirty, and
  every ``flush_thorough_seconds`` whatever is dirty. With ``flush_on_write`` a flush begins as soon
  as so many pages are dirty and no other is under way (RocketMQ's ``flushCommitLogTimed=false``).
* ``async-buffered``: batches leave the memory pool every ``commit_interval_seconds``, or as soon as
  ``commit_pages_min`` pages are in it; what is in the file is flushed as with ``async``.

Times are seconds of a monotonic clock, offsets bytes of the log.

Not here: the flush itself (a job of `storage.store`), who waits (``replication.core.waiters``).

Sources: RocketMQ 5.3 (``GroupCommitService``, ``FlushRealTimeService``, ``CommitRealTimeService``).
"""

from __future__ import annotations

from enum import Enum

from storage.settings import StoreSettings

PAGE = 4096


class Flush(Enum):
    """What to do now."""

    NOTHING = 0
    PAGES = 1
    THOROUGH = 2


class FlushPolicy:
    """Decides; tell it when a flush begins and ends.

    Args:
        settings: Mode and limits.
        now: The clock at the start.
    """

    def __init__(self, settings: StoreSettings, now: float) -> None:
        self._settings = settings
        self._looked = now
        self._thorough = now
        self._flushing = False

    def decide(self, now: float, *, flushed: int, end: int, wanted: int) -> Flush:
        """Return whether to flush now.

        Args:
            now: The clock.
            flushed: Flushed offset.
            end: End of the log.
            wanted: The largest offset somebody waits for to be flushed; 0 when nobody does.
        """
        if self._flushing or flushed >= end:
            return Flush.NOTHING
        if self._settings.flush == "sync" or wanted > flushed:
            return Flush.THOROUGH
        if now >= self._thorough + self._settings.flush_thorough_seconds:
            return Flush.THOROUGH
        enough = end // PAGE - flushed // PAGE >= self._settings.flush_pages_min
        if enough and self._settings.flush_on_write:
            return Flush.PAGES
        if now < self._looked + self._settings.flush_interval_seconds:  # as `deadline` says it
            return Flush.NOTHING
        self._looked = now
        return Flush.PAGES if enough else Flush.NOTHING

    def deadline(self, *, flushed: int, end: int) -> float | None:
        """Return when to ask again; None while there is nothing to flush or a flush runs."""
        if self._flushing or flushed >= end:
            return None
        interval = self._looked + self._settings.flush_interval_seconds
        return min(interval, self._thorough + self._settings.flush_thorough_seconds)

    def began(self) -> None:
        """A flush was handed out."""
        self._flushing = True

    def ended(self, now: float, *, flushed: int, end: int) -> None:
        """A flush came back; ``flushed == end`` starts the thorough interval again."""
        self._flushing = False
        self._looked = now
        if flushed >= end:
            self._thorough = now


class CommitPolicy:
    """Decides when the memory pool goes into the file.

    Args:
        settings: Interval and pages.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._since: float | None = None

    def due(self, now: float, pooled: int) -> bool:
        """Return whether to commit ``pooled`` bytes now; ask again after each append."""
        if not pooled:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        if pooled >= self._settings.commit_pages_min * PAGE:
            return True
        return now >= self._since + self._settings.commit_interval_seconds

    def deadline(self) -> float | None:
        """Return when to ask again; None while nothing waits in memory."""
        since = self._since
        return None if since is None else since + self._settings.commit_interval_seconds

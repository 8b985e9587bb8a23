"""When the log must be flushed: a policy. Pure: time comes in, a decision goes out.

* ``sync``: as soon as there are unflushed bytes and no flush is running. All bytes that arrive
meanwhile are covered by the next flush: one fdatasync in flight, group commit.
* ``async``: every ``flush_interval_seconds`` if at least ``flush_pages_min`` pages are dirty, and
  every ``flush_thorough_seconds`` whatever is dirty. With ``flush_on_write`` a flush begins as soon
  as this many pages are dirty and no other is running (RocketMQ's ``flushCommitLogTimed=false``).
* ``async-buffered``: batches move from the memory pool to the file every
  ``commit_interval_seconds``, or as soon as ``commit_pages_min`` pages are in the pool; the file is
  flushed as with ``async``.

Times are seconds of a monotonic clock, offsets bytes of the log.

Not here: the flush itself (`storage.background`), waiting sends (``core.master.waiters``).

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
    """Decides when to flush; the caller reports the begin and end of each flush.

    Args:
        settings: Mode and limits.
        now: The present time.
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
            wanted: The largest offset that a send waits for to be flushed; 0 without one.
        """
        if self._flushing or flushed >= end:
            return Flush.NOTHING
        # Also in the async modes: with quality `durable` a slave acknowledges, and a master
        # confirms, only what is flushed.
        if self._settings.flush == "sync" or wanted > flushed:
            return Flush.THOROUGH
        if now >= self._thorough + self._settings.flush_thorough_seconds:
            return Flush.THOROUGH
        enough = end // PAGE - flushed // PAGE >= self._settings.flush_pages_min
        if enough and self._settings.flush_on_write:
            return Flush.PAGES
        if now < self._looked + self._settings.flush_interval_seconds:  # same sum as in `deadline`
            return Flush.NOTHING
        self._looked = now
        return Flush.PAGES if enough else Flush.NOTHING

    def deadline(self, *, flushed: int, end: int) -> float | None:
        """Return when to call `decide` again; None if all is flushed or a flush is running."""
        if self._flushing or flushed >= end:
            return None
        interval = self._looked + self._settings.flush_interval_seconds
        return min(interval, self._thorough + self._settings.flush_thorough_seconds)

    def began(self) -> None:
        """Note that a flush has begun."""
        self._flushing = True

    def ended(self, now: float, *, flushed: int, end: int) -> None:
        """Note that a flush has ended; ``flushed == end`` restarts the thorough interval."""
        self._flushing = False
        self._looked = now
        # Only a flush that left nothing dirty counts as thorough.
        if flushed >= end:
            self._thorough = now


class CommitPolicy:
    """Decides when the memory pool is written to the file.

    Args:
        settings: Interval and pages.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._since: float | None = None

    def due(self, now: float, pooled: int) -> bool:
        """Return whether to commit ``pooled`` bytes now; call it after each append."""
        if not pooled:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        if pooled >= self._settings.commit_pages_min * PAGE:
            return True
        return now >= self._since + self._settings.commit_interval_seconds

    def deadline(self) -> float | None:
        """Return when to call `due` again; None while the pool is empty."""
        since = self._since
        return None if since is None else since + self._settings.commit_interval_seconds

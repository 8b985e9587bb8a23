"""Which log files to delete, and when: facts and a clock in, commands out. Pure.

The store sets the limit: `Facts.limit` (the least of confirm, dispatched, flushed and the older
snapshot, R51), and no rule here deletes a file above it. Below it, the oldest file is deleted
first, one at a time, never the last one:

* **age**: its newest record is older than ``keep_seconds``;
* **size**: the log is longer than ``keep_bytes``;
* both only in an hour that `RetentionSettings.hours` lists, unless the disk is fuller than
  ``disk_clean``;
* **disk**: if fuller than ``disk_force``, the oldest file is deleted whatever its age, even if a
  slave still lacks bytes of it (that slave must begin again, R57; it is notified).

Three things prevent even that: a file above the archive's mark (with ``archive``), the limit, and a
message that a group has handed out and not settled, or holds for another attempt (R60).

Deleting has two steps. First a file *leaves*: the log starts after it, and readers are notified. It
is *removed* once no reader holds its bytes, or after ``hold_seconds``: a reader that still holds it
keeps its memory, only the name is deleted. Between two files there is a pause, and after
``FILES_MAX`` files in a row a longer one.

Age is measured from the newest record's store timestamp, not from the file's: a copy of a store
keeps it.

Units: bytes, seconds of a monotonic clock (``now``), ms since 1970 (``wall_ms``), shares 0 to 1.
Not here: removing files (`storage.retention.removal`), refusing writes on a full disk
(``replication.driver.retention``). Source: RocketMQ's CleanCommitLogService.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from storage.settings import RetentionSettings

CLOCK_RATE_MAX = 10
"""How much faster than a steady clock files may age after the wall clock jumped ahead."""
JUMP_SECONDS_MAX = 6 * 3600
"""How far ahead of the newest record a start trusts the wall clock at once."""
FILES_MAX = 10
"""Files deleted shortly after each other; then there is a pause of ``look_seconds``."""


@dataclass(frozen=True, slots=True)
class File:
    """One log file of the log, without those that have left.

    Attributes:
        start: Log offset of its first byte.
        end: Log offset after its last byte.
        newest_ms: Store timestamp of its newest record.
    """

    start: int
    end: int
    newest_ms: int


def _nothing(below: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Facts:
    """The input of a decision.

    Attributes:
        files: The log's files, oldest first; the last one is being written.
        limit: Nothing above this log offset may be deleted.
        needed: Log offset from which on linked slaves lack bytes.
        archived: Log offset below which everything is archived.
        used: Share of the disk in use; None: unknown.
        wall_ms: Wall clock.
        held: Whether groups hold a message below a log offset; asked only when it matters.
    """

    files: Sequence[File]
    limit: int
    needed: int
    archived: int
    used: float | None
    wall_ms: int
    held: Callable[[int], bool] = _nothing


class Reason(Enum):
    """Why a file is deleted."""

    AGE = "age"
    SIZE = "size"
    DISK = "disk"


class Wait(Enum):
    """Why the oldest file stays although it is due."""

    NOTHING = ""
    LIMIT = "limit"
    ARCHIVE = "archive"
    SLAVE = "slave"
    HOUR = "hour"
    GROUPS = "groups"
    LAST = "last-file"


@dataclass(frozen=True, slots=True)
class Leave:
    """The oldest file leaves the log, which starts at ``to`` from now on."""

    to: int
    reason: Reason
    overtakes: bool
    """A linked slave lacks bytes of it."""


@dataclass(frozen=True, slots=True)
class Held:
    """A file that has left and is still there.

    Attributes:
        start: Log offset of its first byte.
        left_at: When it left; ``now`` of that moment.
        held: A reader still has its bytes.
    """

    start: int
    left_at: float
    held: bool


class RetentionClock:
    """The wall clock by which files are deleted, protected against jumps.

    A wall clock that is set days ahead would make every file look expired at once. This one is at
    most `JUMP_SECONDS_MAX` ahead of the newest record at first, and then follows the wall clock at
    most `CLOCK_RATE_MAX` times as fast as a steady clock runs. After a jump of five days, or a stop
    of five days, it needs half a day to follow, in which an operator may notice and correct the
    clock. Records written under a wrong clock before a restart carry its timestamps, which are
    trusted.
    """

    def __init__(self) -> None:
        self._ms = -1
        self._seen = 0.0

    def read(self, now: float, wall_ms: int, newest_ms: int) -> int:
        """Return the time, ms since 1970, that the age of a file is measured against.

        Args:
            now: Steady clock, seconds.
            wall_ms: Wall clock.
            newest_ms: Store timestamp of the log's newest record; 0 without one.

        >>> clock, hour = RetentionClock(), 3_600_000
        >>> clock.read(0.0, 200 * hour, 100 * hour) // hour
        106
        >>> clock.read(3600.0, 201 * hour, 201 * hour) // hour
        116
        """
        if self._ms < 0:
            self._ms = newest_ms + JUMP_SECONDS_MAX * 1000 if newest_ms else wall_ms
        else:
            self._ms += round((now - self._seen) * 1000 * CLOCK_RATE_MAX)
        self._ms, self._seen = min(self._ms, wall_ms), now
        return self._ms


class Retention:
    """Decides; see the module's text.

    Attributes:
        waits: Why the oldest file, though due, stays.
        deleted: Files that left, by reason.
        forced: Files that were removed while a reader held them.
    """

    def __init__(self, settings: RetentionSettings, now: float) -> None:
        self._settings = settings
        self._look_at = now + settings.look_seconds
        self._row = 0
        self._clock = RetentionClock()
        self.waits = Wait.NOTHING
        self.deleted: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self.forced = 0

    def due(self, now: float) -> bool:
        """Whether it is time to call `decide`."""
        return now >= self._look_at

    def next_look(self) -> float:
        """Return when to call `decide` next."""
        return self._look_at

    def hurry(self, now: float) -> None:
        """Make `decide` due at once: the disk is full, or more is archived."""
        self._look_at = min(self._look_at, now)

    def decide(self, now: float, facts: Facts) -> Leave | None:
        """Return the command that the oldest file leaves, or None; call it when `due`."""
        newest = facts.files[-1].newest_ms if facts.files else 0
        found = self._choose(facts, self._clock.read(now, facts.wall_ms, newest))
        if found is not None and self._row < FILES_MAX:
            self._row += 1
            self._look_at = now + self._settings.pause_seconds
            self.deleted[found.reason] += 1
            return found
        self._row = 0
        self._look_at = now + self._settings.look_seconds
        return None

    def _choose(self, facts: Facts, clock_ms: int) -> Leave | None:
        self.waits = Wait.NOTHING
        if not facts.files:
            return None
        oldest = facts.files[0]
        reason = self._reason(oldest, facts, clock_ms)
        if reason is None:
            return None
        forced = reason is Reason.DISK
        self.waits = self._obstacle(oldest, facts, forced)
        if self.waits is not Wait.NOTHING:
            return None
        return Leave(oldest.end, reason, oldest.end > facts.needed)

    def _reason(self, oldest: File, facts: Facts, clock_ms: int) -> Reason | None:
        settings = self._settings
        if facts.used is not None and facts.used >= settings.disk_force:
            return Reason.DISK
        keep = settings.keep_seconds
        if keep is not None and clock_ms - oldest.newest_ms >= keep * 1000:
            return Reason.AGE
        most = settings.keep_bytes
        length = facts.files[-1].end - oldest.start
        return Reason.SIZE if most is not None and length > most else None

    def _obstacle(self, oldest: File, facts: Facts, forced: bool) -> Wait:
        settings = self._settings
        # The order is the rule: what protects data first, then what only delays.
        if len(facts.files) == 1:
            return Wait.LAST
        if oldest.end > facts.limit:
            return Wait.LIMIT
        if settings.archive and oldest.end > facts.archived:
            return Wait.ARCHIVE
        # A full disk stops the master for all; a slave that lags can be reseeded (R57).
        if forced:
            return self._groups(oldest, facts)
        if oldest.end > facts.needed:
            return Wait.SLAVE
        tight = facts.used is not None and facts.used >= settings.disk_clean
        anytime = tight or settings.hours is None
        if not anytime and settings.hour_of(facts.wall_ms) not in (settings.hours or ()):
            return Wait.HOUR
        return self._groups(oldest, facts)

    @staticmethod
    def _groups(oldest: File, facts: Facts) -> Wait:
        return Wait.GROUPS if facts.held(oldest.end) else Wait.NOTHING

    def removable(self, now: float, left: Sequence[Held]) -> list[int]:
        """Return the starts of files whose names may be removed now; counts forced removals."""
        found: list[int] = []
        for one in left:
            late = now - one.left_at >= self._settings.hold_seconds
            if one.held and not late:
                continue
            self.forced += one.held
            found.append(one.start)
        return found

    def refuses(self, used: float | None) -> bool:
        """Whether the disk is so full that writes are refused."""
        return used is not None and used >= self._settings.disk_refuse

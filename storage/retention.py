"""Which log files may go, and when: facts and a clock in, commands out. Pure.

What may ever go is not decided here: `Facts.limit` (protocol notes, section 4: min of confirm,
dispatched and the older snapshot) comes from the store, and nothing below explains a deletion above
it. Within it, the oldest file goes first, never the last one, one at a time:

* **age**: its newest record is older than ``keep_seconds``;
* **size**: the log is longer than ``keep_bytes``;
* both only in an hour that `RetentionSettings.hours` lists, unless the disk is fuller than
  ``disk_clean``;
* **disk**: fuller than ``disk_force``, the oldest file goes whatever its age, and what a slave that
  lags still lacks goes with it (that slave must be made anew; it is told so).

Two things stop even that: a file above the archive's mark (with ``archive``), and the limit.

Deleting has two steps. A file *leaves*: the log starts behind it, readers are told so. It is
*removed* once no reader holds its bytes, or after ``hold_seconds`` all the same: a reader that
still holds it keeps its memory, the name is gone. Between two files there is a pause, and after
``FILES_MAX`` files in a row a longer one.

Age is that of the newest record's store timestamp, not of the file: a copy of a store keeps it.

Units: bytes, seconds of a monotonic clock (``now``), ms since 1970 (``wall_ms``), shares 0 to 1.
Not here: removing files (`storage.front`), what a full disk refuses (`storage.front.Front.full`).
Sources: store format notes, section 11 (RocketMQ's CleanCommitLogService).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from twinlog.errors import UsageError

FILES_MAX = 10
"""Files that go one shortly after the other; then the disk gets a rest of ``look_seconds``."""
HOUR_MS = 3_600_000
DAY_HOURS = 24


def utc_hour(wall_ms: int) -> int:
    """Return the hour of day of a time.

    >>> utc_hour(4 * 3_600_000 + 59 * 60_000)
    4
    """
    return wall_ms // HOUR_MS % DAY_HOURS


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """What a node keeps.

    Attributes:
        keep_seconds: Records at least this old may go; None keeps them whatever their age.
        keep_bytes: Longest log; None sets no limit.
        hours: Hours of day in which expired files go; None: any.
        disk_clean: Share of the disk in use from which expired files go at any hour.
        disk_force: Share from which the oldest files go whatever their age.
        disk_refuse: Share from which writes are refused.
        look_seconds: How often to look.
        pause_seconds: Between two files.
        hold_seconds: How long a file waits for readers that hold it.
        archive: Only what an archive has is ever deleted.
        erase: Files are overwritten before they are removed.
        keep_cut_seconds: How long bytes that a cut took are kept aside.
        absent_seconds: How long what a slave lacks is kept after it was last heard.
        hour_of: Hour of day of a wall time in ms.
    """

    keep_seconds: float | None = 72 * 3600.0
    keep_bytes: int | None = None
    hours: tuple[int, ...] | None = (4,)
    disk_clean: float = 0.75
    disk_force: float = 0.85
    disk_refuse: float = 0.90
    look_seconds: float = 10.0
    pause_seconds: float = 0.1
    hold_seconds: float = 120.0
    archive: bool = False
    erase: bool = False
    keep_cut_seconds: float = 7 * 24 * 3600.0
    absent_seconds: float = 3600.0
    hour_of: Callable[[int], int] = utc_hour

    def __post_init__(self) -> None:
        if not 0 < self.disk_clean <= self.disk_force <= self.disk_refuse <= 1:
            raise UsageError(
                "disk_clean, disk_force and disk_refuse must rise, above 0 and at most 100 %",
                code="setting",
                setting="disk_clean",
            )
        if self.hours is not None and not all(0 <= hour < DAY_HOURS for hour in self.hours):
            raise UsageError("an hour of day is 0 to 23", code="setting", setting="delete_at")


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


@dataclass(frozen=True, slots=True)
class Facts:
    """What a decision rests on.

    Attributes:
        files: The log's files, oldest first; the last one is being written.
        limit: Nothing above this log offset may go.
        needed: Log offset from which on linked slaves lack bytes.
        archived: Log offset below which the archive has everything.
        used: Share of the disk that is in use; None: not known.
        wall_ms: Wall clock.
        ordered: A person ordered that expired files go now.
    """

    files: Sequence[File]
    limit: int
    needed: int
    archived: int
    used: float | None
    wall_ms: int
    ordered: bool = False


class Reason(Enum):
    """Why a file goes."""

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


class Retention:
    """Decides; see the module.

    Attributes:
        waits: Why the oldest file, though due, stays.
        deleted: Files that left, by reason.
        forced: Files that were removed although a reader held them.
    """

    def __init__(self, settings: RetentionSettings, now: float) -> None:
        self._settings = settings
        self._look_at = now + settings.look_seconds
        self._row = 0
        self.waits = Wait.NOTHING
        self.deleted: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self.forced = 0

    def due(self, now: float) -> bool:
        """Whether it is time to look."""
        return now >= self._look_at

    def next_look(self) -> float:
        """Return when it is time to look again."""
        return self._look_at

    def hurry(self, now: float) -> None:
        """Look at once: a person ordered it, the disk is full, or an archive has more."""
        self._look_at = min(self._look_at, now)

    def decide(self, now: float, facts: Facts) -> Leave | None:
        """Return that the oldest file leaves, or None; call it when `due`."""
        found = self._choose(facts)
        if found is not None and self._row < FILES_MAX:
            self._row += 1
            self._look_at = now + self._settings.pause_seconds
            self.deleted[found.reason] += 1
            return found
        self._row = 0
        self._look_at = now + self._settings.look_seconds
        return None

    def _choose(self, facts: Facts) -> Leave | None:
        self.waits = Wait.NOTHING
        if not facts.files:
            return None
        oldest = facts.files[0]
        reason = self._reason(oldest, facts)
        if reason is None:
            return None
        forced = reason is Reason.DISK
        self.waits = self._obstacle(oldest, facts, forced)
        if self.waits is not Wait.NOTHING:
            return None
        return Leave(oldest.end, reason, oldest.end > facts.needed)

    def _reason(self, oldest: File, facts: Facts) -> Reason | None:
        settings = self._settings
        if facts.used is not None and facts.used >= settings.disk_force:
            return Reason.DISK
        keep = settings.keep_seconds
        if keep is not None and facts.wall_ms - oldest.newest_ms >= keep * 1000:
            return Reason.AGE
        most = settings.keep_bytes
        length = facts.files[-1].end - oldest.start
        return Reason.SIZE if most is not None and length > most else None

    def _obstacle(self, oldest: File, facts: Facts, forced: bool) -> Wait:
        settings = self._settings
        if len(facts.files) == 1:
            return Wait.LAST
        if oldest.end > facts.limit:
            return Wait.LIMIT
        if settings.archive and oldest.end > facts.archived:
            return Wait.ARCHIVE
        if forced:
            return Wait.NOTHING
        if oldest.end > facts.needed:
            return Wait.SLAVE
        tight = facts.used is not None and facts.used >= settings.disk_clean
        anytime = tight or facts.ordered or settings.hours is None
        if not anytime and settings.hour_of(facts.wall_ms) not in (settings.hours or ()):
            return Wait.HOUR
        return Wait.NOTHING

    def removable(self, now: float, left: Sequence[Held]) -> list[int]:
        """Return the starts of files whose names may go now; counts those that are forced."""
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

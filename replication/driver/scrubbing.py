"""Scrub and repair: has a node's old bytes looked at, and asks other nodes for what is damaged.

A *pass* goes over the sealed files, oldest first, a piece at a time and no faster than the setting
says; while the node is busy it waits, but never longer than `BUSY_SECONDS` for one piece. A new
pass begins ``scrub_every`` after the last one began, at a start, and when an operator asks.

A *wound* (`storage.scrub`) is looked at again, then asked of the other nodes in turn, then
repaired. A node that does not succeed within `REPAIR_SECONDS` gives its role up, as one whose log
is damaged, and goes on asking: repaired, it follows the master again like a slave that was away. So
a batch that another node has costs a reader one refusal, and a master its role only if no other
node can be reached.

Units: bytes, seconds of the loop's clock. Not here: comparing and writing (`storage.scrub`), how
another node is asked (`replication.driver.outside`). Rules: docs/protocol.md R65, R66.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replication.core.replica import ReplicaCore
from replication.driver.outside import Outside
from storage import Damage, Job, Store
from storage.scrub import Piece, Repaired

PIECE_BYTES = 1024 * 1024
"""Bytes compared in one piece: about a millisecond of a thread."""
BUSY_BYTES = 4 * 1024 * 1024
"""A node that appended more than this per second since the last look is busy."""
BUSY_LOOK_SECONDS = 1.0
"""Pause before a busy node is looked at again."""
BUSY_SECONDS = 30.0
"""Longest delay of a piece on a busy node."""
PROOF_SECONDS = 60.0
"""Age at which bytes that were compared for a reader are compared again when they are read."""
REPAIR_SECONDS = 10.0
"""Longest time for which a node with a damaged batch keeps its role and looks for a whole copy."""
ASK_SECONDS, ASK_SECONDS_MAX = 0.5, 30.0
"""Pause before the other nodes are asked again, doubled up to the limit."""
ANSWER_SECONDS = 60.0
"""A question whose answer was never reported is over by then."""


@dataclass(slots=True)
class _Wound:
    """A damaged batch: since when, when it is tried next, and the pause after that."""

    since: float
    next: float
    pause: float = ASK_SECONDS


@dataclass(slots=True)
class _Pass:
    """A pass over the sealed files: from when, and where it is; ``at`` None: it has ended."""

    began: float
    at: int | None
    compared: int = 0


class ScrubDriver:
    """See the module.

    Args:
        store: The store.
        core: What this node is.
        around: Runs jobs, asks other nodes, logs.
        wall_ms: Wall clock in ms, for people.
        now: Clock.

    Attributes:
        passes: Passes that reached the end.
        compared: Bytes compared.
        found: Findings. ``repaired``: wounds that were ended.
    """

    def __init__(
        self,
        store: Store,
        core: ReplicaCore,
        around: Outside,
        *,
        wall_ms: Callable[[], int],
        now: float,
    ) -> None:
        self._store = store
        self._core = core
        self._around = around
        self._wall_ms = wall_ms
        self._rate = store.settings.scrub_bytes_per_second
        self._every = store.settings.scrub_every_seconds
        self._pass = _Pass(now, store.scrub.sealed[0])
        self._wounds: dict[int, _Wound] = {}
        self._job: Job | None = None
        self._asked: tuple[Damage, float] | None = None
        self._repairing: Damage | None = None
        self._next = now
        self._doubt_at = now + PROOF_SECONDS
        self._end = store.committed
        self._hurried = False
        self._put_off: float | None = None
        self._looked_at = now
        self._last: dict[str, object] | None = None
        self._ended_ms: int | None = None
        self.passes = self.compared = self.found = self.repaired = 0
        store.scrub.begin()

    # -- events

    def work(self, now: float) -> None:
        """Begin what is due; at most one job and one question at a time."""
        store = self._store
        if now >= self._doubt_at:
            self._doubt_at = now + PROOF_SECONDS
            store.scrub.doubt()
        if self._asked is not None and now >= self._asked[1] + ANSWER_SECONDS:
            self._asked = None
        if self._core.context.cutting or self._job is not None:
            return
        for damage in store.scrub.wounds:
            self._tend(now, damage)
        if self._job is None and self._asked is None and store.damage is None:
            self._compare(now)

    def on_job(self, now: float, job: Job, error: Exception | None) -> bool:
        """Take the end of a scrubbing job; False for any other job."""
        if job is not self._job:
            return False
        self._job, damage, self._repairing = None, self._repairing, None
        job.apply(job)
        if damage is not None:
            self._repaired(now, damage, job, error)
        elif isinstance(job.result, Piece):
            self._compared(now, job.result)
        return True

    def on_copy(self, now: float, start: int, data: bytes | None, text: str) -> None:
        """Other nodes were asked for the batch at ``start``: its bytes, or why none came."""
        asked, self._asked = self._asked, None
        if asked is None or asked[0].offset != start:
            return
        if data is None:
            self._around.event("batch-not-found", "warning", offset=start, why=text)
            return
        if self._job is None and not self._core.context.cutting:
            self._begin(asked[0], data)

    def wounded(self, start: int) -> bool:
        """Have a batch repaired that a slave could not take; False: it cannot be."""
        return self._store.scrub.note(start)

    def order(self, now: float) -> None:
        """Begin a pass now, and go as fast as the disk gives: an operator waits for it."""
        self._pass = _Pass(now, self._store.scrub.sealed[0])
        self._hurried, self._next = True, now

    def next_deadline(self) -> float:
        """Return when there is something to do."""
        if self._core.context.cutting or self._job is not None:
            return self._doubt_at
        due, store = self._doubt_at, self._store
        for damage in store.scrub.wounds:
            wound = self._wounds.get(damage.offset)
            if wound is None:
                return 0.0
            if self._asked is None:
                due = min(due, wound.next)
            if store.damage is None and not store.reads.only_copy:
                due = min(due, wound.since + REPAIR_SECONDS)
        if self._asked is not None:
            return min(due, self._asked[1] + ANSWER_SECONDS)
        if store.damage is None and (self._rate or self._hurried):
            due = min(due, self._next)
        return due

    # -- the pass

    def _compare(self, now: float) -> None:
        if now < self._next or not (self._rate or self._hurried):
            return
        here, end = self._pass, self._store.scrub.sealed[1]
        if here.at is None:
            if now < here.began + self._every:
                self._next = here.began + self._every
                return
            here = self._pass = _Pass(now, self._store.scrub.sealed[0])
        at = max(here.at or 0, self._store.start)
        if at >= end:
            self._finish(now)
            return
        if self._is_busy(now) and not self._hurried:
            self._next = now + BUSY_LOOK_SECONDS
            return
        self._put_off = None
        self._job = self._store.scrub.piece_job(at, PIECE_BYTES)
        self._around.run_job(self._job)

    def _is_busy(self, now: float) -> bool:
        """Whether a piece is put off because much was appended since the last look."""
        appended, self._end = self._store.committed - self._end, self._store.committed
        seconds, self._looked_at = now - self._looked_at, now
        self._put_off = now if self._put_off is None else self._put_off
        return appended > BUSY_BYTES * seconds and now < self._put_off + BUSY_SECONDS

    def _compared(self, now: float, piece: Piece) -> None:
        here = self._pass
        count = piece.end - max(here.at or 0, self._store.start)
        if count > 0:
            self.compared += count
            here.compared += count
        here.at = piece.end
        for damage in piece.found:
            self._note(damage)
        self._next = now if self._hurried else now + max(count, 0) / (self._rate or PIECE_BYTES)

    def _finish(self, now: float) -> None:
        here = self._pass
        self.passes += here.compared > 0
        if here.compared:
            self._ended_ms = self._wall_ms()
            self._around.event("scrubbed", "info", bytes=here.compared, found=self.found)
        here.at, self._hurried = None, False
        self._next = here.began + self._every if here.compared else now + min(self._every, 60.0)
        if not here.compared:  # no file was full yet
            self._pass = _Pass(now, self._store.scrub.sealed[0])

    def _note(self, damage: Damage) -> None:
        self.found += 1
        self._last = {
            "file": damage.file, "offset": damage.offset, "length": damage.length,
            "what": damage.what, "at_ms": self._wall_ms(), "repaired": False,
        }  # fmt: skip
        facts = {"file": damage.file, "offset": damage.offset, "length": damage.length}
        self._around.event("batch-rotten", "alarm", what=damage.what, **facts)

    # -- wounds

    def _tend(self, now: float, damage: Damage) -> None:
        wound = self._wounds.get(damage.offset)
        if wound is None:
            wound = self._wounds[damage.offset] = _Wound(now, now)
            if self._last is None or self._last["offset"] != damage.offset:
                self._note(damage)
        if now >= wound.since + REPAIR_SECONDS and self._store.damage is None:
            self._store.scrub.give_up(damage)
        if now < wound.next or self._job is not None or self._asked is not None:
            return
        wound.next, wound.pause = now + wound.pause, min(2 * wound.pause, ASK_SECONDS_MAX)
        self._begin(damage, None)

    def _begin(self, damage: Damage, data: bytes | None) -> None:
        self._repairing = damage
        self._job = self._store.scrub.repair_job(damage, data)
        self._around.run_job(self._job)

    def _repaired(self, now: float, damage: Damage, job: Job, error: Exception | None) -> None:
        repaired = job.result if isinstance(job.result, Repaired) else Repaired(False, str(error))
        if repaired.whole:
            self._wounds.pop(damage.offset, None)
            self.repaired += 1
            if self._last is not None and self._last["offset"] == damage.offset:
                self._last["repaired"] = True
            self._around.event("batch-repaired", "info", offset=damage.offset, length=damage.length)
            if self._store.damage is None:
                self._core.on_repaired(now)
        elif repaired.why:
            self._around.event(
                "batch-not-repaired", "warning", offset=damage.offset, why=repaired.why
            )
        elif self._asked is None:
            self._asked = damage, now
            self._around.fetch(damage.offset, damage.length)

    # -- for people

    def document(self) -> dict[str, object]:
        """Return the ``scrub`` part of a status document."""
        start, end = self._store.scrub.sealed
        at = self._pass.at
        return {
            "enabled": self._rate is not None,
            "running": at is not None and at < end,
            "at": at,
            "start": start,
            "end": end,
            "passes": self.passes,
            "compared_bytes": self.compared,
            "ended_ms": self._ended_ms,
            "found": self.found,
            "repaired": self.repaired,
            "waiting": 0 if self._store.scrub.condemned else len(self._store.scrub.wounds),
            "last": self._last,
        }

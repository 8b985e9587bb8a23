"""Messages that failed for good: a copy in ``%DLQ%group`` and the settling, in one batch.

Until that batch is in the log they stay as they are, so nothing is lost on the way, and after a
failover the next master finds them again. The topic is made with its first record. A group without
dead letters settles them alone; they are counted and told.

Limits: `GroupLimits.dead_max` messages wait at a time, `DEAD_BYTES_MAX` go into one batch.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial

from node.delivery.aside import PASSING, Aside
from node.leases.limits import DEAD_BYTES_MAX
from node.leases.settles import Dying, Late, held
from node.turns.context import ANSWER_SECONDS, Context, Fetch
from storage.messaging.copies import dead_letters, dead_topic
from storage.read.lookups import OffLoopLookup
from storage.read.result import ReadResult, ReadStatus
from storage.state.sections import Outcome, Section, Together
from twinlog.errors import Busy, CorruptionError, TwinlogError
from twinlog.format.group_rows import DEAD_LETTER, DROPPED, LEFT_OUT, GivenUpRow
from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.wire.groups import DONE, RECEIPT_EXPIRED

RETRY_SECONDS = 1.0
"""Pause after a refusal."""
LOOK_AGAIN_MS = 1_000
"""Messages beyond the limit are looked at again after this."""


@dataclass(slots=True, eq=False)
class _Death:
    """One stretch on its way.

    Attributes:
        late: Told when it is in the log.
        told: Whether it was reported that its records cannot be read.
    """

    dying: Dying
    late: list[Late] = field(default_factory=list[Late])
    told: bool = False

    def said(self, outcome: str | TwinlogError) -> None:
        late, self.late = self.late, []
        for one in late:
            one(outcome)


class DeadLetters:
    """See the module.

    Args:
        context: The node.
        fetch: Has cold records fetched in a thread.
    """

    def __init__(self, context: Context, fetch: Fetch) -> None:
        self._context = context
        self._aside = Aside(context, fetch)
        self._line: deque[_Death] = deque()
        self._known: dict[tuple[int, int, int], _Death] = {}
        self._not_before = 0.0
        self._count = 0
        self._fetched: tuple[_Death, ReadResult] | None = None

    @property
    def ready(self) -> bool:
        """Whether `work` may have something to do."""
        return bool(self._line) and not self._aside.busy

    def next_deadline(self) -> float:
        """Return when `work` has something to do."""
        return self._not_before if self.ready else float("inf")

    def add(self, dying: Dying, late: Late | None) -> None:
        """Take a stretch; ``late`` is called with its code, or with an error."""
        key = dying.share, dying.n, dying.first
        death = self._known.get(key)
        if death is None:
            count = dying.last - dying.first + 1
            if self._count + count > self._context.limits.dead_max and self._count:
                self._refuse(dying, late)
                return
            death = self._known[key] = _Death(dying)
            self._line.append(death)
            self._count += count
        if late is not None:
            death.late.append(late)

    def _refuse(self, dying: Dying, late: Late | None) -> None:
        if late is not None:
            text = f"{self._count} messages wait to become dead letters already (dead_max)"
            late(Busy(text, limit="dead_max"))
            return
        at = self._context.clock.ms + LOOK_AGAIN_MS
        self._context.due.add(at, dying.share, dying.n, dying.first, dying.last)

    def clear(self, error: TwinlogError) -> None:
        """A reign has ended."""
        deaths = list(self._known.values())
        self._line.clear()
        self._known.clear()
        self._count, self._not_before = 0, 0.0
        self._aside.clear()
        for death in deaths:
            death.said(error)

    # ── one after the other ─────────────────────────────────────────────────────────────────────

    def work(self, now: float) -> None:
        """Bring what waits into the log, until something has to be waited for."""
        while self.ready and now >= self._not_before:
            death = self._line[0]
            group = self._context.messaging.group(death.dying.group)
            share = self._context.messaging.ahead.share(death.dying.share)
            if group is None or share is None:
                self._end(death, DONE)
                continue
            dying = death.dying
            runs, lost = held(share, dying.n, dying.first, dying.last)
            if not runs:
                self._end(death, RECEIPT_EXPIRED if lost else DONE)
                continue
            if not group.dead_letter:
                self._drop(now, death)
                continue
            topic = dead_topic(group.name)
            if self._context.records.queues(topic) is None:
                self._aside.create(now, topic, partial(self._created, now, topic))
                return
            fetched, self._fetched = self._fetched, None
            if fetched is not None and fetched[0] is death:
                self._bury(now, death, fetched[1])
                continue
            size = DEAD_BYTES_MAX
            first, last = runs[0].first, runs[-1].last
            try:
                found = self._context.records.read(
                    share.topic, share.queue, first, max_bytes=size, max_records=last - first + 1
                )
            except TwinlogError as error:
                self._unread(death, error)
                return
            if found.cold and found.count:
                self._get(death, found)
            else:
                self._bury(now, death, found)

    def _end(self, death: _Death, outcome: str | TwinlogError) -> None:
        dying = death.dying
        self._known.pop((dying.share, dying.n, dying.first), None)
        if self._line and self._line[0] is death:
            self._line.popleft()
        self._count -= dying.last - dying.first + 1
        death.said(outcome)

    def _get(self, death: _Death, found: ReadResult) -> None:
        """Have the records of a stretch fetched."""

        def judge(outcome: list[ReadResult | Exception] | Exception) -> ReadResult:
            one = outcome[0] if isinstance(outcome, list) else outcome
            return self._context.records.fetched(found, one)

        def then(fetched: ReadResult) -> None:
            self._fetched = death, fetched

        size = sum(len(piece) for piece in found.slices)
        look = OffLoopLookup(lambda stop: [found.outcome()], size, found.lowest, found.generation)
        self._aside.fetch(look, judge, then, partial(self._unread, death))

    def _created(self, now: float, topic: str, made: bool) -> None:
        # Deleted and made again, it has no queues to be seen until the dispatcher is past that.
        if not made or self._context.records.queues(topic) is None:
            self._not_before = now + RETRY_SECONDS

    def _unread(self, death: _Death, error: TwinlogError) -> None:
        """Its records cannot be read now, damaged perhaps: it stays, after those that wait too."""
        self._not_before = self._context.seconds() + RETRY_SECONDS
        if self._line and self._line[0] is death:
            self._line.rotate(-1)
        if not death.told:
            death.told = True
            group, code, why = death.dying.group, error.code, str(error)
            self._context.tell("dead_letter_refused", "error", group=group, code=code, why=why)

    # ── what is written ─────────────────────────────────────────────────────────────────────────

    def _bury(self, now: float, death: _Death, found: ReadResult) -> None:
        """Append copies and their settling."""
        context, dying = self._context, death.dying
        share = context.messaging.ahead.share(dying.share)
        runs, _ = (
            held(share, dying.n, dying.first, dying.last) if share is not None else ([], False)
        )
        if share is None or not runs:
            self._end(death, RECEIPT_EXPIRED)
            return
        first, last = runs[0].first, runs[-1].last
        if found.status is ReadStatus.BEFORE_START:
            after = min(found.start, last + 1)  # retention has taken the records
        elif found.status is ReadStatus.FOUND:
            after = min(found.next, last + 1)
        else:
            self._end(death, DONE)
            return
        sections: list[Section] = []
        if found.status is ReadStatus.FOUND:
            try:
                copy = dead_letters(
                    found.slices, dying.group, dying.why, family=context.family,
                    wanted=lambda offset: any(run.first <= offset <= run.last for run in runs),
                    light=share.topic if share.topic.startswith(LIGHT_PREFIX) else "",
                )  # fmt: skip
            except CorruptionError as error:  # damaged in memory since it was read
                self._unread(death, error)
                return
            if copy.records:
                made = Section(copy.topic, copy.queue, copy.records, copy.data, own=True)
                sections.append(made)
        how = DEAD_LETTER if sections else LEFT_OUT
        row = GivenUpRow(dying.share, dying.n, first, after - 1, how)
        self._append(now, death, row, sections, whole=after > last)

    def _drop(self, now: float, death: _Death) -> None:
        dying = death.dying
        row = GivenUpRow(dying.share, dying.n, dying.first, dying.last, DROPPED)
        self._append(now, death, row, [], whole=True)

    def _append(
        self, now: float, death: _Death, row: GivenUpRow, sections: list[Section], *, whole: bool
    ) -> None:
        context, dying, reign = self._context, death.dying, self._aside.reign
        refused: list[Together] = []

        def reply(done: Together, by: str | None) -> None:
            if reign != self._aside.reign:
                return
            if done.outcome is Outcome.REFUSED:
                refused.append(done)
                return
            stored = done.outcome in (Outcome.STORED, Outcome.DUPLICATE)
            if stored:
                self._tell(dying, row, sections)
            if whole:
                self._end(death, DONE if stored else context.refusal("not-master", ""))

        context.driver.append_rows(
            now, [row], sections=sections, deadline=now + ANSWER_SECONDS, reply=reply
        )
        if refused:
            self._refused(now, death, refused[0])
            return
        group = context.messaging.group(dying.group)
        if group is not None:
            context.settled(group, context.messaging.ahead.share(dying.share))
        if whole and self._line and self._line[0] is death:
            self._line.popleft()  # it binds from its append; the answer waits

    def _refused(self, now: float, death: _Death, done: Together) -> None:
        context = self._context
        self._not_before = now + RETRY_SECONDS
        if done.code not in PASSING:  # the attempt ends; the lease's time brings the next
            group, code, why = death.dying.group, done.code, done.text
            context.tell("dead_letter_refused", "error", group=group, code=code, why=why)
            self._end(death, context.refusal(code, why))

    def _tell(self, dying: Dying, row: GivenUpRow, sections: list[Section]) -> None:
        counts, count = self._context.counts, row.last - row.first + 1
        copies = sum(section.count for section in sections)
        if copies:
            counts.dead[dying.group] = counts.dead.get(dying.group, 0) + copies
        else:
            counts.dropped += count
        counts.settled.add(dying.group, "dead", count)
        share = self._context.messaging.ahead.share(dying.share)
        self._context.tell(
            "dead_letter", "warning", group=dying.group, why=dying.why, messages=count,
            copies=copies, topic=share.topic if share is not None else "",
            queue=share.queue if share is not None else 0, offset=row.first,
            attempts=dying.attempt,
        )  # fmt: skip

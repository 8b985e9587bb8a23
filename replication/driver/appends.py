"""What a master appends for clients, from the store to the answer that waits.

A section list, a change of metadata, rows of groups or both in one batch: each is appended under
the token of the present reign, sent on to the slaves at once, and answered when its acknowledgement
holds (`replication.driver.replies`).

Not here: whether anything may be appended (`replication.driver.driver` asks the core first).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replication.core.master.waiters import CONFIRMED, FLUSHED
from replication.core.replica import ReplicaCore
from replication.driver.background_jobs import BackgroundJobs
from replication.driver.outcomes import or_unknown
from replication.driver.outside import Reply
from replication.driver.replies import Replies
from storage import Control, Outcome, Section, SectionResult, Store, Token
from storage.state.sections import Together
from twinlog.format.group_rows import Row

TogetherReply = Callable[[Together, str | None], None]
"""What became of all of it, and who holds it (names, comma between); None: no node does."""

CONTROL_SIZE = 1024
"""Bytes that a change of metadata is taken for while its answer waits."""


class Appends:
    """See the module.

    Attributes:
        token: Of the present writer; None while this node may not write.
        full: Whether the last append found no space.
    """

    def __init__(
        self,
        store: Store,
        core: ReplicaCore,
        replies: Replies,
        jobs: BackgroundJobs,
        *,
        wall_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._core = core
        self._replies = replies
        self._jobs = jobs
        self._wall_ms = wall_ms
        self.token: Token | None = None
        self.full = False

    def sections(
        self,
        now: float,
        sections: Sequence[Section],
        ack: str,
        deadline: float,
        size: int,
        reply: Reply,
    ) -> None:
        """Append sections, each as a whole or not at all."""
        assert self.token is not None
        append, wall_ms, count = self._store.append, self._wall_ms(), len(sections)
        results = or_unknown(append, reply, count, self.token, sections, wall_ms=wall_ms)
        self._written(now, results, ack, deadline, size, reply)

    def control(self, now: float, change: Control, deadline: float, reply: Reply) -> None:
        """Append a change of the group's metadata."""
        assert self.token is not None
        append, wall_ms = self._store.append_control, self._wall_ms()
        result = or_unknown(append, reply, 1, self.token, change, wall_ms=wall_ms)
        self._jobs.commit(now, at_once=True)  # a client waits, and these are rare
        self._written(now, [result], CONFIRMED, deadline, CONTROL_SIZE, reply)

    def rows(
        self,
        now: float,
        sections: Sequence[Section],
        rows: Sequence[Row],
        deadline: float,
        size: int,
        reply: TogetherReply,
    ) -> None:
        """Append rows of groups, with sections in one batch or nothing of both.

        With neither: answer once everything that was appended before is confirmed.
        """
        assert self.token is not None
        store, token, wall_ms = self._store, self.token, self._wall_ms()

        def answer(results: list[SectionResult], by: str | None) -> None:
            own = results[-1]
            reply(Together(own.outcome, results[:-1], done.end, own.code, own.text), by)

        done = Together(Outcome.STORED, [], store.end)
        if sections:
            done = or_unknown(
                store.append_together, answer, 1, token, sections, rows, wall_ms=wall_ms
            )
        elif rows:
            one = or_unknown(store.append_rows, answer, 1, token, rows, wall_ms=wall_ms)
            done = Together(one.outcome, [], one.end, one.code, one.text)
        if done.outcome is Outcome.REFUSED:
            self.full = done.code == "disk-full"
            reply(done, None)
            return
        own = SectionResult(done.outcome, end=done.end)
        self._written(now, [*done.sections, own], CONFIRMED, deadline, size, answer)

    def _written(
        self,
        now: float,
        results: list[SectionResult],
        ack: str,
        deadline: float,
        size: int,
        reply: Reply,
    ) -> None:
        end, stored = 0, False
        for result in results:
            if result.outcome is Outcome.STORED:
                stored = True
            if result.outcome in (Outcome.STORED, Outcome.DUPLICATE):
                end = max(end, result.end)
        self.full = not stored and any(result.code == "disk-full" for result in results)
        if not end or self._replies.holds(ack, end):
            if stored:
                self._core.on_appended(now)
            self._replies.say(results, ack, end, reply)
            return
        if ack == FLUSHED:
            deadline = min(deadline, now + self._store.settings.flush_timeout_seconds)
            self._jobs.wanted = max(self._jobs.wanted, end)
        self._replies.wait(results, ack, reply, end=end, size=size, deadline=deadline)
        self._core.on_appended(now)

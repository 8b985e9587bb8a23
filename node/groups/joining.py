"""JOIN and BEAT: who becomes a member, who leaves, who was not heard.

A membership is a row in the log, and answered at its confirm. A group that is joined
for the first time is created before, unless settings forbid it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from heapq import heappop, heappush
from typing import cast

from node.groups.context import ANSWER_SECONDS, Context, Done, Turn
from node.groups.members import Session
from node.groups.parked import Asker
from node.groups.requests import JoinFields
from node.leases.limits import GroupLimits
from storage.messaging.fold import MEMBER_SIGN
from storage.messaging.groups import START_END, Group
from storage.state.group_controls import CreateGroups
from storage.state.sections import Outcome, SectionResult
from twinlog.errors import Busy, GroupDiffers, TwinlogError, UsageError
from twinlog.format.group_rows import MemberRow

Request = tuple[Callable[[Turn], None], Done]
"""What carries a request out in a turn, raising why not, and what answers it."""


class Joining:
    """See the module.

    Args:
        context: The node.
        again: Puts a request into the next turn.
    """

    def __init__(self, context: Context, again: Callable[[Request], None]) -> None:
        self._context = context
        self._again = again
        self._beats: list[tuple[float, int, Session, Done]] = []
        self._number = 0

    # ── joining ─────────────────────────────────────────────────────────────────────────────────

    def join(self, asked: JoinFields, asker: Asker, address: str, done: Done, turn: Turn) -> None:
        """Make a new member, or know one again on another connection.

        Raises:
            TwinlogError: Why not; nothing was decided.
        """
        context = self._context
        found = context.messaging.defined(asked.group)
        if found is None:
            self._create(asked, asker, address, done, turn)
            return
        if found[1]:  # its record waits for its confirm
            once_more = partial(self.join, asked, asker, address, done)
            turn.answers.append(partial(self._confirmed, once_more, done))
            return
        group = found[0]
        self._check(group, asked)
        known = context.members.get(asked.group, asked.member)
        if known is not None and known.name == asked.name:
            known.peer, known.address, known.seconds = asker, address, asked.seconds
            known.heard_at, known.topics = turn.now, asked.topics
            context.members.join(known)
            self._welcome(group, known, asked, done, turn)
            return
        if len(context.members) >= context.limits.members_max:
            text = f"there are {len(context.members)} members already (members_max)"
            raise Busy(text, limit="members_max")
        if group.mode == "broadcast":
            self._replace(group, asked, turn)
        number = context.draw()
        turn.scratch.write(MemberRow(group.name, number, asked.name, 1))
        session = Session(
            group.name, number, asked.name, turn.now, asked.seconds, asker, address, asked.topics
        )
        self._welcome(group, session, asked, done, turn)

    def _replace(self, group: Group, asked: JoinFields, turn: Turn) -> None:
        """One name has one position: who joins takes it over."""
        for session in self._context.members.of(group.name):
            if session.name == asked.name:
                self.end(session, turn)

    def _welcome(
        self, group: Group, session: Session, asked: JoinFields, done: Done, turn: Turn
    ) -> None:
        rows = self._positions(group, session, asked, turn) if group.mode == "broadcast" else []
        fields = {
            "member": session.member,
            "generation": 0,
            "session_ms": round(session.seconds * 1000),
            "invisible_ms": group.invisible_ms,
            "rows": rows,
        }

        def answer(error: TwinlogError | None) -> None:
            if error is None:
                self._context.members.join(session)
            done(error or fields)

        turn.answers.append(answer)

    def _positions(
        self, group: Group, session: Session, asked: JoinFields, turn: Turn
    ) -> list[list[object]]:
        name = group.name + MEMBER_SIGN + session.name
        rows: list[list[object]] = []
        for topic in asked.topics:
            for queue in range(self._context.records.queues(topic) or 0):
                share = turn.scratch.find(name, topic, queue)
                if share is None:
                    share = turn.leasing.begin(group, topic, queue, name)
                rows.append([topic, queue, share.id, share.next])
        return rows

    def _check(self, group: Group, asked: JoinFields) -> None:
        """Refuse what the group is not."""
        if group.mode != asked.mode:
            text = f"group {group.name} has mode {group.mode}, not {asked.mode}"
            raise GroupDiffers(text, code="group-mode", mode=group.mode)
        batched = self._context.records.batched() if asked.filters or group.filters else ()
        for topic in asked.topics:
            if self._context.records.queues(topic) is None:
                raise self._context.missing(topic)
            self._context.records.check_open(topic)
            own = group.filters.get(topic, "")
            if asked.filters is not None and asked.filters.get(topic, "") != own:
                hint = f"the group's own is {own!r}" if own else "the group has none"
                text = f"group {group.name} has another filter for topic {topic}"
                raise GroupDiffers(text, code="filter-differs", hint=hint)
            if topic in batched and own:
                text = f"topic {topic} has batch queues: a group has no filter for those"
                raise UsageError(text, code="filter-differs")

    # ── creating ────────────────────────────────────────────────────────────────────────────────

    def _create(
        self, asked: JoinFields, asker: Asker, address: str, done: Done, turn: Turn
    ) -> None:
        context = self._context
        if not context.limits.auto_create:
            raise context.unknown(asked.group)
        group = first_definition(asked, context.limits, context.wall_ms())
        self._check(group, asked)
        if len(context.messaging.groups()) >= context.limits.groups_max:
            text = f"there are {len(context.messaging.groups())} groups already (groups_max)"
            raise Busy(text, limit="groups_max")

        def reply(results: list[SectionResult], by: str | None) -> None:
            result = results[0]
            if result.outcome in (Outcome.STORED, Outcome.DUPLICATE):
                self._again((partial(self.join, asked, asker, address, done), done))
            elif result.outcome is Outcome.REFUSED:
                done(context.refusal(result.code, result.text))
            else:
                done(context.refusal("not-master", ""))

        deadline = turn.now + ANSWER_SECONDS
        context.driver.control(turn.now, CreateGroups((group,)), deadline=deadline, reply=reply)

    def _confirmed(
        self, once_more: Callable[[Turn], None], done: Done, error: TwinlogError | None
    ) -> None:
        if error is not None:
            done(error)
        else:
            self._again((once_more, done))

    # ── beating and leaving ─────────────────────────────────────────────────────────────────────

    def beat(self, fields: Mapping[str, object], asker: Asker, done: Done, turn: Turn) -> None:
        """Hear a member, or let it leave.

        Raises:
            NotMember: Its session is over.
        """
        context, group = self._context, str(fields["group"])
        session = context.session(group, cast("int", fields["member"]), asker)
        session.heard_at = turn.now
        if fields.get("leave") is True:
            self.end(session, turn)

            def left(error: TwinlogError | None) -> None:
                done(error or _unchanged())

            turn.answers.append(left)
            return
        wait = min(cast("int", fields["wait_ms"]) / 1000, session.seconds / 2)
        self._number += 1
        heappush(self._beats, (turn.now + max(wait, 0.0), self._number, session, done))
        self.beats(turn.now)

    def beats(self, now: float) -> None:
        """Answer the beats whose time has come."""
        while self._beats and self._beats[0][0] <= now:
            _, _, session, done = heappop(self._beats)
            session.heard_at = max(session.heard_at, now)
            done(_unchanged())

    @property
    def waiting(self) -> int:
        """Beats that wait for their time."""
        return len(self._beats)

    def drain(self, error: TwinlogError) -> None:
        """Answer all beats: the reign has ended."""
        beats, self._beats = self._beats, []
        for *_, done in beats:
            done(error)

    def forget_silent(self, turn: Turn) -> None:
        """End the sessions of those who were not heard for too long."""
        for session in self._context.members.silent(turn.now):
            self._context.members.lost += 1
            self._context.tell(
                "member_lost", "info", group=session.group, member=session.member,
                name=session.name, silent_seconds=round(turn.now - session.heard_at, 1),
            )  # fmt: skip
            self.end(session, turn)

    def end(self, session: Session, turn: Turn) -> None:
        """End a session; its leases end by time, its parked pops are answered empty."""
        row = MemberRow(session.group, session.member, session.name, 0)
        turn.scratch.write(row)
        self._context.members.leave(session)
        for pop in self._context.parked.of(session):
            self._context.parked.remove(pop)
            turn.answers.append(partial(_empty, pop.answer))

    def next_deadline(self) -> float:
        """Return when `beats` has something to do."""
        return self._beats[0][0] if self._beats else float("inf")


def first_definition(asked: JoinFields, limits: GroupLimits, created_ms: int) -> Group:
    """Return the group that its first member makes."""
    return Group(
        asked.group,
        asked.mode,
        START_END if asked.start is None else asked.start,
        attempts=limits.attempts,
        invisible_ms=limits.invisible_ms,
        filters=asked.filters or {},
        created_ms=created_ms,
    )


def _unchanged() -> Mapping[str, object]:
    return {"generation": 0, "rows": [], "revoked": []}


def _empty(answer: Callable[..., None], error: TwinlogError | None) -> None:
    answer(error)

"""TOGETHER: sends and acknowledgements of one group in one batch, all of it or nothing.

Consume, transform, produce, exactly once: what was consumed is settled if and only if what was
produced is in the log. A repetition finds its sections by their sequence numbers and its messages
settled, and its answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from node.clients.append_path import parse_sections, parse_terms
from node.groups.positions import commit
from node.groups.requests import parse_commits, parse_settles
from node.leases.scratch import Scratch
from node.leases.settles import Settle, Settling
from node.turns.context import ANSWER_SECONDS, Context, Done, Turn
from node.turns.parked import Asker
from storage.append.own_records import TOGETHER_MAX
from storage.messaging.fold import Shares
from storage.state.sections import Outcome, Section, SectionResult
from storage.state.sections import Together as Appended
from twinlog.errors import OutcomeUnknown, UsageError
from twinlog.wire.groups import DONE, RECEIPT_EXPIRED, What

Codes = tuple[Sequence[Sequence[object]], Sequence[Sequence[object]]]
"""Of the rows of settles, and of commits."""


@dataclass(frozen=True, slots=True)
class TogetherFields:
    """What a TOGETHER says."""

    group: str
    member: int
    sections: list[Section]
    settles: list[Settle]
    commits: list[tuple[int, int]]
    seconds: float

    @classmethod
    def of(cls, fields: Mapping[str, object], payload: memoryview) -> TogetherFields:
        """Return what the fields say.

        Raises:
            UsageError: It makes no sense.
        """
        settles, commits = parse_settles(fields["settles"]), parse_commits(fields["commits"])
        if any(row.what != What.ACK for row in settles):
            raise UsageError("together acknowledges; nothing else is done with it", code="fields")
        if not settles and not commits:
            raise UsageError("together settles at least one message", code="fields")
        given = cast("list[object]", fields["sections"])
        if len(given) > TOGETHER_MAX:
            text = f"{len(given)} sections together, at most {TOGETHER_MAX} may be"
            raise UsageError(text, code="too-large")
        sections = parse_sections(fields, payload) if given else []
        _, timeout_ms = parse_terms(fields, "confirmed")
        return cls(
            str(fields["group"]), cast("int", fields["member"]), sections, settles, commits,
            min(timeout_ms / 1000, ANSWER_SECONDS),
        )  # fmt: skip


class Together:
    """See the module.

    Args:
        context: The node.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def decide(self, asked: TogetherFields, asker: Asker, done: Done, turn: Turn) -> None:
        """Judge all rows against what the turn has decided; append after the turn's own rows.

        Raises:
            TwinlogError: Why nothing was done.
        """
        group = self._context.group(asked.group)
        session = self._context.session(group.name, asked.member, asker)
        session.heard_at = turn.now
        turn.together.append(lambda: self._append(asked, asker, done, turn))

    def _append(self, asked: TogetherFields, asker: Asker, done: Done, turn: Turn) -> None:
        context = self._context
        found = context.messaging.standing(asked.group)
        session = context.members.get(asked.group, asked.member)
        if found is None or session is None:
            done(context.unknown(asked.group))
            return
        scratch = Scratch(context.messaging.ahead)
        mine = Turn(turn.now, turn.now_ms, scratch, turn.leasing, _settling(context, turn, scratch))
        settles = [mine.settling.settle(found, row, lambda code: None) for row in asked.settles]
        repeated = self._context.driver.store.stored_before(asked.sections) is not None
        if asked.sections and not repeated:
            # A message that is settled by now may have been handled by another member.
            settles = [
                code if whole(context.messaging.ahead, row) else (RECEIPT_EXPIRED, 0)
                for code, row in zip(settles, asked.settles, strict=True)
            ]
        commits = commit(context, session, mine, asked.commits)
        codes: Codes = [list(code or (DONE, 0)) for code in settles], commits
        if any(row[0] != DONE for rows in codes for row in rows):
            late = sum(row[0] == RECEIPT_EXPIRED for row in codes[0])
            if late:
                context.too_late(asked.group, asked.member, late)
            done(self._fields(False, [], codes))
            return

        quotas = context.quotas if not repeated else None
        if quotas is not None and asked.sections and quotas.active():
            over = quotas.admit(asked.sections, turn.now)
            if over is not None:
                done(over)
                return

        def reply(outcome: Appended, by: str | None) -> None:
            match outcome.outcome:
                case Outcome.STORED | Outcome.DUPLICATE:
                    done(self._fields(True, outcome.sections, codes, by or ""))
                case Outcome.REFUSED if outcome.sections:
                    done(self._fields(False, outcome.sections, codes))
                case Outcome.REFUSED:
                    done(context.refusal(outcome.code, outcome.text))
                case _:
                    text = "it may or may not be in the log; repeat it: it is done once"
                    done(OutcomeUnknown(text))

        for number in {row.share for row in asked.settles}:
            context.settled(found, scratch.share(number))
        context.driver.append_rows(
            turn.now, scratch.rows, sections=asked.sections,
            deadline=turn.now + asked.seconds, reply=reply,
        )  # fmt: skip

    def _fields(
        self,
        stored: bool,
        sections: list[SectionResult],
        codes: Codes,
        by: str = "",
    ) -> dict[str, object]:
        context = self._context
        results = [
            [
                int(one.outcome), one.queue_offset, one.log_offset, one.end, one.code,
                one.text[:1000], one.record,
            ]
            for one in sections
        ]  # fmt: skip
        return {
            "stored": stored,
            "results": results,
            "settles": codes[0],
            "commits": codes[1],
            "confirmed_by": by.split(",") if by else [],
            "now_ms": context.clock.ms,
            "epoch": context.driver.reign()[0],
        }


def whole(shares: Shares, row: Settle) -> bool:
    """Whether all of a row's messages are still under its lease."""
    share = shares.share(row.share)
    return share is not None and share.holds(row.n, row.first, row.last)


def _settling(context: Context, turn: Turn, scratch: Scratch) -> Settling:
    def never(*_: object) -> None:
        raise AssertionError("together only acknowledges")

    return Settling(scratch, context.due, turn.now_ms, context.counts.settled, never)

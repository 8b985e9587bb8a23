"""GROUP: lists and documents from any node, changes by the master.

``create``, ``alter`` and ``delete`` are control records; ``reset`` and ``skip`` are rows, which end
the leases of their queues. Every change is answered at its confirm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from node.clients.lookups import Answer, Asked
from node.delivery.listing import Listing
from node.groups.backlog import Ends, first_unsettled
from node.groups.documents import group_document, page_of_groups
from node.groups.joining import Request
from node.groups.requests import check_consumed, group_name, settings_of
from node.turns.context import ANSWER_SECONDS, Context, Done, Turn
from node.turns.parked import Asker
from storage.messaging.fold import dropped_names
from storage.messaging.groups import Group
from storage.messaging.share import Share
from storage.state.control import Control
from storage.state.group_controls import AlterGroups, CreateGroups, DeleteGroups
from storage.state.sections import Outcome, SectionResult
from twinlog.errors import Busy, OutcomeUnknown, TwinlogError, UsageError
from twinlog.format.group_rows import MemberRow, ResetRow
from twinlog.wire.groups import ROWS_MAX

WHY_MAX = 200
"""Characters of the reason of a reset."""
PLACES_MAX = 4_096
"""Messages whose time is looked up for one answer; groups beyond it are answered without."""

Fetch = Callable[[Asked[list[int]], Asker, Done], None]
"""Looks something up in a thread, then answers."""


class Orders:
    """See the module.

    Args:
        context: The node.
        observed: Role, node and age, for answers.
        fetch: Looks up in a thread when messages were stored.
    """

    def __init__(
        self, context: Context, observed: Callable[[], Mapping[str, object]], fetch: Fetch
    ) -> None:
        self._context = context
        self._observed = observed
        self._fetch = fetch
        self.waiting = Listing(context, observed, fetch)

    def page(self, after: str, asker: Asker | None = None) -> Mapping[str, object]:
        """Return the groups after a name that ``asker`` may know of, in pages."""
        return page_of_groups(self._context, after, asker)

    def document(self, name: str) -> Mapping[str, object] | None:
        """Return one group with who answers; None: there is no such group."""
        found = self._context.messaging.group(name)
        if found is None:
            return None
        return {**self._observed(), "group": group_document(self._context, found)}

    def order(
        self,
        fields: Mapping[str, object],
        ask: Callable[[Request], None],
        asker: Asker,
        done: Done,
    ) -> None:
        """Carry out a GROUP; ``ask`` has the next turn decide.

        Raises:
            TwinlogError: It makes no sense; nothing was done.
        """
        context, op = self._context, fields["op"]
        if op == "list":
            after = fields.get("after")
            page = self.page(after if isinstance(after, str) else "", asker)
            groups = cast("list[dict[str, object]]", page["groups"])
            self._with_oldest(groups, {**self._observed(), **page}, asker, done)
            return
        name = group_name(fields, "name")
        if op == "show":
            found = self.document(name)
            if found is None:
                raise context.unknown(name)
            self._with_oldest([cast("dict[str, object]", found["group"])], found, asker, done)
        elif op in ("create", "alter", "delete"):
            given = fields.get("settings")
            settings: Mapping[str, object] = {}
            if isinstance(given, dict):
                settings = cast("Mapping[str, object]", given)
            ask((lambda turn: self._change(str(op), name, settings, done, turn), done))
        elif op in ("reset", "skip"):
            rows = cast("list[list[object]]", fields.get("positions") or [])
            if not 0 < len(rows) <= ROWS_MAX:
                text = f"{op} names 1 to {ROWS_MAX} positions, not {len(rows)}"
                raise UsageError(text, code="fields")
            why = str(fields.get("why") or op)[:WHY_MAX]
            ask((lambda turn: self._move(str(op), name, rows, why, done, turn), done))
        else:
            text = f"group knows list, show, create, alter, delete, reset and skip, not {op!r}"
            raise UsageError(text, code="fields")

    def _with_oldest(
        self,
        groups: list[dict[str, object]],
        answer: Mapping[str, object],
        asker: Asker,
        done: Done,
    ) -> None:
        """Answer with ``oldest_ms`` in each group; without it where it cannot be looked up now."""
        context, places, owners = self._context, list[tuple[str, int, int]](), list[int]()
        ends = Ends(context.records)
        for at, document in enumerate(groups):
            group = context.messaging.group(str(document["name"]))
            found = first_unsettled(context, group, ends) if group is not None else []
            if len(places) + len(found) > PLACES_MAX:
                break
            document["oldest_ms"] = None
            places += found
            owners += [at] * len(found)
        if not places:
            done(answer)
            return

        def finish(outcome: list[int] | Exception) -> Answer:
            try:
                times = context.records.looked_at(look, outcome)
            except TwinlogError:  # cut, deleted or damaged meanwhile
                for at in owners:
                    groups[at].pop("oldest_ms", None)
                return answer, ()
            for at, ms in zip(owners, times, strict=True):
                known = groups[at]["oldest_ms"]
                groups[at]["oldest_ms"] = ms if known is None else min(ms, cast("int", known))
            return answer, ()

        look = context.records.stored_at(places)
        self._fetch(Asked(look, finish), asker, done)

    # ── definitions ─────────────────────────────────────────────────────────────────────────────

    def _change(
        self, op: str, name: str, settings: Mapping[str, object], done: Done, turn: Turn
    ) -> None:
        context = self._context
        found = context.messaging.defined(name)
        change: Control
        match op:
            case "create":
                limits = context.limits
                if found is None and len(context.messaging.groups()) >= limits.groups_max:
                    text = (
                        f"there are {len(context.messaging.groups())} groups already (groups_max)"
                    )
                    raise Busy(text, limit="groups_max")
                base = Group(
                    name, attempts=limits.attempts, invisible_ms=limits.invisible_ms,
                    created_ms=context.wall_ms(),
                )  # fmt: skip
                change = CreateGroups((settings_of(base, settings, new=True),))
            case "alter":
                if found is None:
                    raise context.unknown(name)
                changed = settings_of(found[0], settings, new=False)
                if changed.mode != found[0].mode:
                    self._without_members(name)
                change = AlterGroups((changed,))
            case _:
                if found is None:
                    raise context.unknown(name)
                change = DeleteGroups((name,))

        def reply(results: list[SectionResult], by: str | None) -> None:
            result = results[0]
            if result.outcome in (Outcome.STORED, Outcome.DUPLICATE):
                changed = result.outcome is Outcome.STORED
                done({**self._observed(), "changed": changed})
                if changed and op == "delete":
                    self._deleted(name)
            elif result.outcome is Outcome.REFUSED:
                done(context.refusal(result.code, result.text))
            else:
                hint = f"look at it: twinlog group show {name}"
                done(OutcomeUnknown(f"group {name} may or may not be changed", hint=hint))

        def append() -> None:
            deadline = turn.now + ANSWER_SECONDS
            context.driver.control(turn.now, change, deadline=deadline, reply=reply)

        if op == "delete":
            # After the turn's rows: a share that one of them begins is the deleted group's.
            turn.together.append(append)
        else:
            append()

    def _without_members(self, name: str) -> None:
        """Refuse another mode while members handle messages as the present one says."""
        members = len(self._context.members.of(name))
        if members:
            text = f"group {name} has {members} members; its mode changes while it has none"
            hint = f"stop them first: twinlog group members {name}"
            raise UsageError(text, code="group-mode", hint=hint)

    def _deleted(self, name: str) -> None:
        """Tell those who wait for messages of a group that it is no more."""
        context = self._context
        for session in context.members.of(name):
            context.members.leave(session)
        for pop in context.parked.line(name):
            context.parked.remove(pop)
            pop.answer(context.unknown(name))
        context.counts.forget(name)
        context.late_at.pop(name, None)

    # ── positions ───────────────────────────────────────────────────────────────────────────────

    def _move(
        self,
        op: str,
        name: str,
        rows: list[list[object]],
        why: str,
        done: Done,
        turn: Turn,
    ) -> None:
        group = self._context.group(name)
        # All rows are judged before the first is written: an order is carried out whole or not.
        wanted = [(str(row[0]), cast("int", row[1]), cast("int", row[2])) for row in rows]
        spans = [self._span(op, *one) for one in wanted]
        moved: list[list[object]] = []
        for (topic, queue, number), (start, end) in zip(wanted, spans, strict=True):
            for share in self._shares(group, topic, queue, turn):
                before = share.low
                to = max(min(before + number, end) if op == "skip" else number, start)
                turn.scratch.write(ResetRow(share.id, to, why))
                moved.append([topic, queue, before, to])
        if group.mode == "broadcast":
            self._dismiss(name, {topic for topic, *_ in wanted}, turn)
        turn.stirred.add(name)
        self._context.tell("positions_reset", "warning", group=name, queues=len(moved), why=why)

        def answer(error: TwinlogError | None) -> None:
            done(error or {**self._observed(), "changed": True, "positions": moved})

        turn.answers.append(answer)

    def _shares(self, group: Group, topic: str, queue: int, turn: Turn) -> list[Share]:
        """Return what moves: the group's share, or that of each member who has a position."""
        if group.mode != "broadcast":
            found = turn.scratch.find(group.name, topic, queue)
            return [found or turn.leasing.begin(group, topic, queue)]
        names = dropped_names(self._context.messaging.ahead, group.name)
        shares = [turn.scratch.find(one, topic, queue) for one in names if one != group.name]
        return [share for share in shares if share is not None]

    def _dismiss(self, name: str, topics: set[str], turn: Turn) -> None:
        """End the sessions of members whose positions moved: joining again, they learn where to."""
        for session in self._context.members.of(name):
            if topics & set(session.topics) or session.peer is None:
                turn.scratch.write(MemberRow(name, session.member, session.name, 0))
                self._context.members.leave(session)

    def _span(self, op: str, topic: str, queue: int, number: int) -> tuple[int, int]:
        """Return start and end of a queue; refuse a position that is not within.

        A skip ends at the queue's end, whatever it counts.
        """
        check_consumed(topic)
        start, end = self._context.records.queue_range(topic, queue)
        if number < 0 or (op == "reset" and number > end):
            text = f"position {number} of {topic}/{queue} is not within {start} to {end}"
            raise UsageError(text, code="offset", start=start, end=end)
        return start, end

"""GROUP: lists and documents from any node, changes by the master.

``create``, ``alter`` and ``delete`` are control records; ``reset`` and ``skip`` are rows, which end
the leases of their queues. Every change is answered at its confirm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from node.groups.context import ANSWER_SECONDS, Context, Done, Turn
from node.groups.documents import group_document, page_of_groups
from node.groups.joining import Request
from node.groups.requests import group_name, settings_of
from storage.messaging.groups import Group
from storage.state.controls import AlterGroups, Control, CreateGroups, DeleteGroups
from storage.state.sections import Outcome, SectionResult
from twinlog.errors import Busy, OutcomeUnknown, TwinlogError, UsageError
from twinlog.format.group_rows import ResetRow
from twinlog.wire.groups import ROWS_MAX

WHY_MAX = 200
"""Characters of the reason of a reset."""


class Orders:
    """See the module.

    Args:
        context: The node.
        observed: Role, node and age, for answers.
    """

    def __init__(self, context: Context, observed: Callable[[], Mapping[str, object]]) -> None:
        self._context = context
        self._observed = observed

    def page(self, after: str) -> Mapping[str, object]:
        """Return the groups after a name, in pages."""
        return page_of_groups(self._context, after)

    def document(self, name: str) -> Mapping[str, object] | None:
        """Return one group with who answers; None: there is no such group."""
        found = self._context.messaging.group(name)
        if found is None:
            return None
        return {**self._observed(), "group": group_document(self._context, found)}

    def order(
        self, fields: Mapping[str, object], ask: Callable[[Request], None], done: Done
    ) -> None:
        """Carry out a GROUP; ``ask`` has the next turn decide.

        Raises:
            TwinlogError: It makes no sense; nothing was done.
        """
        context, op = self._context, fields["op"]
        if op == "list":
            after = fields.get("after")
            page = self.page(after if isinstance(after, str) else "")
            done({**self._observed(), **page})
            return
        name = group_name(fields, "name")
        if op == "show":
            found = self.document(name)
            if found is None:
                raise context.unknown(name)
            done(found)
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
                change = AlterGroups((settings_of(found[0], settings, new=False),))
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

        deadline = turn.now + ANSWER_SECONDS
        context.driver.control(turn.now, change, deadline=deadline, reply=reply)

    def _deleted(self, name: str) -> None:
        """Tell those who wait for messages of a group that it is no more."""
        context = self._context
        for session in context.members.of(name):
            context.members.leave(session)
        for pop in context.parked.line(name):
            context.parked.remove(pop)
            pop.answer(context.unknown(name))

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
        moved: list[list[object]] = []
        for row in rows:
            topic, queue, number = str(row[0]), cast("int", row[1]), cast("int", row[2])
            start, end = self._context.records.queue_range(topic, queue)
            share = turn.scratch.find(name, topic, queue)
            if share is None:
                share = turn.leasing.begin(group, topic, queue)
            before = share.low
            to = min(before + number, end) if op == "skip" else number
            if number < 0 or not start <= max(to, start) <= end:
                text = f"position {number} of {topic}/{queue} is not within {start} to {end}"
                raise UsageError(text, code="offset", start=start, end=end)
            to = max(to, start)
            turn.scratch.write(ResetRow(share.id, to, why))
            moved.append([topic, queue, before, to])
        turn.stirred.add(name)
        self._context.tell("positions_reset", "warning", group=name, queues=len(moved), why=why)

        def answer(error: TwinlogError | None) -> None:
            done(error or {**self._observed(), "changed": True, "positions": moved})

        turn.answers.append(answer)

"""What work queues did, for the reports: told from the rows of groups in the log; pure.

Each row follows from those before, so they are taken in their order. Spark and plain Python are
given the same.

Times are milliseconds since 1970. Not here: what a row says (`twinlog.format.group_history`),
reading them (`twinlog.spark.jobs.reports.group_topic`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import cast

from twinlog.format.group_history import LEASED, History, Step
from twinlog.format.group_rows import (
    CancelRow,
    CheckRow,
    DelayRow,
    HalfRow,
    MemberRow,
    OpenRow,
    TimerRow,
    UnknownRow,
    WaitsRow,
    decode_rows,
)
from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.kernels.plain import Buffer
from twinlog.spark.jobs.reports.reference import Row, Taken

_OF_NO_SHARE = (
    UnknownRow,
    MemberRow,
    DelayRow,
    TimerRow,
    CancelRow,
    WaitsRow,
    HalfRow,
    CheckRow,
    OpenRow,
)
Told = tuple[Buffer, int]
"""Body and store time of a record of rows."""
Place = tuple[str, int, int]
"""Topic, queue, queue offset."""

_BACK = frozenset({"given back", "unused"})
_ENDS = frozenset({LEASED, "acked", "dead", "dropped", "left out"})


def taken(told: Iterable[Told], history: History, every: int) -> list[Taken]:
    """Return where groups were at the end of each span of ``every`` ms in which they moved.

    Of light queues nothing is said: the reports do not know where they end. Nor of a queue whose
    beginning the rows no longer have, until a position or a reset says where the group is.

    Args:
        told: Records of rows, oldest first.
        history: Tells them.
        every: Length of a span.
    """
    found: list[Taken] = []
    moved: set[int] = set()
    end = 0
    for body, at_ms in told:
        if at_ms >= end:
            found += _lows(history, moved, end)
            moved.clear()
            end = (at_ms // every + 1) * every
        for row in decode_rows(body):
            for _ in history.steps(row, at_ms):
                pass
            if not isinstance(row, _OF_NO_SHARE):
                moved.add(row.share)
    found += _lows(history, moved, end)
    return found


def _lows(history: History, shares: Collection[int], at_ms: int) -> Iterator[Taken]:
    for share in sorted(shares):
        low = history.low(share)
        if low is not None and not low[1].startswith(LIGHT_PREFIX):
            yield (at_ms, *low)


def with_steps(rows: Iterable[Row], told: Iterable[Told], history: History) -> list[Row]:
    """Return the rows of a trace, and beside them what groups did with those messages.

    Args:
        rows: As `reference.trace` gives them.
        told: Records of rows, oldest first.
        history: Tells them.
    """
    found: list[Row] = [(*row, None, None) for row in rows]
    queues: dict[tuple[str, int], dict[int, Row]] = {}
    for row in found:
        topic, queue, offset = cast("Place", row[2:5])
        queues.setdefault((topic, queue), {})[offset] = row
    for body, at_ms in told:
        for step in history.told(body, at_ms):
            for offset, row in queues.get((step.topic, step.queue), {}).items():
                if step.first <= offset <= step.last:
                    found.append(_traced(step, offset, row))
    found.sort(key=lambda row: cast("int", row[0]))  # stable: records come before what became of it
    return found


def _traced(step: Step, offset: int, row: Row) -> Row:
    who = step.name or (str(step.member) if step.member else None)
    place = step.topic, step.queue, offset, None
    return (step.at_ms, step.what, *place, *row[6:9], step.attempt or None, step.group, who)


def with_retries(rows: Iterable[Row], told: Iterable[Told], history: History) -> list[Row]:
    """Return the rows of a timeline, and beside them messages that were given back for a while.

    Such a message is due when it may be handed out again, and delivered when it was. One that was
    settled otherwise meanwhile has that as its state.

    Args:
        rows: As `reference.timeline` gives them.
        told: Records of rows, oldest first.
        history: Tells them.
    """
    found: list[Row] = [(*row, None, None) for row in rows]
    waiting: dict[tuple[str, str, int], dict[int, int]] = {}
    for body, at_ms in told:
        for step in history.told(body, at_ms):
            waits = waiting.setdefault((step.group, step.topic, step.queue), {})
            over = [] if step.what not in _ENDS else list(_within(waits, step))
            if step.what == "reset":
                over = list(waits)
            found += [_retried(step, offset, waits.pop(offset)) for offset in over]
            if step.what in _BACK and step.until_ms > step.at_ms:
                waits.update(dict.fromkeys(range(step.first, step.last + 1), step.until_ms))
    for (group, topic, queue), waits in waiting.items():
        for offset, due in waits.items():
            address = f"{topic}/{queue}@{offset}"
            found.append((due, topic, None, "pending", None, None, None, None, group, address))
    found.sort(key=lambda row: (row[0] is not None, row[0] or 0, row[7] or 0, row[9] or ""))
    return found


def _within(waits: Mapping[int, int], step: Step) -> Iterator[int]:
    if len(waits) < step.last - step.first:
        yield from [offset for offset in waits if step.first <= offset <= step.last]
    else:
        yield from [one for one in range(step.first, step.last + 1) if one in waits]


def _retried(step: Step, offset: int, due: int) -> Row:
    address, again = f"{step.topic}/{step.queue}@{offset}", step.what == LEASED
    state = "delivered" if again else step.what
    late = step.at_ms - due if again else None
    return (
        due, step.topic, None, state, step.at_ms, late, None, None, step.group, address,
    )  # fmt: skip

"""``twinlog log compare``: where the logs of two stores differ.

Not here: comparing (``twinlog.store.verify.compare``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cli.answer import Answer, Table
from cli.context import Context
from cli.failures import Exit
from cli.log.directory import open_store
from cli.parsing import PRIVATE
from twinlog.store.verify.compare import compare as compare_stores


def compare(first: Path, second: Path, /, *, context: Annotated[Context, PRIVATE]) -> int:
    """Show where the logs of two stores differ.

    Exit 0: no byte differs where both have bytes. 1: one does. 2: none that could be read does, or
    one log begins after the end of the other.

    Args:
        first: The data directory of a node, or a RocketMQ store.
        second: The other store.
    """
    with open_store(first) as one, open_store(second) as two:
        found = compare_stores(one, two)
        logs = [
            {"log": str(first), "start": one.start, "end": found.end_first},
            {"log": str(second), "start": two.start, "end": found.end_second},
        ]
    unread, at = found.unread, found.equal_to
    equal = found.difference is None and unread is None and not found.apart
    word = f"equal up to {at}" if equal else f"first differing byte at {at}"
    if found.difference is None and unread is not None:
        word = f"equal up to {at}, which cannot be read; no other byte differs"
    if found.apart:
        word = "nothing to compare: no byte is in both logs"
    context.printer.answer(
        Answer(
            kind="LogCompare",
            fields={
                "first": str(first),
                "second": str(second),
                "equal": equal,
                "start": found.start,
                "first_end": found.end_first,
                "second_end": found.end_second,
                "equal_to": at,
                "first_difference": found.difference,
                "first_unread": unread,
                "consistent_point": found.consistent,
                "histories_conflict": found.conflict,
            },
            head=word,
            tables=[Table.of("LOG START> END>", logs)],
            tail=f"the epoch histories conflict: {found.conflict}" if found.conflict else "",
            names=[str(at)],
        )
    )
    if found.difference is not None:
        return Exit.NO
    return Exit.OK if equal else Exit.UNDECIDED

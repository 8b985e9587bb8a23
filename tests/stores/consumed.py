"""A store directory of ours whose groups have consumed, with the rows that say so."""

from __future__ import annotations

from pathlib import Path

from tests.stores.sample import Ours
from twinlog.format.group_rows import (
    DEAD_LETTER,
    AckRow,
    GivenUpRow,
    LeaseRow,
    MemberRow,
    PositionRow,
    ReleaseRow,
    Row,
    ShareRow,
    encode_rows,
)
from twinlog.format.system_topics import SYSTEM_TOPIC_GROUP

MINUTE = 60_000
BEGIN = 28_333_334 * MINUTE
"""Store time of the first record, ms; the begin of a minute."""


def consumed(root: Path) -> Path:
    """Write the store and return it.

    Six messages in ``t/0``. Group ``g`` is given 0 to 3 in the first minute and acknowledges 1 and
    2; 0 is given back until 5 s later and 3 for good; in the second minute 0 comes again, 2.5 s
    late, and becomes a dead letter. Member ``m`` of ``b`` reads up to 4.
    """
    made = Ours(clock=BEGIN - 10)
    made.open_epoch(1)
    made.clock = BEGIN
    for number in range(4):
        made.properties = {"TAGS": "a", "UNIQ_KEY": f"ID{number}", "KEYS": f"k{number}"}
        made.batch(b"%d" % number)
    made.properties = {"TAGS": "a"}
    until = BEGIN + 30_000
    say(
        made,
        BEGIN + 1000,
        MemberRow("g", 7, "w1", 1),
        ShareRow(1, "g", "t", 0, 0, 0),
        LeaseRow(1, 1, 0, 4, 7, 1, until, 1),
    )
    back = BEGIN + 7000
    say(
        made,
        BEGIN + 2000,
        AckRow(1, 1, 1, 2),
        ReleaseRow(1, 1, 0, 0, back, 0),
        ReleaseRow(1, 1, 3, 3, BEGIN + MINUTE * 60, 0),
        ShareRow(2, "b~m", "t", 0, 0, 0),
        PositionRow(2, 9, 1, 4),
    )
    say(made, BEGIN + MINUTE + 9500, LeaseRow(1, 2, 0, 1, 7, 2, until + MINUTE, 2))
    made.properties = {"TAGS": "a", "UNIQ_KEY": "ID4"}
    made.batch(b"4", b"5")
    made.properties = {"TAGS": "a"}
    say(made, BEGIN + MINUTE * 3, GivenUpRow(1, 2, 0, 0, DEAD_LETTER))
    return made.write(root, confirm=made.end)


def say(made: Ours, at_ms: int, *rows: Row) -> None:
    """Append a record of rows that is stored at ``at_ms``."""
    made.clock = at_ms - 1
    made.batch(encode_rows(rows), topic=SYSTEM_TOPIC_GROUP)

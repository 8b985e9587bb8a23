"""The queue offsets of a segment, and queues that begin again in it.

A queue's offsets rise by one from record to record. When a broker deletes a topic and makes it
again, they begin at 0 once more, while the log still holds the records of before; only its queue
files show that those no longer count. An archive has no queue files, so it records where offsets
fell.

Log offsets are bytes. Not here: leaving out the older records (`twinlog.spark.archive.view`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from twinlog.format.record import FLAG_INNER_BATCH, decode_properties
from twinlog.spark.archive.rows import arrow, numpy
from twinlog.units import parse_whole


@dataclass(slots=True)
class Line:
    """A queue in one segment.

    Attributes:
        first: Queue offset of its first record, of those that count.
        last: Last queue offset so far.
        again: Log offset of the record with which it began again; -1: it did not.
    """

    first: int
    last: int
    anew: int = -1


def follow(lines: dict[str, Line], table: Any) -> None:
    """Continue with the records of a window of the log, in log order.

    Args:
        lines: By ``topic/queue``; changed.
        table: The window (`twinlog.spark.archive.rows`).
    """
    for name, rows, whole in _queues(table):
        line = lines.get(name)
        if whole is not None and (line is None or whole[0] > line.last):
            if line is None:
                lines[name] = Line(*whole)
            else:
                line.last = whole[1]
        else:
            _step(lines, name, rows())


def _queues(table: Any) -> Iterator[tuple[str, Any, tuple[int, int] | None]]:
    """Yield (topic/queue, its rows on demand, (first, last) where offsets rise one by one)."""
    flags = table.column("sys_flag").to_numpy()
    named = table.filter(arrow().array((flags & 0x4) == 0)) if (flags & 0x4).any() else table
    single = not (flags & FLAG_INNER_BATCH).any()
    wanted = [("queue_offset", kind) for kind in ("first", "last", "min", "max", "count")]
    found = named.group_by(["topic_name", "queue_id"], use_threads=False).aggregate(wanted)
    for row in found.to_pylist():
        topic, queue = row["topic_name"], row["queue_id"]
        first, last = row["queue_offset_first"], row["queue_offset_last"]
        rises = (first, last) == (row["queue_offset_min"], row["queue_offset_max"])
        rises = rises and single and row["queue_offset_count"] == last - first + 1

        def rows(topic: bytes = topic, queue: int = queue) -> Any:
            compute = arrow().compute
            mine = compute.equal(
                named.column("topic_name"), arrow().scalar(topic, arrow().binary())
            )
            return named.filter(compute.and_(mine, compute.equal(named.column("queue_id"), queue)))

        name = f"{topic.decode('utf-8', 'replace')}/{queue}"
        yield name, rows, (first, last) if rises else None


def _step(lines: dict[str, Line], name: str, rows: Any) -> None:
    """Continue a queue record by record; an inner batch covers several offsets."""
    np = numpy()
    offsets = rows.column("queue_offset").to_numpy()
    before = lines.get(name)
    known = offsets[0] - 1 if before is None else before.last
    falls = np.flatnonzero(np.diff(np.concatenate(([known], offsets))) <= 0)
    last = int(offsets[-1])
    if rows.column("sys_flag")[len(offsets) - 1].as_py() & FLAG_INNER_BATCH:
        text = rows.column("properties_raw")[len(offsets) - 1].as_py()
        last += (parse_whole(decode_properties(text).get("INNER_NUM", "")) or 1) - 1
    if len(falls):
        at = int(falls[-1])
        place = rows.column("physical_offset")[at].as_py()
        lines[name] = Line(int(offsets[at]), last, place)
    elif before is None:
        lines[name] = Line(int(offsets[0]), last)
    else:
        before.last = last

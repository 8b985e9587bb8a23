"""``twinlog log info``: the segments of a store, on request its queues, timers and config files.

The directory may hold a twinlog or a RocketMQ store, running or a copy, stopped cleanly or not.
What is shown is what recovery would keep. Nothing is written.

Not here: reading (``twinlog.store.reader``), the parts besides segments (``cli.log.contents``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cli.answer import Answer, Table
from cli.context import Context
from cli.failures import Exit
from cli.fields import Fields
from cli.log import contents
from cli.log.directory import open_store
from cli.parsing import PRIVATE
from twinlog.store.damage import Damage, Grade
from twinlog.store.log import Run
from twinlog.store.reader import StoreReader

SEGMENTS = (
    "SEGMENT START> END> RECORDS> SIZE>:size OLDEST=oldest_ms:time NEWEST=newest_ms:time "
    "FLUSHED CRC"
)


def info(
    directory: Path,
    /,
    *,
    queues: bool = False,
    waiting: bool = False,
    timers: bool = False,
    metadata: bool = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show the segments of a store.

    Args:
        directory: The data directory of a node, or a RocketMQ store.
        queues: Also every queue, with its range.
        waiting: Also how many messages wait for each delay level and for a time, for the end of
            their transaction (DUE: given up) and for an acknowledgement (DUE: handed out again).
        timers: Also RocketMQ's timer wheel: which records wait for which second.
        metadata: Also the files in config: topics, groups, consumer offsets.
    """
    with open_store(directory) as store:
        wanted = (
            (queues, contents.queues),
            (waiting, contents.waiting),
            (waiting, contents.messages),
            (timers, contents.timers),
            (metadata, contents.metadata),
        )
        parts = [part(store) for asked, part in wanted if asked]
        segments = [_segment(store, at) for at in range(len(store.series.files))]
        kind = "twinlog" if store.ours else "RocketMQ"
        stop = "stopped cleanly" if store.clean else "not stopped cleanly"
        stop = "running" if store.running else stop
        fields: Fields = {
            "directory": str(directory),
            "made_by": kind,
            "state": stop,
            "start": store.start,
            "end": store.end,
            "flushed": store.marks.flushed if store.ours else None,
            "segments": segments,
            **{part.name: part.items for part in parts},
        }
        context.printer.answer(
            Answer(
                kind="LogInfo",
                fields=fields,
                head=f"{directory} · {kind} · {stop} · log {store.start}..{store.end}",
                tables=[Table.of(SEGMENTS, segments), *[part.table for part in parts]],
                items=segments,
                names=[str(segment["segment"]) for segment in segments],
            )
        )
    return Exit.OK


def _segment(store: StoreReader, number: int) -> Fields:
    file = store.series.files[number]
    pieces = list(store.pieces(file.start, file.end))
    runs = [piece for piece in pieces if isinstance(piece, Run)]
    written_now = store.running and not store.ours  # a broker appends to the last segment
    damage = [piece.harm for piece in pieces if isinstance(piece, Damage)]
    grades = {harm.grade(written_now=written_now) for harm in damage} - {Grade.NOTE}
    state = "unreadable" if grades == {Grade.UNREADABLE} else "damaged" if grades else "ok"
    end = min(max(store.end, file.start), file.end)
    first = next(store.decode_run(runs[0]), None) if runs else None
    return {
        "segment": file.path.name,
        "start": file.start,
        "end": end,
        "records": sum(run.count for run in runs),
        "size": file.size,
        "oldest_ms": first.store_timestamp if first else None,
        "newest_ms": store.last_timestamp(runs[-1]) if runs else None,
        "flushed": end <= store.marks.flushed if store.ours else None,
        "crc": state,
    }

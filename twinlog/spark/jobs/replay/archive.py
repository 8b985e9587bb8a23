"""The archived part of a replay that can be resumed: each row once, however often it is killed.

Segments of an archive never change, so their rows are sent in batches whose tasks are remembered
before they run (`twinlog.spark.jobs.replay.memory`). A batch that was begun is sent again as it
was, under the same names (`twinlog.spark.sink`), and the store takes what it does not have yet.
What is live goes on, as a stream, where the archive ended; should the archive have grown before
that, its new segments come first. Nothing of it needs Spark.

Units: log offsets and sizes are bytes, queue offsets count records, times are ms since 1970.

Not here: what is live (`twinlog.spark.jobs.replay.job`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from twinlog.spark.archive.manifest import Segment
from twinlog.spark.archive.view import ArchiveTask, ArchiveView, missing, read_archive
from twinlog.spark.arrow import pa
from twinlog.spark.directory.log_ranges import SPLIT_BYTES
from twinlog.spark.directory.split_reader import Reading
from twinlog.spark.directory.view import Directory
from twinlog.spark.engine.engine import Engine
from twinlog.spark.errors import DataLossError, SourceError
from twinlog.spark.jobs.replay.memory import BatchPart, Memory, check_same, load, save
from twinlog.spark.jobs.replay.settings import LEFT_BEHIND, ReplaySettings, chosen, decided
from twinlog.spark.plan.columns import chosen as columns_of
from twinlog.spark.plan.decoding import Context
from twinlog.spark.plan.option_parser import parse
from twinlog.spark.plan.selection import selected
from twinlog.spark.plan.splits import Piece, QueueView, Sizing
from twinlog.spark.sink.settings import Identity, SinkSettings
from twinlog.spark.sink.settings import parse as sink_settings
from twinlog.spark.sink.writer import send_rows
from twinlog.spark.source.batch import reading_of
from twinlog.spark.source.cluster import ClusterView
from twinlog.store.marks import Owner, owner_of

COLUMNS = "body,key,tags,order_key,properties,queue_id,broker,physical_offset,born_timestamp"
"""What is read of a record."""


@dataclass(frozen=True, slots=True)
class Live:
    """What follows the archive.

    Attributes:
        owner: Whose it is; None where nothing says so, or nothing follows.
        broker: Name of the group, where records are named by it.
        queues: Of the topic, by number.
    """

    owner: Owner | None = None
    broker: str | None = None
    queues: Mapping[int, QueueView] | None = None


@contextmanager
def live_of(settings: ReplaySettings) -> Generator[Live]:
    """Look at the store or the cluster that follows an archive."""
    topic, root = settings.topic, str(settings.archive)
    if settings.from_servers:
        given = {"subscribe": topic, "servers": settings.from_servers}
        options = parse(given, use="batch")
        view = ClusterView(options, kept=lambda owner: ArchiveView(root, owner).keys)
        try:
            queues = {number: one for (_, number), one in view.queues.items()}
            yield Live(view.owner, view.route.group, queues)
        finally:
            view.close()
    elif settings.path is not None:
        held = Directory(str(settings.path)).queues
        of_topic = {number: one for (name, number), one in held.items() if name == topic}
        yield Live(owner_of(settings.path), None, of_topic)
    else:
        yield Live()


@dataclass(frozen=True, slots=True)
class Flow:
    """How the rows of one run are read and sent; it goes to tasks."""

    settings: ReplaySettings
    view: ArchiveView
    reading: Reading
    home: Path


def send(engine: Engine, settings: ReplaySettings, *, now_ms: int, at_once: int = 1) -> int:
    """Send what the archive has and its memory does not know as sent; return how many rows.

    Args:
        engine: Runs the tasks.
        settings: With ``archive`` and ``resume``, whose lock is held.
        now_ms: For a start like ``-2h``, which is remembered.
        at_once: How many tasks run at one time, among which the rate is divided.

    Raises:
        SourceError: There is no such archive or topic, or it is another store's.
        DataLossError: Rows are missing in the archive, or a file is gone or damaged.
        UsageError: The memory is of another replay.
        TwinlogError: Rows could not be sent; the next run continues with them.
    """
    flow, memory = _begun(settings, now_ms)
    size = SPLIT_BYTES * max(engine.at_once, 1)
    rows = 0
    while True:
        if memory.parts:
            rows += _sent(engine, flow, memory, at_once)
            memory = replace(memory, parts=())
            save(flow.home, memory)
        following = planned(flow.view, memory, flow.reading, size)
        if following is None:
            return rows
        memory = following
        save(flow.home, memory)


def _begun(settings: ReplaySettings, now_ms: int) -> tuple[Flow, Memory]:
    assert settings.archive is not None and settings.resume is not None, "asked for by the caller"
    with live_of(settings) as live:
        view = ArchiveView(str(settings.archive), live.owner)
        options = parse(chosen(replace(settings, path=None, from_servers="")), use="batch")
        known = {*view.keys, *((settings.topic, number) for number in live.queues or ())}
        selected(known, options)
        context = Context(broker=live.broker, tier="archive")
    what = decided(settings) | {"from-servers": live.broker or ""}
    memory = load(settings.resume)
    if memory is None:
        point = options.starting_timestamp
        since = None if point is None else point.at_ms(now_ms)
        memory = Memory(uuid.uuid4().hex[:16], what, since)
    check_same(settings.resume, memory.what, what)
    columns = columns_of(COLUMNS, kafka=False, headers=False)
    reading = replace(reading_of(options, columns, context), since_ms=memory.since_ms)
    return Flow(settings, view, reading, settings.resume), memory


def planned(view: ArchiveView, memory: Memory, reading: Reading, size: int) -> Memory | None:
    """Return the memory with the next batch in it; None when the archive has no more segments.

    Args:
        view: The archive.
        memory: All of whose batches are done.
        reading: How rows are read.
        size: Log bytes of a batch, about.

    Raises:
        DataLossError: The archive lacks rows of it.
    """
    taken, total = list[Segment](), 0
    for segment in view.segments:
        if segment.base >= memory.at and total < size:
            taken.append(segment)
            total += segment.end - segment.base
    if not taken:
        return None
    topic, following = memory.what["topic"], dict(memory.following)
    for key in sorted(view.since):
        if key[0] == topic:
            hint = "restore the log and replay that: twinlog spark restore, then rebuild"
            raise SourceError(view.made_again(*key), code="made-again", hint=hint)
    pieces: list[Piece] = []
    for queue, (first, stop) in _spans(taken, topic).items():
        begin = following.get(queue, first)
        if queue not in following and memory.since_ms is not None:
            begin = view.at_time((topic, queue), memory.since_ms, stop)
        if begin < stop:
            piece = Piece(topic, queue, begin, stop)
            for hole in view.holes(piece):
                raise DataLossError(missing(hole), hint="look: twinlog spark restore --check")
            pieces.append(piece)
            following[queue] = stop
    parts = [
        BatchPart(
            tuple(replace(s, path=os.path.relpath(s.path, view.root)) for s in task.shelves),
            task.pieces,
        )
        for task in view.tasks(pieces, reading, Sizing(SPLIT_BYTES))
    ]
    return replace(
        memory,
        batch=memory.batch + bool(parts),
        at=taken[-1].end,
        following=following,
        parts=tuple(parts),
    )


def _spans(segments: Sequence[Segment], topic: str) -> dict[int, tuple[int, int]]:
    """Return first and next queue offset of each queue of a topic in some segments."""
    found: dict[int, tuple[int, int]] = {}
    for segment in segments:
        for file in segment.data:
            for name, (first, last) in file.queues.items():
                of, _, number = name.rpartition("/")
                if of == topic:
                    low, high = found.get(int(number), (first, last + 1))
                    found[int(number)] = min(low, first), max(high, last + 1)
    return dict(sorted(found.items()))


def _sent(engine: Engine, flow: Flow, memory: Memory, at_once: int) -> int:
    """Send the batch under way; the same again stores nothing twice."""
    settings = flow.settings
    given = {"servers": settings.servers, "topic": settings.to_topic}
    if settings.rate is not None:
        given["rate"] = settings.rate.over(min(at_once, len(memory.parts)))
    items: list[tuple[Identity, ArchiveTask]] = []
    for number, part in enumerate(memory.parts):
        shelves = tuple(replace(s, path=str(flow.view.root / s.path)) for s in part.shelves)
        identity = Identity(memory.writer, memory.batch, number)
        items.append((identity, ArchiveTask(shelves, part.pieces, flow.reading)))
    work = partial(send_part, sink=sink_settings(given), flow=settings)
    return sum(engine.spread(work, items))


def send_part(item: tuple[Identity, ArchiveTask], sink: SinkSettings, flow: ReplaySettings) -> int:
    """Send the rows of one task, and return how many it has."""
    identity, task = item
    batches = (sendable(batch, flow) for batch in read_archive(task))
    return send_rows(sink, identity, batches).rows


def sendable(batch: Any, flow: ReplaySettings) -> Any:
    """Return the sink's columns of a batch of records: what `jobs.replay.columns` says in SQL."""
    kept: list[list[tuple[str, str]]] = []
    names = ("properties", "broker", "physical_offset")
    for pairs, broker, place in zip(*(batch.column(n).to_pylist() for n in names), strict=True):
        own = [(name, text) for name, text in pairs if name not in LEFT_BEHIND]
        kept.append([*own, ("TL_ORIGIN", f"{broker or ''}/{place}")])
    made = {name: batch.column(name) for name in ("body", "key", "tags", "order_key")}
    made["properties"] = pa.array(kept, pa.map_(pa.string(), pa.string()))
    if flow.same_queues:
        made["queue_id"] = batch.column("queue_id")
    if flow.keep_time:
        made["born_timestamp"] = batch.column("born_timestamp")
    return pa.RecordBatch.from_arrays(list(made.values()), list(made))


def follows(settings: ReplaySettings) -> dict[int, int]:
    """Return where each queue of the live store continues after what was sent of the archive.

    Raises:
        DataLossError: Rows are missing between the archive and what is live.
        SourceError: The live store ends before the archive does.
    """
    memory = load(settings.resume) if settings.resume else None
    assert memory is not None, "the archive was sent"
    found: dict[int, int] = {}
    with live_of(settings) as live:
        for number, queue in (live.queues or {}).items():
            since = memory.since_ms
            timed = queue.start if since is None else queue.at_time(since)
            begin = memory.following.get(number, timed)
            name = f"topic {settings.topic}, queue {number}"
            if begin < queue.start and timed == queue.start:
                hole = Piece(settings.topic, number, begin, queue.start)
                raise DataLossError(missing(hole), hint="archive on, then go on with --resume")
            if begin > queue.end:
                text = f"{name} ends at {queue.end}, and the archive has it up to {begin}"
                hint = "wait until the store has caught up; "
                hint += "a topic that was created again is another one"
                raise SourceError(text, code="offset", hint=hint)
            found[number] = max(begin, timed)
    return found

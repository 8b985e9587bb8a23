"""``twinlog log find`` and ``cat``: records of a store directory, looked up or printed.

``find`` shows records as ``dump`` does, one way of looking at a time; exit 1 when nothing is found.
``cat`` prints bodies: one a line, bare with ``--raw``, or by a format. Both work on RocketMQ's
and twinlog directories, live or copied, and write nothing.

Not here: looking up (``twinlog.store.find``), records as objects (``cli.log.pieces``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

from cli.answer import dump
from cli.context import Context
from cli.failures import Exit, Failure
from cli.log.directory import index_capacity, open_store
from cli.log.dump import show
from cli.log.pieces import Window, of_record, walk
from cli.log.topics import lost_bytes, require
from cli.message.format import as_fields, parse_format
from cli.options import Output
from cli.parsing import PRIVATE
from cli.yaml_text import document
from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.format.messages import Message, messages_of
from twinlog.format.record import Record, decode
from twinlog.ranges import Mark, parse_range
from twinlog.store import find as store_find
from twinlog.store.damage import Damage
from twinlog.store.queues import Entry
from twinlog.store.reader import StoreReader

MOST = 64
"""Records that find shows; as many as RocketMQ's own query."""
LINES = 500
"""Lines of a cat that go out in one write."""


def find(
    directory: Path,
    /,
    *,
    topic: str | None = None,
    queue: int | None = None,
    key: str | None = None,
    unique_id: str | None = None,
    offset: int | None = None,
    id_: str | None = None,
    at: str | None = None,
    bodies: bool = False,
    index_slots: int | None = None,
    index_cells: int | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Find records by key, unique id, log offset, message id or time.

    Exit 0: found. 1: not found. 2: not found in the readable part of a damaged log, or with --at
    perhaps not the first. 66: no such topic.

    Args:
        directory: The data directory of a node, or a store of RocketMQ.
        topic: Only this topic, which may be a light queue's; without it all topics.
        queue: With --at and --topic: in this queue, by RocketMQ's search.
        key: One of the record's index keys.
        unique_id: The id that the producer gave it.
        offset: The record that holds the byte at this log offset.
        id_: RocketMQ's message id, 32 or 56 hexadecimal digits.
        at: The first record stored at or after this time: 2026-11-21T10:00Z, -1h .
        bodies: Bodies too, as base64.
        index_slots: Hash slots of the key index files, where cells are not four for each.
        index_cells: Cells of the key index files; goes with --index-slots.
    """
    asked = {"key": key, "unique-id": unique_id, "offset": offset, "id": id_, "at": at}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) != 1:
        text = f"find takes one of --{', --'.join(asked)}, not {len(given)} of them"
        raise Failure(Exit.USAGE, text, hints=(f"twinlog log find {directory} --key KEY",))
    if queue is not None and (at is None or topic is None):
        raise Failure(Exit.USAGE, "--queue goes with --at and --topic")
    capacity = index_capacity(index_slots, index_cells)
    ms = None if at is None else _moment(at, context)
    with open_store(directory, index_capacity=capacity) as store:
        found = _found(store, asked, (topic, queue), ms)
        records = _at_most(found, topic, context)
        queued = {e.log_offset for r in records for e in _entries(store, r)}
        items = [of_record(r, in_queue=r.log_offset in queued, bodies=bodies) for r in records]
        lost = _unread(store, records, ms)
        if not items and not lost:
            require(store, topic, queue)
    show(items, directory, context, kind="LogFind")
    unread = f"{lost} bytes of {directory} cannot be read"
    if lost and (at or not items):
        what = "there may be an earlier one:" if items else "nothing was found, but"
        raise _undecided(f"{what} {unread}", directory)
    if lost and (key or unique_id):
        context.printer.note(f"there may be more than this: {unread}")
    return Exit.OK if items else Exit.NO


def _undecided(text: str, directory: Path) -> Failure:
    return Failure(Exit.UNDECIDED, text, hints=(f"see: twinlog log verify {directory}",))


def _at_most(found: Iterator[Record], topic: str | None, context: Context) -> list[Record]:
    records = list(islice((r for r in found if store_find.belongs(r, topic)), MOST + 1))
    if len(records) > MOST:
        context.printer.note(f"there are more: these are {MOST}")
        del records[MOST:]
    return records


def _unread(store: StoreReader, found: list[Record], ms: int | None) -> int:
    """Return how many bytes that cannot be read may hold an answer besides those found."""
    if found and ms is not None:
        return store_find.unread_before(store, found[0].log_offset, ms)
    return lost_bytes(store)


def _entries(store: StoreReader, record: Record) -> Iterator[Entry]:
    found = store.queue(record.topic, record.queue)
    number = record.queue_offset
    return iter(()) if found is None else found.entries(number, number + 1)


def _found(
    store: StoreReader,
    asked: dict[str, str | int | None],
    place: tuple[str | None, int | None],
    ms: int | None,
) -> Iterator[Record]:
    topic, queue = place
    match asked:
        case {"key": str(text)} | {"unique-id": str(text)}:
            named = asked["unique-id"] is not None
            some = (
                store_find.by_key(store, topic, text)
                if topic is not None and not topic.startswith(LIGHT_PREFIX)
                else store_find.by_key_anywhere(store, text)
            )
            return (r for r in some if (r.unique_id == text if named else text in r.keys))
        case {"offset": int(offset)}:
            one = store_find.by_offset(store, offset)
        case {"id": str(text)}:
            one = store_find.by_id(store, text)
        case _:
            assert ms is not None, "one of them is asked for"
            if topic is not None and queue is not None:
                one = store_find.by_queue_time(store, topic, queue, ms)
            else:
                one = store_find.by_time(store, ms, topic)
    return iter([one] if one is not None else [])


def _moment(text: str, context: Context) -> int:
    """Return the time that ``text`` names, ms since 1970."""
    point = parse_range(f"@{text.removeprefix('@')}:").first
    ms = point.at_ms(context.wall_ms()) if point.mark in (Mark.TIME, Mark.AGO) else None
    if ms is None:
        raise Failure(Exit.USAGE, f'--at is "{text}", which is no time', hints=("--at -1h",))
    return ms


def cat(
    directory: Path,
    /,
    *,
    range_: str = "start:",
    topic: str | None = None,
    queue: int | None = None,
    format_: str | None = None,
    raw: bool = False,
    compacted: bool = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Print the bodies of a store's records, decompressed, in log order.

    Exit 66: the store has no such topic or queue. 2: there may be more, for part of the log cannot
    be read; what can be is printed.

    Args:
        directory: The data directory of a node, or a store of RocketMQ.
        range_: Which records: 4096:8192 (log offsets), -100: (the last hundred), +100, @-1h: .
        topic: Of this topic only.
        queue: Of the queues of this number only.
        format_: Instead of the body and a line end, for example '%O %k %v%n'; with -o json each
            message is an object.
        raw: Bodies as they are stored, byte for byte, nothing between them.
        compacted: What RocketMQ's compaction kept of a topic, instead of the log; needs --topic.
    """
    shown = parse_format(format_) if format_ is not None else _shown(context)
    if raw and format_ is not None:
        raise Failure(Exit.USAGE, "--raw and --format exclude each other")
    if compacted and topic is None:
        raise Failure(Exit.USAGE, "--compacted needs --topic", hints=("twinlog log info --queues",))
    window = Window.parse(range_, context.wall_ms())
    with open_store(directory) as store:
        lost: list[int] = []
        found = _kept(store, topic) if compacted else _stored(store, window, lost)
        wanted = (
            data
            for data in found
            if store_find.belongs(decode(data, check_crc=False), topic, queue)
        )
        some = False
        if raw:
            for data in wanted:
                some = True
                context.printer.data(decode(data, check_crc=False).body)
        else:
            while block := list(islice(wanted, LINES)):
                some = True
                messages = [message for data in block for message in messages_of(data)]
                context.printer.text("".join([shown(message) for message in messages]))
        if not some:
            require(store, topic, queue)
    if lost:
        what = f"{sum(lost)} bytes of {directory} cannot be read: there may be more than this"
        raise _undecided(what, directory)
    return Exit.OK


def _shown(context: Context) -> Callable[[Message], str]:
    """How a message is printed when no format says it: its body, or an object for programs."""
    if context.options.output in (Output.JSON, Output.JSONL):
        return lambda message: dump(as_fields(message)) + "\n"
    if context.options.output is Output.YAML:
        return lambda message: document(as_fields(message))
    return parse_format("%v%n")


def _stored(store: StoreReader, window: Window, lost: list[int]) -> Iterator[memoryview]:
    """Yield the records of a window; ``lost`` gets the bytes of each stretch that may hide some."""
    for found in walk(store, window):
        if isinstance(found, Record):
            yield store.series.read(found.log_offset, found.size)
        elif isinstance(found, Damage) and found.hides:
            lost.append(found.length)


def _kept(store: StoreReader, topic: str | None) -> Iterator[memoryview]:
    queues = [queue for (name, _), queue in sorted(store.compacted.items()) if name == topic]
    if not queues:
        require(store, topic)
        what = f"{store.name} has no compacted copy of topic {topic}"
        raise Failure(Exit.MISSING, what, hints=(f"see: twinlog log info {store.name} --queues",))
    for queue in queues:
        yield from queue.records()

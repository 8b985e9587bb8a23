"""Light queues: one stored message in many additional queues.

A message whose property ``INNER_MULTI_DISPATCH`` names queues ``%LMQ%a,%LMQ%b`` is entered there in
addition to its own queue: the same 20-byte entry in each, at that queue's next offset. A light
queue is a topic with a single queue 0, created when a message names it; it is read like any other,
and never written directly.

``INNER_MULTI_QUEUE_OFFSET`` holds the message's offset in each of them, in the same order. The
producer reserves 19 zeros for each, and the master overwrites them when it numbers the record: Java
parses numbers with leading zeros. So a record keeps its length.

Only names with the prefix are accepted. RocketMQ accepts others and then writes a list with an
empty item, which misaligns the named queues or stops its dispatch for good.

Pure: bytes in, bytes and entries out. Not here: numbering (`storage.append.appender`), writing the
queues (`storage.state.dispatcher`).

Sources: RocketMQ 5.3 (``LmqDispatch``, ``MultiDispatchUtils``, ``ConsumeQueue``), golden cases 08.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from storage.queues.names import light_refusal
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.light_queues import (
    LIGHT_DIGITS,
    LIGHT_OFFSETS_PROPERTY,
    LIGHT_PREFIX,
    LIGHT_PROPERTY,
)
from twinlog.format.system_topics import DELAY_TOPIC
from twinlog.kernels import split_record, tags_code
from twinlog.kernels.fields import PREPARED, ROLLBACK, TRANSACTION, parts_of, rest_of
from twinlog.units import parse_whole

NAMES_MAX = 64
"""Light queues of one message."""
QUEUES_MAX = 100_000
"""Light queues of a store: each is a directory and some hundred bytes of memory."""
_NO_TOPICS = ("%RETRY%", "rmq_sys_")
"""Messages of topics with these prefixes, and delayed messages, are entered in no light queue."""


class LightRefused(Exception):
    """A record may not be entered in the light queues it names; the text says why."""


@dataclass(frozen=True, slots=True)
class Share:
    """The light queues of one record of a section.

    Attributes:
        names: Of the queues.
        places: Byte positions in the section where the digits of each offset begin.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]


def _items(data: memoryview, at: int, end: int) -> tuple[str, list[tuple[int, bytes]]]:
    """Return topic and properties, with their positions, of a record checked before."""
    parts = parts_of(data, at, end)
    assert not isinstance(parts, int), "checked"
    rest = rest_of(data, at, parts[0], parts[4])
    assert rest is not None, "checked"
    name, length, text, text_length = rest
    found: list[tuple[int, bytes]] = []
    place = text
    for item in bytes(data[text : text + text_length]).split(b"\x02"):
        found.append((place, item))
        place += len(item) + 1
    return bytes(data[name : name + length]).decode(), found


def shares(data: memoryview, first: int) -> list[Share]:
    """Return the light queues of the records of a section that was checked before.

    Args:
        data: The section.
        first: Number of the first record that names any.

    Raises:
        LightRefused: With the record's number in its text.
    """
    found: list[Share] = []
    at, number = 0, 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if number >= first:
            try:
                share = _share(data, at)
            except LightRefused as error:
                raise LightRefused(f"record {number}: {error}") from None
            if share is not None:
                found.append(share)
        at += size
        number += 1
    return found


def _share(data: memoryview, at: int) -> Share | None:
    topic, items = _items(data, at, len(data))
    named = [item for _, item in items if item.startswith(LIGHT_PROPERTY + b"\x01")]
    room = [
        (place, item) for place, item in items if item.startswith(LIGHT_OFFSETS_PROPERTY + b"\x01")
    ]
    if not named:
        return None
    if len(named) > 1 or len(room) != 1:
        raise LightRefused("it has a property of light queues twice, or only one of them")
    if _feeds_none(topic):
        raise LightRefused(f"messages of topic {topic} are entered in no light queue")
    names = tuple(named[0][len(LIGHT_PROPERTY) + 1 :].decode().split(","))
    if len(names) > NAMES_MAX or len(set(names)) != len(names):
        raise LightRefused(f"it names {len(names)} light queues; 1 to {NAMES_MAX} different ones")
    for name in names:
        reason = light_refusal(name)
        if reason is not None:
            raise LightRefused(reason)
    place, item = room[0]
    place += len(LIGHT_OFFSETS_PROPERTY) + 1
    if item[len(LIGHT_OFFSETS_PROPERTY) + 1 :] != b",".join([b"0" * LIGHT_DIGITS] * len(names)):
        raise LightRefused(f"it does not reserve {LIGHT_DIGITS} zeros for the offset in each queue")
    places = tuple(place + index * (LIGHT_DIGITS + 1) for index in range(len(names)))
    return Share(names, places)


def write_offset(view: memoryview, place: int, offset: int) -> None:
    """Write an offset over the zeros that a section reserved for it."""
    view[place : place + LIGHT_DIGITS] = b"%0*d" % (LIGHT_DIGITS, offset)


def light_runs(
    data: memoryview,
    base: int,
    marks: Sequence[tuple[int, bytes]],
    batched: Collection[str] = frozenset(),
) -> Iterator[tuple[str, int, bytes]]:
    """Yield (light queue, queue offset, entries) for the records of whole batches that name any.

    Names without the prefix, repeated names, lists of different lengths, and records that RocketMQ
    enters in no light queue are skipped: a log written by RocketMQ may hold them.

    Args:
        data: Bytes of the batches.
        base: Log offset of the first byte of ``data``.
        marks: (index of a record, the names) of those that name light queues.
        batched: Topics with batch queues; RocketMQ enters their records in no light queue.
    """
    runs: dict[str, tuple[int, list[bytes]]] = {}
    for at, value in marks:
        split = split_record(data, at, check_crc=False)
        if isinstance(split, int):
            continue
        topic, properties, flags, stamp, size = split[0], split[5], split[7], split[10], split[15]
        waits = flags & TRANSACTION in (PREPARED, ROLLBACK)
        if waits or topic in batched or _feeds_none(topic):
            continue
        names = _java_split(value.decode("utf-8", "replace"))
        offsets = _java_split(properties.get(LIGHT_OFFSETS_PROPERTY.decode(), ""))
        if len(names) != len(offsets):
            continue
        text = "".join([f"{k}\x01{v}\x02" for k, v in properties.items()]).encode()
        entry = QUEUE_ENTRY.pack(base + at, size, tags_code(topic.encode(), text, stamp))
        places: dict[str, str] = {}
        for name, offset in zip(names, offsets, strict=True):
            places.setdefault(name, offset)
        for name, offset in places.items():
            number = parse_whole(offset)
            if name.startswith(LIGHT_PREFIX) and "/" not in name and number is not None:
                runs.setdefault(name, (number, []))[1].append(entry)
    for name, (first, entries) in runs.items():
        yield name, first, b"".join(entries)


def _feeds_none(topic: str) -> bool:
    return topic == DELAY_TOPIC or topic.startswith(_NO_TOPICS)


def _java_split(text: str) -> list[str]:
    """Split at commas as Java does: empty items at the end are dropped."""
    return text.rstrip(",").split(",")


def named_in(names: str | None, queue: str) -> bool:
    """Whether ``names``, a record's property, contains the light queue ``queue``."""
    return names is not None and queue in names.split(",")

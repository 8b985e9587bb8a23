"""What a section of records that wait for a time must say: checked before a byte of it is stored.

It is a section of `TIMER_TOPIC`, queue 0; every record names where it goes, one topic for the whole
section, as those that wait for a delay level (`storage.append.waiting`), and when it is due.

Not here: the shape of the records (the kernels), deliveries (``node.delivery``).
"""

from __future__ import annotations

from storage.append.waiting import RESERVE, no_destination
from storage.state.layers import Layers
from storage.state.sections import Section, SectionResult, refused
from twinlog import kernels, levels
from twinlog.format.system_topics import DELAY_TOPIC, HALF_TOPIC, TIMER_TOPIC
from twinlog.format.waiting.delay_levels import LEVELS, REAL_QUEUE, REAL_TOPIC
from twinlog.format.waiting.timers import (
    DELAY_MAX_MS,
    DELAY_MS,
    DELIVER_MS,
    ORIGIN,
    OUT_MS,
    WAITING_MAX,
    out_ms,
)
from twinlog.kernels.plain import Buffer

WAITING_QUEUES = {DELAY_TOPIC: LEVELS, TIMER_TOPIC: 1, HALF_TOPIC: 1}
"""How many queues the topics have in which records wait."""
_NAMES = tuple(
    name.encode() for name in (REAL_TOPIC, REAL_QUEUE, DELIVER_MS, OUT_MS, DELAY_MS, ORIGIN)
)
_NEEDED = 4
_DIGITS_MAX = 15


def timer_refusal(
    section: Section, layers: Layers, now_ms: int, waiting: int, most: int
) -> SectionResult | None:
    """Return why a section of records that wait for a time is refused; None: it may be stored.

    Its records were checked for what every section must be.

    Args:
        section: The section.
        layers: Topics.
        now_ms: Time of the newest record.
        waiting: How many messages wait already.
        most: Bytes that a batch holds.
    """
    if (early := levels.refusal(levels.LATER, layers.level)) is not None:
        return refused(*early)
    if waiting + section.count > WAITING_MAX:
        text = f"{waiting} messages wait for a time already, at most {WAITING_MAX} may"
        return refused("too-many-waiting", text)
    data = section.data
    records: dict[int, list[bytes | None]] = {}
    for at, which, value in _found(data):
        row = records.setdefault(at, [None] * len(_NAMES))
        if row[which] is not None:
            return _wrong(f"{_NAMES[which].decode()} stands in it twice", len(records) - 1)
        row[which] = value
    for number, (at, row) in enumerate(records.items()):
        size = int.from_bytes(data[at : at + 4], "big")
        if size > most - RESERVE:
            text = f"record {number}: {size} bytes, at most {most - RESERVE} may wait for a time"
            return refused("too-large", text, number)
        if number == 0 and row[0] is not None:
            refusal = no_destination(layers, row[0], "timer")
            if refusal is not None:
                return refusal
        wrong = _row_refusal(row, next(iter(records.values()))[0], layers, now_ms)
        if wrong is not None:
            code, text = wrong
            return refused(code, f"record {number}: {text}", number)
    if len(records) != section.count:
        return _wrong("it has none of the properties that say when it is due", len(records))
    return None


def _found(data: Buffer) -> list[tuple[int, int, bytes]]:
    """Return (place of the record, number of the name, value) of each of these properties."""
    found = kernels.find_properties(data, 0, len(data), _NAMES[:_NEEDED])
    delays = kernels.find_properties(data, 0, len(data), _NAMES[_NEEDED:])
    return [*found, *((at, which + _NEEDED, value) for at, which, value in delays)]


def _row_refusal(
    row: list[bytes | None], real: bytes | None, layers: Layers, now_ms: int
) -> tuple[str, str] | None:
    topic, queue, deliver, out, delay, origin = row
    if origin is not None:
        return "timer", f"{ORIGIN} is said by the store alone"
    if topic is None or queue is None or deliver is None or out is None:
        names = ", ".join(name.decode() for name in _NAMES[:_NEEDED])
        return "timer", f"one that waits for a time has {names}"
    if topic != real:
        return "timer", "those of one section have one REAL_TOPIC"
    for value in (queue, deliver, out, delay or b"0"):
        if not value.isdigit() or len(value) > _DIGITS_MAX:
            return "timer", f"{value.decode('utf-8', 'replace')!r} is no number"
    if out_ms(int(deliver)) != int(out):
        return "timer", "TIMER_OUT_MS is not the second before TIMER_DELIVER_MS"
    queues = layers.open[topic.decode()].takes
    if int(queue) >= queues:
        return "unknown-queue", f"topic {topic.decode()} has queues 0 to {queues - 1}"
    wait = int(delay) if delay is not None else int(deliver) - now_ms
    if wait > DELAY_MAX_MS:
        days = DELAY_MAX_MS // 86_400_000
        return "delay-too-long", f"it waits for {wait // 1000} s, at most {days} days are allowed"
    return None


def _wrong(text: str, record: int) -> SectionResult:
    return refused("timer", f"record {record}: {text}", record)

"""What a section of waiting records must say: checked before one of its bytes is stored.

It is a section of `DELAY_TOPIC`: its queue is the level less one, and every record names that level
and where it goes: one topic for the whole section, whose lines of producers are its own
(`storage.state.sequences.line_topic`), and a queue of it. A topic with batch queues is refused: a
copy would be a record of another shape.

The delivery that follows can then fail for no reason that was known at the send.

Not here: the shape of the records (the kernels), deliveries (``node.delivery``).
"""

from __future__ import annotations

from storage.state.layers import Layers
from storage.state.sections import Section, SectionResult, refused
from storage.state.topics import Topic
from twinlog import kernels
from twinlog.errors import NotYetConfirmed
from twinlog.format.waiting.delay_levels import DELAY, REAL_QUEUE, REAL_TOPIC

_NAMES = tuple(name.encode() for name in (DELAY, REAL_TOPIC, REAL_QUEUE))


RESERVE = 1_024
"""Bytes that the copy of a record may have more than the record, with the row beside it."""


def waiting_refusal(section: Section, layers: Layers, most: int) -> SectionResult | None:
    """Return why a section of waiting records is refused; None when it may be stored.

    Its records were checked for what every section must be. A batch holds ``most`` bytes.
    """
    level, data = b"%d" % (section.queue + 1), section.data
    found = kernels.find_properties(data, 0, len(data), _NAMES)
    real: bytes | None = None
    queues = 0
    rows = [found[at : at + len(_NAMES)] for at in range(0, len(found), len(_NAMES))]
    for number, row in enumerate(rows):
        places = {at for at, _, _ in row}
        if len(places) != 1 or [which for _, which, _ in row] != [0, 1, 2]:
            return _wrong("a delayed record has DELAY, REAL_TOPIC and REAL_QID", number)
        size = int.from_bytes(data[row[0][0] : row[0][0] + 4], "big")
        if size > most - RESERVE:
            text = f"record {number}: {size} bytes, at most {most - RESERVE} may wait for a delay"
            return refused("too-large", text, number)
        delay, topic, queue = (value for _, _, value in row)
        if delay != level:
            text = f"DELAY is not {level.decode()}, the level of the section's queue"
            return _wrong(text, number)
        if real is None:
            real = topic
            refusal = no_destination(layers, topic)
            if refusal is not None:
                return refusal
            queues = layers.open[topic.decode()].takes
        if topic != real:
            return _wrong("the records of a section of delayed records have one REAL_TOPIC", number)
        if not queue.isdigit() or len(queue) > 10 or int(queue) >= queues:
            named, text = queue.decode("utf-8", "replace"), topic.decode()
            text = f"topic {text} has queues 0 to {queues - 1}, not {named}"
            return refused("unknown-queue", text, number)
    if len(rows) != section.count:
        return _wrong("a delayed record has DELAY, REAL_TOPIC and REAL_QID", len(rows))
    return None


def no_destination(layers: Layers, topic: bytes, code: str = "delay-level") -> SectionResult | None:
    """Return why waiting records cannot go to a topic; None where they can."""
    name = topic.decode("utf-8", "replace")
    known = layers.open.get(name)
    if known is None:
        error = layers.missing(name)
        why = "busy" if isinstance(error, NotYetConfirmed) else error.code
        return refused(why, error.text)
    if known.batch:
        text = f"topic {name} has batch queues: delayed messages cannot go to it"
        return refused(code, text)
    return None if known.writable else not_writable(known)


def not_writable(topic: Topic, queue: int = 0, record: int = -1) -> SectionResult:
    """Return the refusal of a message for a queue that the topic has and that takes none."""
    name = topic.name
    if not topic.writable:
        text = f"topic {name} may not be written; allow it: twinlog topic alter {name} --perm rw"
        return refused("topic-permission", text)
    text = f"topic {name} takes messages in queues 0 to {topic.takes - 1}, not {queue}"
    return refused("queue-closed", text, record)


def _wrong(text: str, record: int) -> SectionResult:
    return refused("delay-level", f"record {record}: {text}", record)

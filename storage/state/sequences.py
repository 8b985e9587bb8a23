"""Sequence marks: the property ``TL_SEQ`` of the first record of an idempotent section.

The text is ``producer (16 hex).epoch.sequence.count``. The client writes it into the record and
sends the same values in its request; the store compares both. A record that was copied with the
property is recognized by its position, not by the text (`storage.state.gathered`).

Not here: judging sequences (`storage.state.producers`).
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.state.sections import Section
from twinlog import kernels
from twinlog.format.light_queues import LIGHT_PROPERTY
from twinlog.format.system_topics import DELAY_TOPIC, HALF_TOPIC, TIMER_TOPIC
from twinlog.format.waiting.delay_levels import REAL_TOPIC

SEQUENCE_PROPERTY = b"TL_SEQ"
"""First record of an idempotent section: producer (16 hex).epoch.sequence.count."""


def sequence_text(section: Section) -> bytes:
    """Return the value that the section's first record must carry as TL_SEQ.

    >>> sequence_text(Section("t", 0, 3, b"", producer=255, producer_epoch=1, sequence=9))
    b'00000000000000ff.1.9.3'
    """
    names = section.producer, section.producer_epoch, section.sequence, section.count
    return b"%016x.%d.%d.%d" % names


def parse_sequence(value: bytes) -> tuple[int, int, int, int] | None:
    """Return (producer, epoch, sequence, count) of a TL_SEQ value; None for another text.

    >>> parse_sequence(b"00000000000000ff.1.9.3")
    (255, 1, 9, 3)
    >>> parse_sequence(b"ff.1.9") is None
    True
    """
    parts = value.split(b".")
    if len(parts) != 4 or len(parts[0]) != 16:
        return None
    try:
        producer = int(parts[0], 16)
        epoch, sequence, count = (int(part) for part in parts[1:])
    except ValueError:
        return None
    if producer <= 0 or epoch < 0 or sequence < 0 or count <= 0:
        return None
    return producer, epoch, sequence, count


def first_sequence(data: memoryview | bytes | bytearray, start: int = 0) -> bytes | None:
    """Return TL_SEQ of the record that begins at ``start``, whose sizes were checked before.

    Only the properties are searched, not the body.
    """
    size = int.from_bytes(data[start : start + 4], "big")
    found = kernels.find_property(data, start, start + size, SEQUENCE_PROPERTY)
    return found[0][1] if found else None


def line_topic(topic: str, data: memoryview | bytes | bytearray, start: int = 0) -> str:
    """Return what stands for the topic in the line that a section continues.

    Waiting records of all topics lie in the queues of `DELAY_TOPIC` and its like, but the senders
    of a client share one producer id, each with a line of its own: what is delayed has a line for
    each real topic. ``start`` is where the section's first record begins.
    """
    if topic not in (DELAY_TOPIC, TIMER_TOPIC, HALF_TOPIC):
        return topic
    size = int.from_bytes(data[start : start + 4], "big")
    found = kernels.find_property(data, start, start + size, REAL_TOPIC.encode())
    return f"{topic}@{found[0][1].decode('utf-8', 'replace')}" if found else topic


Marks = Sequence[tuple[int, bytes]]
"""(index of a record, value) of a property."""


def marks_of(data: memoryview) -> tuple[Marks, Marks]:
    """Return the records with TL_SEQ, and those that name light queues: one kernel call."""
    found = kernels.find_properties(data, 0, len(data), (SEQUENCE_PROPERTY, LIGHT_PROPERTY))
    sequences = [(at, value) for at, which, value in found if not which]
    return sequences, [(at, value) for at, which, value in found if which]

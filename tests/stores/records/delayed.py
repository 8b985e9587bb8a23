"""Sections of records that wait for a delay level, as a client makes them."""

from __future__ import annotations

from storage import Section
from storage.state.sequences import sequence_text
from tests.stores.workbench import TOPIC
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.format.system_topics import DELAY_TOPIC
from twinlog.format.waiting.delay_levels import waiting_text


def delayed(
    level: int,
    count: int = 1,
    *,
    topic: str = TOPIC,
    queue: int = 0,
    mark: int = 0,
    size: int = 20,
    producer: int = 0,
    sequence: int = 0,
    extra: bytes = b"",
) -> Section:
    """A section of ``count`` records for one queue of a topic; bodies are ``mark/number/``."""
    made = Section(DELAY_TOPIC, level - 1, count, b"", producer, 0, sequence)
    encoder = RecordEncoder(DELAY_TOPIC, level - 1)
    for number in range(count):
        text = encode_properties({"KEYS": f"k{mark}"}) + waiting_text(level, topic, queue) + extra
        if producer and not number:
            text += encode_properties({"TL_SEQ": sequence_text(made).decode()})
        body = f"{mark}/{number}/".encode().ljust(size, b".")
        encoder.add(body, properties=text, born_timestamp=1)
    return Section(DELAY_TOPIC, level - 1, count, encoder.take(), producer, 0, sequence)

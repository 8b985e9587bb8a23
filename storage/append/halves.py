"""What a section of halves must say: checked before a byte of it is stored.

It is a section of `HALF_TOPIC`, queue 0: messages of transactions that are not settled yet. Every
record names its transaction, the producers that may settle it and where it goes, one topic for the
whole section, as records that wait for a delay level (`storage.append.waiting`).

Not here: the shape of the records (the kernels), ends of transactions (``node.transactions``).
"""

from __future__ import annotations

from storage.append.waiting import RESERVE, no_destination, waiting_refusal
from storage.append.waiting_timers import timer_refusal
from storage.messaging.fold import Messaging
from storage.state.layers import Layers
from storage.state.sections import Section, SectionResult, refused
from twinlog import levels
from twinlog.format import record
from twinlog.format.system_topics import HALF_TOPIC, TIMER_TOPIC
from twinlog.format.waiting.delay_levels import REAL_QUEUE, REAL_TOPIC, destination
from twinlog.format.waiting.halves import GROUP, NAME, OPEN_MAX, PREPARED


def later_refusal(
    section: Section, layers: Layers, now_ms: int, messaging: Messaging, most: int
) -> SectionResult | None:
    """Return why a section of records that are delivered later is refused; None: it may be stored.

    Its records were checked for what every section must be. A batch holds ``most`` bytes.
    """
    if section.topic == TIMER_TOPIC:
        return timer_refusal(section, layers, now_ms, messaging.timers.count, most)
    if section.topic == HALF_TOPIC:
        return half_refusal(section, layers, messaging.halves.count, most)
    return waiting_refusal(section, layers, most)


def half_refusal(section: Section, layers: Layers, waiting: int, most: int) -> SectionResult | None:
    """Return why a section of halves is refused; None: it may be stored.

    Args:
        section: The section.
        layers: Topics.
        waiting: How many halves are open already.
        most: Bytes that a batch holds.
    """
    if (early := levels.refusal(levels.LATER, layers.level)) is not None:
        return refused(*early)
    if waiting + section.count > OPEN_MAX:
        text = f"{waiting} messages wait for the end of their transaction, at most {OPEN_MAX} may"
        return refused("too-many-open", text)
    at, real = 0, ""
    for number in range(section.count):
        found = record.decode(section.data, at, check_crc=False)
        at += found.size
        named = found.properties
        place = destination(named)
        if place is None or named.get(PREPARED) != "true" or not named.get(GROUP, ""):
            names = ", ".join((PREPARED, GROUP, NAME, REAL_TOPIC, REAL_QUEUE))
            return _wrong(f"a message of a transaction has {names}", number)
        if not named.get(NAME, ""):
            return _wrong(f"{NAME} is not there: which transaction is it of", number)
        if found.size > most - RESERVE:
            text = f"record {number}: {found.size} bytes, at most {most - RESERVE} may be committed"
            return refused("too-large", text, number)
        if not number:
            real = place.topic
            refusal = no_destination(layers, real.encode(), "transaction")
            if refusal is not None:
                return refusal
        if place.topic != real:
            return _wrong("those of one section have one REAL_TOPIC", number)
        queues = layers.open[real].takes
        if place.queue >= queues:
            text = f"record {number}: topic {real} has queues 0 to {queues - 1}, not {place.queue}"
            return refused("unknown-queue", text, number)
    return None


def _wrong(text: str, number: int) -> SectionResult:
    return refused("transaction", f"record {number}: {text}", number)

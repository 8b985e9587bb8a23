"""What the confirmed log says, read by the judge's own parser.

Each batch that becomes confirmed is parsed once, with a struct of this file and not with the
production decoder, and entered into queues. From then on every reader and every producer is held
to it: one record per queue offset, no gap, no double, producers in order, nothing that was refused.

A record of the workload names itself in its body: ``producer|epoch|sequence|number|`` and padding.

Not here: which batches are confirmed (`tests.sim.judge.ledger`).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace

from tests.sim.judge.ledger import Batch, Violation

_HEAD = struct.Struct(">iiiiiqqiq8sq8siqi")
"""Size, magic, body crc, queue, flag, queue offset, log offset, system flag, born, born host,
stored, store host, reconsumed, prepared, body length: a record of an IPv4 cluster."""
assert _HEAD.size == 88

_ITEM = struct.Struct(">iiiii")
"""Size, magic, crc, flag, body length: a message inside a record."""
_SEVERAL = 0x80
"""System flag of a record that holds several messages."""

SYSTEM_TOPIC = "rmq_sys_TWINLOG_"
DEAD_TOPIC = "%DLQ%"
STEP_TOPIC = "step"
"""What consumers send together with their acknowledgements."""
HALVES = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Its records wait for the end of their transaction (`tests.sim.profiles.transactions`)."""
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Copies of those that nothing has ended."""
ENDS = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""What it says is for RocketMQ."""
NO_PRODUCER = (SYSTEM_TOPIC, DEAD_TOPIC, STEP_TOPIC, HALVES, GIVEN_UP, ENDS)
"""How the names of topics begin whose records no producer of the workload sends."""
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
"""Records of it wait for their level; the queue is the level less one."""
TIMERS = "rmq_sys_wheel_timer"
"""Records of it wait for a time."""
RESCUED = b"\x02TL_ORIGIN\x01"
"""One of them has it that takes the place of another."""
FIRST_TOPIC = "topic0"
"""Where delayed messages go."""
BRIEF_TOPIC = "brief"
"""It is deleted and made again (`tests.sim.profiles.deletions`)."""
BATCH_TOPIC = "batch0"
"""Its records may hold several messages; queue offsets count the messages."""
LIGHTS = ("%LMQ%l0", "%LMQ%l1")
_LIGHT = re.compile(rb"INNER_MULTI_DISPATCH\x01(.*?)\x02INNER_MULTI_QUEUE_OFFSET\x01(.*?)\x02")


def is_copy(topic: str, data: bytes) -> bool:
    """Whether a record delivers one that waited."""
    return not topic.startswith((SCHEDULE, TIMERS, *NO_PRODUCER)) and b"REAL_TOPIC\x01" in data


def key_of(sequence: int) -> str:
    """The key that many first records of sections share."""
    return f"k{sequence % 5}"


@dataclass(frozen=True, slots=True)
class Stored:
    """One confirmed record: its place, the name it carries, how many messages it holds."""

    log_offset: int
    size: int
    queue_offset: int
    name: bytes
    messages: int


class Contents:
    """Queues as the confirmed log defines them.

    Attributes:
        raw: The confirmed log, byte for byte.
        queues: Records per (topic, queue), by queue offset; one with several messages is there as
            often, and one that names light queues in each of them, as (name, 0).
        places: (producer, epoch, sequence of the record) to its record.
        keyed: Records by topic and key (`key_of`), in log order.
    """

    def __init__(self) -> None:
        self.raw = bytearray()
        self.queues: dict[tuple[str, int], list[Stored]] = {}
        self.places: dict[tuple[bytes, int, int], Stored] = {}
        self.keyed: dict[tuple[str, str], list[Stored]] = {}
        self.others: list[tuple[str, Stored, bytes]] = []
        """Records of the last batch that no producer sent, with their topics and their bytes."""
        self._last: dict[tuple[bytes, str, int], tuple[int, int]] = {}

    def add(self, batch: Batch, data: bytes) -> list[tuple[str, int, Stored]]:
        """Enter one confirmed batch; returns its workload records with topic and queue.

        Raises:
            Violation: A queue would get a gap or a double, or a producer's order is broken.
        """
        if batch.start != len(self.raw):
            raise Violation("ConfirmedStays", f"{batch} confirmed, canon ends at {len(self.raw)}")
        self.raw += data
        self.others = []
        if batch.kind == 1:  # a filler is a marker of 8 bytes and zeros
            self.raw += bytes(batch.length - len(data))
            return []
        found: list[tuple[str, int, Stored]] = []
        at = 0
        while at < batch.length:
            topic, queue, stored = self._record(batch, data, at)
            at += stored.size
            self._into_queue(topic, queue, stored)
            for light, offset in self._lights(data[at - stored.size : at]):
                self._into_queue(light, 0, replace(stored, queue_offset=offset))
            record = data[at - stored.size : at]
            rescued = topic == TIMERS and RESCUED in record
            if topic.startswith(NO_PRODUCER) or rescued or is_copy(topic, record):
                self.others.append((topic, stored, bytes(data[at - stored.size : at])))
            else:
                self._producer_order(topic, queue, stored)
                found.append((topic, queue, stored))
        if found and len(found) + len(self.others) != batch.count:
            raise Violation("EveryByteHasEntry", f"{batch} says {batch.count}, holds {len(found)}")
        return found

    def _into_queue(self, topic: str, queue: int, stored: Stored) -> None:
        rows = self.queues.setdefault((topic, queue), [])
        if stored.queue_offset != len(rows):
            raise Violation(
                "NoGapNoDouble",
                f"{topic}/{queue}: record at {stored.log_offset} has queue offset"
                f" {stored.queue_offset}, expected {len(rows)}",
            )
        rows.extend([stored] * stored.messages)

    def _lights(self, data: bytes) -> list[tuple[str, int]]:
        """Light queues that a record names, and its offset in each, as the master wrote it."""
        found = _LIGHT.search(data) if b"%LMQ%" in data else None
        if found is None:
            return []
        names, offsets = (part.decode().split(",") for part in found.groups())
        return list(zip(names, map(int, offsets), strict=True))

    def _record(self, batch: Batch, data: bytes, at: int) -> tuple[str, int, Stored]:
        head = _HEAD.unpack_from(data, at)
        size, queue, queue_offset, log_offset, body_length = (
            head[0],
            head[3],
            head[5],
            head[6],
            head[14],
        )
        if size <= 0 or at + size > batch.length or log_offset != batch.start + at:
            raise Violation("EveryByteHasEntry", f"{batch}: no record at {batch.start + at}")
        body = at + _HEAD.size
        topic_at = body + body_length + 1
        topic = bytes(data[topic_at : topic_at + data[topic_at - 1]]).decode()
        name_at, messages = body, 1
        if head[7] & _SEVERAL:
            name_at, messages = body + _ITEM.size, _messages(batch, data, body, body_length)
        name = bytes(data[name_at : name_at + min(body_length, 48)])
        return topic, queue, Stored(log_offset, size, queue_offset, name, messages)

    def _producer_order(self, topic: str, queue: int, stored: Stored) -> None:
        producer, epoch, sequence, number, _ = stored.name.split(b"|", 4)
        key = (
            producer + b"%s/%d" % (topic.encode(), queue),
            int(epoch),
            int(sequence) + int(number),
        )
        if key in self.places:
            raise Violation(
                "NoGapNoDouble", f"{topic}/{queue}: {stored.name!r} at {stored.log_offset} twice"
            )
        self.places[key] = stored
        if int(number) == 0 and topic not in (SCHEDULE, TIMERS):
            self.keyed.setdefault((topic, key_of(int(sequence))), []).append(stored)
        line = (producer, topic, queue)
        last = self._last.get(line, (-1, -1))
        if key[1:] < last:
            raise Violation(
                "ProducerOrder", f"{topic}/{queue}: {key[1:]} of {producer!r} after {last}"
            )
        self._last[line] = (key[1], key[2])


def _messages(batch: Batch, data: bytes, at: int, length: int) -> int:
    """Count the messages in a record's body."""
    found, end = 0, at + length
    while at < end:
        size = _ITEM.unpack_from(data, at)[0]
        if size <= _ITEM.size:
            break
        at += size
        found += 1
    if at != end or not found:
        raise Violation("EveryByteHasEntry", f"{batch}: no whole messages before {end}")
    return found

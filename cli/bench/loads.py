"""The loads of ``twinlog bench``: a producer, single sends, prepared batches, reading.

*Prepared* means encoded beforehand: the same sections go again and again, so the generator costs
next to nothing and the cluster is what is measured.  They carry no producer, so they are not
mistaken for repeats.  *Python producer* is the public client, called once for each record.

Latency: from handing a record over to its acknowledgement (of one record in `SAMPLE`); for prepared
batches from sending a request to its answer; for reads from asking to the answer.

Times are seconds on the monotonic clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from cli.bench.measurement import Count
from cli.connection import connect
from cli.fields import rows, whole
from twinlog.client.blocking import Client
from twinlog.errors import Unavailable
from twinlog.format.record import RecordEncoder
from twinlog.producer.section import Section
from twinlog.session.connection import Connection
from twinlog.session.link import error_of
from twinlog.session.session import LinkDown
from twinlog.session.tls_files import Tls
from twinlog.wire.frames import Frame, Type

SAMPLE = 64
"""Latency is taken of one record in `SAMPLE`: a power of two, far from any batch size."""
ANSWER_SECONDS = 30.0
READ_BYTES = 1 << 20
READ_RECORDS = 65_536
READS = 3
"""Questions under way when stored bytes are read: one is answered, one waits, one is received."""

Until = Callable[[], bool]


def body_of(size: int) -> bytes:
    """A body that neither compresses to nothing nor costs anything to make."""
    return bytes(33 + at * 7 % 90 for at in range(size))


def produce(
    client: Client, topic: str, size: int, over: Until, *, batch: str, linger: str, ack: str
) -> Count:
    """Send one record per call through the Python producer."""
    count, body = Count(), body_of(size)
    waiting: deque[tuple[float, Section]] = deque()
    with client.producer(topic, batch=batch, linger=linger, acknowledge=ack) as producer:
        sent = 0
        while not over():
            for _ in range(SAMPLE - 1):
                producer.send(body)
            waiting.append((time.monotonic(), producer.send(body)))
            sent += SAMPLE
            while waiting and waiting[0][1].done:
                began, handle = waiting.popleft()
                count.latencies.add(handle.answered - began)
        producer.flush()
        for began, handle in waiting:
            count.latencies.add(handle.answered - began)
        count.records = producer.statistics().acknowledged
    count.bytes = count.records * size
    return count


def one_at_a_time(client: Client, topic: str, size: int, over: Until, *, ack: str) -> Count:
    """Send a record, wait for its acknowledgement, send the next."""
    count, body = Count(), body_of(size)
    while not over():
        began = time.monotonic()
        client.send(topic, body, acknowledge=ack)
        count.latencies.add(time.monotonic() - began)
        count.records += 1
    count.bytes = count.records * size
    return count


def section_of(topic: str, queue: int, size: int, batch: int, family: int) -> tuple[bytes, int]:
    """One prepared section and how many records it holds."""
    encoder = RecordEncoder(topic, queue, family=family)
    body, now = body_of(size), time.time_ns() // 1_000_000
    while encoder.count == 0 or encoder.size * (encoder.count + 1) / encoder.count < batch:
        encoder.add(body, born_timestamp=now)
    records = encoder.count
    return bytes(encoder.take()), records


def prepared(
    master: str,
    topic: str,
    size: int,
    over: Until,
    *,
    queues: int,
    batch: int,
    window: int,
    ack: str,
    tls: Tls | None = None,
) -> Count:
    """Send prepared sections, ``window`` requests under way, each queue in turn.

    Raises:
        Unavailable: The master went away, or refused: a measurement does not follow a failover.
    """
    count = Count()
    waiting: dict[int, float] = {}
    try:
        connection = connect(master, ANSWER_SECONDS, tls=tls)
        try:
            family = connection.peer.family
            sections = [section_of(topic, queue, size, batch, family) for queue in range(queues)]
            turn = 0
            while waiting or not over():
                while len(waiting) < window and not over():
                    data, records = sections[turn % queues]
                    row = [topic, turn % queues, records, len(data), 0, 0, 0]
                    fields: dict[str, object] = {
                        "ack": ack, "timeout_ms": int(ANSWER_SECONDS * 1000), "sections": [row],
                    }  # fmt: skip
                    frame = Frame(Type.APPEND, fields=fields)
                    began = time.monotonic()
                    waiting[connection.send(frame, ANSWER_SECONDS, [data])] = began
                    turn += 1
                answer = connection.take(ANSWER_SECONDS)
                if answer is None:
                    raise Unavailable(f"{master} did not answer within {ANSWER_SECONDS:g} s")
                count.latencies.add(time.monotonic() - waiting.pop(answer.request))
                _stored(answer)
                count.records += sections[0][1]
        finally:
            connection.close()
    except LinkDown as down:
        raise Unavailable(f"{master} {down.why}") from down
    count.bytes = count.records * size
    return count


def _stored(answer: Frame) -> None:
    """Raise unless every section of a request was stored."""
    if answer.is_error:
        raise error_of(answer)
    for row in rows(answer.fields.get("results")):
        if row[0] != 0:
            raise Unavailable(f"a section was not stored: {row[4]}: {row[5]}")


def fetch(node: str, topic: str, over: Until, *, queues: int, tls: Tls | None = None) -> Count:
    """Read every queue from its start, again and again, without decoding the records.

    `READS` queues are asked at a time, so that the node has the next question while this process
    receives an answer.
    """
    count = Count()
    try:
        connection = connect(node, ANSWER_SECONDS, tls=tls)
        try:
            _fetched(connection, topic, over, count, queues)
        finally:
            connection.close()
    except LinkDown as down:
        raise Unavailable(f"{node} {down.why}") from down
    return count


def _fetched(connection: Connection, topic: str, over: Until, count: Count, queues: int) -> None:
    offsets = [0] * queues
    idle = deque(range(queues))
    waiting: dict[int, tuple[int, float]] = {}
    empty = 0
    while not over():
        while idle and len(waiting) < READS:
            queue = idle.popleft()
            fields: dict[str, object] = {
                "topic": topic, "queue": queue, "offset": offsets[queue],
                "max_bytes": READ_BYTES, "max_records": READ_RECORDS, "wait_ms": 0,
            }  # fmt: skip
            number = connection.send(Frame(Type.READ, fields=fields), ANSWER_SECONDS)
            waiting[number] = queue, time.monotonic()
        answer = connection.take(ANSWER_SECONDS)
        if answer is None:
            raise LinkDown(f"did not answer within {ANSWER_SECONDS:g} s", sent=True)
        if answer.is_error:
            raise error_of(answer)
        queue, began = waiting.pop(answer.request)
        idle.append(queue)
        found = whole(answer.fields, "count") or 0
        empty = 0 if found else empty + 1
        if found:
            count.latencies.add(time.monotonic() - began)
            count.records += found
            count.bytes += len(answer.payload)
            offsets[queue] = whole(answer.fields, "next") or 0
        else:
            offsets[queue] = whole(answer.fields, "start") or 0
        if empty > 2 * queues:
            raise Unavailable(f"{topic} has nothing to read", hint="twinlog bench send")


def consume(client: Client, topic: str, over: Until, *, read_from: str) -> Count:
    """Read messages through the Python client, decoded, again and again."""
    count = Count()
    while not over():
        before = count.records
        for message in client.read(topic, "start:", read_from=read_from):
            count.records += 1
            count.bytes += len(message.body)
            if count.records % 256 == 0 and over():
                break
        if count.records == before:
            raise Unavailable(f"{topic} has nothing to read", hint="twinlog bench send")
    return count

"""The reports in plain Python: what their SQL must answer, and what runs without Spark; pure.

Each function takes the records of a store in log order and returns the rows of its report, sorted
as the SQL sorts them. Records of system topics are among them; the functions leave them out where
the report does.

Times are milliseconds since 1970, sizes bytes.

Not here: the SQL (`twinlog.spark.jobs.reports.queries`), reading
(`twinlog.spark.jobs.reports.tables`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal

from twinlog.format.compression import COMPRESSION_MASK, decompress
from twinlog.format.inner_batches import is_inner_batch, messages_in
from twinlog.format.record import Record
from twinlog.format.system_topics import DELAY_TOPIC, TIMER_TOPIC
from twinlog.spark.engine.report import Value
from twinlog.units import parse_whole

Row = tuple[Value, ...]
Taken = tuple[int, str, str, int, int]
"""Where a group was at a moment: ms, group, topic, queue, first message that was not settled."""

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
MINUTE = 60_000
TOPIC_V1_MAX = 127
"""Bytes of a topic's name that the first version of a record has room for; longer take one more."""
ITEM_HEAD = 22
"""Bytes of a message in an inner batch besides its body and properties."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a report needs besides records.

    Attributes:
        epochs: (epoch, log offset where it begins), oldest first.
        queues: (start, end) of each queue, queue offsets.
        committed: Next queue offset of (group, topic, queue).
        now: The present, ms.
        top: Rows of a ranking.
        key: Key or id that is looked for.
        taken: Where groups were, oldest first.
        every: Length of the spans of ``taken``, ms.
    """

    epochs: Sequence[tuple[int, int]] = ()
    queues: Mapping[tuple[str, int], tuple[int, int]] = field(
        default_factory=dict[tuple[str, int], tuple[int, int]]
    )
    committed: Mapping[tuple[str, str, int], int] = field(
        default_factory=dict[tuple[str, str, int], int]
    )
    now: int = 0
    top: int = 10
    key: str = ""
    taken: Sequence[Taken] = ()
    every: int = MINUTE


def is_system(topic: str) -> bool:
    """Whether a topic is not one of users': retries, dead letters, delays, the store's own.

    >>> is_system("%RETRY%g"), is_system("rmq_sys_TWINLOG_EPOCH"), is_system("orders")
    (True, True, False)
    """
    known = topic in (DELAY_TOPIC, "TBW102")
    return known or topic.startswith(("%RETRY%", "%DLQ%", "rmq_sys_", "RMQ_SYS_", "%LMQ%"))


def unfolded(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the messages that Spark has as rows: those of an inner batch one by one.

    Their ``size`` is that of a record of their own, as in the source's column.
    """
    for record in records:
        if not is_inner_batch(record):
            yield record
            continue
        name = len(record.topic.encode())
        head = 91 + name + (name > TOPIC_V1_MAX) + 12 * (record.sys_flag >> 4 & 3).bit_count()
        for message in messages_in(record):
            yield replace(message, size=head + message.size - ITEM_HEAD)


def users(records: Iterable[Record]) -> Iterable[Record]:
    """The records of users' topics that have a place in a queue."""
    return (r for r in records if r.queued and not is_system(r.topic))


def rank(values: Sequence[int], share: float) -> int:
    """Return the least value that ``share`` of all values do not exceed.

    >>> rank([5, 1, 9, 7], 0.5), rank([5], 0.99)
    (5, 5)
    """
    ordered = sorted(values)
    need = share * len(ordered)
    return next(value for i, value in enumerate(ordered, 1) if i >= need - 1e-9)


def rates(records: Iterable[Record], facts: Facts) -> list[Row]:
    """Messages and bytes of each topic and minute."""
    found: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for record in users(records):
        cell = found[record.store_timestamp // MINUTE * MINUTE, record.topic]
        cell[0] += 1
        cell[1] += record.size
    return [(topic, minute, *cell) for (minute, topic), cell in sorted(found.items())]


def sizes(records: Iterable[Record], facts: Facts) -> list[Row]:
    """How large the records of each topic are."""
    found: dict[str, list[int]] = defaultdict(list)
    for record in users(records):
        found[record.topic].append(record.size)
    return [
        (topic, len(held), sum(held), rank(held, 0.5), rank(held, 0.99), max(held))
        for topic, held in sorted(found.items())
    ]


def hot_keys(records: Iterable[Record], facts: Facts) -> list[Row]:
    """The keys with the most messages, for each topic."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for record in users(records):
        for key in record.keys:
            found[record.topic][key] += 1
    rows: list[Row] = []
    for topic, counts in sorted(found.items()):
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        rows += [(topic, i, key, count) for i, (key, count) in enumerate(ordered[: facts.top], 1)]
    return rows


def skew(records: Iterable[Record], facts: Facts) -> list[Row]:
    """How evenly each topic's messages are in its queues: the fullest against the mean."""
    found: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for record in users(records):
        found[record.topic][record.queue] += 1
    return [
        (
            topic,
            len(counts),
            sum(counts.values()),
            max(counts.values()),
            thousandths(max(counts.values()) * len(counts) / sum(counts.values())),
        )
        for topic, counts in sorted(found.items())
    ]


def thousandths(value: float) -> float:
    """Round to three digits as Spark does: halves of what is shown go up, not to the even digit.

    >>> thousandths(1.0625), thousandths(1.5), round(1.0625, 3)
    (1.063, 1.5, 1.062)
    """
    return float(Decimal(repr(value)).quantize(Decimal("0.001"), ROUND_HALF_UP))


def latency(records: Iterable[Record], facts: Facts) -> list[Row]:
    """From made to stored, by topic and minute."""
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    for record in users(records):
        minute = record.store_timestamp // MINUTE * MINUTE
        found[minute, record.topic].append(record.store_timestamp - record.born_timestamp)
    return [
        (topic, minute, len(held), rank(held, 0.5), rank(held, 0.99), max(held))
        for (minute, topic), held in sorted(found.items())
    ]


def delivery(records: Iterable[Record], facts: Facts) -> list[Row]:
    """From made to first handed to a consumer, by topic and group: what RocketMQ's traces tell.

    Of several records with one id the first in the log counts, of several traces the earliest.
    """
    made: dict[str, tuple[str, int]] = {}
    began: dict[tuple[str, str], int] = {}
    for record in records:
        if record.topic == TRACE_TOPIC and record.queued:
            for group, name, at in first_deliveries(body_of(record)):
                began[group, name] = min(at, began.get((group, name), at))
        elif record.unique_id and record.queued and not is_system(record.topic):
            made.setdefault(record.unique_id, (record.topic, record.born_timestamp))
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for (group, name), at in began.items():
        if name in made:
            topic, born = made[name]
            found[topic, group].append(at - born)
    return [
        (topic, group, len(held), rank(held, 0.5), rank(held, 0.99), max(held))
        for (topic, group), held in sorted(found.items())
    ]


def body_of(record: Record) -> bytes:
    """Return a record's body, decompressed.

    Raises:
        Corrupt: It does not decompress.
    """
    kind = record.sys_flag & COMPRESSION_MASK
    return decompress(record.body, kind) if kind else record.body


_GROUP = re.compile(r"[%|a-zA-Z0-9_-]+")
_STAMP = re.compile(r"[0-9]{1,18}")


def first_deliveries(body: bytes) -> Iterator[tuple[str, str, int]]:
    """Yield (consumer group, message id, ms) of each first delivery that a trace reports.

    Records end with 0x02, fields with 0x01: ``SubBefore``, time, region, group, request, message
    id, deliveries before, keys. Records of other kinds, short ones, and those without a valid time
    or group are left out. A byte is a character: only ASCII has a meaning here.

    >>> told = "SubBefore 7 region g request ID 0 key".replace(" ", chr(1))
    >>> list(first_deliveries(f"{told}{chr(2)}SubBefore{chr(1)}".encode()))
    [('g', 'ID', 7)]
    """
    for item in body.decode("latin-1").split("\x02"):
        fields = item.split("\x01")
        if len(fields) < 8 or fields[0] != "SubBefore" or fields[6] != "0":
            continue
        if _STAMP.fullmatch(fields[1]) and _GROUP.fullmatch(fields[3]):
            yield fields[3], fields[5], int(fields[1])


def failovers(records: Iterable[Record], facts: Facts) -> list[Row]:
    """Each epoch: its first and last record, and how long nothing was stored before it."""
    spans: dict[int, list[int]] = {}
    before_it = -1
    for record in records:
        if record.log_offset == before_it:  # another message of an inner batch
            continue
        before_it = record.log_offset
        past = [epoch for epoch, start in facts.epochs if start <= record.log_offset]
        if past and not record.topic.startswith("rmq_sys_TWINLOG_"):
            held = spans.setdefault(past[-1], [record.store_timestamp, 0, 0])
            held[1] = record.store_timestamp
            held[2] += 1
    rows: list[Row] = []
    before: int | None = None
    for epoch, start in facts.epochs:
        if epoch in spans:
            first, last, count = spans[epoch]
            rows.append((epoch, start, first, last, count, first - before if before else None))
            before = last
    return rows


def lag(records: Iterable[Record], facts: Facts) -> list[Row]:
    """How far each group is behind, in messages and in the age of what it reads next."""
    wanted = {(topic, queue, offset) for (_, topic, queue), offset in facts.committed.items()}
    times = {
        (r.topic, r.queue, r.queue_offset): r.store_timestamp
        for r in records
        if r.queued and (r.topic, r.queue, r.queue_offset) in wanted
    }
    rows: list[Row] = []
    for (group, topic, queue), offset in sorted(facts.committed.items()):
        end = facts.queues.get((topic, queue), (0, 0))[1]
        stored = times.get((topic, queue, offset))
        age = facts.now - stored if stored is not None else None
        rows.append((group, topic, queue, offset, end, max(end - offset, 0), age))
    return rows


def lag_over_time(records: Iterable[Record], facts: Facts) -> list[Row]:
    """How far each group was behind at the end of each span in which it or its queue moved."""
    groups: dict[tuple[str, int], set[str]] = defaultdict(set)
    points: dict[tuple[int, str, str, int], list[int | None]] = {}
    for at, group, topic, queue, first in facts.taken:
        groups[topic, queue].add(group)
        points[at, group, topic, queue] = [first, None]
    ends: dict[tuple[int, str, int], int] = {}
    for record in records:
        if record.queued and (record.topic, record.queue) in groups:
            at = (record.store_timestamp // facts.every + 1) * facts.every
            key = (at, record.topic, record.queue)
            ends[key] = max(ends.get(key, 0), record.queue_offset + 1)
    for (at, topic, queue), end in ends.items():
        for group in groups[topic, queue]:
            points.setdefault((at, group, topic, queue), [None, None])[1] = end
    rows: list[Row] = []
    known: dict[tuple[str, str, int], tuple[int | None, int]] = {}
    for (at, group, topic, queue), (moved, grown) in sorted(points.items()):
        before, most = known.get((group, topic, queue), (None, 0))
        low, most = before if moved is None else moved, max(most, grown or 0)
        known[group, topic, queue] = low, most
        if low is not None:
            rows.append((at, group, topic, queue, low, most, max(most - low, 0)))
    return rows


def timeline(records: Iterable[Record], facts: Facts) -> list[Row]:
    """Delayed messages: when each was due, and whether and when it was delivered."""
    held = list(records)
    delivered: dict[tuple[str, str], int] = {}
    for record in held:
        if record.unique_id and record.queued and not is_waiting(record.topic):
            delivered.setdefault((record.topic, record.unique_id), record.store_timestamp)
    waiting = [r for r in held if is_waiting(r.topic) and r.queued]
    newest = {(r.topic, r.unique_id): r.log_offset for r in waiting}
    rows: list[Row] = []
    for record in waiting:
        topic = record.properties.get("REAL_TOPIC")
        due = due_of(record)
        done = delivered.get((topic or "", record.unique_id or ""))
        state = "pending" if done is None else "delivered"
        if newest[record.topic, record.unique_id] != record.log_offset:
            state = "rolled"
        level = record.queue + 1 if record.topic == DELAY_TOPIC else None
        late = done - due if state == "delivered" and done is not None and due is not None else None
        rows.append((due, topic, level, state, done, late, record.unique_id, record.log_offset))
    return sorted(rows, key=lambda row: (row[0] is not None, row[0] or 0, row[7]))


def is_waiting(topic: str) -> bool:
    """Whether records of a topic wait for their time."""
    return topic in (DELAY_TOPIC, TIMER_TOPIC)


def due_of(record: Record) -> int | None:
    """Return when a delayed record is due; None when it does not say."""
    if record.topic == DELAY_TOPIC:
        return record.tags_code
    return parse_whole(record.properties.get("TIMER_OUT_MS", ""))


def trace(records: Iterable[Record], facts: Facts) -> list[Row]:
    """Everything that carries a key or an id, over all topics, in time order."""
    found = [record for record in records if carries(record, facts.key)]
    found.sort(key=lambda record: (record.store_timestamp, record.log_offset, record.queue_offset))
    return [
        (
            r.store_timestamp,
            kind_of(r.topic, r.sys_flag),
            r.topic,
            r.queue,
            r.queue_offset,
            r.log_offset,
            r.unique_id,
            r.key,
            r.tag,
            r.reconsume_times,
        )
        for r in found
    ]


ID_PROPERTIES = ("UNIQ_KEY", "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")
"""Where the id of a message stands in it, in its retries and in its dead letter."""


def carries(record: Record, key: str) -> bool:
    """Whether a record has ``key`` among its keys, or as its id or the id it came from."""
    if key in record.keys:
        return True
    return any(record.properties.get(name) == key for name in ID_PROPERTIES)


def kind_of(topic: str, sys_flag: int) -> str:
    """Return what a record is in the life of a message.

    >>> kind_of("%DLQ%g", 0), kind_of("orders", 8), kind_of("orders", 0)
    ('dead letter', 'committed', 'message')
    """
    if topic.startswith("%RETRY%"):
        return "retry"
    if topic.startswith("%DLQ%"):
        return "dead letter"
    if topic == HALF_TOPIC:
        return "half"
    if topic == OP_TOPIC:
        return "op"
    if is_waiting(topic):
        return "waiting"
    return {4: "prepared", 8: "committed", 12: "rolled back"}.get(sys_flag & 12, "message")

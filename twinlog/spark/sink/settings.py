"""What may be written, and how: options and columns of the sink, each in one table; pure.

A row's place is decided by the row and by its number in the task, never by how fast a node answers:
a replay must make the same sections.

Not here: sending (`sink.writer`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from twinlog.format.record import java_hash
from twinlog.producer.new_message import MessageFields
from twinlog.spark.errors import SourceError, listed, nearest
from twinlog.spark.plan.credentials import MEANINGS, NONE, Credentials, refuse_password
from twinlog.units import parse_duration, parse_size

TURN: Final = 1024
"""Rows without an order key that go to one queue before the next takes over."""

SECTION_BYTES: Final = 256 * 1024
"""A section closes at this size and at nothing else: never an option, for a replay must make the
same sections as the batch it repeats."""

SOURCE_PROPERTY: Final = "TL_SRC"
"""writeId/batch/task/number: names a row for readers that remove duplicates themselves."""


class Column(NamedTuple):
    """A column of the sink."""

    types: tuple[str, ...]
    """Types that it may have, as Spark writes them."""
    text: str
    """What it means, one sentence."""
    field: str = ""
    """The field of `NewMessage` that it is; empty for what is no such field."""


TIMESTAMP: Final = "timestamp"
"""Columns of this type become ms since 1970."""

COLUMNS: Final[Mapping[str, Column]] = {
    "body": Column(("binary", "string"), "The message; required."),
    "topic": Column(("string",), "Topic, where the option topic does not say it for all."),
    "key": Column(("string",), "Index keys, with spaces between; never chooses the queue.", "key"),
    "tags": Column(("string",), "The tag readers filter by.", "tag"),
    "order_key": Column(
        ("string",), "Rows of the same order key go to the same queue, in order.", "order_key"
    ),
    "properties": Column(("map<string,string>",), "Further properties.", "properties"),
    "queue_id": Column(("int", "bigint"), "The queue itself; wins over order_key.", "queue"),
    "born_timestamp": Column(
        (TIMESTAMP,), "When the message was born; without it: now.", "born_ms"
    ),
}
"""Columns of the sink."""


def message_of(row: Mapping[str, object]) -> MessageFields:
    """Return what a row says of its message, besides the body.

    >>> message_of({"body": b"x", "tags": "paid", "topic": "orders"})
    {'tag': 'paid'}
    """
    found = {COLUMNS[name].field: value for name, value in row.items() if COLUMNS[name].field}
    return cast("MessageFields", found)


PACE_SECONDS: Final = 0.1
"""How much may be sent before it is paid for, in seconds of the rate."""

ACKNOWLEDGE: Final = ("written", "flushed", "replicated", "confirmed")


@dataclass(frozen=True, slots=True)
class Rate:
    """How much may go in a second: rows, or bytes of bodies."""

    amount: float
    size: bool = False

    def over(self, tasks: int) -> str:
        """Return the share of one of this many tasks, as an option.

        >>> Rate(500.0).over(4), Rate(2048.0, size=True).over(2)
        ('125.0', '1024 B/s')
        """
        share = self.amount / max(1, tasks)
        return f"{max(1, round(share))} B/s" if self.size else str(share)


def _flag(text: str) -> object:
    return {"true": True, "false": False}[text.lower()]


def _seconds(text: str) -> object:

    return parse_duration(text)


def _word(text: str) -> object:
    return ACKNOWLEDGE[ACKNOWLEDGE.index(text.lower())]


def rate_of(text: str) -> Rate:
    """Return rows per second, as 500, or bytes per second, as 50 MiB/s.

    Raises:
        ValueError: It is neither.

    >>> rate_of("500"), rate_of("2 KiB/s")
    (Rate(amount=500.0, size=False), Rate(amount=2048.0, size=True))
    """
    amount, _, per = text.strip().partition("/")
    size = per.strip() == "s"
    rate = float(parse_size(amount.strip()) if size else text)
    if not 0 < rate < 1e12:
        raise ValueError(text)
    return Rate(rate, size)


OPTIONS: Final[tuple[tuple[str, Callable[[str], object], str | None, str], ...]] = (
    ("servers", str, None, "Addresses of any nodes, host:port, with commas between; required."),
    ("topic", str, None, "Topic for all rows; without it the column topic names it."),
    ("ack", _word, "confirmed", "When a row counts: written, flushed, replicated, confirmed."),
    ("exactlyOnce", _flag, "true", "Streams: whether a replay is recognised by its sequences."),
    ("writeId", str, "", "Streams: names the writer instead of the query's checkpoint."),
    ("commitTopic", str, "", "Streams: topic for a record of each committed batch; needs writeId."),
    ("rate", rate_of, None, "Of each task, at most: rows per second, as 500, or 50 MiB/s."),
    ("timeout", _seconds, "60 s", "How long a section may wait for its answer, failover included."),
    *((name, str, "", meaning) for name, meaning in MEANINGS.items()),
)
"""Options of the sink: name, parser, default as text, meaning."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The options of one write; see `OPTIONS`."""

    servers: str
    topic: str | None
    ack: str
    exactly_once: bool
    write_id: str
    commit_topic: str
    rate: Rate | None
    timeout: float
    credentials: Credentials = NONE


def parse(given: Mapping[str, str]) -> SinkSettings:
    """Return the settings that options make.

    Raises:
        SourceError: A name or a value is not valid, or ``servers`` is missing.
    """
    known = {name.lower(): (name, parser) for name, parser, _, _ in OPTIONS}
    values: dict[str, object] = {
        name.lower(): None if default is None else parser(default)
        for name, parser, default, _ in OPTIONS
    }
    for said, text in given.items():
        lower = said.lower()
        refuse_password(said)
        sparks = lower in ("checkpointlocation", "path", "provider", "owner") or "." in lower
        if sparks and lower not in known:
            continue
        if lower not in known:
            hint = nearest(said, [name for name, _, _, _ in OPTIONS])
            raise SourceError(f"the sink has no option {said!r}", code="option", hint=hint)
        name, parser = known[lower]
        try:
            values[lower] = parser(text)
        except (ValueError, KeyError):
            meaning = next(row[3] for row in OPTIONS if row[0] == name)
            raise SourceError(f"{name} is {text!r}", code="option", hint=meaning) from None
    if not values["servers"]:
        hint = 'name the cluster: .option("servers", "n1:7410,n2:7410")'
        raise SourceError("the sink writes to a cluster, never to files", code="option", hint=hint)
    if values["committopic"] and not values["writeid"]:
        hint = 'name the writer too: .option("writeId", "copy-of-orders")'
        raise SourceError("commitTopic needs writeId", code="option", hint=hint)
    shown = Credentials(*(str(values[name.lower()]) for name in MEANINGS))
    shown.refuse(cluster=True)
    return SinkSettings(
        servers=str(values["servers"]),
        topic=cast("str | None", values["topic"]),
        ack=str(values["ack"]),
        exactly_once=bool(values["exactlyonce"]),
        write_id=str(values["writeid"]),
        commit_topic=str(values["committopic"]),
        rate=cast("Rate | None", values["rate"]),
        timeout=cast("float", values["timeout"]),
        credentials=shown,
    )


def check_columns(fields: Sequence[tuple[str, str]], settings: SinkSettings) -> None:
    """Check the schema of what is written.

    Raises:
        SourceError: A column is unknown, is there twice, has another type or is missing.
    """
    names = [name for name, _ in fields]
    for name, kind in fields:
        if names.count(name) > 1:
            hint = "leave all but one of them out of the select"
            raise SourceError(f"the column {name} is there twice", code="column", hint=hint)
        if name not in COLUMNS:
            hint = nearest(name, list(COLUMNS)) or f"the sink takes {listed(tuple(COLUMNS))}"
            raise SourceError(f"the sink takes no column {name!r}", code="column", hint=hint)
        if kind not in COLUMNS[name].types:
            text = f"column {name} is {kind}, the sink takes {listed(COLUMNS[name].types)}"
            raise SourceError(text, code="column", hint="cast it before the write")
    if "body" not in names:
        hint = 'make one: .selectExpr("... AS body")'
        raise SourceError("there is no column body", code="column", hint=hint)
    if settings.topic is None and "topic" not in names:
        hint = 'name it: .option("topic", "orders"), or select a column topic'
        raise SourceError("no topic is named", code="column", hint=hint)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes: the same again after a replay, another one for every other batch.

    Attributes:
        writer: Of the query: its checkpoint's id, the option writeId, or the run of a batch write.
        batch: Number of the micro-batch; 0 for a batch write.
        task: Number of the task in it.
    """

    writer: str
    batch: int
    task: int

    @property
    def producer(self) -> int:
        """The producer id for the store's sequences; above 0.

        >>> Identity("w", 3, 1).producer == Identity("w", 4, 1).producer
        True
        """
        data = hashlib.sha256(f"{self.writer}/{self.task}".encode()).digest()
        return int.from_bytes(data[:8], "big") >> 1 | 1

    @property
    def epoch(self) -> int:
        """The producer epoch: a task of an older batch that still lives is refused."""
        return self.batch

    def row(self, number: int) -> str:
        """Return the name of the task's row ``number``."""
        return f"{self.writer}/{self.batch}/{self.task}/{number}"


def queue_for(order_key: str | None, queue: int | None, number: int, queues: int) -> int:
    """Return the queue of a task's row ``number``; the same whenever it is asked.

    >>> queue_for(None, 3, 0, 4), queue_for("a", None, 0, 4), queue_for(None, None, 1024, 4)
    (3, 1, 1)
    """
    if queue is not None:
        return queue
    if order_key:
        return abs(java_hash(order_key)) % queues
    return number // TURN % queues


@dataclass(slots=True)
class Pace:
    """Spreads what a task sends over time: ``rate`` per second, none of it saved up for later.

    What was sent is paid for afterwards, in steps of `PACE_SECONDS`, and the rest at the end: a
    task takes as long as its rows need, however few they are.

    Times are seconds of one monotonic clock, handed in.
    """

    rate: float
    due: float | None = None
    owed: float = 0.0

    def sent(self, amount: float, now: float) -> float:
        """Count what was sent and return how long to wait before more goes.

        >>> pace = Pace(100.0)
        >>> pace.sent(5, 10.0), pace.sent(5, 10.0), pace.sent(20, 10.2), pace.sent(10, 30.0)
        (0.0, 0.1, 0.1, 0.0)
        """
        self.owed += amount
        if self.owed < self.rate * PACE_SECONDS:
            if self.due is None:
                self.due = now
            return 0.0
        return self.rest(now)

    def rest(self, now: float) -> float:
        """Return how long to wait until everything that was sent is paid for.

        >>> Pace(100.0, due=10.0, owed=50.0).rest(10.2)
        0.3
        """
        began = now if self.due is None else self.due
        paid = began + self.owed / self.rate
        self.due, self.owed = max(paid, now), 0.0
        return round(max(0.0, paid - now), 9)

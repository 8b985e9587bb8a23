"""The classes that Spark calls to write, and what one task does.

A task sends its rows through the client's producer under an identity of its own (`Identity`): a row
that was stored before is recognised by the store, whatever node is master by then. A task that
cannot send everything fails; Spark runs it again, and it sends the same sections again.

After a stream's tasks the commit writes one record to ``commitTopic``, if one is named.

Objects here are pickled into tasks: they hold settings only.

Sources: PySpark 4.3 (``pyspark.sql.datasource``).
"""

from __future__ import annotations

import importlib
import json
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from twinlog.client.blocking import Client, caller_of
from twinlog.errors import OutOfSequence, RecordRefused, TwinlogError, UsageError
from twinlog.producer.blocking import Producer
from twinlog.producer.section import Section
from twinlog.producer.settings import ProducerSettings
from twinlog.spark.arrow import pa
from twinlog.spark.errors import SourceError
from twinlog.spark.nodes.connect import client_of
from twinlog.spark.sink.settings import (
    COLUMNS,
    SECTION_BYTES,
    SOURCE_PROPERTY,
    TIMESTAMP,
    Identity,
    Pace,
    SinkSettings,
    check_columns,
    message_of,
    parse,
    queue_for,
)

if TYPE_CHECKING:
    BatchBase: Any = object
    StreamBase: Any = object
    Message: Any = object
else:
    from pyspark.sql.datasource import DataSourceArrowWriter as BatchBase
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamBase
    from pyspark.sql.datasource import WriterCommitMessage as Message

DETERMINISTIC = (
    "make the query deterministic, or write with exactlyOnce=false; "
    "a writeId belongs to one checkpoint and one query"
)

LINGER_SECONDS = 1e9
"""Sections close by size and at the end of a task, never by time: a replay must make the same."""

REUSED = "sequence-reused"
"""What a store answers to a section it has with other bodies."""
OUT_OF_DATE = "producer-epoch"
"""What it answers to a batch when it has a later one."""


class NonDeterministicReplay(SourceError):
    """A replay brought other rows than the batch that it repeats."""

    default_code = "NON_DETERMINISTIC_REPLAY"


@dataclass(frozen=True, slots=True)
class Sent:
    """What one task stored.

    Attributes:
        task: Its number.
        rows: Rows sent.
        duplicates: Sections that were stored before.
        crc: CRC-32 of all bodies in order.
        spans: First and last queue offset by ``topic/queue``, as far as nodes still know.
    """

    task: int
    rows: int
    duplicates: int
    crc: int
    spans: Mapping[str, tuple[int, int]]


class SentMessage(Message):  # type: ignore[misc]
    """Carries `Sent` from a task to the commit."""

    def __init__(self, sent: Sent) -> None:
        self.sent = sent


class BatchWriter(BatchBase):  # type: ignore[misc]
    """Writer of ``df.write``: a task that is run again stores nothing twice."""

    def __init__(self, given: Mapping[str, str], fields: Sequence[tuple[str, str]]) -> None:
        self._settings = parse(given)
        check_columns(fields, self._settings)
        self._run = f"run-{uuid.uuid4().hex[:16]}"

    def write(self, iterator: Iterator[Any]) -> SentMessage:
        """Send the rows of one task."""
        identity = Identity(self._run, 0, task_number())
        return SentMessage(send_rows(self._settings, identity, iterator))

    def commit(self, messages: Sequence[Any]) -> None:
        """Nothing is left to do: every row is acknowledged."""

    def abort(self, messages: Sequence[Any]) -> None:
        """Nothing can be taken back: rows are visible as they are stored."""


class StreamWriter(StreamBase):  # type: ignore[misc]
    """Writer of ``df.writeStream``: a batch that is replayed stores nothing twice."""

    def __init__(self, given: Mapping[str, str], fields: Sequence[tuple[str, str]]) -> None:
        self._settings = parse(given)
        check_columns(fields, self._settings)

    def write(self, iterator: Iterator[Any]) -> SentMessage:
        """Send the rows of one task of a micro-batch."""
        batch, query = stream_place()
        writer = self._settings.write_id or query
        if not self._settings.exactly_once:
            writer = f"{writer}-{uuid.uuid4().hex[:16]}"
        identity = Identity(writer, batch, task_number())
        return SentMessage(send_rows(self._settings, identity, iterator))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """Write the commit record, if a topic for it is named."""
        sent = [message.sent for message in messages if message is not None]
        if self._settings.commit_topic:
            commit_record(self._settings, batchId, sent)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Nothing can be taken back: the replay of the batch stores what is missing."""


def refuse_overwrite(*, overwrite: bool) -> None:
    """Refuse to replace what a topic holds.

    Raises:
        SourceError: ``overwrite`` is asked for.
    """
    if overwrite:
        text = "a log is only added to, never overwritten"
        raise SourceError(text, code="mode", hint='write with .mode("append")')


def task_number() -> int:
    """Return the number of the task that runs here."""
    context: Any = importlib.import_module("pyspark").TaskContext.get()
    return int(context.partitionId()) if context is not None else 0


def stream_place() -> tuple[int, str]:
    """Return (number of the micro-batch, id of the query) of the task that runs here."""
    context: Any = importlib.import_module("pyspark").TaskContext.get()
    assert context is not None, "called in a task"
    batch = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    if batch is None or query is None:
        raise SourceError("Spark does not say which batch this is", code="version")
    return int(batch), str(query)


def send_rows(settings: SinkSettings, identity: Identity, batches: Iterator[Any]) -> Sent:
    """Send every row of the Arrow batches and wait until all are acknowledged.

    Raises:
        NonDeterministicReplay: The store has other rows under this identity.
        SourceError: A later batch was written under this identity (code ``producer-epoch``).
        TwinlogError: A row that cannot be stored, or no answer in time; some may be stored, and
            the same call again stores the rest.
    """
    task = _Task(settings, identity)
    try:
        with client_of(settings.servers, settings.credentials, settings.timeout) as client:
            return task.run(client, batches)
    except OutOfSequence as error:
        raise _replayed(identity, error) from None
    except TwinlogError as error:
        if error.code == REUSED:
            raise _replayed(identity, error) from None
        if error.code == OUT_OF_DATE:
            raise _outdated(identity) from None
        raise


def _outdated(identity: Identity) -> SourceError:
    text = (
        f"batch {identity.batch}, task {identity.task}: {identity.writer} has written a later "
        "batch already"
    )
    hint = "a writeId belongs to one checkpoint and one query: use another writeId"
    return SourceError(text, code=OUT_OF_DATE, hint=hint)


def _replayed(identity: Identity, error: TwinlogError) -> NonDeterministicReplay:
    text = (
        f"batch {identity.batch}, task {identity.task}: the replay brings other rows than those "
        f"stored before ({error.text})"
    )
    return NonDeterministicReplay(text, hint=DETERMINISTIC)


class _Task:
    """The rows of one task on their way."""

    def __init__(self, settings: SinkSettings, identity: Identity) -> None:
        self._settings, self._identity = settings, identity
        self._producers: dict[str, tuple[Producer, int]] = {}
        self._sections: dict[str, list[Section]] = {}
        self._queues: dict[str, int] = {}
        self._pace = Pace(settings.rate.amount) if settings.rate else None

    def run(self, client: Client, batches: Iterator[Any]) -> Sent:
        """Send everything, wait for the answers, and say what was stored."""
        rows = crc = 0
        try:
            for batch in batches:
                for row in rows_of(batch):
                    body = self._send(client, row, rows)
                    crc = zlib.crc32(body, crc)
                    rows += 1
                    self._wait(body)
            if self._pace is not None:
                time.sleep(self._pace.rest(time.monotonic()))
            for producer, _ in self._producers.values():
                producer.flush()
            duplicates = sum(p.statistics().duplicates for p, _ in self._producers.values())
        finally:
            for producer, _ in self._producers.values():
                producer.close()
        return Sent(self._identity.task, rows, duplicates, crc, self._spans())

    def _wait(self, body: bytes) -> None:
        """Wait as the rate says; a section that is full leaves meanwhile."""
        rate = self._settings.rate
        if self._pace is not None and rate is not None:
            left = self._pace.sent(len(body) if rate.size else 1, time.monotonic())
            if left:
                time.sleep(left)

    def _send(self, client: Client, row: Mapping[str, Any], number: int) -> bytes:
        topic = self._settings.topic or row.get("topic")
        if not topic:
            raise SourceError(f"{self._called(number)} names no topic", code="column")
        producer, queues = self._producers.get(topic) or self._open(client, topic)
        body = row["body"]
        if body is None:
            raise SourceError(f"{self._called(number)} has no body", code="column")
        data = body.encode() if isinstance(body, str) else bytes(body)
        said = message_of(row)
        said["properties"] = {**dict(said.get("properties") or ()), **self._named(number)}
        said["queue"] = queue_for(said.get("order_key"), said.get("queue"), number, queues)
        try:
            section = producer.send(data, **said)
        except UsageError as error:
            if isinstance(error, RecordRefused) or error.code == "property":
                error.args = (f"{self._called(number)}: {error.text}",)
            raise
        place = f"{topic}/{section.queue}"
        held = self._sections.setdefault(place, [])
        if not held or held[-1] is not section:
            held.append(section)
        return data

    def _called(self, number: int) -> str:
        return f"row {number} of task {self._identity.task}"

    def _named(self, number: int) -> dict[str, str]:
        return {SOURCE_PROPERTY: self._identity.row(number)} if self._settings.exactly_once else {}

    def _open(self, client: Client, topic: str) -> tuple[Producer, int]:
        settings = ProducerSettings(
            acknowledge=self._settings.ack,
            batch=SECTION_BYTES,
            linger=LINGER_SECONDS,
            timeout=self._settings.timeout,
        )
        identity = (self._identity.producer, self._identity.epoch)
        opened = (
            Producer(caller_of(client), topic, settings, identity),
            client.topics().get(topic, 1),
        )
        self._producers[topic] = opened
        return opened

    def _spans(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for place, sections in self._sections.items():
            known = [s for s in sections if s.queue_offset >= 0]
            if known:
                last = known[-1]
                found[place] = known[0].queue_offset, last.queue_offset + last.count - 1
        return found


def rows_of(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of an Arrow batch as mappings; times are ms since 1970."""
    names = batch.schema.names
    columns = [
        _in_ms(column) if TIMESTAMP in COLUMNS[name].types else column.to_pylist()
        for name, column in zip(names, batch.columns, strict=True)
    ]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _in_ms(column: Any) -> list[int | None]:
    """Return times in ms since 1970; what is finer is cut off."""
    ms = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    found: list[int | None] = ms.cast(pa.int64()).to_pylist()
    return found


def commit_record(settings: SinkSettings, batch: int, sent: Sequence[Sent]) -> None:
    """Write one record that says that a batch is complete.

    A replay writes the same one, which is stored once; with ``exactlyOnce=false`` its rows may be
    others, and it writes one more.

    Raises:
        NonDeterministicReplay: The rows of the replay are not those of the record that is there.
        SourceError: There is a record of a later batch (code ``producer-epoch``).
        TwinlogError: It may not be stored.
    """
    writer = settings.write_id
    rows = sorted(sent, key=lambda one: one.task)
    fields = [{name: asdict(one)[name] for name in ("task", "rows", "crc")} for one in rows]
    body = json.dumps({"writer": writer, "batch": batch, "tasks": fields}, sort_keys=True).encode()
    identity = Identity(f"{writer}/commit", batch, 0)
    made = ProducerSettings(acknowledge="confirmed", timeout=settings.timeout)
    whole = (identity.producer, identity.epoch) if settings.exactly_once else None
    try:
        with (
            client_of(settings.servers, settings.credentials, settings.timeout) as client,
            Producer(caller_of(client), settings.commit_topic, made, whole) as producer,
        ):
            producer.send(body, key=writer, tag="spark-commit", queue=0)
    except TwinlogError as error:
        if error.code == REUSED:
            text = f"batch {batch}: the replay brings other rows than its record in "
            text += f"{settings.commit_topic} says"
            raise NonDeterministicReplay(text, hint=DETERMINISTIC) from None
        if error.code == OUT_OF_DATE:
            raise _outdated(identity) from None
        raise

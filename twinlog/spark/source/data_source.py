"""Spark's data source ``twinlog``: the classes that Spark calls.

Everything is decided elsewhere; this hands options in and batches out. It imports nothing heavy:
Spark imports it to look for sources, in every session, whether it is used or not.

Classes of this module are pickled by reference, so executors need the package.

Sources: PySpark 4.3 (``pyspark.sql.datasource``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twinlog.spark.engine.worker_memory import settle

if TYPE_CHECKING:
    from twinlog.spark.source.queries import AnyBatch, AnyStream

    Base: Any = object
    BaseReader: Any = object
    BaseStream: Any = object
    BasePartition: Any = object
    AvailableNow: Any = object
    ReadAllAvailable: Any = None
    ReadMaxBytes: Any = None
    ReadMaxRows: Any = None
else:
    from pyspark.sql.datasource import DataSource as Base
    from pyspark.sql.datasource import DataSourceReader as BaseReader
    from pyspark.sql.datasource import DataSourceStreamReader as BaseStream
    from pyspark.sql.datasource import InputPartition as BasePartition
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
    )
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow


class Source(Base):  # type: ignore[misc]
    """``format("twinlog")``."""

    options: Mapping[str, str]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "twinlog"

    def schema(self) -> str:
        """Return the schema that the options ask for."""
        from twinlog.spark.plan.columns import ddl
        from twinlog.spark.plan.option_parser import schema_options
        from twinlog.spark.source.batch import columns_of

        return ddl(columns_of(schema_options(self.options)))

    def reader(self, schema: Any) -> BatchReader:
        """Return the reader of a batch query.

        A reader that defines ``pushFilters`` is refused while Spark's setting for it is off, and
        the source is not told whether it is. But only a process that pushes filters asks for the
        reader in order to: so it is known by its module. Should that be named differently one day,
        filters are not pushed, which is slower and never wrong.

        Spark keeps the plan that the last filters left, and uses it for every query over the same
        frame, whatever that asks for; so who has not said that there is one gets the whole plan.
        """
        caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        name = f"{caller.f_globals.get('__name__', '')} {caller.f_code.co_filename}"
        pushing = "data_source_pushdown_filters" in name
        kind = PushingReader if pushing and self._one_query() else BatchReader
        return kind(self.options, nullable_of(schema))

    def _one_query(self) -> bool:
        from twinlog.spark.plan.option_parser import parse

        return parse(self.options, use="batch").push_filters

    def streamReader(self, schema: Any) -> StreamReader:
        """Return the reader of a streaming query."""
        return StreamReader(self.options, nullable_of(schema))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Return the writer of ``df.write``; rows are added, nothing is ever overwritten."""
        from twinlog.spark.sink.writer import BatchWriter, refuse_overwrite

        refuse_overwrite(overwrite=overwrite)
        return BatchWriter(self.options, fields_of(schema))

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """Return the writer of ``df.writeStream``."""
        from twinlog.spark.sink.writer import StreamWriter, refuse_overwrite

        refuse_overwrite(overwrite=overwrite)
        return StreamWriter(self.options, fields_of(schema))


class Partition(BasePartition):  # type: ignore[misc]
    """What one Spark task reads."""

    def __init__(self, task: Any) -> None:
        self.task = task


class BatchReader(BaseReader):  # type: ignore[misc]
    """Reader of a batch query.

    Args:
        given: The options.
        fields: (name, type) of the schema.
    """

    def __init__(self, given: Mapping[str, str], fields: Sequence[tuple[str, str]]) -> None:
        self._given = dict(given)
        self._fields = tuple(fields)
        self._filters: tuple[Any, ...] = ()

    def _query(self) -> AnyBatch:
        from twinlog.spark.plan.columns import of_schema
        from twinlog.spark.plan.option_parser import parse
        from twinlog.spark.source.queries import batch_query

        kafka = parse(self._given, use="batch").kafka_columns
        columns = of_schema(self._fields, kafka=kafka)
        return batch_query(self._given, columns, self._filters)

    def partitions(self) -> list[Partition]:
        """Pin the view and plan the query, on the driver."""
        found = [Partition(task) for task in self._query().tasks(round(time.time() * 1000))]
        settle()
        return found

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield the batches of one task, on an executor."""
        from twinlog.spark.source.queries import read_any

        settle()
        if isinstance(partition, Partition):  # Spark hands in an empty one when there is nothing
            yield from read_any(partition.task)


class PushingReader(BatchReader):
    """Reader of a batch query whose filters narrow the plan; Spark checks them again."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        """Take the filters, and leave all of them to Spark as well."""
        self._filters = tuple(filters)
        yield from filters


class StreamReader(BaseStream, AvailableNow):  # type: ignore[misc]
    """Reader of a streaming query; one lives on the driver as long as the query.

    Spark pickles it for the tasks as well; what it learned since is not with them.

    Args:
        given: The options.
        fields: (name, type) of the schema.
    """

    def __init__(self, given: Mapping[str, str], fields: Sequence[tuple[str, str]]) -> None:
        self._given = dict(given)
        self._fields = tuple(fields)
        self._made: AnyStream | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the driver's state behind."""
        return {"_given": self._given, "_fields": self._fields, "_made": None}

    @property
    def _query(self) -> AnyStream:
        if self._made is None:
            from twinlog.spark.plan.columns import of_schema
            from twinlog.spark.plan.option_parser import parse
            from twinlog.spark.source.queries import stream_query

            kafka = parse(self._given, use="stream").kafka_columns
            self._made = stream_query(self._given, of_schema(self._fields, kafka=kafka))
        return self._made

    def initialOffset(self) -> dict[str, Any]:
        """Return where the query begins."""
        return self._query.stream.initial()

    def getDefaultReadLimit(self) -> Any:
        """Return the limit that the options set."""
        options = self._query.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """Return where the next batch ends, within Spark's limit."""
        from twinlog.spark.plan.stream import Limit

        rows, size = getattr(limit, "max_rows", None), getattr(limit, "max_bytes", None)
        return self._query.stream.latest(start, Limit(rows, size))

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of everything there is: the progress shows it beside the batch's."""
        return self._query.stream.newest()

    def prepareForTriggerAvailableNow(self) -> None:
        """Pin the end of an AvailableNow query."""
        self._query.stream.available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Partition]:
        """Plan a batch; a function of its offsets."""
        return [Partition(task) for task in self._query.tasks(start, end)]

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield the batches of one task, on an executor."""
        from twinlog.spark.source.queries import read_any

        settle()
        if isinstance(partition, Partition):
            yield from read_any(partition.task)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint is Spark's."""

    def stop(self) -> None:
        """Let go of connections."""
        if self._made is not None:
            self._made.close()
            self._made = None


def fields_of(schema: Any) -> list[tuple[str, str]]:
    """Return (name, type) of the fields of a Spark schema."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def nullable_of(schema: Any) -> list[tuple[str, str]]:
    """Return (name, type) of the fields of a schema to read with.

    Raises:
        SourceError: A field is NOT NULL: Spark compares that with what it is handed, too.
    """
    for field in schema.fields:
        if not field.nullable:
            from twinlog.spark.errors import SourceError

            text = f"column {field.name} is NOT NULL in the schema"
            hint = "leave NOT NULL out, and filter after loading"
            raise SourceError(text, code="column", hint=hint)
    return fields_of(schema)

"""Spark's data source ``twinlog``: the classes that Spark calls.

Everything is decided elsewhere; this hands options in and batches out. It imports nothing heavy:
Spark imports it to look for sources, in every session, whether it is used or not.

Classes of this module are pickled by reference, so executors need the package.

Sources: PySpark 4.3 (``pyspark.sql.datasource``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinlog.spark.batch import DirectoryQuery

    Base: Any = object
    BaseReader: Any = object
    BasePartition: Any = object
else:
    from pyspark.sql.datasource import DataSource as Base
    from pyspark.sql.datasource import DataSourceReader as BaseReader
    from pyspark.sql.datasource import InputPartition as BasePartition


class Source(Base):  # type: ignore[misc]
    """``format("twinlog")``."""

    options: Mapping[str, str]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "twinlog"

    def schema(self) -> str:
        """Return the schema that the options ask for."""
        from twinlog.spark.batch import columns_of
        from twinlog.spark.columns import ddl
        from twinlog.spark.options import schema_options

        return ddl(columns_of(schema_options(self.options)))

    def reader(self, schema: Any) -> BatchReader:
        """Return the reader of a batch query."""
        return BatchReader(self.options, fields_of(schema))


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

    def _query(self) -> DirectoryQuery:
        from twinlog.spark.batch import DirectoryQuery
        from twinlog.spark.columns import of_schema
        from twinlog.spark.options import parse

        options = parse(self._given, use="batch")
        return DirectoryQuery(options, of_schema(self._fields, kafka=options.kafka_columns))

    def partitions(self) -> list[Partition]:
        """Pin the view and plan the query, on the driver."""
        return [Partition(task) for task in self._query().tasks(round(time.time() * 1000))]

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield the batches of one task, on an executor."""
        from twinlog.spark.batch import read_task

        if isinstance(partition, Partition):  # Spark hands in an empty one when there is nothing
            yield from read_task(partition.task)


def fields_of(schema: Any) -> list[tuple[str, str]]:
    """Return (name, type) of the fields of a Spark schema."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]

"""The session that a job runs in: the one there is, or a local one started for it.

Spark's objects are seen here through protocols that name what is used of them.

Not here: Java and the settings of a local session (`twinlog.spark.sessions`).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast

from twinlog.spark.engine.engine import SparkContext
from twinlog.spark.sessions import start

QUIET: Mapping[str, str] = {
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
}
"""Of sessions that a command starts for itself: stderr is for its own words."""

Row = tuple[object, ...]
"""Spark's row is a tuple with names."""


class DataFrame(Protocol):
    """What is used of Spark's DataFrame."""

    columns: list[str]
    dtypes: list[tuple[str, str]]

    def toDF(self, *cols: str) -> DataFrame:
        """See Spark."""
        ...

    def selectExpr(self, *expr: str) -> DataFrame:
        """See Spark."""
        ...

    def collect(self) -> list[Row]:
        """See Spark."""
        ...

    def limit(self, num: int) -> DataFrame:
        """See Spark."""
        ...

    def createOrReplaceTempView(self, name: str) -> None:
        """See Spark."""
        ...


class Reader(Protocol):
    """What is used of Spark's DataFrameReader."""

    def format(self, source: str) -> Reader:
        """See Spark."""
        ...

    def option(self, key: str, value: object) -> Reader:
        """See Spark."""
        ...

    def schema(self, schema: str) -> Reader:
        """See Spark."""
        ...

    def load(self) -> DataFrame:
        """See Spark."""
        ...


class Sources(Protocol):
    """What is used of Spark's registration of sources."""

    def register(self, dataSource: type[object]) -> None:
        """See Spark."""
        ...


class SparkSession(Protocol):
    """What is used of Spark's session."""

    sparkContext: SparkContext
    read: Reader
    dataSource: Sources

    def sql(self, sqlQuery: str, args: Mapping[str, object] | None = None) -> DataFrame:
        """See Spark."""
        ...

    def createDataFrame(self, data: object, schema: object) -> DataFrame:
        """See Spark."""
        ...

    def stop(self) -> None:
        """See Spark."""
        ...


def session(master: str = "") -> SparkSession:
    """Return the active session (``spark-submit``, a notebook), else start one.

    Args:
        master: ``spark://host:port``, ``local[4]``; empty: the active one, else ``local[*]``.

    Raises:
        SourceError: Spark is not installed (``no-pyspark``), or no Java for it (``no-java``).
    """
    return running(master) or cast("SparkSession", start(master or "local[*]", QUIET))


@contextmanager
def errors_into(path: Path) -> Generator[None]:
    """Let processes that start meanwhile write what they say on stderr into a file.

    So does this process itself while it lasts, below Python: Spark's Java, and the Python workers
    that it starts, keep the file for as long as they live.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, 2)
        os.close(fd)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def running(master: str = "") -> SparkSession | None:
    """Return the session that already runs, which its starter also stops; None: start one."""
    if importlib.util.find_spec("pyspark") is None or master:
        return None
    known = importlib.import_module("pyspark.sql").SparkSession
    if submitted(os.environ):
        return cast("SparkSession", known.builder.getOrCreate())
    return cast("SparkSession | None", known.getActiveSession())


def submitted(environment: Mapping[str, str]) -> bool:
    """Whether this process was started by ``spark-submit``, which has decided everything.

    >>> submitted({"PYSPARK_GATEWAY_PORT": "4711"}), submitted({})
    (True, False)
    """
    return "PYSPARK_GATEWAY_PORT" in environment

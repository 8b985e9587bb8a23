"""One run of a Spark job from the command line: a session, progress, a report, an exit code.

    with Run(context, master, report) as run:
        return run.finish(job.run(run.engine, settings))

A session that was started for the command is stopped with it; one that was there before stays. The
output of a Spark that the command started goes into a file, which an error of Spark names; with
``-v`` it goes to stderr. An error in Spark is reported as the twinlog error that caused it.

`TWINLOG_SPARK_ENGINE=plain` runs the same job in this process
without Spark: for small stores and for machines without Java.

Not here: what the jobs do (``twinlog.spark.jobs``).
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cli.answer import Answer, Cell, Table, Time, columns, dump
from cli.config_file import client_endpoints
from cli.context import Context
from cli.failures import Exit, Failure
from cli.log.directory import require_store
from twinlog.errors import TwinlogError, UsageError
from twinlog.units import format_duration

if TYPE_CHECKING:
    from twinlog.spark.engine.engine import Engine, Watch
    from twinlog.spark.engine.report import Report, Value
    from twinlog.spark.engine.session import SparkSession
    from twinlog.spark.jobs.reports.tables import ReportSource

ENGINE_VARIABLE = "TWINLOG_SPARK_ENGINE"
"""``spark`` (the default) or ``plain``."""

SECONDS_UNTOLD = 10.0
"""A job that is done by then need not say how long it takes."""


class Run:
    """A session for one command; see the module.

    Args:
        context: Of the command.
        master: Spark's address; empty: the active session, else a local one.
        report: File for the report as JSON.
        servers: Addresses of the clusters of the job; empty ones count for nothing.
    """

    def __init__(self, context: Context, master: str, report: Path | None, *servers: str) -> None:
        self._context = context
        self._master = master
        self._report = report
        self._session: SparkSession | None = None
        self._own = False
        self._watch: Watch | None = None
        self._log: Path | None = None
        self._silenced = logging.root.manager.disable
        self._pace = Pace()
        self._lent = ExitStack()
        self._shown = variables_of(context, *servers)

    def __enter__(self) -> Self:
        """Return the run; nothing is started before `engine` or `session` is asked for.

        Until it ends, this process and those that it starts have the variables by which clients
        find the files for TLS and their login (`variables_of`).

        Raises:
            Failure: The report could not be written at the end (exit 64 or 66).
        """
        if self._report is not None and not self._report.absolute().parent.is_dir():
            text = f"there is no directory {self._report.parent} for the report"
            raise Failure(Exit.MISSING, text)
        if self._report is not None and self._report.is_dir():
            raise Failure(Exit.USAGE, f"the report {self._report} is a directory, not a file")
        for name, value in self._shown.items():
            self._lent.callback(_set, name, os.environ.get(name))
            _set(name, value)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop a session of our own; say what an error of Spark means."""
        self._lent.close()
        self._unwatched()
        if self._session is not None and self._own:
            self._session.stop()
        logging.disable(self._silenced)
        if error is None or self._plainly_ours(error):
            self._forget_log()
            return
        from twinlog.spark.engine.spark_errors import meant

        found = meant(error)
        if found is not None and not self._plainly_ours(found) and self._log is not None:
            found.hint = f"what Spark itself said is in {self._log}"
        if found is not None:
            if self._plainly_ours(found):
                self._forget_log()
            raise found from None

    @staticmethod
    def _plainly_ours(error: BaseException) -> bool:
        """Whether an error says by itself what happened, without Spark's own words."""
        from twinlog.spark.engine.engine import TaskError

        known = isinstance(error, (Failure, TwinlogError, KeyboardInterrupt, SystemExit))
        return known and not isinstance(error, TaskError)

    def _forget_log(self) -> None:
        if self._log is not None:
            self._log.unlink(missing_ok=True)

    @property
    def plain(self) -> bool:
        """Whether the job runs without Spark."""
        return self._context.environment.get(ENGINE_VARIABLE, "spark") == "plain"

    @property
    def session(self) -> SparkSession:
        """The Spark session.

        Raises:
            Failure: Spark or Java is not installed (exit 78).
        """
        if self.plain:
            text = f"this needs Spark, and {ENGINE_VARIABLE} is plain"
            raise Failure(Exit.USAGE, text)
        if self._session is None:
            from twinlog.spark.engine.session import running, session

            self._session = running(self._master)
            self._own = self._session is None
            if self._session is None:
                self._session = self._started(session)
        if self._watch is None:
            from twinlog.spark.engine.engine import Watch

            self._watch = Watch(self._session.sparkContext, self._progress)
        return self._session

    def _started(self, start: Callable[[str], SparkSession]) -> SparkSession:
        """Start Spark; its own words, and those of its Python side, go where the module says."""
        from twinlog.spark.engine.session import errors_into

        self._context.printer.status(f"starting Spark ({self._master or 'local'})")
        with ExitStack() as stack:
            if not self._context.options.verbose:
                logging.disable(logging.CRITICAL)
                handle, name = tempfile.mkstemp(prefix="twinlog-spark-", suffix=".log")
                os.close(handle)
                self._log = Path(name)
                stack.enter_context(errors_into(self._log))
            try:
                return start(self._master)
            except UsageError as error:
                if error.code not in ("no-pyspark", "no-java"):
                    raise
                hints = (error.hint,) if error.hint else ()
                raise Failure(Exit.CONFIG, error.text, hints=hints) from None

    @property
    def session_or_none(self) -> SparkSession | None:
        """The Spark session; None when the job runs without Spark."""
        return None if self.plain else self.session

    @property
    def engine(self) -> Engine:
        """What spreads the work."""
        from twinlog.spark.engine.engine import PlainEngine, SparkEngine

        return PlainEngine() if self.plain else SparkEngine(self.session.sparkContext)

    def _progress(self, done: int, tasks: int) -> None:
        self._context.printer.status(self._pace.words(done, tasks, time.monotonic()))

    def _unwatched(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def finish(self, found: Report) -> int:
        """Write a report to its file, print it, and return the exit code of its verdict."""
        self._unwatched()
        shown = answer(found)
        if self._report is not None:
            aside = self._report.with_name(f".{self._report.name}.{os.getpid()}")
            try:
                aside.write_text(dump(shown.document()) + "\n", encoding="utf-8")
                aside.replace(self._report)
            finally:
                aside.unlink(missing_ok=True)
        self._context.printer.answer(shown)
        return exit_of(found)


class Pace:
    """How long the tasks at work will take, told from how long those that are done took; pure."""

    def __init__(self) -> None:
        self._tasks = self._done = 0
        self._began = 0.0

    def words(self, done: int, tasks: int, now: float) -> str:
        """Return the line for people; how long it takes is said after ten seconds.

        >>> pace = Pace()
        >>> pace.words(0, 8, 100.0), pace.words(2, 8, 112.0)
        ('0 of 8 tasks done', '2 of 8 tasks done, about 36 s left')
        """
        if tasks != self._tasks or done < self._done:
            self._tasks, self._began = tasks, now
        self._done, spent = done, now - self._began
        told = f"{done} of {tasks} tasks done"
        if done and spent >= SECONDS_UNTOLD:
            told += f", about {format_duration(round(spent / done * (tasks - done)))} left"
        return told


def store_at(path: Path) -> Path:
    """Return the absolute path of a store.

    Raises:
        Failure: It is not a store (exit 66).
    """
    require_store(path)
    return path.resolve()


def archive_at(path: Path) -> Path:
    """Return the absolute path of an archive.

    Raises:
        Failure: It is not an archive (exit 66).
    """
    from twinlog.spark.archive.archive_dir import META

    if (path / META).is_dir():
        return path.resolve()
    text = f"there is no directory {path}"
    if path.is_dir():
        text = f"{path} is no archive: it has no directory {META}"
    hints = ("name the directory that twinlog spark archive wrote to",)
    raise Failure(Exit.MISSING, text, hints=hints)


def origin_of(
    path: Path | None, servers: str, topic: str = "", archive: Path | None = None
) -> ReportSource:
    """Return where a report reads from; an archive is read alone, or before the live store.

    Raises:
        Failure: Nothing is named, or a directory and a cluster (exit 64), or there is no store or
            archive (exit 66).
    """
    from twinlog.spark.jobs.reports.tables import ReportSource

    if archive is None:
        one_origin(path, servers)
        return ReportSource(store_at(path) if path is not None else None, servers, topic)
    if path is not None and servers:
        text = "an archive belongs to a directory or a cluster, and both are named"
        raise Failure(Exit.USAGE, text, hints=("leave out --path or --servers",))
    live = store_at(path) if path is not None else None
    return ReportSource(live, servers, topic, archive=archive_at(archive))


def source_of(
    path: Path | None, from_servers: str, archive: Path | None, job: str = "a replay"
) -> Path | None:
    """Return the store that is read, if it is one; refuse what does not go together."""
    if (path and from_servers) or not (path or from_servers or archive):
        text = f"{job} reads a directory or a cluster"
        hints = ("name one: --path STORE or --from-servers n1:7410; or --archive DIRECTORY",)
        raise Failure(Exit.USAGE, text, hints=hints)
    if archive is not None:
        archive_at(archive)
    return store_at(path) if path else None


def one_origin(path: Path | None, servers: str) -> None:
    """Refuse a call that names neither a directory nor a cluster, or both.

    Raises:
        Failure: Exit 64.
    """
    if (path is None) == (not servers):
        text = "this needs a directory or a cluster, one of them"
        raise Failure(Exit.USAGE, text, hints=("name it: --path data/n1, or --servers HOST:PORT",))


def variables_of(context: Context, *servers: str) -> dict[str, str]:
    """Return the variables by which the clients of a job find files for TLS, and their login.

    Those of the command's options; and those of the cluster file, unless an address is not in it:
    then another cluster is meant. A job that reads one cluster and writes another shows both the
    same.

    Args:
        context: Of the command.
        servers: Addresses of the clusters of the job; empty ones count for nothing.

    Raises:
        UsageError: A user without a password, or something that is no address.
    """
    named = {address for text in servers if text for address in addresses_of(text)}
    if not named:
        return {}
    if not context.options.endpoints and context.config_path() is not None:
        try:
            known: set[str] = set(client_endpoints(context.config()))
        except Failure:
            known = set()  # the file of a cluster that does not run, or no file of one
        if named - known:
            context = replace(context, options=replace(context.options, endpoints=tuple(named)))
    shown = context.tls()
    if shown is None:
        return {}
    login = shown.login
    found = {
        "TWINLOG_TLS_CA": shown.authority,
        "TWINLOG_TLS_CERT": shown.certificate,
        "TWINLOG_TLS_KEY": shown.key,
        "TWINLOG_USER": login.user if login else None,
        "TWINLOG_PASSWORD": login.password if login else None,
    }
    return {name: value for name, value in found.items() if value}


def _set(name: str, value: str | None) -> None:
    """Set a variable of this process; None: take it away."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def addresses_of(servers: str) -> tuple[str, ...]:
    """Return the addresses of a cluster's nodes, each with its port.

    Raises:
        UsageError: One is not an address.
    """
    from twinlog.session.routing import parse_endpoints

    return tuple(map(str, parse_endpoints(servers)))


def exit_of(found: Report) -> Exit:
    """Return the exit code for a report's verdict."""
    from twinlog.spark.engine.report import Verdict

    match found.verdict:
        case Verdict.FINE:
            return Exit.OK
        case Verdict.NO:
            return Exit.NO
        case Verdict.UNDECIDED:
            return Exit.UNDECIDED
        case Verdict.DAMAGED:
            return Exit.DATA


def answer(found: Report) -> Answer:
    """Return a report as an answer of the command line."""
    tables = [
        Table(columns(rows.headers), [cells(rows.headers, row) for row in rows.rows], rows.title)
        for rows in found.tables.values()
        if rows.rows
    ]
    items: list[Mapping[str, object]] = []
    for rows in found.tables.values():
        items += rows.items()
    names = [str(row[0]) for rows in found.tables.values() for row in rows.rows]
    return Answer(
        kind=found.kind,
        fields=found.document(),
        head=found.head,
        tables=tables,
        items=items,
        names=names,
    )


def cells(headers: str, row: Sequence[Value]) -> tuple[Cell, ...]:
    """Return a row for people: what a header ending in ``-MS`` holds is a moment.

    >>> cells("TOPIC STORED-MS>", ("t", 1_700_000_000_123))
    ('t', Time(ms=1700000000123))
    """
    found: list[Cell] = []
    for header, value in zip(headers.split(), row, strict=True):
        moment = header.strip("+>").endswith("-MS") and isinstance(value, int)
        found.append(Time(value) if moment and isinstance(value, int) else value)
    return tuple(found)

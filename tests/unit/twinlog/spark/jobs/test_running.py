"""Running jobs: engines, errors of tasks, Java, and the commands without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import cast

import pytest

from cli.app import main, report
from cli.context import Context
from cli.options import Globals
from cli.render import Printer
from cli.spark.run import Run
from tests.stores.golden import unpack
from twinlog.errors import CorruptionError, TwinlogError
from twinlog.spark.engine import engine as engines
from twinlog.spark.engine.engine import (
    Rdd,
    SparkEngine,
    StatusTracker,
    TaskError,
    Watch,
    last_words,
)
from twinlog.spark.errors import SourceUnavailable

PLAIN = {"TWINLOG_SPARK_ENGINE": "plain"}


def test_verify_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON on stdout, the same in the report file, exit 0."""
    root, report = unpack("01-basic", tmp_path), tmp_path / "report.json"
    words = ["spark", "verify", "--path", str(root), "--report", str(report), "-o", "json"]
    assert main(words, PLAIN) == 0
    out = capsys.readouterr().out
    assert json.loads(out) == json.loads(report.read_text())
    assert json.loads(out)["state"] == "sound"


def test_damage_is_65(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage found has the exit code of damage; the finding stands in the table."""
    root = unpack("03c-bad-body", tmp_path)
    assert main(["spark", "verify", "--path", str(root)], PLAIN) == 65
    assert "torn tail" in capsys.readouterr().out


def test_a_difference_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked and the answer is no."""
    one, two = unpack("01-basic", tmp_path / "a"), unpack("02-rollover", tmp_path / "b")
    assert main(["spark", "compare", "--path", str(one), "--path", str(two)], PLAIN) == 1
    assert "first divergent record" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["verify", "--path", "{}/none"], 66, "there is no directory"),
        (["verify", "--path", "{}"], 66, "is not a store"),
        (["verify", "--path", "{}/store", "--level", "ful"], 64, 'the nearest is "full"'),
        (["rebuild", "--path", "{}/store", "--what", "indx"], 64, 'the nearest is "index"'),
        (["compare", "--path", "{}/store"], 64, "two directories"),
        (["verify", "--path", "{}/store", "--split-bytes", "1 MBB"], 64, "MBB"),
        (["verify", "--path", "{}/store", "--split-bytes", "0"], 64, "at least 1 KiB, not 0"),
        (
            ["compare", "--path", "{}/store", "--path", "{}/store", "--split-bytes", "0"],
            64,
            "1 KiB",
        ),
        (
            ["stats", "hot-keys", "--path", "{}/store", "--top", "-1"],
            64,
            "at least one row, not -1",
        ),
        (["stats", "rates", "--servers", "n1:1"], 64, "only directories and archives are read"),
        (["stats", "rates", "--path", "{}/store", "--topic", "u"], 66, "there is no topic u"),
        (["trace", "k", "--path", "{}/store", "--topic", "u"], 66, "there is no topic u"),
        (["trace", " ", "--path", "{}/store"], 64, "this one is empty"),
        (
            ["restore", "--archive", "{}", "--check", "--range", "5:3"],
            64,
            "no range of log offsets",
        ),
        (
            ["restore", "--archive", "{}", "--check", "--range", "end:"],
            64,
            "no range of log offset",
        ),
        (["verify", "--path", "{}/store", "--report", "{}"], 64, "is a directory, not a file"),
        (["verify", "--pth={}"], 64, 'the nearest is "--path"'),
        (["lag", "--servers", "127.0.0.1:1"], 69, "cannot be reached"),
    ],
)
def test_wrong_calls_say_what_to_do(
    words: list[str], code: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line of what, a hint, the exit code of usage or of what is missing."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    said = ["spark", *(word.format(tmp_path) for word in words)]
    assert main(said, PLAIN) == code
    assert text in capsys.readouterr().err


def test_the_last_words_of_a_task() -> None:
    """The text of a failed job holds a Python traceback; its last line is what is told."""
    text = (
        "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job"
        " aborted\nTraceback (most recent call last):\n  File x, line 3\n"
        "twinlog.errors.CorruptionError: at 4096: the size is wrong\n\n\tat org.apache.spark.Y\n"
    )
    assert last_words(text) == "at 4096: the size is wrong"


def spark_error(name: str, text: str) -> Exception:
    """An exception as Spark's Python side raises it."""
    kind = type(name, (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})
    return cast("Exception", kind(text))


@pytest.mark.parametrize(
    ("name", "text", "code", "told"),
    [
        (
            "AnalysisException",
            "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n  File x\n"
            "twinlog.spark.errors.SourceUnavailable: twinlog: no node of n1:1 answered\n"
            " SQLSTATE: 38000)",
            69,
            ["error: no node of n1:1 answered"],
        ),
        (
            "StreamingQueryException",
            "[X] y\ntwinlog.spark.errors.DataLossError: twinlog: rows 1-3 are gone\n\tat z\n",
            65,
            ["error: rows 1-3 are gone"],
        ),
        (
            "ArithmeticException",
            "[DIVIDE_BY_ZERO] Division by zero. Use try_divide. SQLSTATE: 22012\n== SQL ==",
            64,
            ["error: division by zero. Use try_divide", "  hint: the query is Spark SQL"],
        ),
        ("Py4JJavaError", "An error occurred\nOSError: no space\n\tat o", 69, ["error: no space"]),
    ],
)
def test_an_error_of_spark_is_told_as_what_it_means(
    name: str, text: str, code: int, told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own words are a traceback or a plan, and no bug of ours; other errors pass."""
    context = Context(options=Globals(), printer=Printer(Globals()), environment={})
    with pytest.raises(TwinlogError) as found, Run(context, "", None):
        raise spark_error(name, text)
    assert report(found.value, context.printer) == code
    assert capsys.readouterr().err.splitlines() == told
    with pytest.raises(ZeroDivisionError), Run(context, "", None):
        raise ZeroDivisionError


def test_progress_is_told_while_there_are_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages together; an error under the watch ends it without a word."""
    monkeypatch.setattr(engines, "PROGRESS_SECONDS", 0.001)
    told, enough = list[tuple[int, int]](), Event()

    class Tracker:
        def getActiveStageIds(self) -> list[int]:
            if len(told) > 2:
                enough.set()
                raise OSError
            return [1, 2, 3]

        def getStageInfo(self, stageId: int) -> SimpleNamespace | None:
            gone = stageId == 3
            return None if gone else SimpleNamespace(numTasks=4, numCompletedTasks=stageId)

    class Watched(FakeContext):
        def statusTracker(self) -> StatusTracker:
            return cast("StatusTracker", Tracker())

    watch = Watch(Watched(), lambda done, tasks: told.append((done, tasks)))
    assert enough.wait(60)
    watch.stop()
    assert told == [(3, 8)] * 3


def test_a_report_that_could_not_be_written_is_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after an hour of work."""
    words = ["spark", "verify", "--path", str(unpack("01-basic", tmp_path))]
    assert main([*words, "--report", f"{tmp_path}/none/report.json"], PLAIN) == 66
    shown = capsys.readouterr()
    assert "for the report" in shown.err and not shown.out


class FakeContext:
    """Runs tasks here; what goes in and out is pickled, as between processes, and an error of a
    task is only its text."""

    defaultParallelism = 1

    def __init__(self) -> None:
        self._bundles: list[object] = []
        self._work: Callable[[Iterator[object]], Iterable[object]] = list

    def parallelize(self, c: Iterable[object], numSlices: int) -> Rdd:
        """Keep the bundles."""
        self._bundles = list(c)
        return self

    def mapPartitions(self, f: Callable[[Iterator[object]], Iterable[object]]) -> Rdd:
        """Keep the function."""
        self._work = f
        return self

    def collect(self) -> list[object]:
        """Run everything."""
        try:
            done = [pickle.dumps(list(self._work(iter([one])))) for one in self._bundles]
        except Exception as error:
            text = f"Job aborted\nTraceback\n{type(error).__name__}: {error}"
            raise RuntimeError(text) from None
        return [result for one in done for result in pickle.loads(one)]

    def statusTracker(self) -> StatusTracker:
        """Nobody asks."""
        raise AssertionError

    def cancelAllJobs(self) -> None:
        """Nobody asks."""
        raise AssertionError


def refuse(item: int) -> int:
    """Work of a task."""
    match item:
        case 5:
            raise SourceUnavailable("no node answers", hint="look", code="away", node="n1")
        case 7:
            raise CorruptionError("at 4096: the size is wrong", offset=4096)
        case 9:
            raise OSError("no space")
    return -item


def test_a_worker_is_settled_behind_the_items_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before them little is imported: what they import would be looked through after each task."""
    done: list[object] = []
    monkeypatch.setattr(engines, "settle", lambda: done.append("settled"))
    assert list(engines._bundle(lambda item: done.append(item), iter([[(0, "a"), (1, "b")]])))
    assert done == ["a", "b", "settled"]


def test_an_error_of_a_task_is_raised_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its class, text, code and facts, the first in the items' order; other errors are a text."""
    monkeypatch.setattr(engines, "settle", lambda: None)  # tasks run in this process
    engine = SparkEngine(FakeContext())
    assert engine.spread(refuse, range(5)) == [0, -1, -2, -3, -4]
    with pytest.raises(TwinlogError) as away:
        engine.spread(refuse, [8, 7, 5, 1, 2])
    assert type(away.value) is CorruptionError and away.value.offset == 4096
    with pytest.raises(TwinlogError) as away:
        engine.spread(refuse, [*range(5), 6, 5, 7])
    assert type(away.value) is SourceUnavailable and away.value.retryable
    told = (away.value.text, away.value.code, away.value.hint, dict(away.value.facts))
    assert told == ("no node answers", "away", "look", {"node": "n1"})
    with pytest.raises(TaskError, match="no space"):
        engine.spread(refuse, [9, 10])

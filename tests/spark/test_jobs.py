"""Jobs in Spark's tasks: the reports of the plain engine, and errors of tasks in one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cli.app import main
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.archive.restore import RestoreSettings, restore
from twinlog.spark.engine.engine import PlainEngine, SparkEngine, TaskError
from twinlog.spark.jobs.rebuild import job
from twinlog.spark.jobs.verify import compare, directory


def test_jobs_in_tasks_say_what_the_plain_engine_says(
    spark: Any, golden: Path, tmp_path: Path
) -> None:
    """verify, rebuild, compare, archive and restore, cut into many ranges."""
    engine, plain = SparkEngine(spark.sparkContext), PlainEngine()
    checked = directory.VerifySettings(golden, split_bytes=20_000)
    assert directory.run(engine, checked) == directory.run(plain, checked)
    again = job.RebuildSettings(golden, check=True, split_bytes=20_000)
    assert job.run(engine, again) == job.run(plain, again)
    archive(engine, ArchiveSettings(golden, tmp_path / "archive"))
    restore(engine, RestoreSettings(tmp_path / "archive", tmp_path / "back"))
    pair = compare.CompareSettings([golden, tmp_path / "back"], 20_000)
    found = compare.run(engine, pair)
    assert found == compare.run(plain, pair)
    assert found.fields["equal"] and int(str(found.tables["sides"].rows[0][3])) > 589_000


def test_a_task_that_dies_is_told_in_one_line(spark: Any) -> None:
    """The last words of the last attempt."""
    engine = SparkEngine(spark.sparkContext)
    assert engine.spread(abs, [1, 2, 3]) == [1, 2, 3]
    assert engine.spread(abs, []) == []
    with pytest.raises(TaskError, match="No such file or directory: '/none'"):
        engine.spread(os.path.getsize, ["/", "/none"])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["sql", "SELECT nope FROM messages"], 64, "`nope` cannot be resolved"),
        (["sql", "SELEC 1"], 64, "syntax error at or near 'SELEC' (line 1, position 0)"),
        (["stats", "sizes", "--topic", "nope"], 66, "error: there is no topic nope"),
        (["replay", "--topic", "nope", "--to-topic", "x", "--dry-run"], 66, "no topic nope"),
    ],
)
def test_what_is_wrong_with_a_query_is_told_in_one_line(
    spark: Any, golden: Path, words: list[str], code: int, said: str, capfd: Any
) -> None:
    """No traceback, no plan, the exit code that goes with it; Spark's exceptions are no bugs."""
    assert spark is not None
    assert main(["spark", *words, "--path", str(golden)], {}) == code
    err = capfd.readouterr().err
    assert said in err and "Traceback" not in err and len(err.splitlines()) <= 3, err

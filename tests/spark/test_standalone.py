"""Jobs on a real cluster: a standalone master and two workers of the installed PySpark.

One cluster for the tests of this file. Drivers are processes of their own, as users start them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.fixtures.processes import Processes
from tests.spark.holding import VARIABLE, Hold
from tests.spark.settings import QUICK_JAVA
from tests.stores.golden import unpack
from twinlog import Client
from twinlog.spark.archive.archive_dir import ArchiveDir, sha256_of
from twinlog.spark.archive.restore import RestoreSettings, restore
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.engine.report import Verdict
from twinlog.spark.sink.settings import SOURCE_PROPERTY

pyspark = pytest.importorskip("pyspark", reason="the extra spark is not installed")

SECONDS = 300.0
ROOT = Path(__file__).parents[2]
HOME = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"


class Standalone:
    """A Spark master and workers as processes of ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []
        self.address = ""
        self.holds = folder / "holds"

    def environment(self) -> Mapping[str, str]:
        """Of every process: this Python, loopback, small heaps."""
        return {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder),
            "SPARK_WORKER_DIR": str(self.folder / "work"),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
            VARIABLE: str(self.holds),
        }

    def spawn(self, name: str, *words: str) -> Path:
        """Start one of Spark's daemons; returns the file of what it says."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            command = [str(HOME / "bin" / "spark-class"), *words]
            self.running.append(
                subprocess.Popen(
                    command, env=dict(self.environment()), stdout=out, stderr=out, cwd=self.folder
                )
            )
        return log

    def start(self) -> None:
        """Start a master and two workers of one core, and wait until they are registered."""
        host = ("--host", "127.0.0.1", "--webui-port", "0", "--port", "0")
        log = self.spawn("master", f"{DEPLOY}.master.Master", *host)
        self.address = self.said(log, r"Starting Spark master at (spark://[\d.:]+)")
        words = (f"{DEPLOY}.worker.Worker", *host, "--cores", "1", "--memory", "2g", self.address)
        for worker in [self.spawn(f"worker{number}", *words) for number in (1, 2)]:
            self.said(worker, r"(Successfully registered) with master")

    def said(self, log: Path, pattern: str) -> str:
        """Wait until a process has said something."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            found = re.search(pattern, log.read_text(errors="replace"))
            if found:
                return found[1]
            time.sleep(0.05)
        raise AssertionError(f"never said: {log.read_text(errors='replace')[-2000:]}")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a driver to its end."""
        return subprocess.run(
            command,
            env=dict(self.environment()),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=2 * SECONDS,
            check=False,
        )

    def close(self) -> None:
        """End what was started, workers first."""
        for process in reversed(self.running):
            process.terminate()
        for process in self.running:
            process.wait(SECONDS)


def above(pid: int, word: str) -> int:
    """The process with a word in its command from which another one descends."""
    table = processes()
    while word not in table[pid][1]:
        pid = table[pid][0]
    return pid


def processes() -> dict[int, tuple[int, str]]:
    """Parent and command of every process there is."""
    found: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it is gone already
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(folder.name)] = int(parent), command
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """The cluster of this file."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("no Java is installed")
    found = Standalone(tmp_path_factory.mktemp("standalone"))
    try:
        found.start()
        yield found
    finally:
        found.close()


def test_a_command_with_master(cluster: Standalone, tmp_path: Path) -> None:
    """Executors of two workers prove the store: the report is the plain engine's."""
    root = unpack("02-rollover", tmp_path)
    words = [sys.executable, "-m", "twinlog", "spark", "verify", "--path", str(root), "-o", "json"]
    words += ["--split-bytes", "20000"]
    plain = subprocess.run(
        words,
        env={**os.environ, "TWINLOG_SPARK_ENGINE": "plain"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    done = cluster.run(*words, "--master", cluster.address)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == json.loads(plain.stdout)
    apps = list((cluster.folder / "work").glob("app-*"))
    assert len(list(apps[0].iterdir())) == 2, "both workers ran executors"


JOBS = """
import os, runpy, sys
from cli.app import main
job, servers, folder, damaged = sys.argv[1:]
for words in (["stats", "skew", "--topic", "orders"], ["archive", "--to", folder + "/archive"]):
    report = f"{folder}/{words[0]}.json"
    code = main(["spark", *words, "--servers", servers, "--report", report], dict(os.environ))
    if code:
        sys.exit(code)
sys.argv[1:] = ["spark", "verify", "--path", damaged, "--report", folder + "/verify.json"]
runpy.run_path(job, run_name="__main__")
"""


def test_executors_ask_nodes(cluster: Standalone, tmp_path: Path) -> None:
    """Executors read a topic, then every sealed segment, from the nodes: no directory of theirs is
    shared. What they archived is the log's bytes, and the nodes take it for that.

    spark-submit runs all of it in one session, which each command leaves as it was; the last is the
    file of ``deploy/`` on a damaged store, and its exit code is the application's.
    """
    damaged = unpack("03c-bad-body", tmp_path / "damaged")
    nodes = Processes(tmp_path, nodes=2, segment_size=1 << 20)
    try:
        nodes.start_all()
        servers = ",".join("{}:{}".format(*nodes.address(name)) for name in ("n1", "n2"))
        with Client(servers) as client:
            client.create_topic("orders", 4)
            with client.producer("orders") as producer:
                for number in range(3000):
                    producer.send(b"%01024d" % number)
        (tmp_path / "jobs.py").write_text(JOBS)
        submit = [str(HOME / "bin" / "spark-submit"), "--master", cluster.address]
        job = ROOT / "deploy" / "spark" / "twinlog_job.py"
        words = [str(tmp_path / "jobs.py"), str(job), servers, str(tmp_path), str(damaged)]
        done = cluster.run(*submit, *words)
        assert done.returncode == 65, done.stderr[-3000:]
        verified = json.loads((tmp_path / "verify.json").read_text())
        assert verified["findings"][0]["likely_cause"] == "torn tail"
        (row,) = json.loads((tmp_path / "stats.json").read_text())["rows"]
        assert (row["topic"], row["messages"]) == ("orders", 3000)
        report = json.loads((tmp_path / "archive.json").read_text())
        assert report["segments_added"] >= 3
        assert [one["state"] for one in report["told"]] == ["told", "told"]
        for segment in ArchiveDir(tmp_path / "archive").newest().segments:
            log = nodes.config.node("n1").data / "commitlog" / f"{segment.base:020d}"
            assert segment.sha256 == sha256_of(log)
        asked = RestoreSettings(tmp_path / "archive", None, check=True)
        assert restore(PlainEngine(), asked).verdict is Verdict.FINE
    finally:
        nodes.close()


COPY = """
import sys
from twinlog.spark.sessions import start
master, store, servers = sys.argv[1:]
settings = {"spark.log.level": "ERROR", "spark.executor.memory": "512m"}
spark = start(master, {**settings, "spark.python.daemon.module": "tests.spark.forking"})
frame = spark.read.format("twinlog").load(store).select("key", "tags", "body")
write = frame.write.format("twinlog").mode("append").option("timeout", "300 s")
write.option("servers", servers).option("topic", "copy").save()
spark.stop()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_an_executor_that_is_killed_in_a_task(cluster: Standalone, tmp_path: Path) -> None:
    """First a Python worker, then a whole executor: tasks run again, each row is stored once.

    Both are killed while the task waits with some of its rows stored (`tests.spark.holding`).
    """
    root = unpack("02-rollover", tmp_path / "store")
    nodes, hold = Processes(tmp_path, nodes=1), Hold(cluster.holds, "copy")
    hold.at(50)
    try:
        nodes.start_all()
        address = "{}:{}".format(*nodes.address("n1"))
        with Client(address) as client:
            client.create_topic("copy", 2)
            words = [sys.executable, "-c", COPY, cluster.address, str(root), address]
            driver = subprocess.Popen(
                words, env=dict(cluster.environment()), stderr=subprocess.PIPE, text=True
            )
            seen: set[int] = set()
            try:
                for count, word in ((2, "tests.spark.forking"), (3, "ExecutorBackend")):
                    nodes.until(
                        lambda count=count: len(hold.waiting()) == count,
                        "a task on each of two cores", seconds=SECONDS,
                    )  # fmt: skip
                    worker = (hold.waiting() - seen).pop()
                    seen |= hold.waiting()
                    os.kill(above(worker, word), signal.SIGKILL)
                assert sum(end for _, end in client.offsets("copy").values()) >= 100
                hold.at(50, batch=1)
                _, said = driver.communicate(timeout=SECONDS)
            finally:
                driver.kill()
                driver.wait()
            assert driver.returncode == 0, said[-3000:]
            names = [m.properties[SOURCE_PROPERTY] for m in client.read("copy")]
        assert len(names) == len(set(names)) == 1400
        assert "ExecutorLostFailure" in said or "Lost executor" in said or "exit" in said
    finally:
        nodes.close()

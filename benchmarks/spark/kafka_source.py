"""Spark's own Kafka source and this one, over the same records, in turn, in one session.

    python benchmarks/spark/kafka_source.py [--records 940032] [--rounds 3] [--connector VERSION]

Makes a store as `spark_source.py` does (1 KiB bodies, two properties, 16 queues), starts one Kafka
broker (KRaft, one node, loopback) in a temporary directory, copies the records into it through
Spark with their keys, queues as partitions and properties as headers, and reads both with the sink
that drops everything: Kafka's columns from both, without and with headers, and all columns of
twinlog's. Sources take turns, so that what else the machine does hits both. Everything is in the
page cache.

Broker and connector are resolved by Maven, by name. The connector must fit the Spark that runs: by
default it is that of the installed PySpark. The broker is ended and its files are removed whatever
happens. Printed: the best round of each source in rows per second, CPU seconds of all processes
(the broker's too) for a million rows, and ours divided by Kafka's.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.spark.source import QUEUES, TOPICS, cpu, make
from twinlog.spark.sessions import local_session

SCALA = "2.13"
BROKER = [("org.apache.kafka", f"kafka_{SCALA}", "4.1.0")]
RESOLVE_SECONDS, START_SECONDS, STOP_SECONDS = 600, 60, 30

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>twinlog.benchmarks</groupId>
<artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>{}</dependencies></project>"""
_DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
{}</dependency>"""
_ALONE = """<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>
</exclusions>"""

_BROKER = """process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.quorum.voters=1@127.0.0.1:{control}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=-1
"""


def connector(version: str) -> list[tuple[str, str, str]]:
    """Return the jars of Spark's Kafka source that PySpark does not bring."""
    return [
        ("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", version),
        ("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA}", version),
        ("org.apache.kafka", "kafka-clients", "3.9.0"),
        ("org.apache.commons", "commons-pool2", "2.12.0"),
    ]


def class_path(folder: Path, jars: Sequence[tuple[str, str, str]], *, alone: bool) -> list[str]:
    """Return the files of jars; ``alone``: without what they depend on."""
    folder.mkdir()
    wanted = "".join(_DEPENDENCY.format(*jar, _ALONE if alone else "") for jar in jars)
    (folder / "pom.xml").write_text(_POM.format(wanted))
    command = ["mvn", "-q", "-B", "dependency:build-classpath", "-DincludeScope=runtime"]
    command.append("-Dmdep.outputFile=class-path.txt")
    subprocess.run(command, cwd=folder, check=True, timeout=RESOLVE_SECONDS)
    return (folder / "class-path.txt").read_text().strip().split(":")


def free_port() -> int:
    """Return a port of the loopback interface that is not in use."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Run one broker and give its address; it is ended at the end."""
    jars = ":".join(class_path(folder / "broker", BROKER, alone=False))
    port, control = free_port(), free_port()
    settings = folder / "server.properties"
    said = {"port": port, "control": control, "data": folder / "data", "partitions": QUEUES}
    settings.write_text(_BROKER.format(**said))
    java = ["java", "-Xmx1g", "-XX:+UseG1GC", "-cp", jars]
    made = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAQACAAAAAAAAAAQ", "-c"]
    subprocess.run(
        [*java, *made, str(settings)], check=True, timeout=START_SECONDS, capture_output=True
    )
    with (folder / "broker.log").open("wb") as log:
        running = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
    try:
        listening(running, port, folder / "broker.log")
        yield f"127.0.0.1:{port}"
    finally:
        running.terminate()
        try:
            running.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def listening(running: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the broker takes connections."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and running.poll() is None:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"the broker did not start: {log.read_text(errors='replace')[-2000:]}")


def copy(spark: Any, root: Path, servers: str) -> None:
    """Write the records of a store into Kafka."""
    headers = "transform(map_entries(properties), "
    headers += "e -> struct(e.key AS key, CAST(e.value AS BINARY) AS value)) AS headers"
    rows = spark.read.format("twinlog").load(str(root))
    rows = rows.selectExpr("topic", "queue_id AS partition", "key", "body AS value", headers)
    kafka = rows.write.format("kafka").option("kafka.bootstrap.servers", servers)
    kafka.option("includeHeaders", "true").option("kafka.batch.size", "262144").save()


def frames(spark: Any, root: Path, servers: str) -> dict[str, Callable[[], Any]]:
    """Return what is read."""
    names = ",".join(f"topic{t}" for t in range(TOPICS))
    kafka = {"kafka.bootstrap.servers": servers, "subscribe": names}
    ours = {"path": str(root), "kafkaColumns": "true"}

    def frame(source: str, options: Mapping[str, str], **more: str) -> Callable[[], Any]:
        return lambda: spark.read.format(source).options(**options, **more).load()

    return {
        "Kafka's source": frame("kafka", kafka),
        "ours, Kafka's columns": frame("twinlog", ours),
        "Kafka's source, with headers": frame("kafka", kafka, includeHeaders="true"),
        "ours, Kafka's columns with headers": frame("twinlog", ours, includeHeaders="true"),
        "ours, all columns with map": frame("twinlog", {"path": str(root)}),
    }


def measure(cells: Mapping[str, Callable[[], Any]], records: int, rounds: int) -> None:
    """Read everything in turn and print the best rounds."""
    best: dict[str, tuple[float, float]] = {}
    for turn in range(rounds + 1):  # the first one warms up
        for name, frame in cells.items():
            began, before = time.perf_counter(), cpu()
            frame().write.format("noop").mode("append").save()
            seconds, used = time.perf_counter() - began, cpu() - before
            if turn:
                held = best.get(name, (seconds, used))
                best[name] = min(held[0], seconds), min(held[1], used)
    base = 0.0
    for name, (seconds, used) in best.items():
        rate = records / seconds
        base = rate if name.startswith("Kafka") else base
        figures = f"{rate:12,.0f} rows/s  {used / records * 1e6:6.2f} CPU-s per million"
        print(f"{name:40} {figures}  {rate / base:5.2f}", flush=True)


def main() -> None:
    """Print the figures."""
    options = argparse.ArgumentParser(description="Spark's Kafka source and ours.")
    options.add_argument("--records", type=int, default=940_032)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--connector", help="version of Spark's connector for Kafka")
    said = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the broker ends with this process
    import pyspark

    version = said.connector or pyspark.__version__
    with tempfile.TemporaryDirectory(prefix="twinlog-bench-") as place:
        folder = Path(place)
        jars = class_path(folder / "connector", connector(version), alone=True)
        make(folder / "store", said.records)
        settings = {"spark.driver.memory": "1g", "spark.log.level": "ERROR"}
        settings["spark.jars"] = ",".join(jars)
        with broker(folder) as servers, local_session("local[2]", settings) as spark:
            copy(spark, folder / "store", servers)
            cells = frames(spark, folder / "store", servers)
            counts = {frame().count() for frame in cells.values()}
            if len(counts) != 1:
                raise SystemExit(f"the sources do not hold the same rows: {counts}")
            (records,) = counts
            about = f"{records:,} records, Spark {pyspark.__version__}, connector {version}"
            print(f"{about}, load before: {os.getloadavg()[0]:.1f}", flush=True)
            measure(cells, records, said.rounds)


if __name__ == "__main__":
    main()

"""Settings of the sessions and Java processes of these tests."""

from __future__ import annotations

from twinlog.spark.sessions import ARROW

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "700m",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {ARROW}",
    "spark.log.level": "ERROR",
    "spark.python.daemon.module": "tests.spark.forking",
    "spark.sql.codegen.wholeStage": "false",
}
"""Of the shared session; the last two only spare time: rows are few, and workers many."""


QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Of every JVM that lives for seconds: it starts in less time and compiles less."""

"""The real RocketMQ 5.3.3 as a judge: one JVM for the session, fed one JSON request per line.

Skipped, visibly, where Java 17 or Maven is missing; CI sets ``TWINLOG_REQUIRE`` so that a skip
there is a failure.  The jars come through Maven by name; the tests download nothing themselves
but through it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

JUDGE_SOURCES = Path(__file__).parent / "judge"
OPENED = ("java.nio", "sun.nio.ch", "java.lang", "java.util", "java.net", "jdk.internal.ref")
ANSWER_SECONDS = 60


class Judge:
    """One running JVM; ``ask`` sends a request and returns its answer."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )

    def ask(self, op: str, **facts: object) -> dict[str, object]:
        """Return RocketMQ's answer; an error inside the JVM fails the test with its log."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **facts}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the JVM ended: {self._log.read_text(errors='replace')[-3000:]}"
        answer: dict[str, object] = json.loads(line)
        assert "error" not in answer, self._log.read_text(errors="replace")[-3000:]
        return answer

    def stop(self) -> None:
        """Close standard input, which ends the JVM, and wait for it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(ANSWER_SECONDS)
        self._process.stdout.close()


def _class_path(folder: Path) -> str:
    shutil.copy(JUDGE_SOURCES / "pom.xml", folder / "pom.xml")
    subprocess.run(
        ["mvn", "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=class-path.txt"],
        cwd=folder,
        check=True,
        timeout=600,
    )
    jars = (folder / "class-path.txt").read_text().strip()
    sources = sorted(str(path) for path in JUDGE_SOURCES.glob("*.java"))
    compiled = subprocess.run(
        ["javac", "-cp", jars, "-d", str(folder), *sources],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert compiled.returncode == 0, compiled.stderr
    shutil.copytree(JUDGE_SOURCES / "META-INF", folder / "META-INF", dirs_exist_ok=True)
    return f"{folder}:{jars}"


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """A JVM with RocketMQ's store inside."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"interop needs Java 17 and Maven: {program} is missing")
    folder = tmp_path_factory.mktemp("judge")
    jvm = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    jvm += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    jvm += ["--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", f"-Duser.home={folder}"]
    running = Judge([*jvm, "-cp", _class_path(folder), "Judge"], folder / "judge.log")
    yield running
    running.stop()

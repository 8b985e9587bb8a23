"""Asking the supervisor of a directory: what runs, start, kill, stop everything.

Its state is a file, a request is a file and a signal; so asking works from any process and needs no
port.  A supervisor lives as long as its lock is held, never by a process id that may be another's.

Times are seconds.  Waiting here is for another process, so it looks again every 20 ms.

Not here: owning processes (``supervisor``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from cli.config_file import is_supervised
from cli.dev.supervisor import die_with, folder, last_lines
from cli.failures import NOTHING_LEFT, Exit, Failure, Interrupted
from cli.fields import tables
from twinlog.run_file import read_json

LOOK_SECONDS = 0.02
UP_SECONDS = 60.0
"""How long coordinator and nodes may take to come up: seconds, or a minute on a busy machine."""


class SupervisorClient:
    """The processes of one directory, seen from outside."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.own = folder(directory)
        self._started: subprocess.Popen[bytes] | None = None

    def alive(self) -> bool:
        """Whether a supervisor owns the directory now."""
        return is_supervised(self.directory)

    def state(self) -> dict[str, object]:
        """The supervisor's last words; empty when there never was one."""
        return read_json(self.own / "state.json") or {}

    def processes(self) -> list[dict[str, object]]:
        """What is known of each process, coordinator first."""
        return tables(self.state().get("processes"))

    def process(self, name: str) -> dict[str, object]:
        """What is known of one process.

        Raises:
            Failure: There is no such process (exit 66).
        """
        for found in self.processes():
            if found.get("name") == name:
                return found
        known = ", ".join(str(found.get("name")) for found in self.processes())
        raise Failure(Exit.MISSING, f'there is no process "{name}"', facts=(f"known: {known}",))

    def require(self) -> None:
        """Raise when no supervisor owns the directory (exit 69)."""
        if not self.alive():
            raise Failure(
                Exit.UNAVAILABLE,
                f"no twinlog dev up is running in {self.directory}",
                hints=("start one: twinlog dev up --background",),
            )

    def launch(self, *, keep: bool, environment: Mapping[str, str] | None = None) -> None:
        """Start a supervisor of its own for this directory and wait until every process is ready.

        Args:
            keep: It lives on when this process ends; otherwise it stops everything then.
            environment: Variables for it and its processes, besides our own.

        Raises:
            Failure: A process ended before it was ready; nothing is left running.
        """
        self.own.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            (self.own / "state.json").unlink()
        log = self.own / "supervisor.log"
        with open(log, "ab") as out:
            process = subprocess.Popen(
                (sys.executable, "-m", "twinlog", "dev", "supervise", str(self.directory)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
                preexec_fn=None if keep else die_with(os.getpid(), signal.SIGTERM),
            )
        try:
            self._wait_up(process, log)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        self._started = process

    def _wait_up(self, process: subprocess.Popen[bytes], log: Path) -> None:
        for _ in _looks(UP_SECONDS):
            found = self.processes()
            if found and all(one.get("state") == "ready" for one in found):
                return
            if process.poll() is not None:
                said = last_lines(log, 12)
                first = said[0].removeprefix("error: ") if said else "the supervisor ended at once"
                facts = [line.strip() for line in said[1:]]
                raise Failure(Exit.UNAVAILABLE, first, facts=facts)
        raise Failure(
            Exit.UNAVAILABLE,
            f"not every process was ready within {UP_SECONDS:g} s",
            hints=(f"what they said: {self.own}/*.log",),
        )

    def request(self, what: str, name: str = "", seconds: float = 40.0) -> None:
        """Ask the supervisor for something and wait until it is done.

        Raises:
            Failure: No supervisor owns the directory, or it could not be done.
        """
        self.require()
        number = uuid.uuid4().hex
        path = self.own / "requests" / f"{number}.json"
        aside = path.with_suffix(".new")
        aside.write_text(json.dumps({"what": what, "name": name}), encoding="utf-8")
        aside.replace(path)
        pid = self.state().get("supervisor")
        if isinstance(pid, int):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        for _ in self._watched(seconds):
            state = self.state()
            if state.get("answered") == number:
                error = str(state.get("error") or "")
                if error:
                    lines = error.splitlines()
                    facts = [line.strip() for line in lines[1:]]
                    raise Failure(Exit.UNAVAILABLE, lines[0].removeprefix("error: "), facts=facts)
                return
            if not self.alive():
                break
        raise Failure(Exit.UNKNOWN, f"the supervisor of {self.directory} did not answer")

    def down(self, seconds: float = 30.0) -> None:
        """Stop every process and the supervisor; harmless when nothing runs.

        Raises:
            Failure: It did not stop in time (exit 75).
        """
        if not self.alive():
            return
        pid = self.state().get("supervisor")
        if isinstance(pid, int):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        for _ in self._watched(seconds):
            if not self.alive():
                if self._started is not None:
                    self._started.wait()
                return
        raise Failure(Exit.UNKNOWN, f"the processes of {self.directory} did not stop in time")

    def _watched(self, seconds: float) -> Iterator[None]:
        """Look until the time is over; at Ctrl-C say what of the directory still runs."""
        looks = _looks(seconds)
        while True:
            try:
                next(looks)
            except StopIteration:
                return
            except KeyboardInterrupt:
                raise Interrupted(self.running() or NOTHING_LEFT) from None
            yield

    def running(self) -> list[str]:
        """One line for each process that runs, for the message after Ctrl-C."""
        if not self.alive():
            return []
        lines = [
            f"{one.get('name')} runs as process {one.get('pid')}"
            for one in self.processes()
            if one.get("pid")
        ]
        return lines or [f"the supervisor runs as process {self.state().get('supervisor')}"]


def _looks(seconds: float) -> Iterator[None]:
    """Come back every 20 ms until the time is over."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield
        time.sleep(LOOK_SECONDS)

"""Several drills at a time, each a process of its own with a cluster of its own.

Most of a drill is waiting, so two of them take little more than half the time on two processors.
The longest begin first. A drill that has not ended when the time for all is over is asked to stop
(SIGINT), takes its cluster down and counts as undecided; one that has not begun is not run.

Cancellation: Ctrl-C is handed on to every drill once, and all are waited for.

Not here: one drill (``run``), the answer (``commands``).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from cli.drill.report import stored
from cli.drill.run import Result, not_begun
from cli.drill.scenario import Scenario
from cli.failures import NOTHING_LEFT, Exit, Failure, Interrupted

LOOK_SECONDS = 0.1
STOP_SECONDS = 60.0
"""How long a drill that was asked to stop may take; then it is killed, and so is its cluster, which
ends with it."""
SAID = "said.txt"
"""In a drill's folder: what its process said."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Running:
    """A drill under way."""

    scenario: Scenario
    folder: Path
    process: subprocess.Popen[bytes]


def run_side_by_side(
    drills: Mapping[Path, Scenario], words: Sequence[str], *, jobs: int, seconds: float, say: Say
) -> list[tuple[Result, Path]]:
    """Run drills, at most ``jobs`` at a time; return the results of those that were begun.

    Args:
        drills: Shipped drills by the folder of their report.
        words: Further arguments of ``twinlog drill run`` for each.
        jobs: How many at a time.
        seconds: How long all may take.
        say: Called with each line for a person.

    Raises:
        Interrupted: Ctrl-C; nothing is left running.
    """
    until = monotonic() + seconds
    waiting = sorted(drills.items(), key=lambda one: -one[1].seconds)
    running: list[Running] = []
    found: dict[Path, Result] = {}
    try:
        while waiting or running:
            left = until - monotonic()
            while waiting and len(running) < jobs:
                folder, scenario = waiting.pop(0)
                if left <= scenario.seconds:
                    say(f"{scenario.name}: no time left, not run")
                    continue
                say(f"{scenario.name}: {scenario.title} (about {scenario.seconds:.0f} s)")
                running.append(_begun(scenario, folder, words))
            if left <= 0:
                _stop(running)
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                result = found[one.folder] = _result(one)
                say(f"{one.scenario.name}: {result.headline()}")
            sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        raise Interrupted(NOTHING_LEFT) from None
    finally:
        _stop(running)
    return [(found[folder], folder) for folder in drills if folder in found]


def _begun(scenario: Scenario, folder: Path, words: Sequence[str]) -> Running:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "twinlog", "drill", "run", scenario.name, *words]
    with (folder / SAID).open("wb") as said:
        # A session of its own: Ctrl-C reaches it once, from here.
        process = subprocess.Popen(
            [*command, "--report", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    return Running(scenario, folder, process)


def _stop(running: Sequence[Running]) -> None:
    """Ask drills to stop, and wait for them."""
    for one in running:
        one.process.send_signal(signal.SIGINT)
    for one in running:
        try:
            one.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()


def _result(one: Running) -> Result:
    """What a drill that has ended found; unknown, with its last words, if it wrote no result."""
    try:
        return stored(one.folder)
    except (OSError, ValueError, Failure):
        said = (one.folder / SAID).read_text(encoding="utf-8", errors="replace").splitlines()
        why = f"it ended with {one.process.returncode} and left no result"
        failure = Failure(Exit.UNDECIDED, why, facts=said[-1:])
        return not_begun(one.scenario, 0, failure)

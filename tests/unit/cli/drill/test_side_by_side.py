"""Several drills at a time: how many, in which order, and what becomes of those that end badly."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cli.drill import side_by_side
from cli.drill.judge import Outcome
from cli.drill.scenario import Scenario, find
from cli.drill.side_by_side import SAID, Running, run_side_by_side
from cli.failures import Interrupted

ENDS = "print('it ends', flush=True)"
WAITS = "import signal; print('it waits', flush=True); signal.pause()"
"""It ends with KeyboardInterrupt, or never."""

Begin = Callable[[Scenario, Path, Sequence[str]], Running]


def drills(folder: Path, seconds: Sequence[float]) -> dict[Path, Scenario]:
    """Drills that differ in name and length."""
    known = find("kill-master")
    found: dict[Path, Scenario] = {}
    for number, length in enumerate(seconds):
        scenario = replace(known, name=f"d{number}", load=replace(known.load, after=length))
        found[folder / scenario.name] = scenario
    return found


class Stand:
    """What stands in for the processes of drills: a Python program each."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.begun: list[str] = []
        self.most = 0
        self.alive: list[Running] = []

    def begin(self, scenario: Scenario, folder: Path, words: Sequence[str]) -> Running:
        """Start the program."""
        self.begun.append(scenario.name)
        folder.mkdir()
        with (folder / SAID).open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-c", self.program],
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self.alive = [one for one in self.alive if one.process.poll() is None]
        self.alive.append(Running(scenario, folder, process))
        self.most = max(self.most, len(self.alive))
        return self.alive[-1]


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Drills that end at once."""
    found = Stand(ENDS)
    monkeypatch.setattr(side_by_side, "_begun", found.begin)
    return found


def test_the_longest_begin_first_and_never_more_than_were_asked_for(
    stand: Stand, tmp_path: Path
) -> None:
    """Results come in the order of the drills; one that left none is unknown, with its words."""
    given, said = drills(tmp_path, (1.0, 30.0, 5.0)), list[str]()
    found = run_side_by_side(given, [], jobs=2, seconds=600.0, say=said.append)
    assert stand.begun == ["d1", "d2", "d0"]
    assert stand.most <= 2
    assert [result.scenario.name for result, _ in found] == ["d0", "d1", "d2"]
    assert {result.verdict for result, _ in found} == {Outcome.UNKNOWN}
    assert "it ends" in found[0][0].headline()
    assert len(said) == 6


def test_a_drill_without_time_is_not_begun(stand: Stand, tmp_path: Path) -> None:
    """It is named, and is missing in the results."""
    given, said = drills(tmp_path, (1.0, 900.0)), list[str]()
    found = run_side_by_side(given, [], jobs=2, seconds=300.0, say=said.append)
    assert [result.scenario.name for result, _ in found] == ["d0"]
    assert "d1: no time left, not run" in said


def test_a_drill_that_takes_too_long_is_stopped(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the time for all is over it gets the signal of Ctrl-C, and is undecided."""
    stand.program = WAITS
    given = drills(tmp_path, (1.0,))
    clock = iter(range(0, 10_000, 300))
    monkeypatch.setattr(side_by_side, "monotonic", lambda: float(next(clock)))
    folder = next(iter(given))

    def begin(scenario: Scenario, at: Path, words: Sequence[str]) -> Running:
        one = Stand.begin(stand, scenario, at, words)
        while not (folder / SAID).read_bytes():
            assert one.process.poll() is None
        return one

    monkeypatch.setattr(side_by_side, "_begun", begin)
    found = run_side_by_side(given, [], jobs=1, seconds=500.0, say=lambda _: None)
    assert [result.verdict for result, _ in found] == [Outcome.UNKNOWN]
    assert stand.alive[0].process.returncode in (-signal.SIGINT, 1)


def test_ctrl_c_ends_all_of_them(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is handed on, and all are waited for."""
    stand.program = WAITS

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(side_by_side, "sleep", interrupted)
    with pytest.raises(Interrupted):
        run_side_by_side(
            drills(tmp_path, (1.0, 2.0)), [], jobs=2, seconds=600.0, say=lambda _: None
        )
    assert all(one.process.returncode is not None for one in stand.alive)
    assert len(stand.alive) == 2

"""Tasks of the sink that wait in the middle of their rows until a test lets them go on.

A test that kills something while rows are under way would otherwise have to be quicker than they
are, which no machine promises. `VARIABLE` names a folder for the Python of all tasks; a file in it
that is named as a topic holds the tasks that write to this topic (`Hold`). Without such a file, and
without the variable, tasks are as always.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinlog.producer.blocking import Producer
from twinlog.producer.section import Section

VARIABLE = "TWINLOG_TEST_HOLD"
SECONDS = 600.0
"""A task that is forgotten here goes on, so that nothing hangs."""


class Hold:
    """What a test says to the tasks that write to a topic; see the module."""

    def __init__(self, folder: Path, topic: str) -> None:
        self._folder, self._topic = folder, topic
        folder.mkdir(exist_ok=True)

    def at(self, row: int, *, batch: int = 0) -> None:
        """Have tasks send what they have at a row, and those from a batch on then wait."""
        fresh = self._folder / f"{self._topic}.new"
        fresh.write_text(f"{row} {batch}")
        fresh.replace(self._folder / self._topic)

    def waiting(self) -> set[int]:
        """Process ids of the tasks that have waited or do."""
        return {int(path.suffix[1:]) for path in self._folder.glob(f"{self._topic}.held.*")}


def install(environment: Mapping[str, str]) -> None:
    """Have producers of tasks wait as `Hold` says, in this process and in those it forks."""
    if VARIABLE not in environment:
        return
    folder, send = Path(environment[VARIABLE]), Producer.send

    def held(producer: Producer, body: bytes, **more: Any) -> Section:
        section = send(producer, body, **more)
        topic, identity = producer._link._topic, producer._link._identity
        place = folder / topic
        rows = producer.__dict__["rows"] = producer.__dict__.get("rows", 0) + 1
        if identity is None or not place.is_file() or rows != said(place)[0]:
            return section
        producer.flush()
        (folder / f"{topic}.held.{os.getpid()}").touch()
        end = time.monotonic() + SECONDS
        while identity[1] >= said(place)[1] and time.monotonic() < end:
            time.sleep(0.02)
        return section

    Producer.send = held  # type: ignore[method-assign]


def said(place: Path) -> tuple[int, int]:
    """Row and batch of a file."""
    row, batch = place.read_text().split()
    return int(row), int(batch)

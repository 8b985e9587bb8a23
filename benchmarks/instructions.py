"""How many instructions the hot paths take, which no other work on the machine changes.

    python benchmarks/instructions.py [--write]

Counted by valgrind's callgrind (Debian: ``valgrind``), which must be installed. Each cell runs in a
process of its own that is warm before the counting begins; a cell's figure is instructions for one
operation, and beside it the same divided by those of one turn of a plain Python loop, counted in
the same process: builds of one Python differ, and this takes most of the difference out.

* *append 1*: `Store.append` of a section of one record of 100 B, as a master does it
* *append 64*: the same of 64 records of 1 KiB
* *encode 64*: `RecordEncoder.add` of 64 records of 100 B, as the Python producer does it
* *read*: `StoreReads.read` of 64 records of 1 KiB within hot memory, and taking the slices
* *read cached*: the same of records older than that, from the page cache
* *frame*: an APPEND frame of one record encoded, and read by `FrameReader`
* *pop 32*: a turn of `WorkQueues`: a POP of 32 records of 100 B and the SETTLE of the POP before it
  are checked, decided, appended, dispatched and answered, without sockets and slaves
* *pop 1*: the same of one record
* *commit 64*: such a turn of 64 COMMITs, each of eight positions of a broadcast member

``--write`` keeps the figures in ``instructions.json``, with which ``tests/speed`` compares. Starts
only processes of its own; files are in a temporary folder.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from node.groups.context import Context, GroupCounts
from node.groups.service import WorkQueues
from node.leases.limits import GroupLimits
from node.leases.settles import SettleCounts
from node.leases.times import LeaseTimes
from storage import CreateTopic, Outcome, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from storage.messaging.groups import START_BEGIN, Group
from storage.state.group_controls import CreateGroups
from storage.state.sections import Together
from twinlog.errors import UsageError
from twinlog.format.group_rows import Row
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.wire import frames, schema

HERE = Path(__file__).parent
FILE = HERE / "instructions.json"
MiB = 1024 * 1024
MASTER = Token("master", 1, 1)
WARM, TIMES = 20, 50
"""Operations before the counting, and those that are counted."""

LOOP = 20_000
SECONDS = 600.0
"""Longest time of one cell."""

Operation = Callable[[], object]


def section(records: int, body: int, queue: int = 0) -> Section:
    """A section as the Python producer makes it."""
    encoder = RecordEncoder("bench", queue)
    properties = encode_properties({"TAGS": "a"})
    for number in range(records):
        encoder.add((b"%d." % number).ljust(body, b"x"), properties=properties, born_timestamp=1)
    return Section("bench", queue, records, encoder.take(), 0, 0, 0)


@contextmanager
def opened(queues: int = 1, **rest: Any) -> Iterator[Store]:
    """A master with the topic; ``rest`` are settings of its store."""
    with tempfile.TemporaryDirectory() as folder:
        settings = StoreSettings(segment_size=64 * MiB, **rest)
        store = Store.open(RealDisk(Path(folder)), settings, Who("bench", "g1", "n1"), wall_ms=1)
        store.take_token(MASTER)
        store.append_epoch(
            MASTER, epoch=1, node="n1", session=1, wall_ms=1, reason="bench", by="me"
        )
        store.append_control(MASTER, CreateTopic("bench", queues, 1), wall_ms=1)
        store.set_confirm(store.end)
        store.dispatch(MiB)
        yield store
        store.close(clean=False)


@contextmanager
def appending(records: int, body: int) -> Iterator[Operation]:
    """Appends one section."""
    made = section(records, body)
    with opened() as store:

        def append() -> None:
            (result,) = store.append(MASTER, [made], wall_ms=2)
            assert result.outcome is Outcome.STORED

        yield append


@contextmanager
def encoding() -> Iterator[Operation]:
    """Encodes 64 records: one alone is lost in what it costs to ask callgrind for a dump."""
    encoder = RecordEncoder("bench", 0)
    properties, body = encode_properties({"TAGS": "a"}), b"x" * 100

    def encode() -> None:
        for _ in range(64):
            encoder.add(body, properties=properties, born_timestamp=1)
        encoder.take()

    yield encode


@contextmanager
def reading(**rest: Any) -> Iterator[Operation]:
    """Reads 64 records; ``rest`` are settings of the store."""
    made = section(64, 1024)
    with opened(**rest) as store:
        for _ in range(4):
            store.append(MASTER, [made], wall_ms=2)
        store.set_confirm(store.end)
        while store.dispatch(MiB):
            pass

        def read() -> None:
            found = store.reads.read("bench", 0, 64, max_bytes=MiB, max_records=64)
            assert found.count == 64 and not found.cold
            assert sum(map(len, found.slices)) == len(made.data)

        yield read


@contextmanager
def framing() -> Iterator[Operation]:
    """Encodes and reads one frame."""
    data = section(1, 100).data
    fields = {"ack": "confirmed", "timeout_ms": 1000}
    fields["sections"] = [["bench", 0, 1, len(data), 1, 0, 0]]
    reader = frames.FrameReader()

    def frame() -> None:
        made = frames.Frame(frames.Type.APPEND, request=1, fields=fields, payload=data)
        reader.feed(frames.encode_whole(made))
        assert reader.next() is not None

    yield frame


class LoneDriver:
    """A driver for work queues whose rows are confirmed and dispatched at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.core = SimpleNamespace(leading=SimpleNamespace(epoch=1))
        self.retention = SimpleNamespace(held_for_groups=0)

    def reign(self) -> tuple[int, None]:
        """This node is the master."""
        return 1, None

    def append_rows(self, now: float, rows: Sequence[Row], **rest: Any) -> None:
        """Append, confirm, dispatch, answer."""
        store = self._store
        done = store.append_rows(MASTER, rows, wall_ms=2)
        store.set_confirm(store.end)
        store.dispatch(MiB)
        rest["reply"](Together(done.outcome, [], done.end), "n1")


class Asker:
    """Asks work queues of a store with topic ``bench`` and nothing else to do."""

    def __init__(self, store: Store) -> None:
        context = Context(
            cast("Any", LoneDriver(store)), store.reads, store.messaging, GroupLimits(),
            refusal=lambda code, text: UsageError(text, code=code), missing=UsageError,
            wall_ms=lambda: 3, tell=lambda *_, **__: None, draw=count(1 << 52).__next__, family=4,
            seconds=lambda: 1.0, counts=GroupCounts(SettleCounts(LeaseTimes(lambda _: None))),
        )  # fmt: skip
        none: Any = None
        self.queues = WorkQueues(context, fetch=none, looks=none, observed=dict)
        self.said: list[Any] = []
        self.rows: list[Any] = []
        """Of the JOIN that was answered last: topic, queue, share, position."""
        self._asker: Any = SimpleNamespace(gone=False, congested=False)

    def ask(self, kind: frames.Type, fields: dict[str, object]) -> None:
        """Ask as a connection does."""
        schema.check(frames.Frame(kind, fields=fields))
        self.queues.handle(kind, fields, memoryview(b""), self._asker, "here", self._answered)

    def _answered(self, outcome: Any, payload: Sequence[memoryview] = ()) -> None:
        assert not isinstance(outcome, Exception), outcome
        self.said.append(outcome)

    def join(self, group: str, mode: str) -> dict[str, object]:
        """Join a group; return the fields that requests of the member begin with."""
        joining = {"group": group, "name": "a", "member": 0, "topics": ["bench"], "mode": mode}
        self.ask(frames.Type.JOIN, {**joining, "session_ms": 60_000})
        self.queues.run(1.0)
        joined = self.said.pop()
        self.rows = joined["rows"]
        return {"group": group, "member": joined["member"]}


def fill(store: Store, records: int, queues: int, groups: Sequence[Group]) -> None:
    """Store N records of 100 B in each queue, in sections of 64, and create groups."""
    for queue in range(queues):
        made = section(64, 100, queue)
        for _ in range(records // 64 + 2):
            store.append(MASTER, [made], wall_ms=2)
    store.append_control(MASTER, CreateGroups(tuple(groups)), wall_ms=2)
    store.set_confirm(store.end)
    while store.dispatch(MiB):
        pass


@contextmanager
def popping(records: int) -> Iterator[Operation]:
    """A POP of N records and the SETTLE of the POP before, in one turn."""
    with opened() as store:
        fill(store, records * (WARM + TIMES), 1, [replace(Group("g"), start=START_BEGIN)])
        asker = Asker(store)
        own = asker.join("g", "shared")
        asked = {"topics": ["bench"], "max_bytes": MiB, "invisible_ms": 30_000}
        asked |= {"max_records": records, "wait_ms": 0}
        numbers, rows = count(1), list[Any]()

        def turn() -> None:
            settles = [[row[2], row[3], 1, row[4], row[4] + row[5] - 1, 0] for row in rows]
            asker.ask(frames.Type.SETTLE, {**own, "rows": settles})
            asker.ask(frames.Type.POP, {**own, **asked, "pop": next(numbers)})
            asker.queues.run(1.0)
            rows[:] = asker.said.pop()["rows"]
            assert sum(row[5] for row in rows) == records
            assert asker.said.pop()["rows"] == [["", 0]] * len(settles)

        yield turn


@contextmanager
def committing(groups: int) -> Iterator[Operation]:
    """COMMITs of eight positions by the members of N broadcast groups, in one turn."""
    names, queues = [f"g{number:02}" for number in range(groups)], 8
    with opened(queues) as store:
        each = [replace(Group(name), mode="broadcast", start=START_BEGIN) for name in names]
        fill(store, WARM + TIMES, queues, each)
        asker = Asker(store)
        members = [(asker.join(name, "broadcast"), asker.rows) for name in names]
        positions = count(1)

        def turn() -> None:
            position = next(positions)
            for own, shares in members:
                rows = [[share, position] for _, _, share, _ in shares]
                asker.ask(frames.Type.COMMIT, {**own, "generation": 0, "rows": rows})
            asker.queues.run(1.0)
            done = [["", position]] * queues
            assert [one["rows"] for one in asker.said] == [done] * groups
            asker.said.clear()

        yield turn


CELLS = {
    "append 1": lambda: appending(1, 100),
    "append 64": lambda: appending(64, 1024),
    "encode 64": encoding,
    "read": reading,
    "read cached": lambda: reading(hot_bytes=0),
    "frame": framing,
    "pop 32": lambda: popping(32),
    "pop 1": lambda: popping(1),
    "commit 64": lambda: committing(64),
}


def counted(name: str, out: Path) -> None:
    """Run one cell, inside callgrind: dump 1 is nothing, 2 the plain loop, 3 the operations."""

    def control(*words: str) -> None:
        subprocess.run(
            ["callgrind_control", *words, str(os.getpid())], check=True, stdout=subprocess.DEVNULL
        )

    def loop() -> None:
        total = 0
        for number in range(LOOP):
            total += number & 7

    with CELLS[name]() as operation:
        for _ in range(WARM):
            operation()
        loop()
        gc.collect()
        gc.freeze()  # as a node does: else a collection of all modules falls into some cells
        gc.disable()
        control("--instr=on")
        for times, body in ((0, loop), (1, loop), (TIMES, operation)):
            control("--zero")
            for _ in range(times):
                body()
            control("--dump")
        control("--instr=off")
    out.touch()


def totals(out: Path) -> list[int]:
    """Instructions of each dump, in order."""
    found: list[int] = []
    for number in (1, 2, 3):
        for line in Path(f"{out}.{number}").read_text().splitlines():
            if line.startswith("totals:"):
                found.append(int(line.split()[1]))
    return found


def measure(name: str) -> dict[str, float]:
    """Instructions for one operation of a cell, and the same in turns of the plain loop."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "-q"]
        command += [f"--callgrind-out-file={out}", sys.executable, __file__, "--cell", name]
        command += ["--out", str(out)]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(HERE.parent)}
        done = subprocess.run(
            command, env=environment, timeout=SECONDS, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stdout}{done.stderr}")
        asking, turns, spent = totals(out)  # to ask for a dump costs instructions, too
    each, turn = (spent - asking) / TIMES, (turns - asking) / LOOP
    return {"instructions": round(each), "turns": round(each / turn, 1)}


def main() -> None:
    """Count every cell, or be one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--cell")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.cell:
        counted(given.cell, given.out)
        return
    found = {name: measure(name) for name in CELLS}
    for name, figures in found.items():
        print(f"{name:11} {figures['instructions']:>9,} instructions  {figures['turns']:>8} turns")
    if given.write:
        kept = {"python": sys.version, "cells": found}
        FILE.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

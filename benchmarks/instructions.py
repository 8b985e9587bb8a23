"""How many instructions the hot paths take, which no other work on the machine changes.

    python benchmarks/instructions.py [--write]

Counted by valgrind's callgrind (Debian: ``valgrind``), which must be installed. Each cell runs in a
process of its own that is warm before the counting begins; a cell's figure is instructions for one
operation, and beside it the same divided by those of one turn of a plain Python loop, counted in
the same process: builds of one Python differ, and this takes most of the difference out.

* *append 1*: `Store.append` of a section of one record of 100 B, as a master does it
* *append 64*: the same of 64 records of 1 KiB
* *encode*: `RecordEncoder.add` of a record of 100 B, as the Python producer does it
* *read*: `StoreReads.read` of 64 records of 1 KiB within hot memory, and taking the slices
* *frame*: an APPEND frame of one record encoded, and read by `FrameReader`

``--write`` keeps the figures in ``instructions.json``, with which ``tests/speed`` compares. Starts
only processes of its own; files are in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storage import CreateTopic, Outcome, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.wire import frames

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


def section(records: int, body: int) -> Section:
    """A section as the Python producer makes it."""
    encoder = RecordEncoder("bench", 0)
    properties = encode_properties({"TAGS": "a"})
    for number in range(records):
        encoder.add((b"%d." % number).ljust(body, b"x"), properties=properties, born_timestamp=1)
    return Section("bench", 0, records, encoder.take(), 0, 0, 0)


@contextmanager
def opened() -> Iterator[Store]:
    """A master with the topic."""
    with tempfile.TemporaryDirectory() as folder:
        settings = StoreSettings(segment_size=64 * MiB)
        store = Store.open(RealDisk(Path(folder)), settings, Who("bench", "g1", "n1"), wall_ms=1)
        store.take_token(MASTER)
        store.append_epoch(
            MASTER, epoch=1, node="n1", session=1, wall_ms=1, reason="bench", by="me"
        )
        store.append_control(MASTER, CreateTopic("bench", 1, 1), wall_ms=1)
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
    """Encodes one record."""
    encoder = RecordEncoder("bench", 0)
    properties, body = encode_properties({"TAGS": "a"}), b"x" * 100
    yield lambda: encoder.add(body, properties=properties, born_timestamp=1)


@contextmanager
def reading() -> Iterator[Operation]:
    """Reads 64 records."""
    made = section(64, 1024)
    with opened() as store:
        for _ in range(4):
            store.append(MASTER, [made], wall_ms=2)
        store.set_confirm(store.end)
        while store.dispatch(MiB):
            pass

        def read() -> None:
            found = store.reads.read("bench", 0, 64, max_bytes=MiB, max_records=64)
            assert found.count == 64
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


CELLS = {
    "append 1": lambda: appending(1, 100),
    "append 64": lambda: appending(64, 1024),
    "encode": encoding,
    "read": reading,
    "frame": framing,
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
        print(f"{name:10} {figures['instructions']:>9,} instructions  {figures['turns']:>8} turns")
    if given.write:
        kept = {"python": sys.version, "cells": found}
        FILE.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

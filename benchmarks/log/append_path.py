"""The append path alone, without a network, against a copy-and-CRC loop in C over the same bytes.

    python benchmarks/log/append_path.py [--seconds 2] [--rounds 5] [--folder DIR] [--json FILE]

*Append*: `Store.append` on a real directory, sections of 64 x 1 KiB and of 256 x 100 B, as a master
does it: every record checked (sizes, topic, properties, CRC), numbered and stamped, the batch's
CRC, its entry. Sections arrive one per turn of the loop (the worst case) and sixteen per turn (a
loaded node takes all that has arrived). Pages are touched ahead, as the node's worker does, outside
the clock. Each `STORE_BYTES` go into a store of their own in a process of their own: nothing is
flushed, and a store keeps its files open, removed or not, for as long as its process lives.

*The loop*: `copy_crc.c`, compiled here: for each section memcpy into a mapped, touched file and one
CRC-32C over the bytes where they lie, with the processor's CRC instruction, one after the other
over the same file size. The second figure is the same with the project's own folding CRC.

*Queue building*: `kernels.gather_queues` over the log that was written (what the dispatcher runs),
entries a second of one core.

Figures are CPU time of this process or of the loop, medians of the rounds, taken in turn.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from storage import CreateTopic, Outcome, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from twinlog import kernels
from twinlog.format.record import RecordEncoder, encode_properties

HERE = Path(__file__).parent
MiB = 1024 * 1024
SEGMENT = 64 * MiB
STORE_BYTES = 1024 * MiB
MASTER = Token("master", 1, 1)


@dataclass(frozen=True)
class Shape:
    """Records of a section, and the size of their bodies."""

    records: int
    body: int

    @property
    def name(self) -> str:
        """For the table."""
        size = "1 KiB" if self.body == 1024 else f"{self.body} B"
        return f"{self.records} x {size}"


SHAPES = (Shape(64, 1024), Shape(256, 100))


def section(shape: Shape) -> Section:
    """A section as the Python producer makes it."""
    encoder = RecordEncoder("bench", 0)
    properties = encode_properties({"TAGS": "a"})
    for number in range(shape.records):
        body = b"%d." % number
        encoder.add(body.ljust(shape.body, b"x"), properties=properties, born_timestamp=1)
    return Section("bench", 0, shape.records, encoder.take(), 0, 0, 0)


def new_store(folder: Path) -> Store:
    """A master with the topic, its first file touched."""
    settings = StoreSettings(segment_size=SEGMENT, warm=True)
    store = Store.open(RealDisk(folder), settings, Who("bench", "g1", "n1"), wall_ms=1)
    store.take_token(MASTER)
    store.append_epoch(MASTER, epoch=1, node="n1", session=1, wall_ms=1, reason="bench", by="me")
    made = store.append_control(MASTER, CreateTopic("bench", 1, 1), wall_ms=1)
    assert made.outcome is Outcome.STORED
    store.set_confirm(store.end)
    while store.dispatch(MiB):
        pass
    return store


def prepare(store: Store) -> None:
    """Whatever the node's worker would do now."""
    while (job := store.jobs.prepare_job()) is not None:
        job.run()
        store.jobs.finish(job)


def appends(folder: Path, shape: Shape, turn: int, seconds: float) -> float:
    """Bytes a second of CPU that go through `Store.append`, ``turn`` sections a call."""
    stored, spent = 0, 0.0
    while spent < seconds:
        with multiprocessing.Pool(1) as process:
            more, took = process.apply(stretch, (folder, shape, turn, seconds - spent))
        shutil.rmtree(folder)
        stored, spent = stored + more, spent + took
    return stored / spent


def stretch(folder: Path, shape: Shape, turn: int, seconds: float) -> tuple[int, float]:
    """Bytes appended to a store of its own, at most `STORE_BYTES`, and the CPU time they took."""
    store = new_store(folder)
    made = section(shape)
    sections = [made] * turn
    size, spent, stored = turn * len(made.data), 0.0, 0
    steps = max(1, 4 * MiB // size)
    while spent < seconds and stored < STORE_BYTES:
        prepare(store)
        began = time.process_time()
        for _ in range(steps):
            results = store.append(MASTER, sections, wall_ms=2)
        spent += time.process_time() - began
        stored += steps * size
        last = results[-1]
        if last.outcome is not Outcome.STORED:
            free = shutil.disk_usage(folder).free // MiB
            raise RuntimeError(
                f"an append was not stored: {last.outcome.name.lower()}, {last.code}: {last.text}"
                f" ({stored // MiB} MiB in this store, {free} MiB free)"
            )
    store.close(clean=False)
    return stored, spent


def loop(program: Path, folder: Path, shape: Shape, seconds: float) -> list[float]:
    """Bytes a second of CPU of the loop: with the CRC instruction, and folding."""
    size = str(len(section(shape).data))
    command = [str(program), str(folder / "loop"), size, str(SEGMENT), str(seconds)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return [found["instruction"], found["folding"]]


def queue_entries(shape: Shape, seconds: float) -> float:
    """Queue entries a second of CPU from a stretch of log of 1 MiB."""
    made = section(shape)
    count = MiB // len(made.data)
    data = bytearray(made.data * count)
    for number in range(count):
        kernels.patch_section(
            data, number * len(made.data), len(made.data),
            log_offset=number * len(made.data), queue_offset=number * shape.records,
            store_timestamp=1, store_host=bytes(8),
        )  # fmt: skip
    entries, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        for _ in range(20):
            [(_, _, _, packed)] = kernels.gather_queues(data, 0, len(data), 0)
            entries += len(packed) // 20
    return entries / (time.process_time() - began)


def measure(folder: Path, seconds: float, rounds: int) -> dict[str, dict[str, float]]:
    """Medians of everything, taken in turn."""
    program = folder / "copy_crc"
    flags = ["-O2", "-march=native", "-I", str(HERE.parents[1] / "twinlog" / "kernels")]
    subprocess.run(["cc", *flags, "-o", str(program), str(HERE / "copy_crc.c")], check=True)
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for shape in SHAPES:
            row = found.setdefault(shape.name, {})
            for turn in (1, 16):
                rate = appends(folder / "store", shape, turn, seconds)
                row.setdefault(f"append_{turn}", []).append(rate)
            plain, folding = loop(program, folder, shape, seconds)
            row.setdefault("loop_instruction", []).append(plain)
            row.setdefault("loop_folding", []).append(folding)
            row.setdefault("queue_entries", []).append(queue_entries(shape, seconds / 4))
    return {
        name: {key: statistics.median(runs) for key, runs in row.items()}
        for name, row in found.items()
    }


def table(found: dict[str, dict[str, float]]) -> str:
    """Figures and ratios, as Markdown."""
    lines = [
        "| section | append, 1 a turn | 16 a turn | C loop | ratio 1 / 16 a turn"
        " | C loop, folding CRC | ratio 1 / 16 | queue entries |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        one, many = row["append_1"], row["append_16"]
        plain, folding = row["loop_instruction"], row["loop_folding"]
        lines.append(
            f"| {name} | {one / 1e9:.2f} GB/s | {many / 1e9:.2f} GB/s | {plain / 1e9:.2f} GB/s"
            f" | {one / plain:.0%} / {many / plain:.0%} | {folding / 1e9:.2f} GB/s"
            f" | {one / folding:.0%} / {many / folding:.0%}"
            f" | {row['queue_entries'] / 1e6:.1f} M/s |"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5, choices=range(1, 21))
    parser.add_argument("--folder", type=Path, help="on the file system to measure")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="twinlog-bench-", dir=options.folder))
    try:
        found = measure(folder, options.seconds, options.rounds)
        print(f"kernels: {kernels.which()}")
        print(table(found))
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

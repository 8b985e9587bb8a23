"""Builds small store directories of ours, byte by byte, without the server.

Segments of 4096 bytes, queue files of ten entries, each batch with its entry; each file begins with
an epoch record and ends with a filler.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import msgpack

from twinlog import kernels
from twinlog.format import record
from twinlog.format.batch_index import KIND_EPOCH, KIND_FILLER, KIND_RECORDS, BatchEntry
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.log_file import file_name
from twinlog.format.system_topics import SYSTEM_TOPIC_EPOCH

SEGMENT = 4096
QUEUE_FILE = 200


@dataclass
class Ours:
    """A store under construction; `write` puts it on disk."""

    epoch: int = 1
    log: bytearray = field(default_factory=bytearray)
    entries: list[BatchEntry] = field(default_factory=list[BatchEntry])
    queues: dict[tuple[str, int], bytearray] = field(
        default_factory=dict[tuple[str, int], bytearray]
    )
    clock: int = 1_700_000_000_000
    properties: dict[str, str] = field(default_factory=lambda: {"TAGS": "a"})
    """Of the records that follow; TAGS stays what it is."""

    def open_epoch(self, epoch: int) -> None:
        """Append an epoch record; at the head of a file it names the index of the one before."""
        self.epoch = epoch
        before = [e for e in self.entries if e.start >= len(self.log) - SEGMENT]
        at_head = len(self.log) % SEGMENT == 0
        chain = kernels.crc32c(b"".join(e.pack()[:24] for e in before)) if at_head else 0
        start = next((e.start for e in self.entries if e.epoch == epoch), len(self.log))
        body = msgpack.packb({"epoch": epoch, "start": start, "chain": chain})
        self.append([(SYSTEM_TOPIC_EPOCH, 0, body)], KIND_EPOCH)

    def batch(self, *bodies: bytes, topic: str = "t", queue: int = 0) -> None:
        """Append one batch, in a new file when it does not fit."""
        self.append([(topic, queue, body) for body in bodies], KIND_RECORDS)

    def append(self, items: list[tuple[str, int, bytes]], kind: int) -> None:
        """Append one batch of (topic, queue, body)."""
        if len(self.log) % SEGMENT == 0 and kind != KIND_EPOCH:
            self.open_epoch(self.epoch)
        size = sum(len(record.encode(*item, properties=self.properties)) for item in items)
        left = SEGMENT - len(self.log) % SEGMENT
        if size + 8 > left:
            blank = struct.pack(">Ii", left, record.MAGIC_BLANK)
            self._entry(blank.ljust(left, b"\0"), 0, KIND_FILLER, crc_of=8)
            if kind == KIND_EPOCH:
                self.open_epoch(self.epoch)
            else:
                self.append(items, kind)
            return
        start, data = len(self.log), bytearray()
        for topic, queue, body in items:
            data += self._record(topic, queue, body, start + len(data))
        self._entry(bytes(data), len(items), kind)

    def _record(self, topic: str, queue: int, body: bytes, at: int) -> bytes:
        held = self.queues.setdefault((topic, queue), bytearray())
        self.clock += 1
        data = record.encode(
            topic,
            queue,
            body,
            properties=self.properties,
            queue_offset=len(held) // 20,
            log_offset=at,
            store_timestamp=self.clock,
        )
        held += QUEUE_ENTRY.pack(at, len(data), record.java_hash("a"))
        return data

    def _entry(self, data: bytes, count: int, kind: int, *, crc_of: int | None = None) -> None:
        start = len(self.log)
        self.log += data
        crc = kernels.crc32c(data[:crc_of])
        span = (start, len(data), count, self.epoch, crc)
        self.entries.append(BatchEntry(*span, self.clock if count else 0, kind, start // 2))

    @property
    def end(self) -> int:
        """Log offset after the last batch."""
        return len(self.log)

    def write(self, root: Path, *, clean: bool = True, flushed: int = 0, confirm: int = 0) -> Path:
        """Write the directory and return it."""
        for start in range(0, len(self.log), SEGMENT):
            name = file_name(start)
            put(root / "commitlog" / name, self.log[start : start + SEGMENT].ljust(SEGMENT, b"\0"))
            packed = b"".join(e.pack() for e in self.entries if start <= e.start < start + SEGMENT)
            put(root / "twinlog" / "batches" / name, packed.ljust(48 * 40, b"\0"))
        for (topic, queue), held in self.queues.items():
            for start in range(0, len(held), QUEUE_FILE):
                part = held[start : start + QUEUE_FILE].ljust(QUEUE_FILE, b"\0")
                folder = root / "consumequeue" / topic / str(queue)
                put(folder / file_name(start), part)
        if not clean:
            put(root / "abort", b"1")
        if flushed or confirm:
            payload = msgpack.packb({"flushed": flushed, "confirm": confirm})
            put(root / "twinlog" / "checkpoint", slot(payload, 7) + slot(b"\x80", 3))
        return root


def slot(payload: bytes, sequence: int) -> bytes:
    """One slot of a checkpoint file."""
    rest = struct.pack(">QI", sequence, len(payload)) + payload
    return (b"TLSL" + kernels.crc32c(rest).to_bytes(4, "big") + rest).ljust(4096, b"\0")


def put(path: Path, data: bytes | bytearray) -> None:
    """Write a file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def flip(path: Path, at: int, bit: int = 1) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def sample() -> Ours:
    """Three files, two epochs, two queues."""
    ours = Ours()
    for number in range(12):
        ours.batch(bytes([65 + number]) * 300, b"second", queue=number % 2)
    ours.open_epoch(2)
    for number in range(12):
        ours.batch(bytes([97 + number]) * 300, queue=number % 2)
    return ours

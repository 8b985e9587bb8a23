"""Byte layouts of the files of a store, as boxes with asserted sizes.

Everything is big-endian. Offsets are log offsets in bytes unless a field says otherwise; times are
milliseconds since 1970. Files have a fixed length, are created at full length and filled with
zeros; a log-like file is named by its start offset in 20 decimal digits (`file_name`), and the name
is the only place where that offset is written.

Consume queue entry, 20 bytes, entry n of a queue at byte 20 n:

    offset  size  field
         0     8  log offset of the record
         8     4  size of the record
        12     8  tags code: hash of its tag, sign-extended; 0 when it has none

Batch queue unit (RocketMQ's BatchCQ topics), 46 bytes:

    offset  size  field
         0     8  log offset
         8     4  size
        12     8  tags code
        20     8  store timestamp
        28     8  queue offset of the first inner message
        36     2  number of inner messages
        38     4  compacted offset, -1
        42     4  reserved

Queue extension unit, 20 bytes and a bit map:

    offset  size  field
         0     2  size of the unit; -1 says "go on in the next file"
         2     8  tags code
        10     8  store timestamp
        18     2  bytes of the bit map

Key index file: header of 40 bytes, slots of 4 bytes (number of the newest cell of the chain,
0 none), cells of 20 bytes (cell 0 is never used):

    offset  size  header field                       offset  size  cell field
         0     8  store timestamp of the first            0     4  hash of topic#key, >= 0
         8     8  store timestamp of the last             4     8  log offset
        16     8  log offset of the first                12     4  seconds since the header's first
        24     8  log offset of the last                 16     4  previous cell of the slot, 0 none
        32     4  slots in use
        36     4  number of the next cell, from 1

RocketMQ's checkpoint, 4096 bytes of which 40 are used: physic, logics and index timestamps,
master's flushed offset, confirm offset.

Batch index entry of ours, 48 bytes:

    offset  size  field
         0     8  start: log offset of the batch's first byte
         8     4  length, bytes
        12     4  record count
        16     4  epoch
        20     4  crc32c of the batch's bytes as stored (filler: of its first 8 bytes)
        24     8  store timestamp of the last record
        32     4  kind: 0 records, 1 filler, 2 rebuilt by scan (unproven), 3 epoch record
        36     8  flushed: this node's flushed offset when it wrote the entry
        44     4  crc32c of bytes 0..43

Epoch file (text): number of entries, CRC-32 (top bit cleared, decimal) of all later bytes, then one
line ``epoch-start`` for each epoch.

Not here: records (`twinlog.record`), frames (`twinlog.wire`).

Sources: RocketMQ 5.3 (``ConsumeQueue``, ``BatchConsumeQueue``, ``IndexFile``, ``StoreCheckpoint``,
``CheckpointFile``), the project's protocol notes for the batch index.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from twinlog.errors import CorruptionError

LIGHT_PREFIX = "%LMQ%"
"""How the names of light queues begin; each is a topic with the one queue 0."""
LIGHT_PROPERTY = b"INNER_MULTI_DISPATCH"
"""Names of the light queues that a message also goes to, separated by commas."""
LIGHT_OFFSETS_PROPERTY = b"INNER_MULTI_QUEUE_OFFSET"
"""Its queue offset in each of them, in the same order."""
LIGHT_DIGITS = 19
"""Digits of each, leading zeros included: what a signed 64-bit number may need."""

SYSTEM_TOPIC_PREFIX = "rmq_sys_TWINLOG_"
SYSTEM_TOPIC_EPOCH = "rmq_sys_TWINLOG_EPOCH"
"""Queue 0 holds the record that opens each epoch and each log file."""
SYSTEM_TOPIC_META = "rmq_sys_TWINLOG_META"
"""Queue 0 holds control records: topics, groups, producers."""

DELAY_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""RocketMQ's topic of delayed records; its tags codes are delivery times."""

QUEUE_ENTRY = struct.Struct(">QIq")
assert QUEUE_ENTRY.size == 20

BATCH_QUEUE_UNIT = struct.Struct(">qiqqqhii")
assert BATCH_QUEUE_UNIT.size == 46

QUEUE_EXT_UNIT = struct.Struct(">hqqh")
assert QUEUE_EXT_UNIT.size == 20

QUEUE_EXT_ADDRESS_MAX = -2147483649
"""A tags code at or below it is an address in the queue extension: address - 2^63."""

INDEX_HEADER = struct.Struct(">qqqqii")
assert INDEX_HEADER.size == 40
INDEX_SLOT = struct.Struct(">i")
assert INDEX_SLOT.size == 4
INDEX_CELL = struct.Struct(">iqii")
assert INDEX_CELL.size == 20

CHECKPOINT = struct.Struct(">qqqqq")
assert CHECKPOINT.size == 40
CHECKPOINT_FILE_SIZE = 4096

BATCH_ENTRY = struct.Struct(">QIIIIQIQI")
assert BATCH_ENTRY.size == 48
_BATCH_ENTRY_BODY = struct.Struct(">QIIIIQIQ")
assert _BATCH_ENTRY_BODY.size == 44

BLANK = struct.Struct(">Ii")
assert BLANK.size == 8

KIND_RECORDS = 0
"""Records of clients and control records."""
KIND_FILLER = 1
"""A blank from here to the end of the file."""
KIND_REBUILT = 2
"""Made by scanning records, so its borders and CRC prove nothing about the writer."""
KIND_EPOCH = 3
"""One epoch record, alone."""

BATCH_LENGTH_MAX = 4_259_840
"""Longest batch and longest record, bytes: RocketMQ's largest body and 64 KiB around it."""

SEGMENT_SIZE_DEFAULT = 1 << 30
QUEUE_FILE_SIZE_DEFAULT = 6_000_000
BATCH_QUEUE_FILE_SIZE_DEFAULT = 13_800_000
INDEX_SLOTS_DEFAULT = 5_000_000
INDEX_CELLS_DEFAULT = 20_000_000

_ZERO_ENTRY = bytes(48)


def file_name(offset: int) -> str:
    """Return the name of the log-like file that starts at ``offset``.

    >>> file_name(1073741824)
    '00000000001073741824'
    """
    return f"{offset:020d}"


@dataclass(slots=True, unsafe_hash=True)
class BatchEntry:
    """One entry of the batch index; see the box in the module's text for units.

    Two nodes hold the same batch when all fields but ``flushed`` are equal. A value: nobody changes
    one; frozen it would take a microsecond to make, and each batch makes three.
    """

    start: int
    length: int
    count: int
    epoch: int
    crc: int
    store_timestamp: int
    kind: int
    flushed: int

    @property
    def end(self) -> int:
        """Log offset after the batch."""
        return self.start + self.length

    def pack(self) -> bytes:
        """Return the entry's 48 bytes, with its own CRC."""
        body = _BATCH_ENTRY_BODY.pack(
            self.start,
            self.length,
            self.count,
            self.epoch,
            self.crc,
            self.store_timestamp,
            self.kind,
            self.flushed,
        )
        return body + crc32c(body).to_bytes(4, "big")

    @staticmethod
    def unpack(data: bytes | memoryview, offset: int = 0) -> BatchEntry | None:
        """Return the entry at ``offset`` of ``data``; None when it is zero or its CRC is wrong.

        `is_zero` tells the two apart. Fewer than 48 bytes count as a wrong CRC.
        """
        raw = data[offset : offset + 48]
        if len(raw) != 48:
            return None
        fields = BATCH_ENTRY.unpack(raw)
        if fields[8] != crc32c(raw[:44]) or fields[1] == 0:
            return None
        return BatchEntry(*fields[:8])


def is_zero(data: bytes | memoryview, offset: int = 0) -> bool:
    """Return whether the batch entry at ``offset`` of ``data`` was never written."""
    return data[offset : offset + 48] == _ZERO_ENTRY


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """Header of a key index file."""

    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    slots_used: int
    next_cell: int

    def pack(self) -> bytes:
        """Return the header's 40 bytes."""
        return INDEX_HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            self.next_cell,
        )

    @staticmethod
    def unpack(data: bytes | memoryview) -> IndexHeader:
        """Return the header at the start of ``data``; a never-used file has next cell 1.

        Raises:
            CorruptionError: Fewer than 40 bytes.
        """
        if len(data) < INDEX_HEADER.size:
            raise CorruptionError("key index file is shorter than its header", length=len(data))
        begin, end, first, last, slots, cell = INDEX_HEADER.unpack_from(data)
        return IndexHeader(begin, end, first, last, slots, max(cell, 1))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """RocketMQ's ``checkpoint``: times (ms) up to which files are known to be flushed."""

    physic_timestamp: int = 0
    logics_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed: int = 0
    confirm: int = 0

    @property
    def trusted_timestamp(self) -> int:
        """Records stored at or before it are in the flushed log and queues (3 s of margin)."""
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - 3000)

    def pack(self) -> bytes:
        """Return the whole file, 4096 bytes."""
        used = CHECKPOINT.pack(
            self.physic_timestamp,
            self.logics_timestamp,
            self.index_timestamp,
            self.master_flushed,
            self.confirm,
        )
        return used.ljust(CHECKPOINT_FILE_SIZE, b"\0")

    @staticmethod
    def unpack(data: bytes | memoryview) -> Checkpoint:
        """Return the checkpoint in ``data``; fewer than 40 bytes count as all zeros."""
        if len(data) < CHECKPOINT.size:
            return Checkpoint()
        return Checkpoint(*CHECKPOINT.unpack_from(data))


def epoch_file_pack(entries: Iterable[tuple[int, int]]) -> bytes:
    r"""Return the text of ``epochFileCheckpoint`` for (epoch, start) pairs, oldest first.

    >>> epoch_file_pack([(7, 7000), (8, 8000)])
    b'2\n773307083\n7-7000\n8-8000\n'
    """
    lines = [f"{epoch}-{start}\n" for epoch, start in entries]
    body = "".join(lines).encode()
    return f"{len(lines)}\n{zlib.crc32(body) & 0x7FFFFFFF}\n".encode() + body


def epoch_file_unpack(data: bytes) -> Sequence[tuple[int, int]]:
    """Return the (epoch, start) pairs of an epoch file.

    Raises:
        CorruptionError: Wrong count, wrong CRC (0 means "not checked"), or a line that is no pair.
    """
    try:
        count_line, crc_line, body = data.split(b"\n", 2)
        count, crc = int(count_line), int(crc_line)
        pairs = [tuple(map(int, line.split(b"-"))) for line in body.split()]
        entries = [(epoch, start) for epoch, start in pairs]
    except ValueError:
        raise CorruptionError("epoch file is not lines of numbers") from None
    if len(entries) != count or (crc and crc != zlib.crc32(body) & 0x7FFFFFFF):
        raise CorruptionError("epoch file does not match its count or CRC")
    return entries

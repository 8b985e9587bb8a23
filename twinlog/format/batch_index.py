"""The batch index: which bytes of the log were written as one batch, by which epoch.

Entry, 48 bytes, in files of their own beside RocketMQ's:

    offset  size  field
         0     8  start: log offset of the batch's first byte
         8     4  length, bytes
        12     4  record count
        16     4  epoch
        20     4  crc32c of the batch's bytes as stored (filler: of its first 8 bytes)
        24     8  store timestamp of the last record, ms since 1970
        32     4  kind: 0 records, 1 filler, 2 rebuilt by a scan (unproven), 3 epoch record
        36     8  flushed: this node's flushed offset when it wrote the entry
        44     4  crc32c of bytes 0..43

The entries of a log, in order and without a gap, are its chain: two nodes whose chains agree at an
offset hold the same bytes before it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

_ENTRY = struct.Struct(">QIIIIQIQI")
assert _ENTRY.size == 48
_ENTRY_BODY = struct.Struct(">QIIIIQIQ")
assert _ENTRY_BODY.size == 44

KIND_RECORDS = 0
"""Records of clients and control records."""
KIND_FILLER = 1
"""A blank from here to the end of the file."""
KIND_REBUILT = 2
"""Made by scanning records: its borders and CRC prove nothing about the writer."""
KIND_EPOCH = 3
"""One epoch record, alone."""

BATCH_LENGTH_MAX = 4_259_840
"""Longest batch and longest record, bytes: RocketMQ's largest body and 64 KiB around it."""

_ZERO_ENTRY = bytes(48)


@dataclass(slots=True, unsafe_hash=True)
class BatchEntry:
    """One entry of the batch index; see the table in the module's docstring for units.

    Two nodes hold the same batch when all fields but ``flushed`` are equal. Treat as immutable:
    declaring it frozen would add a microsecond to its construction, and each batch makes three.
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
        body = _ENTRY_BODY.pack(
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
        fields = _ENTRY.unpack(raw)
        if fields[8] != crc32c(raw[:44]) or fields[1] == 0:
            return None
        return BatchEntry(*fields[:8])


def is_zero(data: bytes | memoryview, offset: int = 0) -> bool:
    """Return whether the batch entry at ``offset`` of ``data`` was never written."""
    return data[offset : offset + 48] == _ZERO_ENTRY

"""Bytes of the log as stored, with the batch index entries to check them.

For archives and jobs that copy, check or compare the log from outside. Nothing is compared with a
CRC here, so that a job can tell a damaged copy from a good one: the entries are sent along, and the
reader compares. Bytes below confirm never change, so a piece from any node is as good as another.

A piece lies within one log file and ends at or below confirm. Its entries are those of the batches
that begin in it.

Units: log offsets in bytes. Not here: threads, sockets (``node.clients.server``).
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.log.segments import Segments
from twinlog.kernels import crc32c

ENTRIES_MAX = 16_384
"""Entries of one piece: three quarters of what the fields of an answer may hold. Of an old file
they are 17 blocks at most, which are read before the bytes are (`storage.log.sealed_index`)."""


@dataclass(frozen=True, slots=True)
class RawPiece:
    """A piece of the log.

    Attributes:
        start: Log offset of its first byte.
        end: Log offset after its last byte.
        entries: Packed entries of the batches that begin in it.
        view: Its bytes, in the mapped file.
    """

    start: int
    end: int
    entries: bytes
    view: memoryview

    def copy(self) -> bytes:
        """Return the bytes; in a worker thread, for the pages may have to come from the disk.

        The CRC is computed only because it touches every page without the interpreter lock.
        """
        crc32c(self.view)
        return bytes(self.view)


def raw_piece(segments: Segments, offset: int, *, limit: int, max_bytes: int) -> RawPiece | None:
    """Return the piece that begins at ``offset``; None when nothing below ``limit`` lies there.

    Args:
        segments: The log's files.
        offset: Any log offset from the log's start on.
        limit: Log offset that it must not reach beyond.
        max_bytes: Most bytes of it.
    """
    if offset >= limit:
        return None
    segment = segments.at(offset)
    end = min(offset + max_bytes, segment.end, limit)
    index = segment.index
    first = index.find(offset)
    if first < index.count and index.span(first)[0] < offset:
        first += 1
    last = index.find(end - 1) + 1 if end <= index.end else index.count
    if last - first > ENTRIES_MAX:
        last = first + ENTRIES_MAX
        end = index.span(last)[0]
    return RawPiece(offset, end, index.packed(first, last), segments.view(offset, end))

"""RocketMQ's ``epochFileCheckpoint``: the epochs of a log and where each starts.

Text: the number of entries, the CRC-32 (top bit cleared, decimal) of all later bytes, then one line
``epoch-start`` for each epoch, oldest first.

Sources: RocketMQ's ``EpochFileCache``, ``CheckpointFile``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from twinlog.errors import CorruptionError


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
        CorruptionError: Wrong count, wrong CRC (0 means "not checked"), or a malformed line.
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

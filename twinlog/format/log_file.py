"""Files of the commit log and of everything addressed like it.

A log-like file has a fixed length, is created at full length and filled with zeros. It is named by
its start offset in 20 decimal digits (`file_name`); the name is the only place where that offset is
written. All numbers are big-endian. A file of the commit log that has no room for the next record
ends with a blank: its length (4 bytes, to the end of the file) and RocketMQ's code for a blank.

Not here: records (`twinlog.format.record`), frames (`twinlog.wire.frames`).

Sources: RocketMQ's ``CommitLog``, ``MappedFileQueue``.
"""

from __future__ import annotations

import struct

SEGMENT_SIZE_DEFAULT = 1 << 30

BLANK = struct.Struct(">Ii")
assert BLANK.size == 8


def file_name(offset: int) -> str:
    """Return the name of the log-like file that starts at ``offset``.

    >>> file_name(1073741824)
    '00000000001073741824'
    """
    return f"{offset:020d}"

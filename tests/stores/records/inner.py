"""Records that hold several messages, well formed or not."""

from __future__ import annotations

import struct

from twinlog.format import record
from twinlog.kernels.inner import BASE_ROOM

FLAGS = 0xC0


ROOM = BASE_ROOM.decode()


def item(body: bytes = b"b", text: bytes = b"", *, size: int = 0, length: int = -1) -> bytes:
    """One message in the body of a batch; ``size`` and ``length`` are added or said instead."""
    said = len(body) if length < 0 else length
    head = struct.pack(">i12xi", 22 + len(body) + len(text) + size, said)
    return head + body + len(text).to_bytes(2, "big") + text


def batch(body: bytes, number: object, base: object = ROOM, *, flags: int = FLAGS) -> bytes:
    """A record of a batch topic; None leaves a property out."""
    named = {"INNER_NUM": number, "INNER_BASE": base}
    text = record.encode_properties({k: str(v) for k, v in named.items() if v is not None})
    return record.encode("t", 0, body, properties=text, sys_flag=flags)


TWO = item(b"one", b"k\x01v\x02") + item(b"")

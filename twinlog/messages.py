"""What callers get: receipts of what was stored and messages that were read.

A `Message` shows one record as consumers want it: body decompressed, key and tag by name. Where to
go on reading is in the message itself (`Message.next`); the caller keeps it wherever it likes.

Bodies: RocketMQ producers compress above 4 KiB by default. zlib is always understood, lz4 and
zstandard when their libraries are installed (extra ``compression``).

Not here: the record's layout (``twinlog.record``).

Sources: RocketMQ 5.3 (``MessageSysFlag``, ``CompressionType``).
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, cast

from twinlog.errors import Corrupt, UsageError
from twinlog.record import FLAG_COMPRESSED, Record, decode

COMPRESSION_MASK: Final = 0x700
_NAMES: Final[Mapping[int, str]] = {0: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}

BODY_MAX: Final = 64 << 20
"""Largest decompressed body, bytes: sixteen times the largest body a node takes by default. A
record cannot make its reader allocate more."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a record was stored.

    Attributes:
        queue_offset: Its number in the queue; -1 when the node only knows that it is stored.
        log_offset: Bytes; -1 when not known: only the first record of a section tells it.
        epoch: Of the master that answered.
        confirmed_by: Names of the nodes that have it, as far as the master said.
    """

    topic: str
    queue: int
    queue_offset: int
    log_offset: int
    epoch: int
    confirmed_by: tuple[str, ...]

    @property
    def address(self) -> str:
        """Return ``topic/queue@offset``, which ``get`` takes."""
        return f"{self.topic}/{self.queue}@{self.queue_offset}"


@dataclass(frozen=True)
class Message:
    """One message as it was read.

    Attributes:
        queue_offset: Its number in the queue.
        log_offset: Where its record begins, bytes.
        key: Index keys as stored, separated by spaces.
        properties: All of them, key and tag included.
        body: Decompressed.
        born_timestamp: When the producer made it, ms since 1970.
        store_timestamp: When the master stored it, ms since 1970.
        next: Queue offset at which to go on.
        record: Everything else that is stored.
    """

    topic: str
    queue: int
    queue_offset: int
    log_offset: int
    key: str | None
    tag: str | None
    properties: Mapping[str, str]
    body: bytes
    born_timestamp: int
    store_timestamp: int
    next: int
    record: Record

    @cached_property
    def address(self) -> str:
        """Return ``topic/queue@offset``, which ``get`` takes."""
        return f"{self.topic}/{self.queue}@{self.queue_offset}"


def message_of(record: Record) -> Message:
    """Return the message in ``record``.

    Raises:
        UsageError: Its body is compressed by a library that is not installed.
        Corrupt: Its body does not decompress.
    """
    body = record.body
    if record.sys_flag & FLAG_COMPRESSED:
        body = decompress(body, record.sys_flag & COMPRESSION_MASK)
    properties = record.properties
    return Message(
        record.topic,
        record.queue,
        record.queue_offset,
        record.log_offset,
        properties.get("KEYS"),
        properties.get("TAGS"),
        properties,
        body,
        record.born_timestamp,
        record.store_timestamp,
        record.queue_offset + 1,
        record,
    )


def messages_of(payload: memoryview | bytes) -> list[Message]:
    """Return the messages whose records lie one after the other in ``payload``.

    Raises:
        CorruptionError: A record is not what was written. Other errors as `message_of`.
    """
    found: list[Message] = []
    at, end = 0, len(payload)
    while at < end:
        record = decode(payload, at)
        found.append(message_of(record))
        at += record.size
    return found


def decompress(body: bytes, kind: int) -> bytes:
    """Return the body that a record with compression bits ``kind`` stands for.

    Raises:
        UsageError: The library is not installed, or nobody knows that kind.
        Corrupt: It does not decompress, or to more than `BODY_MAX`.
    """
    name = _NAMES.get(kind)
    if name is None:
        raise UsageError(f"the body is compressed in a way that is not known: 0x{kind:x}")
    try:
        found = _ways()[name](body)
    except ImportError as error:
        hint = "install the extra: pip install 'twinlog[compression]'"
        raise UsageError(f"the body is compressed with {name}", hint=hint) from error
    except Exception as error:  # each library has its own
        raise Corrupt(f"a body compressed with {name} does not decompress: {error}") from error
    if len(found) > BODY_MAX:
        raise Corrupt(f"a body decompresses to more than {BODY_MAX} bytes")
    return found


def _ways() -> Mapping[str, Callable[[bytes], bytes]]:
    return {"zlib": _zlib, "lz4": _lz4, "zstd": _zstd}


def _zlib(body: bytes) -> bytes:
    stream = zlib.decompressobj()
    found = stream.decompress(body, BODY_MAX + 1)
    if not stream.eof and len(found) <= BODY_MAX:
        raise ValueError("the stream ends early")
    return found


def _lz4(body: bytes) -> bytes:
    stream = importlib.import_module("lz4.frame").LZ4FrameDecompressor()
    found = cast("bytes", stream.decompress(body, BODY_MAX + 1))
    if not stream.eof and len(found) <= BODY_MAX:
        raise ValueError("the stream ends early")
    return found


def _zstd(body: bytes) -> bytes:
    library = importlib.import_module("zstandard")
    with library.ZstdDecompressor().stream_reader(body) as stream:
        return cast("bytes", stream.read(BODY_MAX + 1))

"""Compressed bodies: what a producer does to large ones and every reader undoes.

The record's system flag says how a body is stored: bit 0x1 that it is compressed, bits 0x700 with
what. RocketMQ's clients do the same with the same bits, so each reads the other's.

    0x100 lz4 (frame format)    0x200 zstandard (frame)    0x300 zlib    0 with bit 0x1: zlib

A producer compresses bodies from `FROM` bytes on, when that makes them smaller; nodes store what
they get. zlib is always there, lz4 and zstandard come with the extra ``compression``.

A reader bounds what a record can make it allocate: no body becomes larger than `BODY_MAX`, and a
producer refuses one that would.

Not here: the record's layout (``twinlog.format.record``).

Sources: RocketMQ 5.3 (``MessageSysFlag``, ``CompressionType``, ``DefaultMQProducerImpl``).
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from twinlog.errors import Corrupt, RecordRefused, UsageError
from twinlog.format.record import FLAG_COMPRESSED
from twinlog.units import KiB, MiB

COMPRESSION_MASK: Final = 0x700
_NAMES: Final[Mapping[int, str]] = {0: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}
_BITS: Final[Mapping[str, int]] = {"lz4": 0x100, "zstd": 0x200, "zlib": 0x300}

FROM: Final = 4 * KiB
"""Smallest body that is compressed, bytes; RocketMQ's default."""

BODY_MAX: Final = 64 * MiB
"""Largest decompressed body, bytes: sixteen times the largest body a node takes by default."""

LEVELS: Final[Mapping[str, tuple[int, int, int]]] = {
    "zlib": (1, 9, 5),
    "lz4": (0, 16, 0),
    "zstd": (1, 22, 5),
}
"""Lowest, highest and default level; 5 is RocketMQ's, which gives lz4 none."""

WINDOW_MAX: Final = 128 * MiB
"""What a zstandard frame may ask its reader to keep, bytes: what the highest level asks for."""

HINT: Final = "install the extra: pip install 'twinlog[compression]'"


@dataclass(frozen=True, slots=True)
class Compression:
    """How a producer compresses.

    Attributes:
        kind: ``zlib``, ``lz4`` or ``zstd``.
        level: See `LEVELS`.
    """

    kind: str
    level: int

    def pack(self, body: bytes) -> tuple[bytes, int]:
        """Return the bytes to store for ``body``, and the system flag that goes with them.

        Raises:
            RecordRefused: No client could read it back: it has more than `BODY_MAX` bytes.
        """
        if len(body) < FROM:
            return body, 0
        if len(body) > BODY_MAX:
            text = f"the message has {len(body)} bytes, at most {BODY_MAX} can be read back"
            raise RecordRefused(text, record=0, reason="size")
        packed = _PACKING[self.kind](body, self.level)
        if len(packed) >= len(body):
            return body, 0
        return packed, FLAG_COMPRESSED | _BITS[self.kind]


def parse_compression(text: str | None) -> Compression | None:
    """Return the setting that ``zstd``, ``zlib:9`` and the like name; None for None and ``none``.

    Raises:
        UsageError: The kind or level is unknown, or its library is not installed.

    >>> parse_compression("zlib:9")
    Compression(kind='zlib', level=9)
    """
    if text is None or text == "none":
        return None
    kind, colon, number = text.partition(":")
    known = LEVELS.get(kind)
    if known is None:
        hint = f"write none or {', '.join(LEVELS)}, optionally with a level after a colon: zlib:9"
        raise UsageError(f"there is no compression {kind!r}", code="compression", hint=hint)
    low, high, level = known
    if colon:
        level = int(number) if number.isdecimal() and len(number) < 4 else -1
        if not low <= level <= high:
            what = f"{kind} has levels {low} to {high}, not {number!r}"
            raise UsageError(what, code="compression")
    try:
        _PACKING[kind](b"", level)
    except ImportError as error:
        what = f"{kind} is not installed"
        raise UsageError(what, code="compression", hint=HINT) from error
    return Compression(kind, level)


def decompress(body: bytes, kind: int) -> bytes:
    """Return the body that a record with compression bits ``kind`` stands for.

    Raises:
        UsageError: The library is not installed, or the kind is unknown.
        Corrupt: It does not decompress, or to more than `BODY_MAX`.
    """
    name = _NAMES.get(kind)
    if name is None:
        raise UsageError(f"the body is compressed in a way that is not known: 0x{kind:x}")
    try:
        found = _UNPACKING[name](body)
    except ImportError as error:
        raise UsageError(f"the body is compressed with {name}", hint=HINT) from error
    except Exception as error:  # each library has its own
        raise Corrupt(f"a body compressed with {name} does not decompress: {error}") from error
    if len(found) > BODY_MAX:
        raise Corrupt(f"a body decompresses to more than {BODY_MAX} bytes")
    return found


def _unpack_zlib(body: bytes) -> bytes:
    stream = zlib.decompressobj()
    found = stream.decompress(body, BODY_MAX + 1)
    if not stream.eof and len(found) <= BODY_MAX:
        raise ValueError("the stream ends early")
    return found


def _unpack_lz4(body: bytes) -> bytes:
    stream = importlib.import_module("lz4.frame").LZ4FrameDecompressor()
    found = cast("bytes", stream.decompress(body, BODY_MAX + 1))
    if not stream.eof and len(found) <= BODY_MAX:
        raise ValueError("the stream ends early")
    return found


def _unpack_zstd(body: bytes) -> bytes:
    library = importlib.import_module("zstandard")
    checksum = 4 if library.get_frame_parameters(body).has_checksum else 0
    if _end_of_zstd(body, library.frame_header_size(body)) + checksum > len(body):
        raise ValueError("the frame ends early")
    decompressor = library.ZstdDecompressor(max_window_size=WINDOW_MAX)
    with decompressor.stream_reader(body) as stream:
        return cast("bytes", stream.read(BODY_MAX + 1))


def _end_of_zstd(body: bytes, at: int) -> int:
    """Return where the last block of a frame ends whose first begins at ``at``.

    The library takes the end of its input for the end of the frame, and would return what a cut
    frame begins with.
    """
    while at + 3 <= len(body):
        head = int.from_bytes(body[at : at + 3], "little")
        repeated = head >> 1 & 3 == 1  # one byte stands for the whole block
        at += 3 + (1 if repeated else head >> 3)
        if head & 1:
            return at
    return len(body) + 1


_UNPACKING: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "zlib": _unpack_zlib,
    "lz4": _unpack_lz4,
    "zstd": _unpack_zstd,
}


def _pack_lz4(body: bytes, level: int) -> bytes:
    frame = importlib.import_module("lz4.frame")
    # RocketMQ's reader refuses frames whose blocks refer to each other, the library's default
    return cast("bytes", frame.compress(body, compression_level=level, block_linked=False))


def _pack_zstd(body: bytes, level: int) -> bytes:
    library = importlib.import_module("zstandard")
    return cast("bytes", library.ZstdCompressor(level=level).compress(body))


_PACKING: Final[Mapping[str, Callable[[bytes, int], bytes]]] = {
    "zlib": zlib.compress,
    "lz4": _pack_lz4,
    "zstd": _pack_zstd,
}

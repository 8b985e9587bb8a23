"""The fields of one record: where they are, what they say; plain Python.

`parts_of` and `rest_of` find the parts of a record without reading outside the range they are
given, whatever lengths its bytes claim; the loops of `twinlog.kernels.plain` stand on them. The
byte box is described there.

Not here: loops over many records.

Sources: RocketMQ 5.3 (``CommitLog.checkMessageAndReturnSize``, ``MessageDecoder``,
``IndexFile.indexKeyHashMethod``).
"""

from __future__ import annotations

import importlib
import struct
import zlib
from collections.abc import Callable, Iterator

from crc32c import crc32c as _crc32c

from twinlog.kernels import codes

try:
    _fast = importlib.import_module("isal.isal_zlib")
except ImportError:  # no wheel for this machine: the standard library is slower, not different
    _fast = zlib

Buffer = bytes | bytearray | memoryview
"""What a kernel reads."""

_crc32: Callable[[Buffer, int], int] = _fast.crc32

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MAGIC_BLANK = -875286124

FIXED = struct.Struct(">iiiiiqqiq")
assert FIXED.size == 48
TAIL = struct.Struct(">iqi")
BLANK = struct.Struct(">Ii")
_I16 = struct.Struct(">h")
I64 = struct.Struct(">q")

BORN_V6 = 0x10
STORE_V6 = 0x20
TRANSACTION = 0xC
PREPARED = 0x4
ROLLBACK = 0xC
CRC_PROPERTY = b"__CRC32#"
_DELAY_TOPIC = b"SCHEDULE_TOPIC_XXXX"

DELAY_LEVELS_MS: tuple[int, ...] = tuple(
    1000 * seconds for seconds in (1, 5, 10, 30, *range(60, 660, 60), 1200, 1800, 3600, 7200)
)
"""RocketMQ's default delay of levels 1 to 18."""
assert len(DELAY_LEVELS_MS) == 18

Parts = tuple[int, int, int, int, int]
"""size, system flag, start and length of the body, start of the topic's length field."""


def crc32(data: Buffer, value: int = 0) -> int:
    """Return CRC-32 (IEEE) of ``data``, continuing from ``value``; all 32 bits."""
    return _crc32(data, value)


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return CRC-32C (Castagnoli) of ``data``, continuing from ``value``."""
    return _crc32c(data, value)


def java_hash(text: bytes) -> int:
    """Return Java's ``String.hashCode`` of UTF-8 ``text``: over UTF-16 units, signed 32 bits."""
    units = text.decode("utf-8", "replace").encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def check_bounds(data: Buffer, start: int, end: int) -> None:
    """Refuse a range that is not inside the buffer.

    Raises:
        ValueError: It does not; the caller is wrong.
    """
    if not 0 <= start <= end <= len(data):
        raise ValueError(f"{start}..{end} is not in a buffer of {len(data)} bytes")


def parts_of(data: Buffer, at: int, end: int) -> Parts | int:
    """Return the parts of the record at ``at``, or a code; `rest_of` checks topic and the rest."""
    if end - at < 8:
        return codes.SIZE
    size, magic = struct.unpack_from(">ii", data, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return codes.MAGIC
    if size < 91 or size > end - at:
        return codes.SIZE
    (flag,) = struct.unpack_from(">i", data, at + 36)
    hosts = (20 if flag & BORN_V6 else 8) + (20 if flag & STORE_V6 else 8)
    if size < 74 + hosts:
        return codes.SIZE
    (body,) = struct.unpack_from(">i", data, at + 68 + hosts)
    start = at + 72 + hosts
    length = max(body, 0)
    if length > at + size - start:
        return codes.SIZE
    return size, flag, start, length, start + length


def rest_of(data: Buffer, at: int, size: int, topic_at: int) -> tuple[int, int, int, int] | None:
    """Return start and length of topic and properties; None when the sizes do not add up."""
    end = at + size
    if struct.unpack_from(">i", data, at + 4)[0] == MAGIC_V1:
        if end - topic_at < 3:
            return None
        length = data[topic_at]
        topic = topic_at + 1
        if length > 127:
            return None
    else:
        if end - topic_at < 4:
            return None
        (length,) = _I16.unpack_from(data, topic_at)
        topic = topic_at + 2
        if length < 0:
            return None
    if end - topic < length + 2:
        return None
    (properties,) = _I16.unpack_from(data, topic + length)
    properties = max(properties, 0)
    if topic + length + 2 + properties != end:
        return None
    return topic, length, topic + length + 2, properties


def whole_records(
    data: Buffer, start: int, end: int
) -> Iterator[tuple[int, Parts, tuple[int, int, int, int]]]:
    """Yield index, parts and rest of each record up to the first that does not hold together."""
    check_bounds(data, start, end)
    at = start
    while at < end:
        parts = parts_of(data, at, end)
        rest = None if isinstance(parts, int) else rest_of(data, at, parts[0], parts[4])
        if isinstance(parts, int) or rest is None:
            return
        yield at, parts, rest
        at += parts[0]


def property_of(text: Buffer, name: bytes) -> bytes | None:
    """Return the last non-empty value of ``name`` in encoded properties, as RocketMQ parses."""
    found = None
    for item in bytes(text).split(b"\x02"):
        key, _, value = item.partition(b"\x01")
        if key == name and value:
            found = value
    return found


def accept(data: Buffer, at: int, end: int, check_crc: bool) -> tuple[int, int, int]:
    """Return (code, size, store timestamp) of the record at ``at``, as recovery judges it."""
    parts = parts_of(data, at, end)
    if isinstance(parts, int):
        return parts, 0, 0
    size, flag, body, length, topic_at = parts
    if rest_of(data, at, size, topic_at) is None:
        return codes.SIZE, 0, 0
    if check_crc and length:
        (crc,) = struct.unpack_from(">i", data, at + 8)
        if crc32(data[body : body + length]) & 0x7FFFFFFF != crc:
            return codes.CRC, 0, 0
    (stamp,) = I64.unpack_from(data, at + 48 + (20 if flag & BORN_V6 else 8))
    return codes.FINE, size, stamp


def tags_code(topic: bytes, properties: Buffer, store_timestamp: int) -> int:
    """Return the tags code that dispatch computes for a record.

    The hash of ``TAGS``; in the delay topic the time of delivery.
    """
    if topic == _DELAY_TOPIC:
        level = _delay_level(property_of(properties, b"DELAY"))
        if level > 0:
            due = store_timestamp + DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]
            return (due + 2**63) % 2**64 - 2**63
    tags = property_of(properties, b"TAGS")
    return java_hash(tags) if tags else 0


def _delay_level(text: bytes | None) -> int:
    """Return the level; 0 for what is no decimal number of up to nine digits."""
    if text is None or len(text) > 9 or not text.isdigit():
        return 0
    return int(text)


def key_hash(text: bytes) -> int:
    """Return the key index's hash of ``topic#key``: Java's absolute value, 0 for -2^31."""
    value = java_hash(text)
    return 0 if value == -0x8000_0000 else abs(value)


Split = tuple[
    str,
    int,
    int,
    int,
    bytes,
    dict[str, str],
    int,
    int,
    int,
    bytes,
    int,
    bytes,
    int,
    int,
    int,
    int,
    int,
]
"""The fields of a record in the order of `twinlog.format.record.Record`, hosts as bytes."""


def split_properties(data: Buffer) -> dict[str, str]:
    """Return encoded properties as RocketMQ reads them; see `twinlog.format.record`."""
    found: dict[str, str] = {}
    for item in bytes(data).split(b"\x02"):
        name, _, value = item.partition(b"\x01")
        if name and value:
            found[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return found


def split_record(data: Buffer, at: int, *, check_crc: bool = True) -> Split | int:
    """Return the fields of the record at ``at``, or the code that says why no record is there.

    Accepts what `walk` accepts. What follows the record does not matter.
    """
    check_bounds(data, at, len(data))
    code, size, stamp = accept(data, at, len(data), check_crc)
    parts = parts_of(data, at, len(data))
    rest = None if isinstance(parts, int) else rest_of(data, at, size, parts[4])
    if code or isinstance(parts, int) or rest is None:
        return code
    _, magic, crc, queue, flag, queue_offset, log_offset, sys_flag, born = FIXED.unpack_from(
        data, at
    )
    _, _, body, body_length, _ = parts
    reconsume, prepared, _ = TAIL.unpack_from(data, body - 16)
    topic, topic_length, text, text_length = rest
    host = at + 48 + (20 if sys_flag & BORN_V6 else 8)
    return (
        bytes(data[topic : topic + topic_length]).decode("utf-8", "replace"),
        queue,
        queue_offset,
        log_offset,
        bytes(data[body : body + body_length]),
        split_properties(data[text : text + text_length]),
        flag,
        sys_flag,
        born,
        bytes(data[at + 48 : host]),
        stamp,
        bytes(data[host + 8 : body - 16]),
        reconsume,
        prepared,
        crc,
        size,
        magic,
    )

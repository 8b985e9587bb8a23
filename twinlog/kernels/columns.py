"""Columns of many records at once, in the layout of Arrow; the plain twin of ``columns.pxi``.

A column is its Arrow buffers as bytearrays, so that pyarrow wraps them without a copy:

* numbers: the values, in the machine's byte order (widths in `NUMBERS`); times are microseconds,
  ``crc_ok`` is one byte for each row;
* texts and bytes: (validity or None, int32 offsets, values);
* properties: (int32 offsets of entries, names, values), the last two as texts.

Text is UTF-8 whatever the record says: other bytes become U+FFFD, as everywhere
(`twinlog.format.record`). Properties follow RocketMQ's reading rules; a name stands once in a row,
with its last value.

Not here: where records begin (queue entries know), compressed bodies and inner batches
(``twinlog.spark.plan.decoding``).

Sources: Apache Arrow's columnar format (variable-size binary layout, validity bitmaps).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable

from twinlog.kernels import codes
from twinlog.kernels.fields import (
    I64,
    Buffer,
    accept,
    check_bounds,
    crc32,
    parts_of,
    rest_of,
    split_properties,
)

NUMBERS: dict[str, str] = {
    "queue": "i",
    "queue_offset": "q",
    "log_offset": "q",
    "store_time": "q",
    "born_time": "q",
    "size": "i",
    "body_crc": "q",
    "flag": "i",
    "sys_flag": "i",
    "reconsume_times": "i",
    "prepared": "q",
    "crc_ok": "B",
}
"""Columns of numbers and their width, as `array` names it."""
TEXTS: tuple[str, ...] = (
    "topic",
    "body",
    "properties_raw",
    "born_host",
    "store_host",
    "key",
    "tags",
    "unique_id",
)
"""Columns of text or bytes; the last three may be null."""
NULLABLE = frozenset({"key", "tags", "unique_id"})
NAMES: tuple[str, ...] = (*NUMBERS, *TEXTS, "properties")
"""All columns; the order is that of the bits in `mask`."""

_COLUMN_BYTES_MAX = 0x7FFFFFFF
_FLAGS = {"KEYS": "key", "TAGS": "tags", "UNIQ_KEY": "unique_id"}

Text = tuple[bytearray | None, bytearray, bytearray]
Column = bytearray | Text | tuple[bytearray, Text, Text]


def mask(wanted: Iterable[str]) -> int:
    """Return the bits of column names.

    Raises:
        ValueError: A name is not in `NAMES`.
    """
    return sum(1 << NAMES.index(name) for name in set(wanted))


def record_starts(data: Buffer, start: int, end: int) -> tuple[bytearray, int, int]:
    """Walk whole records from ``start`` on; bodies are not checked.

    Returns:
        (indexes as int64, where the walk stopped, code). Code FINE: ``end`` was reached; BLANK: a
        blank begins where it stopped; otherwise what is wrong there.
    """
    check_bounds(data, start, end)
    found, at, code = array("q"), start, codes.FINE
    while at < end:
        if end - at >= 8 and struct.unpack_from(">I", data, at + 4)[0] == 0xCBD43194:
            code = codes.BLANK
            break
        code, size, _ = accept(data, at, end, check_crc=False)
        if code:
            break
        found.append(at)
        at += size
    return bytearray(found.tobytes()), at, code


class _Texts:
    """A column of text or bytes while it is filled."""

    def __init__(self, nullable: bool) -> None:
        self._nullable = nullable
        self._offsets = array("i", [0])
        self._values = bytearray()
        self._valid: list[bool] = []

    def put(self, value: bytes | None) -> None:
        """Add one value."""
        self._values += value or b""
        self._offsets.append(len(self._values))
        self._valid.append(value is not None)

    def __len__(self) -> int:
        return len(self._valid)

    def take(self) -> Text:
        """Return its buffers."""
        valid = None
        if self._nullable:
            valid = bytearray((len(self) + 7) // 8)
            for i, there in enumerate(self._valid):
                valid[i >> 3] |= there << (i & 7)
        return valid, bytearray(self._offsets.tobytes()), self._values


class _Rows:
    def __init__(self, wanted: Iterable[str]) -> None:
        self.wanted = frozenset(wanted)
        mask(self.wanted)
        self.numbers: dict[str, array[int]] = {
            name: array(NUMBERS[name]) for name in NUMBERS if name in self.wanted
        }
        self.texts = {name: _Texts(name in NULLABLE) for name in TEXTS if name in self.wanted}
        self.entries = array("i", [0])
        self.names, self.values = _Texts(False), _Texts(False)

    def add(self, data: Buffer, at: int, parts: tuple[int, int, int, int, int]) -> None:
        size, flag, body, length, topic_at = parts
        rest = rest_of(data, at, size, topic_at)
        assert rest is not None, "the record was proven"
        topic, topic_length, text, text_length = rest
        stamp = at + (68 if flag & 0x10 else 56)
        found = split_properties(data[text : text + text_length])
        _, _, crc, queue, user, queue_offset, log_offset, sys_flag, born = struct.unpack_from(
            ">iiIiiqqiq", data, at
        )
        reconsume, prepared = struct.unpack_from(">iq", data, body - 16)
        (stored,) = I64.unpack_from(data, stamp)
        fine = not length or crc32(data[body : body + length]) & 0x7FFFFFFF == crc
        numbers = (queue, queue_offset, log_offset, _micros(stored), _micros(born), size, crc)
        rest_numbers = (user, sys_flag, reconsume, prepared, fine)
        for name, value in zip(NUMBERS, (*numbers, *rest_numbers), strict=True):
            if name in self.numbers:
                self.numbers[name].append(value)
        texts: dict[str, bytes | None] = {
            "topic": _clean(data[topic : topic + topic_length]),
            "body": bytes(data[body : body + length]),
            "properties_raw": bytes(data[text : text + text_length]),
            "born_host": bytes(data[at + 48 : stamp]),
            "store_host": bytes(data[stamp + 8 : body - 16]),
        }
        for name, column in _FLAGS.items():
            texts[column] = found[name].encode("utf-8") if name in found else None
        for name, held in self.texts.items():
            held.put(texts[name])
        if "properties" in self.wanted:
            for name, value in found.items():
                self.names.put(name.encode())
                self.values.put(value.encode())
            self.entries.append(len(self.names))

    def take(self) -> dict[str, Column]:
        out: dict[str, Column] = {
            name: bytearray(values.tobytes()) for name, values in self.numbers.items()
        }
        out |= {name: column.take() for name, column in self.texts.items()}
        if "properties" in self.wanted:
            entries = bytearray(self.entries.tobytes())
            out["properties"] = (entries, self.names.take(), self.values.take())
        return out


def _micros(ms: int) -> int:
    """Return microseconds, in 64 bits as Arrow holds them."""
    return (ms * 1000 + (1 << 63)) % (1 << 64) - (1 << 63)


def _clean(text: Buffer) -> bytes:
    return bytes(text).decode("utf-8", "replace").encode()


def decode_columns(
    data: Buffer,
    starts: Buffer,
    wanted: Iterable[str],
    *,
    log_offset: int = -1,
    check_crc: bool = False,
) -> tuple[int, int, dict[str, Column]]:
    """Decode the records that begin at ``starts`` into the ``wanted`` columns.

    Args:
        data: Buffer that holds the records; nothing of it is referred to afterwards.
        starts: Index of each record in it, as int64 in the machine's byte order.
        wanted: Names of `NAMES`.
        log_offset: Log offset of the buffer's first byte: each record must name its own place;
            -1: it may name any.
        check_crc: Compare each body with its CRC.

    Returns:
        (rows, code, columns): all rows with code FINE, or those before the first bad record with
        what is wrong with it, see `twinlog.kernels.codes`; COUNT says that a column would exceed
        2 GiB there.

    Raises:
        ValueError: ``wanted`` names no column, or ``starts`` is no list of 64-bit numbers.
    """
    places = array("q")
    places.frombytes(bytes(starts))
    rows, code = _Rows(wanted), codes.FINE
    bodies = texts = topics = done = 0
    for at in places:
        if not 0 <= at <= len(data):
            code = codes.SIZE
            break
        code = accept(data, at, len(data), check_crc=False)[0]
        if not code and log_offset >= 0 and I64.unpack_from(data, at + 28)[0] != log_offset + at:
            code = codes.OFFSET
        if not code and check_crc:
            code = accept(data, at, len(data), check_crc=True)[0]
        if code:
            break
        parts = parts_of(data, at, len(data))
        assert not isinstance(parts, int), "the record was accepted"
        bodies += parts[3]
        rest = rest_of(data, at, parts[0], parts[4])
        assert rest is not None, "the record was accepted"
        topics, texts = topics + 3 * rest[1], texts + 3 * rest[3]
        if max(bodies, topics, texts) > _COLUMN_BYTES_MAX:
            code = codes.COUNT
            break
        rows.add(data, at, parts)
        done += 1
    return done, code, rows.take()

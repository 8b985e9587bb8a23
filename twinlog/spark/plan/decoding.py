"""From records to Arrow batches: the one decoder of the sources and the jobs.

The kernel fills Arrow buffers for the wanted columns (`twinlog.kernels.columns`); here they are
wrapped without a copy, columns that a record does not hold are added, and rare rows are unfolded:
compressed bodies one by one, inner batches into one row for each message.

Arrow types are exactly those of the schema: Spark compares them and casts nothing.

Units: log offsets in bytes, times in microseconds. Not here: reading bytes, choosing rows by queue.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from twinlog import kernels
from twinlog.errors import CorruptionError
from twinlog.format.compression import COMPRESSION_MASK
from twinlog.format.record import (
    FLAG_COMPRESSED,
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    decode,
    encode,
    unpack_host,
)
from twinlog.spark.arrow import np, pa
from twinlog.spark.errors import DataLossError
from twinlog.spark.plan.columns import Column
from twinlog.units import MiB

INFLATED_MAX = 256 * MiB
"""Largest body after decompression; a larger one is refused: a few bytes may claim terabytes."""
SYS_FLAG_LOW = 39
"""Index of the lowest byte of the system flag in a record."""
_ITEM_HEAD = struct.Struct(">iiiii")
assert _ITEM_HEAD.size == 20


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Decoded records.

    Attributes:
        count: How many.
        raw: Column of `twinlog.kernels.columns` -> buffers.
    """

    count: int
    raw: dict[str, Any]

    def numbers(self, name: str) -> Any:
        """Return a column of numbers as an array."""
        kind = _KINDS.get(name, np.int64)
        return np.frombuffer(self.raw[name], kind, self.count)

    def text(self, name: str, kind: Any) -> Any:
        """Return a column of text or bytes as an Arrow array of ``kind``."""
        return _text(self.raw[name], self.count, kind)


_HALF = ("queue", "size", "flag", "sys_flag", "reconsume_times")
_KINDS: dict[str, Any] = {**dict.fromkeys(_HALF, np.int32), "crc_ok": np.uint8}


def _text(buffers: Any, count: int, kind: Any) -> Any:
    valid, offsets, values = buffers
    held = None if valid is None else pa.py_buffer(valid)
    return pa.Array.from_buffers(kind, count, [held, pa.py_buffer(offsets), pa.py_buffer(values)])


@dataclass(frozen=True, slots=True)
class Context:
    """What the records themselves do not say.

    Attributes:
        broker: Name of the group; None where unknown.
        epochs: (start, epoch), oldest first; empty where the store keeps none.
        tier: ``live`` or ``archive``.
    """

    broker: str | None = None
    epochs: tuple[tuple[int, int], ...] = ()
    tier: str = "live"


class UnreadableBodies(Exception):
    """Some bodies are not what their flags say; ``rows`` has the index of each row, and why."""

    def __init__(self, rows: Sequence[tuple[int, str]]) -> None:
        super().__init__(rows)
        self.rows = tuple(rows)


class Decoder:
    """Makes batches of the wanted columns.

    Args:
        columns: The schema, in its order.
        context: What the records do not say.
        decompress: Whether bodies are handed out decompressed.
        check_crc: Whether each body must match its CRC.
        also: Further columns of the kernel that the caller looks at.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        context: Context,
        *,
        decompress: bool = True,
        check_crc: bool = True,
        also: Sequence[str] = (),
    ) -> None:
        self._columns = tuple(columns)
        self._context = context
        self._check_crc = check_crc
        self._inflate = decompress and any("body" in column.kernel for column in columns)
        self.kernel = frozenset({"sys_flag", *also}).union(*(c.kernel for c in columns))
        self.schema = pa.schema([pa.field(c.name, arrow_type(c.sql)) for c in columns])

    def rows(self, data: Any, starts: Any) -> tuple[DecodedRows, int]:
        """Decode records; see `twinlog.kernels.columns.decode_columns`.

        Returns:
            (rows, code): all of them, or those before the first bad one.
        """
        count, code, raw = kernels.decode_columns(
            memoryview(data), starts, self.kernel, check_crc=self._check_crc
        )
        return DecodedRows(count, raw), code

    def batch(self, rows: DecodedRows, tags_codes: Any) -> Any:
        """Return the Arrow batch of ``rows``; one row for each record.

        Raises:
            UnreadableBodies: Some bodies cannot be decompressed.
        """
        made = [self._array(column, rows, tags_codes) for column in self._columns]
        if not made:  # a count: rows without columns still have a number
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows.count, type=pa.struct([])))
        return pa.RecordBatch.from_arrays(made, schema=self.schema)

    def _array(self, column: Column, rows: DecodedRows, tags_codes: Any) -> Any:
        makers: dict[str, Callable[[], Any]] = {
            "epoch": lambda: self._epochs(rows),
            "broker": lambda: self._constant(self._context.broker, rows.count),
            "tier": lambda: self._constant(self._context.tier, rows.count),
            "tags_code": lambda: pa.array(np.ascontiguousarray(tags_codes, np.int64)),
            "crc_ok": lambda: pa.array(rows.numbers("crc_ok") != 0),
            "timestampType": lambda: pa.array(np.ones(rows.count, np.int32)),
            "headers": lambda: _headers(rows),
            "properties": lambda: _map(rows),
            "born_host": lambda: _hosts(rows, "born_host"),
            "store_host": lambda: _hosts(rows, "store_host"),
        }
        made = makers.get(column.name)
        if made is not None:
            return made()
        if column.of:
            return _property(rows, column.of)
        (name,) = column.kernel
        kind = arrow_type(column.sql)
        if name == "body":
            return self._bodies(rows)
        buffers = rows.raw[name]
        if isinstance(buffers, tuple):
            return rows.text(name, kind)
        return pa.Array.from_buffers(kind, rows.count, [None, pa.py_buffer(buffers)])

    def _bodies(self, rows: DecodedRows) -> Any:
        stored = rows.text("body", pa.binary())
        if not self._inflate:
            return stored
        flags = rows.numbers("sys_flag")
        packed = np.flatnonzero(flags & FLAG_COMPRESSED)
        if not len(packed):
            return stored
        bodies, bad = stored.to_pylist(), list[tuple[int, str]]()
        for i in packed.tolist():
            try:
                bodies[i] = inflate(bodies[i], int(flags[i]))
            except DataLossError as error:
                bad.append((i, error.text))
        if bad:
            raise UnreadableBodies(bad)
        return pa.array(bodies, pa.binary())

    def _epochs(self, rows: DecodedRows) -> Any:
        epochs = self._context.epochs
        if not epochs:
            return pa.nulls(rows.count, pa.int32())
        starts = np.array([start for start, _ in epochs], np.int64)
        names = np.array([epoch for _, epoch in epochs], np.int32)
        at = np.searchsorted(starts, rows.numbers("log_offset"), "right") - 1
        return pa.array(names[np.maximum(at, 0)], mask=at < 0)

    def _constant(self, value: str | None, count: int) -> Any:
        if value is None:
            return pa.nulls(count, pa.string())
        return pa.repeat(pa.scalar(value, pa.string()), count)


@cache
def arrow_type(sql: str) -> Any:
    """Return the Arrow type that Spark expects for one of our SQL types."""
    kinds: dict[str, Any] = {
        "STRING": pa.string(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "BOOLEAN": pa.bool_(),
        "BINARY": pa.binary(),
        "TIMESTAMP": pa.timestamp("us", "UTC"),
        "MAP<STRING,STRING>": pa.map_(pa.string(), pa.string()),
    }
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return kinds.get(sql, pa.list_(header))


def _map(rows: DecodedRows) -> Any:
    entries, names, values = rows.raw["properties"]
    count = len(entries) // 4 - 1
    total = np.frombuffer(entries, np.int32)[-1]
    kind = pa.map_(pa.string(), pa.string())
    pairs = pa.StructArray.from_arrays(
        [_text(names, total, pa.string()), _text(values, total, pa.string())],
        fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())],
    )
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(entries)], children=[pairs])


def _property(rows: DecodedRows, name: str) -> Any:
    """Return one property of each row; null where a row has none of that name."""
    compute = importlib.import_module("pyarrow.compute")
    return compute.map_lookup(_map(rows), pa.scalar(name, pa.string()), "first")


def _headers(rows: DecodedRows) -> Any:
    entries, names, values = rows.raw["properties"]
    total = np.frombuffer(entries, np.int32)[-1]
    pairs = pa.StructArray.from_arrays(
        [_text(names, total, pa.string()), _text(values, total, pa.binary())],
        names=["key", "value"],
    )
    offsets = pa.Array.from_buffers(pa.int32(), rows.count + 1, [None, pa.py_buffer(entries)])
    return pa.ListArray.from_arrays(offsets, pairs)


def _hosts(rows: DecodedRows, name: str) -> Any:
    coded = rows.text(name, pa.binary()).dictionary_encode()
    words = pa.array([unpack_host(host) for host in coded.dictionary.to_pylist()], pa.string())
    return words.take(coded.indices)


def inflate(body: bytes, flag: int) -> bytes:
    """Return a decompressed body.

    Raises:
        DataLossError: It is not what the flag says, or larger than `INFLATED_MAX`.
    """
    name = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}.get(flag >> 8 & 7)
    try:
        if name is None:
            raise ValueError("an unknown compression")
        if name == "zlib":
            work = zlib.decompressobj()
            found = work.decompress(body, INFLATED_MAX)
            whole = work.eof
        else:
            with pa.input_stream(pa.py_buffer(body), compression=name) as stream:
                found = stream.read(INFLATED_MAX)
                whole = not stream.read(1)
    except (ValueError, OSError, zlib.error) as error:
        text = f"a body cannot be decompressed: {error}"
        raise DataLossError(text, hint="set decompress to false to see it as stored") from None
    if not whole:
        text = f"a body is cut off, or larger than {INFLATED_MAX} bytes when decompressed"
        raise DataLossError(text, hint="set decompress to false to see it as stored")
    return bytes(found)


def as_stored(data: Any, starts: Any, sizes: Any) -> Any:
    """Return a batch with one column, ``record``: the bytes of each record, as the log has them.

    Nothing is decompressed, and an inner batch is one record.
    """
    view = memoryview(data)
    spans = zip(starts.tolist(), sizes.tolist(), strict=True)
    records = pa.array([bytes(view[at : at + size]) for at, size in spans], pa.binary())
    return pa.RecordBatch.from_arrays([records], ["record"])


def inner_rows(rows: DecodedRows) -> Any:
    """Return the indexes of rows that hold several messages."""
    return np.flatnonzero(rows.numbers("sys_flag") & FLAG_INNER_BATCH)


def are_inner(data: Any, starts: Any) -> Any:
    """Return for each record that begins at an index of ``starts`` whether it is an inner batch."""
    return (np.frombuffer(data, np.uint8)[starts + SYS_FLAG_LOW] & FLAG_INNER_BATCH) != 0


def unfold(data: Any, at: int) -> bytes:
    """Return the messages of an inner batch as records of their own, one after the other.

    Hosts, times and place are those of the batch; queue offsets rise by one; flag, body and
    properties are each message's own.

    Raises:
        CorruptionError: The body does not hold whole messages.
    """
    outer = decode(data, at, check_crc=False)
    body, flag = outer.body, outer.sys_flag & ~(FLAG_INNER_BATCH | FLAG_NEED_UNWRAP)
    if flag & FLAG_COMPRESSED:
        body, flag = inflate(body, flag), flag & ~(FLAG_COMPRESSED | COMPRESSION_MASK)
    out = bytearray()
    for i, (item_flag, text, properties) in enumerate(_items(body, outer.log_offset)):
        out += encode(
            outer.topic,
            outer.queue,
            text,
            queue_offset=outer.queue_offset + i,
            log_offset=outer.log_offset,
            properties=properties,
            flag=item_flag,
            sys_flag=flag,
            born_timestamp=outer.born_timestamp,
            born_host=_address(outer.born_host),
            store_timestamp=outer.store_timestamp,
            store_host=_address(outer.store_host),
        )
    return bytes(out)


def _items(body: bytes, log_offset: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (flag, body, properties) of the messages in the body of an inner batch."""
    at = 0
    while at < len(body):
        if len(body) - at < _ITEM_HEAD.size + 2:
            raise _cut_off(log_offset)
        size, _, _, flag, length = _ITEM_HEAD.unpack_from(body, at)
        end = at + 20 + length
        if length < 0 or end + 2 > len(body):
            raise _cut_off(log_offset)
        properties = int.from_bytes(body[end : end + 2], "big")
        if at + size != end + 2 + properties or at + size > len(body):
            raise _cut_off(log_offset)
        yield flag, body[at + 20 : end], body[end + 2 : at + size]
        at += size


def _cut_off(log_offset: int) -> CorruptionError:
    text = f"the inner batch at {log_offset} does not hold whole messages"
    return DataLossError(text, offset=log_offset, hint="look at it: columns full, decompress false")


def _address(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    return address.strip("[]"), int(port)

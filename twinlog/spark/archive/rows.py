"""Records as columns and back, bit for bit.

`table_of` makes one row of each record: every header field, hosts and magic as stored, the body as
stored (compressed stays compressed), the properties as stored; and, for readers with other tools,
``key``, ``tags`` and ``epoch``. `encoded` makes the records' bytes again from a table. Nothing is
interpreted in between, so bytes that are not valid text are restored unchanged.

Records of the common shape (V1, IPv4) go through numpy; a batch that holds any other goes record by
record.

Not here: the distribution of rows to files (`twinlog.spark.archive.writing`).
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from twinlog import kernels
from twinlog.errors import CorruptionError
from twinlog.kernels.plain import MAGIC_V1

HEAD_FIELDS = (
    ("size", ">i4"),
    ("magic", ">i4"),
    ("body_crc", ">u4"),
    ("queue_id", ">i4"),
    ("flag", ">i4"),
    ("queue_offset", ">i8"),
    ("physical_offset", ">i8"),
    ("sys_flag", ">i4"),
    ("born_timestamp", ">i8"),
    ("born_host", "V8"),
    ("store_timestamp", ">i8"),
    ("store_host", "V8"),
    ("reconsume_times", ">i4"),
    ("prepared_transaction_offset", ">i8"),
    ("body_length", ">i4"),
)
"""The 88 bytes before the body of a record of the common shape."""

_FIRST = struct.Struct(">iiIiiqqiq")
assert _FIRST.size == 48
_LAST = struct.Struct(">iqi")
assert _LAST.size == 16

STATISTICS = ["queue_id", "queue_offset", "physical_offset", "store_timestamp", "size", "key"]
"""Columns with minimum and maximum in the file; not bodies and properties."""

DICTIONARY = ["topic_name", "queue_id", "tags", "magic", "born_host", "store_host"]
"""Columns with few different values."""

DELTAS = [
    "size",
    "flag",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "born_timestamp",
    "store_timestamp",
    "reconsume_times",
    "prepared_transaction_offset",
    "epoch",
]
"""Numbers that are near the one before, or the same: differences take next to no room, and a codec
would take longer over them than what it saves. Not ``body_crc``: it is near nothing."""

BARE = [*DELTAS, "queue_id", "magic"]
"""Columns without a codec."""


@cache
def arrow() -> Any:
    """Return pyarrow, imported when it is first needed."""
    return importlib.import_module("pyarrow")


@cache
def numpy() -> Any:
    """Return numpy, imported when it is first needed."""
    return importlib.import_module("numpy")


@cache
def schema() -> Any:
    """Return the Arrow schema of data files."""
    pa = arrow()
    time = pa.timestamp("ms", "UTC")
    types = {
        "body_crc": pa.int64(),
        "queue_offset": pa.int64(),
        "physical_offset": pa.int64(),
        "born_timestamp": time,
        "born_host": pa.binary(),
        "store_timestamp": time,
        "store_host": pa.binary(),
        "prepared_transaction_offset": pa.int64(),
    }
    fields = [
        pa.field(name, types.get(name, pa.int32()), nullable=False)
        for name, _ in HEAD_FIELDS
        if name != "body_length"
    ]
    fields += [pa.field(name, pa.binary(), nullable=False) for name in ("body", "topic_name")]
    fields += [pa.field("properties_raw", pa.binary(), nullable=False)]
    fields += [pa.field("key", pa.string()), pa.field("tags", pa.string())]
    return pa.schema([*fields, pa.field("epoch", pa.int32())])


def starts_of(data: bytes | memoryview, start: int, end: int) -> Any:
    """Return where the records of ``start..end`` begin, as an array."""
    return numpy().frombuffer(kernels.record_starts(data, start, end)[0], numpy().int64)


def table_of(
    data: bytes | memoryview, starts: Any, end: int, epochs: Sequence[tuple[int, int]]
) -> Any:
    """Return one row for each record; there is at least one.

    Args:
        data: Bytes that hold the records.
        starts: Where they begin in ``data``, one after the other, as an array.
        end: Where the last one ends.
        epochs: (epoch, log offset where it begins), oldest first; empty when not known.
    """
    np, pa = numpy(), arrow()
    starts = np.asarray(starts, np.int64)
    first = int(starts[0])
    raw = np.frombuffer(memoryview(data)[first:end], np.uint8)
    at = starts - first
    heads = np.ndarray((max(len(raw) - 87, 0),), "V88", raw, strides=(1,))  # one at every byte
    head = heads[at].view(np.dtype(list(HEAD_FIELDS)))
    if (head["magic"] != MAGIC_V1).any() or (head["sys_flag"] & 0x30).any():
        columns = _row_by_row(data, starts.tolist())
    else:
        columns = _all_at_once(raw, at, head)
    columns |= _texts(data, starts)
    columns["epoch"] = _epochs(columns["physical_offset"], epochs)
    fields = schema()
    return pa.table([pa.array(columns[f.name], f.type) for f in fields], schema=fields)


def _all_at_once(raw: Any, at: Any, head: Any) -> dict[str, Any]:
    np, pa = numpy(), arrow()
    columns: dict[str, Any] = {}
    for name, kind in HEAD_FIELDS:
        if kind == "V8":
            values = np.ascontiguousarray(head[name])
            fixed = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(8), len(values), [None, pa.py_buffer(values.view(np.uint8))]
            )
            columns[name] = fixed.cast(pa.binary())
        elif kind == ">i8" or kind == ">u4":
            columns[name] = _as_time(name, head[name].astype(np.int64))
        else:
            columns[name] = head[name].astype(np.int32)
    length = columns.pop("body_length").astype(np.int64)
    topic = at + 88 + length
    topic_length = raw[topic].astype(np.int64)
    text = topic + 1 + topic_length
    text_length = (raw[text].astype(np.int64) << 8) | raw[text + 1]
    buffer = pa.py_buffer(raw)
    columns["body"] = slices(buffer, at + 88, length)
    columns["topic_name"] = slices(buffer, topic + 1, topic_length)
    columns["properties_raw"] = slices(buffer, text + 2, text_length)
    return columns


def _as_time(name: str, values: Any) -> Any:
    return values.astype("datetime64[ms]") if name.endswith("_timestamp") else values


def slices(buffer: Any, starts: Any, lengths: Any) -> Any:
    """Return buffer[start:start+length] of each, made by one copy; starts must ascend.

    Values and the gaps between them are taken as one array, then every second value of it.
    """
    np, pa = numpy(), arrow()
    count = len(starts)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0 : 2 * count : 2], offsets[1 : 2 * count : 2] = starts, starts + lengths
    offsets[2 * count] = offsets[2 * count - 1] if count else 0
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), buffer])
    return both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _row_by_row(data: bytes | memoryview, starts: Sequence[int]) -> dict[str, Any]:
    np = numpy()
    names = [name for name, _ in HEAD_FIELDS if name != "body_length"]
    rows = [_parts(data, at) for at in starts]
    columns: dict[str, Any] = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    for i, name in enumerate(("body", "topic_name", "properties_raw"), len(names)):
        columns[name] = [row[i] for row in rows]
    for name in ("born_timestamp", "store_timestamp"):
        columns[name] = np.asarray(columns[name], np.int64).astype("datetime64[ms]")
    columns["physical_offset"] = np.asarray(columns["physical_offset"], np.int64)
    return columns


def _parts(data: bytes | memoryview, at: int) -> tuple[Any, ...]:
    """Return the fields of one record in the order of the columns."""
    size, magic, crc, queue, flag, number, place, system, born = _FIRST.unpack_from(data, at)
    begin, where = at, at + _FIRST.size
    born_host = bytes(data[where : where + (20 if system & 0x10 else 8)])
    where += len(born_host)
    stored = int.from_bytes(data[where : where + 8], "big", signed=True)
    where += 8
    store_host = bytes(data[where : where + (20 if system & 0x20 else 8)])
    where += len(store_host)
    again, prepared, length = _LAST.unpack_from(data, where)
    where += _LAST.size
    body = bytes(data[where : where + length])
    where += length
    wide = 1 if magic == MAGIC_V1 else 2
    topic_length = int.from_bytes(data[where : where + wide], "big")
    topic = bytes(data[where + wide : where + wide + topic_length])
    where += wide + topic_length
    text = bytes(data[where + 2 : begin + size])
    head = (size, magic, crc, queue, flag, number, place, system, born, born_host, stored)
    return (*head, store_host, again, prepared, body, topic, text)


def _texts(data: bytes | memoryview, starts: Any) -> dict[str, Any]:
    """Return KEYS and TAGS of each record as text; null where it has none."""
    pa, names = arrow(), ("key", "tags")
    count, code, raw = kernels.decode_columns(data, starts, names)
    if count < len(starts):
        text = f"record {count} of a window: {kernels.EXPLANATIONS[code]}"
        raise CorruptionError(text, offset=int(starts[count]))
    found: dict[str, Any] = {}
    for name in names:
        valid, offsets, values = raw[name]
        buffers = [None if valid is None else pa.py_buffer(valid)]
        buffers += [pa.py_buffer(offsets), pa.py_buffer(values)]
        found[name] = pa.Array.from_buffers(pa.string(), count, buffers)
    return found


def _epochs(places: Any, epochs: Sequence[tuple[int, int]]) -> Any:
    np, pa = numpy(), arrow()
    if not epochs:
        return pa.nulls(len(places), pa.int32())
    begins = np.asarray([start for _, start in epochs], np.int64)
    numbers = np.asarray([epoch for epoch, _ in epochs], np.int32)
    at = np.searchsorted(begins, np.asarray(places), side="right") - 1
    return pa.array(numbers[np.maximum(at, 0)], pa.int32(), mask=at < 0)


# ── and back ────────────────────────────────────────────────────────────────────────────────────


def encoded(table: Any) -> Any:
    """Return the records of a table's rows as bytes, one after the other, in its order.

    Raises:
        CorruptionError: A row does not make a record of the size it names.
    """
    np = numpy()
    table = table.combine_chunks()
    common = (table.column("magic").to_numpy() == MAGIC_V1).all()
    common = common and not (table.column("sys_flag").to_numpy() & 0x30).any()
    made = _joined(table) if common else arrow().array(_one_by_one(table), arrow().binary())
    sizes = np.diff(np.frombuffer(made.buffers()[1], np.int32, len(made) + 1, 4 * made.offset))
    wrong = np.flatnonzero(sizes != table.column("size").to_numpy())
    if len(wrong):
        place = table.column("physical_offset")[int(wrong[0])].as_py()
        raise CorruptionError(f"the row of {place} makes no record of its size", offset=place)
    return memoryview(made.buffers()[2] or b"")[: int(sizes.sum())]


def _joined(table: Any) -> Any:
    """Return each record of the common shape as one value: a head, then what varies in length."""
    np, pa = numpy(), arrow()
    compute, rows = importlib.import_module("pyarrow.compute"), table.num_rows
    head = np.zeros(rows, np.dtype(list(HEAD_FIELDS)))
    texts = {name: _one(table.column(name)) for name in ("body", "topic_name", "properties_raw")}
    for name, kind in HEAD_FIELDS:
        if kind == "V8":
            hosts = _one(table.column(name)).cast(pa.binary(8))
            head[name] = np.frombuffer(hosts.buffers()[1], "V8", rows, 8 * hosts.offset)
        elif name == "body_length":
            head[name] = compute.binary_length(texts["body"]).to_numpy()
        else:
            head[name] = table.column(name).cast(pa.int64()).to_numpy()
    parts = (
        _fixed(head, 88),
        texts["body"],
        _fixed(compute.binary_length(texts["topic_name"]).to_numpy().astype(np.uint8), 1),
        texts["topic_name"],
        _fixed(compute.binary_length(texts["properties_raw"]).to_numpy().astype(">u2"), 2),
        texts["properties_raw"],
    )
    return compute.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _one(column: Any) -> Any:
    """Return a column as one array; a single chunk would be copied by ``combine_chunks``."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _fixed(values: Any, width: int) -> Any:
    """Return an array of numpy values of ``width`` bytes as Arrow binary values."""
    np, pa = numpy(), arrow()
    data = np.ascontiguousarray(values)
    buffers = [None, pa.py_buffer(data.view(np.uint8))]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(data), buffers).cast(
        pa.binary()
    )


def _one_by_one(batch: Any) -> Iterator[bytes]:
    """Yield the record of each row, of whatever shape."""
    columns = [batch.column(name).to_pylist() for name in ("born_host", "store_host")]
    numbers = [
        batch.column(name).cast(arrow().int64()).to_pylist()
        for name, kind in HEAD_FIELDS
        if kind != "V8" and name != "body_length"
    ]
    bodies = [batch.column(name).to_pylist() for name in ("body", "topic_name", "properties_raw")]
    for row in zip(*numbers, *columns, *bodies, strict=True):
        size, magic, crc, queue, flag, number, place, system, born, stored = row[:10]
        again, prepared, born_host, store_host, body, topic, text = row[10:]
        wide = 1 if magic == MAGIC_V1 else 2
        pieces = (
            _FIRST.pack(size, magic, crc, queue, flag, number, place, system, born),
            born_host,
            stored.to_bytes(8, "big", signed=True),
            store_host,
            _LAST.pack(again, prepared, len(body)),
            body,
            len(topic).to_bytes(wide, "big"),
            topic,
            len(text).to_bytes(2, "big"),
            text,
        )
        yield b"".join(pieces)

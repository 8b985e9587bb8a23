"""What one small frame and one section cost, in single calls; the plain twin of ``single.pxi``.

A single send is a frame with one section, and little else happens: here every layer's dozen of
calls is one. Each function knows the plain case only and says None to anything else, whatever is
wrong or merely rare about it; then the general way is gone, which knows what to answer.

Not here: the general way (``twinlog.wire.frames``, ``storage.append.appender``), layouts and what
they mean (``twinlog.wire.frames``, ``twinlog.format.batch_index``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import cast

import msgpack

from twinlog.kernels.fields import Buffer, check_bounds, crc32c
from twinlog.kernels.plain import bodies_digest, check_section, find_property, patch_section

_HEAD = struct.Struct(">4sBBHIIQQIII")
_CRC = struct.Struct(">I")
_ENTRY = struct.Struct(">QIIIIQIQ")
_TRAVELS = struct.Struct(">QIIIIQI")
_MAGIC = b"TWL1"
_VERSION = 1
_COVERED = 4
_NEST_MAX = 4
_ITEMS_MAX = 65536
_SIMPLE = frozenset({int, str, bytes, bool, type(None)})
_unpack = cast("Callable[..., object]", msgpack.unpackb)  # pyright: ignore

Taken = tuple[int, int, int, int, int, int, dict[str, object], bytes]
"""Bytes used, type, flags, epoch, request id, CRC of the names, fields, payload."""


def take_frame(data: Buffer, at: int, end: int, fields_max: int, payload_max: int) -> Taken | None:
    """Return the frame at ``at`` if it is whole before ``end``, right in every CRC and simple.

    Simple: the fields are a map of texts to numbers, texts, bytes, truth values, nil, and lists of
    such, at most `_NEST_MAX` deep.

    Args:
        data: Received bytes.
        at: Where the frame begins.
        end: Where the received bytes end.
        fields_max: Limit for fields, bytes.
        payload_max: Limit for the payload, bytes.
    """
    check_bounds(data, at, end)
    if end - at < 48:
        return None
    magic, version, kind, flags, size, payload, epoch, request, names, crc, payload_crc = (
        _HEAD.unpack_from(data, at)
    )
    if magic != _MAGIC or version != _VERSION or size > fields_max or payload > payload_max:
        return None
    body, stop = at + 48, at + 48 + size + payload
    if stop > end or crc32c(data[at : at + 44]) != _CRC.unpack_from(data, at + 44)[0]:
        return None
    packed, carried = bytes(data[body : body + size]), bytes(data[body + size : stop])
    covered = flags & _COVERED or not payload
    if crc32c(packed) != crc or (0 if covered else crc32c(carried)) != payload_crc:
        return None
    fields = _simple_fields(packed)
    if fields is None:
        return None
    return stop - at, kind, flags, epoch, request, names, fields, carried


def _simple_fields(packed: bytes) -> dict[str, object] | None:
    if not packed or packed[0] == 0xDF:  # a map of 65,536 entries and more
        return None
    try:
        found = _unpack(packed, strict_map_key=False, max_array_len=_ITEMS_MAX, max_ext_len=0)
    except Exception:  # msgpack raises six unrelated types
        return None
    if type(found) is not dict:
        return None
    fields = cast("dict[object, object]", found)
    if not all(type(key) is str and _is_simple(value, 0) for key, value in fields.items()):
        return None
    return cast("dict[str, object]", fields)


def _is_simple(value: object, depth: int) -> bool:
    if type(value) in _SIMPLE:
        return True
    if type(value) is not list or depth >= _NEST_MAX:
        return False
    return all(_is_simple(item, depth + 1) for item in cast("list[object]", value))


def frame_head(
    kind: int,
    flags: int,
    epoch: int,
    request: int,
    names: int,
    fields: bytes,
    payload: int,
    payload_crc: int,
) -> bytes:
    """Return header and fields of a frame; numbers as in `Taken`.

    Args:
        kind: Type.
        flags: Flags.
        epoch: The sender's epoch.
        request: Request id.
        names: CRC of the names.
        fields: Packed.
        payload: Its bytes, at most 2^32 - 1.
        payload_crc: Its CRC-32C, 0 where the flags say that it is covered elsewhere.
    """
    head = _HEAD.pack(
        _MAGIC, _VERSION, kind, flags, len(fields), payload, epoch, request, names, crc32c(fields),
        payload_crc,
    )  # fmt: skip
    return b"".join((head, _CRC.pack(crc32c(head)), fields))


Placing = tuple[Buffer, int, bytes, int, bytes | None, int]
"""A section to be placed: the bytes as the client sent them, records they must hold, topic (UTF-8),
queue, value of TL_SEQ that the first record must have (None: it must have none), and the queue
offset of the first record."""


def place_sections(
    sections: list[Placing],
    limits: tuple[int, int],
    target: memoryview | bytearray,
    place: tuple[int, int, bytes],
    crc: int,
) -> tuple[list[int], int]:
    """Check sections, copy them to where they are stored one after the other, number, stamp.

    It ends before the first one with a record that is refused, or that names light queues, or that
    does not carry the producer's sequence: where that would stand are zeros.

    Args:
        sections: What is to be placed, in order.
        limits: Largest body in bytes, address family of the store hosts.
        target: Their place in the log, with room for all of them.
        place: Log offset, store timestamp, store host.
        crc: CRC-32C of the bytes before them in their batch.

    Returns:
        For each that was placed the digest of its bodies (never 0, except without a sequence, where
        it is not used), and the CRC-32C of the batch so far.
    """
    (log_offset, stamp, host), at = place, 0
    digests: list[int] = []
    view = memoryview(target)
    for data, count, topic, queue, sequence, first in sections:
        room = view[at : at + len(data)]
        digest = _placed(
            data, count, topic, queue, sequence, limits, room,
            (log_offset + at, first, stamp, host),
        )  # fmt: skip
        if digest is None:
            break
        digests.append(digest)
        crc = crc32c(room, crc)
        at += len(data)
    return digests, crc


def _placed(
    data: Buffer,
    count: int,
    topic: bytes,
    queue: int,
    sequence: bytes | None,
    limits: tuple[int, int],
    target: memoryview | bytearray,
    place: tuple[int, int, int, bytes],
) -> int | None:
    (body_max, family), (log_offset, queue_offset, stamp, host) = limits, place
    length = len(data)
    if len(target) != length or len(host) != (20 if family == 6 else 8):
        raise ValueError("the room is not the section's, or the host of another family")
    if not length or check_section(
        data, 0, length, count, topic, queue, body_max=body_max, family=family
    ):
        return None
    first = int.from_bytes(data[:4], "big")
    named = find_property(data, 0, first, b"TL_SEQ")
    if (named[0][1] if named else None) != sequence:
        return None
    target[:] = data
    patch_section(
        target, 0, length, log_offset=log_offset, queue_offset=queue_offset,
        store_timestamp=stamp, store_host=host,
    )  # fmt: skip
    return 0 if sequence is None else bodies_digest(data, 0, length) or 1


def place_section(
    data: Buffer,
    count: int,
    topic: bytes,
    queue: int,
    sequence: bytes | None,
    limits: tuple[int, int],
    target: memoryview | bytearray,
    place: tuple[int, int, int, bytes],
    entry: tuple[int, int],
) -> tuple[int, bytes] | None:
    """Place a section that is a batch of its own, as `place_sections` does, and make its entry.

    Args:
        data: The section as the client sent it.
        count: Records it must hold.
        topic: Its topic, UTF-8.
        queue: Its queue.
        sequence: Value of TL_SEQ that its first record must have; None: it must have none.
        limits: Largest body in bytes, address family of the store hosts.
        target: Its place in the log, as long as ``data``.
        place: Log offset, queue offset of the first record, store timestamp, store host.
        entry: Epoch and flushed offset for the batch entry.

    Returns:
        The digest of the bodies (never 0 but without a sequence), and the packed entry. None where
        it is not placed; then zeros stand where something was written.
    """
    digest = _placed(data, count, topic, queue, sequence, limits, target, place)
    if digest is None:
        return None
    epoch, flushed = entry
    crc = crc32c(target)
    body = _ENTRY.pack(place[0], len(data), count, epoch, crc, place[2], 0, flushed)
    return digest, body + _CRC.pack(crc32c(body))


def place_batch(
    entry: bytes,
    data: Buffer,
    target: memoryview | bytearray,
    place: tuple[int, int, int],
    control: bytes,
) -> tuple[bytes, int] | None:
    """Copy a batch of records to where it is stored and compare it with its CRC; make its entry.

    None when the entry is not that of such a batch at this place and in this epoch, or it may be a
    control record: nothing was written then. None as well when the CRC differs: what was written
    is to be zeroed.

    Args:
        entry: The entry as it travels between nodes.
        data: The batch as the master sent it.
        target: Its place in the log, as long as ``data``.
        place: Log offset, epoch, flushed offset for the entry.
        control: What a batch of one record must not hold anywhere: the name of the topic of control
            records.

    Returns:
        The packed entry and the batch's store timestamp, ms.
    """
    offset, epoch, flushed = place
    if len(entry) != _TRAVELS.size:
        return None
    start, length, count, its_epoch, crc, stamp, kind = _TRAVELS.unpack(entry)
    if (start, its_epoch, kind) != (offset, epoch, 0):
        return None
    if not control:
        raise ValueError("a name has at least a byte")
    if len(target) != len(data):
        raise ValueError("the room is not the batch's")
    if length != len(data) or length < 8 or (count == 1 and control in bytes(data)):
        return None
    target[:] = data
    if crc32c(target) != crc:
        return None
    body = _ENTRY.pack(start, length, count, epoch, crc, stamp, 0, flushed)
    return body + _CRC.pack(crc32c(body)), stamp

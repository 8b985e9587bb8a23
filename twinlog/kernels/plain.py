"""The kernels in plain Python: what the compiled ones must do, and what runs without a compiler.

Every function has a compiled twin of the same signature in ``_compiled.pyx``; property tests feed
both the same bytes. These are the readable form: where the two differ, this one is right.

Rules for all of them:

* input is a buffer (bytes, bytearray, memoryview); nothing outside ``start..end`` is read, whatever
  lengths the bytes claim;
* no Python object per record leaves a kernel, only counts, offsets and packed entries; a reader's
  messages (`twinlog.kernels.messages`) are the exception;
* ``start``, ``end``, ``at`` are indexes into the buffer, ``log_offset`` is the log offset of the
  byte at ``start``; ends are exclusive; times are milliseconds.

A record (V1; V2 has two bytes of topic length), big-endian, B and S the host lengths 8 or 20:

    offset    size  field                     offset      size  field
         0       4  size of the record        48+B           8  store timestamp
         4       4  magic                     56+B           S  store host
         8       4  CRC-32 of the body, 31 b  56+B+S         4  reconsume times
        12       4  queue                     60+B+S         8  prepared transaction offset
        16       4  flag                      68+B+S         4  length of the body
        20       8  queue offset              72+B+S            body, then topic length (1),
        28       8  log offset                                  topic, properties length (2),
        36       4  system flag                                 properties
        40       8  born timestamp
        48       B  born host

`walk` accepts what RocketMQ's recovery accepts (it checks sizes, magic and body CRC and counts a
negative body or properties length as zero). `check_section` is stricter: it guards what clients
send.

Sources: RocketMQ 5.3 (``CommitLog.checkMessageAndReturnSize``, ``MessageExtEncoder``,
``MessageDecoder``, ``IndexService``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from twinlog.errors import RecordRefused
from twinlog.kernels import codes
from twinlog.kernels.columns import decode_columns as decode_columns
from twinlog.kernels.columns import record_starts as record_starts
from twinlog.kernels.fields import (
    BLANK,
    BORN_V6,
    CRC_PROPERTY,
    I64,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PREPARED,
    ROLLBACK,
    STORE_V6,
    TAIL,
    TRANSACTION,
    Buffer,
    Parts,
    accept,
    check_bounds,
    crc32,
    crc32c,
    java_hash,
    key_hash,
    parts_of,
    property_of,
    rest_of,
    split_properties,
    split_record,
    tags_code,
    whole_records,
)
from twinlog.kernels.inner import (
    INNER_BATCH,
    INNER_FLAGS,
    NUMBER_PROPERTY,
    inner_code,
    number_inner,
)
from twinlog.kernels.inner import gather_units as gather_units
from twinlog.kernels.key_cells import enter_keys, link_cells, unlink_cells
from twinlog.kernels.match import match_entries as match_entries
from twinlog.kernels.messages import cut_messages as cut_messages

__all__ = [
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "Buffer",
    "SectionEncoder",
    "bodies_digest",
    "check_section",
    "crc32",
    "crc32c",
    "enter_keys",
    "find_properties",
    "find_property",
    "gather_queues",
    "gather_units",
    "java_hash",
    "key_hash",
    "link_cells",
    "patch_section",
    "pick_properties",
    "scan_keys",
    "scan_queues",
    "split_properties",
    "split_record",
    "store_timestamp_last",
    "tags_code",
    "unlink_cells",
    "verify_records",
    "walk",
]

_ENTRY = struct.Struct(">QIq")
_KEY = struct.Struct(">iqq")

_COMPRESSION_MAX = 0x300
_PROPERTIES_MAX = 32767
_RECORD_MAX = 0x7FFFFFFF
_LIGHT_PROPERTY = b"INNER_MULTI_DISPATCH"


class SectionEncoder:
    """Encodes records of one (topic, queue) one after the other, in the stored format.

    ``head`` is everything before the body but the fields of `add`: size 72 + B + S. Offsets and
    store fields stay as in ``head`` (zero); the master fills them in.
    """

    def __init__(self, head: bytes, topic: bytes) -> None:
        self._head = head
        self._topic = _topic_field(topic)
        self._out = bytearray()
        self._count = 0

    @property
    def count(self) -> int:
        """Records since the last `take`."""
        return self._count

    @property
    def size(self) -> int:
        """Bytes since the last `take`."""
        return len(self._out)

    def add(
        self,
        body: Buffer,
        *,
        properties: bytes = b"",
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        prepared: int = 0,
    ) -> int:
        """Append one record and return its size in bytes.

        ``sys_flag`` is or-ed to the host bits. ``properties`` are encoded already.

        Raises:
            RecordRefused: Properties beyond 32,767 bytes or a record beyond 2 GiB.
        """
        head = bytearray(self._head)
        size = len(head) + len(body) + len(self._topic) + 2 + len(properties)
        if len(properties) > _PROPERTIES_MAX:
            reason = f"properties of {len(properties)} bytes, at most {_PROPERTIES_MAX} fit"
            raise RecordRefused(reason, record=self._count, reason="properties")
        if size > _RECORD_MAX:
            raise RecordRefused("the record exceeds 2 GiB", record=self._count, reason="size")
        struct.pack_into(">i", head, 0, size)
        struct.pack_into(">i", head, 8, crc32(body) & 0x7FFFFFFF)
        struct.pack_into(">i", head, 16, flag)
        struct.pack_into(">i", head, 36, sys_flag | int.from_bytes(head[36:40], "big"))
        struct.pack_into(">q", head, 40, born_timestamp)
        TAIL.pack_into(head, len(head) - 16, 0, prepared, len(body))
        self._out += head
        self._out += body
        self._out += self._topic
        self._out += len(properties).to_bytes(2, "big")
        self._out += properties
        self._count += 1
        return size

    def take(self) -> bytearray:
        """Hand over the bytes so far and begin again."""
        out, self._out, self._count = self._out, bytearray(), 0
        return out


def _topic_field(topic: bytes) -> bytes:
    width = 1 if len(topic) <= 127 else 2
    return len(topic).to_bytes(width, "big") + topic


def _properties_code(text: bytes) -> tuple[int, bool]:
    """FINE, PROPERTIES, or LIGHT where they name light queues; and whether INNER_NUM is there."""
    code, inner = codes.FINE, False
    if not text:
        return code, inner
    try:
        text.decode()
    except UnicodeDecodeError:
        return codes.PROPERTIES, inner
    for item in text.removesuffix(b"\x02").split(b"\x02"):
        name, separator, _ = item.partition(b"\x01")
        if not name or not separator or name == CRC_PROPERTY:
            return codes.PROPERTIES, inner
        if name == _LIGHT_PROPERTY:
            code = codes.LIGHT
        inner = inner or name == NUMBER_PROPERTY
    return code, inner


def check_section(
    data: Buffer,
    start: int,
    length: int,
    count: int,
    topic: bytes,
    queue: int,
    *,
    body_max: int,
    family: int,
    check_crc: bool = True,
    inner: bool = False,
) -> tuple[int, int] | None:
    """Check the records a client sent as one section; None says that all are fine.

    Args:
        data: Buffer that holds the section.
        start: Index of its first byte.
        length: Its bytes; is wholly in ``data``.
        count: Records it must hold.
        topic: The section's topic, UTF-8.
        queue: The section's queue.
        body_max: Largest body, bytes.
        family: Address family of the cluster's store hosts, 4 or 6.
        check_crc: Compare bodies with their CRC.
        inner: The topic has batch queues: a record may hold several messages.

    Returns:
        (number of the first bad record, code); COUNT names the number of records found.
    """
    check_bounds(data, start, start + length)
    at, end, number, light = start, start + length, 0, -1
    store_bit = STORE_V6 if family == 6 else 0
    while at < end:
        parts = parts_of(data, at, end)
        if isinstance(parts, int):
            return number, parts
        size, flag, body, body_length, topic_at = parts
        code = _check_head(data, at, parts, (queue, body_max, store_bit, inner))
        if code:
            return number, code
        rest = rest_of(data, at, size, topic_at)
        if rest is None:
            return number, codes.SIZE
        name, name_length, text, text_length = rest
        if data[name : name + name_length] != topic:
            return number, codes.TOPIC
        code = _check_text(data, flag, (body, body_length), (text, text_length), inner)
        if code not in (codes.FINE, codes.LIGHT):
            return number, code
        if code == codes.LIGHT and light < 0:
            light = number
        (crc,) = struct.unpack_from(">i", data, at + 8)
        if check_crc and crc32(data[body : body + body_length]) & 0x7FFFFFFF != crc:
            return number, codes.CRC
        number += 1
        at += size
    if number != count:
        return number, codes.COUNT
    return None if light < 0 else (light, codes.LIGHT)


def _check_text(
    data: Buffer, flag: int, body: tuple[int, int], text: tuple[int, int], inner: bool
) -> int:
    """Check properties, and what they say of the body, given start and length of both."""
    named = bytes(data[text[0] : sum(text)])
    # `rest_of` counts a negative properties length as none, as RocketMQ does; a client may not
    code, numbered = _properties_code(named)
    if data[text[0] - 2] & 0x80 or code == codes.PROPERTIES:
        return codes.PROPERTIES
    if numbered or flag & INNER_BATCH:
        wrong = inner_code(flag, data[body[0] : sum(body)], named)
        if wrong or not inner:
            return codes.INNER
    return code


def _check_head(data: Buffer, at: int, parts: Parts, want: tuple[int, int, int, bool]) -> int:
    _, flag, body, _, _ = parts
    queue, body_max, store_bit, inner = want
    (body_length,) = struct.unpack_from(">i", data, body - 4)
    if body_length < 0 or body_length > body_max:
        return codes.BODY_SIZE
    if struct.unpack_from(">i", data, at + 12)[0] != queue:
        return codes.QUEUE
    if flag & STORE_V6 != store_bit:
        return codes.HOST
    if flag & INNER_FLAGS and (not inner or flag & INNER_FLAGS != INNER_FLAGS or flag & 0x701):
        return codes.SYS_FLAG
    if flag & TRANSACTION in (PREPARED, ROLLBACK):
        return codes.SYS_FLAG
    return codes.SYS_FLAG if flag & 0x700 > _COMPRESSION_MAX else codes.FINE


def patch_section(
    data: bytearray | memoryview,
    start: int,
    length: int,
    *,
    log_offset: int,
    queue_offset: int,
    store_timestamp: int,
    store_host: bytes,
) -> int:
    """Number the records of a checked section and stamp them; return how many messages they are.

    That is the number of records, except that an inner batch counts each of its messages; the queue
    offset of the first is written into it.

    Args:
        data: Writable buffer.
        start: Index of the section's first byte, which will be at ``log_offset``.
        length: Bytes of the section.
        log_offset: Log offset of the first record.
        queue_offset: Queue offset of the first record.
        store_timestamp: When they are stored.
        store_host: 8 or 20 bytes, of the family that the section was checked for.

    Raises:
        ValueError: The section was not checked: a record of it does not hold together.
    """
    check_bounds(data, start, start + length)
    at, end, number = start, start + length, 0
    while at < end:
        parts = parts_of(data, at, end)
        if isinstance(parts, int):
            raise ValueError(f"record {number} was not checked: {codes.REFUSALS[parts]}")
        size, flag, _, _, _ = parts
        if len(store_host) != (20 if flag & STORE_V6 else 8):
            raise ValueError(f"record {number} was not checked: host")
        struct.pack_into(">qq", data, at + 20, queue_offset + number, log_offset + at - start)
        stamp = at + 48 + (20 if flag & BORN_V6 else 8)
        I64.pack_into(data, stamp, store_timestamp)
        data[stamp + 8 : stamp + 8 + len(store_host)] = store_host
        held = number_inner(data, at, end, queue_offset + number) if flag & INNER_BATCH else 1
        if not held:
            raise ValueError(f"record {number} was not checked: {codes.REFUSALS[codes.SIZE]}")
        number += held
        at += size
    return number


def walk(
    data: Buffer, start: int, end: int, *, check_crc: bool = True
) -> tuple[int, int, int, int, int]:
    """Walk records as RocketMQ's recovery does, up to the first that it would not accept.

    Returns:
        (records, stop, code, store timestamp of the last record or 0, index of the last record or
        -1). ``stop`` is the index after the last record. Code FINE: ``end`` was reached. BLANK: a
        blank begins at ``stop``. Otherwise what is wrong with the bytes there.
    """
    check_bounds(data, start, end)
    at, count, stamp, last = start, 0, 0, -1
    while at < end:
        if end - at >= 8 and BLANK.unpack_from(data, at)[1] == MAGIC_BLANK:
            return count, at, codes.BLANK, stamp, last
        code, size, new_stamp = accept(data, at, end, check_crc)
        if code:
            return count, at, code, stamp, last
        count, stamp, last, at = count + 1, new_stamp, at, at + size
    return count, at, codes.FINE, stamp, last


def verify_records(
    data: Buffer,
    start: int,
    end: int,
    log_offset: int,
    *,
    check_crc: bool = True,
    check_offsets: bool = True,
) -> tuple[int, int, int]:
    """Verify that ``start..end`` holds whole records and nothing else, but a blank at its end.

    Returns:
        (records, log offset of the first bad one or -1, code). With ``check_offsets`` a record
        must name its own log offset (code OFFSET).
    """
    check_bounds(data, start, end)
    at, count = start, 0
    while at < end:
        if end - at >= 8 and BLANK.unpack_from(data, at)[1] == MAGIC_BLANK:
            if BLANK.unpack_from(data, at)[0] == end - at:
                return count, -1, codes.FINE
            return count, log_offset + at - start, codes.BLANK
        code, size, _ = accept(data, at, end, check_crc)
        if not code and check_offsets:
            (named,) = I64.unpack_from(data, at + 28)
            code = codes.FINE if named == log_offset + at - start else codes.OFFSET
        if code:
            return count, log_offset + at - start, code
        count, at = count + 1, at + size
    return count, -1, codes.FINE


def scan_queues(
    data: Buffer, start: int, end: int, log_offset: int
) -> list[tuple[bytes, int, int, bytes]]:
    """Build consume queue entries for the records of ``start..end``.

    Returns:
        One (topic, queue, queue offset of the first, entries of 20 bytes) for each run of
        consecutive records of one queue with rising queue offsets. Prepared and rolled back
        records have no entry and do not end a run. The scan ends at a blank or at the first
        record that does not hold together; bodies are not checked.
    """
    runs: list[tuple[bytes, int, int, bytes]] = []
    key: tuple[bytes, int] | None = None
    first, entries = 0, bytearray()
    for at, (size, flag, _, _, _), rest in whole_records(data, start, end):
        if flag & TRANSACTION not in (PREPARED, ROLLBACK):
            topic = bytes(data[rest[0] : rest[0] + rest[1]])
            queue, _, queue_offset = struct.unpack_from(">iiq", data, at + 12)
            if key != (topic, queue) or first + len(entries) // 20 != queue_offset:
                if key is not None:
                    runs.append((*key, first, bytes(entries)))
                key, first, entries = (topic, queue), queue_offset, bytearray()
            (stamp,) = I64.unpack_from(data, at + 48 + (20 if flag & BORN_V6 else 8))
            code = tags_code(topic, data[rest[2] : rest[2] + rest[3]], stamp)
            entries += _ENTRY.pack(log_offset + at - start, size, code)
    if key is not None:
        runs.append((*key, first, bytes(entries)))
    return runs


def gather_queues(
    data: Buffer, start: int, end: int, log_offset: int
) -> list[tuple[bytes, int, int, bytes]]:
    """Build the same entries as `scan_queues`, gathered: one item for each queue.

    A queue has a further item wherever its queue offsets do not rise by one. Items are in order of
    their first records; so a writer has one write for each queue, however records interleave.
    """
    order: list[tuple[bytes, int, int, bytearray]] = []
    newest: dict[tuple[bytes, int], int] = {}
    for topic, queue, first, entries in scan_queues(data, start, end, log_offset):
        i = newest.get((topic, queue), -1)
        if i >= 0 and order[i][2] + len(order[i][3]) // 20 == first:
            order[i][3].extend(entries)
        else:
            newest[topic, queue] = len(order)
            order.append((topic, queue, first, bytearray(entries)))
    return [(topic, queue, first, bytes(entries)) for topic, queue, first, entries in order]


def scan_keys(data: Buffer, start: int, end: int, log_offset: int) -> bytes:
    """Build the key index entries of the records of ``start..end``.

    Returns:
        20 bytes for each key in log order: hash of ``topic#key`` (4, never negative), log offset
        (8), store timestamp (8). ``UNIQ_KEY`` first, then ``KEYS`` split at single spaces; rolled
        back records have none. Ends where `scan_queues` ends.
    """
    out = bytearray()
    for at, (_, flag, _, _, _), rest in whole_records(data, start, end):
        if flag & TRANSACTION != ROLLBACK:
            prefix = bytes(data[rest[0] : rest[0] + rest[1]]) + b"#"
            text = data[rest[2] : rest[2] + rest[3]]
            unique = property_of(text, b"UNIQ_KEY")
            keys = [unique] if unique else []
            keys += [key for key in (property_of(text, b"KEYS") or b"").split(b" ") if key]
            (stamp,) = I64.unpack_from(data, at + 48 + (20 if flag & BORN_V6 else 8))
            for key in keys:
                out += _KEY.pack(key_hash(prefix + key), log_offset + at - start, stamp)
    return bytes(out)


def find_properties(
    data: Buffer, start: int, end: int, names: tuple[bytes, ...]
) -> list[tuple[int, int, bytes]]:
    """Return (index of the record, number of the name, value) of the properties with these names.

    At most four names. Only properties are looked at, never bodies. Ends where `scan_queues` ends.
    """
    check_bounds(data, start, end)
    if len(names) > 4:
        raise ValueError("at most 4 names")
    found: list[tuple[int, int, bytes]] = []
    for at, _, rest in whole_records(data, start, end):
        for which, name in enumerate(names):
            value = property_of(data[rest[2] : rest[2] + rest[3]], name)
            if value is not None:
                found.append((at, which, value))
    return found


def find_property(data: Buffer, start: int, end: int, name: bytes) -> list[tuple[int, bytes]]:
    """Return (index of the record, value) as `find_properties` for one name."""
    return [(at, value) for at, _, value in find_properties(data, start, end, (name,))]


def pick_properties(
    data: Buffer, base: int, entries: Buffer, names: Sequence[bytes]
) -> list[tuple[str | None, ...]] | int:
    """Return the texts of ``names`` in the records that queue entries point to, a row for each.

    ``data`` begins at log offset ``base``. Only sizes and properties are looked at, never bodies.
    Where an entry does not point to a record of its size inside ``data``, its number is returned.
    """
    rows: list[tuple[str | None, ...]] = []
    for number, (offset, size, _) in enumerate(_ENTRY.iter_unpack(entries)):
        at = offset - base
        if not 0 <= at <= len(data):
            return number
        parts = parts_of(data, at, len(data))
        rest = None if isinstance(parts, int) else rest_of(data, at, parts[0], parts[4])
        if isinstance(parts, int) or rest is None or parts[0] != size:
            return number
        found = split_properties(data[rest[2] : rest[2] + rest[3]])
        rows.append(tuple([found.get(name.decode()) for name in names]))
    return rows


def bodies_digest(data: Buffer, start: int, end: int) -> int:
    """Return CRC-32C over CRC and length of each body of the records in ``start..end``.

    The same before and after `patch_section`, so a section sent again is recognised. Ends at the
    first record that does not hold together.
    """
    check_bounds(data, start, end)
    at, crc = start, 0
    while at < end:
        parts = parts_of(data, at, end)
        if isinstance(parts, int):
            break
        crc = crc32c(data[at + 8 : at + 12], crc)
        crc = crc32c(data[parts[2] - 4 : parts[2]], crc)
        at += parts[0]
    return crc


def store_timestamp_last(data: Buffer, start: int, end: int) -> int:
    """Return the store timestamp of the last whole record of ``start..end``; 0 without one."""
    return walk(data, start, end, check_crc=False)[3]

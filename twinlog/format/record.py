r"""Records: what one stored message is, and its bytes.

A record is one message with its header, in RocketMQ's format of 5.x (V1, and V2 for topics above
127 bytes; IPv4 and IPv6 hosts). The byte box stands in `twinlog.kernels.plain`. Clients encode
records in this format with offsets and store fields zero; the master stamps them in place, so
no record is encoded twice.

Units: offsets are log offsets in bytes, ``queue_offset`` counts records, times are milliseconds
since 1970, ``size`` is the whole record in bytes.

Properties are text: ``name 0x01 value 0x02`` repeated. Reading follows RocketMQ: the last 0x02 may
be absent, entries without a name or without a value vanish, later duplicates win, bytes that are
not UTF-8 become U+FFFD. Writing is strict: what would not be read back the same is refused.

Hosts are text ``address:port``; an IPv6 address is written as RocketMQ writes it, all eight groups
in brackets: ``[0:0:0:0:0:0:0:1]:10911``.

Not here: checking a section (`twinlog.kernels`), bodies' compression, where records are in files.

Sources: RocketMQ 5.3 (``MessageExtEncoder``, ``MessageDecoder``, ``MessageConst``,
``MessageSysFlag``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

from twinlog import kernels
from twinlog.errors import CorruptionError, UsageError
from twinlog.kernels.fields import Split
from twinlog.kernels.plain import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, Buffer

__all__ = [
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "Record",
    "RecordEncoder",
    "body_crc",
    "decode",
    "decode_properties",
    "encode",
    "encode_properties",
    "java_hash",
    "pack_host",
    "split_host",
    "unpack_host",
]

KEYS = "KEYS"
TAGS = "TAGS"
UNIQUE_ID = "UNIQ_KEY"
SHARDING_KEY = "__SHARDINGKEY"
SEQUENCE = "TL_SEQ"
"""First record of an idempotent section: producer (16 hex).epoch.sequence.count."""

FLAG_COMPRESSED = 0x1
FLAG_BORN_V6 = 0x10
FLAG_STORE_V6 = 0x20
FLAG_NEED_UNWRAP = 0x40
FLAG_INNER_BATCH = 0x80
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC

TOPIC_SIZE_MAX = 32767
PROPERTIES_SIZE_MAX = 32767

_HEAD = struct.Struct(">iiiiiqqiq")
assert _HEAD.size == 48
_TAIL = struct.Struct(">iqi")
assert _TAIL.size == 16
_PORT = struct.Struct(">i")


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 units, signed 32 bits.

    >>> java_hash("TagA"), java_hash("payment"), java_hash("")
    (2598919, -786681338, 0)
    """
    return kernels.java_hash(text.encode("utf-8", "replace"))


def body_crc(body: Buffer) -> int:
    """Return the CRC-32 that a record stores for ``body``: the top bit is cleared.

    >>> body_crc(b"hello"), body_crc(b"")
    (907060870, 0)
    """
    return kernels.crc32(body) & 0x7FFFFFFF


def encode_properties(properties: Mapping[str, str]) -> bytes:
    r"""Return the stored text of ``properties``.

    Raises:
        UsageError: An empty name or value, a control character that separates entries, or more
            than 32,767 bytes.

    >>> encode_properties({"TAGS": "TagA"})
    b'TAGS\x01TagA\x02'
    """
    if not properties:
        return b""
    for name, value in properties.items():
        if not name or not value:
            hint = "leave the property out"
            raise UsageError(f"property {name!r} is empty", code="property", hint=hint)
    text = "".join([name + "\x01" + value + "\x02" for name, value in properties.items()])
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        raise UsageError("a property contains 0x01 or 0x02, which separate them", code="property")
    data = text.encode()
    if len(data) > PROPERTIES_SIZE_MAX:
        limit = f"the properties have {len(data)} bytes, at most {PROPERTIES_SIZE_MAX} fit"
        raise UsageError(limit, code="property", hint="put large values into the body")
    return data


def decode_properties(data: Buffer) -> dict[str, str]:
    r"""Return the properties in ``data`` as RocketMQ reads them.

    >>> decode_properties(b"A\x011\x02B\x01\x02C\x012\x01x")
    {'A': '1', 'C': '2\x01x'}
    """
    return kernels.split_properties(data)


@lru_cache(1024)
def pack_host(host: tuple[str, int]) -> bytes:
    """Return (address, port) as 8 or 20 bytes.

    Raises:
        ValueError: The address is no IP address. Names are not looked up here.

    >>> pack_host(("192.168.1.10", 10911)).hex()
    'c0a8010a00002a9f'
    """
    return ip_address(host[0]).packed + _PORT.pack(host[1])


def unpack_host(data: Buffer) -> str:
    """Return 8 or 20 stored bytes as ``address:port``.

    >>> unpack_host(bytes.fromhex("c0a8010a00002a9f")), unpack_host(bytes(15) + b"\\1" + bytes(4))
    ('192.168.1.10:10911', '[0:0:0:0:0:0:0:1]:0')
    """
    raw = bytes(data)
    (port,) = _PORT.unpack(raw[-4:])
    if len(raw) == 8:
        return f"{raw[0]}.{raw[1]}.{raw[2]}.{raw[3]}:{port}"
    return f"[{':'.join([f'{group:x}' for group in struct.unpack('>8H', raw[:16])])}]:{port}"


def split_host(text: str) -> tuple[str, int]:
    """Return the (address, port) of ``address:port``, as `unpack_host` writes it."""
    address, _, port = text.rpartition(":")
    return address.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class Record:
    """One stored message; field units are in the module's text."""

    topic: str
    queue: int
    queue_offset: int
    log_offset: int
    body: bytes
    properties: Mapping[str, str]
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    size: int
    magic: int

    @property
    def key(self) -> str | None:
        """All index keys as stored, separated by spaces."""
        return self.properties.get(KEYS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The index keys one by one."""
        return tuple(key for key in self.properties.get(KEYS, "").split(" ") if key)

    @property
    def tag(self) -> str | None:
        """The tag that readers filter by."""
        return self.properties.get(TAGS)

    @property
    def unique_id(self) -> str | None:
        """The id that the producer gave the message."""
        return self.properties.get(UNIQUE_ID)

    @property
    def message_id(self) -> str:
        """RocketMQ's offset id: store host and log offset, 32 or 56 hexadecimal digits."""
        host = pack_host(split_host(self.store_host))
        return (host + self.log_offset.to_bytes(8, "big", signed=True)).hex().upper()

    @property
    def tags_code(self) -> int:
        """What the record's queue entry says: the tag's hash, or the time of delivery."""
        properties = "".join([f"{k}\x01{v}\x02" for k, v in self.properties.items()]).encode()
        return kernels.tags_code(self.topic.encode(), properties, self.store_timestamp)

    @property
    def queued(self) -> bool:
        """Whether dispatch enters it in its queue: neither prepared nor rolled back."""
        kind = self.sys_flag & TRANSACTION_MASK
        return kind not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


def decode(buffer: Buffer, offset: int = 0, *, check_crc: bool = True) -> Record:
    """Return the record that begins at ``offset`` of ``buffer``.

    The bytes after it may be anything. ``check_crc=False`` is for bytes that are proven already.

    Raises:
        CorruptionError: No whole record begins there, its parts do not add up, or its body does
            not match its CRC. Facts: ``offset`` (index in the buffer), ``what``.
    """
    found = _split(buffer, offset, check_crc=check_crc)
    born, store = _host(found[9]), _host(found[11])
    return Record(*found[:9], born, found[10], store, *found[12:])


def body_of(buffer: Buffer, offset: int) -> tuple[bytes, int]:
    """Return body and store timestamp (ms) of the record at ``offset``, whose bytes are proven.

    Raises as `decode`.

    >>> body_of(b"before" + encode("t", 2, b"x", store_timestamp=7), 6)
    (b'x', 7)
    """
    found = _split(buffer, offset, check_crc=False)
    return found[4], found[10]


def _split(buffer: Buffer, offset: int, *, check_crc: bool) -> Split:
    at = min(offset, len(buffer))  # beyond the end no record begins either
    found = kernels.split_record(buffer, at, check_crc=check_crc)
    if isinstance(found, int):
        what = kernels.REFUSALS[found]
        text = f"no record at {offset}: {kernels.EXPLANATIONS[found]}"
        raise CorruptionError(text, offset=offset, what=what)
    return found


@lru_cache(4096)
def _host(data: bytes) -> str:
    return unpack_host(data)


class RecordEncoder(kernels.SectionEncoder):
    """Encodes the records of one (topic, queue) for sending: offsets and store fields zero.

    Args:
        topic: 1 to 32,767 bytes of UTF-8; above 127 the records are V2.
        queue: Queue number.
        family: Address family of the cluster's store hosts, 4 or 6: their length is fixed here.
        born_host: (IP address, port) of the producer.

    Raises:
        UsageError: The topic is empty or too long.

    `add` costs one call into the kernel for each record; see `kernels.plain.SectionEncoder`.

    >>> encoder = RecordEncoder("flights", 3)
    >>> encoder.add(b"hello", properties=encode_properties({"TAGS": "UA"}), born_timestamp=1)
    111
    >>> encoder.count, encoder.size, decode(encoder.take()).tag
    (1, 111, 'UA')
    """

    def __init__(
        self,
        topic: str,
        queue: int,
        *,
        family: int = 4,
        born_host: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        name = _topic_bytes(topic)
        store_host = bytes(20 if family == 6 else 8)
        super().__init__(_head(name, queue, pack_host(born_host), store_host), name)


def _topic_bytes(topic: str) -> bytes:
    name = topic.encode()
    if not 1 <= len(name) <= TOPIC_SIZE_MAX:
        raise UsageError(f"a topic of {len(name)} bytes; 1 to {TOPIC_SIZE_MAX} fit", code="topic")
    return name


def _head(topic: bytes, queue: int, born_host: bytes, store_host: bytes) -> bytes:
    flags = (FLAG_BORN_V6 if len(born_host) == 20 else 0) | (
        FLAG_STORE_V6 if len(store_host) == 20 else 0
    )
    magic = MAGIC_V1 if len(topic) <= 127 else MAGIC_V2
    fixed = _HEAD.pack(0, magic, 0, queue, 0, 0, 0, flags, 0)
    return fixed + born_host + bytes(8) + store_host + bytes(_TAIL.size)


def encode(
    topic: str,
    queue: int,
    body: Buffer,
    *,
    queue_offset: int = 0,
    log_offset: int = 0,
    properties: Mapping[str, str] | bytes = b"",
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    born_host: tuple[str, int] = ("127.0.0.1", 0),
    store_timestamp: int = 0,
    store_host: tuple[str, int] = ("127.0.0.1", 0),
    reconsume_times: int = 0,
    prepared: int = 0,
) -> bytes:
    """Return one whole record with every field given; for control records, tools and tests.

    Host bits of ``sys_flag`` are set from the hosts. Errors as `RecordEncoder` and its ``add``.

    >>> record = decode(encode("t", 2, b"x", queue_offset=7, log_offset=1000))
    >>> record.queue, record.queue_offset, record.log_offset, record.body
    (2, 7, 1000, b'x')
    """
    text = properties if isinstance(properties, bytes) else encode_properties(properties)
    name = _topic_bytes(topic)
    born, store = pack_host(born_host), pack_host(store_host)
    encoder = kernels.SectionEncoder(_head(name, queue, born, store), name)
    encoder.add(
        body,
        properties=text,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        prepared=prepared,
    )
    data = encoder.take()
    struct.pack_into(">qq", data, 20, queue_offset, log_offset)
    struct.pack_into(">q", data, 48 + len(born), store_timestamp)
    data[56 + len(born) : 56 + len(born) + len(store)] = store
    struct.pack_into(">i", data, 56 + len(born) + len(store), reconsume_times)
    return bytes(data)

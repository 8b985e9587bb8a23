"""Messages between nodes: each declared once, checked before anything relies on it.

`encode` makes a ``twinlog.wire.frames.Frame`` of a message, `decode` makes a message of a frame.
The frame's header carries the sender's epoch, the session (``request``) and the CRC of the names;
in the message, epoch and session are ordinary fields.

    1 HELLO      slave to master   identity, log and epochs of the slave; a batch border
    2 HELLO_OK   master to slave   the consistent point and a chain of CRCs up to it
    3 HELLO_ERR  master to slave   why the HELLO is refused
    4 READY      slave to master   its log ends at the consistent point
    5 APPEND     master to slave   whole batches, or none; the confirm offset; the revision
    6 ACK        slave to master   received and flushed end; the revision that it has fsynced
    7 PING  8 PONG                 both ways, when nothing else was sent
    12 BYE                         both ways: why the link ends
    13 NACK      slave to master   a batch arrived with a CRC that differs

The declaration of a class is its wire format: a field's type says what a peer may send in it
(`Offset`, `Number`, `Text` ...). The code that encodes and decodes is written from it when this
module is imported. A new field is one line here.

An entry is sent as 36 bytes: the 48 of the batch index without ``flushed`` and its CRC.

All offsets and lengths are bytes. Peers may send anything: every value is checked for type and
bounds, and a value that fails is a ProtocolError, after which the link is closed.

Not here: whether a message fits the state of a session.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NoReturn, cast, get_type_hints

from replication.settings import EPOCHS_SENT_MAX
from twinlog.errors import ProtocolError
from twinlog.format.batch_index import BATCH_LENGTH_MAX, BatchEntry
from twinlog.format.epoch_history import Epoch
from twinlog.wire import frames
from twinlog.wire.generated import function, outside

ENTRY = struct.Struct(">QIIIIQI")
"""start, length, records, epoch, crc, store timestamp, kind."""
assert ENTRY.size == 36

ENTRIES_MAX = 1 << 14
"""Batches in one frame: 1 MiB of the smallest batch that holds a record (91 bytes) is less."""

OFFSET_MAX = (1 << 63) - 1

EpochList = tuple[Epoch, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that a field may have on the wire.

    Attributes:
        plain: Python type of a value that needs no conversion.
        most: Largest number, or longest text or data.
        nil: May be nil.
        read, write: Convert a value that is neither number, text nor data.
    """

    plain: type
    most: int
    nil: bool = False
    read: Callable[[object], object] | None = None
    write: Callable[..., object] | None = None


def _read_epochs(value: object) -> EpochList:
    if not isinstance(value, (list, tuple)):
        raise ProtocolError("an epoch history must be a list", code="fields")
    items = cast("list[object]", value)
    if len(items) > EPOCHS_SENT_MAX:
        raise ProtocolError(f"an epoch history of {len(items)} entries", code="fields")
    found: list[Epoch] = []
    for item in items:
        match item:
            case [int() as epoch, int() as start] if epoch >= 0 and 0 <= start <= OFFSET_MAX:
                if found and (found[-1].epoch >= epoch or found[-1].start > start):
                    raise ProtocolError("an epoch history does not rise", code="fields")
                found.append(Epoch(epoch, start))
            case _:
                raise ProtocolError(f"an epoch is {item!r}"[:80], code="fields")
    return tuple(found)


def _write_epochs(epochs: EpochList) -> list[list[int]]:
    assert len(epochs) <= EPOCHS_SENT_MAX, "a history travels in parts"
    return [[epoch.epoch, epoch.start] for epoch in epochs]


Offset = Annotated[int, Kind(int, OFFSET_MAX)]
Number = Annotated[int, Kind(int, (1 << 64) - 1)]
MaybeNumber = Annotated[int | None, Kind(int, (1 << 64) - 1, nil=True)]
Crc = Annotated[int, Kind(int, (1 << 32) - 1)]
Small = Annotated[int, Kind(int, 255)]
Text = Annotated[str, Kind(str, 1024)]
Name = Annotated[str | None, Kind(str, 1024, nil=True)]
Position = Annotated[int | None, Kind(int, OFFSET_MAX, nil=True)]
Entries = Annotated[bytes, Kind(bytes, ENTRIES_MAX * ENTRY.size)]
Epochs = Annotated[EpochList, Kind(tuple, -1, read=_read_epochs, write=_write_epochs)]


@dataclass(frozen=True, slots=True)
class Hello:
    """See the module; ``border`` is where the chain of CRCs should begin.

    ``seed_from`` is set by a slave that begins again: it requests the seed from this byte on
    (`Seed`). ``flushed`` is for masters of the first release, which refuse a HELLO without it.
    """

    epoch: int
    session: int
    node: Text
    store: Text
    start: Offset
    end: Offset
    confirm: Offset
    border: Offset
    epochs: Epochs
    register_id: Text
    revision: Number
    tag: Number
    family: Small
    segment_size: Offset
    least_version: Small
    version: Small
    features: Number
    quality: Text
    seed_from: Position = None
    flushed: Position = None


@dataclass(frozen=True, slots=True)
class HelloOk:
    """``chain`` is the CRC over the master's entries from ``chain_start`` to ``point``."""

    epoch: int
    session: int
    leader: Text
    point: Offset
    chain_start: Offset
    chain: Crc
    start: Offset
    end: Offset
    confirm: Offset
    epochs: Epochs
    version: Small
    features: Number


@dataclass(frozen=True, slots=True)
class HelloErr:
    """``epoch`` is the sender's own; ``leader`` is the node that it takes for the master.

    ``newest`` comes with code ``PART``: the slave must send its history around that epoch.
    """

    epoch: int
    session: int
    code: Text
    text: Text
    leader: Name = None
    newest: MaybeNumber = None


@dataclass(frozen=True, slots=True)
class Ready:
    """The slave's log ends at ``end``, the consistent point."""

    epoch: int
    session: int
    end: Offset


@dataclass(slots=True)
class Append:
    """Batches from ``offset`` on; ``prev_epoch`` is that of the byte before. Treat as immutable.

    Attributes:
        entries: Packed entries, 36 bytes each; empty for a notice of the confirm offset.
        payload: The batches' bytes one after the other; of a filler its first 8. Not a field of
            the frame but its payload.
        end: The master's end when it was sent; ``time_ms`` its wall clock.
        revision, tag: Of the group state the master acts under.
    """

    epoch: int
    session: int
    offset: Offset
    prev_epoch: Offset
    confirm: Offset
    end: Offset
    time_ms: Offset
    revision: Number
    tag: Number
    entries: Entries = b""
    payload: memoryview | bytes = b""


@dataclass(slots=True)
class Ack:
    """``health``: empty, or why this slave cannot continue; ``revision``: durable on the slave.

    Treat as immutable; a frozen value of this size costs a microsecond to make.
    """

    epoch: int
    session: int
    end: Offset
    flushed: Offset
    confirm: Offset
    revision: Number
    health: Text = ""


@dataclass(frozen=True, slots=True)
class Ping:
    """Keeps a link alive; answered by a `Pong` with the same ``nonce``."""

    epoch: int
    session: int
    nonce: Number


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a `Ping`."""

    epoch: int
    session: int
    nonce: Number


@dataclass(frozen=True, slots=True)
class Bye:
    """The link ends; ``code`` is stable, ``text`` is for people."""

    epoch: int
    session: int
    code: Text
    text: Text


@dataclass(frozen=True, slots=True)
class Nack:
    """The batch at ``start`` arrived with bytes that do not match its CRC."""

    epoch: int
    session: int
    start: Offset
    length: Offset
    reason: Text


@dataclass(frozen=True, slots=True)
class Seed:
    """Bytes ``at`` to ``at + len(payload)`` of a seed of ``total`` bytes.

    The seed itself says at which log offset the slave begins again; its own CRC proves it whole.
    """

    epoch: int
    session: int
    leader: Text
    at: Offset
    total: Offset
    payload: memoryview | bytes = b""


Message = Hello | HelloOk | HelloErr | Ready | Append | Ack | Ping | Pong | Bye | Nack | Seed

TYPES: Mapping[type[Message], int] = {
    Hello: frames.Type.HA_HELLO,
    HelloOk: frames.Type.HA_HELLO_OK,
    HelloErr: frames.Type.HA_HELLO_ERR,
    Ready: frames.Type.HA_READY,
    Append: frames.Type.HA_APPEND,
    Ack: frames.Type.HA_ACK,
    Ping: frames.Type.HA_PING,
    Pong: frames.Type.HA_PONG,
    Bye: frames.Type.HA_BYE,
    Nack: frames.Type.HA_NACK,
    Seed: frames.Type.HA_SEED,
}
"""The number of each message on the wire."""


def pack_entries(entries: Iterable[BatchEntry]) -> bytes:
    """Return the entries in their wire form."""
    pack = ENTRY.pack
    return b"".join(
        [
            pack(e.start, e.length, e.count, e.epoch, e.crc, e.store_timestamp, e.kind)
            for e in entries
        ]
    )


def unpack_entries(data: bytes) -> list[BatchEntry]:
    """Return the entries in ``data``; their ``flushed`` is 0, the store sets its own.

    Raises:
        ProtocolError: Not whole entries, too many, or a length that no batch has.
    """
    if len(data) % ENTRY.size or len(data) > ENTRIES_MAX * ENTRY.size:
        raise ProtocolError(f"{len(data)} bytes are not a list of entries", code="fields")
    entries: list[BatchEntry] = []
    for start, length, count, epoch, crc, timestamp, kind in ENTRY.iter_unpack(data):
        filler = kind == 1
        if not length > 0 or (length > BATCH_LENGTH_MAX and not filler) or start > OFFSET_MAX:
            raise ProtocolError(f"a batch at {start} of {length} bytes", code="fields")
        entries.append(BatchEntry(start, length, count, epoch, crc, timestamp, kind, 0))
    return entries


# -- the wire


Reader = Callable[[frames.Frame], Message]
Writer = Callable[[Any, int], frames.Frame]


def _columns(cls: type[Message]) -> Iterable[tuple[str, Kind]]:
    """The fields of the frame, in the order of the declaration."""
    for name, hint in get_type_hints(cls, include_extras=True).items():
        for kind in getattr(hint, "__metadata__", ()):
            yield name, kind


def _writer(cls: type[Message], number: int) -> Writer:
    """Write the function that makes the frame of a message."""
    names: dict[str, object] = {"Frame": frames.Frame}
    pairs: list[str] = []
    for name, kind in _columns(cls):
        value = f"message.{name}"
        if kind.write is not None:
            names[f"write_{name}"] = kind.write
            value = f"write_{name}({value})"
        pairs.append(f"{name!r}: {value}")
    flags = f"{frames.BATCH_CRC} if message.entries else 0" if cls is Append else "0"
    payload = ", message.payload" if "payload" in get_type_hints(cls) else ""
    head = f"{int(number)}, {flags}, message.epoch, message.session, names_crc"
    line = f"return Frame({head}, {{{', '.join(pairs)}}}{payload})"
    return function(f"write_{cls.__name__}", "message, names_crc", [line], names)


def _reader(cls: type[Message], number: int) -> Reader:
    """Write the function that makes a message of a frame, every value checked.

    Values that may not be nil are compared with their bounds all together, `_refuse` finds which
    one is wrong.
    """
    names: dict[str, object] = {"make": cls, "refuse": partial(_refuse, cls, number)}
    lines, values = ["fields = frame.fields"], ["frame.epoch", "frame.request"]
    needed: list[str] = []
    bounds: dict[int, list[str]] = {}
    wrong: list[str] = []
    for at, (name, kind) in enumerate(_columns(cls)):
        value = f"v{at}"
        values.append(value)
        if kind.read is not None:
            names[f"read{at}"] = kind.read
            lines.append(f"{value} = read{at}(fields.get({name!r}))")
            continue
        size = value if kind.plain is int else f"len({value})"
        if kind.nil:
            within = f"type({value}) is {kind.plain.__name__} and 0 <= {size} <= {kind.most}"
            lines.append(f"{value} = fields.get({name!r})")
            lines.append(f"if {value} is not None and not ({within}): refuse(frame)")
            continue
        needed.append(f"    {value} = fields[{name!r}]")
        wrong.append(f"type({value}) is not {kind.plain.__name__}")
        if kind.plain is int:
            bounds.setdefault(kind.most, []).append(value)
        else:
            wrong.append(f"{size} > {kind.most}")
    wrong += [outside(numbers, most) for most, numbers in bounds.items()]
    lines += ["try:", *needed, "except KeyError: refuse(frame)"]
    lines.append(f"if {' or '.join(wrong)}: refuse(frame)")
    if "payload" in get_type_hints(cls):
        values.append("frame.payload")
    lines.append(f"return make({', '.join(values)})")
    return function(f"read_{cls.__name__}", "frame", lines, names)


def _refuse(cls: type[Message], number: int, frame: frames.Frame) -> NoReturn:
    """Say which field of a frame that was refused is wrong, and what it must be."""
    for name, kind in _columns(cls):
        value = frame.fields.get(name)
        if kind.read is not None or (value is None and kind.nil):
            continue
        if type(value) is kind.plain:
            size = cast("int", value) if kind.plain is int else len(cast("str", value))
            if 0 <= size <= kind.most:
                continue
        text = f"{frames.type_name(number)}: {name} is {value!r}"[:80] + f", not {_wanted(kind)}"
        raise ProtocolError(text, code="fields")
    raise AssertionError("nothing is wrong with the frame")


def _wanted(kind: Kind) -> str:
    what = {int: "a number up to", str: "a text of at most", bytes: "data of at most"}
    return f"{what[kind.plain]} {kind.most}"


_WRITERS: Mapping[type[Message], Writer] = {cls: _writer(cls, n) for cls, n in TYPES.items()}
_READERS: Mapping[int, Reader] = {int(n): _reader(cls, n) for cls, n in TYPES.items()}


def encode(message: Message, names_crc: int) -> frames.Frame:
    """Return the frame that carries ``message``."""
    return _WRITERS[type(message)](message, names_crc)


def decode(frame: frames.Frame) -> Message:
    """Return the message in ``frame``.

    Raises:
        ProtocolError: Not a type between nodes, or a field that does not fit its declaration.
    """
    read = _READERS.get(frame.type)
    if read is None or frame.flags & ~frames.BATCH_CRC:
        kind = frames.type_name(frame.type)
        raise ProtocolError(f"{kind} with flags {frame.flags} between nodes", code="type")
    message = read(frame)
    if type(message) is Append:
        if bool(message.entries) != bool(len(frame.payload)):
            raise ProtocolError("an APPEND has entries and a payload, or neither", code="fields")
        if message.entries and not frame.flags & frames.BATCH_CRC:
            # With a CRC of the whole payload instead, a batch that does not match its own CRC would
            # pass.
            raise ProtocolError("an APPEND with batches is covered by their CRCs", code="fields")
    return message

"""Frames between nodes: what each carries, checked before anything believes it.

`encode` makes a ``twinlog.wire.Frame`` of a message, `decode` makes a message of a frame. The
frame's header carries the sender's epoch, the session (``request``) and the CRC of the names; the
message has epoch and session as ordinary fields.

    1 HELLO      slave to master   who I am, which log I have, a batch border of mine
    2 HELLO_OK   master to slave   the consistent point and a chain of CRCs up to it
    3 HELLO_ERR  master to slave   why not
    4 READY      slave to master   my log ends at the consistent point
    5 APPEND     master to slave   whole batches, or none; the confirm offset; the revision
    6 ACK        slave to master   received and flushed end; the revision shown is fsynced here
    7 PING  8 PONG                 both ways, when nothing else was said
    12 BYE                         both ways: why the link ends
    13 NACK      slave to master   a batch came with a CRC that differs

An entry travels as 36 bytes: the 48 of the batch index without ``flushed`` and without its CRC.

All offsets and lengths are bytes. Peers send garbage: every value is checked for type and bounds,
and what does not fit is a ProtocolError, after which the link is closed.

Not here: whether a message fits the session (the sessions ask that).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from replication.group_state import Fields
from replication.settings import EPOCHS_SENT_MAX
from storage import Epoch
from twinlog import wire
from twinlog.errors import ProtocolError
from twinlog.layout import BATCH_LENGTH_MAX, BatchEntry

ENTRY = struct.Struct(">QIIIIQI")
"""start, length, records, epoch, crc, store timestamp, kind."""
assert ENTRY.size == 36

ENTRIES_MAX = 1 << 14
"""Batches in one frame: 1 MiB of the smallest batch that holds a record (91 bytes) is less."""

OFFSET_MAX = (1 << 63) - 1
_UNSIGNED_MAX = (1 << 64) - 1
_HA_APPEND, _HA_ACK = int(wire.Type.HA_APPEND), int(wire.Type.HA_ACK)

EpochList = tuple[Epoch, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """See the module; ``border`` is where the chain of CRCs shall begin."""

    epoch: int
    session: int
    node: str
    store: str
    start: int
    end: int
    flushed: int
    confirm: int
    border: int
    epochs: EpochList
    register_id: str
    revision: int
    tag: int
    family: int
    segment_size: int
    least_version: int
    version: int
    features: int


@dataclass(frozen=True, slots=True)
class HelloOk:
    """``chain`` is the CRC over the master's entries from ``chain_start`` to ``point``."""

    epoch: int
    session: int
    leader: str
    point: int
    chain_start: int
    chain: int
    start: int
    end: int
    confirm: int
    epochs: EpochList
    version: int
    features: int


@dataclass(frozen=True, slots=True)
class HelloErr:
    """``epoch`` is the master's own; ``leader`` whom it takes for the master."""

    epoch: int
    session: int
    code: str
    text: str
    leader: str | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """The slave's log ends at ``end``, the consistent point."""

    epoch: int
    session: int
    end: int


@dataclass(slots=True)
class Append:
    """Batches from ``offset`` on; ``prev_epoch`` is that of the byte before. Nobody changes one.

    Attributes:
        entries: Packed entries, 36 bytes each; empty for a notice of the confirm offset.
        payload: The batches' bytes one after the other; of a filler its first 8.
        end: The master's end when it was sent; ``time_ms`` its wall clock.
        revision, tag: Of the group state the master acts under.
    """

    epoch: int
    session: int
    offset: int
    prev_epoch: int
    confirm: int
    end: int
    time_ms: int
    revision: int
    tag: int
    entries: bytes = b""
    payload: memoryview | bytes = b""


@dataclass(slots=True)
class Ack:
    """``health`` is empty, or why this slave cannot go on; ``revision`` is fsynced here.

    Nobody changes one; a frozen value of this size costs a microsecond to make.
    """

    epoch: int
    session: int
    end: int
    flushed: int
    confirm: int
    revision: int
    health: str = ""


@dataclass(frozen=True, slots=True)
class Ping:
    """Say something; answered by a `Pong` with the same ``nonce``."""

    epoch: int
    session: int
    nonce: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a `Ping`."""

    epoch: int
    session: int
    nonce: int


@dataclass(frozen=True, slots=True)
class Bye:
    """The link ends; ``code`` is stable, ``text`` is for people."""

    epoch: int
    session: int
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Nack:
    """The batch at ``start`` came with bytes that do not have its CRC."""

    epoch: int
    session: int
    start: int
    length: int
    reason: str


Message = Hello | HelloOk | HelloErr | Ready | Append | Ack | Ping | Pong | Bye | Nack


def pack_entries(entries: Iterable[BatchEntry]) -> bytes:
    """Return the entries as they travel."""
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
        raise ProtocolError(f"{len(data)} bytes are no list of entries", code="fields")
    entries: list[BatchEntry] = []
    for start, length, count, epoch, crc, timestamp, kind in ENTRY.iter_unpack(data):
        filler = kind == 1
        if not length > 0 or (length > BATCH_LENGTH_MAX and not filler) or start > OFFSET_MAX:
            raise ProtocolError(f"a batch at {start} of {length} bytes", code="fields")
        entries.append(BatchEntry(start, length, count, epoch, crc, timestamp, kind, 0))
    return entries


# -- to the wire


def encode(message: Message, names_crc: int) -> wire.Frame:
    """Return the frame that carries ``message``."""
    if type(message) is Append:
        flags = wire.BATCH_CRC if message.entries else 0
        return wire.Frame(
            _HA_APPEND, flags, message.epoch, message.session, names_crc,
            {
                "offset": message.offset, "prev_epoch": message.prev_epoch,
                "confirm": message.confirm, "end": message.end, "time_ms": message.time_ms,
                "revision": message.revision, "tag": message.tag, "entries": message.entries,
            },
            message.payload,
        )  # fmt: skip
    if type(message) is Ack:
        return wire.Frame(
            _HA_ACK, 0, message.epoch, message.session, names_crc,
            {
                "end": message.end, "flushed": message.flushed, "confirm": message.confirm,
                "revision": message.revision, "health": message.health,
            },
        )  # fmt: skip
    kind, fields = _WRITERS[type(message)](message)
    return wire.Frame(kind, 0, message.epoch, message.session, names_crc, fields)


def _epoch_list(epochs: EpochList) -> list[list[int]]:
    return [[epoch.epoch, epoch.start] for epoch in epochs[-EPOCHS_SENT_MAX:]]


_HELLO = (
    "node", "store", "start", "end", "flushed", "confirm", "border", "register_id", "revision",
    "tag", "family", "segment_size", "least_version", "version", "features",
)  # fmt: skip
_HELLO_OK = (
    "leader", "point", "chain_start", "chain", "start", "end", "confirm", "version", "features",
)  # fmt: skip
_OFFSETS = ("offset", "prev_epoch", "confirm", "end", "time_ms")

_Writer = Callable[..., tuple[int, dict[str, object]]]


def _plain(kind: int, names: tuple[str, ...]) -> _Writer:
    def write(message: object) -> tuple[int, dict[str, object]]:
        return kind, {name: getattr(message, name) for name in names}

    return write


def _with_epochs(kind: int, names: tuple[str, ...]) -> _Writer:
    def write(message: Hello | HelloOk) -> tuple[int, dict[str, object]]:
        fields: dict[str, object] = {name: getattr(message, name) for name in names}
        fields["epochs"] = _epoch_list(message.epochs)
        return kind, fields

    return write


_WRITERS: Mapping[type, _Writer] = {
    Hello: _with_epochs(wire.Type.HA_HELLO, _HELLO),
    HelloOk: _with_epochs(wire.Type.HA_HELLO_OK, _HELLO_OK),
    HelloErr: _plain(wire.Type.HA_HELLO_ERR, ("code", "text", "leader")),
    Ready: _plain(wire.Type.HA_READY, ("end",)),
    Ping: _plain(wire.Type.HA_PING, ("nonce",)),
    Pong: _plain(wire.Type.HA_PONG, ("nonce",)),
    Bye: _plain(wire.Type.HA_BYE, ("code", "text")),
    Nack: _plain(wire.Type.HA_NACK, ("start", "length", "reason")),
}


# -- from the wire


def decode(frame: wire.Frame) -> Message:
    """Return the message in ``frame``.

    Raises:
        ProtocolError: Not a type between nodes, or a field of another shape.
    """
    if frame.type == _HA_ACK and not frame.flags:
        ack = _quick_ack(frame)
        if ack is not None:
            return ack
    elif frame.type == _HA_APPEND and frame.flags == wire.BATCH_CRC:
        append = _quick_append(frame)
        if append is not None:
            return append
    reader = _READERS.get(frame.type)
    if reader is None or frame.flags & ~wire.BATCH_CRC:
        kind = wire.type_name(frame.type)
        raise ProtocolError(f"{kind} with flags {frame.flags} between nodes", code="type")
    return reader(frame, Fields(frame.fields, wire.type_name(frame.type)))


def _offset(take: Fields, name: str) -> int:
    return take.number(name, most=OFFSET_MAX)


def _epochs(take: Fields) -> EpochList:
    found: list[Epoch] = []
    for item in take.items("epochs", most=EPOCHS_SENT_MAX):
        match item:
            case [int() as epoch, int() as start] if epoch > 0 and 0 <= start <= OFFSET_MAX:
                if found and (found[-1].epoch >= epoch or found[-1].start > start):
                    raise ProtocolError("an epoch history does not rise", code="fields")
                found.append(Epoch(epoch, start))
            case _:
                raise ProtocolError(f"an epoch is {item!r}"[:80], code="fields")
    return tuple(found)


def _hello(frame: wire.Frame, take: Fields) -> Hello:
    return Hello(
        epoch=frame.epoch,
        session=frame.request,
        node=take.text("node"),
        store=take.text("store"),
        start=_offset(take, "start"),
        end=_offset(take, "end"),
        flushed=_offset(take, "flushed"),
        confirm=_offset(take, "confirm"),
        border=_offset(take, "border"),
        epochs=_epochs(take),
        register_id=take.text("register_id"),
        revision=take.number("revision"),
        tag=take.number("tag"),
        family=take.number("family", most=6),
        segment_size=_offset(take, "segment_size"),
        least_version=take.number("least_version", most=255),
        version=take.number("version", most=255),
        features=take.number("features"),
    )


def _hello_ok(frame: wire.Frame, take: Fields) -> HelloOk:
    return HelloOk(
        epoch=frame.epoch,
        session=frame.request,
        leader=take.text("leader"),
        point=_offset(take, "point"),
        chain_start=_offset(take, "chain_start"),
        chain=take.number("chain", most=(1 << 32) - 1),
        start=_offset(take, "start"),
        end=_offset(take, "end"),
        confirm=_offset(take, "confirm"),
        epochs=_epochs(take),
        version=take.number("version", most=255),
        features=take.number("features"),
    )


def _append(frame: wire.Frame, take: Fields) -> Append:
    entries = take.data("entries", most=ENTRIES_MAX * ENTRY.size)
    if bool(entries) != bool(len(frame.payload)):
        raise ProtocolError("an APPEND has entries and a payload, or neither", code="fields")
    if entries and not frame.flags & wire.BATCH_CRC:
        raise ProtocolError("an APPEND with batches is covered by their CRCs", code="fields")
    offset, prev_epoch, confirm, end, time_ms = take.integers(*_OFFSETS, most=OFFSET_MAX)
    revision, tag = take.integers("revision", "tag")
    return Append(
        frame.epoch,
        frame.request,
        offset,
        prev_epoch,
        confirm,
        end,
        time_ms,
        revision,
        tag,
        entries,
        frame.payload,
    )


def _ack(frame: wire.Frame, take: Fields) -> Ack:
    end, flushed, confirm = take.integers("end", "flushed", "confirm", most=OFFSET_MAX)
    revision = take.number("revision")
    return Ack(frame.epoch, frame.request, end, flushed, confirm, revision, take.text("health"))


def _quick_ack(frame: wire.Frame) -> Ack | None:
    """Return an acknowledgement without fault; None to have it looked at one field at a time."""
    get = frame.fields.get
    end, flushed, confirm, revision = get("end"), get("flushed"), get("confirm"), get("revision")
    if (
        type(end) is int
        and type(flushed) is int
        and type(confirm) is int
        and type(revision) is int
        and 0 <= end <= OFFSET_MAX
        and 0 <= flushed <= OFFSET_MAX
        and 0 <= confirm <= OFFSET_MAX
        and 0 <= revision <= OFFSET_MAX
        and get("health") == ""
    ):
        return Ack(frame.epoch, frame.request, end, flushed, confirm, revision)
    return None


def _quick_append(frame: wire.Frame) -> Append | None:
    """Return one APPEND with batches and without fault; None as `_quick_ack`."""
    get, payload = frame.fields.get, frame.payload
    offset, before, confirm, end = get("offset"), get("prev_epoch"), get("confirm"), get("end")
    time_ms, revision, tag, entries = get("time_ms"), get("revision"), get("tag"), get("entries")
    if (
        type(offset) is int
        and type(before) is int
        and type(confirm) is int
        and type(end) is int
        and type(time_ms) is int
        and type(revision) is int
        and type(tag) is int
        and type(entries) is bytes
        and 0 <= offset <= OFFSET_MAX
        and 0 <= before <= OFFSET_MAX
        and 0 <= confirm <= OFFSET_MAX
        and 0 <= end <= OFFSET_MAX
        and 0 <= time_ms <= OFFSET_MAX
        and 0 <= revision <= _UNSIGNED_MAX
        and 0 <= tag <= _UNSIGNED_MAX
        and 0 < len(entries) <= ENTRIES_MAX * ENTRY.size
        and len(payload) > 0
    ):
        return Append(
            frame.epoch, frame.request, offset, before, confirm, end, time_ms, revision, tag,
            entries, payload,
        )  # fmt: skip
    return None


_READERS: Mapping[int, Callable[[wire.Frame, Fields], Message]] = {
    wire.Type.HA_HELLO: _hello,
    wire.Type.HA_HELLO_OK: _hello_ok,
    wire.Type.HA_HELLO_ERR: lambda frame, take: HelloErr(
        frame.epoch, frame.request, take.text("code"), take.text("text"), take.name("leader")
    ),
    wire.Type.HA_READY: lambda frame, take: Ready(frame.epoch, frame.request, _offset(take, "end")),
    wire.Type.HA_APPEND: _append,
    wire.Type.HA_ACK: _ack,
    wire.Type.HA_PING: lambda frame, take: Ping(frame.epoch, frame.request, take.number("nonce")),
    wire.Type.HA_PONG: lambda frame, take: Pong(frame.epoch, frame.request, take.number("nonce")),
    wire.Type.HA_BYE: lambda frame, take: Bye(
        frame.epoch, frame.request, take.text("code"), take.text("text")
    ),
    wire.Type.HA_NACK: lambda frame, take: Nack(
        frame.epoch,
        frame.request,
        _offset(take, "start"),
        _offset(take, "length"),
        take.text("reason"),
    ),
}

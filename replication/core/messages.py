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
(`Offset`, `Number`, `Text` ...), and encoding and decoding are derived from it. A new field is one
line here.

An entry is sent as 36 bytes: the 48 of the batch index without ``flushed`` and its CRC.

All offsets and lengths are bytes. Peers may send anything: every value is checked for type and
bounds, and a value that fails is a ProtocolError, after which the link is closed.

Not here: whether a message fits the state of a session.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, cast, get_type_hints

from replication.settings import EPOCHS_SENT_MAX
from twinlog.errors import ProtocolError
from twinlog.format.batch_index import BATCH_LENGTH_MAX, BatchEntry
from twinlog.format.epoch_history import Epoch
from twinlog.wire import frames

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
    (`Seed`).
    """

    epoch: int
    session: int
    node: Text
    store: Text
    start: Offset
    end: Offset
    flushed: Offset
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


class _Form:
    """The wire form of one class; made from its declaration."""

    __slots__ = ("columns", "make", "number", "payload", "title")

    def __init__(self, cls: type[Message], number: int) -> None:
        hints = get_type_hints(cls, include_extras=True)
        self.make: Callable[..., Message] = cls
        self.number = int(number)
        self.title = frames.type_name(number)
        self.payload = "payload" in hints
        self.columns: tuple[tuple[str, type, int, Kind], ...] = tuple(
            (name, kind.plain, kind.most, kind)
            for name, hint in hints.items()
            for kind in getattr(hint, "__metadata__", ())
        )

    def write(self, message: Message) -> dict[str, object]:
        """Return the fields of the frame that carries ``message``."""
        found: dict[str, object] = {}
        for name, _, _, kind in self.columns:
            value = getattr(message, name)
            found[name] = value if kind.write is None else kind.write(value)
        return found

    def read(self, frame: frames.Frame) -> Message:
        """Return the message in ``frame``.

        Raises:
            ProtocolError: A field is missing, of another type or out of bounds.
        """
        get = frame.fields.get
        values: list[object] = [frame.epoch, frame.request]
        for name, plain, most, kind in self.columns:
            value = get(name)
            if type(value) is plain:
                size = value if plain is int else len(value)  # type: ignore[arg-type]
                if 0 <= size <= most:  # type: ignore[operator]
                    values.append(value)
                    continue
            elif kind.read is not None:
                values.append(kind.read(value))
                continue
            elif value is None and kind.nil:
                values.append(None)
                continue
            raise ProtocolError(
                f"{self.title}: {name} is {value!r}"[:80] + f", not {_wanted(kind)}", code="fields"
            )
        return self.make(*values, frame.payload) if self.payload else self.make(*values)


def _wanted(kind: Kind) -> str:
    what = {int: "a number up to", str: "a text of at most", bytes: "data of at most"}
    return f"{what[kind.plain]} {kind.most}"


_FORMS: Mapping[type[Message], _Form] = {cls: _Form(cls, number) for cls, number in TYPES.items()}
_READERS: Mapping[int, _Form] = {form.number: form for form in _FORMS.values()}


def encode(message: Message, names_crc: int) -> frames.Frame:
    """Return the frame that carries ``message``."""
    form = _FORMS[type(message)]
    flags, payload = 0, cast("memoryview | bytes", b"")
    if isinstance(message, Seed):
        payload = message.payload
    elif form.payload:
        append = cast("Append", message)
        payload = append.payload
        flags = frames.BATCH_CRC if append.entries else 0
    return frames.Frame(
        form.number, flags, message.epoch, message.session, names_crc, form.write(message), payload
    )


def decode(frame: frames.Frame) -> Message:
    """Return the message in ``frame``.

    Raises:
        ProtocolError: Not a type between nodes, or a field that does not fit its declaration.
    """
    form = _READERS.get(frame.type)
    if form is None or frame.flags & ~frames.BATCH_CRC:
        kind = frames.type_name(frame.type)
        raise ProtocolError(f"{kind} with flags {frame.flags} between nodes", code="type")
    message = form.read(frame)
    if type(message) is Append:
        if bool(message.entries) != bool(len(frame.payload)):
            raise ProtocolError("an APPEND has entries and a payload, or neither", code="fields")
        if message.entries and not frame.flags & frames.BATCH_CRC:
            # With a CRC of the whole payload instead, a batch that does not match its own CRC would
            # pass.
            raise ProtocolError("an APPEND with batches is covered by their CRCs", code="fields")
    return message

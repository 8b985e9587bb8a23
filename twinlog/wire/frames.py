"""Frames: how requests, answers and replicated batches travel.

One frame is a header of 48 bytes, a msgpack map (the *fields*) and raw bytes (the *payload*, mostly
records in stored encoding, which msgpack never touches). Clients, slaves and the coordinator all
speak it; the type says who is meant. All integers are big-endian:

    offset  size  field
         0     4  magic "TWL1"
         4     1  version
         5     1  type: 1-31 between nodes, 32-63 clients, 64-79 coordinator; an answer keeps it
         6     2  flags: 1 answer, 2 error, 4 payload is covered by the batch CRCs in the fields
         8     4  fields length, bytes, at most 1 MiB
        12     4  payload length, bytes, at most 8 MiB
        16     8  sender's epoch
        24     8  request id (between nodes: session)
        32     4  CRC-32C of "cluster NUL group"; 0 from a client that does not know the names
        36     4  CRC-32C of the fields
        40     4  CRC-32C of the payload (0 with flag 4)
        44     4  CRC-32C of bytes 0..43

Rules that hold for every input, however it is cut into pieces:

* header and fields are proven (CRC, limits, shape) before one payload byte is placed;
* nothing is allocated for bytes that were only announced: memory follows what has arrived, by a
  factor of at most four, plus 512 KiB;
* after the first error the reader yields the frames that came before it and then that error
  forever; there is no way back into step, the connection must be closed.

Not here: which fields each type carries (``twinlog.wire.schema``), sockets, time-outs, who may send
what, and comparing ``names_crc`` with one's own (the servers do, they know the first frame).
"""

from __future__ import annotations

import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import msgpack

from twinlog.errors import ProtocolError
from twinlog.kernels import crc32c, frame_head, take_frame
from twinlog.wire.types import CLIENT_TYPES as CLIENT_TYPES
from twinlog.wire.types import COORDINATOR_TYPES as COORDINATOR_TYPES
from twinlog.wire.types import HA_TYPES as HA_TYPES
from twinlog.wire.types import NAMES
from twinlog.wire.types import Type as Type
from twinlog.wire.types import type_name as type_name

MAGIC: Final = b"TWL1"
VERSION: Final = 1

MESSAGING: Final = 1
"""Bit of HELLO's ``features``: groups, requests 44 to 50 and 53."""

ACCESS: Final = 2
"""Bit of HELLO's ``features``: the node wants to know who asks, by LOGIN or by a certificate."""

ANSWER: Final = 1
ERROR: Final = 2
BATCH_CRC: Final = 4

HEADER: Final = struct.Struct(">4sBBHIIQQIII")
_CRC: Final = struct.Struct(">I")
_WHOLE: Final = struct.Struct(HEADER.format + "I")
HEADER_SIZE: Final = 48
assert HEADER.size + _CRC.size == _WHOLE.size == HEADER_SIZE

FIELDS_MAX: Final = 1 << 20
"""Largest fields map, bytes: METADATA of a cluster with ten thousand topics is a tenth of it."""

PAYLOAD_MAX: Final = 8 << 20
"""Largest payload, bytes: one log batch is at most 4,259,840."""

DEPTH_MAX: Final = 16
"""Deepest nesting of lists and maps in fields; the deepest answer (STATUS) needs 6."""

ITEMS_MAX: Final = 1 << 16
"""Longest list or map in fields: an element costs 1 byte on the wire and up to 64 in memory."""

STAGE_SIZE: Final = 4 << 10
"""What an idle connection costs: room for a header and ordinary fields."""

STAGE_MAX: Final = 64 << 10
"""What a connection with many small frames grows its room to, so one receive takes many."""

_FIRST_ROOM: Final = 512 << 10
"""Room made for a payload before any of it arrived; a default section of 256 KiB fits at once."""


KINDS: Final = (
    "not-ours",
    "http",
    "tls",
    "version",
    "crc",
    "oversized",
    "type",
    "fields",
    "truncated",
)
"""Every ``FrameError.kind``; servers count closed connections by it."""


class FrameError(ProtocolError):
    """The bytes are not a twinlog frame; ``kind`` (one of `KINDS`) says in which way."""

    def __init__(self, kind: str, text: str, **facts: int) -> None:
        super().__init__(text, code=f"frame-{kind}")
        self.facts = {"kind": kind, **facts}

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return str(self.facts["kind"])

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by kind and text; the facts are part of the text."""
        return FrameError, (self.kind, self.text)


def _no_fields() -> dict[str, object]:
    return {}


@dataclass(slots=True)
class Frame:
    """One request or answer.

    Attributes:
        type: A `Type`; an answer has its request's.
        flags: Bits `ANSWER`, `ERROR`, `BATCH_CRC`.
        epoch: The sender's epoch; 0 from one that has none.
        request: Request id, repeated by the answer; between nodes the session.
        names_crc: See `names_crc`.
        fields: String keys; values are what msgpack knows.
        payload: Raw bytes. The reader never reuses a payload that is still referred to.
    """

    type: int
    flags: int = 0
    epoch: int = 0
    request: int = 0
    names_crc: int = 0
    fields: dict[str, object] = field(default_factory=_no_fields)
    payload: memoryview | bytes = b""

    @property
    def is_answer(self) -> bool:
        """True for an answer, good or error."""
        return bool(self.flags & ANSWER)

    @property
    def is_error(self) -> bool:
        """True for an answer that reports an error."""
        return bool(self.flags & ERROR)


def names_crc(cluster: str, group: str) -> int:
    """Return the CRC-32C of "cluster NUL group" that every frame carries.

    >>> hex(names_crc("demo", "g1"))
    '0x157389b6'
    """
    return int(crc32c(cluster.encode() + b"\0" + group.encode()))


def answer(
    request: Frame,
    fields: dict[str, object],
    payload: memoryview | bytes = b"",
    *,
    epoch: int = 0,
    names: int = 0,
) -> Frame:
    """Return the answer to ``request``: same type and id."""
    return Frame(request.type, ANSWER, epoch, request.request, names, fields, payload)


def refusal(request: Frame, error: dict[str, object], *, epoch: int = 0, names: int = 0) -> Frame:
    """Return the error answer to ``request``; ``error``: code, text, hint, retryable and facts."""
    return Frame(request.type, ANSWER | ERROR, epoch, request.request, names, error)


_pack = cast("Callable[[object], bytes]", msgpack.Packer(use_bin_type=True).pack)  # pyright: ignore
_unpack = cast("Callable[..., object]", msgpack.unpackb)  # pyright: ignore


def encode(frame: Frame) -> tuple[bytes, memoryview | bytes]:
    """Return header and fields as one piece, and the payload untouched, to be sent in turn.

    Raises:
        FrameError: ``oversized``; the caller must divide what it sends.
    """
    payload = frame.payload
    return encode_gather(frame, (payload,) if payload else ()), payload


def encode_gather(
    frame: Frame, payload: Sequence[memoryview | bytes], crc: int | None = None
) -> bytes:
    """Return header and fields for a payload that lies in several pieces, sent after it in turn.

    ``frame.payload`` is not looked at. ``crc`` is the payload's, where the caller has it. Raises as
    `encode` does.
    """
    fields, length = _pack(frame.fields), 0
    for piece in payload:
        length += piece.nbytes if isinstance(piece, memoryview) else len(piece)
    if len(fields) > FIELDS_MAX or length > PAYLOAD_MAX:
        text = f"{type_name(frame.type)} has {len(fields)} bytes of fields and {length} of payload"
        raise FrameError("oversized", text, fields=len(fields), payload=length)
    if crc is None:
        crc = 0
        if not frame.flags & BATCH_CRC:
            for piece in payload:
                crc = crc32c(piece, crc)
    return frame_head(
        frame.type, frame.flags, frame.epoch, frame.request, frame.names_crc, fields, length, crc
    )


def encode_whole(frame: Frame) -> bytes:
    """Return the frame as one piece, payload copied: for small frames and tests."""
    head, payload = encode(frame)
    return head + bytes(payload) if payload else head


def _refuse_foreign(data: memoryview) -> None:
    """Raise when ``data`` (the first bytes of a frame) does not begin as ours does.

    The first byte that differs decides, so the answer is the same however the bytes arrive.
    """
    for at, (got, wanted) in enumerate(zip(data, MAGIC, strict=False)):
        if got == wanted:
            continue
        if (at == 0 and got in b"GPHODC") or (at == 1 and got == ord("R")):
            raise FrameError("http", "the peer speaks HTTP")
        if at == 0 and got in (0x16, 0x80):
            raise FrameError("tls", "the peer speaks TLS")
        raise FrameError("not-ours", f"byte {at} is 0x{got:02x}; a frame begins with TWL1")
    if len(data) > 4 and data[4] != VERSION:
        text = f"the peer speaks wire version {data[4]}, we speak {VERSION}"
        raise FrameError("version", text, version=data[4], supported=VERSION)


@dataclass(frozen=True, slots=True)
class _Head:
    """A frame whose payload is still arriving."""

    frame: Frame
    payload: int
    payload_crc: int


def _fit(fields: dict[str, object]) -> bool:
    """Say whether the nesting is within `DEPTH_MAX` and every inner key text or a number."""
    for key, value in fields.items():
        if type(key) is not str or type(value) is list or type(value) is dict:
            break
    else:
        return True
    level: list[object] = [fields]
    for _ in range(DEPTH_MAX + 1):
        below: list[object] = []
        for each in level:
            values = cast("Iterable[object]", each)
            if type(each) is dict:
                values = cast("Iterable[object]", each.values())  # pyright: ignore
                for key in each:  # pyright: ignore[reportUnknownVariableType]
                    if type(key) is not str and (type(key) is not int or each is fields):  # pyright: ignore
                        return False
            for value in values:
                if type(value) is list or type(value) is dict:
                    below.append(value)  # pyright: ignore[reportUnknownArgumentType]
        if not below:
            return True
        level = below
    return False


def unpack_fields(data: bytes | memoryview) -> dict[str, object]:
    """Return the fields map in ``data``, which holds nothing else.

    Raises:
        FrameError: ``fields``: no map, keys that are no strings, broken msgpack, an extension
            type, nested or longer than the limits.
    """
    try:
        value = _unpack(
            data,
            strict_map_key=False,
            max_array_len=ITEMS_MAX,
            max_map_len=ITEMS_MAX,
            max_ext_len=0,
            ext_hook=_no_extension,
        )
    except Exception as error:  # msgpack raises six unrelated types, TypeError for a list as key
        raise FrameError(
            "fields", f"the fields are not the msgpack that twinlog writes: {error!r}"
        ) from error
    if type(value) is not dict:
        raise FrameError("fields", "the fields are not a map")
    fields: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType]
    if not _fit(fields):
        raise FrameError("fields", f"the fields nest deeper than {DEPTH_MAX} or have odd keys")
    return fields


def _no_extension(code: int, data: bytes) -> object:
    raise ValueError(f"extension type {code}")


Place = Callable[[Frame, int], "memoryview | None"]
"""Where a payload goes: called once with the proven frame (payload still empty) and the length; a
writable view of exactly that length, or None for memory of the frame's own."""


class FrameReader:
    """Cuts a stream of bytes into frames. No socket: bytes in, frames out.

    Two ways in, which may be mixed. `feed` takes bytes. `buffer` and `received` receive in place:
    a payload that is not yet here goes straight into the memory its `Frame.payload` will show.

    >>> reader = FrameReader()
    >>> reader.feed(encode_whole(Frame(Type.METADATA, request=7, fields={"topics": ["orders"]})))
    >>> frame = reader.next()
    >>> (frame.request, frame.fields) if frame else None
    (7, {'topics': ['orders']})
    >>> reader.next() is None
    True

    Args:
        fields_max: Limit for fields, bytes; a server lowers it until the peer has said HELLO.
        payload_max: Limit for payloads, bytes.
        place: See `Place`.
        kept: The memory of the last two payloads, each up to this many bytes, is used for the next
            ones, if no reference to it is left: fresh memory costs a reader a tenth of its time.
            One payload is looked at while the next arrives. 0: never.
    """

    __slots__ = (
        "_end",
        "_error",
        "_filled",
        "_frames",
        "_head",
        "_kept",
        "_place",
        "_room",
        "_spares",
        "_stage",
        "fields_max",
        "payload_max",
    )

    def __init__(
        self,
        *,
        fields_max: int = FIELDS_MAX,
        payload_max: int = PAYLOAD_MAX,
        place: Place | None = None,
        kept: int = 0,
    ) -> None:
        self.fields_max = fields_max
        self.payload_max = payload_max
        self._place = place
        self._kept = kept
        self._spares: list[bytearray] = []
        self._stage = bytearray(STAGE_SIZE)
        self._end = 0  # bytes in the stage
        self._head: _Head | None = None  # set while a payload is being received into _room
        self._room: memoryview = memoryview(b"")
        self._filled = 0
        self._frames: deque[Frame] = deque()
        self._error: FrameError | None = None

    @property
    def memory(self) -> int:
        """Bytes held for frames that are not complete."""
        return len(self._stage) + (self._room.nbytes if self._head is not None else 0)

    def buffer(self) -> memoryview:
        """Return memory to receive into, at least one byte; then call `received`.

        The view is good until then. Allocates nothing beyond the rule in the module's docstring.
        """
        if self._head is not None:
            return self._room[self._filled :]
        return memoryview(self._stage)[self._end :]

    def received(self, count: int) -> None:
        """Take ``count`` bytes that were written to the front of the last `buffer`.

        Frames and errors come out of `next`. Raises only what ``place`` raises.
        """
        if self._error is not None:
            return
        try:
            if self._head is None:
                self._end += count
                self._parse()
            else:
                self._filled += count
                self._fill()
        except FrameError as error:
            self._error = error
            self._drop()

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take ``data``; it is copied. Frames and errors come out of `next`."""
        rest = memoryview(data)
        while rest and self._error is None:
            room = self.buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            room.release()
            self.received(count)
            rest = rest[count:]

    def next(self) -> Frame | None:
        """Return the next whole frame, or None when more bytes are needed.

        Raises:
            FrameError: The stream left the rules after the frames returned so far.
        """
        if self._frames:
            return self._frames.popleft()
        if self._error is not None:
            raise self._error
        return None

    def finish(self) -> None:
        """Say that no byte follows.

        Raises:
            FrameError: ``truncated`` when a frame had begun, or the earlier error.
        """
        if self._error is not None:
            raise self._error
        if self._end or self._head is not None:
            raise FrameError("truncated", "the connection ended inside a frame")

    def release(self) -> None:
        """Give back all memory; the reader takes no more bytes after this."""
        self._drop()
        self._frames.clear()

    def _drop(self) -> None:
        self._stage = bytearray(0)
        self._end, self._head, self._room, self._filled = 0, None, memoryview(b""), 0
        self._spares = []

    def _parse(self) -> None:
        """Take every whole frame out of the stage; begin a payload that is not all there."""
        at, need = 0, 0
        while self._head is None and at < self._end:
            step = self._simple(at) or self._step(at)
            if step <= 0:
                need = -step
                break
            at += step
        if at == self._end and len(self._stage) == STAGE_SIZE and at < STAGE_SIZE:
            self._end = 0
        else:
            self._compact(at, need)

    def _simple(self, at: int) -> int:
        """Take one whole frame that needs no further look; return the bytes used, 0 for another.

        A third of the time of the general way (``benchmarks/log/fast_ways.py``).
        """
        if self._place is not None:
            return 0
        found = take_frame(self._stage, at, self._end, self.fields_max, self.payload_max)
        if found is None or found[1] not in NAMES:
            return 0
        self._frames.append(Frame(*found[1:]))
        return found[0]

    def _step(self, at: int) -> int:
        with memoryview(self._stage) as stage:
            return self._general(stage, at)

    def _general(self, stage: memoryview, at: int) -> int:
        """Take one frame, or its beginning, that begins at ``at``; return the bytes used.

        When header and fields are not complete: minus the bytes they need.
        """
        if self._end - at < HEADER_SIZE:
            _refuse_foreign(stage[at : self._end])
            return -HEADER_SIZE
        size: int
        payload: int
        (
            magic, version, kind, flags, size, payload, epoch, request, names, crc, payload_crc,
            head_crc,
        ) = _WHOLE.unpack_from(stage, at)  # fmt: skip
        if magic != MAGIC or version != VERSION:
            _refuse_foreign(stage[at : self._end])
        if head_crc != crc32c(stage[at : at + HEADER.size]):
            raise FrameError("crc", "the CRC of a frame header differs")
        if kind not in NAMES:
            raise FrameError("type", f"frame type {kind} is not known", type=kind)
        if size > self.fields_max or payload > self.payload_max:
            text = f"{type_name(kind)} announces {size} bytes of fields and {payload} of payload"
            raise FrameError("oversized", text, fields=size, payload=payload)
        begin = at + HEADER_SIZE
        end = begin + size
        if self._end < end:
            return at - end
        data = stage[begin:end]
        if crc32c(data) != crc:
            raise FrameError("crc", f"the CRC of the fields of {type_name(kind)} differs")
        frame = Frame(kind, flags, epoch, request, names, unpack_fields(data))
        if not payload:
            self._done(frame, b"", payload_crc)
            return end - at
        there = stage[end : min(end + payload, self._end)]
        return end - at + self._begin(_Head(frame, payload, payload_crc), there)

    def _begin(self, head: _Head, there: memoryview) -> int:
        """Make room for a payload of which ``there`` has arrived; return the bytes used."""
        room = self._place(head.frame, head.payload) if self._place is not None else None
        if room is None:
            if len(there) == head.payload:
                self._done(head.frame, bytes(there), head.payload_crc)
                return len(there)
            room = self._own_room(head.payload, len(there))
        room[: len(there)] = there
        self._head, self._room, self._filled = head, room, len(there)
        self._fill()
        return len(there)

    def _own_room(self, length: int, there: int) -> memoryview:
        """Return memory for a payload of which ``there`` bytes have arrived; perhaps a used one."""
        spares = self._spares
        for at in range(len(spares)):
            # Two references are the list and the argument; any view of a kept payload is another.
            if len(spares[at]) >= length and sys.getrefcount(spares[at]) == 2:
                return memoryview(spares.pop(at))[:length]
        return memoryview(bytearray(min(length, max(_FIRST_ROOM, there))))

    def _fill(self) -> None:
        """Finish the payload when it is whole; make more room when what there is is full."""
        head = self._head
        assert head is not None, "a payload is under way"
        if self._filled == head.payload:
            room = self._room
            self._head, self._room, self._filled = None, memoryview(b""), 0
            self._done(head.frame, room, head.payload_crc)
            if self._place is None and len(own := cast("bytearray", room.obj)) <= self._kept:
                self._spares = [*self._spares[-1:], own]
        elif self._filled == len(self._room):
            size = min(head.payload, 4 * self._filled)
            # One that is kept has room for the next payload, which may be a little larger.
            larger = bytearray(max(size, min(size * 9 // 8, 4 * self._filled, self._kept)))
            larger[: self._filled] = self._room
            self._room = memoryview(larger)[:size]

    def _done(self, frame: Frame, payload: memoryview | bytes, crc: int) -> None:
        """Hand out a frame whose payload is whole; ``crc`` is what its header says of it."""
        covered = frame.flags & BATCH_CRC or not payload
        if (0 if covered else crc32c(payload)) != crc:
            name = type_name(frame.type)
            raise FrameError("crc", f"the CRC of the payload of {name} differs")
        frame.payload = payload
        self._frames.append(frame)

    def _compact(self, at: int, need: int) -> None:
        """Move what is left of the stage, from ``at`` on, to its front and fit its size."""
        rest, size = self._end - at, len(self._stage)
        if rest == size:
            wanted = min(need, 4 * size)
        elif self._end == size and len(self._frames) > 3:
            wanted = max(size, STAGE_MAX)
        elif rest < STAGE_SIZE and size > STAGE_SIZE and self._end < size // 16:
            wanted = STAGE_SIZE
        else:
            wanted = size
        if wanted != size:
            stage = bytearray(wanted)
            stage[:rest] = self._stage[at : self._end]
            self._stage = stage
        elif at and rest:
            self._stage[:rest] = self._stage[at : self._end]
        self._end = rest

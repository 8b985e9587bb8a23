"""One connection to a node, without its socket: greeting, request ids, answers to their requests.

Bytes to send come out as pieces, bytes received go in through `buffer` and `received`. The first
frame is HELLO; its answer says whom we are connected to. Every other request gets an id, and its
answer comes out under that id, in whatever order the node answers.

A `Link` is used once: after an error or the end of its connection a new one is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from twinlog.errors import TwinlogError, from_code
from twinlog.wire import frames, schema
from twinlog.wire.frames import Frame, FrameError, FrameReader, Type

FEATURES: Final = 0
"""Feature bits of this client; none is defined yet."""

_HELLO_REQUEST: Final = 0


@dataclass(frozen=True, slots=True)
class Peer:
    """The node at the other end of a connection, as its HELLO says.

    Attributes:
        family: 4 or 6, see `routing.Route`.
        segment_size: Bytes of one log file, the same on all nodes.
    """

    node: str
    cluster: str
    group: str
    family: int
    segment_size: int


def error_of(frame: Frame) -> TwinlogError:
    """Return the error that an error answer reports.

    Raises:
        FrameError: The answer is not of the shape of an error.
    """
    schema.check(frame)
    fields = dict(frame.fields)
    code, text = str(fields.pop("code")), str(fields.pop("text"))
    hint = fields.pop("hint", None)
    retryable = fields.pop("retryable") is True
    hint = hint if isinstance(hint, str) else None
    return from_code(code, text, hint=hint, retryable=retryable, facts=fields)


class Link:
    """See the module.

    Args:
        client: What the node may log about us.

    >>> link = Link("doctest")
    >>> node = FrameReader()
    >>> node.feed(link.hello())
    >>> greeting = node.next()
    >>> greeting.fields["min"] if greeting else None
    1
    """

    def __init__(self, client: str) -> None:
        self.peer: Peer | None = None
        self._client = client
        self._reader = FrameReader()
        self._names = 0
        self._last = _HELLO_REQUEST
        self._waiting: dict[int, int] = {_HELLO_REQUEST: Type.HELLO}

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._waiting)

    @property
    def next_number(self) -> int:
        """The id that the next request will get."""
        return self._last + 1

    def hello(self) -> bytes:
        """Return the greeting, the first bytes to send."""
        version = frames.VERSION
        fields: dict[str, object] = {"min": version, "max": version, "features": FEATURES}
        fields["client"] = self._client
        return frames.encode_whole(Frame(Type.HELLO, request=_HELLO_REQUEST, fields=fields))

    def request(
        self, frame: Frame, pieces: Sequence[memoryview | bytes] = ()
    ) -> tuple[int, list[memoryview | bytes]]:
        """Give ``frame`` an id; return it and the parts to send in turn, none of them copied.

        Args:
            frame: The request; its own payload is not looked at.
            pieces: The payload, in any number of pieces.

        Raises:
            FrameError: ``oversized``; nothing may be sent.
        """
        # With this checksum of cluster and group a node refuses frames for another cluster.
        frame.request, frame.names_crc = self._last + 1, self._names
        head = frames.encode_gather(frame, pieces)
        # Counted only after encoding: an oversized frame uses up no id.
        self._last += 1
        self._waiting[self._last] = frame.type
        return self._last, [head, *pieces]

    def forget(self, request: int) -> None:
        """Have the answer of ``request`` ignored when it comes."""
        if request in self._waiting:
            self._waiting[request] = -1

    def buffer(self) -> memoryview:
        """Return memory to receive into."""
        return self._reader.buffer()

    def received(self, count: int) -> None:
        """Take ``count`` bytes that lie in the last `buffer`."""
        self._reader.received(count)

    def feed(self, data: bytes) -> None:
        """Take ``data``, received elsewhere."""
        self._reader.feed(data)

    def answers(self) -> Iterator[Frame]:
        """Yield the answers that are complete; `peer` is set before any of them.

        Raises:
            FrameError: The node broke the protocol; close the connection.
            TwinlogError: The node refused our greeting.
        """
        while (frame := self._reader.next()) is not None:
            kind = self._waiting.pop(frame.request, None)
            if kind is None or not frame.is_answer:
                name = frames.type_name(frame.type)
                raise FrameError(
                    "type", f"{name} {frame.request} answers no request of this connection"
                )
            if frame.request == _HELLO_REQUEST:
                self._greeted(frame)
            elif kind == frame.type:
                yield frame
            # -1 is a forgotten request (`forget`): its answer may have any type.
            elif kind != -1:
                name = frames.type_name(kind)
                raise FrameError("type", f"{frames.type_name(frame.type)} answers {name}")

    def finish(self) -> None:
        """Say that the connection has ended; raises FrameError when inside a frame."""
        self._reader.finish()

    def _greeted(self, frame: Frame) -> None:
        if frame.is_error:
            raise error_of(frame)
        schema.check(frame)
        text = {name: frame.fields[name] for name in ("node", "cluster", "group")}
        family, size = frame.fields["family"], frame.fields["segment_size"]
        assert isinstance(family, int), "shapes.check"
        assert isinstance(size, int), "shapes.check"
        if family not in (4, 6):
            raise FrameError("fields", f"HELLO answer: family must be 4 or 6, not {family}")
        self.peer = Peer(str(text["node"]), str(text["cluster"]), str(text["group"]), family, size)
        self._names = frames.names_crc(self.peer.cluster, self.peer.group)

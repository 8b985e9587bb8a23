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

from twinlog.errors import Denied, TwinlogError, UsageError, from_code
from twinlog.session.tls_files import Login
from twinlog.units import MiB
from twinlog.wire import frames, schema, scram
from twinlog.wire.frames import Frame, FrameError, FrameReader, Type

FEATURES: Final = 0
"""Feature bits of this client; none is defined yet."""

OTHER_CLUSTER: Final = "other-cluster"
"""Code of the refusal of a node or a client of another cluster."""

ANSWER_KEPT: Final = 2 * MiB
"""Memory of an answer's payload that a connection keeps for a later answer, bytes; of two answers.
A reader asks for half of it at a time."""

_HELLO_REQUEST: Final = 0

SECRETS_MAX: Final = 64
"""Hashed passwords that a process remembers: hashing takes milliseconds, and connections many."""

_secrets: dict[tuple[Login, bytes, int], bytes] = {}


@dataclass(frozen=True, slots=True)
class Expected:
    """The cluster that must answer; another one is refused before it gets a request.

    Attributes:
        cluster: Its name.
        source: Where the name comes from, for a person.
    """

    cluster: str
    source: str

    def stranger(self, node: str, cluster: str) -> UsageError:
        """Return the error for a node of another cluster; nothing was asked of it."""
        text = f"node {node} of cluster {cluster} answers, not cluster {self.cluster}"
        hint = f"{self.cluster} comes from {self.source}; compare it with the addresses"
        facts = {"node": node, "cluster": cluster, "expected": self.cluster}
        return UsageError(text, code=OTHER_CLUSTER, hint=hint, **facts)


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
        expected: The cluster that must answer; None: any.
        login: Who we are, for nodes that ask; the node proves that it knows us, too.
        nonce: A random number, for the login.

    >>> link = Link("doctest")
    >>> node = FrameReader()
    >>> node.feed(link.hello())
    >>> greeting = node.next()
    >>> greeting.fields["min"] if greeting else None
    1
    """

    def __init__(
        self,
        client: str,
        expected: Expected | None = None,
        login: Login | None = None,
        nonce: str = "",
    ) -> None:
        self.peer: Peer | None = None
        self._login = login
        self._due: bytes | None = None
        self._found: Peer | None = None
        self._own, self._secret, self._spoken = nonce, b"", b""
        self._client = client
        self._expected = expected
        self._reader = FrameReader(kept=ANSWER_KEPT)
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
        if self._expected is not None:
            fields["cluster"] = self._expected.cluster
        return frames.encode_whole(Frame(Type.HELLO, request=_HELLO_REQUEST, fields=fields))

    def due(self) -> bytes | None:
        """Return what is to be sent before the greeting goes on; None: nothing."""
        found, self._due = self._due, None
        return found

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
            elif self.peer is None:
                self._answered_login(frame)
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
            raise self._refused(error_of(frame))
        schema.check(frame)
        text = {name: frame.fields[name] for name in ("node", "cluster", "group")}
        family, size = frame.fields["family"], frame.fields["segment_size"]
        assert isinstance(family, int), "shapes.check"
        assert isinstance(size, int), "shapes.check"
        if family not in (4, 6):
            raise FrameError("fields", f"HELLO answer: family must be 4 or 6, not {family}")
        # Nodes that are too old to compare the name do not refuse: so both sides do.
        if self._expected is not None and text["cluster"] != self._expected.cluster:
            raise self._expected.stranger(str(text["node"]), str(text["cluster"]))
        found = Peer(str(text["node"]), str(text["cluster"]), str(text["group"]), family, size)
        self._names = frames.names_crc(found.cluster, found.group)
        features = frame.fields["features"]
        if self._login is None or not (isinstance(features, int) and features & frames.ACCESS):
            self.peer = found
            return
        self._found = found
        self._ask_login({"user": self._login.user, "nonce": self._own})

    # ── who we are ──────────────────────────────────────────────────────────────────────────────

    def _ask_login(self, fields: dict[str, object]) -> None:
        self._due = b"".join(self.request(Frame(Type.LOGIN, fields=fields))[1])

    def _answered_login(self, frame: Frame) -> None:
        """Prove that we know the password, then look whether the node does."""
        if frame.is_error:
            raise error_of(frame)
        schema.check(frame)
        if frame.type != Type.LOGIN or self._login is None:
            raise FrameError("type", f"{frames.type_name(frame.type)} answers a login")
        if self._spoken:
            shown = frame.fields.get("signature")
            if not isinstance(shown, bytes) or not scram.signed(self._secret, self._spoken, shown):
                raise _no_node_of_ours(self._login.user)
            self.peer = self._found
            return
        match [frame.fields.get(name) for name in ("nonce", "salt", "iterations")]:
            case [str(whole), bytes(salt), int(count)] if (
                whole.startswith(self._own)
                and len(whole) > len(self._own)
                and scram.ITERATIONS_MIN <= count <= scram.ITERATIONS_MAX
            ):
                self._secret = _salted(self._login, salt, count)
                user = self._login.user
                self._spoken = scram.said(user, self._own, whole, salt, count)
                shown = scram.proof(self._secret, self._spoken)
                self._ask_login({"user": user, "nonce": whole, "proof": shown})
            case _:
                raise _no_node_of_ours(self._login.user)

    def _refused(self, error: TwinlogError) -> TwinlogError:
        """Return why the node refused our greeting, with what it cannot know."""
        if error.code != OTHER_CLUSTER or self._expected is None:
            return error
        facts = error.facts
        return self._expected.stranger(str(facts.get("node", "?")), str(facts.get("cluster", "?")))


def _salted(login: Login, salt: bytes, count: int) -> bytes:
    key = login, salt, count
    found = _secrets.get(key)
    if found is None:
        if len(_secrets) >= SECRETS_MAX:
            _secrets.clear()
        found = _secrets[key] = scram.salted(login.password, salt, count)
    return found


def _no_node_of_ours(user: str) -> Denied:
    """Return the error for a node that asks for a login without knowing the user's password."""
    text = f"the node does not know the password of {user} itself; it was given nothing of it"
    return Denied(text, code="login", hint="compare the address: another program may answer there")

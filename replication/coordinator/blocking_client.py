"""A blocking client of the coordinator: one socket, one call at a time, no event loop.

Used by the command line (``cluster status``, ``failover``, ``history`` ...). The frame types of the
coordinator and their fields, for both clients and the service:

    type          request                         answer
    64 HELLO      min, max, client                version, cluster, group, register_id, revision
    65 READ       report                          state
    66 CALL       op                              ok, state, code, text, hint
    67 WATCH      revision, wait_ms               state: newer, or the same when the wait ended
    68 LIVE       node, info | nothing            live: {node: {age: seconds, **info}}
    69 HISTORY                                    history: [entry, oldest first]
    70 STATUS                                     the coordinator's own figures
    71 ENDED      node                            session: of the process that ended; 0: unknown

``op`` and ``report`` are as ``replication.register.operations`` writes them, ``state`` is a
GroupState as JSON (revision 0 before the first registration).

A change has three outcomes. Answered: ``ok`` true or false, definite. `Unavailable`: it was never
sent. `OutcomeUnknown`: it was sent and no answer came; read the state to see.

Not here: the operations (``replication.register.register``), the client of a node
(``replication.coordinator.client``).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from twinlog.errors import OutcomeUnknown, ProtocolError, TwinlogError, Unavailable, from_code
from twinlog.session.connection import secure_of
from twinlog.session.routing import Address
from twinlog.wire import frames

if TYPE_CHECKING:
    from twinlog.session.connection import Secure
    from twinlog.session.tls_files import Tls

Fields = dict[str, object]
Endpoint = tuple[str, int]

CALL_SECONDS = 1.0
"""Deadline of one call, after which its outcome is unknown."""


def hello_fields(client: str) -> Fields:
    """Return the fields of the first frame of every connection to the coordinator."""
    return {"min": frames.VERSION, "max": frames.VERSION, "client": client}


def error_of(answer: frames.Frame) -> TwinlogError:
    """Return the error in an error answer."""
    fields = answer.fields
    text, code, hint = fields.get("text"), fields.get("code"), fields.get("hint")
    return from_code(
        code if isinstance(code, str) else "error",
        text if isinstance(text, str) else "the coordinator gave no reason",
        hint=hint if isinstance(hint, str) else None,
        retryable=fields.get("retryable") is True,
    )


def map_of(fields: Mapping[str, object], key: str) -> Fields | None:
    """Return the map in ``fields[key]``; None if it is nil or missing.

    Raises:
        ProtocolError: It is not a map.
    """
    value = fields.get(key)
    if value is not None and not isinstance(value, dict):
        raise ProtocolError(f"the coordinator sent {key} as {type(value).__name__}")
    return cast("Fields | None", value)


class CoordinatorCalls:
    """A blocking connection to the coordinator, made at the first call.

    Args:
        endpoints: Tried in turn.
        names_crc: See ``wire.names_crc``; a coordinator of another cluster refuses. 0: any cluster;
        its names are learned from HELLO and sent from then on.
        timeout: Seconds for one call, connecting included.
        client: Name of the caller, for the coordinator's log.
        tls: The files for TLS; None: none is spoken.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        names_crc: int,
        *,
        timeout: float = 5.0,
        client: str = "cli",
        tls: Tls | None = None,
    ) -> None:
        self._secure = secure_of(tls)
        self._endpoints = tuple(endpoints)
        self._names = names_crc
        self._timeout = timeout
        self._client = client
        self._sock: socket.socket | None = None
        self._reader = frames.FrameReader(payload_max=0)
        self._request = 0

    def __enter__(self) -> CoordinatorCalls:
        """Return itself; the connection is made later."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def read(self) -> Fields:
        """Return the group state; revision 0 before the first registration.

        Raises:
            Unavailable: No coordinator answered.
        """
        return map_of(self._question(frames.Type.CO_READ, {"report": None}), "state") or {}

    def call(self, op: Mapping[str, object]) -> Fields:
        """Call one operation; return ``ok``, ``state``, ``code``, ``text``, ``hint``.

        Raises:
            Unavailable: It was not sent; nothing happened.
            OutcomeUnknown: It was sent and no answer came in time.
        """
        return self._ask(frames.Type.CO_CALL, {"op": dict(op)})

    def history(self) -> list[Fields]:
        """Return the leaderships, oldest first.

        Raises:
            Unavailable: No coordinator answered.
        """
        found = self._question(frames.Type.CO_HISTORY, {}).get("history")
        return cast("list[Fields]", found) if isinstance(found, list) else []

    def live(self) -> dict[str, Fields]:
        """Return each node's newest live entry, with its ``age`` in seconds.

        Raises:
            Unavailable: No coordinator answered.
        """
        found = map_of(self._question(frames.Type.CO_LIVE, {}), "live")
        return cast("dict[str, Fields]", found or {})

    def status(self) -> Fields:
        """Return the coordinator's own figures.

        Raises:
            Unavailable: No coordinator answered.
        """
        return self._question(frames.Type.CO_STATUS, {})

    def ended(self, node: str) -> int:
        """Say that a node's process has ended: to be called by who started it and saw it end.

        Return the session that the process had; 0 if the node never registered. Whether the node
        loses its role depends on what the coordinator saw itself (R59).

        Raises:
            Unavailable: No coordinator answered.
        """
        session = self._question(frames.Type.CO_ENDED, {"node": node}).get("session")
        return session if isinstance(session, int) else 0

    def close(self) -> None:
        """Close the connection; the next call makes a new one."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _question(self, kind: frames.Type, fields: Fields) -> Fields:
        """Make a call that changes nothing: without an answer it is `Unavailable`."""
        try:
            return self._ask(kind, fields)
        except OutcomeUnknown as error:
            raise Unavailable(str(error), hint=error.hint) from error

    def _ask(self, kind: frames.Type, fields: Fields) -> Fields:
        end = time.monotonic() + self._timeout
        sock = self._connected(end)
        self._request += 1
        frame = frames.Frame(kind, request=self._request, names_crc=self._names, fields=fields)
        try:
            answer = self._exchange(sock, frame, end)
        except (OSError, ProtocolError) as error:
            self.close()
            text = f"the coordinator did not answer: {error}"
            raise OutcomeUnknown(text, hint="look at twinlog cluster status") from error
        except BaseException:
            self.close()
            raise
        if answer.is_error:
            raise error_of(answer)
        return answer.fields

    def _connected(self, end: float) -> socket.socket:
        if self._sock is not None:
            return self._sock
        reasons, hint = list[str](), "start it: twinlog coordinator start"
        for host, port in self._endpoints:
            try:
                return self._connect(host, port, end)
            except (OSError, ProtocolError) as error:
                reasons.append(f"{Address(host, port)}: {error}")
                hint = getattr(error, "hint", "") or hint
        raise Unavailable(f"no coordinator answers ({'; '.join(reasons)})", hint=hint)

    def _connect(self, host: str, port: int, end: float) -> socket.socket:
        sock = socket.create_connection((host, port), timeout=max(0.001, end - time.monotonic()))
        self._reader = frames.FrameReader(payload_max=0)
        try:
            if self._secure is not None:
                sock = _secured(sock, self._secure, host)
            hello = frames.Frame(
                frames.Type.CO_HELLO, names_crc=self._names, fields=hello_fields(self._client)
            )
            answer = self._exchange(sock, hello, end)
            if answer.is_error:
                raise error_of(answer)
            self._names = self._names or frames.names_crc(
                str(answer.fields.get("cluster")), str(answer.fields.get("group"))
            )
        except BaseException:
            sock.close()
            raise
        self._sock = sock
        return sock

    def _exchange(self, sock: socket.socket, frame: frames.Frame, end: float) -> frames.Frame:
        sock.settimeout(max(0.001, end - time.monotonic()))
        sock.sendall(frames.encode_whole(frame))
        while True:
            answer = self._reader.next()
            if answer is not None and answer.request == frame.request:
                return answer
            if answer is not None:
                continue
            sock.settimeout(max(0.001, end - time.monotonic()))
            data = sock.recv(65536) if self._secure is None else _received(sock)
            if not data:
                raise ConnectionResetError("it closed the connection")
            self._reader.feed(data)


def _secured(sock: socket.socket, secure: Secure, host: str) -> socket.socket:
    """Carry out the handshake; raises `TlsRefused`."""
    import ssl

    from twinlog.session.tls import closed_early, refusal

    try:
        return secure().wrap_socket(sock, server_hostname=host)
    except ssl.SSLError as error:
        raise refusal(error) from None
    except ConnectionResetError:
        raise closed_early() from None


def _received(sock: socket.socket) -> bytes:
    """Receive over TLS: whether our certificate is refused is known only now."""
    import ssl

    from twinlog.session.tls import refusal

    try:
        return sock.recv(65536)
    except ssl.SSLError as error:
        raise refusal(error) from None

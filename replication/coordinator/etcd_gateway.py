"""etcd over its HTTP/JSON gateway: one request at a time, blocking, with three outcomes.

All calls are POST with a JSON body under ``/v3/``; keys and values are base64, 64-bit numbers are
text, and fields that equal zero are omitted from answers. Works with etcd 3.4 and later.

* **Answered**: the answer's fields.
* `GatewayRefused`: etcd refused it (status 4xx): nothing was changed.
* `GatewayUnknown`: it was sent and no usable answer came. A change may have happened *or may still
  happen*: etcd was seen to apply a transaction six seconds after its client had given up, while
  every read in between showed the old value.
* `GatewayAway`: no member took the connection, or TLS with none of them was possible: nothing was
  sent.

With a user each call carries a token that etcd gave for the password. A token that etcd does not
know any more is refused before anything happens, so the call is repeated, once, with a new one.

A query (which changes nothing) is sent to the next member if one does not answer; a change never
is.

Not here: what is stored (``replication.coordinator.etcd_store``).
Sources: etcd, "Why gRPC gateway"; the quirks are in docs/decisions/0021.
"""

from __future__ import annotations

import base64
import http.client
import json
import select
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import cast

from replication.coordinator.blocking_client import Endpoint
from twinlog.errors import TwinlogError, UsageError
from twinlog.session.login import password_in
from twinlog.session.tls import etcd_context, refusal
from twinlog.session.tls_files import NOTHING, EtcdShown

Fields = dict[str, object]

CALL_SECONDS = 2.0
"""Deadline of one call to one member. A paused member does not answer."""

UNAUTHENTICATED = 16
"""gRPC's status for a token that etcd does not know (any more)."""

_STALE = "revision of auth store is old"
"""What etcd says of a token from before users or roles were changed; nothing happened."""

TEXT_MAX = 200
"""Bytes that are shown of an answer that is no JSON."""

ANSWER_BYTES_MAX = 16 << 20
"""Bytes of one answer; a page of the register is far smaller."""


class GatewayRefused(TwinlogError):
    """etcd refused the call, with its code; nothing was changed."""

    default_code = "etcd-refused"

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number
        """The gRPC status code: 5 not found, 9 failed precondition."""


class GatewayUnknown(TwinlogError):
    """The call was sent and no usable answer came: a change may have happened, or may later."""

    default_code = "etcd-unknown"


class GatewayAway(TwinlogError):
    """No member took a connection; nothing was sent."""

    default_code = "etcd-away"
    default_retryable = True


class EtcdGateway:
    """One connection to one of the members, made when needed. Not thread-safe.

    Args:
        members: Client addresses of etcd, tried in turn.
        shown: What is shown to them. Files are read again at each connection, the password at each
            login.
        seconds: Deadline of one call to one member.
    """

    def __init__(
        self,
        members: Sequence[Endpoint],
        shown: EtcdShown = NOTHING,
        *,
        seconds: float = CALL_SECONDS,
    ) -> None:
        self._members = tuple(members)
        self._shown = shown
        self._token: str | None = None
        self._seconds = seconds
        self._turn = 0
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, path: str, body: Mapping[str, object]) -> Fields:
        """Return the answer to a query, from the first member that answers.

        Raises:
            GatewayRefused: etcd refused it.
            GatewayUnknown: Every member was tried, and no answer was usable.
            GatewayAway: No member took a connection.
        """
        last: GatewayUnknown | None = None
        for _ in self._members:
            try:
                return self.change(path, body)
            except GatewayUnknown as unknown:
                last = unknown
        assert last is not None
        raise last

    def change(self, path: str, body: Mapping[str, object]) -> Fields:
        """Return the answer to a change; it is sent to one member, once.

        Raises:
            As the module says.
        """
        if not self._shown.user:
            return self._sent(path, body)
        known = self._token is not None
        try:
            return self._sent(path, body, self._token or self._login())
        except GatewayRefused as refused:
            if not known or not (refused.number == UNAUTHENTICATED or _STALE in refused.text):
                raise
        return self._sent(path, body, self._login())

    def _login(self) -> str:
        """Return a new token."""
        user, file = self._shown.user, self._shown.password_file
        self._token = None
        try:
            password = password_in(file)
        except UsageError as error:
            raise GatewayAway(error.text) from None
        try:
            answer = self._sent("auth/authenticate", {"name": user, "password": password})
        except GatewayRefused as refused:
            text = f"{refused.text}: compare etcd_user ({user}) and the password in {file}"
            raise GatewayRefused(text, refused.number) from None
        self._token = str(answer.get("token"))
        return self._token

    def _sent(self, path: str, body: Mapping[str, object], token: str = "") -> Fields:
        """Send one call to one member, once, and return its answer."""
        connection = self._connected()
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = token
        try:
            connection.request("POST", f"/v3/{path}", json.dumps(body), headers)
            response = connection.getresponse()
            status, data = response.status, response.read(ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise GatewayUnknown(f"etcd did not answer {path}: {self._why(error)}") from error
        if len(data) > ANSWER_BYTES_MAX:
            self.close()
            raise GatewayUnknown(f"etcd's answer to {path} is larger than {ANSWER_BYTES_MAX} bytes")
        try:
            fields = json.loads(data)
        except ValueError:
            fields = {"error": data[:TEXT_MAX].decode(errors="replace").strip()} if data else None
        if status == http.client.OK and isinstance(fields, dict):
            return cast("Fields", fields)
        return self._failed(path, status, fields)

    def _why(self, error: Exception) -> str:
        """Say why there is no answer, where TLS is the reason in words that say so."""
        found = f"{type(error).__name__}: {error}"
        if isinstance(error, ssl.SSLError):
            found = f"it {refusal(error).text}"
        elif not isinstance(error, (ConnectionError, http.client.BadStatusLine)):
            return found
        files = self._shown.files
        if files is None:
            return f"{found} (if it speaks TLS: set etcd_authority)"
        return found if files.certificate else f"{found} (if it asks for one: set etcd_certificate)"

    def _failed(self, path: str, status: int, fields: object) -> Fields:
        """Raise the error of an answer other than 200; a failing member's connection is closed."""
        said = cast("Fields", fields) if isinstance(fields, dict) else {}
        inner = said.get("error")
        # Most errors are {"error": text, "code": n}; those of streams {"error": {"grpc_code": n}}.
        if isinstance(inner, dict):
            said = cast("Fields", inner)
        text = str(said.get("message") or said.get("error") or f"status {status}")
        if "CommonName" in text:
            text += (
                " (with etcd_user, leave etcd_certificate out, or give one without a common name)"
            )
        code = said.get("code", said.get("grpc_code"))
        if 400 <= status < 500 and isinstance(code, int):
            raise GatewayRefused(f"etcd refused {path}: {text}", code)
        self.close()
        raise GatewayUnknown(f"etcd could not tell the outcome of {path}: {text}")

    def _connected(self) -> http.client.HTTPConnection:
        connection = self._connection
        if connection is not None and not _said_something(connection.sock):
            return connection
        self.close()
        reasons: list[str] = []
        for _ in self._members:
            host, port = self._members[self._turn % len(self._members)]
            connection = self._to(host, port)
            try:
                connection.connect()
            except OSError as error:
                connection.close()
                self._turn += 1
                why = refusal(error).text if isinstance(error, ssl.SSLError) else str(error)
                reasons.append(f"{host}:{port}: {why}")
                continue
            self._connection = connection
            return connection
        raise GatewayAway(f"no member of etcd answers ({'; '.join(reasons)})")

    def _to(self, host: str, port: int) -> http.client.HTTPConnection:
        """Return a connection that is not open yet.

        Raises:
            GatewayAway: A file for TLS cannot be read or used.
        """
        files = self._shown.files
        if files is None:
            return http.client.HTTPConnection(host, port, timeout=self._seconds)
        try:
            context = etcd_context(files)
        except UsageError as error:
            raise GatewayAway(f"no TLS with etcd: {error.text}") from None
        return http.client.HTTPSConnection(host, port, timeout=self._seconds, context=context)

    def close(self) -> None:
        """Close the connection; the next call opens one to the next member."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._turn += 1


def _said_something(sock: socket.socket | None) -> bool:
    """Whether an idle member sent bytes or closed: it restarted, or timed out.

    Without this check a change would be sent into a closed connection, and be unknown needlessly.
    """
    if sock is None:
        return True
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def text_of(data: str | bytes) -> str:
    """Return a key or value as the gateway encodes it.

    >>> text_of("demo")
    'ZGVtbw=='
    """
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def bytes_of(value: object) -> bytes:
    """Return the bytes of a key or value in an answer; a missing one is empty.

    Raises:
        GatewayUnknown: It is not base64.
    """
    if value is None:
        return b""
    try:
        return base64.b64decode(str(value), validate=True)
    except ValueError as error:
        raise GatewayUnknown(f"etcd sent a value that is not base64: {error}") from error


def number_of(value: object) -> int:
    """Return a 64-bit number of an answer; a missing one is 0.

    >>> number_of("17"), number_of(None)
    (17, 0)

    Raises:
        GatewayUnknown: It is not a number.
    """
    try:
        return int(str(value)) if value is not None else 0
    except ValueError as error:
        raise GatewayUnknown(f"etcd sent {value!r} for a number") from error


def map_of(answer: Mapping[str, object], name: str) -> Fields:
    """Return a map in an answer; an absent one is empty."""
    found = answer.get(name)
    return cast("Fields", found) if isinstance(found, dict) else {}


def rows_of(answer: Mapping[str, object]) -> list[Fields]:
    """Return the keys and values of a range; an empty one has no such field."""
    found = answer.get("kvs")
    return cast("list[Fields]", found) if isinstance(found, list) else []

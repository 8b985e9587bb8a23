"""One question to one process, whichever kind it is.

The command line asks with blocking sockets of the packages below it: nodes through
``twinlog.client.blocking``, the coordinator through ``replication.coordinator.blocking_client``.
No event loop is imported for a question.

Three outcomes: an answer, an error that says that nothing happened, or `OutcomeUnknown` when an
order was sent and no answer came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cli.fields import Fields, table
from twinlog.errors import OutcomeUnknown, Unavailable, UsageError
from twinlog.session.connection import CONNECT_SECONDS, Connection, secure_of
from twinlog.session.link import OTHER_CLUSTER, Expected, error_of
from twinlog.session.routing import parse_endpoints
from twinlog.session.session import LinkDown
from twinlog.session.tls_files import Tls
from twinlog.wire.frames import COORDINATOR_TYPES, Frame, Type, names_crc


@dataclass(frozen=True, slots=True)
class Named:
    """The cluster that a command is meant for, and the file that says so."""

    cluster: str
    group: str
    file: str

    def expected(self) -> Expected:
        """What a connection to a node compares."""
        return Expected(self.cluster, self.file)


FOR_EVER = 365 * 86400.0
"""Everything in twinlog has a deadline; ``--timeout 0`` is a year."""

ORDERS = frozenset({Type.ADMIN, Type.TOPIC, Type.APPEND, Type.ACCESS})
"""Requests that may have been carried out although no answer came."""


def ask(
    address: str,
    kind: int,
    fields: Mapping[str, object],
    *,
    timeout: float | None,
    named: Named | None = None,
    tls: Tls | None = None,
) -> Fields:
    """Ask the process at ``address`` (``host:port``) and return the fields of its answer.

    Args:
        address: Where it listens.
        kind: Type of the request.
        fields: Its fields.
        timeout: Seconds; None: a year.
        named: The cluster that may carry out an order; questions are answered by any.
        tls: The files for TLS, and the login; None: neither.

    Raises:
        UsageError: An order, and the process belongs to another cluster; nothing happened.
        Unavailable: No answer, and nothing happened.
        OutcomeUnknown: An order was sent and no answer came.
        TwinlogError: The error that the process answered with.
    """
    seconds = FOR_EVER if timeout is None else timeout
    if kind in COORDINATOR_TYPES:
        return _ask_coordinator(address, Type(kind), fields, seconds=seconds, named=named, tls=tls)
    expected = named.expected() if named is not None and kind in ORDERS else None
    return _ask_node(address, Type(kind), fields, seconds=seconds, expected=expected, tls=tls)


def _ask_node(
    address: str,
    kind: Type,
    fields: Mapping[str, object],
    *,
    seconds: float,
    expected: Expected | None,
    tls: Tls | None,
) -> Fields:
    try:
        connection = connect(address, seconds, expected, tls)
        try:
            answer = connection.ask(Frame(kind, fields=dict(fields)), seconds)
        finally:
            connection.close()
    except LinkDown as down:
        if down.stranger is not None:
            raise down.stranger from None
        text = f"{address} {down.why}"
        if down.sent and kind in ORDERS:
            raise OutcomeUnknown(text, hint="look: twinlog cluster status") from down
        raise Unavailable(text) from down
    if answer.is_error:
        raise error_of(answer)
    return answer.fields


def connect(
    address: str, seconds: float, expected: Expected | None = None, tls: Tls | None = None
) -> Connection:
    """Open a connection to a node, of the cluster ``expected`` only; close it.

    Raises:
        LinkDown: No connection in time.
    """
    return Connection(
        parse_endpoints(address)[0],
        client="cli",
        seconds=min(seconds, CONNECT_SECONDS),
        expected=expected,
        secure=secure_of(tls),
        login=None if tls is None else tls.login,
    )


def _ask_coordinator(
    address: str,
    kind: Type,
    fields: Mapping[str, object],
    *,
    seconds: float,
    named: Named | None,
    tls: Tls | None,
) -> Fields:
    host, _, port = address.rpartition(":")
    order = named is not None and kind in (Type.CO_CALL, Type.CO_ENDED)
    names = names_crc(named.cluster, named.group) if order and named else 0
    try:
        endpoint = (host.strip("[]"), int(port))
        return _coordinator_answer([endpoint], names, kind, fields, seconds=seconds, tls=tls)
    except UsageError as error:
        if error.code != OTHER_CLUSTER or named is None:
            raise
        hint = f"{named.cluster} comes from {named.file}; compare it with the addresses"
        text = f"{address}: {error.text}; it was not asked, this command is for {named.cluster}"
        raise UsageError(text, code=OTHER_CLUSTER, hint=hint, **error.facts) from None


def _coordinator_answer(
    endpoints: list[tuple[str, int]],
    names: int,
    kind: Type,
    fields: Mapping[str, object],
    *,
    seconds: float,
    tls: Tls | None,
) -> Fields:
    from replication.coordinator.blocking_client import CoordinatorCalls

    with CoordinatorCalls(endpoints, names, timeout=seconds, tls=tls) as calls:
        match kind:
            case Type.CO_READ:
                return {"state": calls.read()}
            case Type.CO_CALL:
                return calls.call(table(fields.get("op")))
            case Type.CO_ENDED:
                return {"session": calls.ended(str(fields.get("node")))}
            case Type.CO_HISTORY:
                return {"history": calls.history()}
            case Type.CO_LIVE:
                return {"live": calls.live()}
            case _:
                return calls.status()

"""One question to one process, whichever kind it is.

The command line asks with blocking sockets of the packages below it: nodes through
``twinlog.client.blocking``, the coordinator through ``replication.coordinator.blocking_client``.
No event loop is imported for a question.

Three outcomes: an answer, an error that says that nothing happened, or `OutcomeUnknown` when an
order was sent and no answer came.
"""

from __future__ import annotations

from collections.abc import Mapping

from cli.fields import Fields, table
from twinlog.errors import OutcomeUnknown, Unavailable
from twinlog.session.connection import CONNECT_SECONDS, Connection
from twinlog.session.link import error_of
from twinlog.session.routing import parse_endpoints
from twinlog.session.session import LinkDown
from twinlog.wire.frames import COORDINATOR_TYPES, Frame, Type

FOR_EVER = 365 * 86400.0
"""Everything in twinlog has a deadline; ``--timeout 0`` is a year."""

ORDERS = frozenset({Type.ADMIN, Type.TOPIC, Type.APPEND})
"""Requests that may have been carried out although no answer came."""


def ask(address: str, kind: int, fields: Mapping[str, object], *, timeout: float | None) -> Fields:
    """Ask the process at ``address`` (``host:port``) and return the fields of its answer.

    Raises:
        Unavailable: No answer, and nothing happened.
        OutcomeUnknown: An order was sent and no answer came.
        TwinlogError: The error that the process answered with.
    """
    seconds = FOR_EVER if timeout is None else timeout
    if kind in COORDINATOR_TYPES:
        return _ask_coordinator(address, Type(kind), fields, seconds)
    return _ask_node(address, Type(kind), fields, seconds)


def _ask_node(address: str, kind: Type, fields: Mapping[str, object], seconds: float) -> Fields:
    try:
        connection = connect(address, seconds)
        try:
            answer = connection.ask(Frame(kind, fields=dict(fields)), seconds)
        finally:
            connection.close()
    except LinkDown as down:
        text = f"{address} {down.why}"
        if down.sent and kind in ORDERS:
            raise OutcomeUnknown(text, hint="look: twinlog cluster status") from down
        raise Unavailable(text) from down
    if answer.is_error:
        raise error_of(answer)
    return answer.fields


def connect(address: str, seconds: float) -> Connection:
    """Open a connection to a node; close it.

    Raises:
        LinkDown: No connection in time.
    """
    return Connection(
        parse_endpoints(address)[0], client="cli", seconds=min(seconds, CONNECT_SECONDS)
    )


def _ask_coordinator(
    address: str, kind: Type, fields: Mapping[str, object], seconds: float
) -> Fields:
    from replication.coordinator.blocking_client import CoordinatorCalls

    host, _, port = address.rpartition(":")
    with CoordinatorCalls([(host.strip("[]"), int(port))], 0, timeout=seconds) as calls:
        match kind:
            case Type.CO_READ:
                return {"state": calls.read()}
            case Type.CO_CALL:
                return calls.call(table(fields.get("op")))
            case Type.CO_HISTORY:
                return {"history": calls.history()}
            case Type.CO_LIVE:
                return {"live": calls.live()}
            case _:
                return calls.status()

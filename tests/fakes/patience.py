"""Clients that take no machine that stands still for a node that is silent."""

from __future__ import annotations

import pytest

from twinlog.session.aio_connection import AsyncConnection
from twinlog.session.connection import Connection

PATIENT = (
    "consumer.fetching.SILENCE_SECONDS",
    "groups.core.CLOSE_SECONDS",
    "groups.core.PATIENCE_SECONDS",
    "groups.core.SESSION_SECONDS",
    "groups.dialogue.ROUTE_SECONDS",
    "groups.dialogue.SEND_SECONDS",
    "producer.aio.PATIENCE_SECONDS",
    "producer.blocking.PATIENCE_SECONDS",
    "producer.master_link.ROUTE_SECONDS",
    "session.aio_caller.CONNECT_SECONDS",
    "session.caller.CONNECT_SECONDS",
    "session.session.ATTEMPT_SECONDS",
    "session.session.CHANGE_SECONDS",
)
"""How long a client waits for what comes in a millisecond, unless the machine stands still."""


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody's patience end by itself; a test that is about its end sets it again."""
    for name in PATIENT:
        monkeypatch.setattr(f"twinlog.{name}", 60.0)
    for connect in (Connection.__init__, AsyncConnection.connect):
        monkeypatch.setitem(connect.__kwdefaults__, "seconds", 60.0)

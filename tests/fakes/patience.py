"""Clients that take no machine that stands still for a node that is silent."""

from __future__ import annotations

import pytest

from twinlog.aio_connection import AsyncConnection
from twinlog.connection import Connection

PATIENT = (
    "aio.CONNECT_SECONDS",
    "aio.SILENCE_SECONDS",
    "aio_producer.PATIENCE_SECONDS",
    "aio_producer.ROUTE_SECONDS",
    "client.CONNECT_SECONDS",
    "pipeline.CONNECT_SECONDS",
    "pipeline.PATIENCE_SECONDS",
    "pipeline.ROUTE_SECONDS",
    "reader.SILENCE_SECONDS",
    "session.ATTEMPT_SECONDS",
    "session.CHANGE_SECONDS",
)
"""How long a client waits for what comes in a millisecond, unless the machine stands still."""


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody's patience end by itself; a test that is about its end sets it again."""
    for name in PATIENT:
        monkeypatch.setattr(f"twinlog.{name}", 60.0)
    for connect in (Connection.__init__, AsyncConnection.connect):
        monkeypatch.setitem(connect.__kwdefaults__, "seconds", 60.0)

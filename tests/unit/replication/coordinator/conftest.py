"""What the coordinator's tests share."""

from __future__ import annotations

import pytest

from replication.coordinator import client


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call's time is over when a test says so, not when the machine stands still."""
    monkeypatch.setattr(client, "CALL_SECONDS", 50.0)

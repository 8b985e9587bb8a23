"""A fake cluster of three nodes, stopped after the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.clock import Clock, use
from tests.fakes.node import FakeCluster
from tests.fakes.patience import be_patient
from twinlog.client.blocking import Client


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow in milliseconds; their number and order stay what they are."""
    monkeypatch.setattr("twinlog.session.session.BACKOFF_FIRST", 0.002)
    monkeypatch.setattr("twinlog.session.session.BACKOFF_MAX", 0.02)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Nobody's patience ends by itself: a test says when time has passed."""
    made = Clock()
    be_patient(monkeypatch)
    use(made, monkeypatch)
    return made


@pytest.fixture
def long_pauses(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow after 5 to 10 s, which are jumped over: a minute holds only some."""
    clock.jumps = True
    monkeypatch.setattr("twinlog.session.session.BACKOFF_FIRST", 10.0)
    monkeypatch.setattr("twinlog.session.session.BACKOFF_MAX", 10.0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Three nodes; n1 is the master of epoch 7."""
    made = FakeCluster()
    for name in ("n1", "n2", "n3"):
        made.add_node(name)
    yield made
    made.close()


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[Client]:
    """A client that knows n1 and n2."""
    endpoints = [cluster.nodes["n1"].address, cluster.nodes["n2"].address]
    with Client(endpoints, timeout=60.0) as made:
        yield made

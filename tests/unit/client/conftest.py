"""A fake cluster of three nodes, stopped after the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.client.fake_node import FakeCluster
from twinlog.client import Client


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow in milliseconds; their number and order stay what they are."""
    monkeypatch.setattr("twinlog.session.BACKOFF_FIRST", 0.002)
    monkeypatch.setattr("twinlog.session.BACKOFF_MAX", 0.02)


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
    with Client(endpoints, timeout=10.0) as made:
        yield made

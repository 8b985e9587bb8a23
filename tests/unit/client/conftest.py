"""A fake cluster of three nodes, stopped after the test."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest

from tests.fakes.patience import be_patient
from tests.unit.client.fake_node import Arrived, FakeCluster, Fault
from twinlog import aio, aio_producer, pipeline, reader
from twinlog import client as blocking
from twinlog.client import Client
from twinlog.wire import Type


class Clock:
    """The clients' clock: the real one, and what the test adds to it.

    So a deadline passes when the test says so, not when the machine is slow: the limit is a minute
    and is jumped over, at the place that the test is about.
    """

    def __init__(self) -> None:
        self.ahead = 0.0
        self.jumps = False
        """Whether what a client would sleep through is jumped over."""

    def jump(self, seconds: float) -> None:
        """Let so much time pass."""
        self.ahead += seconds

    def monotonic(self) -> float:
        """As ``time.monotonic``."""
        return time.monotonic() + self.ahead

    def time_ns(self) -> int:
        """As ``time.time_ns``."""
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        """As ``time.sleep``."""
        if self.jumps:
            self.jump(seconds)
        else:
            time.sleep(seconds)

    def passing(self, kind: Type, fault: Fault | None = None) -> Fault:
        """Return a fault: a minute passes while such a request is on its way, then ``fault``."""

        def late(arrived: Arrived) -> bool:
            if arrived.frame.type == kind:
                self.jump(60.0)
            return fault is not None and fault(arrived)

        return late


class Loop:
    """What the awaiting client uses of anyio, its time by the test's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> object:
        return getattr(anyio, name)

    def current_time(self) -> float:
        """As ``anyio.current_time``."""
        return anyio.current_time() + self._clock.ahead

    async def sleep(self, seconds: float) -> None:
        """As ``anyio.sleep``."""
        if self._clock.jumps:
            self._clock.jump(seconds)
            await anyio.lowlevel.checkpoint()
        else:
            await anyio.sleep(seconds)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow in milliseconds; their number and order stay what they are."""
    monkeypatch.setattr("twinlog.session.BACKOFF_FIRST", 0.002)
    monkeypatch.setattr("twinlog.session.BACKOFF_MAX", 0.02)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Nobody's patience ends by itself: a test says when time has passed."""
    made = Clock()
    be_patient(monkeypatch)
    for module in (blocking, pipeline, reader):
        monkeypatch.setattr(module, "time", made)
    for loop in (aio, aio_producer):
        monkeypatch.setattr(loop, "anyio", Loop(made))
    return made


@pytest.fixture
def long_pauses(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow after 5 to 10 s, which are jumped over: a minute holds only some."""
    clock.jumps = True
    monkeypatch.setattr("twinlog.session.BACKOFF_FIRST", 10.0)
    monkeypatch.setattr("twinlog.session.BACKOFF_MAX", 10.0)


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

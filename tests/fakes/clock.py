"""Clocks of the client that a test moves: nothing waits, nothing depends on the machine's speed."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel
import pytest

from tests.fakes.node import Arrived, Fault
from twinlog.wire.frames import Type


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


def use(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every part of the clients go by ``clock``."""
    for module in ("client", "consumer", "groups", "producer"):
        monkeypatch.setattr(f"twinlog.{module}.blocking.time", clock)
        monkeypatch.setattr(f"twinlog.{module}.aio.anyio", Loop(clock))
    monkeypatch.setattr("twinlog.session.caller.time", clock)
    monkeypatch.setattr("twinlog.session.aio_caller.anyio", Loop(clock))

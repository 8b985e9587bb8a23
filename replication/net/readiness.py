"""Readable sockets: one epoll for all of a node's streams.

trio's own wait arms a descriptor for one event, wakes a task for it and runs its whole loop in
between: 25 us of CPU each time on the machine of docs/performance.md, more than a small append
costs the log. Here every socket is registered once. One task waits for all of them and serves
readable ones with plain calls, one *round* after the other; trio's loop runs again only when
nothing more arrives.

A round: every readable socket is served, then each action requested with `soon` is run once. There,
appends of several clients are joined and bytes are written.

The rest of the node lives in trio and must not starve. So rounds end after `ROUNDS_SECONDS`; a
round waits for the next bytes `LINGER_MS` at most; and while something is expected that only trio's
loop delivers (`awaiting`: a thread's result, space in a full socket) no round waits, and trio's
loop runs after each.

When a round ends because nothing more arrives, `idle` is called once before trio's loop runs: for
what is better done in a pause than between two batches, and sooner than a timer's millisecond.

While bytes arrive within `spin_seconds` of each other, a round does not sleep but polls, yielding
the processor each time. A wake-up costs 30 to 50 us on a virtual machine and leaves the caches
cold. If nothing arrives in that time the node sleeps, and does not poll again before bytes arrive
that quickly again.

Without epoll (macOS) each socket has a wait of its own, as trio would do it.

Cancellation: a cancelled `run` or `watch` leaves the sockets as they are.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Generator

import trio

LINGER_MS = 1
"""How long a round waits for more: epoll's shortest wait; an answer takes a third of it."""

ROUNDS_SECONDS = 0.005
"""How long rounds may follow each other before trio's loop runs."""

EVENTS_MAX = 256
"""Sockets in one round; others are served in the next one."""


FORGOTTEN_SECONDS = 0.01
"""Without epoll: how often a forgotten socket is checked for being watched again."""


class Readiness:
    """See the module.

    Args:
        spin_seconds: How long a round polls before it sleeps; 0: it sleeps at once.

    Attributes:
        now: The loop's time when the present turn began, seconds; set at the begin of a turn.
        idle: Called when nothing arrived for a while; never without epoll, so a timer must do the
            same later.
        polled: CPU seconds in which rounds have polled while there was no work.
    """

    def __init__(self, spin_seconds: float = 0.0) -> None:
        self._spin = spin_seconds
        self._brisk = False
        self.clock = trio.lowlevel.current_clock().current_time
        self.now = self.clock()
        self.idle: Callable[[], None] = lambda: None
        self.polled = 0.0
        self._elsewhere = 0
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._readable: dict[int, Callable[[], None]] = {}
        self._soon: list[Callable[[], None]] = []

    async def watch(self, fd: int, readable: Callable[[], None], over: trio.Event) -> None:
        """Call ``readable`` whenever the socket is readable, until ``over``."""
        if self._epoll is None:
            await self._watch_alone(fd, readable, over)
            return
        self.add(fd, readable)
        try:
            await over.wait()
        finally:
            if self._readable.get(fd) == readable:  # else closed, and its number is reused
                self.forget(fd)

    async def _watch_alone(self, fd: int, readable: Callable[[], None], over: trio.Event) -> None:
        self.add(fd, readable)
        while not over.is_set():
            if fd in self._readable:
                await trio.lowlevel.wait_readable(fd)
                self.turn(readable)
            else:
                await trio.sleep(FORGOTTEN_SECONDS)

    def add(self, fd: int, readable: Callable[[], None]) -> None:
        """Watch a socket that is not watched; `watch` does it."""
        if self._epoll is not None:
            self._epoll.register(fd, select.EPOLLIN)
        self._readable[fd] = readable

    def again(self, fd: int, readable: Callable[[], None]) -> None:
        """Watch a socket again, if it was forgotten."""
        if fd not in self._readable:
            self.add(fd, readable)

    def forget(self, fd: int) -> None:
        """Stop watching a socket; must be called before it is closed. May be called twice."""
        if self._readable.pop(fd, None) is not None and self._epoll is not None:
            self._epoll.unregister(fd)

    @contextlib.contextmanager
    def awaiting(self) -> Generator[None]:
        """While the body waits, something is expected that only trio's loop delivers."""
        self._elsewhere += 1
        try:
            yield
        finally:
            self._elsewhere -= 1

    def soon(self, action: Callable[[], None]) -> None:
        """Run an action at the end of this round, once, however often it is requested."""
        if action not in self._soon:
            self._soon.append(action)

    def turn(self, action: Callable[[], None]) -> None:
        """Make a round of one action: for events of a task, not of a socket."""
        self.now = self.clock()
        action()
        self._finish()

    def _finish(self) -> None:
        while self._soon:
            self._soon.pop(0)()

    async def run(self) -> None:
        """Serve until cancelled."""
        if self._epoll is None:
            await trio.sleep_forever()
            return
        epoll = self._epoll
        try:
            while True:
                await trio.lowlevel.wait_readable(epoll.fileno())
                self._rounds(epoll)
        finally:
            epoll.close()
            self._epoll = None

    def _wait(self, epoll: select.epoll) -> list[tuple[int, int]]:
        """Return the readable sockets; none if trio's loop must run."""
        poll = epoll.poll
        if self._elsewhere:
            return poll(0, EVENTS_MAX)
        clock = self.clock
        until = clock() + self._spin
        if self._brisk:
            if events := poll(0, EVENTS_MAX) or self._polled(poll, until):
                return events
            self.turn(self.idle)
        events = poll(LINGER_MS / 1000, EVENTS_MAX)
        self._brisk = bool(events) and clock() < until
        if not events:
            self.turn(self.idle)
        return events

    def _polled(
        self, poll: Callable[[float, int], list[tuple[int, int]]], until: float
    ) -> list[tuple[int, int]]:
        """Poll until something comes, or until that time; count what it took of the processor."""
        began, clock = time.thread_time(), self.clock
        events: list[tuple[int, int]] = []
        while not events and clock() < until:
            os.sched_yield()
            events = poll(0, EVENTS_MAX)
        self.polled += time.thread_time() - began
        return events

    def _rounds(self, epoll: select.epoll) -> None:
        clock, readable = self.clock, self._readable
        now = clock()
        until = now + ROUNDS_SECONDS
        while events := self._wait(epoll):
            for fd, _ in events:
                now = self.now = clock()
                serve = readable.get(fd)  # None: closed while an earlier one was served
                if serve is not None:
                    serve()
            self._finish()
            if self._elsewhere or now > until:
                return

"""Sockets that are readable have their turn in rounds, and nobody else starves meanwhile."""

from __future__ import annotations

import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from replication.net.readiness import Readiness


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Readiness, trio.Nursery]]:
    """A readiness that runs while the body does."""
    async with trio.open_nursery() as nursery:
        readiness = Readiness()
        nursery.start_soon(readiness.run)
        yield readiness, nursery
        nursery.cancel_scope.cancel()


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that never block."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something holds."""
    with trio.fail_after(60):
        while not condition():
            await trio.lowlevel.checkpoint()


async def test_what_two_sockets_ask_for_is_done_once_after_both() -> None:
    """An action that several turns of a round ask for comes once, at its end."""
    async with serving() as (readiness, nursery):
        seen: list[str] = []
        over = trio.Event()

        def end() -> None:
            seen.append("end")

        pairs = [pair(), pair()]
        for name, (ours, theirs) in zip("ab", pairs, strict=True):

            def readable(name: str = name, ours: socket.socket = ours) -> None:
                seen.append(name + ours.recv(10).decode())
                readiness.soon(end)

            theirs.send(b"1")
            nursery.start_soon(readiness.watch, ours.fileno(), readable, over)
        await until(lambda: len(seen) >= 3)
        assert sorted(seen[:2]) == ["a1", "b1"]
        assert seen[2:] == ["end"]
        over.set()
        await trio.testing.wait_all_tasks_blocked()
        for ends in pairs:
            for each in ends:
                each.close()


class Poll:
    """An epoll that answers what it is told to; a wait takes as long as it says."""

    def __init__(self, clock: list[float], answers: list[tuple[float, bool]]) -> None:
        self.clock, self.answers, self.waits = clock, answers, list[float]()

    def poll(self, seconds: float, most: int) -> list[tuple[int, int]]:
        """Answer the next."""
        self.waits.append(seconds)
        took, found = self.answers.pop(0)
        self.clock[0] += took
        return [(5, 1)] if found else []


@pytest.mark.parametrize("spin", [0.0, 0.0002])
async def test_a_round_spins_only_while_sockets_answer_briskly(
    spin: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And yields the processor each time; when nothing came in time it says so, and sleeps."""
    yields: list[None] = []
    pauses: list[None] = []
    monkeypatch.setattr("os.sched_yield", lambda: yields.append(None))
    readiness, clock = Readiness(spin), [0.0]
    monkeypatch.setattr(readiness, "clock", lambda: clock[0])
    late, soon, nothing = (0.0005, True), (0.0001, True), (0.00015, False)
    poll = Poll(clock, [late, soon, nothing, (0.0, True), nothing, nothing, late, late])
    readiness.idle = lambda: pauses.append(None)
    wait = readiness._wait  # pyright: ignore[reportPrivateUsage]
    assert wait(poll), "late: it slept"  # type: ignore[arg-type]
    assert wait(poll), "it slept, but was woken soon"  # type: ignore[arg-type]
    if not spin:
        assert not wait(poll)  # type: ignore[arg-type]
        assert not any(pause == 0 for pause in poll.waits)
        assert len(pauses) == 1
        assert readiness.polled == 0
        return
    assert wait(poll), "it looked twice"  # type: ignore[arg-type]
    assert wait(poll), "it looked twice in vain, and slept"  # type: ignore[arg-type]
    assert wait(poll), "nobody is brisk: it slept at once"  # type: ignore[arg-type]
    assert [pause > 0 for pause in poll.waits] == [True, True] + 4 * [False] + 2 * [True]
    assert len(yields) == 2
    assert len(pauses) == 1, "once, when it had looked in vain"
    assert 0 < readiness.polled < 1, "and it is known what that took"


async def test_a_socket_that_never_rests_leaves_the_loop_its_turns() -> None:
    """Rounds end after a while even when there is always something to read."""
    async with serving() as (readiness, nursery):
        ours, theirs = pair()
        turns = 0

        def readable() -> None:
            nonlocal turns
            turns += 1
            assert turns < 200_000, "the loop never turned"
            theirs.send(ours.recv(10))

        theirs.send(b"x")
        nursery.start_soon(readiness.watch, ours.fileno(), readable, trio.Event())
        for _ in range(3):
            before = turns
            await until(lambda before=before: turns > before)  # type: ignore[misc]
        for each in (ours, theirs):
            readiness.forget(each.fileno())
            each.close()


async def test_a_number_that_another_socket_has_meanwhile_stays_watched() -> None:
    """A watch that ends late leaves the socket alone that got its descriptor's number."""
    async with serving() as (readiness, nursery):
        ours, theirs = pair()
        number, over, got = ours.fileno(), trio.Event(), list[bytes]()
        nursery.start_soon(readiness.watch, number, lambda: None, over)
        await trio.testing.wait_all_tasks_blocked()
        readiness.forget(number)
        over.set()
        ours.close()
        other, peer = pair()
        assert other.fileno() == number
        readiness.add(number, lambda: got.append(other.recv(10)))
        await trio.testing.wait_all_tasks_blocked()
        peer.send(b"here")
        await until(lambda: got == [b"here"])
        readiness.forget(number)
        for each in (other, peer, theirs):
            each.close()


async def test_without_epoll_sockets_are_waited_for_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other way in gives the same turns and rounds."""
    monkeypatch.delattr(select, "epoll")
    async with serving() as (readiness, nursery):
        ours, theirs = pair()
        over, seen = trio.Event(), list[str]()

        def readable() -> None:
            seen.append(ours.recv(10).decode())
            readiness.soon(lambda: seen.append("end"))

        nursery.start_soon(readiness.watch, ours.fileno(), readable, over)
        theirs.send(b"1")
        await until(lambda: seen == ["1", "end"])
        readiness.forget(ours.fileno())
        theirs.send(b"2")
        await until(lambda: readiness.now > 0)
        readiness.add(ours.fileno(), readable)
        await until(lambda: seen[-2:] == ["2", "end"])
        over.set()
        theirs.send(b"3")
        await trio.testing.wait_all_tasks_blocked()
        ours.close()
        theirs.close()


async def test_a_thread_is_not_waited_for_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """While something comes only through the loop, no round waits for more bytes."""
    waits: list[float] = []
    real = select.epoll

    class Watched:
        """An epoll that notes how long it was asked to wait."""

        def __init__(self) -> None:
            self._real = real()
            self.register, self.unregister = self._real.register, self._real.unregister
            self.fileno, self.close = self._real.fileno, self._real.close

        def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
            waits.append(timeout)
            return self._real.poll(timeout, most)

    monkeypatch.setattr(select, "epoll", Watched)
    async with serving() as (readiness, nursery):
        ours, theirs = pair()

        def readable() -> None:
            ours.recv(10)

        nursery.start_soon(readiness.watch, ours.fileno(), readable, trio.Event())
        with readiness.awaiting():
            theirs.send(b"1")
            await until(lambda: len(waits) >= 1)
            assert set(waits) == {0}
        waits.clear()
        theirs.send(b"1")
        await until(lambda: len(waits) >= 2)
        assert all(wait > 0 for wait in waits)
        readiness.forget(ours.fileno())
        ours.close()
        theirs.close()

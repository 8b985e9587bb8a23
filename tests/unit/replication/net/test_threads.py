"""Threads are named after what they do, and what they cost is counted by name."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

from replication.net.threads import LOOP, Threads
from storage.disk.thread_names import name_thread


def comm() -> str:
    """The name that the kernel shows for this thread."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip()


async def test_the_kernel_shows_what_a_thread_does() -> None:
    """While it does it: threads are kept and do other things later."""
    threads = Threads()
    assert await threads.run("flush", comm) == "flush"
    assert await threads.run("checkpoint-and-more", comm) == "checkpoint-and-"
    assert set(threads.seconds()) == {"flush", "checkpoint-and-more", LOOP}


async def test_what_work_cost_is_counted_also_when_it_fails() -> None:
    """Under the name of the work, whichever thread did it."""
    threads = Threads()

    def busy() -> None:
        for number in range(200_000):
            hash(number)
        raise ValueError("broken")

    before = threads.seconds()[LOOP]
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            await threads.run("scrub", busy)
        assert threads.seconds()["scrub"] > 0
    assert threads.seconds()[LOOP] >= before


async def test_work_that_is_abandoned_is_counted_when_it_ends() -> None:
    """Its thread goes on until then."""
    threads, end = Threads(), threading.Event()
    with trio.move_on_after(0.01):
        await threads.run("page", lambda: end.wait(60), abandon=True)
    assert "page" not in threads.seconds()
    end.set()
    with trio.fail_after(60):
        while "page" not in threads.seconds():
            await trio.lowlevel.checkpoint()


def test_a_thread_names_itself() -> None:
    """Only itself: others keep their names."""
    own, found = comm(), list[str]()

    def work() -> None:
        name_thread("flush beside")
        found.append(comm())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (found, comm()) == (["flush beside"], own)

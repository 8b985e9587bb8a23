"""A coordinator in the test's own loop, and who asks it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import trio

from replication.coordinator.blocking_client import CoordinatorCalls
from replication.coordinator.client import CoordinatorClient
from replication.coordinator.process import serve
from replication.coordinator.service import CoordinatorSettings
from replication.register.operations import RegisterNode, Report, Seed, to_wire
from twinlog.run_file import read_run_file
from twinlog.wire import frames

NAMES = frames.names_crc("demo", "g1")
SEED = Seed(("n1", "n2", "n3"), 2, "n1")


def registration(
    node: str, start: str = "s1", *, report: Report | None = None
) -> dict[str, object]:
    """An empty, clean node registers; its store remembers the start ``s1``."""
    known = tuple(dict.fromkeys(("s1", start)))
    op = RegisterNode(
        node, f"store-{node}", start, known, True, True, 0, 0, 0, SEED, report or Report(node)
    )
    return to_wire(op)


def seen(node: str, answer: object) -> Report:
    """What ``node`` knows of the register after ``answer``."""
    state = cast("dict[str, dict[str, Any]]", answer)["state"]
    revision, tag = cast("int", state["revision"]), cast("int", state["tag"])
    session = state["reg"][node][0] if node in state["reg"] else 0
    return Report(node, str(state["register_id"]), revision, tag, session)


def database(folder: Path) -> list[Path]:
    """The store's files, journal included."""
    return list(folder.glob("coordinator.sqlite*"))


class Coordinator:
    """A coordinator in the test's own loop that can be killed and started again."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self.folder = folder
        self.nursery = nursery
        self.port = 0
        self.events: list[str] = []
        self.streams: list[trio.SocketStream] = []
        self.clients: list[CoordinatorClient] = []
        self._scope = trio.CancelScope()

    async def start(self) -> int:
        """Start it; return its port, the same one after a restart."""
        self.port = await self.nursery.start(self._run)
        return self.port

    async def _run(self, *, task_status: trio.TaskStatus[int]) -> None:
        settings = CoordinatorSettings("demo", "g1", "127.0.0.1", self.port, self.folder)
        with trio.CancelScope() as self._scope:
            await serve(settings, event=self._event, task_status=task_status)

    def _event(self, name: str, level: str, **facts: object) -> None:
        self.events.append(name)

    async def stop(self) -> None:
        """Stop it and wait until its file is released."""
        self._scope.cancel()
        while read_run_file(self.folder) is not None:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()

    def client(self, name: str = "n1") -> CoordinatorClient:
        """A node's client; its states are in ``states``."""
        self.states: list[dict[str, object]] = []
        client = CoordinatorClient(
            [("127.0.0.1", self.port)], NAMES, name=name, on_state=self.states.append
        )
        self.clients.append(client)
        return client

    async def stream(self) -> trio.SocketStream:
        """A bare connection."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        self.streams.append(stream)
        return stream

    def ask(self, question: Callable[[CoordinatorCalls], object], names: int = NAMES) -> object:
        """Ask with the blocking client (in a thread)."""
        with CoordinatorCalls([("127.0.0.1", self.port)], names, timeout=60) as calls:
            return question(calls)


Body = Callable[[Coordinator], Awaitable[None]]


async def with_coordinator(folder: Path, body: Body) -> None:
    """Run ``body`` beside a started coordinator."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            coordinator = Coordinator(folder, nursery)
            await coordinator.start()
            try:
                await body(coordinator)
            finally:
                for client in coordinator.clients:
                    client.close()
                for stream in coordinator.streams:
                    stream.socket.close()
            nursery.cancel_scope.cancel()


async def ask(
    coordinator: Coordinator, question: Callable[[CoordinatorCalls], object], names: int = NAMES
) -> object:
    """The blocking client, off the loop."""
    return await trio.to_thread.run_sync(partial(coordinator.ask, question, names))


async def elected(client: CoordinatorClient) -> dict[str, object]:
    """Register three nodes and let n1 be elected; return the last answer."""
    answer: object = None
    for node in ("n1", "n2", "n3"):
        answer = await client.call(registration(node))
        assert isinstance(answer, dict)
        assert answer["ok"], answer
    assert isinstance(answer, dict)
    sessions = cast("dict[str, list[int]]", cast("dict[str, object]", answer["state"])["reg"])
    op = {"op": "elect", "node": "n1", "session": sessions["n1"][0], "epoch": 1, "overdue": False}
    answer = await client.call(op)
    assert isinstance(answer, dict)
    assert answer["ok"], answer
    return answer

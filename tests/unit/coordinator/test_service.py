"""The coordinator over real sockets: persisted before answered, bounded, deaf to garbage."""

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import trio
from crc32c import crc32c

from replication import coordinator_client, coordinator_service
from replication.coordinator_calls import CoordinatorCalls
from replication.coordinator_client import CoordinatorClient, Unknown
from replication.coordinator_service import (
    HISTORY_BYTES_MAX,
    CoordinatorSettings,
    newest,
    serve,
)
from replication.coordinator_store import CoordinatorStore, StoreStopped, read_run_file
from replication.register_ops import Failover, RegisterNode, Report, Seed, to_wire
from twinlog import wire
from twinlog.errors import Busy, TwinlogError, Unavailable, UsageError

NAMES = wire.names_crc("demo", "g1")
SEED = Seed(("n1", "n2", "n3"), 2, "n1")


def registration(
    node: str, start: str = "s1", *, report: Report | None = None
) -> dict[str, object]:
    """An empty, clean node registers."""
    op = RegisterNode(
        node, f"store-{node}", start, (start,), True, True, 0, 0, 0, SEED, report or Report(node)
    )
    return to_wire(op)


def seen(node: str, answer: object) -> Report:
    """What ``node`` knows of the register after ``answer``."""
    state = cast("dict[str, dict[str, object]]", answer)["state"]
    revision, tag = cast("int", state["revision"]), cast("int", state["tag"])
    return Report(node, str(state["register_id"]), revision, tag)


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
    op = {"op": "elect", "node": "n1", "session": sessions["n1"][0], "overdue": False}
    answer = await client.call(op)
    assert isinstance(answer, dict)
    assert answer["ok"], answer
    return answer


async def test_a_change_is_on_disk_before_it_is_answered(tmp_path: Path) -> None:
    """A copy of the files taken when the answer arrives holds the change."""

    async def body(coordinator: Coordinator) -> None:
        answer = await elected(coordinator.client())
        (tmp_path / "copy").mkdir()
        for path in database(tmp_path):
            (tmp_path / "copy" / path.name).write_bytes(path.read_bytes())
        copy = CoordinatorStore(tmp_path / "copy", "demo", "g1")
        document = cast("dict[str, object]", copy.load().document)
        assert document["state"] == answer["state"]
        copy.close()

    await with_coordinator(tmp_path, body)


async def test_nobody_sees_a_change_that_the_disk_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk is slow, readers and watchers see the state before."""
    slow, go_on = trio.Event(), trio.Event()
    record = CoordinatorStore.record

    def delayed(self: CoordinatorStore, *args: object) -> None:
        trio.from_thread.run_sync(slow.set)
        trio.from_thread.run(go_on.wait)
        record(self, *args)  # type: ignore[arg-type]

    async def body(coordinator: Coordinator) -> None:
        client = coordinator.client()
        monkeypatch.setattr(CoordinatorStore, "record", delayed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, registration("n1"))
            await slow.wait()
            found = await ask(coordinator, lambda calls: calls.status())
            assert cast("dict[str, object]", found)["revision"] == 0
            go_on.set()
        found = await ask(coordinator, lambda calls: calls.read())
        assert cast("dict[str, object]", found)["revision"] == 1

    await with_coordinator(tmp_path, body)


async def test_a_disk_that_refuses_stops_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer is better than one the disk does not back; the caller learns nothing."""

    def refused(self: CoordinatorStore, *args: object) -> None:
        raise StoreStopped("no space")

    outcomes: list[object] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            coordinator = Coordinator(tmp_path, nursery)
            await coordinator.start()
            monkeypatch.setattr(CoordinatorStore, "record", refused)

            async def call() -> None:
                client = coordinator.client()
                with trio.CancelScope(shield=True):
                    outcomes.append(await client.call(registration("n1")))
                client.close()

            nursery.start_soon(call)

    with trio.fail_after(60), pytest.raises(BaseExceptionGroup) as caught:
        await run()
    assert caught.group_contains(StoreStopped)
    assert isinstance(outcomes[0], Unknown)
    assert read_run_file(tmp_path) is None


async def test_the_state_survives_a_restart_and_waits_for_reports(tmp_path: Path) -> None:
    """After its own start the coordinator changes nothing until more than half have reported."""

    async def body(coordinator: Coordinator) -> None:
        client = coordinator.client()
        before = cast("dict[str, object]", (await elected(client))["state"])
        await coordinator.stop()
        await coordinator.start()
        newest = seen("n1", {"state": before})
        first = await coordinator.client().call(registration("n1", "s2", report=newest))
        assert isinstance(first, dict)
        assert (first["ok"], first["code"]) == (False, "reports-missing")
        assert first["state"] == before
        newest = seen("n2", {"state": before})
        second = await coordinator.client("n2").call(registration("n2", "s2", report=newest))
        assert isinstance(second, dict)
        assert second["ok"]

    await with_coordinator(tmp_path, body)


async def test_the_register_never_goes_back(tmp_path: Path) -> None:
    """A node that has seen more than the file holds makes it read-only, also after a restart."""

    async def body(coordinator: Coordinator) -> None:
        client = coordinator.client()
        state = cast("dict[str, object]", (await elected(client))["state"])
        future = Report("n2", str(state["register_id"]), 99, 1)
        answer = await client.call(registration("n2", "s2", report=future))
        assert isinstance(answer, dict)
        assert (answer["ok"], answer["code"]) == (False, "read-only")
        assert "register_readonly" in coordinator.events
        await coordinator.stop()
        await coordinator.start()
        status = await ask(coordinator, lambda calls: calls.status())
        assert "revision 99" in str(cast("dict[str, object]", status)["read_only"])

    await with_coordinator(tmp_path, body)


async def test_another_branch_is_recognised_after_a_restart(tmp_path: Path) -> None:
    """Every tag that ever was is kept: an old revision with another tag is another history."""

    async def body(coordinator: Coordinator) -> None:
        state = cast("dict[str, object]", (await elected(coordinator.client()))["state"])
        await coordinator.stop()
        await coordinator.start()
        branch = Report("n2", str(state["register_id"]), 1, 12345)
        await coordinator.client().call(registration("n2", "s2", report=branch))
        status = await ask(coordinator, lambda calls: calls.status())
        assert "revision 1" in str(cast("dict[str, object]", status)["read_only"])

    await with_coordinator(tmp_path, body)


async def test_an_old_copy_of_the_file_elects_nobody(tmp_path: Path) -> None:
    """Restored from a backup, the register is shown the newer revisions and stays as it is."""

    async def body(coordinator: Coordinator) -> None:
        client = coordinator.client()
        await client.call(registration("n1"))
        await coordinator.stop()
        old = {path: path.read_bytes() for path in database(tmp_path)}
        await coordinator.start()
        newest: object = None
        for node in ("n1", "n2", "n3"):
            answer = await client.call(registration(node, "s2", report=Report(node)))
            assert isinstance(answer, dict)
            newest = answer
        await coordinator.stop()
        for path in database(tmp_path):
            path.unlink()
        for path, data in old.items():
            path.write_bytes(data)
        await coordinator.start()
        for node in ("n2", "n3"):
            answer = await client.call(registration(node, "s3", report=seen(node, newest)))
            assert isinstance(answer, dict)
            assert not answer["ok"]
        forced = await client.call(to_wire(Failover("n2", "test", "test")))
        assert isinstance(forced, dict)
        assert (forced["ok"], forced["code"]) == (False, "read-only")

    await with_coordinator(tmp_path, body)


async def test_a_watch_ends_with_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node hears of a change at once, not with its next poll (which is an hour away here)."""
    monkeypatch.setattr(coordinator_client, "POLL_SECONDS", 3600.0)

    async def body(coordinator: Coordinator) -> None:
        watcher = coordinator.client("n2")
        states = coordinator.states
        async with trio.open_nursery() as nursery:
            await nursery.start(watcher.run)
            while not states:
                await trio.testing.wait_all_tasks_blocked(0.01)
            await coordinator.client("n1").call(registration("n1"))
            while cast("int", states[-1]["revision"]) < 1:
                await trio.testing.wait_all_tasks_blocked(0.005)
            nursery.cancel_scope.cancel()

    await with_coordinator(tmp_path, body)


async def test_live_entries_reach_everybody_and_are_not_kept(tmp_path: Path) -> None:
    async def body(coordinator: Coordinator) -> None:
        first, second = coordinator.client("n1"), coordinator.client("n2")
        began = trio.current_time()
        first.publish({"host": "127.0.0.1", "client_port": 7})
        async with trio.open_nursery() as nursery:
            await nursery.start(first.run)
            while "n1" not in first.live:
                await trio.testing.wait_all_tasks_blocked(0.01)
            await nursery.start(second.run)
            while "n1" not in second.live:
                await trio.testing.wait_all_tasks_blocked(0.01)
            assert second.live["n1"]["client_port"] == 7
            age = cast("float", second.live["n1"]["age"])
            assert 0 <= age <= trio.current_time() - began + 0.001
            nursery.cancel_scope.cancel()
        live = await ask(coordinator, lambda calls: calls.live())
        assert set(cast("dict[str, object]", live)) == {"n1"}
        await coordinator.stop()
        await coordinator.start()
        assert await ask(coordinator, lambda calls: calls.live()) == {}

    await with_coordinator(tmp_path, body)


def garbage() -> dict[str, tuple[bytes, str]]:
    """Bytes that are no frames, and the kind they are counted as."""
    hello = wire.encode_whole(
        wire.Frame(wire.Type.CO_HELLO, names_crc=NAMES, fields={"min": 1, "max": 1})
    )
    flipped = bytearray(hello)
    flipped[20] ^= 1
    version = bytearray(hello)
    version[4] = 9
    large = wire.HEADER.pack(b"TWL1", 1, 64, 0, 1 << 20, 0, 0, 0, 0, 0, 0)
    large += wire._CRC.pack(crc32c(large))
    return {
        "http": (b"GET /status HTTP/1.1\r\n\r\n", "http"),
        "tls": (b"\x16\x03\x01\x02\x00", "tls"),
        "noise": (b"\x00" * 100, "not-ours"),
        "bit flip": (bytes(flipped), "crc"),
        "version": (bytes(version), "version"),
        "too large": (large, "oversized"),
        "no hello": (wire.encode_whole(wire.Frame(65, names_crc=NAMES)), "hello"),
        "half a frame": (hello[:50], "truncated"),
        "a client's frame": (hello + wire.encode_whole(wire.Frame(33, names_crc=NAMES)), "type"),
        "other names": (wire.encode_whole(wire.Frame(64, names_crc=5)), "other-cluster"),
    }


@pytest.mark.parametrize("name", garbage())
async def test_garbage_closes_its_connection_and_nothing_else(tmp_path: Path, name: str) -> None:
    """Each kind is counted; the state is what it was, others are served."""
    data, kind = garbage()[name]

    async def body(coordinator: Coordinator) -> None:
        client = coordinator.client()
        await client.call(registration("n1"))
        stream = await coordinator.stream()
        await stream.send_all(data)
        with suppress(OSError, trio.BrokenResourceError):
            await stream.send_eof()
        reader = wire.FrameReader()
        with suppress(trio.BrokenResourceError):
            while more := await stream.receive_some(4096):
                reader.feed(more)
        if name == "version":
            answer = reader.next()
            assert answer is not None
            assert (answer.is_error, answer.fields["min"]) == (True, wire.VERSION)
        status = cast("dict[str, object]", await ask(coordinator, lambda calls: calls.status()))
        assert status["closed"] == {kind: 1}
        assert status["revision"] == 1

    await with_coordinator(tmp_path, body)


async def test_a_frame_may_arrive_in_any_pieces(tmp_path: Path) -> None:
    async def body(coordinator: Coordinator) -> None:
        stream = await coordinator.stream()
        for kind, fields in ((64, {"min": 1, "max": 1}), (66, {"op": registration("n1")})):
            frame = wire.Frame(kind, request=kind, names_crc=NAMES)
            frame.fields = cast("dict[str, object]", fields)
            for byte in wire.encode_whole(frame):
                await stream.send_all(bytes([byte]))
        reader, answers = wire.FrameReader(), list[wire.Frame]()
        while len(answers) < 2:
            reader.feed(await stream.receive_some(4096))
            while (answer := reader.next()) is not None:
                answers.append(answer)
        assert [answer.request for answer in answers] == [64, 66]
        assert answers[1].fields["ok"] is True
        await stream.aclose()

    await with_coordinator(tmp_path, body)


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        (66, {"op": {"op": "become-king"}}, "fields"),
        (66, {"op": 7}, "fields"),
        (66, {"op": {"op": "elect", "node": 1}}, "fields"),
        (65, {"report": [1, 2]}, "fields"),
        (67, {"revision": -1, "wait_ms": 5}, "fields"),
        (68, {"node": "n1", "info": {"x": "y" * 5000}}, "oversized"),
        (64, {"min": 8, "max": 9}, "version"),
    ],
)
async def test_wrong_fields_are_answered_with_an_error(
    tmp_path: Path, kind: int, fields: dict[str, object], code: str
) -> None:
    """The frame was whole, so the connection stays and the sentence says what was wrong."""

    async def body(coordinator: Coordinator) -> None:
        stream = await coordinator.stream()
        hello = wire.Frame(64, names_crc=NAMES, fields={"min": 1, "max": 1})
        await stream.send_all(wire.encode_whole(hello))
        asked = wire.Frame(kind, request=9, names_crc=NAMES, fields=fields)
        await stream.send_all(wire.encode_whole(asked))
        reader = wire.FrameReader()
        while (answer := reader.next()) is None or answer.request != 9:
            if answer is None:
                reader.feed(await stream.receive_some(4096))
        assert (answer.is_error, answer.fields["code"]) == (True, code)
        await stream.aclose()

    await with_coordinator(tmp_path, body)


async def test_connections_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_service, "CONNECTIONS_MAX", 2)

    async def body(coordinator: Coordinator) -> None:
        first = await coordinator.stream()
        second = await coordinator.stream()
        third = await coordinator.stream()
        assert await third.receive_some(1) == b""
        await first.aclose()
        await trio.testing.wait_all_tasks_blocked(0.01)
        status = cast("dict[str, object]", await ask(coordinator, lambda calls: calls.status()))
        assert (status["refused"], status["connections"]) == (1, 2)
        await second.aclose()

    await with_coordinator(tmp_path, body)


async def test_live_entries_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_service, "LIVE_MAX", 1)

    async def body(coordinator: Coordinator) -> None:
        def say(name: str) -> Callable[[CoordinatorCalls], object]:
            return lambda calls: calls._ask(wire.Type.CO_LIVE, {"node": name, "info": {"a": 1}})

        await ask(coordinator, say("n1"))
        with pytest.raises(Busy) as caught:
            await ask(coordinator, say("n2"))
        assert caught.value.code == "busy"

    await with_coordinator(tmp_path, body)


async def test_a_parked_watch_ends_when_its_caller_goes(tmp_path: Path) -> None:
    """A killed node leaves no parked task behind."""

    async def body(coordinator: Coordinator) -> None:
        stream = await coordinator.stream()
        for kind, fields in ((64, {"min": 1, "max": 1}), (67, {"revision": 0, "wait_ms": 30000})):
            frame = wire.Frame(kind, names_crc=NAMES, fields=cast("dict[str, object]", fields))
            await stream.send_all(wire.encode_whole(frame))
        await stream.receive_some(4096)
        await stream.aclose()
        connections = 9
        while connections > 1:
            found = await ask(coordinator, lambda calls: calls.status())
            connections = cast("int", cast("dict[str, object]", found)["connections"])

    await with_coordinator(tmp_path, body)


async def test_a_command_that_knows_no_names_learns_them_first(tmp_path: Path) -> None:
    async def body(coordinator: Coordinator) -> None:
        state = await ask(coordinator, lambda calls: calls.read(), names=0)
        assert cast("dict[str, object]", state)["epoch"] == 0
        with pytest.raises(UsageError, match="cluster demo, group g1"):
            await ask(coordinator, lambda calls: calls.read(), names=77)

    await with_coordinator(tmp_path, body)


async def test_the_history_of_masters_is_told(tmp_path: Path) -> None:
    async def body(coordinator: Coordinator) -> None:
        await elected(coordinator.client())
        await coordinator.stop()
        await coordinator.start()
        history = cast("list[dict[str, object]]", await ask(coordinator, lambda c: c.history()))
        assert [(entry["epoch"], entry["master"]) for entry in history] == [(1, "n1")]

    await with_coordinator(tmp_path, body)


async def test_a_long_history_is_told_as_far_as_a_frame_carries_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest reigns; and an answer that does not fit all the same ends nobody."""
    long = [{"epoch": n, "master": "n1", "reason": "r" * 500, "by": "b" * 500} for n in range(2000)]
    assert [entry["epoch"] for entry in newest(long[:3])] == [0, 1, 2]
    told = newest(long)
    assert told[-1]["epoch"] == 1999
    assert HISTORY_BYTES_MAX - 2000 < len(json.dumps(told)) < HISTORY_BYTES_MAX + 2 * len(told)
    answer = wire.Frame(69, wire.ANSWER, fields={"history": told})
    assert len(wire.encode_whole(answer)) < HISTORY_BYTES_MAX
    monkeypatch.setattr(coordinator_service, "newest", lambda _: long)

    async def body(coordinator: Coordinator) -> None:
        with pytest.raises(UsageError) as caught:
            await ask(coordinator, lambda calls: calls.history())
        assert caught.value.code == "too-large"
        state = cast("dict[str, object]", await ask(coordinator, lambda calls: calls.read()))
        assert state["epoch"] == 0

    await with_coordinator(tmp_path, body)


@pytest.mark.parametrize("field", ["who", "why"])
async def test_remarks_have_a_limit(tmp_path: Path, field: str) -> None:
    """Who and why stay in the history for good: the refusal says how long they may be."""
    op = {"op": "failover", "to": None, "who": "w", "why": "y", field: "é" * 501}

    async def body(coordinator: Coordinator) -> None:
        with pytest.raises(TwinlogError, match=f"{field} is .*at most 500 characters"):
            await ask(coordinator, lambda calls: calls.call(op))

    await with_coordinator(tmp_path, body)


def test_nobody_at_the_address_is_unavailable() -> None:
    with socket.socket() as deaf:  # nobody listens, and nobody else can take the port
        deaf.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match="no coordinator answers") as caught:
            CoordinatorCalls([deaf.getsockname()], NAMES, timeout=60).read()
    assert caught.value.hint == "start it: twinlog coordinator start"


async def test_a_flipped_bit_anywhere_changes_nothing(tmp_path: Path) -> None:
    """An order that was damaged on its way is never carried out, wherever the damage is."""

    async def body(coordinator: Coordinator) -> None:
        hello = wire.encode_whole(wire.Frame(64, names_crc=NAMES, fields={"min": 1, "max": 1}))
        order = wire.encode_whole(
            wire.Frame(66, names_crc=NAMES, fields={"op": registration("n1")})
        )
        for at in range(0, len(order), 3):
            damaged = bytearray(order)
            damaged[at] ^= 1 << (at % 8)
            stream = await coordinator.stream()
            with suppress(OSError, trio.BrokenResourceError):
                await stream.send_all(hello + damaged)
                await stream.send_eof()
                while await stream.receive_some(4096):
                    pass
        status = cast("dict[str, object]", await ask(coordinator, lambda calls: calls.status()))
        assert status["revision"] == 0
        assert sum(cast("dict[str, int]", status["closed"]).values()) == len(
            range(0, len(order), 3)
        )

    await with_coordinator(tmp_path, body)

"""The coordinator over real sockets: persisted before answered, bounded, deaf to garbage."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import trio

from replication.coordinator import client as coordinator_client
from replication.coordinator import service
from replication.coordinator.blocking_client import CoordinatorCalls
from replication.coordinator.client import Unknown
from replication.coordinator.history import HISTORY_BYTES_MAX, newest
from replication.coordinator.store import CoordinatorStore, StoreStopped
from replication.register import leases
from replication.register.operations import (
    AlterInSync,
    Change,
    Failover,
    Read,
    Report,
    to_wire,
)
from tests.unit.replication.coordinator.serving import (
    NAMES,
    Coordinator,
    ask,
    database,
    elected,
    registration,
    seen,
    with_coordinator,
)
from twinlog.errors import Busy, TwinlogError, Unavailable, UsageError
from twinlog.run_file import read_run_file
from twinlog.wire import frames


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

    def delayed(self: CoordinatorStore, *args: object, **names: object) -> None:
        trio.from_thread.run_sync(slow.set)
        trio.from_thread.run(go_on.wait)
        record(self, *args, **names)  # type: ignore[arg-type]

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

    def refused(self: CoordinatorStore, *args: object, **names: object) -> None:
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
    assert caught.group_contains(StoreStopped, match="the coordinator stops: no space")
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


async def test_a_register_of_a_higher_level_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R74: a coordinator that went back to an older release says which command looks further."""

    async def body(coordinator: Coordinator) -> None:
        await elected(coordinator.client())
        await coordinator.stop()
        monkeypatch.setattr(service, "LEVEL", 0)
        store = CoordinatorStore(tmp_path, "demo", "g1")
        settings = service.CoordinatorSettings("demo", "g1", "127.0.0.1", 0, tmp_path)
        with pytest.raises(UsageError, match="at level 1, this release knows 0") as refused:
            service.CoordinatorService(settings, store)
        assert "twinlog version --check" in refused.value.hint
        store.close()

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
        forced = await client.call(to_wire(Failover("n2", 1, "test", "test")))
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
        hello = frames.Frame(64, names_crc=NAMES, fields={"min": 1, "max": 1})
        await stream.send_all(frames.encode_whole(hello))
        asked = frames.Frame(kind, request=9, names_crc=NAMES, fields=fields)
        await stream.send_all(frames.encode_whole(asked))
        reader = frames.FrameReader()
        while (answer := reader.next()) is None or answer.request != 9:
            if answer is None:
                reader.feed(await stream.receive_some(4096))
        assert (answer.is_error, answer.fields["code"]) == (True, code)
        await stream.aclose()

    await with_coordinator(tmp_path, body)


async def test_live_entries_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LIVE_MAX", 1)

    async def body(coordinator: Coordinator) -> None:
        def say(name: str) -> Callable[[CoordinatorCalls], object]:
            return lambda calls: calls._ask(frames.Type.CO_LIVE, {"node": name, "info": {"a": 1}})

        await ask(coordinator, say("n1"))
        with pytest.raises(Busy) as caught:
            await ask(coordinator, say("n2"))
        assert caught.value.code == "busy"

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
    """The newest leaderships; and an answer that does not fit all the same ends nobody."""
    long = [{"epoch": n, "master": "n1", "reason": "r" * 500, "by": "b" * 500} for n in range(2000)]
    assert [entry["epoch"] for entry in newest(long[:3])] == [0, 1, 2]
    told = newest(long)
    assert told[-1]["epoch"] == 1999
    assert HISTORY_BYTES_MAX - 2000 < len(json.dumps(told)) < HISTORY_BYTES_MAX + 2 * len(told)
    answer = frames.Frame(69, frames.ANSWER, fields={"history": told})
    assert len(frames.encode_whole(answer)) < HISTORY_BYTES_MAX
    monkeypatch.setattr(service, "newest", lambda _: long)

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
    op = {"op": "failover", "to": None, "epoch": 1, "who": "w", "why": "y", field: "é" * 501}

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


async def test_a_supervisors_word_ends_a_leadership_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the last connection has ended, too: whichever of the two comes first."""
    monkeypatch.setattr(leases, "GONE_SECONDS", 1000.0)

    async def body(coordinator: Coordinator) -> None:
        master, heir = coordinator.client("n1"), coordinator.client("n2")
        answer = await elected(master)
        change = to_wire(Change("failover", "automatic", "ann"))
        answer = cast("dict[str, object]", await ask(coordinator, lambda calls: calls.call(change)))
        revision = seen("n1", answer).revision
        joined = await master.call(to_wire(AlterInSync("n1", 1, 1, revision, {"n2": 1}, ())))
        for name, client in (("n1", master), ("n2", heir)):
            await client.call(to_wire(Read(seen(name, joined))))
        assert await ask(coordinator, lambda calls: calls.ended("n9")) == 0
        assert await ask(coordinator, lambda calls: calls.ended("n1")) == 1
        assert "master_gone" not in coordinator.events
        master.close()
        while "master_gone" not in coordinator.events:
            await trio.lowlevel.checkpoint()

    await with_coordinator(tmp_path, body)

"""A node's end of the coordinator: answered is answered, everything else is unknown."""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from replication.coordinator import client as coordinator_client
from replication.coordinator.blocking_client import CoordinatorCalls
from replication.coordinator.client import CoordinatorClient, Unknown
from twinlog.errors import OutcomeUnknown, UsageError
from twinlog.wire import frames

NAMES = 7
STATE: dict[str, object] = {"revision": 3, "epoch": 1}
OK: dict[str, object] = {"ok": True, "state": STATE, "code": "", "text": "", "hint": ""}

OnState = Callable[[dict[str, object]], None]
Behave = Callable[[trio.SocketStream, frames.Frame], Awaitable[None]]


async def reply(stream: trio.SocketStream, frame: frames.Frame, fields: dict[str, object]) -> None:
    """Answer a frame."""
    await stream.send_all(frames.encode_whole(frames.answer(frame, fields)))


class Fake:
    """A coordinator that greets and then does what the test says."""

    def __init__(self, behave: Behave) -> None:
        self.behave = behave
        self.seen: list[frames.Frame] = []
        self.greetings = 0

    async def connection(self, stream: trio.SocketStream) -> None:
        """Serve one connection."""
        reader = frames.FrameReader()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await stream.receive_some(4096):
                reader.feed(data)
                while (frame := reader.next()) is not None:
                    if frame.type == frames.Type.CO_HELLO:
                        self.greetings += 1
                        await reply(stream, frame, {"version": 1})
                    else:
                        self.seen.append(frame)
                        await self.behave(stream, frame)
        stream.socket.close()


Body = Callable[[CoordinatorClient, Fake], Awaitable[None]]


async def against(behave: Behave, body: Body, **options: object) -> list[tuple[str, str]]:
    """Run ``body`` with a client of a fake coordinator; return the client's events."""
    events: list[tuple[str, str]] = []
    states: list[dict[str, object]] = []

    def event(name: str, level: str, **facts: object) -> None:
        events.append((name, level))

    fake = Fake(behave)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, fake.connection, listeners)
            port = listeners[0].socket.getsockname()[1]
            on_state = cast("OnState | None", options.get("on_state"))
            client = CoordinatorClient(
                lambda: [("127.0.0.1", port)],
                NAMES,
                name="n1",
                on_state=on_state or states.append,
                event=event,
            )
            try:
                await body(client, fake)
            finally:
                client.close()
            nursery.cancel_scope.cancel()
    return events


async def good(stream: trio.SocketStream, frame: frames.Frame) -> None:
    """Answer everything."""
    match frame.type:
        case frames.Type.CO_CALL:
            await reply(stream, frame, OK)
        case frames.Type.CO_LIVE:
            await reply(stream, frame, {"live": {"n2": {"age": 0.1}}})
        case frames.Type.CO_WATCH:
            await trio.sleep_forever()
        case _:
            await reply(stream, frame, {"state": STATE})


async def silent(stream: trio.SocketStream, frame: frames.Frame) -> None:
    """Take the question and say nothing."""


async def reset(stream: trio.SocketStream, frame: frames.Frame) -> None:
    """Take the question and close."""
    await stream.aclose()


async def garbled(stream: trio.SocketStream, frame: frames.Frame) -> None:
    """Answer with bytes that are no frame."""
    await stream.send_all(b"HTTP/1.1 500 oops\r\n\r\n" + b" " * 48)


async def refuses(stream: trio.SocketStream, frame: frames.Frame) -> None:
    """Answer with an error frame."""
    await stream.send_all(frames.encode_whole(frames.refusal(frame, {"code": "x", "text": "no"})))


async def shapeless(stream: trio.SocketStream, frame: frames.Frame) -> None:
    """Answer without saying yes or no."""
    await reply(stream, frame, {"state": STATE})


async def odd_state(stream: trio.SocketStream, frame: frames.Frame) -> None:
    """Answer with a state that is none."""
    await reply(stream, frame, {"ok": True, "state": 5})


async def babbles(stream: trio.SocketStream, frame: frames.Frame) -> None:
    """Answer questions that nobody asked, and never the one that was."""
    other = replace(frame, request=frame.request + 1)
    for _ in range(2 * coordinator_client.STRAY_MAX):
        await reply(stream, other, OK)


async def test_an_answer_is_an_answer() -> None:
    async def body(client: CoordinatorClient, fake: Fake) -> None:
        assert await client.call({"op": "read"}) == OK
        assert await client.call({"op": "read"}) == OK
        assert fake.greetings == 1
        assert client.connected

    assert await against(good, body) == []


@pytest.mark.parametrize("behave", [silent, reset, garbled, refuses, shapeless, odd_state, babbles])
async def test_everything_else_is_unknown(behave: Behave, mock_clock: MockClock) -> None:
    """The operation may have been carried out, so nobody may be told that it was not."""

    async def passing(stream: trio.SocketStream, frame: frames.Frame) -> None:
        await behave(stream, frame)
        if behave is silent:
            mock_clock.jump(coordinator_client.CALL_SECONDS)

    async def body(client: CoordinatorClient, fake: Fake) -> None:
        outcome = await client.call({"op": "elect"})
        assert isinstance(outcome, Unknown)
        assert outcome.sent
        assert len(fake.seen) == 1, "nothing is sent twice"

    events = await against(passing, body)
    assert [name for name, _ in events] in (["coordinator_lost"], ["coordinator_refused"])


async def test_a_refused_connection_was_never_sent() -> None:
    with socket.socket() as deaf:  # nobody listens, and nobody else can take the port
        deaf.bind(("127.0.0.1", 0))
        place = [("127.0.0.1", deaf.getsockname()[1])]
        client = CoordinatorClient(place, NAMES, name="n1", on_state=lambda state: None)
        outcome = await client.call({"op": "elect"})
    assert isinstance(outcome, Unknown)
    assert not outcome.sent
    nowhere = CoordinatorClient(list, NAMES, name="n1", on_state=lambda state: None)
    outcome = await nowhere.call({"op": "elect"})
    assert isinstance(outcome, Unknown)
    assert not outcome.sent


async def test_after_an_unknown_the_next_call_has_a_connection_of_its_own(
    mock_clock: MockClock,
) -> None:
    """A late answer to the first question is never taken for the second's."""
    asked: list[frames.Frame] = []

    async def behave(stream: trio.SocketStream, frame: frames.Frame) -> None:
        asked.append(frame)
        if len(asked) == 1:
            mock_clock.jump(coordinator_client.CALL_SECONDS)
        else:
            await good(stream, frame)

    async def body(client: CoordinatorClient, fake: Fake) -> None:
        assert isinstance(await client.call({"op": "a"}), Unknown)
        assert await client.call({"op": "b"}) == OK
        assert fake.greetings == 2

    events = await against(behave, body)
    assert [name for name, _ in events] == ["coordinator_lost", "coordinator_back"]


async def test_one_change_is_outstanding() -> None:
    """The second call is sent when the first is answered."""
    go_on = trio.Event()

    async def slow(stream: trio.SocketStream, frame: frames.Frame) -> None:
        await go_on.wait()
        await reply(stream, frame, OK)

    async def body(client: CoordinatorClient, fake: Fake) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, {"op": "a"})
            nursery.start_soon(client.call, {"op": "b"})
            while not fake.seen:
                await trio.testing.wait_all_tasks_blocked(0.01)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert len(fake.seen) == 1
            go_on.set()
        assert len(fake.seen) == 2

    await against(slow, body)


async def test_a_cancelled_call_leaves_no_half_question() -> None:
    asked = trio.Event()

    async def once(stream: trio.SocketStream, frame: frames.Frame) -> None:
        if asked.is_set():
            await reply(stream, frame, OK)
        asked.set()

    async def body(client: CoordinatorClient, fake: Fake) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, {"op": "a"})
            await asked.wait()
            nursery.cancel_scope.cancel()
        assert await client.call({"op": "b"}) == OK

    await against(once, body)


async def test_states_come_once_and_live_entries_each_second() -> None:
    states: list[dict[str, object]] = []

    async def body(client: CoordinatorClient, fake: Fake) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            while "n2" not in client.live:
                await trio.testing.wait_all_tasks_blocked(0.01)
            client.publish({"host": "h"})
            while not any(frame.fields.get("info") for frame in fake.seen):
                await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
        assert states == [STATE]

    await against(good, body, on_state=states.append)


async def test_a_lost_coordinator_is_told_once_and_comes_back() -> None:
    """Hundreds of attempts are one warning."""
    up = [False]

    async def behave(stream: trio.SocketStream, frame: frames.Frame) -> None:
        await (good if up[0] else reset)(stream, frame)

    async def body(client: CoordinatorClient, fake: Fake) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            while len(fake.seen) < 4:
                await trio.testing.wait_all_tasks_blocked(0.01)
            assert not client.connected
            up[0] = True
            while not client.connected:
                await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()

    events = await against(behave, body)
    assert [name for name, _ in events] == ["coordinator_lost", "coordinator_back"]


async def test_the_report_goes_with_every_poll() -> None:
    async def body(client: CoordinatorClient, fake: Fake) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            while not any(frame.type == frames.Type.CO_READ for frame in fake.seen):
                await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
        read = next(frame for frame in fake.seen if frame.type == frames.Type.CO_READ)
        assert read.fields == {"report": ["n1", "", 0, 0, 0]}
        assert read.names_crc == NAMES

    await against(good, body)


async def blocking(behave: Behave, question: Callable[[CoordinatorCalls], object]) -> object:
    """The blocking client against a fake coordinator."""
    found: list[object] = []

    async def body(client: CoordinatorClient, fake: Fake) -> None:
        endpoints = client._calls._endpoints()

        def ask() -> object:
            with CoordinatorCalls(endpoints, NAMES, timeout=60.0) as calls:
                if behave is silent:  # the time is over when the question is sent, not before
                    calls._connected(time.monotonic() + 60.0)
                    calls._timeout = 0.1
                return question(calls)

        found.append(await trio.to_thread.run_sync(ask))

    await against(behave, body)
    return found[0]


async def test_the_blocking_client_answers() -> None:
    assert await blocking(good, lambda calls: calls.call({"op": "x"})) == OK
    assert await blocking(good, lambda calls: calls.read()) == STATE


@pytest.mark.parametrize("behave", [silent, reset, garbled])
async def test_the_blocking_client_says_unknown(behave: Behave) -> None:
    """Sent and not answered: the operator must look, not assume."""
    with pytest.raises(BaseExceptionGroup) as caught:
        await blocking(behave, lambda calls: calls.call({"op": "x"}))
    assert caught.group_contains(OutcomeUnknown)


async def test_the_blocking_client_passes_errors_on() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        await blocking(refuses, lambda calls: calls.call({"op": "x"}))
    assert caught.group_contains(UsageError, match="no")

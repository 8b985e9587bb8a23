"""Connections of the coordinator: bounded, closed by garbage, and never in another's way."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
import trio
from crc32c import crc32c

from replication.coordinator import peer
from replication.register.operations import AddReplica, to_wire
from tests.unit.replication.coordinator.serving import (
    NAMES,
    Coordinator,
    ask,
    registration,
    with_coordinator,
)
from twinlog.wire import frames


def garbage() -> dict[str, tuple[bytes, str]]:
    """Bytes that are no frames, and the kind they are counted as."""
    hello = frames.encode_whole(
        frames.Frame(frames.Type.CO_HELLO, names_crc=NAMES, fields={"min": 1, "max": 1})
    )
    flipped = bytearray(hello)
    flipped[20] ^= 1
    version = bytearray(hello)
    version[4] = 9
    large = frames.HEADER.pack(b"TWL1", 1, 64, 0, 1 << 20, 0, 0, 0, 0, 0, 0)
    large += frames._CRC.pack(crc32c(large))
    return {
        "http": (b"GET /status HTTP/1.1\r\n\r\n", "http"),
        "tls": (b"\x16\x03\x01\x02\x00", "tls"),
        "noise": (b"\x00" * 100, "not-ours"),
        "bit flip": (bytes(flipped), "crc"),
        "version": (bytes(version), "version"),
        "too large": (large, "oversized"),
        "no hello": (frames.encode_whole(frames.Frame(65, names_crc=NAMES)), "hello"),
        "half a frame": (hello[:50], "truncated"),
        "a client's frame": (
            hello + frames.encode_whole(frames.Frame(33, names_crc=NAMES)),
            "type",
        ),
        "other names": (frames.encode_whole(frames.Frame(64, names_crc=5)), "other-cluster"),
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
        reader = frames.FrameReader()
        with suppress(trio.BrokenResourceError):
            while more := await stream.receive_some(4096):
                reader.feed(more)
        if name == "version":
            answer = reader.next()
            assert answer is not None
            assert (answer.is_error, answer.fields["min"]) == (True, frames.VERSION)
        status = cast("dict[str, object]", await ask(coordinator, lambda calls: calls.status()))
        assert status["closed"] == {kind: 1}
        assert status["revision"] == 1

    await with_coordinator(tmp_path, body)


async def test_a_frame_may_arrive_in_any_pieces(tmp_path: Path) -> None:
    async def body(coordinator: Coordinator) -> None:
        stream = await coordinator.stream()
        for kind, fields in ((64, {"min": 1, "max": 1}), (66, {"op": registration("n1")})):
            frame = frames.Frame(kind, request=kind, names_crc=NAMES)
            frame.fields = cast("dict[str, object]", fields)
            for byte in frames.encode_whole(frame):
                await stream.send_all(bytes([byte]))
        reader, answers = frames.FrameReader(), list[frames.Frame]()
        while len(answers) < 2:
            reader.feed(await stream.receive_some(4096))
            while (answer := reader.next()) is not None:
                answers.append(answer)
        assert [answer.request for answer in answers] == [64, 66]
        assert answers[1].fields["ok"] is True
        await stream.aclose()

    await with_coordinator(tmp_path, body)


async def test_idle_strangers_make_room_and_members_keep_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stranger that has been silent longest is closed; a coordinator of members refuses."""
    monkeypatch.setattr(peer, "CONNECTIONS_MAX", 2)

    async def body(coordinator: Coordinator) -> None:
        member = coordinator.client("n1")
        await member.call(registration("n1"))
        strangers = [await coordinator.stream() for _ in range(5)]
        for silent in strangers[:-1]:
            assert await silent.receive_some(1) == b""
        again = await member.call(registration("n1"))
        assert isinstance(again, dict)
        assert again["ok"]
        other = coordinator.client("n2")
        await other.call(registration("n2"))
        assert await strangers[-1].receive_some(1) == b""
        late = await coordinator.stream()
        assert await late.receive_some(1) == b"", "both places belong to members"
        other.close()
        await trio.testing.wait_all_tasks_blocked(0.01)
        status = cast("dict[str, object]", await ask(coordinator, lambda calls: calls.status()))
        assert (status["closed"], status["refused"]) == ({"room": 5}, 1)

    await with_coordinator(tmp_path, body)


async def test_a_parked_watch_ends_when_its_caller_goes(tmp_path: Path) -> None:
    """A killed node leaves no parked task behind."""

    async def body(coordinator: Coordinator) -> None:
        stream = await coordinator.stream()
        for kind, fields in ((64, {"min": 1, "max": 1}), (67, {"revision": 0, "wait_ms": 30000})):
            frame = frames.Frame(kind, names_crc=NAMES, fields=cast("dict[str, object]", fields))
            await stream.send_all(frames.encode_whole(frame))
        await stream.receive_some(4096)
        await stream.aclose()
        connections = 9
        while connections > 1:
            found = await ask(coordinator, lambda calls: calls.status())
            connections = cast("int", cast("dict[str, object]", found)["connections"])

    await with_coordinator(tmp_path, body)


async def test_a_flipped_bit_anywhere_changes_nothing(tmp_path: Path) -> None:
    """An order that was damaged on its way is never carried out, wherever the damage is."""

    async def body(coordinator: Coordinator) -> None:
        hello = frames.encode_whole(frames.Frame(64, names_crc=NAMES, fields={"min": 1, "max": 1}))
        order = frames.encode_whole(
            frames.Frame(66, names_crc=NAMES, fields={"op": registration("n1")})
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


async def test_a_learner_keeps_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs the coordinator as a member does, to find the master (R70)."""
    monkeypatch.setattr(peer, "CONNECTIONS_MAX", 2)

    async def body(coordinator: Coordinator) -> None:
        member = coordinator.client("n1")
        await member.call(registration("n1"))
        await member.call(to_wire(AddReplica("n4", 0, "alice", learner=True)))
        learner = coordinator.client("n4")
        answer = await learner.call(registration("n4"))
        assert isinstance(answer, dict)
        assert answer["ok"]
        late = await coordinator.stream()
        assert await late.receive_some(1) == b"", "both places are taken"
        member.close()
        await trio.testing.wait_all_tasks_blocked(0.01)
        status = cast("dict[str, object]", await ask(coordinator, lambda calls: calls.status()))
        assert (status["closed"], status["refused"]) == ({}, 1)

    await with_coordinator(tmp_path, body)

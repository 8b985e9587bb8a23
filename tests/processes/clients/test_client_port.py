"""What the client port does with bytes and requests that are not as they should be.

Each row of the fault table that one node can show: the connection is closed and counted by kind, or
the request is refused with its reason; the log does not move, and others are served as before.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from replication.replica_service import GUEST_FIELDS_MAX
from storage.disk.mapping import RealMapping
from storage.read.lookups import OffLoopLookup
from tests.fixtures.cluster import Cluster, running_cluster
from tests.fixtures.wire_client import WireClient, bodies, connected, outcomes, records
from twinlog.format.record import decode
from twinlog.wire import frames as wire

pytestmark = pytest.mark.processes


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster of one node with the topic ``t`` of two queues and one record."""
    async with running_cluster(tmp_path, nodes=1) as running:
        async with running.client() as client:
            assert (await client.create("t", 2)).fields["created"] is True
            assert outcomes(await client.append(records("t", b"first"))) == [0]
        yield running


def closings(cluster: Cluster) -> Mapping[str, int]:
    """Connections the node ended, by kind."""
    counters = cluster.view("n1")["counters"]
    assert isinstance(counters, dict)
    found = counters["closings"]
    assert isinstance(found, dict)
    return {str(kind): int(number) for kind, number in found.items()}  # pyright: ignore


def end(cluster: Cluster) -> object:
    """The end offset of the only node's log."""
    offsets = cluster.view("n1")["offsets"]
    assert isinstance(offsets, dict)
    return offsets["end"]  # pyright: ignore[reportUnknownVariableType]


async def say(cluster: Cluster, data: bytes, *, greet: bool) -> WireClient:
    """Send raw bytes on a connection and wait until the node has closed it."""
    async with connected(cluster.address("n1"), greet=greet) as client:
        await client.stream.send_all(data)
        assert await client.closed()
        return client


def an_append() -> bytes:
    """A good APPEND of one record, as it travels."""
    section = records("t", b"body" * 20)
    fields: dict[str, object] = {
        "ack": "confirmed",
        "timeout_ms": 1000,
        "sections": [section.row()],
    }
    return wire.encode_whole(
        wire.Frame(wire.Type.APPEND, request=9, fields=fields, payload=section.data)
    )


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "http"),
        (b"POST /x", "http"),
        (b"\x00\x00\x00\x85{}", "not-ours"),
        (b"SSH-2.0-OpenSSH_9.2", "not-ours"),
    ],
)
async def test_other_protocols_are_closed_at_the_first_byte(
    one: Cluster, first: bytes, kind: str
) -> None:
    """HTTP and anything else that is not ours: closed at once, counted by kind."""
    before = closings(one).get(kind, 0)
    await say(one, first, greet=False)
    assert closings(one)[kind] == before + 1
    assert "connection_refused" in one.logs["n1"].getvalue()


async def test_tls_is_closed_at_the_first_byte_with_a_word(one: Cluster) -> None:
    """In the clear: the other side's TLS sees that none is spoken here."""
    before = closings(one).get("tls", 0)
    async with connected(one.address("n1"), greet=False) as client:
        await client.stream.send_all(bytes.fromhex("160301020001"))
        answer = await client.receive()
        assert answer.is_error and answer.fields["code"] == "tls"
        assert answer.fields["text"] == "this port does not speak TLS"
        assert await client.closed()
    assert closings(one)["tls"] == before + 1


async def test_a_port_scan_leaves_nothing(one: Cluster) -> None:
    """A connection that says nothing and goes away is forgotten, and no fault of anybody."""
    before = closings(one)
    for _ in range(20):
        stream = await trio.open_tcp_stream(*one.address("n1"))
        await stream.aclose()
    await one.until(lambda: one.nodes["n1"].services.clients.connections == 0)  # type: ignore[union-attr]
    assert closings(one) == before


def begun_append(size: int) -> bytes:
    """The largest APPEND, with ``size`` bytes of its payload."""
    head, payload = wire.encode(wire.Frame(wire.Type.APPEND, payload=bytes(wire.PAYLOAD_MAX)))
    return head + bytes(payload[:size])


async def test_memory_of_clients_that_die_inside_a_frame_is_given_back_at_once(
    one: Cluster,
) -> None:
    """No collector has to run for it, and it is counted while it is held."""
    services = one.nodes["n1"].services
    assert services is not None
    clients = services.clients
    begun = begun_append(wire.PAYLOAD_MAX // 2 + 1)
    gc.disable()
    try:
        async with connected(one.address("n1")) as client:
            await client.stream.send_all(begun)
            await one.until(lambda: clients.partial_bytes > wire.PAYLOAD_MAX // 2, "the bytes")
            (held,) = [weakref.ref(each) for each in clients._connections]  # pyright: ignore
            stream = next(iter(clients._connections)).stream  # pyright: ignore
        await one.until(lambda: clients.connections == 0, "the end of the connection")
        assert clients.partial_bytes == 0
        assert stream.held == 0
        del stream
        await one.until(lambda: held() is None, "the connection to be forgotten")
    finally:
        gc.enable()


async def test_half_received_frames_are_bounded_as_they_arrive(one: Cluster) -> None:
    """The largest is closed in the turn in which there is too much, not up to a second later."""
    services = one.nodes["n1"].services
    assert services is not None
    clients = services.clients
    clients.handlers.limits = replace(
        clients.handlers.limits, partial_frames_bytes_max=wire.PAYLOAD_MAX * 3 // 2
    )
    begun = begun_append(wire.PAYLOAD_MAX * 3 // 4)
    most = 0

    def noted(change: int, real: Callable[[int], None] = clients._held) -> None:  # pyright: ignore
        nonlocal most
        real(change)
        most = max(most, clients.partial_bytes)

    clients._held = noted  # type: ignore[method-assign]
    async with connected(one.address("n1")) as first, connected(one.address("n1")) as second:
        await first.stream.send_all(begun)
        with contextlib.suppress(trio.BrokenResourceError):
            await second.stream.send_all(begun)
        await one.until(lambda: closings(one).get("oversized", 0) >= 1, "the largest closed")
        assert clients.partial_bytes <= wire.PAYLOAD_MAX * 3 // 2
    assert most <= wire.PAYLOAD_MAX * 2 + (1 << 20)


async def test_beyond_connections_max_a_client_is_told_so(one: Cluster) -> None:
    """It hears ``busy`` and the limit, instead of a reset; a place that is free again is given."""
    services = one.nodes["n1"].services
    assert services is not None
    clients = services.clients
    clients._connections_max = 1  # pyright: ignore
    address = one.address("n1")
    async with connected(address), connected(address, greet=False) as second:
        hello = wire.Frame(wire.Type.HELLO, request=1, fields={"min": 1, "max": 1})
        await second.stream.send_all(wire.encode_whole(hello))
        answer = await second.receive()
        assert answer.is_error
        assert (answer.fields["code"], answer.fields["limit"]) == ("busy", "connections_max")
        assert await second.closed()
    assert clients.handlers.counts.limits["connections_max"] == 1
    await one.until(lambda: clients.connections == 0)
    async with connected(one.address("n1")):
        pass


async def test_frames_cut_at_every_point_change_nothing(one: Cluster) -> None:
    """A client that is killed inside a frame, wherever: nothing of the frame was done."""
    data, before = an_append(), end(one)
    for cut in range(1, len(data)):
        async with connected(one.address("n1")) as client:
            await client.stream.send_all(data[:cut])
    await one.until(lambda: one.nodes["n1"].services.clients.connections == 0)  # type: ignore[union-attr]
    assert end(one) == before
    async with one.client() as client:
        assert outcomes(await client.append(records("t", b"after"))) == [0]


async def test_a_flipped_bit_anywhere_closes_the_connection(one: Cluster) -> None:
    """Header, fields or payload: a CRC finds it, nothing is appended, the kind is counted."""
    data, before = an_append(), end(one)
    for at in range(0, len(data), 7):
        broken = bytearray(data)
        broken[at] ^= 1 << (at % 8)
        await say(one, bytes(broken), greet=True)
    assert end(one) == before
    found = closings(one)
    assert found["crc"] > 0
    assert found["crc"] + found["not-ours"] + found.get("version", 0) >= len(data) // 7


async def test_oversized_and_unknown_frames_close_the_connection(one: Cluster) -> None:
    """Lengths beyond the limits and unknown types close the connection before a byte is placed."""
    for kind, head in (
        ("oversized", header(wire.Type.APPEND, fields=wire.FIELDS_MAX + 1)),
        ("oversized", header(wire.Type.APPEND, payload=wire.PAYLOAD_MAX + 1)),
        ("type", header(63)),
        ("type", wire.encode_whole(wire.Frame(wire.Type.HA_HELLO))),
        ("type", wire.encode_whole(wire.Frame(wire.Type.CO_READ))),
        ("type", wire.encode_whole(wire.Frame(wire.Type.METADATA, wire.ANSWER))),
    ):
        before = closings(one).get(kind, 0)
        await say(one, head, greet=True)
        assert closings(one)[kind] == before + 1


async def test_a_link_that_was_not_ours_takes_small_frames_only(one: Cluster) -> None:
    """Who connects to the port of slaves greets and acknowledges: it cannot make us hold more."""
    running = one.nodes["n1"].services
    assert running is not None
    port = running.observation.addresses()["slave_port"]
    assert isinstance(port, int)
    for head in (
        header(wire.Type.HA_HELLO, fields=GUEST_FIELDS_MAX + 1),
        header(wire.Type.HA_APPEND, payload=1),
    ):
        before = running.world.links_closed.get("oversized", 0)
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(head)
        assert await stream.receive_some() == b""
        await stream.aclose()
        assert running.world.links_closed["oversized"] == before + 1


def header(kind: int, *, fields: int = 0, payload: int = 0) -> bytes:
    """A header with a good CRC that announces what it likes."""
    import struct

    from crc32c import crc32c

    names = (wire.MAGIC, wire.VERSION, kind, 0, fields, payload, 0, 1, 0, 0, 0)
    head = wire.HEADER.pack(*names)
    return head + struct.pack(">I", crc32c(head))


async def test_hello_comes_first_and_once(one: Cluster) -> None:
    """A request before HELLO, or HELLO twice, closes the connection."""
    hello = wire.Frame(wire.Type.HELLO, fields={"min": 1, "max": 1, "features": 0, "client": "x"})
    await say(one, wire.encode_whole(wire.Frame(wire.Type.METADATA)), greet=False)
    await say(one, wire.encode_whole(hello), greet=True)
    assert closings(one)["hello"] == 2


async def test_another_wire_version_is_told_which_is_spoken(one: Cluster) -> None:
    """Older and newer, in HELLO and in the header: an error with the range, then close."""
    for low, high in ((0, 0), (2, 9)):
        async with connected(one.address("n1"), greet=False) as client:
            answer = await client.hello(min=low, max=high)
            assert answer.is_error
            assert (answer.fields["code"], answer.fields["min"]) == ("version", wire.VERSION)
            assert await client.closed()
    newer = bytearray(wire.encode_whole(wire.Frame(wire.Type.HELLO, request=1)))
    newer[4] = wire.VERSION + 1
    async with connected(one.address("n1"), greet=False) as client:
        await client.stream.send_all(newer)
        answer = await client.receive()
        assert answer.is_error
        assert answer.fields["max"] == wire.VERSION
        assert await client.closed()
    assert closings(one)["version"] == 3


async def test_a_client_of_another_cluster_is_told_whose_node_this_is(one: Cluster) -> None:
    """Names that differ: both are in the answer, then the connection ends."""
    frame = wire.Frame(
        wire.Type.HELLO,
        names_crc=wire.names_crc("other", "g1"),
        fields={"min": 1, "max": 1, "features": 0, "client": "x"},
    )
    async with connected(one.address("n1"), greet=False) as client:
        await client.stream.send_all(wire.encode_whole(frame))
        answer = await client.receive()
        assert answer.fields["code"] == "other-cluster"
        assert "test" in str(answer.fields["text"])
        assert await client.closed()


async def test_a_bad_record_refuses_its_section_alone(one: Cluster) -> None:
    """A flipped byte in a body: that section is refused with the record's number, others stored."""
    good, bad = records("t", b"good"), records("t", b"one", b"two", b"three")
    broken = bytearray(bad.data)
    broken[broken.index(b"two")] ^= 1
    bad.data = bytes(broken)
    async with one.client() as client:
        answer = await client.append(good, bad, records("t", b"also good"))
        assert outcomes(answer) == [0, 2, 0]
        rows = answer.fields["results"]
        assert isinstance(rows, list)
        assert rows[1][6] == 1
        read = await client.read("t")
        assert list(bodies(read)) == [b"first", b"good", b"also good"]


async def test_an_unknown_topic_is_refused_with_the_command_that_creates_it(one: Cluster) -> None:
    """Send, read and offsets of a topic that is not there."""
    async with one.client() as client:
        answer = await client.append(records("nowhere", b"x"))
        assert outcomes(answer) == [2]
        rows = answer.fields["results"]
        assert isinstance(rows, list)
        assert rows[0][4] == "unknown-topic"
        assert "twinlog topic create nowhere" in str(rows[0][5])
        assert (await client.read("nowhere")).fields["status"] == "unknown-topic"
        offsets = await client.ask(wire.Type.OFFSETS, {"topic": "nowhere", "queues": None})
        assert "twinlog topic create nowhere" in str(offsets.fields["hint"])


async def test_readers_outside_the_queue_get_different_answers(one: Cluster) -> None:
    """At the end, past the end, an unknown queue: three answers, and no progress is moved."""
    async with one.client() as client:
        assert (await client.read("t", 0)).fields["status"] == "found"
        assert (await client.read("t", 1)).fields["status"] == "none"
        past = await client.read("t", 5)
        assert (past.fields["status"], past.fields["end"]) == ("past-end", 1)
        assert (await client.read("t", 0, queue=9)).fields["status"] == "unknown-queue"


async def test_a_parked_read_wakes_when_something_is_new(one: Cluster) -> None:
    """A long poll is answered by the append it waited for, not by its deadline."""
    async with one.client() as reader, one.client() as writer, trio.open_nursery() as nursery:
        found: list[wire.Frame] = []

        async def read() -> None:
            found.append(await reader.read("t", 1, wait_ms=30_000))

        nursery.start_soon(read)
        await one.until(lambda: one.nodes["n1"].services.clients.handlers.reads.waiting == 1)  # type: ignore[union-attr]
        with trio.fail_after(25):
            await writer.append(records("t", b"news"))
            await one.until(lambda: bool(found))
        assert list(bodies(found[0])) == [b"news"]


async def test_requests_beyond_the_limit_are_busy(one: Cluster) -> None:
    """The next request of a connection with too many unanswered ones is refused, not queued."""
    running = one.nodes["n1"].services
    assert running is not None
    limit = running.clients.handlers.limits.requests_in_flight_max
    fields: dict[str, object] = {
        "topic": "t",
        "queue": 0,
        "offset": 1,
        "max_bytes": 1,
        "max_records": 1,
        "wait_ms": 30_000,
    }
    frames = b"".join(
        wire.encode_whole(wire.Frame(wire.Type.READ, request=number, fields=fields))
        for number in range(1, limit + 2)
    )
    async with one.client() as client:
        await client.stream.send_all(frames)
        answer = await client.receive()
        assert answer.request == limit + 1
        assert (answer.fields["code"], answer.fields["retryable"]) == ("busy", True)
    await one.until(lambda: running.clients.handlers.reads.waiting == 0)


async def test_cold_data_is_fetched_by_a_thread_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cold reads are answered like others; clients that take none of them hold a bounded memory."""
    monkeypatch.setattr("node.config.layer_settings.hot_bytes", lambda: 0)
    monkeypatch.setattr(RealMapping, "read_now", lambda self, start, into: False)
    async with running_cluster(tmp_path, nodes=1) as cluster, cluster.client() as client:
        await client.create("t")
        for number in range(8):
            await client.append(records("t", b"%d" % number + bytes(500_000)))
        answer = await client.read("t", 3, max_records=1)
        assert bodies(answer)[0][:1] == b"3"
        running = cluster.nodes["n1"].services
        assert running is not None
        assert running.clients.handlers.reads.counts.cold == 1
        threads: set[int] = set()
        run = OffLoopLookup[object].run

        def noted(look: OffLoopLookup[object], stop: Callable[[], bool]) -> object:
            threads.add(threading.get_ident())
            return run(look, stop)

        monkeypatch.setattr(OffLoopLookup, "run", noted)
        at = decode(answer.payload).log_offset
        got = await client.ask(wire.Type.GET, {"log_offset": at, "host": None})
        assert (got.fields["status"], bytes(got.payload)) == ("found", bytes(answer.payload))
        asked: dict[str, object] = {"topic": "t", "queues": None, "at_ms": 1 << 60}
        offsets = await client.ask(wire.Type.OFFSETS, asked)
        assert offsets.fields["queues"] == {0: [0, 8, 8]}
        assert threads
        assert threading.get_ident() not in threads
        async with cluster.client() as lazy:
            for _ in range(40):
                fields = {"topic": "t", "queue": 0, "offset": 0, "max_bytes": 4 << 20}
                await lazy.send(wire.Type.READ, {**fields, "max_records": 8})
            limit = running.clients.handlers.limits.cold_bytes_max
            await cluster.until(
                lambda: running.clients.handlers.reads.counts.cold > 5, "the cold reads"
            )
            assert 0 < running.clients.handlers.cold.held <= limit
            for _ in range(40):
                assert len(bodies(await lazy.receive())) == 8
        await cluster.until(lambda: running.clients.handlers.cold.held == 0, "all given back")


ODD: tuple[object, ...] = (
    None,
    -1,
    0,
    1 << 31,
    (1 << 63) - 1,
    -(1 << 63),
    (1 << 64) - 1,
    True,
    1.5,
    float("inf"),
    "",
    "t",
    "x" * 300,
    "\x00",
    b"t",
    [],
    [None],
    [-1, 1 << 63],
    ["t"],
    [["t", 0, 1, 0, 0, 0, 0]],
    {"t": 1},
)
"""Values that a peer may send in any field."""

GOOD: dict[wire.Type, dict[str, object]] = {
    wire.Type.METADATA: {"topics": None},
    wire.Type.APPEND: {"ack": "confirmed", "timeout_ms": 1000, "sections": []},
    wire.Type.READ: {
        "topic": "t",
        "queue": 0,
        "offset": 0,
        "max_bytes": 1000,
        "max_records": 10,
        "wait_ms": 0,
        "tags": None,
    },
    wire.Type.OFFSETS: {"topic": "t", "queues": None, "at_ms": None},
    wire.Type.TOPIC: {"op": "create", "name": "odd", "queues": 1},
    wire.Type.GET: {"log_offset": 0, "host": None},
    wire.Type.FIND: {"topic": "t", "key": "k", "max": 1, "begin": 0, "end": 9, "before": None},
    wire.Type.LOG: {"offset": 0, "max_bytes": 1000},
    wire.Type.ADMIN: {"op": "transfer", "to": "n1", "timeout_ms": 10},
}


@pytest.mark.parametrize("kind", sorted(GOOD), ids=lambda kind: wire.Type(kind).name)
async def test_odd_values_in_any_field_are_answered(one: Cluster, kind: wire.Type) -> None:
    """Whatever a field holds, its request is answered and the node goes on."""
    for name in GOOD[kind]:
        for value in ODD:
            async with one.client("n1") as client:
                answer = await client.ask(kind, {**GOOD[kind], name: value})
                assert answer.is_answer
    async with one.client("n1") as client:
        assert outcomes(await client.append(records("t", b"alive"))) == [0]


def questions(count: int) -> bytes:
    """So many requests for the status, whose answers congest a connection soon."""
    frames = (wire.Frame(wire.Type.STATUS, request=100 + number) for number in range(count))
    return b"".join(map(wire.encode_whole, frames))


async def test_a_burst_that_breaks_a_rule_at_its_end_costs_its_connection_only(
    one: Cluster,
) -> None:
    """The second HELLO is found while a peer that did not take its answers is taken up again."""
    async with one.client("n1") as client:
        burst = questions(200) + wire.encode_whole(wire.Frame(wire.Type.HELLO))
        await client.stream.send_all(burst)
        while not await client.closed():
            pass
    assert closings(one).get("hello") == 1
    async with one.client() as client:
        assert outcomes(await client.append(records("t", b"alive"))) == [0]


async def test_a_burst_behind_an_append_is_answered_to_its_end(one: Cluster) -> None:
    """An append that is refused is answered late in the round; then the connection is read on."""
    running = one.nodes["n1"].services
    appends, asked = running.clients.handlers.appends, 100
    appends._limits = replace(appends._limits, producers_waiting_max=0)  # pyright: ignore
    async with one.client("n1") as client:
        await client.stream.send_all(an_append() + questions(asked))
        answered = {(await client.receive()).request for _ in range(asked + 1)}
        assert len(answered) == asked + 1
    await one.until(lambda: running.clients.connections == 0)


async def test_what_no_frame_can_carry_is_an_error_and_counted_once(one: Cluster) -> None:
    """The names of ten thousand topics; a text that repeats a megabyte; then all goes on."""
    running = one.nodes["n1"].services
    name = "n" * 120
    known = {f"{name}{number:07}": 8 for number in range(10_000)}
    metadata = running.clients.handlers.metadata
    real = metadata.metadata
    metadata.metadata = lambda topics, *_: {**real(topics), "topics": known}  # type: ignore[method-assign]
    async with one.client("n1") as client:
        refused = await client.ask(wire.Type.METADATA, {"topics": None})
        assert refused.is_error
        assert refused.fields["code"] == "too-large"
        odd = await client.ask(wire.Type.TOPIC, {"op": "\x00" * 900_000})
        assert odd.is_error
        assert odd.fields["code"] == "fields"
        row = records("t", b"body")
        absent: list[object] = ["x" * 60_000, *row.row()[1:]]
        fields: dict[str, object] = {"timeout_ms": 1000, "sections": [absent] * 15}
        refusals = await client.ask(wire.Type.APPEND, fields, row.data * 15)
        assert set(outcomes(refusals)) == {2}
        connection = next(iter(running.clients._connections))  # pyright: ignore
        assert connection.in_flight == 0
    assert running.clients.handlers.counts.answers["metadata", "too-large"] == 1
    assert ("metadata", "ok") not in running.clients.handlers.counts.answers


@pytest.mark.parametrize("column", range(7))
async def test_odd_numbers_in_a_section_are_answered(one: Cluster, column: int) -> None:
    """Topic, queue, records, bytes, producer, epoch, sequence: refused or stored, never worse."""
    section = records("t", b"body")
    async with one.client() as client:
        for value in ODD:
            row = section.row()
            row[column] = value
            fields: dict[str, object] = {"timeout_ms": 1000, "sections": [row]}
            answer = await client.ask(wire.Type.APPEND, fields, section.data)
            assert answer.is_answer
        assert outcomes(await client.append(records("t", b"alive"))) == [0]

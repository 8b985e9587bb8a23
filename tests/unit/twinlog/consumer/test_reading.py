"""Reading: the right records from the right node, and no progress that nobody asked for."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.clock import Clock
from tests.fakes.node import Arrived, Drop, FakeCluster
from twinlog import Client
from twinlog.consumer.core import Cursor, ReaderCore, ReadSettings
from twinlog.errors import (
    Corrupt,
    CorruptionError,
    Denied,
    NotYetConfirmed,
    OffsetBeyond,
    OffsetGone,
    Unavailable,
    UnknownTopic,
    UsageError,
)
from twinlog.format import record
from twinlog.format.compression import decompress
from twinlog.format.messages import Message, messages_of
from twinlog.ranges import RangeError
from twinlog.session.routing import Address, Node, Route, RoutingTable, parse_endpoints
from twinlog.wire.frames import ANSWER, Frame, FrameError, Type


@pytest.fixture
def filled(client: Client, cluster: FakeCluster) -> Client:
    """Ten messages in each of four queues; message 10 q + n is number n of queue q."""
    for queue in range(4):
        for number in range(10):
            cluster.now_ms = 1_700_000_000_000 + number * 1000
            tag = "even" if number % 2 == 0 else "odd"
            client.send("orders", b"%02d" % (10 * queue + number), queue=queue, tag=tag)
    return client


def numbers(messages: Iterator[Message]) -> list[int]:
    return [int(message.body) for message in messages]


def reads(cluster: FakeCluster) -> set[str]:
    """Return the names of the nodes that were asked to READ."""
    return {name for name, node in cluster.nodes.items() if node.count(Type.READ)}


def answer_status(node_name: str, status: str, **facts: object) -> object:
    """Return a fault: that node answers every READ with ``status``."""

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.READ or arrived.node.name != node_name:
            return False
        node = arrived.node
        arrived.answer(
            {
                "status": status,
                "next": arrived.frame.fields["offset"],
                "start": 0,
                "end": 0,
                "count": 0,
                "confirm": 0,
                "age_ms": 0,
                "node": node.name,
                "role": "master" if node.master else "slave",
                "redirect": None,
                **facts,
            }
        )
        return True

    return fault


@pytest.mark.parametrize(
    ("wanted", "queue", "found"),
    [
        ("start:", None, list(range(40))),
        ("end", None, []),
        ("8:", None, [8, 9, 18, 19, 28, 29, 38, 39]),
        ("2:4", 1, [12, 13]),
        (":2", None, [0, 1, 10, 11, 20, 21, 30, 31]),
        ("-1:", None, [9, 19, 29, 39]),
        ("-3:-1", 0, [7, 8]),
        ("+1", None, [0, 10, 20, 30]),
        ("@2023-11-14T22:13:28Z:", 0, [8, 9]),
        ("@2023-11-14T22:13:25Z:2023-11-14T22:13:27Z", 3, [35, 36]),
        ("5:99", 2, [25, 26, 27, 28, 29]),
        ("10:", 0, []),
    ],
)
def test_ranges(filled: Client, wanted: str, queue: int | None, found: list[int]) -> None:
    """Each form of a range gives exactly these, queue after queue, in order."""
    assert numbers(filled.read("orders", wanted, queue=queue)) == found


def test_tags_and_limits(filled: Client) -> None:
    """A tag is compared by its text, the limit counts what is handed out."""
    assert numbers(filled.read("orders", queue=0, tag="odd")) == [1, 3, 5, 7, 9]
    assert numbers(filled.read("orders", queue=0, tag="odd || even", limit=3)) == [0, 1, 2]
    assert numbers(filled.read("orders", queue=0, tag=" ", limit=3)) == [0, 1, 2]
    with pytest.raises(UsageError, match="names no tag"):
        next(iter(filled.read("orders", tag=" || ")))
    assert numbers(filled.read("orders", tag="odd", limit=7)) == [1, 3, 5, 7, 9, 11, 13]
    # "Aa" and "BB" have the same hash
    filled.send("orders", b"77", tag="Aa", queue=0)
    filled.send("orders", b"78", tag="BB", queue=0)
    assert numbers(filled.read("orders", tag="BB")) == [78]


def test_small_answers_are_put_together(filled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader asks on until it has everything, whatever the size of an answer."""
    monkeypatch.setattr("twinlog.consumer.core.ANSWER_BYTES", 300)
    assert numbers(filled.read("orders")) == list(range(40))


def test_what_is_not_confirmed_is_not_shown(filled: Client, cluster: FakeCluster) -> None:
    """A record by its log offset, above confirm: retryable, and named as such."""

    def above(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.GET:
            return False
        arrived.answer({"status": "above-confirm"})
        return True

    cluster.nodes["n1"].faults.append(above)
    with pytest.raises(NotYetConfirmed):
        filled.get("log@0")
    assert filled.get("orders/1@3").address == "orders/1@3"


def test_more_than_was_asked_for(filled: Client, cluster: FakeCluster) -> None:
    """A node may send more than a reader wants, before and behind it; the reader does not."""

    def generous(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.READ:
            wanted = arrived.frame.fields["offset"]
            assert isinstance(wanted, int)
            arrived.frame.fields["offset"] = max(0, wanted - 2)
            arrived.frame.fields["max_records"] = 100
        return False

    cluster.nodes["n1"].faults.append(generous)
    assert numbers(filled.read("orders", "3:6", queue=0)) == [3, 4, 5]
    assert numbers(filled.read("orders", "3:", queue=0, tag="odd", limit=2)) == [3, 5]


def test_who_is_asked(filled: Client, cluster: FakeCluster) -> None:
    """The caller's wish is met: slave, master, or one node by name."""
    for wanted, asked in (("slave", {"n2"}), ("master", {"n1"}), ("n3", {"n3"})):
        for node in cluster.nodes.values():
            node.seen.clear()
        assert len(numbers(filled.read("orders", read_from=wanted))) == 40
        assert reads(cluster) == asked


def test_a_dead_slave_is_replaced(filled: Client, cluster: FakeCluster) -> None:
    """Reading goes on at another node from where it was, nothing twice, nothing missing."""
    count = [0]

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.READ:
            count[0] += 1
            if count[0] == 2:
                raise Drop
        return False

    cluster.nodes["n2"].faults.append(fault)
    assert numbers(filled.read("orders", read_from="slave")) == list(range(40))
    assert "n3" in reads(cluster)


def test_a_reader_goes_back_to_a_slave(
    filled: Client, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master was a stopgap: after some time a slave is looked for again."""
    monkeypatch.setattr("twinlog.consumer.core.SLAVE_SECONDS", 0.0)
    monkeypatch.setattr("twinlog.consumer.core.ANSWER_RECORDS", 2)
    for name in ("n2", "n3"):
        met: list[int] = []

        def once(arrived: Arrived, met: list[int] = met) -> bool:
            if arrived.frame.type == Type.READ and not met:
                met.append(1)
                raise Drop
            return False

        cluster.nodes[name].faults.append(once)
    assert numbers(filled.read("orders", read_from="slave")) == list(range(40))
    assert cluster.nodes["n1"].count(Type.READ) in (1, 2, 3)
    assert cluster.nodes["n2"].count(Type.READ) > 10


def test_a_slave_that_is_behind(filled: Client, cluster: FakeCluster, clock: Clock) -> None:
    """What the master knows of is waited for, then read elsewhere; never cut short silently."""
    cluster.nodes["n2"].behind = {2}
    cluster.nodes["n3"].behind = {2}
    assert numbers(filled.read("orders", read_from="slave")) == list(range(40))
    cluster.nodes["n3"].faults.append(clock.passing(Type.READ))
    with pytest.raises(Unavailable, match=r"orders/2@5 on n3 is not there yet"):
        list(filled.read("orders", read_from="n3"))


def test_stale_and_unconfirmed(filled: Client, cluster: FakeCluster, clock: Clock) -> None:
    """A stale slave is left; a record above confirm is told as such when time is up."""
    cluster.nodes["n2"].faults.append(answer_status("n2", "stale"))  # type: ignore[arg-type]
    assert numbers(filled.read("orders", read_from="slave")) == list(range(40))
    above = answer_status("n3", "above-confirm", confirm=77)
    cluster.nodes["n3"].faults.append(clock.passing(Type.READ, above))  # type: ignore[arg-type]
    with pytest.raises(NotYetConfirmed) as caught:
        list(filled.read("orders", read_from="n3"))
    assert caught.value.confirm == 77
    assert caught.value.retryable


def test_progress_is_never_moved(filled: Client, cluster: FakeCluster, clock: Clock) -> None:
    """Offsets that are gone, or that lie past the end, are errors that name the borders."""
    with pytest.raises(OffsetBeyond) as beyond:
        list(filled.read("orders", "11:", queue=0))
    assert beyond.value.end == 10
    cluster.nodes["n1"].faults.append(answer_status("n1", "before-start", start=4))  # type: ignore[arg-type]
    with pytest.raises(OffsetGone) as gone:
        list(filled.read("orders", "2:", queue=0, read_from="master"))
    assert gone.value.start == 4
    assert "4:" in str(gone.value.hint)
    past = answer_status("n1", "past-end", end=3)
    cluster.nodes["n1"].faults[:] = [clock.passing(Type.READ, past)]  # type: ignore[arg-type]
    with pytest.raises(OffsetBeyond) as beyond:
        list(filled.read("orders", "2:", queue=0, read_from="master"))
    assert beyond.value.end == 3


def test_mistakes(filled: Client) -> None:
    """A bad range is told at once, an unknown topic or queue at the first message."""
    with pytest.raises(RangeError):
        filled.read("orders", "later")
    with pytest.raises(UnknownTopic):
        list(filled.read("nothing"))
    with pytest.raises(UsageError, match="not a valid message address"):
        filled.get("orders-3-7")
    with pytest.raises(UsageError, match="no record begins at log offset 5"):
        filled.get("log@5")
    with pytest.raises(OffsetBeyond):
        filled.get("orders/0@10")


@pytest.mark.usefixtures("long_pauses")
def test_a_reader_can_do_without_a_master(
    filled: Client, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While there is none, the borders come from the node that is read; who wants it waits."""
    monkeypatch.setattr("twinlog.consumer.start_offsets.NO_MASTER_SECONDS", 0.05)
    cluster.leader = None
    assert numbers(filled.read("orders", "8:", read_from="slave", queue=0)) == [8, 9]
    assert numbers(filled.read("orders", "8:", read_from="n3", queue=0)) == [8, 9]
    with pytest.raises(Unavailable):
        list(filled.read("orders", read_from="master"))


@pytest.mark.usefixtures("long_pauses")
@pytest.mark.parametrize(("topic", "wanted"), [("nothing", "start:"), ("orders", "11:")])
def test_a_node_that_may_lag_cannot_say_that_there_is_nothing(
    filled: Client,
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    topic: str,
    wanted: str,
) -> None:
    """A slave knows no topic, or a queue ends there: the master is waited for, to the deadline."""
    monkeypatch.setattr("twinlog.consumer.start_offsets.NO_MASTER_SECONDS", 0.05)
    cluster.leader = None
    for node in ("any", "slave", "n3"):
        with pytest.raises(Unavailable, match="no master at epoch 7; a node that may lag"):
            list(filled.read(topic, wanted, read_from=node, queue=0))

    def elected(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.OFFSETS:
            cluster.leader = "n1"
        return False

    cluster.nodes["n3"].faults.append(elected)
    with pytest.raises(UnknownTopic if topic == "nothing" else OffsetBeyond):
        list(filled.read(topic, wanted, read_from="n3", queue=0))


def test_what_a_slave_let_go_is_read_elsewhere(filled: Client, cluster: FakeCluster) -> None:
    """Each node keeps what it keeps; rows are gone when the master, or the node named, says so."""
    for name in ("n2", "n3"):
        fault = answer_status(name, "before-start", start=4)
        cluster.nodes[name].faults.append(fault)  # type: ignore[arg-type]
    for node in ("slave", "any"):
        assert numbers(filled.read("orders", queue=0, read_from=node)) == list(range(10))
    with pytest.raises(OffsetGone) as gone:
        list(filled.read("orders", queue=0, read_from="n2"))
    assert gone.value.start == 4
    fault = answer_status("n1", "before-start", start=2)
    cluster.nodes["n1"].faults.append(fault)  # type: ignore[arg-type]
    with pytest.raises(OffsetGone) as gone:
        list(filled.read("orders", queue=0, read_from="slave"))
    assert gone.value.start == 2


@pytest.mark.usefixtures("long_pauses")
def test_a_reader_waits_for_its_node(filled: Client, cluster: FakeCluster) -> None:
    """A node that is down, and one that there is not, are told apart from an empty queue."""
    filled.metadata()
    cluster.nodes["n3"].close()
    with pytest.raises(Unavailable, match="127"):
        list(filled.read("orders", read_from="n3"))
    with pytest.raises(UsageError, match="there is no node n9"):
        list(filled.read("orders", read_from="n9"))


@pytest.mark.parametrize("code", ["busy", "denied"])
def test_refused_reads(filled: Client, cluster: FakeCluster, code: str) -> None:
    """A busy node is left for another; what is forbidden is told at once."""

    def refuse(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.READ:
            return False
        arrived.refuse(code, "no", retryable=code == "busy")
        return True

    cluster.nodes["n1"].faults.append(refuse)
    if code == "busy":
        assert numbers(filled.read("orders")) == list(range(40))
    else:
        with pytest.raises(Denied):
            list(filled.read("orders"))


def test_answers_of_another_shape(filled: Client, cluster: FakeCluster) -> None:
    """A node that breaks the rules is left; what it said is not used."""
    for status, facts in (("found", {"next": 0}), ("found", {"next": "7"})):
        fault = answer_status("n1", status, **facts)
        cluster.nodes["n1"].faults[:] = [fault]  # type: ignore[list-item]
        assert numbers(filled.read("orders")) == list(range(40))
    for queues in ({0: [1]}, {"0": [0, 1, None]}, [1]):

        def odd(arrived: Arrived, queues: object = queues) -> bool:
            if arrived.frame.type != Type.OFFSETS:
                return False
            arrived.answer({"queues": queues, "confirm": 0, "age_ms": 0})
            return True

        cluster.nodes["n1"].faults[:] = [odd]
        with pytest.raises(FrameError):
            list(filled.read("orders"))


def test_a_filtered_stretch_without_a_match_is_progress(
    filled: Client, cluster: FakeCluster
) -> None:
    """A node that looked at records and found none to send says how far it got."""
    for number in range(3):
        filled.send("orders", b"%d" % (900 + number), queue=0, tag="late" if number == 2 else "x")
    met: list[int] = []

    def skip(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.READ or met:
            return False
        met.append(1)
        return answer_status("n1", "none", next=12)(arrived)  # type: ignore[operator, no-any-return]

    cluster.nodes["n1"].faults.append(skip)
    assert numbers(filled.read("orders", queue=0, tag="late")) == [902]


def test_a_topic_that_the_master_does_not_know_any_more(
    filled: Client, cluster: FakeCluster, clock: Clock
) -> None:
    """While reading: waited for (a master that starts learns its topics), then told."""
    for status, why in (("unknown-topic", "no topic orders"), ("unknown-queue", "no such queue")):
        fault = answer_status("n1", status)
        cluster.nodes["n1"].faults[:] = [clock.passing(Type.READ, fault)]  # type: ignore[arg-type]
        with pytest.raises(UnknownTopic, match=why):
            list(filled.read("orders", read_from="master"))


def test_advice_of_the_master_is_followed(filled: Client, cluster: FakeCluster) -> None:
    """Cold data: the master names a slave, and a reader that is free to choose goes there."""
    met: list[bool] = []

    def advise(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.READ or met:
            return False
        met.append(True)
        send = arrived.send

        def advised(frame: object) -> None:
            frame.fields["redirect"] = {"node": "n3", "valid_ms": 30_000}  # type: ignore[attr-defined]
            send(frame)  # type: ignore[arg-type]

        arrived.send = advised
        return False

    cluster.nodes["n1"].faults.append(advise)
    assert numbers(filled.read("orders")) == list(range(40))
    assert reads(cluster) == {"n1", "n3"}


def advised(status: str, node: str, following: int, *, advice: str | None = None) -> Frame:
    """An answer to READ, with the master's advice to ask another node."""
    redirect = advice and {"node": advice, "valid_ms": 30_000}
    role = "master" if node == "n1" else "slave"
    fields = {
        "status": status, "next": following, "start": 0, "end": 9, "count": 0, "confirm": 0,
        "skipped": 0, "age_ms": 0, "node": node, "role": role, "redirect": redirect,
    }  # fmt: skip
    return Frame(Type.READ, ANSWER, fields=fields)


@pytest.mark.parametrize("lost", [False, True])
def test_advice_to_ask_a_node_that_cannot_serve_is_left(*, lost: bool) -> None:
    """The master is asked again at once, and the same advice is not followed for a while."""
    nodes = tuple(
        Node(f"n{number}", "g1", "127.0.0.1", number, role="master" if number == 1 else "slave")
        for number in (1, 2, 3)
    )
    table = RoutingTable((Address("127.0.0.1", 1),))
    table.learn(Route("c", "g1", 1, "n1", nodes, {"t": 1}, 4, 4 << 20))
    core = ReaderCore(ReadSettings("t", timeout=5.0), [Cursor(0, 0, 9)], table, 0.0)
    asked: list[int] = []

    def ask(now: float, answer: Frame) -> None:
        address = core.choose(now)
        assert address is not None
        asked.append(address.port)
        core.routed(fresh=True)
        ((cursor, _),) = core.wanted(now)
        core.on_asked(len(asked), cursor)
        core.on_answer(len(asked), answer, now, 0.1)

    ask(0.0, advised("found", "n1", 1, advice="n2"))
    if lost:
        assert core.choose(0.1) == Address("127.0.0.1", 2)
        core.on_lost(0.1, Unavailable("n2 is gone"), 0.1)
    else:
        ask(0.1, advised("stale", "n2", 1))
    ask(1.0, advised("found", "n1", 2, advice="n2"))
    core.unrouted = True
    ask(2.0, advised("found", "n1", 3, advice="n3"))
    core.unrouted = True
    ask(3.0, advised("found", "n3", 4))
    core.unrouted = True
    ask(40.0, advised("found", "n1", 5, advice="n2"))
    ask(41.0, advised("found", "n2", 6))
    assert asked == ([1, 1, 1, 3, 1, 2] if lost else [1, 2, 1, 1, 3, 1, 2])


def test_follow_goes_on_at_the_end(filled: Client) -> None:
    """What is sent while a reader follows is read, from every queue."""
    messages = filled.read("orders", "-1:", follow=True, limit=6)
    found = [int(next(messages).body) for _ in range(4)]
    assert sorted(found) == [9, 19, 29, 39]
    filled.send("orders", b"100", queue=1)
    filled.send("orders", b"101", queue=3)
    assert sorted(numbers(messages)) == [100, 101]


def test_a_follower_that_moves_takes_every_queue_along(
    filled: Client, cluster: FakeCluster
) -> None:
    """One queue's answer sends it to another node; what the others asked is asked there again."""
    met: list[int] = []
    stale = answer_status("n2", "stale")

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.READ and arrived.frame.fields["queue"] == 3:
            met.append(1)
            return stale(arrived)  # type: ignore[operator, no-any-return]
        return False

    cluster.nodes["n2"].faults.append(fault)
    found: list[int] = []
    read = filled.read("orders", "end", follow=True, limit=4, read_from="slave")
    reader = threading.Thread(target=lambda: found.extend(numbers(read)))
    reader.start()
    try:
        cluster.wait_parked("n3", 4)
    finally:
        with Client(cluster.nodes["n1"].address) as sender:
            for queue in range(4):
                sender.send("orders", b"1", queue=queue)
        cluster.close()
        reader.join(60)
    assert (found, len(met)) == ([1, 1, 1, 1], 1)


def test_an_answer_with_a_bad_record(filled: Client, cluster: FakeCluster) -> None:
    """A body that does not match its CRC ends the reader; nothing of it is handed out."""
    stored = cluster.queues["orders", 0]
    stored[3] = stored[3].replace(b"03", b"99")
    with pytest.raises(CorruptionError):
        list(filled.read("orders", queue=0))


@given(
    st.lists(
        st.builds(
            record.encode,
            st.sampled_from(["t", "täglich", "x" * 200]),
            st.integers(0, 9),
            st.binary(max_size=40),
            queue_offset=st.integers(0, 2**60),
            log_offset=st.integers(0, 2**60),
            properties=st.sampled_from([{}, {"KEYS": "a b", "TAGS": "x"}, {"p": "ü"}]),
            flag=st.integers(0, 9),
            born_timestamp=st.integers(0, 2**50),
            store_timestamp=st.integers(0, 2**50),
            born_host=st.sampled_from([("127.0.0.1", 1), ("::1", 2)]),
            store_host=st.sampled_from([("10.0.0.1", 3), ("fe80::1", 4)]),
            reconsume_times=st.integers(0, 9),
            prepared=st.integers(0, 9),
        ),
        max_size=5,
    )
)
def test_messages_are_what_the_records_say(records: list[bytes]) -> None:
    """The quick way from bytes to messages gives what the record codec gives."""
    wanted = [record.decode(data) for data in records]
    found = messages_of(b"".join(records))
    assert [message.record for message in found] == wanted
    for message, stored in zip(found, wanted, strict=True):
        assert (message.topic, message.body, message.key) == (stored.topic, stored.body, stored.key)
        assert (message.queue, message.queue_offset) == (stored.queue, stored.queue_offset)
        assert (message.tag, message.properties) == (stored.tag, stored.properties)
        assert message.born_timestamp == stored.born_timestamp
        assert message.store_timestamp == stored.store_timestamp
        assert message.log_offset == stored.log_offset
        with pytest.raises(AttributeError):
            message.queue = 1  # type: ignore[misc]


@pytest.mark.parametrize("tail", [b"\0", bytes(100), b"\0\0\0\x08\xcb\xd4\x31\x94"])
def test_payloads_that_are_no_records(tail: bytes) -> None:
    """A cut record, zeros, a blank: damage, never messages."""
    with pytest.raises(CorruptionError):
        messages_of(record.encode("t", 0, b"x") + tail)


@pytest.mark.parametrize(
    ("bits", "packed"),
    [
        (0x001, zlib.compress(b"body" * 99)),
        (0x301, zlib.compress(b"body" * 99)),
        (0x101, lz4.frame.compress(b"body" * 99)),
        (0x201, zstandard.compress(b"body" * 99)),
    ],
)
def test_compressed_bodies(bits: int, packed: bytes) -> None:
    """What RocketMQ's producers compress is read as it was."""
    (message,) = messages_of(record.encode("t", 0, packed, sys_flag=bits))
    assert message.body == b"body" * 99
    assert message.record.body == packed


def test_bodies_that_do_not_decompress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken, cut, endless or of an unknown kind: an error that says so, never a wrong body."""
    packed = zlib.compress(b"body" * 99)
    for kind, body in ((0, b"no"), (0, packed[:-5]), (0x100, b"no"), (0x200, b"no")):
        with pytest.raises(Corrupt):
            decompress(body, kind)
    with monkeypatch.context() as small:
        small.setattr("twinlog.format.compression.BODY_MAX", 1000)
        for kind, body in enumerate((zlib.compress, lz4.frame.compress, zstandard.compress)):
            assert decompress(body(bytes(1000)), kind << 8) == bytes(1000)
            with pytest.raises(Corrupt, match="more than 1000"):
                decompress(body(bytes(1001)), kind << 8)
    with pytest.raises(UsageError, match="0x500"):
        decompress(b"", 0x500)
    monkeypatch.setitem(__import__("sys").modules, "lz4.frame", None)
    with pytest.raises(UsageError) as caught:
        decompress(b"", 0x100)
    assert "twinlog[compression]" in str(caught.value.hint)


@pytest.mark.parametrize(
    "text",
    ["", ",", ":7410", "host:port", "host:0", "host:70000", "[::1", "h:\u0663", "h:" + "9" * 5000],
)
def test_addresses_that_are_none(text: str) -> None:
    """A mistake in the endpoints is told before anything is asked."""
    with pytest.raises(UsageError):
        parse_endpoints(text)

"""The blocking client against nodes that fail in every way a node can."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading

import anyio
import pytest

from tests.fakes.clock import Clock
from tests.fakes.node import Arrived, Drop, FakeCluster, Keep, dropping
from twinlog import Client
from twinlog.errors import (
    NotEnoughInSync,
    OutcomeUnknown,
    RecordRefused,
    Unavailable,
    UnknownTopic,
    UsageError,
)
from twinlog.producer import blocking
from twinlog.session.aio_connection import AsyncConnection
from twinlog.session.connection import Connection
from twinlog.session.routing import Address
from twinlog.session.session import LinkDown
from twinlog.wire.frames import Frame, Type


def appends(cluster: FakeCluster) -> list[Frame]:
    """Return all APPEND requests of all nodes, node by node."""
    return [f for node in cluster.nodes.values() for f in node.seen if f.type == Type.APPEND]


def test_a_send_tells_where_the_record_is(client: Client, cluster: FakeCluster) -> None:
    """Receipt, key, tag, properties and body come back by read and by get."""
    receipt = client.send(
        "orders", b'{"id": 42}', key="42", tag="paid", properties={"from": "web"}, queue=3
    )
    assert (receipt.address, receipt.epoch, receipt.confirmed_by) == ("orders/3@0", 7, ("n1", "n9"))
    for message in (client.get(receipt.address), client.get(f"log@{receipt.log_offset}")):
        assert (message.body, message.key, message.tag) == (b'{"id": 42}', "42", "paid")
        assert message.properties["from"] == "web"
        assert (message.queue, message.queue_offset, message.next) == (3, 0, 1)
    assert client.get(message.record.message_id).body == message.body


def test_messages_are_found_by_key(client: Client, cluster: FakeCluster) -> None:
    """Newest first, page after page, as many as wanted, from the node that was asked for."""
    for number in range(7):
        client.send("orders", b"%d" % number, key=f"k even{number % 2}", queue=number % 4)
    found = client.find("orders", "k")
    assert [message.body for message in found] == [b"%d" % n for n in reversed(range(7))]
    assert (len(found), found.complete, found.node, found.age_ms) == (7, True, "n1", 20)
    assert [m.body for m in client.find("orders", "even1", most=2)] == [b"5", b"3"]
    assert client.find("orders", "K").messages == ()
    assert client.find("orders", "k", read_from="slave").node in ("n2", "n3")
    assert client.find("orders", "k", read_from="n3", end=1).messages == ()
    with pytest.raises(UnknownTopic):
        client.find("nowhere", "k")
    for odd in ({"key": ""}, {"key": "a b"}, {"key": "k", "most": 0}, {"key": "k", "end": -1}):
        with pytest.raises(UsageError):
            client.find("orders", **odd)  # type: ignore[arg-type]


def test_an_id_of_another_store_is_no_address(client: Client, cluster: FakeCluster) -> None:
    """The log offset fits, the host does not: refused, with whom the record is from."""
    client.send("orders", b"x")
    with pytest.raises(UsageError) as caught:
        client.get("0A00000100002A9F" + "0" * 16)
    assert caught.value.code == "other-host"
    assert "127.0.0.1:7410" in caught.value.text
    assert caught.value.hint is not None


def test_queue_choice(client: Client, cluster: FakeCluster) -> None:
    """Without order_key sections take turns; with it one queue has them all; key never chooses."""
    turns = [client.send("orders", b"x", key="same").queue for _ in range(4)]
    assert sorted(turns) == [0, 1, 2, 3]
    # "a".hashCode() is 97; that of the long word is the least of all, which abs leaves as it is
    assert {client.send("orders", b"x", order_key="a").queue for _ in range(3)} == {1}
    assert client.send("orders", b"x", order_key="polygenelubricants").queue == 0
    with pytest.raises(RecordRefused, match="queues 0 to 3"):
        client.send("orders", b"x", queue=4)


def test_a_slave_names_the_master(cluster: FakeCluster) -> None:
    """A client that knows only a slave finds the master, and asks it alone from then on."""
    with Client(cluster.nodes["n3"].address) as client:
        client.send("orders", b"x")
        client.send("orders", b"y")
    assert cluster.nodes["n1"].count(Type.APPEND) == 2
    assert cluster.nodes["n3"].count(Type.APPEND) == 0


def test_a_write_survives_a_change_of_master(client: Client, cluster: FakeCluster) -> None:
    """The old master answers "not master" and names the new one: the same section goes there."""
    client.send("orders", b"before", queue=0)
    with cluster.lock:
        cluster.leader, cluster.epoch = "n2", 8
    assert client.send("orders", b"after", queue=0).epoch == 8
    assert cluster.bodies()[0] == [b"before", b"after"]
    tried = [frame.fields["sections"] for frame in appends(cluster)][1:]
    assert tried[0] == tried[1]


def test_a_dead_master_is_waited_for(client: Client, cluster: FakeCluster) -> None:
    """Between the death of a master and the next one a send waits and then succeeds."""
    client.send("orders", b"before", queue=0)
    cluster.nodes["n1"].close()
    seen = threading.Event()

    def notice(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.METADATA:
            seen.set()
        return False

    cluster.nodes["n2"].faults.append(notice)

    def elect() -> None:
        assert seen.wait(60)
        with cluster.lock:
            cluster.leader, cluster.epoch = "n3", 8

    thread = threading.Thread(target=elect)
    thread.start()
    receipt = client.send("orders", b"after", queue=0)
    thread.join()
    assert (receipt.queue_offset, receipt.epoch) == (1, 8)


def test_a_lost_answer_is_asked_for_again(client: Client, cluster: FakeCluster) -> None:
    """Stored, but the answer never came: the retry is the same section and stored once."""
    client.send("orders", b"first", queue=0)
    node, met = cluster.nodes["n1"], list[Frame]()

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.APPEND and not met:
            met.append(arrived.frame)
            arrived.send = lambda frame: None
            arrived.serve()
            raise Drop
        return False

    node.faults.append(fault)
    receipt = client.send("orders", b"second", queue=0)
    assert receipt.queue_offset == 1
    assert cluster.bodies()[0] == [b"first", b"second"]
    one, two = appends(cluster)[1:]
    assert (one.fields["sections"], one.payload) == (two.fields["sections"], two.payload)


def test_an_answer_cut_in_the_middle_is_no_answer(client: Client, cluster: FakeCluster) -> None:
    """Half an answer and the end of the connection: the section goes again."""
    client.send("orders", b"first", queue=0)
    met: list[Frame] = []

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.APPEND and not met:
            met.append(arrived.frame)
            arrived.cut(20)
            raise Drop
        return False

    cluster.nodes["n1"].faults.append(fault)
    assert client.send("orders", b"second", queue=0).queue_offset == 1
    assert cluster.bodies()[0] == [b"first", b"second"]


def test_no_answer_in_time_is_unknown(
    client: Client, cluster: FakeCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was received and never answered may be stored; nothing else is said."""
    client.send("orders", b"first", queue=0)

    def silent(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.APPEND:
            raise Keep
        return False

    monkeypatch.setattr(blocking, "PATIENCE_SECONDS", 0.01)
    cluster.nodes["n1"].faults.append(clock.passing(Type.APPEND, silent))
    with pytest.raises(OutcomeUnknown) as caught:
        client.send("orders", b"second", queue=0, timeout=60.0)
    assert caught.value.hint
    cluster.nodes["n1"].faults.clear()
    assert client.send("orders", b"third", queue=0).queue_offset == 1
    row = appends(cluster)[-1].fields["sections"]
    assert isinstance(row, list)
    assert row[0][5:] == [1, 0], "a new producer epoch fences the lost section"


def test_a_master_that_falls_silent_is_doubted(
    client: Client, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused master keeps its connections: the others are asked, and the newer epoch counts."""
    monkeypatch.setattr(blocking, "PATIENCE_SECONDS", 0.05)
    client.send("orders", b"before", queue=0)

    def silent(arrived: Arrived) -> bool:
        with cluster.lock:
            cluster.leader, cluster.epoch = "n3", 8
        raise Keep

    cluster.nodes["n1"].faults.append(silent)
    receipt = client.send("orders", b"after", queue=0)
    assert (receipt.queue_offset, receipt.epoch) == (1, 8)


def test_a_refusal_for_now_is_retried_until_the_deadline(
    client: Client, cluster: FakeCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few nodes in sync: tried again, then not stored, with the node's own reason."""
    clock.jumps = True
    client.send("orders", b"first", queue=0)
    refused: list[Arrived] = []

    def refuse(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.APPEND:
            return False
        refused.append(arrived)
        if len(refused) == 3:  # the deadline passes in the pause behind it, never in an attempt
            monkeypatch.setattr("twinlog.session.session.BACKOFF_FIRST", 3600.0)
            monkeypatch.setattr("twinlog.session.session.BACKOFF_MAX", 3600.0)
        arrived.refuse("not-enough-in-sync", "1 of 2 in sync", retryable=True)
        return True

    cluster.nodes["n1"].faults.append(refuse)
    with pytest.raises(Unavailable, match="in time: 1 of 2 in sync"):
        client.send("orders", b"second", queue=0, timeout=60.0)
    assert len(refused) == 3
    cluster.nodes["n1"].faults.clear()
    clock.jump(3600.0)  # the pause is over
    assert client.send("orders", b"third", queue=0).queue_offset == 1
    assert NotEnoughInSync.default_retryable


def test_final_refusals_come_at_once(client: Client, cluster: FakeCluster) -> None:
    """An unknown topic and a body that is too large are not tried again, and say what to do."""
    with pytest.raises(UnknownTopic) as caught:
        client.send("nothing", b"x")
    assert "topic create nothing" in str(caught.value.hint)
    with pytest.raises(RecordRefused, match="at most 4194304 fit"):
        client.send("orders", bytes((4 << 20) + 1))
    assert not appends(cluster)
    with pytest.raises(UsageError, match="no acknowledgement 'all'"):
        client.send("orders", b"x", acknowledge="all")


def test_answers_may_come_in_any_order(client: Client, cluster: FakeCluster) -> None:
    """A producer's sections are answered last first; each gets its own place."""
    node = cluster.nodes["n1"]

    def keep(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.APPEND:
            return False
        node.kept.append(arrived)
        if len(node.kept) == 4:
            answers: list[tuple[Arrived, Frame]] = []
            for each in node.kept:
                send = each.send
                each.send = lambda frame, each=each: answers.append((each, frame))  # type: ignore[misc]
                each.serve()
                each.send = send
            for each, frame in reversed(answers):
                each.send(frame)
        return True

    with client.producer("orders", batch=1) as producer:
        node.faults.append(keep)
        sections = [producer.send(b"%d" % n) for n in range(4)]
        producer.flush()
    assert [section.receipt().address for section in sections] == [
        f"orders/{n}@0" for n in range(4)
    ]


def test_a_producer_keeps_order_through_lost_connections(
    client: Client, cluster: FakeCluster
) -> None:
    """Connections break again and again; every record is there once, in the order of sending."""
    counter = [0]

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.APPEND:
            return False
        counter[0] += 1
        if counter[0] in (3, 4, 9, 15):
            if counter[0] in (4, 15):
                arrived.send = lambda frame: None
                arrived.serve()
            raise Drop
        return False

    cluster.nodes["n1"].faults.append(fault)
    with client.producer("orders", batch=400) as producer:
        for number in range(100):
            producer.send(b"%03d" % number, order_key="a")
    found = [bodies for bodies in cluster.bodies() if bodies]
    assert found == [[b"%03d" % number for number in range(100)]]
    assert producer.statistics().resent > 0
    assert producer.statistics().acknowledged == 100


def test_flush_raises_the_first_error(client: Client, cluster: FakeCluster) -> None:
    """What was refused is said at flush, once, and the other sections are stored."""
    met: list[int] = []

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.APPEND and not met:
            met.append(1)
            arrived.answer(
                {
                    "results": [[2, -1, -1, 0, "record-refused", "a bad record", 0]],
                    "confirmed_by": [],
                    "epoch": 7,
                }
            )
            return True
        return False

    cluster.nodes["n1"].faults.append(fault)
    producer = client.producer("orders", batch=1)
    bad = producer.send(b"bad", queue=0)
    good = producer.send(b"good", queue=0)
    with pytest.raises(RecordRefused, match="a bad record"):
        producer.flush()
    producer.flush()
    producer.close()
    assert good.receipt().queue_offset == 0
    with pytest.raises(RecordRefused):
        bad.receipt()
    assert cluster.bodies()[0] == [b"good"]


def test_a_closed_producer_takes_nothing(client: Client) -> None:
    """Neither before nor after its first record; a closed client opens new connections."""
    with client.producer("orders") as producer:
        producer.send(b"x")
    for closed in (producer, client.producer("orders")):
        closed.close()
        with pytest.raises(UsageError, match="closed"):
            closed.send(b"y")
        closed.flush()
    client.send("orders", b"z", queue=0)
    client.close()
    assert client.send("orders", b"z", queue=0).queue_offset >= 1


def test_a_producer_waits_when_too_much_is_unanswered(client: Client, cluster: FakeCluster) -> None:
    """The caller is held up instead of a growing queue, and goes on when answers come."""
    node, looked = cluster.nodes["n1"], threading.Event()

    def keep(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.APPEND:
            return False
        node.kept.append(arrived)
        if len(node.kept) == 5:
            for kept in node.kept:
                kept.serve()
        elif len(node.kept) == 20:
            assert looked.wait(60)
            arrived.serve()
        elif len(node.kept) > 5:
            arrived.serve()
        return True

    with client.producer("orders", batch=1) as producer:
        node.faults.append(keep)
        for number in range(20):
            producer.send(b"%02d" % number, queue=0)
        with pytest.raises(Unavailable):
            producer.flush(0.0)
        looked.set()
    assert cluster.bodies()[0] == [b"%02d" % number for number in range(20)]


@pytest.mark.usefixtures("long_pauses")
def test_nobody_there(cluster: FakeCluster) -> None:
    """No node answers before the deadline: not done, and the addresses are named."""
    address = cluster.nodes["n1"].address
    cluster.close()
    cluster.nodes.clear()
    with Client(address, timeout=60.0) as client, pytest.raises(Unavailable, match=address):
        client.topics()


@pytest.mark.usefixtures("long_pauses")
def test_the_first_send_has_one_deadline_too(cluster: FakeCluster, clock: Clock) -> None:
    """What is asked before the first record counts for the time that the call was given."""
    address = cluster.nodes["n1"].address
    cluster.leader = None
    with Client(address, timeout=36000.0) as client:
        began = clock.monotonic()
        with pytest.raises(Unavailable, match="no master at epoch 7"):
            client.send("orders", b"x", timeout=60.0)
        assert clock.monotonic() - began < 200.0


def test_a_caller_may_take_its_time(
    client: Client, cluster: FakeCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that goes while the caller is busy is replaced: its minutes are not the nodes'."""
    monkeypatch.setattr("twinlog.consumer.core.ANSWER_RECORDS", 2)
    for number in range(8):
        client.send("orders", b"%d" % number, queue=0)
    cluster.nodes["n2"].faults.append(dropping(Type.READ, 2))
    found: list[int] = []
    for message in client.read("orders", queue=0, read_from="slave"):
        found.append(int(message.body))
        if len(found) == 2:
            clock.jump(3600.0)
    assert found == list(range(8))
    assert cluster.nodes["n3"].count(Type.READ) > 0


@pytest.mark.usefixtures("long_pauses")
def test_a_peer_that_is_no_node(client: Client, cluster: FakeCluster) -> None:
    """A web server at the address is named as one; the other endpoint is asked."""
    cluster.nodes["n1"].greeting = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with cluster.lock:
        cluster.leader = "n2"
    assert client.topics() == {"orders": 4}
    with (
        Client(cluster.nodes["n1"].address, timeout=60.0) as lost,
        pytest.raises(Unavailable, match="speaks HTTP"),
    ):
        lost.topics()


def test_topics(client: Client) -> None:
    """Created once; again is no error; with other queues it is."""
    assert client.create_topic("events", 2) is True
    assert client.create_topic("events", 2) is False
    assert client.topics() == {"events": 2, "orders": 4}
    with pytest.raises(UsageError, match="exists with 2 queues, not 3"):
        client.create_topic("events", 3)
    assert client.metadata().leader == "n1"


def test_a_named_node_is_asked_once(client: Client, cluster: FakeCluster) -> None:
    """Nobody answers for another; a node that is down is no mistake of the caller's."""
    assert client.call("n3", Type.METADATA).fields["leader"] == "n1"
    with pytest.raises(UsageError, match="no node n9"):
        client.call("n9", Type.METADATA)
    cluster.nodes["n3"].close()
    with pytest.raises(Unavailable, match="n3"):
        client.call("n3", Type.METADATA)

    def silent(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.ADMIN:
            raise Drop
        return False

    cluster.nodes["n2"].faults.append(silent)
    with pytest.raises(OutcomeUnknown):
        client.call("n2", Type.ADMIN, {"op": "stop"}, repeat=False)


def test_settings_can_be_pickled(client: Client) -> None:
    """A copy opens connections of its own."""
    with pickle.loads(pickle.dumps(client)) as copy:
        assert copy.topics() == {"orders": 4}


def test_importing_is_cheap() -> None:
    """Neither the package nor the blocking client loads an event loop or the server."""
    script = (
        "import sys, twinlog; twinlog.Client('127.0.0.1:1'); "
        "print(sorted({'anyio', 'trio', 'asyncio', 'pydantic', 'numpy'} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("[]\n", "")


def test_a_missing_extra_is_named() -> None:
    """Without anyio the awaiting client says what to install; everything else works."""
    script = (
        "import sys; sys.modules['anyio'] = None; import twinlog; twinlog.Client; "
        "twinlog.OutcomeUnknown; hasattr(twinlog, 'nothing')\n"
        "try: twinlog.AsyncClient\n"
        "except ImportError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (
        run.stdout == "AsyncClient needs anyio, which is an extra: pip install 'twinlog[async]'\n"
    )
    assert run.stderr == ""


@pytest.mark.parametrize("address", [("\0", 7410), ("x" * 99 + ".", 7410), ("127.0.0.1", 70_000)])
def test_what_is_no_address_is_a_node_that_cannot_be_reached(address: tuple[str, int]) -> None:
    """A route comes from the nodes; one odd entry of it must not end the client's call."""
    with pytest.raises(LinkDown, match=r"not an address|cannot be reached") as caught:
        Connection(Address(*address), client="test")
    assert not caught.value.sent

    async def awaiting() -> None:
        with pytest.raises(LinkDown, match=r"not an address|cannot be reached") as caught:
            await AsyncConnection.connect(Address(*address), client="test")
        assert not caught.value.sent

    anyio.run(awaiting)

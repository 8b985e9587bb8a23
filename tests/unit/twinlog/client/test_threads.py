"""One client in many threads; one producer in two."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fakes.node import Arrived, FakeCluster, FakeNode, Keep
from twinlog import Client
from twinlog.errors import Unavailable, UsageError
from twinlog.wire.frames import Type

THREADS, EACH = 8, 15
TOPICS = ["orders", "t1", "t2"]


def first_append_held(cluster: FakeCluster) -> tuple[threading.Event, FakeNode]:
    """Have the master keep the first append unanswered; the event says that it came."""
    came, master = threading.Event(), cluster.nodes["n1"]

    def hold(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.APPEND or came.is_set():
            return False
        came.set()
        raise Keep

    master.faults.append(hold)
    return came, master


@pytest.fixture(autouse=True)
def topics(cluster: FakeCluster) -> None:
    """Three topics."""
    cluster.topics.update(dict.fromkeys(TOPICS, 4))


def test_threads_send_ask_and_read_side_by_side(client: Client, cluster: FakeCluster) -> None:
    """Everything is stored once, each thread's messages in its order."""
    together = threading.Barrier(THREADS)

    def work(thread: int) -> None:
        together.wait(60)
        for number in range(EACH):
            topic = TOPICS[number % len(TOPICS)]
            receipt = client.send(topic, b"%d.%d" % (thread, number), order_key=str(thread))
            assert client.metadata().leader == "n1"
            assert client.get(f"log@{receipt.log_offset}").body == b"%d.%d" % (thread, number)
            next(client.read(topic, queue=receipt.queue)).body  # noqa: B018

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, thread) for thread in range(THREADS)]:
            done.result(120)
    for topic in TOPICS:
        found = [body for bodies in cluster.bodies(topic) for body in bodies]
        assert len(found) == len(set(found)) == THREADS * EACH // len(TOPICS)
        for thread in range(THREADS):
            own = [body for body in found if body.startswith(b"%d." % thread)]
            assert own == sorted(own, key=lambda body: int(body.partition(b".")[2]))


def test_a_sender_in_use_is_not_closed_for_another_topic(
    client: Client, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is kept, two are used at once: neither message is lost."""
    monkeypatch.setattr("twinlog.producer.single_sends.SENDERS_MAX", 1)
    came, master = first_append_held(cluster)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.send, "t1", b"held")
        assert came.wait(60)
        assert client.send("t2", b"other").queue_offset == 0
        with cluster.lock:
            master.serve(master.kept.pop())
        assert first.result(60).queue_offset == 0


def test_a_turn_that_does_not_come_in_time_is_not_sent(
    client: Client, cluster: FakeCluster
) -> None:
    """The caller is told that nothing was sent, which is a fact."""
    came, master = first_append_held(cluster)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.send, "t1", b"held")
        assert came.wait(60)
        with pytest.raises(Unavailable, match="nothing was sent"):
            client.send("t1", b"late", timeout=0.05)
        with cluster.lock:
            master.serve(master.kept.pop())
        assert first.result(60).queue_offset == 0
    assert [body for bodies in cluster.bodies("t1") for body in bodies] == [b"held"]


def test_a_producer_refuses_a_second_thread(client: Client, cluster: FakeCluster) -> None:
    """It says so, instead of mixing up two callers' records."""
    came, master = first_append_held(cluster)
    producer = client.producer("orders")
    producer.send(b"one")

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(producer.flush)
        assert came.wait(60)
        with pytest.raises(UsageError, match="two threads use one producer"):
            producer.flush()
        with cluster.lock:
            master.serve(master.kept.pop())
        first.result(60)
    producer.close()


def test_a_producer_takes_no_record_of_a_second_thread(
    client: Client, cluster: FakeCluster
) -> None:
    """A record that is refused is known to be not taken; all that were taken are stored once."""
    producer = client.producer("orders", linger=0)
    together = threading.Barrier(THREADS)
    hints: set[str | None] = set()

    def work(thread: int) -> int:
        taken = 0
        together.wait(60)
        for number in range(300):
            try:
                producer.send(b"%d.%d" % (thread, number))
            except UsageError as error:
                hints.add(error.hint)
            else:
                taken += 1
        return taken

    with ThreadPoolExecutor(THREADS) as pool:
        taken = sum(done.result(120) for done in [pool.submit(work, n) for n in range(THREADS)])
    producer.flush()
    producer.close()
    stored = [body for bodies in cluster.bodies("orders") for body in bodies]
    assert len(stored) == len(set(stored)) == taken
    assert hints <= {"make one producer for each thread: client.producer(topic)"}


def test_a_read_in_use_refuses_a_second_thread(client: Client, cluster: FakeCluster) -> None:
    """Both ways of asking for the next message say so."""
    client.send("orders", b"one", queue=0)
    asked, master = threading.Event(), cluster.nodes["n1"]

    def hold(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.READ or asked.is_set():
            return False
        asked.set()
        raise Keep

    for node in cluster.nodes.values():
        node.faults.append(hold)
    messages = client.read("orders", queue=0, read_from="master")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, messages)
        assert asked.wait(60)
        with pytest.raises(UsageError, match="two threads use one read"):
            next(messages)
        with pytest.raises(UsageError, match="two threads use one read"):
            iter(messages)
        with cluster.lock:
            master.serve(master.kept.pop())
        assert first.result(60).body == b"one"


@pytest.mark.parametrize("key", [42, b"42"])
def test_a_key_of_another_type_is_named(client: Client, key: object) -> None:
    """Sending and searching say the same."""
    with pytest.raises(UsageError, match=r"^key must be text, not ") as sent:
        client.send("orders", b"x", key=key)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^key must be text, not ") as searched:
        client.find("orders", key)  # type: ignore[arg-type]
    assert sent.value.hint == searched.value.hint == ("write '42'" if key == 42 else None)


def test_a_topic_of_another_type_is_named(client: Client) -> None:
    """Before a node is asked."""
    for use in (
        lambda: client.send(42, b"x"),  # type: ignore[arg-type]
        lambda: client.read(42),  # type: ignore[arg-type]
        lambda: client.offsets(42),  # type: ignore[arg-type]
        lambda: client.find(42, "k"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError, match=r"^topic must be text, not int"):
            use()

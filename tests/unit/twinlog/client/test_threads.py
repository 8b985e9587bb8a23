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

"""Reading ahead: what is under way while a task decodes, and that only good answers count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fakes.node import Arrived, Drop, FakeCluster, Keep
from twinlog import Client
from twinlog.client.blocking import caller_of
from twinlog.session.caller import Ahead, Caller
from twinlog.spark.nodes import nodes
from twinlog.spark.source import cluster
from twinlog.spark.source.cluster import ClusterTask
from twinlog.spark.source.queries import batch_query, read_any
from twinlog.wire.frames import Frame, Type

ROWS, EACH, QUEUES = 24, 2, 4
EVERYTHING = sorted((number % QUEUES, number // QUEUES) for number in range(ROWS))
ANSWERS = ROWS // EACH
AHEAD = 3
"""The number of the first READ that is sent ahead: how quick a task is shows with its second."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Three nodes; each answer holds two of six rows of a queue."""
    monkeypatch.setattr(cluster, "READ_RECORDS", EACH)
    monkeypatch.setattr(nodes, "AHEAD_SECONDS", 60.0)  # however loaded the machine is
    found = FakeCluster()
    for name in ("n1", "n2", "n3"):
        found.add_node(name)
    try:
        with Client(found.nodes["n1"].address) as client:
            for number in range(ROWS):
                client.send("orders", b"%d" % number, queue=number % QUEUES)
        yield found
    finally:
        found.close()


def task_of(made: FakeCluster, **options: str) -> ClusterTask:
    servers = made.servers
    given = {"servers": servers, "subscribe": "orders", "maxStaleness": "0", **options}
    (task,) = batch_query(given).tasks(0)
    assert isinstance(task, ClusterTask)
    return task


def rows(batches: Iterator[Any]) -> list[tuple[int, int]]:
    return sorted(
        (row["queue_id"], row["queue_offset"])
        for batch in batches
        for row in batch.select(["queue_id", "queue_offset"]).to_pylist()
    )


class Asked:
    """The READs of a cluster; ``third`` deals with the first one that was sent ahead."""

    def __init__(self, made: FakeCluster, third: Callable[[Arrived], bool] | None = None) -> None:
        self.of: list[tuple[str, object, object]] = []
        self._third = third
        self._more = threading.Condition()
        for node in made.nodes.values():
            node.faults.append(self._fault)

    def _fault(self, arrived: Arrived) -> bool:
        if arrived.frame.type != Type.READ:
            return False
        fields = arrived.frame.fields
        with self._more:
            self.of.append((arrived.node.name, fields["queue"], fields["offset"]))
            self._more.notify_all()
            ahead = len(self.of) == AHEAD and self._third is not None
        return ahead and self._third is not None and self._third(arrived)

    def wait(self, count: int) -> None:
        """Wait until so many came."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.of) >= count, 60), f"{self.of}, not {count}"


def test_the_next_answer_is_under_way_while_rows_are_handed_out(made: FakeCluster) -> None:
    task = task_of(made)
    asked = Asked(made)
    batches = read_any(task)
    found: list[Any] = []
    for number in range(1, ANSWERS):
        found.append(next(batches))
        asked.wait(number + (number > 1))  # of the next queue, too
    assert rows(iter([*found, *batches])) == EVERYTHING
    assert len(asked.of) == ANSWERS, "nothing is asked twice"


def busy(arrived: Arrived) -> bool:
    arrived.refuse("busy", retryable=True)
    return True


def refused(arrived: Arrived) -> bool:
    if arrived.frame.type == Type.READ:
        arrived.refuse("stopping")
    return arrived.frame.type == Type.READ


def broken(_: Arrived) -> bool:
    raise Drop


def lagging(arrived: Arrived) -> bool:
    arrived.node.behind |= {0}
    arrived.serve()
    arrived.node.behind.clear()
    return True


def of_an_older_epoch(arrived: Arrived) -> bool:
    send = arrived.send

    def older(frame: Any) -> None:
        frame.epoch = 1
        send(frame)

    arrived.send = older
    arrived.serve()
    return True


@pytest.mark.parametrize("fault", [busy, broken, lagging, of_an_older_epoch])
def test_what_is_not_good_is_asked_again_of_the_same_node(
    made: FakeCluster, fault: Callable[[Arrived], bool]
) -> None:
    """As if it had not been asked ahead: the only node, and no time to wait for it."""
    task = task_of(made, readFrom="n2")
    asked = Asked(made, fault)
    assert rows(read_any(task)) == EVERYTHING
    assert asked.of[AHEAD - 1] == asked.of[AHEAD] == ("n2", 0, EACH * (AHEAD - 1))
    assert len(asked.of) == ANSWERS + 1


def test_a_node_that_does_not_answer_is_waited_for_once(
    made: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, patience = Caller.finish, iter([0.1])

    def silent(_: Arrived) -> bool:
        raise Keep

    def finished(caller: Caller, ahead: Ahead, *, timeout: float) -> Frame | None:
        return finish(caller, ahead, timeout=next(patience, timeout))

    monkeypatch.setattr(Caller, "finish", finished)

    task = task_of(made)
    asked = Asked(made, silent)
    assert rows(read_any(task)) == EVERYTHING
    assert next(patience, None) is None
    place = 0, EACH * (AHEAD - 1)
    assert asked.of[AHEAD - 1 : AHEAD + 1] == [("n2", *place), ("n3", *place)]


def test_a_slow_task_asks_for_nothing_ahead(
    made: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "AHEAD_SECONDS", 0.0)
    monkeypatch.setattr(Caller, "begin", None)
    assert rows(read_any(task_of(made))) == EVERYTHING


def test_nothing_is_asked_ahead_of_a_node_that_is_passed_over(
    made: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(made)
    asked = Asked(made)
    made.nodes["n2"].faults.append(refused)
    monkeypatch.setattr(Caller, "begin", None)
    assert rows(read_any(task)) == EVERYTHING
    assert {name for name, _, _ in asked.of} == {"n2", "n3"}


def test_an_answer_that_is_not_wanted_is_dropped(made: FakeCluster) -> None:
    fields = cluster.read_fields("orders", 0, 0, EACH)
    with Client(made.nodes["n2"].address) as client:
        caller = caller_of(client)
        assert caller.begin("n2", Type.READ, fields, timeout=60) is None, "nothing is open"
        client.metadata()
        dropped = caller.begin("n2", Type.READ, fields, timeout=60)
        taken = caller.begin("n2", Type.READ, fields, timeout=60)
        assert dropped is not None and taken is not None
        assert caller.finish(dropped, timeout=60) is None
        answer = caller.finish(taken, timeout=60)
        assert answer is not None and answer.fields["count"] == EACH
        late = caller.begin("n2", Type.READ, fields, timeout=60)
        assert late is not None
        assert client.call("n2", Type.METADATA, {}).fields["leader"] == "n1"
        assert caller.finish(late, timeout=60) is None


def test_a_task_that_ends_early_closes_its_connections(made: FakeCluster) -> None:
    asked = Asked(made)
    batches = read_any(task_of(made))
    for _ in range(AHEAD):
        next(batches)
    asked.wait(AHEAD + 1)
    batches.close()

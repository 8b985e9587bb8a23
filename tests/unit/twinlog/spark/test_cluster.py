"""The live source against nodes in threads: who is asked, what lags, what is gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.clock import Clock
from tests.fakes.node import Drop, FakeCluster
from twinlog import Client
from twinlog.format import record
from twinlog.spark.errors import DataLossError, SourceError, SourceUnavailable
from twinlog.spark.plan.stream import Limit
from twinlog.spark.source.cluster import ClusterTask
from twinlog.spark.source.queries import batch_query, read_any, stream_query
from twinlog.wire.frames import Type

ROWS = 40


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Three nodes, n1 is master, forty records in four queues."""
    made = FakeCluster()
    for name in ("n1", "n2", "n3"):
        made.add_node(name)
    try:
        with Client(made.servers) as client:
            for number in range(ROWS):
                client.send("orders", b"%d" % number, tag="ab"[number % 2], queue=number % 4)
        yield made
    finally:
        made.close()


def tasks_of(made: FakeCluster, **options: str) -> list[ClusterTask]:
    given = {"servers": made.servers, "subscribe": "orders", "maxStaleness": "0", **options}
    found = [task for task in batch_query(given).tasks(0) if isinstance(task, ClusterTask)]
    assert found
    return found


def rows(tasks: list[ClusterTask]) -> list[tuple[int, int]]:
    return sorted(
        (row["queue_id"], row["queue_offset"])
        for task in tasks
        for batch in read_any(task)
        for row in batch.select(["queue_id", "queue_offset"]).to_pylist()
    )


EVERYTHING = sorted((number % 4, number // 4) for number in range(ROWS))


def reads(made: FakeCluster) -> dict[str, int]:
    """Count the READs that each node gets from now on."""
    counts = dict.fromkeys(made.nodes, 0)

    def count(name: str) -> Any:
        def fault(arrived: Any) -> None:
            counts[name] += arrived.frame.type == Type.READ

        return fault

    for name, node in made.nodes.items():
        node.faults.append(count(name))
    return counts


def test_every_row_once_whatever_the_splits(cluster: FakeCluster) -> None:
    for options in ({}, {"splitBytes": "1"}, {"minPartitions": "3"}, {"batchRows": "2"}):
        assert rows(tasks_of(cluster, **options)) == EVERYTHING
    assert len(tasks_of(cluster, minPartitions="3")) == 3


def test_slaves_are_asked_and_share_the_work(cluster: FakeCluster) -> None:
    tasks = tasks_of(cluster, minPartitions="4")
    counts = reads(cluster)
    assert rows(tasks) == EVERYTHING
    assert counts["n1"] == 0
    assert counts["n2"] == counts["n3"] > 0
    master = tasks_of(cluster, readFrom="master")
    counts = reads(cluster)
    rows(master)
    assert (counts["n2"], counts["n3"]) == (0, 0) and counts["n1"] > 0


def test_a_lagging_slave_is_passed_over(cluster: FakeCluster) -> None:
    """It ends below what was pinned; another node, or the master, has it."""
    tasks = tasks_of(cluster)
    cluster.nodes["n2"].behind |= {0, 1, 2, 3}
    assert rows(tasks) == EVERYTHING
    cluster.nodes["n3"].behind |= {0, 1, 2, 3}
    assert rows(tasks) == EVERYTHING


@pytest.mark.parametrize("comes", [True, False])
def test_a_master_that_has_just_begun_is_waited_for(
    cluster: FakeCluster, comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acknowledged before is shown; one that never comes to know it is taken as it is."""
    clock = Clock()
    monkeypatch.setattr(clock, "monotonic", lambda: clock.ahead)  # none passes by itself
    monkeypatch.setattr("twinlog.spark.source.cluster.time", clock)
    master, asked = cluster.nodes["n1"], list[int]()
    master.settled = False
    for node in cluster.nodes.values():
        node.late = 5

    def learn(arrived: Any) -> bool:
        """The third question finds a master that knows, or is the last: a minute has passed."""
        asked.extend([arrived.frame.type] if arrived.frame.type == Type.OFFSETS else [])
        if not comes and len(asked) == 3:
            clock.jump(60.0)
        if comes and len(asked) == 3:
            master.settled = True
            for node in cluster.nodes.values():
                node.late = 0
        return False

    master.faults.append(learn)
    found = rows(tasks_of(cluster, maxStaleness="60 s"))
    assert found == EVERYTHING if comes else set(found) < set(EVERYTHING)
    assert len(asked) >= 3


def test_a_slave_that_truncates_while_it_is_read(cluster: FakeCluster) -> None:
    """It had the rows when the task began; others have the rest."""
    tasks, node, seen = tasks_of(cluster), cluster.nodes["n2"], list[int]()

    def cut(arrived: Any) -> None:
        seen.append(arrived.frame.type)
        if seen.count(Type.READ) == 2:
            node.behind |= {0, 1, 2, 3}

    node.faults.append(cut)
    counts = reads(cluster)
    assert rows(tasks) == EVERYTHING
    assert seen.count(Type.READ) >= 2 and counts["n3"] > 0


def test_nobody_has_it_in_time(cluster: FakeCluster) -> None:
    tasks = tasks_of(cluster, readFrom="n2")
    cluster.nodes["n2"].behind |= {0}
    with pytest.raises(SourceUnavailable) as refused:
        rows(tasks)
    line = str(refused.value)
    assert line.startswith("twinlog: topic orders, queue 0: rows 5–9: no node served it within 0 s")
    assert "n2 lags: it ends at 5" in line and "raise maxStaleness" in line


def test_a_slave_that_is_gone(cluster: FakeCluster) -> None:
    tasks = tasks_of(cluster)
    cluster.nodes["n2"].close()
    cluster.nodes["n3"].close()
    assert rows(tasks) == EVERYTHING


def test_a_connection_that_breaks_in_the_middle(cluster: FakeCluster) -> None:
    tasks = tasks_of(cluster, maxStaleness="5 s")
    broken: list[int] = []

    def drop(arrived: Any) -> None:
        if arrived.frame.type == Type.READ and len(broken) < 3:
            broken.append(1)
            raise Drop

    for node in cluster.nodes.values():
        node.faults.append(drop)
    assert rows([*tasks]) == EVERYTHING
    assert len(broken) == 3


def test_tags_are_chosen_by_hash_and_text(cluster: FakeCluster) -> None:
    assert len(rows(tasks_of(cluster, tags="a"))) == ROWS // 2
    assert len(rows(tasks_of(cluster, tags="a || b"))) == ROWS


def test_names_that_do_not_exist(cluster: FakeCluster) -> None:
    with pytest.raises(SourceError, match="there is no topic order; the nearest is orders"):
        tasks_of(cluster, subscribe="order")
    with pytest.raises(SourceError, match="readFrom is 'n7', which is not a node"):
        tasks_of(cluster, readFrom="n7")
    with pytest.raises(SourceError, match="servers and path are given"):
        tasks_of(cluster, path="/x")


def test_no_node_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinlog.session.session.BACKOFF_FIRST", 3600.0)
    monkeypatch.setattr("twinlog.session.session.BACKOFF_MAX", 3600.0)
    with pytest.raises(SourceUnavailable, match=r"no node of 127.0.0.1:1 answered: .* refused"):
        batch_query({"servers": "127.0.0.1:1", "maxStaleness": "0"}).tasks(0)


def test_a_stream_goes_on_after_a_failover(cluster: FakeCluster) -> None:
    """Between two batches and inside one; every row once, the epoch in the offset grows."""
    given = {"servers": cluster.servers, "subscribe": "orders", "startingOffsets": "earliest"}
    query = stream_query({**given, "maxStaleness": "2 s"})
    start = query.stream.initial()
    first = query.stream.latest(start, Limit(rows=15))
    tasks = list(query.tasks(start, first))
    cluster.fail_over("n2")
    cluster.nodes["n1"].close()
    seen = rows(tasks)  # type: ignore[arg-type]
    with Client(cluster.servers) as client:
        client.send("orders", b"after", queue=0)
    query.close()
    second = query.stream.latest(first, Limit())
    seen += rows(list(query.tasks(first, second)))  # type: ignore[arg-type]
    assert sorted(seen) == sorted([*EVERYTHING, (0, 10)])
    epochs = [offset["groups"]["demo/g1"]["epoch"] for offset in (first, second)]
    assert epochs == [7, 8]
    assert query.stream.latest(second, Limit()) == second
    query.close()


def test_a_topic_that_was_made_again(cluster: FakeCluster) -> None:
    given = {"servers": cluster.servers, "subscribe": "orders", "startingOffsets": "earliest"}
    query = stream_query(given)
    end = query.stream.latest(query.stream.initial(), Limit())
    cluster.queues.clear()
    query.close()
    with pytest.raises(DataLossError, match="ends at 0, below the checkpoint's 10"):
        query.stream.latest(end, Limit())
    query.close()


def stream_rows(query: Any, start: Any, end: Any) -> list[tuple[int, int]]:
    return rows(list(query.tasks(start, end)))


def test_a_stream_waits_while_slaves_know_less_than_its_checkpoint(cluster: FakeCluster) -> None:
    """A slave learns what is confirmed after its master; the master died right after a trigger."""
    given = {"servers": cluster.servers, "subscribe": "orders", "startingOffsets": "earliest"}
    query = stream_query({**given, "maxStaleness": "0"})
    start = query.stream.initial()
    end = query.stream.latest(start, Limit())
    query.close()
    cluster.nodes["n2"].late = cluster.nodes["n3"].late = 1
    cluster.nodes["n1"].close()
    for fail in ("true", "false"):
        late = stream_query({**given, "maxStaleness": "0", "failOnDataLoss": fail})
        with pytest.raises(SourceUnavailable, match=r"n2 lags: it ends at log offset \d+, the che"):
            late.stream.latest(end, Limit())
        with pytest.raises(SourceUnavailable):
            late.tasks(start, end)
        late.close()

    def learn(arrived: Any) -> bool:
        """The third question finds a new master."""
        asked.append(arrived.frame.type)
        if asked.count(Type.OFFSETS) == 3:
            cluster.nodes["n2"].late = cluster.nodes["n3"].late = 0
            cluster.fail_over("n2")
        return False

    asked: list[int] = []
    cluster.nodes["n2"].faults.append(learn)
    again = stream_query({**given, "maxStaleness": "20 s"})
    assert again.stream.latest(end, Limit()) == end, "nothing new, and nothing goes back"
    assert asked.count(Type.OFFSETS) >= 3
    with Client(cluster.servers) as client:
        client.send("orders", b"after", queue=0)
    again.close()
    later = again.stream.latest(end, Limit())
    assert stream_rows(again, end, later) == [(0, 10)]
    again.close()


def test_a_failover_during_a_look_is_no_unclean_election(cluster: FakeCluster) -> None:
    """The epoch in the offset is that of its place, not that of the node that answered first."""
    given = {"servers": cluster.servers, "subscribe": "orders", "startingOffsets": "earliest"}
    query = stream_query({**given, "maxStaleness": "0"})
    start = query.stream.initial()
    query.close()
    cluster.epochs = [[7, 0], [8, record.decode(cluster.log[36]).log_offset]]
    stays = cluster.nodes["n1"]

    def fail_over(arrived: Any) -> bool:
        if arrived.frame.type == Type.OFFSETS:
            cluster.leader, cluster.epoch = "n2", 8
        return False

    stays.faults.append(fail_over)
    end = query.stream.latest(start, Limit())
    assert end["groups"]["demo/g1"]["epoch"] == 8
    query.close()
    assert query.stream.latest(end, Limit()) == end
    query.close()


def test_an_unclean_election_is_named_though_less_is_confirmed(cluster: FakeCluster) -> None:
    """A cut is told from a slave that lags by the epochs."""
    given = {"servers": cluster.servers, "subscribe": "orders", "startingOffsets": "earliest"}
    query = stream_query({**given, "maxStaleness": "0"})
    start = query.stream.initial()
    end = query.stream.latest(start, Limit())
    query.close()
    place = record.decode(cluster.log[30]).log_offset
    cluster.fail_over("n2", start=place)
    for node in cluster.nodes.values():
        node.late = 5
    with pytest.raises(DataLossError, match=f"cut at log offset {place} by an unclean election"):
        query.stream.latest(end, Limit())
    query.close()
    lax = stream_query({**given, "maxStaleness": "0", "failOnDataLoss": "false"})
    later = lax.stream.latest(end, Limit())
    assert stream_rows(lax, end, later) == sorted((n % 4, n // 4) for n in range(30, 35))
    assert later["groups"]["demo/g1"]["epoch"] == 8
    lax.close()


def test_tasks_of_a_replay_are_those_of_the_batch(cluster: FakeCluster) -> None:
    """Options, records and topics that came since change nothing: a sink counts on the tasks."""
    cluster.topics["aaa"] = 1
    given = {"servers": cluster.servers, "startingOffsets": "earliest", "maxStaleness": "0"}
    query = stream_query({**given, "subscribe": "orders,aaa", "splitBytes": "1 KiB"})
    start = query.stream.initial()
    end = query.stream.latest(start, Limit())
    tasks = query.tasks(start, end)
    query.close()
    assert len(tasks) > 3
    with Client(cluster.servers) as client:
        client.send("aaa", b"y" * 5000, queue=0)
    cluster.topics["aab"] = 2
    cluster.fail_over("n2")
    for changed in (
        {"minPartitions": "12", "subscribe": "orders,aaa"},
        {"splitBytes": "256 MiB", "subscribe": "orders"},
        {"splitBytes": "1 KiB", "subscribePattern": "aa.", "maxOffsetsPerTrigger": "1"},
    ):
        again = stream_query({**given, **changed})
        assert [task.pieces for task in again.tasks(start, end)] == [t.pieces for t in tasks]
        again.close()

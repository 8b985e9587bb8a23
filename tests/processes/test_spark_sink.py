"""What a task of the Spark sink does, against a real node, without Spark around it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from tests.fixtures.processes import Processes
from twinlog import Client
from twinlog.errors import TwinlogError
from twinlog.spark.sink.settings import SOURCE_PROPERTY, Identity, SinkSettings, parse
from twinlog.spark.sink.writer import NonDeterministicReplay, commit_record, send_rows

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """One node is enough: what a failover keeps is the store's matter."""
    found = Processes(tmp_path_factory.mktemp("sink"), nodes=1)
    try:
        found.start_all()
        yield found
    finally:
        found.close()


@pytest.fixture
def settings(node: Processes, request: pytest.FixtureRequest) -> SinkSettings:
    """Options for a topic of two queues that only this test uses."""
    servers = "{}:{}".format(*node.address("n1"))
    topic = f"s{abs(hash(request.node.nodeid)) % 10**8}"
    with Client(servers) as client:
        client.create_topic(topic, 2)
        client.create_topic("commits", 1)
    return parse({"servers": servers, "topic": topic, "writeId": topic, "commitTopic": "commits"})


@dataclass
class Column:
    """A column of an Arrow batch, as far as the sink looks."""

    values: Sequence[Any]

    def to_pylist(self) -> list[Any]:
        """The values."""
        return list(self.values)


class Batch:
    """An Arrow batch, as far as the sink looks."""

    def __init__(self, **columns: Sequence[Any]) -> None:
        self.schema = self
        self.names = list(columns)
        self.columns = [Column(values) for values in columns.values()]


def rows(count: int, *, size: int = 20_000, mark: bytes = b"x") -> list[Batch]:
    """Rows in batches of a hundred: enough sections that the store has forgotten the first."""
    bodies = [mark * (size - 10) + b"%010d" % number for number in range(count)]
    return [
        Batch(body=bodies[at : at + 100], key=[f"k{n}" for n in range(at, min(at + 100, count))])
        for at in range(0, count, 100)
    ]


def stored(settings: SinkSettings) -> list[str]:
    """The names of the rows that the topic holds."""
    with Client(settings.servers) as client:
        found = client.read(settings.topic or "")
        return [message.properties[SOURCE_PROPERTY] for message in found]


def test_a_replay_stores_nothing_twice(settings: SinkSettings) -> None:
    """All sections again, also those the store no longer remembers one by one."""
    identity = Identity("w", 0, 3)
    first = send_rows(settings, identity, iter(rows(300)))
    again = send_rows(settings, identity, iter(rows(300)))
    assert (first.rows, first.duplicates) == (300, 0)
    assert again.duplicates > 10 and again.crc == first.crc
    names = stored(settings)
    assert sorted(names) == sorted(identity.row(n) for n in range(300))
    assert sum(b - a + 1 for a, b in first.spans.values()) == 300


def test_a_task_that_died_goes_on_where_it_was(settings: SinkSettings) -> None:
    """Half of the rows, then all of them: each is there once; the next batch follows."""

    def dying() -> Iterator[Batch]:
        yield from rows(300)[:2]
        raise KeyboardInterrupt

    identity = Identity("w", 0, 0)
    with pytest.raises(KeyboardInterrupt):
        send_rows(settings, identity, dying())
    send_rows(settings, identity, iter(rows(300)))
    send_rows(settings, Identity("w", 1, 0), iter(rows(10)))
    assert len(stored(settings)) == len(set(stored(settings))) == 310


def test_other_rows_in_a_replay_are_an_error(settings: SinkSettings) -> None:
    """The error names batch and task; nothing is mixed."""
    send_rows(settings, Identity("w", 7, 2), iter(rows(5)))
    with pytest.raises(NonDeterministicReplay, match="batch 7, task 2") as caught:
        send_rows(settings, Identity("w", 7, 2), iter(rows(5, mark=b"y")))
    assert caught.value.code == "NON_DETERMINISTIC_REPLAY"
    assert len(stored(settings)) == 5


def test_a_task_of_an_older_batch_is_refused(settings: SinkSettings) -> None:
    """A lost executor that comes back late changes nothing."""
    send_rows(settings, Identity("w", 5, 0), iter(rows(5)))
    with pytest.raises(TwinlogError) as caught:
        send_rows(settings, Identity("w", 4, 0), iter(rows(5, mark=b"z")))
    assert caught.value.code == "producer-epoch"
    assert len(stored(settings)) == 5


def test_one_commit_record_for_a_batch(settings: SinkSettings) -> None:
    """A commit that is repeated after a restart is recognised."""
    sent = [send_rows(settings, Identity("w", 0, task), iter(rows(3))) for task in (1, 0)]
    commit_record(settings, 0, sent)
    commit_record(settings, 0, list(reversed(sent)))
    commit_record(settings, 1, [])
    with Client(settings.servers) as client:
        found = [m for m in client.read("commits") if m.key == settings.write_id]
    assert [b'"batch": 0' in found[0].body, b'"batch": 1' in found[1].body] == [True, True]
    assert len(found) == 2


def test_born_times_are_kept(settings: SinkSettings) -> None:
    """Microseconds are cut off; a row without one is born now; no calendar, no row."""
    pa = pytest.importorskip("pyarrow")
    kind = pa.timestamp("us", tz="UTC")
    times = pa.array([1_700_000_000_123_999, None, 5], pa.int64()).cast(kind)
    batch = pa.RecordBatch.from_pydict({"body": [b"a", b"b", b"c"], "born_timestamp": times})
    before = time.time_ns() // 1_000_000
    send_rows(settings, Identity("w", 0, 0), iter([batch]))
    with Client(settings.servers) as client:
        born = {m.body: m.born_timestamp for m in client.read(settings.topic or "")}
    assert born[b"a"] == 1_700_000_000_123 and born[b"c"] == 0 and born[b"b"] >= before
    early = pa.RecordBatch.from_pydict(
        {"body": [b"d"], "born_timestamp": pa.array([-1_000_000], pa.int64()).cast(kind)}
    )
    with pytest.raises(TwinlogError, match="born between the years 1970 and 9999, not at -1000"):
        send_rows(settings, Identity("w", 1, 0), iter([early]))

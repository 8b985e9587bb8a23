"""What a task of the Spark sink does, against a real node, without Spark around it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")
pytest.importorskip("pyarrow", reason="needs the extra spark")

from tests.fixtures.processes import Processes
from tests.stores.sample import SEGMENT, Ours
from twinlog import Client
from twinlog.errors import TwinlogError, UsageError
from twinlog.spark.archive.archive_dir import ArchiveDir
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.archive.manifest import Manifest
from twinlog.spark.archive.view import read_archive
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.jobs.replay import archive as replay_archive
from twinlog.spark.jobs.replay import memory
from twinlog.spark.jobs.replay.settings import ReplaySettings
from twinlog.spark.sink.settings import SOURCE_PROPERTY, Identity, SinkSettings, parse
from twinlog.spark.sink.writer import NonDeterministicReplay, commit_record, send_rows
from twinlog.store.reader import StoreReader

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
    assert "batch 4, task 0: w has written a later batch already" in str(caught.value)
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


def test_a_commit_of_other_rows(settings: SinkSettings) -> None:
    """An error, as for the rows; allowed where rows may come again, and then there are two."""
    sent = send_rows(settings, Identity("w", 0, 0), iter(rows(3)))
    other = send_rows(settings, Identity("v", 0, 0), iter(rows(3, mark=b"y")))
    commit_record(settings, 1, [sent])
    with pytest.raises(NonDeterministicReplay, match="batch 1: the replay brings other rows"):
        commit_record(settings, 1, [other])
    with pytest.raises(TwinlogError, match="has written a later batch already") as caught:
        commit_record(settings, 0, [sent])
    assert caught.value.code == "producer-epoch"
    commit_record(replace(settings, exactly_once=False), 1, [other])
    with Client(settings.servers) as client:
        found = [m for m in client.read("commits") if m.key == settings.write_id]
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
    line = "row 0 of task 0: a message is born between the years 1970 and 9999, not at -1000"
    with pytest.raises(TwinlogError, match=line):
        send_rows(settings, Identity("w", 1, 0), iter([early]))


class Killed(PlainEngine):
    """Runs a number of tasks, then the driver dies: before one, or after the last of a batch."""

    at_once = 2

    def __init__(self, tasks: int) -> None:
        self._left = tasks

    def spread(self, work: Any, items: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        for item in items:
            if not self._left:
                raise KeyboardInterrupt
            self._left -= 1
            found.append(work(item))
        if not self._left:  # all is sent, and no process remembers that
            raise KeyboardInterrupt
        return found


def sealed(whole: Path, count: int, to: Path) -> None:
    """Let an archive have only its first segments, as it was some time ago."""
    segments = ArchiveDir(whole).newest().segments[:count]
    to.mkdir(exist_ok=True)
    manifest = ArchiveDir(to).path_of(count)
    manifest.parent.mkdir(exist_ok=True)
    manifest.write_text(Manifest(number=count, segments=segments).text())
    shutil.copytree(whole / "data", to / "data", dirs_exist_ok=True)


def test_a_replay_of_an_archive_is_resumed(
    settings: SinkSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before, in and after each batch, and inside a task; the archive grows meanwhile."""
    monkeypatch.setattr(replay_archive, "SPLIT_BYTES", SEGMENT)
    made, kept = Ours(), tmp_path / "kept"
    for number in range(120):
        made.properties = {"TAGS": "a", "KEYS": f"k{number}", "own": "1"}
        made.batch(b"%d" % number + b"x" * 100, topic=f"t{number % 2}", queue=number // 2 % 2)
    whole = made.write(tmp_path / "whole", confirm=made.end)
    archive(PlainEngine(), ArchiveSettings(whole, tmp_path / "archive"))
    segments = ArchiveDir(tmp_path / "archive").newest().segments
    home = tmp_path / "memory"
    flow = ReplaySettings(
        None, "t1", settings.servers, settings.topic or "", archive=kept, resume=home
    )

    def run(engine: PlainEngine) -> int:
        with memory.held(home):
            return replay_archive.send(engine, flow, now_ms=0)

    def torn(task: Any) -> Iterator[Any]:
        first = next(read_archive(task))
        yield first.slice(0, first.num_rows // 2)
        raise KeyboardInterrupt

    sealed(tmp_path / "archive", 3, kept)
    for tasks in (0, 1, 2):
        with pytest.raises(KeyboardInterrupt):
            run(Killed(tasks))
    with monkeypatch.context() as patched:
        patched.setattr(replay_archive, "read_archive", torn)
        with pytest.raises(KeyboardInterrupt):
            run(PlainEngine())
    sealed(tmp_path / "archive", len(segments), kept)
    with pytest.raises(KeyboardInterrupt):
        run(Killed(3))
    assert run(PlainEngine()) > 0
    assert run(PlainEngine()) == 0, "nothing is left"
    with Client(settings.servers) as client:
        found = list(client.read(settings.topic or ""))
    with StoreReader(whole) as store:
        wanted = {
            r.log_offset: (r.body, r.key, r.tag, "1")
            for r in store.records()
            if r.topic == "t1" and r.log_offset < segments[-1].end
        }
    origins = [int(m.properties["TL_ORIGIN"].rpartition("/")[2]) for m in found]
    assert sorted(origins) == sorted(wanted), "each row once"
    assert {
        at: (m.body, m.key, m.tag, m.properties["own"])
        for at, m in zip(origins, found, strict=True)
    } == wanted
    assert len({m.properties[SOURCE_PROPERTY] for m in found}) == len(found)
    with memory.held(home), pytest.raises(UsageError, match="is running"):
        run(PlainEngine())
    with pytest.raises(UsageError, match="whose tags is '', not 'a'"):
        replay_archive.send(PlainEngine(), replace(flow, tags="a"), now_ms=0)
    with pytest.raises(UsageError, match="with an archive"):
        memory.refuse(home)


def test_a_row_that_cannot_be_stored_is_named(settings: SinkSettings) -> None:
    """By its number and its task, whatever it lacks."""
    for task, (batch, words) in enumerate(
        [
            (Batch(body=[b"x", None]), "row 1 of task 0 has no body"),
            (Batch(body=[b"x"], properties=[[("k", None)]]), "row 0 of task 1: property 'k' is"),
            (Batch(body=[b"x"], queue_id=[2]), r"row 0 of task 2: .* has queues 0 to 1, not 2"),
            (Batch(body=[b"x"], key=[""]), "row 0 of task 3: key, tag and order_key must not be"),
        ]
    ):
        with pytest.raises(UsageError, match=words):
            send_rows(settings, Identity("w", 0, task), iter([batch]))
    with pytest.raises(UsageError, match="row 0 of task 4 names no topic"):
        send_rows(replace(settings, topic=None), Identity("w", 0, 4), iter(rows(1)))

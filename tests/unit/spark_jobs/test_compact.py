"""compact: what a dict over the log holds, written as Parquet."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.app import main
from tests.golden.manifest import unpack
from twinlog import layout, record
from twinlog.errors import UsageError
from twinlog.spark.jobs.compact import CompactSettings, run, young
from twinlog.spark.jobs.engine import PlainEngine
from twinlog.store_reader import StoreReader

pq = pytest.importorskip("pyarrow.parquet")


def reference(root: Path, topic: str) -> dict[tuple[int, str], bytes]:
    """The newest body of each key, by the plain reader."""
    held: dict[tuple[int, str], bytes] = {}
    with StoreReader(root) as store:
        for found in store.records():
            if found.topic == topic and found.queued and found.key is not None:
                held[found.queue, found.key] = found.body
    return {key: body for key, body in held.items() if body}


def small(root: Path) -> Path:
    """A log by hand: two queues, keys written again, a deleted key, a record without a key."""
    log, counts = bytearray(), dict[int, int]()
    items = [(0, "a", b"1"), (1, "a", b"2"), (0, "b", b"3"), (0, "a", b"4"), (0, "b", b"")]
    for queue, key, body in [*items, (0, "a b", b"5"), (0, "", b"6")]:
        number = counts[queue] = counts.get(queue, -1) + 1
        log += record.encode(
            "kv",
            queue,
            body,
            properties={"KEYS": key} if key else {},
            queue_offset=number,
            log_offset=len(log),
            store_timestamp=1_700_000_000_000 + len(log),
        )
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / layout.file_name(0)).write_bytes(bytes(log).ljust(65_536, b"\0"))
    return root


def written(to: Path) -> dict[tuple[int, str], bytes]:
    """What the Parquet files hold."""
    rows = pq.read_table(to).to_pylist()
    return {(row["queue_id"], row["key"]): row["body"] for row in rows}


def test_tombstones_queues_and_several_keys(tmp_path: Path) -> None:
    """By hand: newest wins in its queue, an empty body deletes, KEYS counts as a whole."""
    root, to = small(tmp_path / "s"), tmp_path / "kv"
    found = run(PlainEngine(), CompactSettings(root, "kv", to))
    assert written(to) == {(0, "a"): b"4", (1, "a"): b"2", (0, "a b"): b"5"}
    assert written(to) == reference(root, "kv")
    fields = found.fields
    assert (fields["records"], fields["kept"], fields["without_key"]) == (7, 3, 1)
    with pytest.raises(UsageError, match="exists already"):
        run(PlainEngine(), CompactSettings(root, "kv", to))
    with pytest.raises(UsageError, match="no record of nothing"):
        run(PlainEngine(), CompactSettings(root, "nothing"))


def test_a_young_tombstone_is_a_row(tmp_path: Path) -> None:
    """By store time: with the age that it has it goes, a millisecond before it stays."""
    root = small(tmp_path / "s")
    with StoreReader(root) as store:
        (stored,) = [r.store_timestamp for r in store.records() if r.key and not r.body]
    live = reference(root, "kv")
    for now, rows in ((stored + 5000, live), (stored + 4999, {**live, (0, "b"): b""})):
        to = tmp_path / str(now)
        settings = CompactSettings(root, "kv", to, young_ms=young(now, 5.0))
        found = run(PlainEngine(), settings)
        assert written(to) == rows
        fields, kept = found.fields, len(rows) - len(live)
        assert (fields["kept"], fields["deleted_keys"], fields["tombstones"]) == (3 + kept, 1, kept)
        assert found.tables["queues"].rows == [
            ("kv", 0, 3, 2 + kept, 1, kept),
            ("kv", 1, 1, 1, 0, 0),
        ]


def test_a_store_of_rocketmq(tmp_path: Path) -> None:
    """The dict over a golden store, whatever the cut."""
    root = unpack("14-compaction", tmp_path / "s")
    with StoreReader(root) as store:
        topics = {found.topic for found in store.records() if found.key}
    for topic in sorted(topics):
        to = tmp_path / topic.replace("%", "_")
        run(PlainEngine(), CompactSettings(root, topic, to, 3000))
        assert written(to) == reference(root, topic)
        assert reference(root, topic)


def test_an_interrupted_compaction_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while the winners are written; a run beside it keeps its own directory."""

    class Interrupting(PlainEngine):
        def spread(self, work, items):  # type: ignore[no-untyped-def]
            found = super().spread(work, items)
            if list(tmp_path.glob("kv.*.building/part-*")):
                raise KeyboardInterrupt
            return found

    root, to = small(tmp_path / "s"), tmp_path / "kv"
    with pytest.raises(KeyboardInterrupt):
        run(Interrupting(), CompactSettings(root, "kv", to))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        ([], "a compaction reads a directory or a cluster", 64),
        (["--path", "{}/s", "--from-servers", "n:1"], "a compaction reads a directory or", 64),
        (["--path", "{}/s", "--to", "x", "--to-topic", "y"], "both given", 64),
        (["--path", "{}/s", "--servers", "n:1"], "go with --to-topic", 64),
        (["--archive", "{}", "--to", "x"], "from --path alone", 64),
        (["--archive", "{}/none"], "there is no directory", 66),
        (["--path", "{}/s", "--delete-retention", "1 parsec"], "parsec", 64),
        (["--archive", "{}"], "this needs Spark", 64),
    ],
)
def test_wrong_calls(
    words: list[str], said: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a session is started."""
    small(tmp_path / "s")
    call = ["spark", "compact", "--topic", "kv", *(word.format(tmp_path) for word in words)]
    made = main(call, {"TWINLOG_SPARK_ENGINE": "plain"})
    err = capsys.readouterr().err
    assert (made, said in err) == (code, True), err

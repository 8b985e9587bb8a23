"""``keys`` through the key index: the same rows as by looking at every row, and fewer are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the extra spark")

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.node import Arrived, FakeCluster
from tests.stores.golden import unpack
from tests.stores.sample import flip
from twinlog import Client
from twinlog.format.key_index import IndexHeader
from twinlog.spark.plan.splits import Piece
from twinlog.spark.source import key_lookup
from twinlog.spark.source.batch import Task
from twinlog.spark.source.cluster import ClusterTask
from twinlog.spark.source.key_lookup import fewer, joined
from twinlog.spark.source.queries import batch_query, read_any
from twinlog.wire.frames import Type

Row = dict[str, Any]


def found(options: dict[str, str], *filters: Any) -> tuple[list[Row], int]:
    """Rows of a query in order, and how many its tasks look at."""
    tasks = batch_query({"columns": "full", **options}, None, filters).tasks(0)
    looked = 0
    for task in tasks:
        pieces = task.split.pieces if isinstance(task, Task) else ()
        pieces = task.pieces if isinstance(task, ClusterTask) else pieces
        looked += sum(piece.stop - piece.first for piece in pieces)
    rows = [row for task in tasks for batch in read_any(task) for row in batch.to_pylist()]
    return sorted(
        rows, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"])
    ), looked


def words(options: dict[str, str]) -> Counter[str]:
    """The keys of a store, each with its rows."""
    rows, _ = found({"columns": "default", **options})
    return Counter(word for row in rows for word in (row["key"] or "").split(" ") if word)


def same(options: dict[str, str], keys: str) -> tuple[int, int]:
    """Rows that the index helped to find and how many were looked at, after comparing them."""
    rows, looked = found({**options, "keys": keys})
    every, _ = found({**options, "keys": keys, "keyIndex": "off"})
    assert rows == every, keys
    return len(rows), looked


# -- the plan -------------------------------------------------------------------------------------


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=5)


@given(st.sets(st.integers(0, 39)), SPANS, st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_a_plan_has_hits_and_what_is_not_covered(
    hits: set[int], spans: list[tuple[int, int]], bounds: tuple[int, int]
) -> None:
    first, stop = min(bounds), max(bounds)
    made = fewer([Piece("t", 3, first, stop)], ["k"], lambda *_: {3: sorted(hits)}, lambda _: spans)
    kept = [at for piece in made for at in range(piece.first, piece.stop)]
    wanted = hits | {at for low, high in spans for at in range(low, high)}
    assert kept == sorted(wanted & set(range(first, stop)))
    assert joined(spans, 0, 40) == joined(joined(spans, 0, 40), 0, 40)


@pytest.mark.parametrize("key", ["", "a b", "a\ufffd"])
def test_keys_that_the_index_does_not_know(key: str) -> None:
    pieces = (Piece("t", 0, 0, 9),)
    assert fewer(pieces, ["k", key], lambda *_: {}, lambda _: ()) == pieces
    assert fewer(pieces, None, lambda *_: {}, lambda _: ()) == pieces
    assert fewer(pieces, ["k"], lambda *_: None, lambda _: ()) == pieces
    assert not fewer(pieces, ["k"], lambda *_: {}, lambda _: ())


# -- directories ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["02-rollover", "06-transaction", "08-lmq", "09-batch", "13-trimmed", "14-compaction"]
)
def test_stores_of_rocketmq(case: str, tmp_path: Path) -> None:
    """Several index files, queues that the index does not cover, a log whose front is gone."""
    options = {"path": str(unpack(case, tmp_path)), "includeSystem": "true"}
    held = words(options)
    every = found(options)[1]
    most = [word for word, _ in held.most_common(2)]
    for keys in (*most, ",".join([*most, "none"]), "none"):
        count, looked = same(options, keys)
        assert looked < every and count == 0 if keys == "none" else count >= 1
    piece = {"subscribe": found(options)[0][-1]["topic"], "range": "-7:"}
    same({**options, **piece}, ",".join(held))


@pytest.mark.slow
def test_what_an_index_does_not_cover_is_read(tmp_path: Path) -> None:
    """Files that are gone at the front, in the middle and at the end; none; and after a crash."""
    root = unpack("02-rollover", tmp_path)
    options = {"path": str(root)}
    held = list(words(options))
    some = ",".join(held[::9])
    count, least = same(options, some)
    assert count >= len(held[::9]) and least < count + 50
    looks = [least]
    for number in (0, 3, -1):
        files = sorted((root / "index").iterdir())
        files[number].unlink()
        assert same(options, some)[0] == count
        looks.append(found({**options, "keys": some})[1])
    assert looks == sorted(looks) and looks[0] < looks[-1] < 1400
    (root / "abort").touch()
    assert same(options, some) == (count, 1400)
    (root / "abort").unlink()
    for path in (root / "index").iterdir():
        path.unlink()
    assert same(options, some) == (count, 1400)


@pytest.mark.slow
def test_an_index_that_does_not_hold_together_is_not_believed(tmp_path: Path) -> None:
    """A cell of another chain, one that names no record, a file that is none: all is read."""
    root = unpack("01-basic", tmp_path)
    options = {"path": str(root)}
    held = ",".join(list(words(options))[:40])
    path = sorted((root / "index").iterdir())[0]
    whole = path.read_bytes()
    count, looked = same(options, held)
    first = 40 + 4 * ((len(whole) - 40) // 84)
    looks = list[int]()
    for cell in range(1, IndexHeader.unpack(whole).next_cell, 20):
        for place, bit in ((3, 1), (4, 128), (11, 4)):
            flip(path, first + 20 * cell + place, bit)
            rows, now = found({**options, "columns": "default", "keys": held})
            assert len(rows) == count
            looks.append(now)
            path.write_bytes(whole)
    assert sum(now > looked for now in looks) > len(looks) // 4, "some chains are not walked"
    path.write_bytes(whole[:-1])
    assert same(options, held) == (count, 327)
    path.write_bytes(whole)
    assert same(options, held) == (count, looked)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many records, or too long a chain: everything is read."""
    options = {"path": str(unpack("14-compaction", tmp_path))}
    (key, count), *_ = words(options).most_common(1)
    assert same(options, key)[1] < count + 20
    for name, most in (("HITS_MAX", count - 1), ("LOOKS_MAX", 1)):
        with monkeypatch.context() as patched:
            patched.setattr(key_lookup, name, most)
            assert same(options, key) == (count, 420)


@pytest.mark.slow
def test_filters_of_spark_use_the_index(tmp_path: Path) -> None:
    """The column holds all keys of a record: a value of several leads to it by its first."""
    source = pytest.importorskip("pyspark.sql.datasource", reason="the extra spark is missing")
    options = {"path": str(unpack("02-rollover", tmp_path))}
    every, _ = found(options)
    several = next(row["key"] for row in every if " " in (row["key"] or ""))
    one = next(row["key"] for row in every if row["key"] and " " not in row["key"])
    for filters in (
        [source.EqualTo(("key",), several)],
        [source.In(("key",), (one, several))],
        [source.EqualTo(("key",), one), source.IsNotNull(("key",))],
    ):
        wanted = {filters[0].value} if len(filters) == 2 else None
        rows, looked = found(options, *filters)
        values = wanted or set(
            filters[0].value if isinstance(filters[0].value, tuple) else [filters[0].value]
        )
        mine = [row for row in every if row["key"] in values]
        assert [row for row in rows if row["key"] in values] == mine and mine
        assert looked < 20
    odd = source.In(("key",), (one, None))
    assert found(options, odd)[1] == found(options, source.EqualTo(("key",), " "))[1] == 1400


# -- clusters -------------------------------------------------------------------------------------


ROWS = 90


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Three nodes; each record has a key of its own and one of five."""
    made = FakeCluster()
    for name in ("n1", "n2", "n3"):
        made.add_node(name)
    try:
        with Client(made.servers) as client:
            for number in range(ROWS):
                key = f"own{number} five{number % 5}"
                client.send("orders", b"%d" % number, key=key, queue=number % 4)
        yield made
    finally:
        made.close()


def live(made: FakeCluster) -> dict[str, str]:
    """Options for the cluster."""
    return {"servers": made.servers, "subscribe": "orders", "maxStaleness": "0"}


def test_nodes_are_asked_for_keys(cluster: FakeCluster) -> None:
    """Page by page; only what they name is read, in one task; ranges hold."""
    options = live(cluster)
    assert same(options, "five3") == (ROWS // 5, ROWS // 5)
    assert same(options, "own7,own8,none") == (2, 2)
    assert same(options, "none") == (0, 0)
    some = {"servers": cluster.servers, "assign": '{"orders":[1]}', "range": "3:9"}
    count, looked = same(some, "five3,five4")
    assert 0 < count == looked < 6
    assert cluster.nodes["n1"].count(Type.FIND) > ROWS // 10
    before = cluster.nodes["n1"].count(Type.FIND)
    found({**options, "keys": "own1", "keyIndex": "off"})
    assert cluster.nodes["n1"].count(Type.FIND) == before


@pytest.mark.parametrize("why", ["off", "behind", "incomplete", "many"])
def test_nodes_that_cannot_say_are_passed_over(
    why: str, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node answers; when none can, all is read: the same rows either way."""
    options = live(cluster)

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.FIND:
            return False
        fields: dict[str, object] = {
            "count": 0, "more": False, "complete": why != "incomplete", "age_ms": 5,
            "confirm": 1 if why == "behind" else cluster.end, "node": "n", "role": "slave",
        }  # fmt: skip
        if why == "off":
            arrived.refuse("index-off", "the key index is off")
        else:
            arrived.answer(fields)
        return True

    if why == "many":
        monkeypatch.setattr(key_lookup, "HITS_MAX", 3)
    else:
        cluster.nodes["n1"].faults.append(fault)
        assert same(options, "own7") == (1, 1)
        for node in cluster.nodes.values():
            node.faults.append(fault)
    assert same(options, "five3") == (ROWS // 5, ROWS)

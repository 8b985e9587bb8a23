"""What a node makes of a FIND, before and after the search."""

from __future__ import annotations

import pytest

from node.clients.freshness import Freshness
from node.clients.limits import Limits
from node.clients.searches import Finds, parse_find, search
from storage import Store
from storage.errors import IndexBehind
from storage.key_index.search import RESULTS_MAX, TIME_MAX, KeyQuery, Lookup
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    MASTER,
    TOPIC,
    append,
    find_key,
    flip,
    master,
    run,
    section,
    settle,
)
from twinlog.errors import Busy, CorruptionError, TwinlogError, UnknownTopic, UsageError


def finds(store: Store, *, role: str = "master", age: float = 0.0) -> Finds:
    """The searches of a node on a store."""
    return Finds(
        store.reads,
        lambda: Freshness("n1", role, age, None, MASTER.epoch),
        staleness_max=3.0,
        wall_ms=lambda: 5000,
    )


def keyed() -> tuple[FakeDisk, Store]:
    """A store with forty records of key k, in several index files."""
    disk = FakeDisk()
    store = master(disk)
    for number in range(20):
        append(store, section(2, queue=number % 4, key="k", mark=number))
    settle(store)
    return disk, store


def test_a_search_is_answered_with_where_it_was_done() -> None:
    """Newest first; more while there is more; who says so and how fresh it is."""
    _, store = keyed()
    parts = finds(store, role="slave", age=1.5)
    lookup = parts.begin(KeyQuery(TOPIC, "k", most=30))
    assert search(lookup) is None
    fields, slices = parts.finish(lookup, None)
    assert fields == {
        "count": 30, "more": True, "complete": True, "confirm": store.confirm, "age_ms": 1500,
        "node": "n1", "role": "slave", "settled": False,
    }  # fmt: skip
    offsets = [int.from_bytes(view[28:36], "big") for view in slices]
    assert offsets == sorted(offsets, reverse=True)
    lookup = parts.begin(KeyQuery(TOPIC, "k", most=30, before=offsets[-1]))
    assert search(lookup) is None
    fields, slices = parts.finish(lookup, None)
    assert (fields["count"], fields["more"]) == (10, False)


def test_a_slave_that_has_not_heard_for_long_refuses() -> None:
    """As for reads; the client may ask another node."""
    _, store = keyed()
    with pytest.raises(TwinlogError) as caught:
        finds(store, role="slave", age=3.5).begin(KeyQuery(TOPIC, "k"))
    assert (caught.value.code, caught.value.retryable) == ("stale", True)
    with pytest.raises(UnknownTopic) as unknown:
        finds(store).begin(KeyQuery("nowhere", "k"))
    assert "settled" not in unknown.value.facts
    with pytest.raises(UnknownTopic) as unknown:
        finds(store, role="slave").begin(KeyQuery("nowhere", "k"))
    assert unknown.value.facts["settled"] is False, "it may have been created elsewhere"


def test_a_search_says_how_much_it_saw() -> None:
    """What is confirmed while it runs, it has not looked at; nor may a new master know all."""
    _, store = keyed()
    parts = finds(store)
    before = store.confirm
    lookup = parts.begin(KeyQuery(TOPIC, "k", most=64))
    append(store, section(2, key="k", mark=99))
    settle(store)
    assert search(lookup) is None
    fields, slices = parts.finish(lookup, None)
    assert store.confirm > before
    assert (fields["confirm"], fields["settled"], len(slices)) == (before, True, 40)
    lookup.confirm = store.epochs[-1].start
    assert parts.finish(lookup, None)[0]["settled"] is False


def test_damage_is_told_and_the_next_search_finds() -> None:
    """A file of the index turns out damaged in the thread."""
    disk, store = keyed()
    parts = finds(store)
    name = disk.list("index")
    lookup = parts.begin(KeyQuery(TOPIC, "k", most=64))
    name = disk.list("index")[0]
    for cell in range(1, 30):
        flip(disk, f"index/{name}", 40 + 28 + 20 * cell)
    error = search(lookup)
    assert isinstance(error, CorruptionError)
    with pytest.raises(IndexBehind):
        parts.finish(lookup, error)
    lookup = parts.begin(KeyQuery(TOPIC, "k", most=64))
    assert search(lookup) is None
    assert parts.finish(lookup, None)[0]["count"] == 40


def test_a_cut_during_a_search_is_no_answer() -> None:
    """Files and bytes go away under it: the client is told to ask again."""
    _, store = keyed()
    to = store.end
    for number in range(20):
        append(store, section(3, queue=number % 4, key="k", mark=number, size=200))
    settle(store)
    parts = finds(store)
    lookup = parts.begin(KeyQuery(TOPIC, "k", most=64))
    run(store, store.cut_job(MASTER, to))
    error = search(lookup)
    assert error is not None
    with pytest.raises(Busy) as caught:
        parts.finish(lookup, error)
    assert caught.value.retryable
    with pytest.raises(Busy):  # zeros where a record was are no damage then
        parts.finish(lookup, CorruptionError("zeros"))
    with pytest.raises(Busy):  # and what was found may be what nobody has confirmed
        parts.finish(lookup, None)
    assert store.damage is None


def test_a_search_that_nobody_waits_for_stops() -> None:
    """Asked before each cell: what it has by then is the answer, and it says that there is more."""
    _, store = keyed()
    parts = finds(store)
    lookup = parts.begin(KeyQuery(TOPIC, "k", most=64))
    lookup.stop = lambda: lookup.found.looks >= 10
    assert search(lookup) is None
    fields, slices = parts.finish(lookup, None)
    assert fields["complete"] is False
    assert lookup.found.looks == 10
    assert 0 < len(slices) <= 10


def test_what_is_asked_is_checked() -> None:
    """Fields of another kind, negative numbers, more than anybody gets."""
    limits = Limits()
    asked = {"topic": "t", "key": "k", "max": 10_000, "unique": True}
    found, seconds = parse_find(asked, limits)
    assert seconds == limits.find_seconds_max
    assert (found.most, found.unique, found.end) == (RESULTS_MAX, True, TIME_MAX)
    found, seconds = parse_find({"topic": "t", "key": "k", "max": 0, "timeout_ms": 1500}, limits)
    assert (found.most, seconds) == (1, 1.5)
    for fields in (
        {"topic": "t"}, {"key": "k"}, {"topic": 1, "key": "k"}, {"topic": "t", "key": ""},
        {"topic": "t", "key": "k", "timeout_ms": "soon"},
        {"topic": "t", "key": "k", "begin": -1}, {"topic": "t", "key": "k", "end": "now"},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            parse_find(fields, limits)


def test_a_lookup_reads_nothing_before_it_runs() -> None:
    """The loop only chooses: every read of a file is the thread's."""
    disk, store = keyed()
    find_key(store, KeyQuery(TOPIC, "k"))
    disk.faults.recording = True
    lookup = finds(store).begin(KeyQuery(TOPIC, "k"))
    assert isinstance(lookup, Lookup)
    assert disk.faults.record == []
    search(lookup)
    assert disk.faults.record

"""A search by key that retention overtakes: it is asked again, and nothing is called damaged.

Not here: what a search finds (`test_key_index`), damaged index files (`test_key_index_changes`).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.clients.searches import search
from storage import Store
from storage.key_index.search import KeyQuery, Lookup
from storage.log.segment import Segment
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SETTINGS,
    TOPIC,
    append,
    flip,
    master,
    open_store,
    run,
    section,
    settle,
)
from twinlog.errors import Busy, CorruptionError
from twinlog.format.batch_index import BatchEntry

ONE_FILE = replace(SETTINGS, index_slots=50, index_cells=2000)


def grown(disk: FakeDisk) -> Store:
    """A store opened anew, so that its records are unproven; its first file may leave."""
    store = master(disk, settings=ONE_FILE)
    number = 0
    while len(store._log.segments.all) < 4:
        append(store, section(1, key=f"k{number}", mark=number))
        settle(store)
        number += 1
        run(store, store.jobs.flush_job(thorough=True))
        run(store, store.jobs.snapshot_job(force=True))
    run(store, store.jobs.checkpoint_job())
    store.close(clean=True)
    again = open_store(disk, settings=ONE_FILE)
    settle(again)
    return again


def searched(store: Store, lookup: Lookup) -> None:
    """Run a search as a node does, and take it back."""
    error = search(lookup)
    store.reads.looked_up(lookup, error if isinstance(error, CorruptionError) else None)
    if error is not None:
        raise error


def leave(store: Store) -> None:
    """Have the first file leave, as retention does on the loop."""
    store.head.leave(store._log.segments.all[0].end, store.confirm, 0.0)


@pytest.mark.parametrize("proven", [False, True])
def test_a_search_that_retention_overtakes_is_asked_again(
    proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file leaves before its bytes are taken, to be proven or read: nothing is damaged."""
    store = grown(FakeDisk())
    query, segments = KeyQuery(TOPIC, "k0", most=4), store._log.segments
    if proven:
        searched(store, store.reads.look_up(query))
    lookup, index = store.reads.look_up(query), segments.all[0].index
    entry, at, calls = index.entry, segments.at, list[int]()

    def entry_and_leave(number: int) -> BatchEntry:
        found = entry(number)
        monkeypatch.setattr(index, "entry", entry)
        leave(store)
        return found

    def at_and_leave(offset: int) -> Segment:
        found = at(offset)
        calls.append(offset)
        if len(calls) == 2:
            leave(store)
        return found

    if proven:
        monkeypatch.setattr(segments, "at", at_and_leave)
    else:
        monkeypatch.setattr(index, "entry", entry_and_leave)
    with pytest.raises(Busy):
        searched(store, lookup)
    assert segments.all[0].start > 0
    assert store.damage is None
    assert store.reads.index_notes() == []
    again = store.reads.look_up(query)
    searched(store, again)
    assert again.found.slices == []


@pytest.mark.parametrize("left", [True, False])
def test_damage_in_a_file_that_has_left_is_nobody_s(left: bool) -> None:
    """What a search met below the start says nothing of the store; at or above it, it does."""
    disk = FakeDisk()
    store = grown(disk)
    first = store._log.segments.all[0]
    lookup = store.reads.look_up(KeyQuery(TOPIC, "k0", most=4))
    for entry in first.index.iterate(first.start, first.end):
        flip(disk, first.path, entry.start + 5)
    error = search(lookup)
    assert isinstance(error, CorruptionError)
    assert not lookup.bad_file
    if left:
        leave(store)
    with pytest.raises(Busy if left else CorruptionError):
        store.reads.looked_up(lookup, error)
    assert (store.damage is None) == left

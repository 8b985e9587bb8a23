"""Idempotent producers are forgotten by a record in the log, alike on every node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from storage import ForgetProducers, Outcome, Store, Token
from storage.state import producers
from storage.state.controls import decode_control, encode_control
from storage.state.producers import RETRY_SECONDS_MAX, Done, Line, Producers
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SETTINGS,
    SLAVE,
    append,
    lead,
    master,
    open_store,
    run,
    section,
    settle,
    ship,
    token,
)

KEY = (7, "flights", 0)


def send(store: Store, producer: int, sequence: int, *, epoch: int = 1) -> Outcome:
    """One section of two records."""
    one = section(2, producer=producer, sequence=sequence)
    return append(store, one, epoch=epoch)[0].outcome


def forget(store: Store, below: int, *, epoch: int = 1) -> None:
    """Append the record."""
    result = store.append_control(token(epoch), ForgetProducers(below), wall_ms=2000)
    assert result.outcome is Outcome.STORED


def lines(store: Store) -> dict[tuple[int, str, int], Line]:
    """The confirmed layer."""
    return dict(store._opened.derived.producers.confirmed())


def test_the_record_says_what_it_says() -> None:
    """And a shape that is none is a record of a later version."""
    assert decode_control(encode_control(ForgetProducers(77))) == ForgetProducers(77)


def test_the_master_forgets_from_the_append_on_and_everybody_at_its_place() -> None:
    """Old lines go, young ones stay, and a producer that returns begins anew."""
    disk, other = FakeDisk(), FakeDisk()
    store = master(disk)
    send(store, 7, 0)
    border = store.end
    send(store, 8, 0)
    forget(store, border)
    assert send(store, 8, 2) is Outcome.STORED
    assert send(store, 7, 2) is Outcome.REFUSED
    assert send(store, 7, 0) is Outcome.STORED
    settle(store)
    slave = open_store(other, who=replace(store.who, node="n2"))
    slave.take_token(SLAVE)
    ship(store, slave, SLAVE)
    settle(slave)
    assert lines(slave) == lines(store)
    assert [done.sequence for done in lines(store)[KEY].done] == [0]
    assert [done.sequence for done in lines(store)[8, "flights", 0].done] == [0, 2]


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_start_and_a_promotion_come_to_the_same(confirmed: bool) -> None:
    """By a snapshot and the log, or by the log alone."""
    disk = FakeDisk()
    store = master(disk)
    send(store, 7, 0)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.snapshot_job(force=True))
    forget(store, store.end)
    send(store, 9, 0)
    if confirmed:
        settle(store)
        run(store, store.jobs.flush_job(thorough=True))
        run(store, store.jobs.checkpoint_job())
    store.close(clean=False)
    again = open_store(disk)
    lead(again, epoch=2)
    assert send(again, 7, 2, epoch=2) is Outcome.REFUSED
    assert send(again, 9, 2, epoch=2) is Outcome.STORED
    settle(again)
    assert set(lines(again)) == {(9, "flights", 0)}


def test_a_cut_takes_it_back() -> None:
    """What was never confirmed forgets nobody."""
    store = master(FakeDisk())
    send(store, 7, 0)
    settle(store)
    end = store.end
    forget(store, end)
    store.take_token(token(1))
    run(store, store.cut_job(token(1), end))
    store.take_token(Token("master", 2, 2))
    lead(store, epoch=2)
    assert send(store, 7, 0, epoch=2) is Outcome.DUPLICATE


def layer(ends: Sequence[int]) -> Producers:
    """Lines whose last sections end there."""
    found = Producers()
    for number, end in enumerate(ends):
        found.load((number, "t", 0), Line(0, (Done(0, 1, 0, 0, end, 0),)))
    return found


def test_which_are_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never the newest; those idle for long; with many lines those that no retry can need."""
    monkeypatch.setattr(producers, "LINES_KEPT", 4)
    monkeypatch.setattr(producers, "LINES_MANY", 9)
    assert layer([1, 2, 3, 4]).stale_below(1 << 40, 1 << 40) == 0
    more = layer([1, 2, 3, 4, 5, 6, 7])
    assert more.stale_below(1 << 40, 1 << 40) == 3, "the oldest go, and as many stay as are kept"
    assert more.stale_below(2, 1 << 40) == 2
    assert more.stale_below(0, 1 << 40) == 0, "none was idle for long"
    many = layer(range(1, 11))
    assert many.stale_below(0, 3) == 3
    assert many.stale_below(0, 1 << 40) == 6
    assert many.stale_below(0, 0) == 0, "however many there are, a retry may need each"


def test_a_retry_after_very_many_other_producers_is_stored_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lines are forgotten by age: not one that the same section may still be sent for."""
    monkeypatch.setattr(producers, "LINES_KEPT", 2)
    monkeypatch.setattr(producers, "LINES_MANY", 5)
    store = master(FakeDisk())
    assert send(store, 7, 0) is Outcome.STORED
    for number in range(100, 140):
        assert send(store, number, 0) is Outcome.STORED
    settle(store)
    assert store.stale_producers(50.0) == 0
    for seconds, goes in ((RETRY_SECONDS_MAX - 1, False), (RETRY_SECONDS_MAX + 1, True)):
        below = store.stale_producers(50.0 + seconds)
        assert (below > 0) is goes
    assert send(store, 7, 0) is Outcome.DUPLICATE
    forget(store, below)
    result = append(store, section(2, producer=7, sequence=2))[0]
    assert result.code == "unknown-producer", "not out of order: an earlier attempt may be stored"


def test_a_jump_of_the_wall_clock_forgets_no_live_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record of another producer is stamped a year ahead; a retry is still a duplicate."""
    monkeypatch.setattr(producers, "LINES_KEPT", 2)
    monkeypatch.setattr(producers, "LINES_MANY", 5)
    store = master(FakeDisk())
    store.stale_producers(0.0)
    assert send(store, 7, 0) is Outcome.STORED
    for number in range(100, 140):
        store.append(token(1), [section(2, producer=number)], wall_ms=365 * 24 * 3600 * 1000)
    settle(store)
    assert store.stale_producers(RETRY_SECONDS_MAX + 1) < store.end
    forget(store, store.stale_producers(RETRY_SECONDS_MAX + 1))
    assert send(store, 7, 0) is Outcome.DUPLICATE


def test_after_a_cut_everything_counts_as_young(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is appended afterwards lies below an end that was noted before."""
    monkeypatch.setattr(producers, "LINES_KEPT", 2)
    monkeypatch.setattr(producers, "LINES_MANY", 5)
    store = master(FakeDisk())
    border = store.end
    send(store, 7, 0)
    assert store.stale_producers(0.0) == 0
    run(store, store.cut_job(token(1), border))
    for number in range(100, 140):
        send(store, number, 0)
    settle(store)
    assert store.stale_producers(RETRY_SECONDS_MAX + 1) == 0


def test_where_every_line_is_young_a_new_producer_is_told_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that have a line go on; once there is room, the new one begins."""
    monkeypatch.setattr(producers, "LINES_MAX", 3)
    store = master(FakeDisk())
    for number in (7, 8, 9):
        assert send(store, number, 0) is Outcome.STORED
    border = store.end
    one = section(2, producer=10)
    assert append(store, one)[0].code == "busy"
    assert [result.code for result in append(store, one, section(2), one)] == ["busy", "", "busy"]
    assert send(store, 9, 2) is Outcome.STORED
    settle(store)
    forget(store, border - 1)
    settle(store)
    assert send(store, 10, 0) is Outcome.STORED


def test_a_snapshot_is_due_by_control_records() -> None:
    """What a start has to apply again is bounded."""
    disk = FakeDisk()
    store = master(disk, settings=replace(SETTINGS, control_bytes=1000))
    run(store, store.jobs.snapshot_job(force=True))
    assert store.jobs.snapshot_job() is None
    while store._opened.derived.dispatcher.control_bytes < 1000:
        forget(store, 1)
        settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.snapshot_job())
    assert store.snapshot_at == store.dispatched
    assert store.jobs.snapshot_job() is None

"""Idempotent producers are forgotten by a record in the log, alike on every node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage import ForgetProducers, Outcome, Store, Token, producers
from storage.producers import Done, Line, Producers
from storage.state import decode_control, encode_control
from tests.crash.workbench import (
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
from tests.fakes.disk import FakeDisk

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
    return dict(store._derived.producers.confirmed())


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
    run(store, store.flush_job(thorough=True))
    run(store, store.snapshot_job(force=True))
    forget(store, store.end)
    send(store, 9, 0)
    if confirmed:
        settle(store)
        run(store, store.flush_job(thorough=True))
        run(store, store.checkpoint_job())
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


def test_which_are_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never the newest; old ones; beyond the limit young ones too."""
    monkeypatch.setattr(producers, "LINES_KEPT", 3)
    monkeypatch.setattr(producers, "LINES_MAX", 6)
    layer = Producers()
    for number in range(3):
        layer.load((number, "t", 0), Line(0, (Done(0, 1, 0, 0, 100 * number + 100, 0),)))
    assert layer.stale_below(10_000) == 0
    layer.load((3, "t", 0), Line(0, (Done(0, 1, 0, 0, 400, 0),)))
    assert layer.stale_below(99) == 0
    assert layer.stale_below(10_000) == 100
    for number in range(4, 7):
        layer.load((number, "t", 0), Line(0, (Done(0, 1, 0, 0, 100 * number + 100, 0),)))
    assert layer.stale_below(0) == 400
    layer.forget(400, confirmed=True)
    assert len(layer) == 3


def test_a_snapshot_is_due_by_control_records() -> None:
    """What a start has to apply again is bounded."""
    disk = FakeDisk()
    store = master(disk, settings=replace(SETTINGS, control_bytes=1000))
    run(store, store.snapshot_job(force=True))
    assert store.snapshot_job() is None
    while store._derived.dispatcher.control_bytes < 1000:
        forget(store, 1)
        settle(store)
    run(store, store.flush_job(thorough=True))
    run(store, store.snapshot_job())
    assert store.snapshot_at == store.dispatched
    assert store.snapshot_job() is None

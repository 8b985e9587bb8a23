"""Questions about transactions: when they are due, who is asked, what counts, when it ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node.transactions import checks
from node.transactions.checks import Asks, Checks, CheckSettings, parse_checks
from storage.messaging.halves import Half, Halves, HalvesAhead
from tests.fakes.deliveries import START_MS
from tests.stores.records.halves import Producer, World, halves
from tests.stores.workbench import TOPIC, append, lead, settle, token
from twinlog.errors import Busy, TransactionSettled, UsageError
from twinlog.format.group_rows import COMMIT, ROLLBACK, CheckRow, HalfRow
from twinlog.format.messages import messages_of
from twinlog.format.record import encode_properties
from twinlog.format.system_topics import GIVEN_UP_TOPIC
from twinlog.format.waiting.halves import IMMUNITY, half_text

FIRST = START_MS + 6_000
FEW = CheckSettings(checks=4)


def open_world() -> World:
    """A master with three messages of one transaction, for two queues, and one of another."""
    world = World()
    append(world.store, halves(2), halves(queue=3, mark=5), halves(name="other", mark=7))
    settle(world.store)
    return world


def numbers(said: list[Any]) -> list[list[int]]:
    """The rows of an answer: number and how often it was asked about."""
    found: list[list[int]] = said[0]["rows"]
    return found


def test_a_producer_that_waits_is_asked_about_whole_transactions_when_they_are_due() -> None:
    world = open_world()
    said = world.ask()
    world.at(FIRST - 1)
    assert said == []
    assert world.transactions.next_deadline(world.now) == pytest.approx(world.now + 0.001)
    world.at(FIRST)
    assert numbers(said) == [[0, 1], [1, 1], [2, 1], [3, 1]]
    found = [(one.queue_offset, one.body.rstrip(b".")) for one in messages_of(said[1])]
    assert found == [(0, b"0/0/"), (1, b"0/1/"), (2, b"5/0/"), (3, b"7/0/")]
    assert [row[6:] for row in world.listed()] == [[1, FIRST + 12_000]] * 4
    assert world.copies() == [], "a question stores no copy"


def test_the_pauses_double_up_to_a_minute_and_then_it_is_given_up_in_one_batch() -> None:
    world = World()
    world.transactions.asking._settings = world.transactions.asking.due._settings = FEW
    append(world.store, halves(2), halves(queue=3, mark=5))
    settle(world.store)
    at = FIRST
    for number, pause in enumerate((12, 24, 48, 60), 1):
        said = world.ask()
        world.at(at - 1)
        assert said == []
        world.at(at)
        assert numbers(said) == [[0, number], [1, number], [2, number]]
        at += 1000 * pause
    world.at(at - 1)
    assert world.open() == [0, 1, 2], "the last question may still be answered"
    before = len(world.batches)
    world.at(at)
    assert world.open() == []
    assert world.copies(GIVEN_UP_TOPIC) == [b"0/0/", b"0/1/", b"5/0/"]
    assert len(world.batches) == before + 1
    assert world.told == ["transaction_given_up"]
    counts = world.transactions.asking.counts
    assert (counts.none, counts.committed, counts.rolled_back) == (12, 0, 0)
    with pytest.raises(TransactionSettled, match="given-up"):
        world.end(0)


def test_nothing_counts_while_nobody_is_there() -> None:
    """No producer, one of another group, one that is gone, one that does not take its answers."""
    world = open_world()
    other, gone, slow = Producer(), Producer(), Producer()
    gone.gone = slow.congested = True
    answers = [world.ask(group="else", asker=other)]
    answers += [world.ask(asker=one) for one in (gone, slow)]
    world.at(FIRST + 5 * 60_000)
    rows = world.listed()
    assert [row[6] for row in rows] == [0] * 4
    assert world.transactions.next_deadline(world.now) > world.now, "it does not spin"
    world.transactions.asking.forget(gone)  # type: ignore[arg-type]
    assert numbers(world.ask()) == [[0, 1], [1, 1], [2, 1], [3, 1]]
    world.at(world.wall_ms + 3_600_000)
    assert [numbers(one) for one in (answers[0], answers[2])] == [[], []]


def test_what_a_message_says_of_itself_counts_for_the_first_question() -> None:
    world = World()
    text = half_text("shop", "7f", TOPIC, 0) + encode_properties({IMMUNITY: "600"})
    text_0 = half_text("shop", "8f", TOPIC, 0) + encode_properties({IMMUNITY: "0"})
    append(world.store, halves(text=text), halves(text=text_0))
    settle(world.store)
    assert numbers(world.ask()) == [[1, 1]]
    said = world.ask(wait=3600)
    world.at(START_MS + 12_000)
    assert numbers(said) == [[1, 2]]
    world.end(1)
    said = world.ask(wait=3600)
    world.at(START_MS + 599_999)
    assert said == []
    world.at(START_MS + 600_000)
    assert numbers(said) == [[0, 1]]
    assert world.transactions.asking.counts.committed == 1


def test_a_new_master_goes_on_where_the_last_one_was() -> None:
    world = open_world()
    said = world.ask()
    world.at(FIRST)
    assert len(numbers(said)) == 4
    settle(world.store)
    lead(world.store, epoch=2)
    settle(world.store)
    after = World(world.store, writer=token(2), wall_ms=FIRST)
    again = after.ask()
    after.at(FIRST + 11_999)
    assert again == []
    after.at(FIRST + 12_000)
    assert [row[1] for row in numbers(again)] == [2] * 4


def test_a_question_that_could_not_be_counted_was_not_asked() -> None:
    world = open_world()
    said = world.ask()
    world.refusal = "disk-full"
    world.at(FIRST)
    assert [one.code for one in said] == ["disk-full"]
    world.refusal = ""
    said = world.ask()
    assert said == [], "it is not asked again at once"
    world.at(FIRST + 1_000)
    assert [row[1] for row in numbers(said)] == [1] * 4


def test_cold_records_are_fetched_and_an_end_meanwhile_is_not_asked_about() -> None:
    world = open_world()
    world.store.reads._lookups._hot_bytes = 0
    said = world.ask()
    world.at(FIRST)
    assert world.fetches > 0
    assert len(numbers(said)) == 4
    world.end(0, 1, 2, outcome=ROLLBACK)
    said = world.ask()
    world.at(FIRST + 12_000)
    assert numbers(said) == [[3, 2]]
    assert world.transactions.asking.counts.rolled_back == 3


def test_an_answer_has_as_many_transactions_as_were_asked_for() -> None:
    world = open_world()
    world.at(FIRST)
    assert numbers(world.ask(most=1)) == [[0, 1], [1, 1], [2, 1]]
    assert numbers(world.ask(most=1)) == [[3, 1]]
    assert world.ask(wait=0)[0]["rows"] == []


def test_a_group_is_asked_about_so_many_messages_a_second(monkeypatch: Any) -> None:
    monkeypatch.setattr(checks, "PER_SECOND", 3)
    world = open_world()
    world.at(FIRST)
    assert len(numbers(world.ask())) == 3
    said = world.ask()
    assert said == []
    world.at(FIRST + 1_000)
    assert numbers(said) == [[3, 1]]


def test_requests_have_limits() -> None:
    world = World()
    for fields in ({"most": 0}, {"most": 1_001}, {"wait": -1.0}, {"group": ""}):
        with pytest.raises(UsageError):
            world.ask(**fields)  # type: ignore[arg-type]
    one = Producer()
    for _ in range(checks.ASKS_OF_ONE_MAX):
        world.ask(asker=one)
    with pytest.raises(Busy, match="asks_of_one_max"):
        world.ask(asker=one)
    asks = Asks()
    fields: Any = {"group": "shop", "max": 1, "wait_ms": 1_000}
    for _ in range(checks.ASKS_MAX):
        asks.add(parse_checks(fields, Producer(), lambda *_: None, 0.0, 30.0))  # type: ignore[arg-type]
    with pytest.raises(Busy, match="asks_max"):
        asks.add(parse_checks(fields, Producer(), lambda *_: None, 0.0, 30.0))  # type: ignore[arg-type]
    assert len(asks.over(1.0)) == checks.ASKS_MAX
    assert asks.next_deadline() == float("inf")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("enter"), st.integers(0, 3), st.integers(0, 30)),
            st.tuples(st.just("end"), st.integers(0, 3), st.integers(0, 1)),
            st.tuples(st.just("wait"), st.integers(1, 40), st.just(0)),
        ),
        max_size=40,
    ),
    st.booleans(),
)
@example([("enter", 0, 0), ("end", 0, 0), ("enter", 0, 0), ("wait", 6, 0)], False)
def test_what_is_taken_is_what_a_naive_model_takes(
    steps: list[tuple[str, int, int]], tidy: bool
) -> None:
    """All open messages of the transaction whose oldest open message was due first."""
    checks._SPARE = -2 if tidy else 1_024  # type: ignore[misc]
    settings = CheckSettings(checks=2)
    base, due, now = Halves(), Checks(settings), 0
    ahead = HalvesAhead(base)
    due.follow(ahead, 0)
    for what, number, immunity in steps:
        if what == "enter":
            place = base.end
            base.enter(Half(place, 100 * place, 50, now, "g", f"t{number}", immunity * 1000))
            due.follow(ahead, base.count)
        elif what == "end":
            mine = [half.number for half in ahead.open() if half.name == f"t{number}"]
            for ended in mine[-1:] if immunity else mine:
                ahead.apply(HalfRow(ended, COMMIT))
                base.apply(HalfRow(ended, COMMIT))
        else:
            now += number * 1000
        while True:
            found = due.take("g", now, ahead)
            oldest: dict[str, Half] = {}
            for half in ahead.open():
                oldest.setdefault(half.name, half)
            ready = {
                one.name for one in oldest.values() if settings.due(one) <= now and one.checks < 2
            }
            if not found:
                assert not ready
                break
            assert found[0].name in ready
            assert found == [half for half in ahead.open() if half.name == found[0].name]
            for half in found:
                row = CheckRow(half.number, found[0].checks + 1, now + settings.pause(1))
                assert ahead.check(row)
                if tidy:
                    base.check(row)
            due.put(found, ahead)
        over = due.exhausted(now, ahead)
        assert not over or over[0].checks == 2
    checks._SPARE = 1_024  # type: ignore[misc]

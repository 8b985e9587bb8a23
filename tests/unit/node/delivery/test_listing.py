"""What waits, shown: pages of messages, counts, delay levels; over a real store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from node.delivery import listing
from node.delivery.listing import Listing
from storage import CreateTopic, Store
from tests.stores.records.delayed import delayed
from tests.stores.records.timed import World, timed
from tests.stores.workbench import TOPIC, append, lead, settle
from twinlog.errors import UsageError
from twinlog.wire import schema
from twinlog.wire.frames import ANSWER, Frame, Type

OBSERVED: Mapping[str, object] = {"node": "n1", "role": "slave", "age_ms": 4_000}


class Asker:
    """Asks what waits in the store of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listing = Listing(world.context, lambda: OBSERVED, world.fetch)

    def ask(self, what: str, first: int = 0, limit: int = 1000, **more: object) -> dict[str, Any]:
        """Return the one answer, which the wire takes."""
        said: list[dict[str, Any]] = []
        settle(self.world.store)
        fields = {"what": what, "first": first, "limit": limit, **more}
        schema.check(Frame(Type.WAITING, fields=fields))
        self.listing.answer(fields, None, lambda found, payload=(): said.append(found))  # type: ignore[arg-type]
        [answer] = said
        schema.check(Frame(Type.WAITING, flags=ANSWER, fields=answer))
        return answer

    def pages(self, limit: int, topic: str | None = None) -> Iterator[list[Any]]:
        """Yield page after page."""
        first, offset = 0, -1
        while True:
            answer = self.ask("timers", first, limit, offset=offset, topic=topic)
            yield answer["messages"]
            if "next_offset" not in answer:
                return
            first, offset = answer["next"], answer["next_offset"]


def test_pages_have_every_message_once_in_the_order_in_which_they_come() -> None:
    """Whatever the size of a page; of one second in the order of the log."""
    world = World()
    append(world.store, timed(9_000, 2, mark=3, queue=1), timed(5_250, 3, mark=1))
    append(world.store, timed(5_249, mark=2), timed(60_000, mark=4))
    asker = Asker(world)
    keys = ["k2", "k1", "k1", "k1", "k3", "k3", "k4"]
    for limit in (1, 2, 3, 7, 1000):
        pages = list(asker.pages(limit))
        assert [one["key"] for page in pages for one in page] == keys
        assert max(map(len, pages)) == min(limit, 7)
        assert all(pages), "there is no page without messages"
    [first, *_] = asker.ask("timers", 0, 1)["messages"]
    assert (first["due_ms"], first["topic"], first["queue"], first["bytes"]) == (
        5_249,
        TOPIC,
        0,
        20,
    )
    assert asker.ask("timers", 9_000, 1)["messages"][0]["key"] == "k3"
    assert asker.ask("timers", 9_001, 1)["messages"][0]["key"] == "k4"


def test_what_is_delivered_or_taken_back_is_not_shown() -> None:
    world = World()
    append(world.store, timed(5_000, mark=1), timed(9_000, 2, mark=2))
    world.work()
    second = world.store.messaging.confirmed.timers.page((9_000, -1), 2)[1]
    world.at(5_000)
    assert world.cancel(second.due, second.offset) is None
    answer = Asker(world).ask("timers")
    assert [one["log_offset"] for one in answer["messages"]] == [second.offset - second.size]
    assert (answer["waiting"], answer["age_ms"], answer["node"]) == (1, 4_000, "n1")
    assert "next_offset" not in answer


def test_a_page_for_one_topic_leaves_the_others_out_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pages without any of it, too; and a page ends with its bytes."""
    monkeypatch.setattr(listing, "PAGE_RECORDS", 4)
    monkeypatch.setattr(listing, "PAGE_BYTES", 700)
    world = World()
    world.store.append_control(world.writer, CreateTopic("u", 1, 1), wall_ms=2_000)
    settle(world.store)
    for number in range(10):
        append(world.store, timed(5_000 + number, mark=number, topic="u" if number == 7 else TOPIC))
    pages = list(Asker(world).pages(1000, "u"))
    assert [one["key"] for page in pages for one in page] == ["k7"]
    assert len(pages) > 3


def test_counts_by_second_minute_and_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends between two counts, never within one."""
    world = World()
    for due in (5_000, 5_999, 6_000, 59_999, 60_000, 3_600_000, 7_200_000):
        append(world.store, timed(due))
    asker = Asker(world)
    ask = asker.ask
    assert ask("times", by="second")["counts"][:3] == [[5_000, 2], [6_000, 1], [59_000, 1]]
    minutes = [[0, 4], [60_000, 1], [3_600_000, 1], [7_200_000, 1]]
    assert (ask("times", by="minute")["counts"], ask("times")["next"]) == (minutes, -1)
    assert ask("times", by="hour")["counts"] == [[0, 5], [3_600_000, 1], [7_200_000, 1]]
    assert ask("times", 61_000, by="minute")["counts"] == minutes[1:]
    monkeypatch.setattr(listing, "PAGE_SECONDS", 2)
    found, first = list[list[int]](), 0
    while first >= 0:
        page = ask("times", first, by="minute")
        found, first = found + page["counts"], page["next"]
    assert found == minutes
    with pytest.raises(UsageError):
        ask("times", by="day")
    with pytest.raises(UsageError):
        ask("dreams")


def test_levels_with_their_next_due() -> None:
    """Of those that something waits for."""
    world = World()
    append(world.store, delayed(1, 2), delayed(3, 1))
    append(world.store, timed(9_000))
    levels = Asker(world).ask("delays")["levels"]
    assert levels == [
        {"level": 1, "delay_ms": 1_000, "waiting": 2, "due_ms": 3_000},
        {"level": 3, "delay_ms": 10_000, "waiting": 1, "due_ms": 12_000},
    ]
    shown = Asker(world).listing.overview("hour", 0)
    assert (shown["counts"], shown["levels"]) == ([[0, 1]], levels)


def test_a_master_that_began_anew_shows_the_same() -> None:
    """What is shown follows the log."""
    world = World()
    append(world.store, timed(9_000, 3))
    before = Asker(world).ask("timers")["messages"]
    store: Store = world.store
    lead(store, epoch=2)
    assert Asker(World(store)).ask("timers")["messages"] == before
    assert len(before) == 3


def test_a_large_second_is_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages are the same."""
    world = World()
    append(world.store, timed(9_500, 3, mark=1), timed(9_001, 3, mark=2))
    small = list(Asker(world).pages(2))
    monkeypatch.setattr("storage.messaging.timers.LARGE", 2)
    assert list(Asker(world).pages(2)) == small

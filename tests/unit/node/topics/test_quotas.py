"""Quotas: what is admitted in the long run is what the quota says, and nothing waits for ever."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.topics.altering import parse_alter, terms_of
from node.topics.quotas import TELL_SECONDS, Quota, Quotas
from storage.state.sections import Section
from storage.state.topics import Topic
from twinlog.errors import UsageError
from twinlog.format.record import RecordEncoder
from twinlog.format.system_topics import DELAY_TOPIC
from twinlog.format.waiting.delay_levels import waiting_text


class World:
    """Quotas with limits that can be changed, and what they told."""

    def __init__(self, **limits: Quota) -> None:
        self.limits: Mapping[str, Quota] = limits
        self.told: list[dict[str, object]] = []
        self.quotas = Quotas(lambda: self.limits, self._tell)
        self.quotas.active()

    def _tell(self, name: str, level: str, **facts: object) -> None:
        self.told.append({"name": name, **facts})

    def send(self, now: float, *sections: Section) -> int:
        """Milliseconds to wait; 0: admitted."""
        assert self.quotas.active()
        over = self.quotas.admit(sections, now)
        return 0 if over is None else round(over.retry_after * 1000)


def records(count: int, size: int = 10, topic: str = "t") -> Section:
    """A section."""
    return Section(topic, 0, count, bytes(size))


def test_without_a_quota_there_is_nothing_to_ask() -> None:
    """One look for a turn of many requests."""
    world = World()
    assert not world.quotas.active()
    world.limits = {"t": (1, 0)}
    assert world.quotas.active()


def test_a_burst_of_a_second_and_then_the_rate() -> None:
    """And the time that is named is the one after which it is admitted."""
    world = World(t=(10, 0))
    assert [world.send(0.0, records(5)) for _ in range(3)] == [0, 0, 100]
    assert world.send(0.099, records(5)) > 0
    assert world.send(0.1, records(5)) == 0
    assert world.send(0.1, records(1)) == 500
    assert world.send(100.0, records(1), records(1, topic="other")) == 0


def test_one_request_may_be_larger_than_the_quota_of_a_second() -> None:
    """It is paid for afterwards: no size waits for ever."""
    world = World(t=(0, 1000))
    assert world.send(0.0, records(1, 5000)) == 0
    wait = world.send(0.0, records(1, 1))
    assert wait == 4001
    assert world.send(wait / 1000, records(1, 1)) == 0


def test_what_is_not_stored_gets_its_tokens_back() -> None:
    """Never more than a bucket holds."""
    world = World(t=(10, 0))
    section = records(10)
    assert world.send(0.0, section) == 0
    world.quotas.give_back(section)
    world.quotas.give_back(section)
    assert [world.send(0.0, section) > 0 for _ in range(2)] == [False, True]


def test_a_request_for_two_topics_takes_nothing_where_one_refuses() -> None:
    """It names the one that does."""
    world = World(t=(10, 0), u=(10, 0))
    world.send(0.0, records(10, topic="u"))
    over = world.quotas.admit([records(10), records(1, topic="u")], 0.0)
    assert over is not None
    assert (over.retry_after, "topic u " in over.text) == (0.1, True)
    assert world.send(0.0, records(10)) == 0
    assert world.quotas.refused == {"u": 1}


def test_a_change_of_a_quota_counts_at_once() -> None:
    """Another topic's bucket stays as it is."""
    world = World(t=(10, 0), u=(10, 0))
    world.send(0.0, records(10), records(10, topic="u"))
    world.limits = {"t": (20, 0), "u": (10, 0)}
    assert world.send(0.0, records(1)) == 0
    assert world.send(0.0, records(1, topic="u")) == 100


def test_it_is_told_now_and_then() -> None:
    """Not for each request that is refused."""
    world = World(t=(1, 0))
    world.send(0.0, records(100))
    for now in (0.0, 1.0, TELL_SECONDS - 0.1, TELL_SECONDS, TELL_SECONDS + 1):
        assert world.send(now, records(1)) > 0
    facts = {"name": "quota_reached", "topic": "t", "records": 1, "bytes": 0}
    assert world.told == [facts, facts]
    assert world.quotas.refused == {"t": 5}


def test_what_waits_for_a_delay_counts_for_the_topic_that_it_goes_to() -> None:
    """At once, when it is sent."""
    encoder = RecordEncoder(DELAY_TOPIC, 2)
    encoder.add(b"x", properties=waiting_text(3, "t", 0), born_timestamp=1)
    waiting = Section(DELAY_TOPIC, 2, 1, encoder.take())
    world = World(t=(1, 0))
    assert [world.send(0.0, waiting) for _ in range(2)] == [0, 1000]


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 50), st.integers(1, 500))),
    st.integers(0, 20),
    st.integers(0, 200),
)
def test_no_more_is_admitted_than_the_quota(
    sends: list[tuple[int, int, int]], rate: int, size: int
) -> None:
    """In any time: the rate, a burst of one second, and one request."""
    world = World(t=(rate, size))
    now_ms, admitted = 0, [0, 0]
    for later, count, length in sends:
        now_ms += later
        before = list(admitted)
        if not rate and not size:
            return
        if world.send(now_ms / 1000, records(count, length)) == 0:
            admitted = [admitted[0] + count, admitted[1] + length]
        for have, each in zip(before, (rate, size), strict=True):
            if each and admitted != before:
                assert have < each * (now_ms / 1000 + 1) + 1e-6


def test_an_order_names_what_it_alters() -> None:
    """With more queues all of them take messages, unless it says otherwise."""
    change = parse_alter({"queues": 8, "plan": True}, "t", 7)
    assert (change.queues, change.write_queues, change.permission) == (8, 8, None)
    assert parse_alter({"queues": 8, "write_queues": 2}, "t", 7).write_queues == 2
    assert terms_of(change.of(Topic("t", 4, 1, write_queues=2)))["write_queues"] == 8
    for wrong in ({}, {"queues": "8"}, {"permission": True}):
        with pytest.raises(UsageError):
            parse_alter(wrong, "t", 7)

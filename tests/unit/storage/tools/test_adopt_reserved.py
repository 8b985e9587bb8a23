"""The topics of RocketMQ's timers and transactions are no user's topics on an adopted store."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import CreateTopic, Outcome, Token
from storage.state.layers import Layers
from storage.state.topics import Gone, State, Topic
from tests.stores.adopted import adopt, adopted
from tests.stores.golden import unpack
from tests.stores.records.timed import timed
from tests.stores.workbench import settle
from twinlog.format.system_topics import DELAY_TOPIC, HALF_TOPIC, OP_TOPIC, TIMER_TOPIC

OURS = [DELAY_TOPIC, HALF_TOPIC, OP_TOPIC, TIMER_TOPIC]


@pytest.mark.parametrize("case", ["05-timer", "06-transaction"])
def test_adoption_creates_none_of_them(tmp_path: Path, case: str) -> None:
    """Their records are there and are read; what they are for does not need a topic."""
    value = adopt(unpack(case, tmp_path))
    assert not {name for name, _ in value.topics}.intersection(OURS)
    assert {name for name, _ in value.left_out}.intersection([TIMER_TOPIC, OP_TOPIC])


def test_a_resend_to_an_adopted_store_is_recognised(tmp_path: Path) -> None:
    """Also before it is dispatched; and what could never be delivered is refused."""
    store = adopted(unpack("05-timer", tmp_path))
    settle(store)
    topic, now = next(iter(store.reads.topics())), store.reads.timestamp
    before = store.messaging.confirmed.timers.count
    writer, found = Token("master", store.last_epoch, 1), list[Outcome]()
    for sequence in (0, 0, 1, 1):
        sent = timed(now + 90_000, topic=topic, producer=7, sequence=sequence)
        found += [one.outcome for one in store.append(writer, [sent], wall_ms=now)]
    assert found == [Outcome.STORED, Outcome.DUPLICATE] * 2
    [lost] = store.append(writer, [timed(now + 90_000, topic="nowhere")], wall_ms=now)
    assert lost.code == "unknown-topic"
    settle(store)
    assert store.messaging.confirmed.timers.count == before + 2


@pytest.mark.parametrize("name", OURS)
def test_what_older_versions_created_is_gone_from_snapshot_and_log(name: str) -> None:
    """Both give the same state, so nodes that read the one or the other agree."""
    old = Topic(name, 8, 1, batch=True)
    state, replayed = State([old], [name], deleted=[Gone(name, 5, 1)]), State()
    assert not state.add(old)
    assert not CreateTopic(name, 8, 1, batch=True).apply(replayed, 9)
    for one in state, replayed:
        assert (one.topics, one.batched, one.deleted) == ({}, set(), {})
        assert one.queues(name)
    assert name not in Layers(state).open

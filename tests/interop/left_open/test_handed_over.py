"""H5, H6, H7: RocketMQ's groups go on in a store that was handed over, and ours after them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage import Section
from storage.disk.disk import RealDisk
from storage.messaging.copies import UNDELIVERABLE, dead_letters, dead_topic
from storage.state.controls import CreateTopic
from storage.tools.handover import carry_out, plan_handover
from storage.tools.recover import recover
from tests.stores.adopted import adopted
from tests.stores.unsettled import ADOPTABLE, ATTEMPTS, OPEN, unsettled
from tests.stores.workbench import TOPIC, append, section, settle, token
from twinlog.store.reader import StoreReader

pytestmark = pytest.mark.interop

SEGMENT_SIZE, QUEUE_SIZE = 256 * 1024, 2_000
SETTINGS = replace(
    ADOPTABLE, segment_size=SEGMENT_SIZE, queue_segment_entries=QUEUE_SIZE // 20,
    store_host=("127.0.0.1", 7410),
)  # fmt: skip
RETRY = "%RETRY%billing"
DEAD = dead_topic("billing")


def handed_over(root: Path, *, killed: bool) -> None:
    """A store of ours with open, dead and undeliverable messages, handed over."""
    root.mkdir()
    store = unsettled(RealDisk(root), SETTINGS)
    for name in (DEAD, UNDELIVERABLE):
        store.append_control(token(1), CreateTopic(name, 1, 1), wall_ms=1_000)
    settle(store)
    found = store.reads.read(TOPIC, 2, 0, max_bytes=1 << 20, max_records=1)
    dead = dead_letters(found.slices, "billing", "attempts")
    append(store, Section(DEAD, 0, dead.records, dead.data, own=True))
    append(store, section(1, topic=UNDELIVERABLE, key="lost"))
    settle(store)
    store.commit()
    store.close(clean=not killed)
    if killed:
        assert recover(RealDisk(root), wall_ms=3_000).clean
    assert carry_out(RealDisk(root), wall_ms=5_000).copies == len(OPEN)


def opened(judge: Any, root: Path) -> None:
    """Let RocketMQ open it."""
    answer = judge.ask(
        "open", dir=str(root), commit_log_size=SEGMENT_SIZE, queue_size=QUEUE_SIZE
    )  # fmt: skip
    assert answer["loaded"] is True


def numbers(judge: Any, group: str) -> dict[str, list[tuple[int, int]]]:
    """(number, attempts) of the messages of queue 0 and 2 that a group gets, by topic."""
    answer = judge.ask("consume", group=group, topics=[TOPIC])
    assert answer["known"] is True
    found: dict[str, list[tuple[int, int]]] = {}
    for one in answer["got"]:
        number = int(one["body"].split("/")[1])
        found.setdefault(one["topic"], []).append((number, one["attempts"]))
    return found


@pytest.mark.parametrize("killed", [False, True])
def test_each_group_gets_what_it_had_not_settled_once(
    judge: Any, tmp_path: Path, killed: bool
) -> None:
    """Then the store is taken back, and nobody gets anything twice."""
    root = tmp_path / "ours"
    handed_over(root, killed=killed)
    opened(judge, root)
    got = numbers(judge, "billing")
    assert got[RETRY] == [(number, ATTEMPTS[number]) for number in OPEN]
    assert sorted(got[TOPIC]) == sorted([(n, 0) for n in range(10, 20)] + [(4, 0), (5, 0)])
    assert numbers(judge, "billing") == {}
    assert numbers(judge, "lane")[TOPIC][:6] == [(number, 0) for number in range(6)]
    table = {one["topic"]: one for one in judge.ask("dump")["queues"]}
    for topic, key in ((DEAD, "b-0"), (UNDELIVERABLE, "lost-0")):
        [place] = [entry[1] for entry in table[topic]["entries"]]
        # Killed before it had a key index: one of the default size was made, not the judge's.
        assert killed or judge.ask("query", topic=topic, key=key)["physical_offsets"] == [place]
    judge.ask("close")

    with StoreReader(root) as reader:
        before = Counter((one.topic, one.body) for one in reader.records())
    assert before[RETRY, b"0/0/".ljust(50, b".")] == 1
    store = adopted(root)
    settle(store)
    lows = {
        (one.group, one.topic, one.queue): one.low for one in store.messaging.confirmed.shares()
    }
    assert lows["billing", TOPIC, 0] == 20
    assert lows["billing", RETRY, 0] == len(OPEN)
    store.close(clean=True)


def test_it_cannot_be_handed_over_again_after_rocketmq(judge: Any, tmp_path: Path) -> None:
    """What is in it is RocketMQ's by then: the second call finds nothing to do."""
    root = tmp_path / "ours"
    handed_over(root, killed=False)
    opened(judge, root)
    judge.ask("close")
    with StoreReader(root) as reader:
        value = plan_handover(RealDisk(root), reader)
    assert (value.copied, value.begun, value.unfinished) == ((), True, False)

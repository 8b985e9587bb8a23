"""An adopted store knows which transactions of RocketMQ's are open, and delivers none again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from storage import Store, Token
from storage.disk.disk import RealDisk
from storage.tools.adopt import plan_adoption
from storage.tools.repair import carry_out, plan_repair
from tests.stores.adopted import adopted
from tests.stores.golden import CONSUMERS, unpack
from tests.stores.records.halves import World
from tests.stores.workbench import log_records, settle
from twinlog.errors import TransactionSettled
from twinlog.format.group_rows import ROLLBACK
from twinlog.format.messages import messages_of
from twinlog.format.system_topics import GIVEN_UP_TOPIC, HALF_TOPIC
from twinlog.store.reader import StoreReader

TRUTHS: dict[str, Any] = json.loads((CONSUMERS / "truths.json").read_text("utf-8"))
CASES = ["22-transaction-crash", "22b-transaction-doubled"]


def unpacked(case: str, into: Path) -> Path:
    """The directory, repaired where it was not stopped cleanly."""
    root = unpack(case, into, CONSUMERS)
    with StoreReader(root) as reader:
        if not reader.clean:
            plan = plan_repair(reader)
            carry_out(RealDisk(root), plan, reader=reader, wall_ms=1_795_400_000_000)
    return root


def leading(store: Store) -> World:
    """A master of it that asks about transactions."""
    settle(store)
    token = Token("master", store.last_epoch, 1)
    return World(store, writer=token, wall_ms=store.reads.timestamp)


@pytest.mark.parametrize("case", CASES)
def test_open_messages_are_asked_about_and_ended_once(tmp_path: Path, case: str) -> None:
    """22: RocketMQ asks about all 73, and delivers 23 of them again. 22b: a message has up to four
    halves, and was delivered three times."""
    truth = TRUTHS[case]
    wanted = {one[3]: (*one[:3], one[4]) for one in truth["open"]}
    store = adopted(unpacked(case, tmp_path))
    begin = store.end
    world = leading(store)
    assert [row[0] for row in world.listed()] == sorted(wanted)
    assert {(row[0], row[4]) for row in world.listed()} == {
        (number, one[3]) for number, one in wanted.items()
    }
    [group] = {one[3] for one in wanted.values()}
    said = world.ask(group=group)
    world.at(world.wall_ms + 6_000)
    asked = {one.queue_offset: one for one in messages_of(said[1])}
    assert sorted(asked) == sorted(wanted)
    first, *rest = sorted(wanted)
    world.end(first, group=group, outcome=ROLLBACK)
    for number in rest:
        world.end(number, group=group)
        world.end(number, group=group)
    with pytest.raises(TransactionSettled):
        world.end(first, group=group)
    settle(store)
    found = [one for one in log_records(store) if one.log_offset >= begin and one.sys_flag & 8]
    places = Counter((one.topic, one.queue, one.properties["UNIQ_KEY"]) for one in found)
    assert places == Counter(wanted[number][:3] for number in rest)
    assert world.listed() == []
    assert store.messaging.held() == store.confirm


@pytest.mark.parametrize("case", CASES)
def test_the_plan_tells_what_would_have_been_asked_about_for_nothing(
    tmp_path: Path, case: str
) -> None:
    root = unpacked(case, tmp_path)
    with StoreReader(root) as ours, StoreReader(root, rocketmq=True) as reader:
        value = plan_adoption(reader, ours).halves
    assert len(value.rows) == len(TRUTHS[case]["open"])
    assert value.repeated == TRUTHS[case]["committed_without_op"]


def test_what_is_adopted_is_given_up_like_any_other(
    tmp_path: Path,
) -> None:
    root = unpacked("22b-transaction-doubled", tmp_path)
    store = adopted(root)
    world = leading(store)
    count = len(TRUTHS["22b-transaction-doubled"]["open"])
    before = len([one for one in log_records(store) if one.topic == GIVEN_UP_TOPIC])
    halves = len([one for one in log_records(store) if one.topic == HALF_TOPIC])
    world.at(world.wall_ms + 73 * 3_600_000)
    settle(store)
    found = log_records(store)
    assert len([one for one in found if one.topic == GIVEN_UP_TOPIC]) == before + count
    assert len([one for one in found if one.topic == HALF_TOPIC]) == halves
    assert world.open() == []

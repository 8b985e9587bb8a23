"""An adopted store knows RocketMQ's groups: positions, policies, and what POP had out."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from storage import Store
from storage.errors import ForeignStore
from storage.messaging.groups import Retry
from storage.messaging.share import LEASED, SETTLED
from storage.recovery.group_export import BROADCAST
from storage.tools.adopt import plan_adoption
from storage.tools.adopt_groups import read_consumed
from tests.stores.adopted import adopted
from tests.stores.golden import CONSUMERS, manifest, unpack
from tests.stores.workbench import settle
from twinlog.store.reader import StoreReader
from twinlog.store.rocketmq_config import parse

TRUTHS: dict[str, dict[str, Any]] = json.loads((CONSUMERS / "truths.json").read_text("utf-8"))


def opened(case: str, tmp_path: Path) -> tuple[Path, Store]:
    """The adopted store of a case."""
    root = unpack(case, tmp_path, CONSUMERS)
    store = adopted(root)
    settle(store)
    return root, store


def places(store: Store) -> list[tuple[str, str, int, int]]:
    """Where each group is."""
    shares = store.messaging.confirmed.shares()
    return [(one.group, one.topic, one.queue, one.low) for one in shares]


def exported(root: Path, name: str) -> dict[str, object]:
    """A table of positions that RocketMQ finds."""
    table = parse((root / "config" / name).read_text("utf-8"))["offsetTable"]
    assert isinstance(table, dict)
    return table


@pytest.mark.parametrize("case", ["23-retry", "25-groups", "25b-lmq-groups"])
def test_positions_are_rocketmqs(tmp_path: Path, case: str) -> None:
    """Those beyond the end are the end; those of no queue, and of RocketMQ's own, are not there."""
    root, store = opened(case, tmp_path)
    ends = {(topic, queue): end for topic, queue, _, end in TRUTHS[case]["queues"]}
    light = any(file.startswith("lmq") for file, *_ in TRUTHS[case]["positions"])
    wanted: dict[tuple[str, str, int], int] = {}
    for file, key, queue, offset in TRUTHS[case]["positions"]:
        topic, _, group = key.removesuffix(BROADCAST).partition("@")
        counts = file.startswith("lmq") == light and (topic, queue) in ends
        if counts and not group.startswith("CID_RMQ_SYS_"):
            wanted[group, topic, queue] = min(offset, ends[topic, queue])
    confirmed = store.messaging.confirmed
    found = {(one.group, one.topic, one.queue): one.low for one in confirmed.shares()}
    assert found == wanted
    assert all(one.low == one.next for one in confirmed.shares())
    assert {group for group, _, _ in wanted} <= set(store.messaging.groups())
    store.close(clean=True)
    plain = exported(root, "consumerOffset.json")
    assert plain == {
        f"{topic}@{group}{BROADCAST if group.startswith('Bc_') else ''}": {
            str(queue): offset
            for (its_group, its_topic, queue), offset in wanted.items()
            if (its_group, its_topic) == (group, topic)
        }
        for group, topic, _ in wanted
    }


def test_policies_and_modes(tmp_path: Path) -> None:
    """Golden 23 has one of each policy; golden 25 a group that only broadcasts."""
    _, store = opened("23-retry", tmp_path)
    groups = {name.split("_")[0]: store.messaging.group(name) for name in store.messaging.groups()}
    assert "TOOLS" not in groups
    growing, table, back = (groups[name] for name in ("Exp", "Cus", "Back"))
    assert growing is not None
    assert table is not None
    assert back is not None
    assert growing.retry == Retry((2000, 60000), 3)
    assert table.retry == Retry((90000,))
    assert (back.attempts, back.retry, back.mode) == (5, Retry(), "shared")
    store.close(clean=False)
    _, other = opened("25-groups", tmp_path / "other")
    modes = {name.split("_")[0]: other.messaging.group(name) for name in other.messaging.groups()}
    found = modes["Bc"]
    assert found is not None
    assert found.mode == "broadcast"
    for share in other.messaging.confirmed.shares_of(found.name):
        assert other.messaging.first_offset(found, share.topic, share.queue) == share.low > 0


def test_what_pop_had_out_is_handed_out_again(tmp_path: Path) -> None:
    """Nothing that was acknowledged; what was revived only where that was not noted."""
    _, store = opened("24-pop", tmp_path)
    out: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    revived: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for group, topic, queue, _, offsets in TRUTHS["24-pop"]["pops"]:
        for offset, fate in offsets:
            out[group, topic, queue] |= {offset} if fate == "out" else set()
            revived[group, topic, queue] |= {offset} if fate == "revived" else set()
    assert sum(map(len, out.values())) > 10
    for place, wanted in out.items():
        share = store.messaging.confirmed.find(*place)
        assert share is not None, place
        runs = [run for run in share.runs if run.state != SETTLED]
        assert all(run.state == LEASED and run.until > 0 for run in runs)
        found = {offset for run in runs for offset in range(run.first, run.last + 1)}
        assert wanted <= found <= wanted | revived[place], place
        assert share.low == min(found, default=share.next)
    truths = TRUTHS["24-pop"]
    for _, key, queue, offset in truths["positions"]:
        topic, _, group = key.partition("@")
        share = store.messaging.confirmed.find(group, topic, queue)
        assert group.startswith("CID_RMQ_SYS_") or (share and share.next >= offset), key


def unsettled(store: Store) -> dict[tuple[str, str, int], list[int]]:
    """What is leased, by group, topic (without their numbers) and queue."""
    return {
        (one.group.split("_")[0], one.topic.split("_")[0], one.queue): [
            offset for run in one.runs if run.state == LEASED
            for offset in range(run.first, run.last + 1)
        ]
        for one in store.messaging.confirmed.shares()
    }  # fmt: skip


def test_checkpoints_and_acknowledgements_that_no_revive_has_passed(tmp_path: Path) -> None:
    """Golden 07: the revive service had noted no position, so its own work comes again, too.

    PopA acknowledged the even offsets, and the broker has put the odd ones into its retry topic.
    PopB acknowledged 0, 2 and 4 of 12, for 600 s; its checkpoints still lie in the timer topic.
    """
    root = unpack("07-consuming", tmp_path)
    store = adopted(root)
    settle(store)
    found = unsettled(store)
    for queue in (0, 1):
        assert found["PopA", "Pop", queue] == [1, 3, 5, 7, 9, 11]
        assert found["PopB", "Pop", queue] == [1, 3, 5, 6, 7, 8, 9, 10, 11]
    lows = {(group, topic.split("_")[0], queue): low for group, topic, queue, low in places(store)}
    offsets = manifest("07-consuming")["config"]["consumerOffset.json"]["offsetTable"]
    for key, queues in offsets.items():
        topic, _, group = key.partition("@")
        for queue, offset in queues.items():
            if group.startswith("CG_"):
                assert lows[group, topic.split("_")[0], int(queue)] == offset
    group = store.messaging.group("CG_978ac007")
    assert group is not None
    assert (group.mode, group.attempts) == ("shared", 16)


def test_acknowledgements_of_several_messages(tmp_path: Path) -> None:
    """Golden 24b, killed: ``bAck`` counts; pops that were in memory alone come as new messages."""
    root = unpack("24b-pop-merge", tmp_path, CONSUMERS)
    with StoreReader(root, rocketmq=True) as reader:
        found = read_consumed(reader)
    flying = {queue: [one for one, _ in offsets] for (_, _, queue), offsets in found.flying}
    assert flying == {0: [14, 15], 1: [4, 6, 7]}
    assert [position for _, position in found.positions] == [16, 8]


def test_pops_of_long_names(tmp_path: Path) -> None:
    """Golden 15b: a group and a topic of more than 100 characters each, nothing acknowledged."""
    root = unpack("15b-v2-pop", tmp_path)
    store = adopted(root)
    settle(store)
    found = unsettled(store)
    assert found["LongGroup", "Long", 0] == list(range(18))
    assert found["LongGroup", "%RETRY%LongGroup", 0] == []
    assert {len(group) > 100 for group, *_ in places(store)} == {True}


def test_pops_in_a_database_are_refused_by_name(tmp_path: Path) -> None:
    """Golden 24c: nobody can tell what is out."""
    root = unpack("24c-pop-kv", tmp_path, CONSUMERS)
    with (
        StoreReader(root) as ours,
        StoreReader(root, rocketmq=True) as reader,
        pytest.raises(ForeignStore, match="kvStore") as refusal,
    ):
        plan_adoption(reader, ours)
    assert refusal.value.code == "pop-database"


def test_an_adopted_store_can_be_adopted_again(tmp_path: Path) -> None:
    """Rows of the first life say nothing in the second; positions are those that were exported."""
    root, store = opened("25-groups", tmp_path)
    before = places(store), set(store.messaging.groups())
    store.close(clean=True)
    with StoreReader(root) as reader:
        assert reader.ours
    again = adopted(root)
    settle(again)
    assert (places(again), set(again.messaging.groups())) == before
    modes = {group: again.messaging.group(group) for group in again.messaging.groups()}
    assert [name for name, one in modes.items() if one and one.mode == "broadcast"] == [
        name for name in modes if name.startswith("Bc_")
    ]

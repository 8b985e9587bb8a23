"""What RocketMQ finds of groups in a store: `config`, after a stop and while it runs."""

from __future__ import annotations

from typing import cast

import pytest

from storage import Store
from storage.messaging.groups import Group, Retry
from storage.state.group_controls import CreateGroups
from tests.fakes.disk import FakeDisk
from tests.stores.records.halves import World, halves
from tests.stores.workbench import (
    TOPIC,
    append,
    lead,
    master,
    open_store,
    run,
    section,
    settle,
    token,
)
from twinlog.format.group_rows import ROLLBACK, AckRow, LeaseRow, Row, ShareRow
from twinlog.format.system_topics import HALF_TOPIC, OP_TOPIC
from twinlog.format.waiting.halves import CHECKER
from twinlog.store.rocketmq_config import parse

GROUPS = (
    Group("billing", attempts=3),
    Group("audit", "broadcast"),
    Group("%LMQ%light", retry=Retry((2000, 60000), 3)),
    Group("table", retry=Retry((90000, 100000))),
)


def write(store: Store, *rows: Row) -> None:
    """Append rows."""
    assert not store.append_rows(token(1), rows, wall_ms=2000).code


def config(disk: FakeDisk, name: str) -> dict[str, object]:
    """A file of ``config``, as RocketMQ's reader takes it."""
    return parse(disk.read(f"config/{name}", "test").decode())


def offsets(disk: FakeDisk, name: str = "consumerOffset.json") -> object:
    """The table of positions."""
    return config(disk, name)["offsetTable"]


def consumed() -> tuple[FakeDisk, Store]:
    """A store in which groups have consumed; rows beyond confirm settle more."""
    disk = FakeDisk()
    store = master(disk)
    store.append_control(token(1), CreateGroups(GROUPS), wall_ms=1000)
    append(store, section(20), section(20, queue=2))
    settle(store)
    write(
        store,
        ShareRow(1, "billing", TOPIC, 0, 0, 0),
        ShareRow(2, "billing", TOPIC, 0, 2, 0),
        ShareRow(3, "audit~w1", TOPIC, 0, 0, 5),
        ShareRow(5, "audit", TOPIC, 0, 2, 6),
        ShareRow(6, "%LMQ%light", TOPIC, 0, 0, 7),
        ShareRow(7, "%LMQ%light", TOPIC, 0, 1, 0),
        LeaseRow(1, 1, 0, 8, 1, 1, 9000, 1),
        LeaseRow(2, 1, 0, 4, 1, 2, 9000, 1),
        AckRow(1, 1, 0, 2),
        AckRow(1, 1, 5, 6),
    )
    settle(store)
    write(store, AckRow(2, 1, 0, 3))
    return disk, store


def test_a_clean_stop_leaves_positions_of_the_whole_log() -> None:
    """The first message that is not settled; RocketMQ knows no confirm offset."""
    disk, store = consumed()
    assert store.close(clean=True)
    assert offsets(disk) == {
        f"{TOPIC}@billing": {"0": 3, "2": 4}, f"{TOPIC}@%LMQ%light": {"0": 7, "1": 0},
        f"{TOPIC}@audit@broadcast": {"2": 6},
    }  # fmt: skip
    assert offsets(disk, "lmqConsumerOffset.json") == {
        f"{TOPIC}@billing": {"0": 3, "2": 4}, f"{TOPIC}@audit@broadcast": {"2": 6},
    }  # fmt: skip
    light = config(disk, "lmqConsumerOffset.json")["lmqOffsetTable"]
    assert light == {f"{TOPIC}@%LMQ%light": 7}
    assert config(disk, "consumerOrderInfo.json") == {"table": {}}


def test_groups_are_rocketmqs() -> None:
    """Golden 23's shapes: a table, one that grows, and the default."""
    disk, store = consumed()
    store.close(clean=True)
    table = config(disk, "subscriptionGroup.json")["subscriptionGroupTable"]
    found = cast("dict[str, dict[str, object]]", table)
    assert set(found) == {group.name for group in GROUPS}
    assert found["billing"]["retryMaxTimes"] == 3
    assert found["billing"]["groupRetryPolicy"] == {"type": "CUSTOMIZED"}
    assert found["%LMQ%light"]["groupRetryPolicy"] == {
        "exponentialRetryPolicy": {"initial": 2000, "max": 60000, "multiplier": 3},
        "type": "EXPONENTIAL",
    }
    assert found["table"]["groupRetryPolicy"] == {
        "customizedRetryPolicy": {"next": [1000, 5000, 90000, 100000]}, "type": "CUSTOMIZED",
    }  # fmt: skip


def test_rocketmq_looks_for_open_transactions_from_the_oldest_on() -> None:
    """And reads the op records behind it: those before name halves that it does not look at."""
    disk = FakeDisk()
    world = World(master(disk))
    for mark in range(5):
        append(world.store, halves(mark=mark))
        settle(world.store)
        if mark in (1, 2):
            world.end(mark - 1, outcome=ROLLBACK)
    world.end(4)
    assert world.store.close(clean=True)
    assert offsets(disk) == {f"{HALF_TOPIC}@{CHECKER}": {"0": 2}, f"{OP_TOPIC}@{CHECKER}": {"0": 1}}
    again = open_store(disk)
    lead(again, epoch=2)
    settle(again)
    world = World(again, writer=token(2))
    world.end(2, 3)
    assert again.close(clean=True)
    assert offsets(disk) == {f"{HALF_TOPIC}@{CHECKER}": {"0": 5}, f"{OP_TOPIC}@{CHECKER}": {"0": 3}}


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_running_store_exports_what_is_confirmed(confirmed: bool) -> None:
    """With a checkpoint after a snapshot: what is cut later must not be there."""
    disk, store = consumed()
    if confirmed:
        settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    found = cast("dict[str, dict[str, int]]", offsets(disk))
    assert found[f"{TOPIC}@billing"] == {"0": 3, "2": 4 if confirmed else 0}


def test_a_store_without_groups_leaves_the_files_alone() -> None:
    """They may be RocketMQ's, and hold positions that nothing else does."""
    disk = FakeDisk()
    store = master(disk)
    disk.write_file("config/consumerOffset.json", b"{}", "test")
    store.close(clean=True)
    assert disk.read("config/consumerOffset.json", "test") == b"{}"
    assert not disk.exists("config/subscriptionGroup.json")


def test_a_recovery_says_the_same_as_a_stop() -> None:
    """After a kill: opened and stopped, as `log recover` does."""
    disk, store = consumed()
    store.commit()
    run(store, store.jobs.flush_job(thorough=True))
    store.close(clean=False)
    again = open_store(disk)
    again.close(clean=True)
    assert cast("dict[str, object]", offsets(disk))[f"{TOPIC}@billing"] == {"0": 3, "2": 4}
    more = open_store(disk)
    lead(more, epoch=2)
    settle(more)
    share = more.messaging.confirmed.share(2)
    assert share is not None
    assert share.low == 4

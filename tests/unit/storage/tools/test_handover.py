"""A store is handed over to RocketMQ: what groups have open is in retry topics, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage import Store
from storage.disk.disk import RealDisk
from storage.errors import ForeignStore
from storage.tools.handover import Handover, carry_out, plan_handover
from storage.tools.recover import recover
from tests.stores.adopted import adopted
from tests.stores.unsettled import ADOPTABLE, ATTEMPTS, OPEN, unsettled
from tests.stores.workbench import TOPIC, WHO, settle
from twinlog.errors import TwinlogError
from twinlog.format.record import Record
from twinlog.store.reader import StoreReader

RETRY = "%RETRY%billing"


def stopped(root: Path) -> Path:
    """A directory of a stopped node."""
    root.mkdir()
    unsettled(RealDisk(root)).close(clean=True)
    return root


def plan(root: Path, *, pop: bool = False) -> Handover:
    """What would be done."""
    with StoreReader(root) as reader:
        return plan_handover(RealDisk(root), reader, pop=pop)


def retried(root: Path, topic: str = RETRY) -> list[Record]:
    """What lies in a retry topic."""
    with StoreReader(root) as reader:
        return [one for one in reader.records() if one.topic == topic]


def offsets(root: Path) -> dict[str, dict[str, int]]:
    """The positions that RocketMQ finds."""
    text = (root / "config" / "consumerOffset.json").read_text("utf-8")
    found: dict[str, dict[str, int]] = json.loads(text)["offsetTable"]
    return found


def files(root: Path) -> dict[str, bytes]:
    """All of a directory."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def numbers(records: list[Record]) -> list[int]:
    """Which of the messages they are."""
    return [int(one.body.split(b"/")[1]) for one in records]


def test_a_plan_names_what_is_copied_and_what_comes_again(tmp_path: Path) -> None:
    root = stopped(tmp_path / "ours")
    before = files(root)
    value = plan(root)
    found = [(one.group, one.queue, one.unsettled, one.again, one.retry) for one in value.queues]
    assert found == [("billing", 0, len(OPEN), 4, RETRY), ("lane", 0, 4, 2, "")]
    assert files(root) == before


def test_what_is_open_is_copied_once_and_the_position_is_behind_it(tmp_path: Path) -> None:
    """With the attempts so far; an ordered group goes on where it was."""
    root = stopped(tmp_path / "ours")
    done = carry_out(RealDisk(root), wall_ms=5_000)
    assert (done.copies, done.missing) == (len(OPEN), 0)
    copies = retried(root)
    assert tuple(numbers(copies)) == OPEN
    assert {n: one.reconsume_times for n, one in zip(OPEN, copies, strict=True)} == ATTEMPTS
    assert {one.properties["RETRY_TOPIC"] for one in copies} == {TOPIC}
    found = offsets(root)
    assert found[f"{TOPIC}@billing"] == {"0": 10, "2": 4}
    assert found[f"{TOPIC}@lane"] == {"0": 0}
    assert found[f"{RETRY}@billing"] == {"0": 0}
    assert plan(root).copied == ()


def test_groups_that_pop_have_retry_topics_of_their_own(tmp_path: Path) -> None:
    root = stopped(tmp_path / "ours")
    carry_out(RealDisk(root), wall_ms=5_000, pop=True)
    assert retried(root) == []
    copies = retried(root, f"{RETRY}_{TOPIC}")
    assert tuple(numbers(copies)) == OPEN
    assert {one.properties["1ST_POP_TIME"] for one in copies} == {"5000"}


def test_no_node_opens_it_afterwards(tmp_path: Path) -> None:
    root = stopped(tmp_path / "ours")
    carry_out(RealDisk(root), wall_ms=5_000)
    with pytest.raises(ForeignStore, match="handed over") as refused:
        Store.open(RealDisk(root), ADOPTABLE, WHO, wall_ms=6_000)
    assert refused.value.code == "handed-over"
    assert recover(RealDisk(root), wall_ms=6_000).clean


def test_taken_back_it_delivers_nothing_twice(tmp_path: Path) -> None:
    """Groups go on at the positions; the copies lie in their topic, from its first one on."""
    root = stopped(tmp_path / "ours")
    carry_out(RealDisk(root), wall_ms=5_000)
    store = adopted(root)
    settle(store)
    messaging = store.messaging.confirmed
    lows = {(one.group, one.topic, one.queue): one.low for one in messaging.shares()}
    assert lows["billing", TOPIC, 0] == 10
    assert lows["billing", TOPIC, 2] == 4
    assert lows["billing", RETRY, 0] == 0
    assert store.reads.queue_range(RETRY, 0) == (0, len(OPEN))
    assert not any(one.runs for one in messaging.shares())


def test_a_killed_store_is_recovered_first(tmp_path: Path) -> None:
    """H7; and what it has handed out by then is handed over."""
    root = tmp_path / "ours"
    root.mkdir()
    store = unsettled(RealDisk(root))
    store.commit()
    store.close(clean=False)
    before = files(root)
    with pytest.raises(ForeignStore, match="not stopped cleanly") as refused:
        plan(root)
    assert "twinlog log recover" in str(refused.value.hint)
    assert files(root) == before
    recover(RealDisk(root), wall_ms=3_000)
    assert [one.unsettled for one in plan(root).copied] == [len(OPEN)]
    carry_out(RealDisk(root), wall_ms=5_000)
    assert tuple(numbers(retried(root))) == OPEN


def test_a_store_of_another_program_is_refused(tmp_path: Path) -> None:
    root = stopped(tmp_path / "ours")
    (root / "twinlog" / "identity").unlink()
    with pytest.raises(TwinlogError):
        plan(root)


def test_messages_larger_than_a_batch_of_copies_go_one_by_one(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """Each batch says itself what it has done, so it may end after any of them."""
    monkeypatch.setattr("storage.tools.handover.COPY_BYTES", 1)
    root = stopped(tmp_path / "ours")
    begin = plan(root).end
    done = carry_out(RealDisk(root), wall_ms=5_000)
    assert done.copies == len(OPEN)
    assert tuple(numbers(retried(root))) == OPEN
    assert len([one for one in retried(root) if one.log_offset > begin]) == len(OPEN)

"""What waits in a directory, ours or RocketMQ's, is what its node or broker would go on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage.disk.disk import RealDisk
from storage.tools.waiting import Waiting, folded, what_waits
from tests.fakes.deliveries import START_MS
from tests.stores.golden import CONSUMERS, HERE, unpack
from tests.stores.records.halves import halves
from tests.stores.records.timed import World, timed
from tests.stores.workbench import TOPIC, append, log_records, master, run, settle
from twinlog.format.group_rows import COMMIT, HalfRow, LeaseRow, ShareRow
from twinlog.format.system_topics import TIMER_TOPIC
from twinlog.format.waiting.halves import KEEP_MS
from twinlog.store.reader import StoreReader

TRUTHS: dict[str, Any] = json.loads((CONSUMERS / "truths.json").read_text("utf-8"))


def found(root: Path) -> dict[tuple[str, str], int]:
    """How much waits, by kind and name; the unique part of RocketMQ's names is left out."""
    with StoreReader(root) as reader:
        return {(one.what, one.name.partition("_")[0]): one.messages for one in what_waits(reader)}


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        ("05-timer", {("timer", "Timer"): 18}),
        ("06-transaction", {("half", "TPG"): 8}),
        ("07-consuming", {("lease", "PopA"): 12, ("lease", "PopB"): 18}),
        ("24c-pop-kv", {("lease", "kvStore"): -1}),
        ("25-groups", {}),
    ],
)
def test_rocketmqs_stores(case: str, wanted: dict[tuple[str, str], int], tmp_path: Path) -> None:
    """Transactions are those that a broker would ask about; what is in a database is unknown."""
    folder = HERE if (HERE / f"{case}.tar.gz").exists() else CONSUMERS
    assert found(unpack(case, tmp_path, folder)) == wanted


@pytest.mark.parametrize("case", ["19-timer-roll", "20-timer-crash"])
def test_what_a_broker_had_entered_again_waits_once(case: str, tmp_path: Path) -> None:
    """And what it had delivered, or taken back, does not; with the first and the last due time."""
    with StoreReader(unpack(case, tmp_path, CONSUMERS)) as reader:
        timers = [one for one in what_waits(reader) if one.what == "timer"]
    pending = TRUTHS[case]["pending"]
    assert sum(one.messages for one in timers) == len(pending)


def test_a_running_store_of_ours_tells_what_its_node_knows(tmp_path: Path) -> None:
    """From the snapshot and the log after it, and from the log alone."""
    store = master(RealDisk(tmp_path))
    world = World(store)

    def compare() -> None:
        settle(store)
        run(store, store.jobs.flush_job(thorough=True))
        run(store, store.jobs.checkpoint_job())
        with StoreReader(tmp_path) as reader:
            fold = folded(reader)
        known = store.messaging.confirmed
        assert list(fold.timers.after()) == list(known.timers.after())
        assert fold.timers.progress == known.timers.progress
        assert list(fold.halves.open()) == list(known.halves.open())
        assert fold.values().shares == known.values().shares

    compare()
    append(store, timed(5_000, 3, mark=1), timed(70_000, 2, mark=2), halves(2, mark=3))
    compare()
    world.at(5_000)
    last = [one for one in log_records(store) if one.topic == TIMER_TOPIC][-1]
    assert world.cancel(70_000, last.log_offset) is None
    rows = [
        ShareRow(1, "g", TOPIC, 0, 0, 0),
        LeaseRow(1, 1, 0, 2, 7, 1, 99_000, 1),
        HalfRow(0, COMMIT),
    ]
    store.append_rows(world.writer, rows, wall_ms=world.wall_ms)
    compare()
    run(store, store.jobs.snapshot_job(force=True))
    assert list((tmp_path / "twinlog" / "state").iterdir())
    compare()
    append(store, timed(80_000, mark=4))
    compare()
    with StoreReader(tmp_path) as reader:
        assert what_waits(reader) == [
            Waiting("timer", TOPIC, 2, 70_000, 80_000),
            Waiting("half", "shop", 1, START_MS + KEEP_MS, START_MS + KEEP_MS),
            Waiting("lease", "g", 2, 99_000, 99_000),
        ]
    for path in (tmp_path / "twinlog" / "state").glob("*"):
        path.write_bytes(b"damaged")
    compare()
    store.close(clean=False)

"""rebuild: the bytes that the broker wrote, from the log alone."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores.golden import unpack
from tests.stores.light import write
from tests.stores.sample import Ours, flip, put
from twinlog.errors import CorruptionError, UsageError
from twinlog.format.log_file import file_name
from twinlog.format.record import encode
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.engine.report import Verdict
from twinlog.spark.jobs.compact import job
from twinlog.spark.jobs.rebuild.job import RebuildSettings, run
from twinlog.spark.jobs.rebuild.queues import BLANK_ENTRY, queue_differences
from twinlog.store.reader import StoreReader

SAME = [
    "01-basic",
    "02-rollover",
    "03-crash",
    "04-delay",
    "05-timer",
    "06-transaction",
    "07-consuming",
    "08-lmq",
    "10-ipv6",
    "11-compressed",
    "14-compaction",
    "15-propcrc-v2",
    "15b-v2-pop",
    "16-defaults",
]
"""Golden stores whose queues and index RocketMQ built without a cut or a restart in between."""


@pytest.mark.parametrize("case", SAME)
def test_queues_and_index_are_the_brokers(case: str, tmp_path: Path) -> None:
    """Every queue file byte for byte, every index file's content byte for byte."""
    root = unpack(case, tmp_path)
    found = run(PlainEngine(), RebuildSettings(root, check=True, split_bytes=20_000))
    assert found.verdict is Verdict.FINE, found.tables["differences"].rows
    assert not list(root.glob("*.building"))


@pytest.mark.parametrize("case", ["12-controller-a", "12-controller-b"])
def test_what_a_restart_leaves_is_listed(case: str, tmp_path: Path) -> None:
    """The broker indexed the last record twice: named, in the index only."""
    root = unpack(case, tmp_path)
    found = run(PlainEngine(), RebuildSettings(root, check=True))
    assert found.verdict is Verdict.NO
    assert all(str(row[0]).startswith("index/") for row in found.tables["differences"].rows)


def test_a_queue_that_does_not_begin_at_0_is_filled_up(tmp_path: Path) -> None:
    """Retention took the first records: blanks up to the first entry, then the broker's entries."""
    root, to = unpack("13-trimmed", tmp_path), tmp_path / "new"
    run(PlainEngine(), RebuildSettings(root, index=False, to=to))
    blanks = 0
    for path in (to / "consumequeue").glob("*/*/*"):
        built = path.read_bytes()
        stored = (root / path.relative_to(to)).read_bytes()
        assert len(built) == len(stored)
        at = 0
        while built[at : at + 20] == BLANK_ENTRY:
            at, blanks = at + 20, blanks + 1
        assert built[at:] == stored[at:]
    assert blanks


def test_a_lost_queue_comes_back_in_place(tmp_path: Path) -> None:
    """Queues that were deleted are what they were; again changes nothing."""
    root = unpack("02-rollover", tmp_path)
    shutil.copytree(root / "consumequeue", tmp_path / "before")
    for path in list((root / "consumequeue").glob("*/0/*")):
        path.unlink()
    run(PlainEngine(), RebuildSettings(root, split_bytes=20_000))
    assert queue_differences(tmp_path / "before", root / "consumequeue") == []
    run(PlainEngine(), RebuildSettings(root))
    assert queue_differences(tmp_path / "before", root / "consumequeue") == []
    assert not (root / "consumequeue.before").exists()


def test_light_queues_are_what_rocketmq_enters(tmp_path: Path) -> None:
    """A queue named twice, records that wait, topics with batch queues or of delayed messages."""
    write(tmp_path / "store")
    found = run(PlainEngine(), RebuildSettings(tmp_path / "store", index=False, check=True))
    assert found.verdict is Verdict.FINE, found.tables["differences"].rows


@pytest.mark.parametrize("as_topic", [True, False])
def test_no_name_of_a_record_leads_out_of_the_folder(as_topic: bool, tmp_path: Path) -> None:
    """A record may name any topic, and any light queues."""
    outside = "../../../outside"
    properties = {"INNER_MULTI_DISPATCH": outside, "INNER_MULTI_QUEUE_OFFSET": "0"}
    record = encode(
        outside if as_topic else "t", 0, b"x", queue_offset=0, log_offset=0, store_timestamp=1,
        properties={} if as_topic else properties,
    )  # fmt: skip
    root = tmp_path / "a" / "store"
    put(root / "commitlog" / file_name(0), record.ljust(64 * 1024, b"\0"))
    settings = RebuildSettings(root, to=tmp_path / "a" / "new", index=False)
    if as_topic:
        with pytest.raises(CorruptionError, match="no folder can be called"):
            run(PlainEngine(), settings)
    else:
        run(PlainEngine(), settings)
        assert [path.name for path in (tmp_path / "a/new/consumequeue").iterdir()] == ["t"]
    assert not [*tmp_path.rglob("outside")]


def test_into_a_new_directory(tmp_path: Path) -> None:
    """``--to`` leaves the store alone and refuses what exists."""
    root, to = unpack("01-basic", tmp_path), tmp_path / "new"
    run(PlainEngine(), RebuildSettings(root, to=to))
    assert queue_differences(root / "consumequeue", to / "consumequeue") == []
    with pytest.raises(UsageError, match="exists already"):
        run(PlainEngine(), RebuildSettings(root, to=to))


def test_an_interrupted_rebuild_leaves_the_store_alone(tmp_path: Path) -> None:
    """Ctrl-C in the middle: queues as before, no half result."""

    class Interrupting(PlainEngine):
        def spread(self, work, items):  # type: ignore[no-untyped-def]
            super().spread(work, items[:1])
            raise KeyboardInterrupt

    root = unpack("02-rollover", tmp_path)
    shutil.copytree(root / "consumequeue", tmp_path / "before")
    with pytest.raises(KeyboardInterrupt):
        run(Interrupting(), RebuildSettings(root, split_bytes=20_000))
    assert queue_differences(tmp_path / "before", root / "consumequeue") == []
    assert not list(root.glob("*.building"))


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    """A process that holds the node's lock keeps a rebuild in place out."""
    root = unpack("01-basic", tmp_path)
    (root / "lock").touch()
    script = (
        "import fcntl, sys\n"
        f"f = open({str(root / 'lock')!r}, 'r+b')\n"
        "fcntl.lockf(f, fcntl.LOCK_EX, 1)\nprint('held', flush=True)\nsys.stdin.read()"
    )
    assert fcntl.LOCK_EX
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="a node runs"):
            run(PlainEngine(), RebuildSettings(root))
        other.communicate(b"")


def content(root: Path) -> dict[str, bytes]:
    """Every queue file."""
    base = root / "consumequeue"
    return {str(path.relative_to(base)): path.read_bytes() for path in base.glob("*/*/*")}


def refused(root: Path, match: str) -> None:
    """A rebuild in place of what is damaged: an error, and the queues as they were."""
    before = content(root)
    for check in (False, True):
        with pytest.raises(CorruptionError, match=match):
            run(PlainEngine(), RebuildSettings(root, check=check))
    with pytest.raises(CorruptionError):
        run(PlainEngine(), RebuildSettings(root, queues=False))
    assert content(root) == before
    assert not list(root.glob("*.building"))


def of_ours(root: Path) -> Path:
    """Several files of ours in two queues."""
    made = Ours()
    for number in range(40):
        made.batch(b"x" * 100, b"y" * 50, queue=number % 2)
    return made.write(root)


def test_a_damaged_batch_index_takes_nothing_away(tmp_path: Path) -> None:
    """What lies behind a bad entry cannot be cut into ranges: refused."""
    root = of_ours(tmp_path)
    flip(root / "twinlog" / "batches" / file_name(0), 48 * 5 + 20)
    refused(root, "the batch index of 0")


def test_a_batch_index_that_is_gone_takes_nothing_away(tmp_path: Path) -> None:
    root = of_ours(tmp_path)
    (root / "twinlog" / "batches" / file_name(4096)).unlink()
    refused(root, "after the last batch|continues after")


@pytest.mark.parametrize(
    ("case", "queues"), [("01-basic", True), ("01-basic", False), ("02-rollover", True)]
)
def test_damage_in_the_middle_is_no_end(case: str, queues: bool, tmp_path: Path) -> None:
    """Told by queue entries, by later files, and without either by the records behind it."""
    root = unpack(case, tmp_path)
    with StoreReader(root) as store:
        offsets = [one.log_offset for one in store.records()]
    log = sorted((root / "commitlog").iterdir())[0]
    flip(log, [at for at in offsets if at < log.stat().st_size][20] + 4)
    if not queues:
        shutil.rmtree(root / "consumequeue")
        (root / "consumequeue").mkdir()
    refused(root, "the log continues after it")


def test_old_bytes_behind_the_end_are_no_damage(tmp_path: Path) -> None:
    """What a cut left: records at their own places, older than the last one; garbage; zeros."""
    root = unpack("01-basic", tmp_path)
    with StoreReader(root) as store:
        records = [(one.log_offset, one.size) for one in store.records()]
    log = sorted((root / "commitlog").iterdir())[0]
    data, end = bytearray(log.read_bytes()), sum(records[-1])
    first = records[0]
    moved = bytearray(data[first[0] : first[0] + first[1]])
    moved[28:36] = (end + 10).to_bytes(8, "big")
    before = content(root)
    for rest in (b"\x01garbage..", b"\x01garbage.." + bytes(moved)):
        log.write_bytes(data[:end] + rest + data[end + len(rest) :])
        for path in sorted((root / "consumequeue").glob("*/*/*"))[1:]:
            path.unlink()
        run(PlainEngine(), RebuildSettings(root))
        assert content(root) == before


def test_a_queue_never_ends_earlier_than_its_records_say(tmp_path: Path) -> None:
    """A task that leaves out a range without a word is noticed before anything is exchanged."""

    class Forgetting(PlainEngine):
        def spread(self, work, items):  # type: ignore[no-untyped-def]
            return super().spread(work, items[:-1])

    root = unpack("02-rollover", tmp_path)
    before = content(root)
    with pytest.raises(CorruptionError, match=r"and would end at \d+, though the record at"):
        run(Forgetting(), RebuildSettings(root, index=False))
    assert content(root) == before


def test_the_lock_is_held_to_the_end(tmp_path: Path) -> None:
    """Another process never gets it while ranges are read: no look of ours may drop it."""
    script = "import fcntl, sys\nfcntl.lockf(open(sys.argv[1], 'r+b'), 6, 1)"
    codes: list[int] = []

    class Watched(PlainEngine):
        def spread(self, work, items):  # type: ignore[no-untyped-def]
            taken = subprocess.run(
                [sys.executable, "-c", script, str(root / "lock")], capture_output=True, check=False
            )
            codes.append(taken.returncode)
            return super().spread(work, items)

    root = of_ours(tmp_path)
    assert fcntl.LOCK_EX | fcntl.LOCK_NB == 6
    run(Watched(), RebuildSettings(root))
    assert codes == [1, 1]


def test_runs_side_by_side_have_directories_of_their_own(tmp_path: Path) -> None:
    """A check beside a rebuild removes nothing of it; what a killed run left goes after a day."""
    root, to = of_ours(tmp_path / "s"), tmp_path / "out.v1"
    seen: list[set[str]] = []

    class Nested(PlainEngine):
        def spread(self, work, items):  # type: ignore[no-untyped-def]
            names = {path.name for path in (*root.glob("*building"), *tmp_path.glob("*building"))}
            seen.append(names)
            if len(names) == 1:
                run(self, RebuildSettings(root, check=True, index=False))
            return super().spread(work, items)

    run(Nested(), RebuildSettings(root, index=False, to=to))
    assert [len(names) for names in seen] == [1, 2]
    assert all(name.startswith("out.v1.") for name in seen[0])
    old, young = root / "rebuilt.0.building", root / "rebuilt.1.building"
    old.mkdir()
    young.mkdir()
    os.utime(old, (0, 0))
    run(PlainEngine(), RebuildSettings(root))
    assert not old.exists() and young.exists()


def test_tasks_have_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative --to is the driver's; what tasks wrote elsewhere is never renamed as empty."""

    class Elsewhere(PlainEngine):
        def spread(self, work, items):  # type: ignore[no-untyped-def]
            (tmp_path / "executor").mkdir(exist_ok=True)
            monkeypatch.chdir(tmp_path / "executor")
            try:
                return super().spread(work, items)
            finally:
                monkeypatch.chdir(tmp_path)

    root = of_ours(tmp_path / "s")
    monkeypatch.chdir(tmp_path)
    run(Elsewhere(), RebuildSettings(Path("s"), to=Path("out"), index=False))
    assert content(tmp_path / "out") == content(root)

    class Remote(PlainEngine):
        def spread(self, work, items):  # type: ignore[no-untyped-def]
            found = super().spread(work, items)
            for path in tmp_path.glob("far.*/consumequeue/t/0/*"):
                path.unlink()
            return found

    with pytest.raises(UsageError, match="and it is not here"):
        run(Remote(), RebuildSettings(root, to=tmp_path / "far", index=False))
    assert not (tmp_path / "far").exists()


def test_a_compaction_of_what_is_damaged_is_refused(tmp_path: Path) -> None:
    """A key whose newest record cannot be read would come back with an older value."""
    root = of_ours(tmp_path / "a")
    flip(root / "twinlog" / "batches" / file_name(0), 48 * 5 + 20)
    with pytest.raises(CorruptionError, match="the batch index of 0"):
        job.run(PlainEngine(), job.CompactSettings(root, "t"))
    root = unpack("01-basic", tmp_path / "b")
    with StoreReader(root) as store:
        records = [(one.topic, one.log_offset) for one in store.records()]
    log = sorted((root / "commitlog").iterdir())[0]
    flip(log, records[20][1] + 4)
    with pytest.raises(CorruptionError, match="the log continues after it"):
        job.run(PlainEngine(), job.CompactSettings(root, records[0][0]))

"""Histories that nobody thought of: RocketMQ writes, is killed, its files are hurt, it recovers.

What it finds then is what we read before it, and what it finds in a copy that we repaired. The
seeds are fixed; more of them were tried by hand.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage.disk.disk import RealDisk
from storage.tools.repair import carry_out, plan_repair
from tests.interop.contents import as_ours, held
from twinlog.format.log_file import file_name
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify

pytestmark = pytest.mark.interop

SIZE, QUEUE_SIZE = 16 * 1024, 20 * 7
MESSAGES = 110
FILL = 0x7FFFFFFF
LETTERS = "abcXYZ019%|-_"
KEYS = ("Aa", "BB", "k1", "k2", "京", "a#b", "x" * 100, "AaAa", "BBBB")
TAGS = ("Aa", "BB", "a || b", "*", " ", "京", "\U0001f600", "AaAa")
LIGHT = ("%LMQ%a", "%LMQ%b", "%LMQ%c-|")
PREPARED, ROLLED_BACK = 0x4, 0xC
Queues = dict[tuple[str, int], list[list[int]]]


class History:
    """A random history; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.choose = self.random.choice
        names = [self._name(length) for length in (1, 20, 120)]
        self.topics = [*names, "%RETRY%" + self._name(50), "%DLQ%" + self._name(5)]

    def _name(self, length: int) -> str:
        return "".join(self.choose(LETTERS) for _ in range(length))

    def message(self) -> dict[str, object]:
        """One message as the judge puts it."""
        return {
            "topic": self.choose(self.topics),
            "queue": self.choose([0, 0, 1, 7]),
            "body": self.random.randbytes(self.choose([0, 1, 30, 500, 4000])).hex(),
            "properties": self._properties(),
            "sys_flag": self.choose([0, 0, 0, 1, 2, 0x301, PREPARED, 8, ROLLED_BACK]),
            "flag": self.choose([0, -1, 2**31 - 1]),
            "born_host": self.choose(["1.2.3.4", "2001:db8::1"]),
        }

    def _properties(self) -> dict[str, str]:
        found = {"TRACE_ON": "true"}  # a broker adds it; its store fails without any property
        if self.random.random() < 0.6:
            keys = [self.choose(KEYS) for _ in range(self.choose([1, 1, 2, 3]))]
            found["KEYS"] = self.choose(["", " "]) + self.choose([" ", "  "]).join(keys)
        if self.random.random() < 0.6:
            found["TAGS"] = self.choose(TAGS)
        if self.random.random() < 0.3:
            found["UNIQ_KEY"] = f"U{self.random.randrange(9)}"
        if self.random.random() < 0.3:
            found[self.choose("pé京")] = self.choose(["", "v", "é\t\0" * 9, "y" * 3000])
        if self.random.random() < 0.3:
            names = [self.choose(LIGHT) for _ in range(self.choose([1, 2, 3]))]
            found["INNER_MULTI_DISPATCH"] = ",".join(names) + self.choose(["", ","])
        return found

    def hurt(self, root: Path, end: int) -> None:
        """Change a byte of the log's last three files, or cut it there."""
        start = max(0, end // SIZE - self.random.randrange(3)) * SIZE
        at = start + self.choose([0, 4, self.random.randrange(SIZE)])
        path = root / "commitlog" / file_name(start)
        data = bytearray(path.read_bytes())
        if self.random.random() < 0.5:
            data[at - start] ^= 1 << self.random.randrange(8)
        else:
            data[at - start :] = bytes(SIZE - at + start)
        path.write_bytes(data)


def opened(judge: Any, root: Path) -> dict[str, Any]:
    """Have RocketMQ open a directory."""
    found: dict[str, Any] = judge.ask(
        "open", dir=str(root), commit_log_size=SIZE, queue_size=QUEUE_SIZE, light=True
    )
    assert found["loaded"] is True
    return found


def filled(entries: Queues) -> Queues:
    """The queues that have entries, without those that only fill a file up."""
    rows = {key: [row for row in value if row[2] != FILL] for key, value in entries.items()}
    return {key: value for key, value in rows.items() if value}


def read(root: Path) -> tuple[int, dict[int, Any], Queues, dict[tuple[str, int, int], int]]:
    """End, records in queues, entries, and a queue offset for each stamp, as we have them."""
    with StoreReader(root) as store:
        records, entries = held(store)
        stamps = sorted({row[7] for row in records.values()})[::9]
        times = {
            (topic, queue, ms): store.offset_by_time(topic, queue, ms)
            for topic, queue in entries
            for ms in (0, *stamps, stamps[-1] + 1)
        }
        return store.end, records, entries, times


def found_by_key(root: Path, topics: list[str]) -> dict[tuple[str, str], list[int]]:
    """Log offsets under each key, oldest first."""
    with StoreReader(root) as store:
        return {
            (topic, key): sorted(store.find_key(topic, key)) for topic in topics for key in KEYS
        }


def judged(judge: Any, root: Path, history: History, times: Any) -> dict[str, Any]:
    """The same as RocketMQ has it, and the files it leaves."""
    said = opened(judge, root)
    dumped = judge.ask("dump")
    records, entries = as_ours(dumped)
    asked = {
        one: judge.ask("time", topic=one[0], queue=one[1], timestamp=one[2])["offset"]
        for one in times
    }
    keys = {
        (topic, key): judge.ask("query", topic=topic, key=key)["physical_offsets"]
        for topic in history.topics
        for key in KEYS
    }
    judge.ask("close")
    return {
        "end": said["max_offset"], "records": records, "entries": entries, "times": asked,
        "keys": keys,
    }  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_and_hurt_store(judge: Any, tmp_path: Path, seed: int) -> None:
    """Log, queues, times and keys: ours before RocketMQ's recovery, and behind our repair."""
    history = History(seed)
    written, hurt = tmp_path / "written", tmp_path / "hurt"
    written.mkdir()
    opened(judge, written)
    put = judge.ask("put", messages=[history.message() for _ in range(MESSAGES)])
    assert {one["status"] for one in put["results"]} == {"PUT_OK"}
    shutil.copytree(written, hurt)  # what a kill leaves
    judge.ask("close")
    history.hurt(hurt, put["results"][-1]["physical_offset"])

    end, records, entries, times = read(hurt)
    keys = found_by_key(hurt, history.topics)
    shutil.copytree(hurt, tmp_path / "theirs")
    theirs = judged(judge, tmp_path / "theirs", history, times)
    assert theirs["end"] == end
    queued = {row[1] for rows in filled(entries).values() for row in rows}
    assert theirs["records"] == {at: row for at, row in records.items() if at in queued}
    assert filled(theirs["entries"]) == filled(entries)
    assert theirs["times"] == times
    assert theirs["keys"] == keys

    with StoreReader(hurt) as store:
        plan = plan_repair(store, index_slots=100)
        carry_out(RealDisk(hurt), plan, reader=store, wall_ms=1_795_000_000_000)
    with StoreReader(hurt) as store:
        assert verify(store).findings == []
    again = judged(judge, hurt, history, {})
    assert (again["end"], again["records"]) == (end, theirs["records"])
    assert filled(again["entries"]) == filled(theirs["entries"])

"""``twinlog log find`` and ``cat``: records looked up and poured out, RocketMQ's and ours."""

from __future__ import annotations

import hashlib
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.app import main
from tests.stores.golden import manifest, unpack
from tests.stores.sample import flip, sample


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("01-basic", tmp_path_factory.mktemp("basic"))


def found(capsys: pytest.CaptureFixture[str], root: Path, *words: str) -> list[dict[str, Any]]:
    assert main(["log", "find", str(root), "-o", "json", *words], {}) == 0
    items: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["items"]
    return items


def test_by_key(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    """The manifest's key queries, with the key's text compared; with and without a topic."""
    messages = {m["physical_offset"]: m for m in manifest("01-basic")["messages"]}
    asked = 0
    for query in manifest("01-basic")["key_queries"]:
        wanted = [
            offset
            for offset in query["physical_offsets"]
            if query["key"] in messages[offset]["properties"].get("KEYS", "").split(" ")
        ]
        if not wanted:
            continue
        asked += 1
        items = found(capsys, root, "--topic", query["topic"], "--key", query["key"])
        assert [item["physical_offset"] for item in items] == wanted
    assert asked > 3


def test_by_every_id(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    """Unique id, message id, an offset in the middle: the same record with all its fields."""
    message = next(m for m in manifest("01-basic")["messages"] if "UNIQ_KEY" in m["properties"])
    ways = (
        ("--unique-id", message["properties"]["UNIQ_KEY"]),
        ("--id", message["msg_id"]),
        ("--id", message["msg_id"].lower()),
        ("--offset", str(message["physical_offset"])),
        ("--offset", str(message["physical_offset"] + message["size"] - 1)),
    )
    for way in ways:
        [item] = found(capsys, root, *way)
        assert {name: item[name] for name in message} == message, way


def test_by_time(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    """The first record at or after a moment; in a queue by RocketMQ's own search."""
    messages = manifest("01-basic")["messages"]
    last = messages[-1]["store_timestamp"]
    first_of_last = next(m for m in messages if m["store_timestamp"] >= last)
    [item] = found(capsys, root, "--at", "2026-11-21T00:00Z")
    assert item["physical_offset"] == 0
    query = next(
        q
        for q in manifest("01-basic")["time_queries"]
        if q["lower"] and q["timestamp"] <= first_of_last["store_timestamp"]
    )
    stamp = f"2026-11-21T07:{query['timestamp'] // 60000 % 60:02d}:"
    stamp += f"{query['timestamp'] / 1000 % 60:06.3f}Z"
    place = ["--topic", query["topic"], "--queue", str(query["queue_id"])]
    [item] = found(capsys, root, *place, "--at", stamp)
    assert item["queue_offset"] == query["lower"]


def test_what_is_not_there(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    """1 with an empty answer; 64 for a call that names no way, or two, or no id at all."""
    for words in (["--key", "no-such-key"], ["--offset", "999999999"], ["--id", "0" * 32]):
        assert main(["log", "find", str(root), *words, "-o", "json"], {}) == 1
        assert json.loads(capsys.readouterr().out)["items"] == []
    for words in ([], ["--key", "a", "--offset", "1"], ["--id", "xyz"], ["--at", "soon"]):
        assert main(["log", "find", str(root), *words], {}) == 64
        assert "hint:" in capsys.readouterr().err


def test_the_first_of_a_topic_at_a_time(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    """Another topic's record, which the log has first, does not stand in its way."""
    wanted = next(m for m in manifest("01-basic")["messages"] if m["topic"] == "a")
    assert wanted["physical_offset"] > 0
    [item] = found(capsys, root, "--topic", "a", "--at", "2020-01-01")
    assert item["physical_offset"] == wanted["physical_offset"]


def test_a_light_queue_is_a_topic(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By time, by key and by body: its records name another topic, and are found all the same."""
    root = unpack("08-lmq", tmp_path)
    light = next(q for q in manifest("08-lmq")["queues"] if q["topic"].startswith("%LMQ%"))
    offsets = [entry[1] for entry in light["entries"]]
    topic = ["--topic", light["topic"]]
    for words in (["--at", "2020-01-01"], ["--queue", "0", "--at", "2020-01-01"]):
        [item] = found(capsys, root, *topic, *words)
        assert item["physical_offset"] == offsets[0]
    keys = [m for m in manifest("08-lmq")["messages"] if m["physical_offset"] in offsets]
    keyed = next(m for m in keys if m["properties"].get("KEYS"))
    key = keyed["properties"]["KEYS"].split()[0]
    got = [i["physical_offset"] for i in found(capsys, root, *topic, "--key", key)]
    assert keyed["physical_offset"] in got
    assert main(["log", "cat", str(root), *topic, "--format", "%O "], {}) == 0
    assert [int(word) for word in capsys.readouterr().out.split()] == offsets


def test_a_batch_queue_by_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """RocketMQ's search lands on the unit before; the first at or after the time is shown."""
    root = unpack("09-batch", tmp_path)
    queue = next(q for q in manifest("09-batch")["queues"] if q["type"] == "BatchCQ")
    place = ["--topic", queue["topic"], "--queue", str(queue["queue_id"])]
    [item] = found(capsys, root, *place, "--at", "2026-11-21T07:02:30.013Z")
    assert (item["queue_offset"], item["store_timestamp"] % 60000) == (49, 30014)


def test_for_programs(capsys: pytest.CaptureFixture[str], root: Path, tmp_path: Path) -> None:
    """Nothing found is no line, cat's messages are objects, an idle option is refused."""
    assert main(["log", "find", str(root), "--key", "no-such-key", "-o", "jsonl"], {}) == 1
    assert capsys.readouterr().out == ""
    assert main(["log", "cat", str(root), "--range", "+2", "-o", "jsonl"], {}) == 0
    one, two = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (one["kind"], one["log_offset"], two["log_offset"]) == ("Message", 0, 284)
    assert main(["log", "find", str(root), "--key", "a", "--queue", "1"], {}) == 64
    assert main(["log", "info", str(tmp_path / ("x" * 256))], {}) == 64
    assert "is not a valid file name" in capsys.readouterr().err


def test_what_damage_hides(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its only record is in damage: unknown (2), which differs from not found (1)."""
    root = unpack("01-basic", tmp_path)
    lost = next(m for m in manifest("01-basic")["messages"] if m["properties"].get("KEYS"))
    flip(root / "commitlog" / f"{0:020d}", lost["physical_offset"] + 88)
    key = lost["properties"]["KEYS"].split()[0]
    assert main(["log", "find", str(root), "--key", key], {}) == 2
    assert "nothing was found, but 292 bytes of" in capsys.readouterr().err
    assert main(["log", "cat", str(root), "--format", "%O%n"], {}) == 2  # it said nothing: 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == len(manifest("01-basic")["messages"]) - 1
    assert f"error: 292 bytes of {root} cannot be read: there may be more than this" in said.err
    assert main(["log", "cat", str(root), "--range=-3:"], {}) == 0


def test_the_first_of_a_time_may_lie_in_damage(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Behind damage it is the first that can be read (2); behind an older one the first (0)."""
    root = unpack("01-basic", tmp_path)
    stored = manifest("01-basic")["messages"]
    times = [m["store_timestamp"] for m in stored]
    i = next(i for i in range(5, len(stored)) if times[i - 1] < times[i] < times[i + 1])
    flip(root / "commitlog" / f"{0:020d}", stored[i]["physical_offset"] + 88)

    def asked(ms: int) -> int:
        at = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
        return main(["log", "find", str(root), "--at", at.replace("+00:00", "Z"), "-o", "name"], {})

    assert asked(times[i]) == 2  # it said 0, and the one behind
    said = capsys.readouterr()
    assert "there may be an earlier one: " in said.err
    assert said.out.strip().endswith(str(stored[i + 1]["physical_offset"]))
    assert asked(times[i - 1]) == 0
    assert asked(times[i + 1]) == 2  # the time of the unreadable one is unknown
    later = next(ms for ms in times if ms > times[i + 1])
    assert asked(later) == 0
    key = next(m["properties"]["KEYS"] for m in stored[i + 1 :] if m["properties"].get("KEYS"))
    capsys.readouterr()
    assert main(["log", "find", str(root), "--key", key.split()[0]], {}) == 0
    assert "there may be more than this: " in capsys.readouterr().err


def test_keys_that_no_index_covers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With a file of the index lost, or all of it, each key is found; it was "none"."""
    root = unpack("02-rollover", tmp_path)
    keyed = [m for m in manifest("02-rollover")["messages"] if m["properties"].get("KEYS")]
    files = sorted((root / "index").iterdir())
    for lost, words in ((files[1:2], []), (files, []), ([], ["--topic", keyed[-1]["topic"]])):
        for path in lost:
            path.unlink(missing_ok=True)
        for wanted in (keyed[0], keyed[len(keyed) // 4], keyed[-1])[-1 if words else 0 :]:
            key = wanted["properties"]["KEYS"].split()[0]
            assert main(["log", "find", str(root), "--key", key, *words, "-o", "name"], {}) == 0
            assert f"log@{wanted['physical_offset']}\n" in capsys.readouterr().out
    assert main(["log", "find", str(root), "--key", "no such key"], {}) == 1


MISTYPED = (
    ("cat", "--topic", "A"),
    ("cat", "--topic", "%LMQ%none", "--raw"),
    ("cat", "--topic", "ab", "-o", "jsonl"),
    ("find", "--topic", "ab", "--key", "key-a-0"),
    ("find", "--topic", "ab", "--at", "2020-01-01"),
    ("find", "--topic", "ab", "--queue", "0", "--at", "2020-01-01"),
)


@pytest.mark.parametrize("words", MISTYPED, ids=" ".join)
def test_a_topic_that_is_not_there(
    capsys: pytest.CaptureFixture[str], root: Path, words: tuple[str, ...]
) -> None:
    """A mistyped name is refused with exit 66; it looked like a topic without records."""
    assert main(["log", words[0], str(root), *words[1:]], {}) == 66
    out, err = capsys.readouterr()
    assert out == ""
    said = json.loads(err)["text"] + "\n" if err.startswith("{") else err
    assert f'there is no topic "{words[2]}" in {root}\n' in said
    assert f"see: twinlog log info {root} --queues" in err


def test_the_nearest_topic_and_the_queues_there_are(
    capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    """What a mistyped topic is like, and which numbers its queues have."""
    topic = max((m["topic"] for m in manifest("01-basic")["messages"]), key=len)
    assert main(["log", "cat", str(root), "--topic", f"{topic}x"], {}) == 66
    assert f'the nearest is "{topic}"' in capsys.readouterr().err
    assert main(["log", "cat", str(root), "--topic", topic, "--queue", "99"], {}) == 66
    err = capsys.readouterr().err
    assert f'there is no queue 99 of topic "{topic}" in {root}\n  there are 0' in err
    assert main(["log", "cat", str(root), "--queue", "4444"], {}) == 66
    assert f"there is no queue 4444 in {root}" in capsys.readouterr().err


def test_a_topic_without_records(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    """It is known by topics.json, or by its records where a range leaves them out: no mistake."""
    assert main(["log", "cat", str(root), "--topic", "TBW102"], {}) == 0
    assert main(["log", "cat", str(root), "--topic", "a", "--range", "end:"], {}) == 0
    assert main(["log", "find", str(root), "--topic", "TBW102", "--key", "a"], {}) == 1
    assert capsys.readouterr().err == ""


def test_a_topic_whose_queue_is_lost(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The log has its records: it is there, though no queue and no config file names it."""
    for case, topic in (("01-basic", "a"), ("08-lmq", "%LMQ%")):
        root = unpack(case, tmp_path / case)
        names = (queue["topic"] for queue in manifest(case)["queues"])
        name = next(one for one in names if one == topic or one.startswith("%LMQ%"))
        shutil.rmtree(root / "consumequeue" / name)
        (root / "config" / "topics.json").write_text("no JSON")
        assert main(["log", "cat", str(root), "--topic", name, "--range", "end:"], {}) == 0
        assert capsys.readouterr().err == ""


def test_a_topic_that_damage_may_hide(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It is unknown which topics the lost records had: 2, not 66."""
    root = unpack("01-basic", tmp_path)
    flip(root / "commitlog" / f"{0:020d}", 88)
    assert main(["log", "cat", str(root), "--topic", "none"], {}) == 2
    err = capsys.readouterr().err
    assert f'there is no topic "none" in {root}, but 284 bytes of it cannot be read' in err


def test_an_output_that_was_closed(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """``>&-``: nothing is printed, and nothing breaks."""
    monkeypatch.setattr("sys.stdout", None)
    assert main(["log", "cat", str(root), "--raw", "--range", "+1"], {}) == 0
    assert main(["log", "info", str(root)], {}) == 0


def test_cat(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    """Bodies in log order, of one topic or of all, by a format or bare."""
    messages = manifest("01-basic")["messages"]
    assert main(["log", "cat", str(root), "--format", "%O %t %q%n"], {}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{m['physical_offset']} {m['topic']} {m['queue_id']}" for m in messages]
    topic = messages[0]["topic"]
    assert main(["log", "cat", str(root), "--topic", topic, "--range=-5:", "--format", "%s%n"]) == 0
    sizes = [str(m["body_len"]) for m in messages[-5:] if m["topic"] == topic]
    assert capsys.readouterr().out.splitlines() == sizes
    assert main(["log", "cat", str(root), "--raw", "--format", "%v"], {}) == 64


def test_raw_bodies(capfdbinary: pytest.CaptureFixture[bytes], root: Path) -> None:
    """Byte for byte what is stored, nothing between."""
    assert main(["log", "cat", str(root), "--raw", "--range", "+1"], {}) == 0
    data = capfdbinary.readouterr().out
    wanted = manifest("01-basic")["messages"][0]
    assert hashlib.sha256(data).hexdigest() == wanted["body_sha256"]


def test_compacted_and_compressed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What compaction kept: each key once, but for what came later; bodies decompressed."""
    root = unpack("14-compaction", tmp_path)
    topic = manifest("14-compaction")["queues"][0]["topic"]
    words = ["log", "cat", str(root), "--compacted", "--topic", topic, "--format", "%q %o %k%n"]
    assert main(words, {}) == 0
    kept = [line.split(" ", 2) for line in capsys.readouterr().out.splitlines()]
    assert 50 <= len(kept) < 420
    older = [key for queue, offset, key in kept if queue == "0" and int(offset) < 158]
    assert len(older) == len(set(older))
    log = min((root / "compaction/compactionLog" / topic / "0").iterdir())
    whole = log.read_bytes()
    log.write_bytes(whole[:95] + bytes([whole[95] ^ 1]) + whole[96:])
    assert main(words, {}) == 65
    where = f"compaction/compactionLog/{topic}/0: the record at 0: the body does not match its CRC"
    assert where in capsys.readouterr().err
    assert main(["log", "cat", str(root), "--compacted"], {}) == 64
    assert main(["log", "cat", str(root), "--compacted", "--topic", "none"], {}) == 66
    capsys.readouterr()
    packed = unpack("11-compressed", tmp_path / "11")
    assert main(["log", "cat", str(packed), "--range", "+1", "--format", "%s"], {}) == 0
    first = manifest("11-compressed")["messages"][0]
    assert int(capsys.readouterr().out) == first.get("plain_body_len", first["body_len"])


def test_dump_hex(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every byte of a record, as JSON and as lines that people read."""
    root = sample().write(tmp_path)
    assert main(["log", "dump", str(root), "--hex", "--range", "+1", "-o", "jsonl"], {}) == 0
    item = json.loads(capsys.readouterr().out.splitlines()[0])
    data = (root / "commitlog" / f"{0:020d}").read_bytes()[: item["size"]]
    assert bytes.fromhex(item["hex"]) == data
    assert main(["log", "dump", str(root), "--hex", "--range", "+1"], {}) == 0
    assert "rmq_sys_TWINLOG" in capsys.readouterr().out.replace("\n", "")

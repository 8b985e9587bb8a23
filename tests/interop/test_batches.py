"""RocketMQ 5.3.3 and we, over batch queues, light queues, long topic names and the key index.

One store of ours holds all of them. RocketMQ reads it as it is, and builds its queues and its key
index anew from our log; then it appends batches of its own, which we read.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from storage import CreateTopic, Outcome, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from storage.key_index.search import KeyQuery
from storage.tools.adopt import carry_out, plan_adoption
from storage.tools.recover import recover
from tests.stores.workbench import find_key
from twinlog.format.inner_batches import InnerEncoder
from twinlog.format.messages import Message, messages_of
from twinlog.format.record import MAGIC_V2, RecordEncoder
from twinlog.producer.new_message import NewMessage
from twinlog.store.reader import StoreReader

pytestmark = pytest.mark.interop

SEGMENT_SIZE, ENTRIES = 64 * 1024, 50
SETTINGS = StoreSettings(
    segment_size=SEGMENT_SIZE, queue_segment_entries=ENTRIES, index_slots=100, index_cells=400
)
WHO = Who("interop", "g1", "n1", 4)
TOKEN = Token("master", 1, 1)
TOGETHER, LONG = "together", "%RETRY%" + "r" * 248
BEGAN = 1_700_000_000_000
TURNS = 150
LIGHT = ("%LMQ%a", "%LMQ%b", "%LMQ%c")
FOLDERS = ("consumequeue", "batchconsumequeue")
Sent = dict[tuple[str, int], list[tuple[str, dict[str, str]]]]


def section(number: int, sent: Sent) -> list[Section]:
    """One turn: inner batches with two tags and a message alone, light queues, the long name."""
    found: list[Section] = []
    queue = number % 2
    encoder = InnerEncoder(RecordEncoder(TOGETHER, queue), 1 << 20)
    for index in range(1 + number * 7 % 11):
        key, tag, body = f"k{number % 10} i{index}", ("x", "y")[index // 4 % 2], f"{number}/{index}"
        text = NewMessage(key, tag, properties={"text": "京漢"}).text()
        encoder.add(body.encode(), text, sys_flag=0, born_timestamp=1, key=key, tag=tag)
        properties = {"KEYS": key, "TAGS": tag, "text": "京漢"}
        sent.setdefault((TOGETHER, queue), []).append((body, properties))
    data, records, *_ = encoder.take(b"")
    found.append(Section(TOGETHER, queue, records, data))
    plain = RecordEncoder("flights", 0)
    names = LIGHT[: number % 4]
    text = NewMessage(f"k{number % 10}", None, light=names).text()
    plain.add(f"l{number}".encode(), properties=text, born_timestamp=2)
    found.append(Section("flights", 0, 1, plain.take()))
    long = RecordEncoder(LONG, 0)
    long.add(f"v{number}".encode(), properties=NewMessage(f"k{number % 10}", "t").text())
    found.append(Section(LONG, 0, 1, long.take()))
    return found


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sent]:
    """The store, stopped cleanly, and what was sent to its batch topic."""
    root = tmp_path_factory.mktemp("ours") / "store"
    return root, written(root, turns=TURNS, clean=True)


def written(root: Path, *, turns: int, clean: bool = False) -> Sent:
    """Make a store; return what was sent to its batch topic."""
    root.mkdir()
    sent: Sent = {}
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=BEGAN)
    store.registered()
    store.take_token(TOKEN)
    store.append_epoch(
        TOKEN, epoch=1, node="n1", session=1, wall_ms=BEGAN, reason="test", by="test"
    )
    for name, queues in ((TOGETHER, 2), ("flights", 1), (LONG, 1)):
        change = CreateTopic(name, queues, 1, batch=name == TOGETHER)
        assert store.append_control(TOKEN, change, wall_ms=BEGAN).outcome is Outcome.STORED
        store.set_confirm(store.end)
    for number in range(turns):
        for result in store.append(TOKEN, section(number, sent), wall_ms=BEGAN + 1000 * number):
            assert result.outcome is Outcome.STORED, result
        store.set_confirm(store.end)
        while store.dispatch(1 << 20):
            pass
    store.close(clean=clean)
    return sent


def opened(judge: Any, root: Path) -> dict[str, Any]:
    """Have RocketMQ open a directory."""
    found: dict[str, Any] = judge.ask(
        "open", dir=str(root), commit_log_size=SEGMENT_SIZE, queue_size=20 * ENTRIES,
        batch_queue_size=46 * ENTRIES, light=True,
    )  # fmt: skip
    assert found["loaded"] is True
    return found


def test_a_batch_topic_whose_confirm_no_checkpoint_knows(judge: Any, tmp_path: Path) -> None:
    """Killed, and put right by `recover`: RocketMQ must know the kind of all queues it enters."""
    root = tmp_path / "store"
    sent = written(root, turns=9)
    for folder in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(root / folder)  # what they hold would prove what was confirmed
    assert recover(RealDisk(root), wall_ms=BEGAN).confirm == 0
    opened(judge, root)
    found = judge.ask("dump")
    judge.ask("close")
    queues = {(q["topic"], q["queue_id"]): q for q in found["queues"]}
    assert {queues[place]["max"] for place in sent} == {len(sent[place]) for place in sent}


def files(root: Path) -> dict[str, bytes]:
    """All queue files."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


def hits(root: Path) -> dict[tuple[str, str, int, int], list[int]]:
    """Log offsets of what we find, for keys of three topics and ranges of time."""
    asked = [
        (topic, key, begin, end)
        for topic in (TOGETHER, "flights", LONG)
        for key in ("k3", "k7", "i2", "nobody")
        for begin, end in ((0, 2 * BEGAN), (BEGAN + 30_000, BEGAN + 90_000), (BEGAN, BEGAN + 3000))
    ]
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=BEGAN)
    found: dict[tuple[str, str, int, int], list[int]] = {}
    for topic, key, begin, end in asked:
        query = KeyQuery(topic, key, most=64, begin=begin, end=end)
        slices = find_key(store, query).slices
        offsets = [messages_of(view)[0].log_offset for view in slices]
        found[topic, key, begin, end] = sorted(offsets)
    store.close(clean=True)
    return found


@pytest.mark.parametrize("anew", [False, True], ids=["as it is", "built anew"])
def test_rocketmq_reads_ours(
    judge: Any, ours: tuple[Path, Sent], tmp_path: Path, anew: bool
) -> None:
    """Batch queues, light queues, V2 records, keys: what it finds is what we wrote.

    Built anew from our log its queue files are ours, byte for byte.
    """
    root, sent = ours
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    if anew:
        for folder in (*FOLDERS, "index"):
            shutil.rmtree(copy / folder)
        (copy / "abort").write_text("1")
        (copy / "checkpoint").unlink()  # it would trust that older records have their entries
    opened(judge, copy)
    found = judge.ask("dump")
    wanted = hits(root)
    theirs = {
        asked: judge.ask("query", topic=asked[0], key=asked[1], begin=asked[2], end=asked[3])
        for asked in wanted
    }
    judge.ask("close")
    assert files(copy) == files(root)
    batched = [one for one in found["messages"] if one["topic"] == TOGETHER]
    unfolded: Sent = {}
    for one in batched:
        place, start = (TOGETHER, one["queue_id"]), one["queue_offset"]
        rows = one.get("inner") or [[start, bytes.fromhex(one["body"]).decode(), one["properties"]]]
        assert [row[0] for row in rows] == list(range(start, start + len(rows)))
        assert len(unfolded.setdefault(place, [])) == start
        for _, body, properties in rows:
            properties.pop("WAIT", None)  # its decoder writes down what was not said
            unfolded[place].append((body, properties))
    assert unfolded == sent
    assert len(batched) < sum(len(messages) for messages in sent.values()) / 2
    queues = {(q["topic"], q["queue_id"]): q for q in found["queues"]}
    with StoreReader(root) as reader:
        for queue in reader.queues():
            held = [(e.queue_offset, e.log_offset, e.size, e.count) for e in queue.entries()]
            said = queues[queue.topic, queue.queue]
            assert (said["min"], said["max"]) == (queue.min, queue.max)
            rows = zip(said["entries"], said["counts"], strict=True)
            assert [(*row[:3], count) for row, count in rows] == held
        assert reader.record_at(queues[LONG, 0]["entries"][0][1]).magic == MAGIC_V2
    named = [sum(number % 4 > i for number in range(TURNS)) for i in range(3)]
    assert [queues[name, 0]["max"] for name in LIGHT] == named
    assert {asked: sorted(said["physical_offsets"]) for asked, said in theirs.items()} == wanted
    assert sum(len(offsets) for offsets in wanted.values()) > 100


def read(store: Store, queue: int) -> list[Message]:
    """All messages of a batch queue."""
    found: list[Message] = []
    at, end = store.reads.queue_range(TOGETHER, queue)
    while at < end:
        answer = store.reads.read(TOGETHER, queue, at, max_bytes=4096, max_records=99)
        found += messages_of(b"".join(answer.slices))
        at = answer.next
    return found


def test_we_read_the_batches_of_rocketmq(
    judge: Any, ours: tuple[Path, Sent], tmp_path: Path
) -> None:
    """It numbers them behind ours; adopted, they are read, and our next one goes behind theirs."""
    root, sent = ours
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    opened(judge, copy)
    rows = [[[f"r{n}-{i}", {"KEYS": f"r{n}"}] for i in range(1 + n % 4)] for n in range(40)]
    put = judge.ask(
        "put",
        messages=[
            {"topic": TOGETHER, "queue": n % 2, "inner": row, "properties": {"UNIQ_KEY": f"U{n}"}}
            for n, row in enumerate(rows)
        ],
    )
    assert {one["status"] for one in put["results"]} == {"PUT_OK"}
    judge.ask("close")
    with StoreReader(copy) as one, StoreReader(copy, rocketmq=True) as reader:
        value = plan_adoption(reader, one)
        assert value.batched == (TOGETHER,)
        carry_out(RealDisk(copy), value, WHO, reader=reader, ours=one)
    store = Store.open(RealDisk(copy), SETTINGS, WHO, wall_ms=BEGAN)
    assert not store.boot.queues_rebuilt
    wanted = {queue: [body for body, _ in sent[TOGETHER, queue]] for queue in (0, 1)}
    for n, row in enumerate(rows):
        assert put["results"][n]["queue_offset"] == len(wanted[n % 2])
        wanted[n % 2] += [body for body, _ in row]
    token = Token("master", value.epoch + 1, 1)
    store.take_token(token)
    store.append_epoch(
        token, epoch=value.epoch + 1, node="n1", session=1, wall_ms=BEGAN, reason="t", by="t"
    )
    for queue in (0, 1):
        found = read(store, queue)
        assert [m.body.decode() for m in found] == wanted[queue]
        assert [m.queue_offset for m in found] == list(range(len(found)))
        encoder = InnerEncoder(RecordEncoder(TOGETHER, queue), 1 << 20)
        for body in (b"a", b"b"):
            encoder.add(body, b"", sys_flag=0, born_timestamp=1, key=None, tag=None)
        sections = [Section(TOGETHER, queue, 1, encoder.take(b"")[0])]
        assert store.append(token, sections, wall_ms=BEGAN)[0].queue_offset == len(found)
    store.close(clean=True)

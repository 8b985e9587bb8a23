"""A topic that is altered: what is taken away binds from the append, what is given from confirm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import CreateTopic, Outcome, SectionResult, Store
from storage.disk.disk import RealDisk
from storage.state.control import Control
from storage.state.controls import DeleteTopic, decode_control, encode_control
from storage.state.layers import Layers
from storage.state.topic_controls import AlterTopic
from storage.state.topics import READ, WRITE, State, Topic
from storage.tools.recover import identity_of, settings_of
from tests.fakes.disk import FakeDisk
from tests.stores.adopted import WHO, adopt
from tests.stores.golden import manifest, unpack
from tests.stores.workbench import TOPIC, append, master, open_store, run, section, settle, token
from twinlog.errors import TopicClosed


def alter(store: Store, **changes: int) -> SectionResult:
    """Alter the topic of the store."""
    return store.append_control(token(1), AlterTopic(TOPIC, 5, **changes), wall_ms=2000)


def terms(store: Store) -> Topic:
    """The topic as confirmed."""
    found = store.reads.terms(TOPIC)
    assert found is not None
    return found


NUMBERS = st.none() | st.integers(0, 5)
ALTERATIONS = st.builds(
    AlterTopic,
    st.just("t"),
    st.just(1),
    queues=NUMBERS,
    write_queues=NUMBERS,
    permission=st.none() | st.integers(0, 7),
    records_per_second=NUMBERS,
    bytes_per_second=NUMBERS,
)
CHANGES = st.one_of(
    ALTERATIONS,
    ALTERATIONS,
    st.just(CreateTopic("t", 2, 1)),
    st.just(DeleteTopic("t", 1)),
)
STEPS = st.lists(st.tuples(CHANGES, st.sampled_from(["", "", "confirm", "cut"])), max_size=12)


def folded(changes: list[tuple[int, Control]]) -> State:
    """The state after records, one after the other."""
    state = State()
    for end, change in changes:
        change.apply(state, end)
    return state


@settings(max_examples=200)
@given(STEPS)
def test_layers_allow_what_every_state_since_confirm_allows(
    steps: list[tuple[Control, str]],
) -> None:
    """Whatever is appended, confirmed and cut; the states are those of a plain fold."""
    layers = Layers()
    log: list[tuple[int, Control]] = []
    confirm = 0
    for number, (change, then) in enumerate(steps, 1):
        if change.refusal(layers) is None and change.repeated(layers) is None:
            log.append((100 * number, change))
            layers.append(100 * number, change)
        if then == "confirm" and log:
            confirm = log[-1][0]
            layers.confirm(confirm)
        elif then == "cut":
            layers.cut(confirm)
            log = [row for row in log if row[0] <= confirm]
        states = [folded([row for row in log if row[0] <= end]) for end in (confirm,)]
        states += [folded(log[: at + 1]) for at, (end, _) in enumerate(log) if end > confirm]
        assert layers.confirmed.topics == states[0].topics
        found, lives = layers.open.get("t"), [state.topics.get("t") for state in states]
        if found is None:
            assert None in lives
            continue
        for one in lives:
            assert one is not None
            assert found.queues <= one.queues
            assert found.writable <= one.writable
            assert found.permission & ~one.permission == 0
            for mine, its in zip(found.quota, one.quota, strict=True):
                assert not its or 0 < mine <= its
        assert ("t" in layers.closed) == (not found.permission & READ)
        if len(states) == 1:
            assert found == layers.confirmed.topics["t"]


@given(st.lists(CHANGES, max_size=8), st.integers(0, 8), st.integers(0, 8))
def test_records_that_a_seed_has_folded_already_change_nothing(
    changes: list[Control], start: int, end: int
) -> None:
    """A node that begins with the state of a later offset meets the records before it again."""
    rows: list[tuple[int, Control]] = []
    layers = Layers()
    for change in changes:
        if change.refusal(layers) is None and change.repeated(layers) is None:
            rows.append((100 * len(rows) + 100, change))
            layers.append(*rows[-1])
            layers.confirm(rows[-1][0])
    state, whole = folded(rows[:end]), folded(rows)
    for at, change in rows[min(start, end) :]:
        change.apply(state, at)
    assert state.topics == whole.topics


@given(ALTERATIONS)
def test_a_record_says_what_it_was_made_of(change: AlterTopic) -> None:
    """And no more: an older record stays as short as it was."""
    assert decode_control(encode_control(change)) == change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (AlterTopic("a", 1), "topic-terms"),
        (AlterTopic("a", 1, queues=1), "queues"),
        (AlterTopic("a", 1, queues=65_537), "topic-terms"),
        (AlterTopic("a", 1, write_queues=3), "queues"),
        (AlterTopic("a", 1, write_queues=0), "topic-terms"),
        (AlterTopic("a", 1, permission=3), "topic-terms"),
        (AlterTopic("a", 1, records_per_second=-1), "topic-terms"),
        (AlterTopic("never", 1, queues=9), "unknown-topic"),
        (AlterTopic("rmq_sys_TWINLOG_META", 1, queues=9), "topic"),
    ],
)
def test_what_no_topic_can_be_is_refused(change: AlterTopic, code: str) -> None:
    """With what is wrong; and applied all the same it changes nothing but by growing."""
    layers = Layers(State([Topic("a", 2, 1)]))
    refusal = change.refusal(layers)
    assert refusal is not None
    assert refusal[0] == code
    change.apply(layers.confirmed, 100)
    assert layers.confirmed.topics["a"].queues == 2


def test_a_topic_that_may_not_be_written_refuses_from_the_append() -> None:
    """And takes messages again only once that is confirmed; a cut takes it back."""
    store = master(FakeDisk())
    assert append(store, section(1))[0].outcome is Outcome.STORED
    before = store.end
    assert alter(store, permission=READ).outcome is Outcome.STORED
    refused = append(store, section(1))[0]
    assert (refused.outcome, refused.code) == (Outcome.REFUSED, "topic-permission")
    assert append(store, section(1), section(2))[1].code == "topic-permission"
    settle(store)
    assert store.reads.queue_range(TOPIC, 0) == (0, 1)
    assert alter(store, permission=READ).outcome is Outcome.DUPLICATE
    alter(store, permission=READ | WRITE)
    assert append(store, section(1))[0].code == "topic-permission"
    settle(store)
    assert append(store, section(1))[0].outcome is Outcome.STORED
    run(store, store.cut_job(token(1), before))
    assert terms(store).permission == READ | WRITE


def test_a_topic_that_may_not_be_read_says_so() -> None:
    """From the append on; sending goes on."""
    store = master(FakeDisk())
    store.reads.check_open(TOPIC)
    alter(store, permission=WRITE)
    with pytest.raises(TopicClosed, match="may not be read"):
        store.reads.check_open(TOPIC)
    assert append(store, section(1))[0].outcome is Outcome.STORED


def test_new_queues_are_there_from_the_confirm() -> None:
    """And a queue that takes no messages any more is still read."""
    store = master(FakeDisk())
    append(store, section(5, queue=3))
    alter(store, queues=6, write_queues=6)
    assert append(store, section(1, queue=5))[0].code == "unknown-queue"
    settle(store)
    assert append(store, section(1, queue=5))[0].outcome is Outcome.STORED
    alter(store, write_queues=2)
    for queue, code in ((1, ""), (3, "queue-closed"), (6, "unknown-queue")):
        assert append(store, section(1, queue=queue))[0].code == code
    settle(store)
    assert store.reads.queue_range(TOPIC, 3) == (0, 5)
    assert (store.reads.narrowed(), store.reads.grown()) == ({TOPIC: 2}, {TOPIC: 6})
    assert store.append_control(token(1), CreateTopic(TOPIC, 4, 1), wall_ms=1).code == (
        "topic-exists"
    )


def test_what_the_store_itself_delivers_goes_to_a_closed_queue() -> None:
    """It was accepted before; but never to a topic that is not there."""
    store = master(FakeDisk())
    alter(store, permission=READ, write_queues=1)
    settle(store)
    made = section(1, queue=3)
    made.own = True
    done = store.append_together(token(1), [made], [], wall_ms=2000)
    assert done.outcome is Outcome.STORED
    lost = section(1, topic="nowhere")
    lost.own = True
    done = store.append_together(token(1), [lost], [], wall_ms=2000)
    assert done.outcome is Outcome.REFUSED


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_start_comes_to_the_same_terms(snapshot: bool) -> None:
    """With a snapshot after the change, or with the log alone; RocketMQ finds it in its file."""
    disk = FakeDisk()
    store = master(disk)
    alter(store, queues=8, write_queues=3, permission=READ, records_per_second=7)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    if snapshot:
        run(store, store.jobs.snapshot_job(force=True))
    found = terms(store)
    store.close(clean=snapshot)
    again = open_store(disk)
    settle(again)
    assert terms(again) == found
    assert (found.queues, found.takes, found.writable, found.quota) == (8, 3, 0, (7, 0))
    again.close(clean=True)
    table = json.loads(disk.read("config/topics.json", "test"))["topicConfigTable"]
    row = table[TOPIC]
    assert (row["readQueueNums"], row["writeQueueNums"], row["perm"]) == (8, 3, 4)


def test_rocketmqs_permissions_are_adopted(tmp_path: Path) -> None:
    """With the numbers of queues that it reads and writes."""
    root = unpack("01-basic", tmp_path)
    path = root / "config" / "topics.json"
    table = json.loads(path.read_text())
    name = manifest("01-basic")["messages"][0]["topic"]
    table["topicConfigTable"][name] |= {"writeQueueNums": 1, "readQueueNums": 4, "perm": 4}
    path.write_text(json.dumps(table))
    value = adopt(root)
    assert (name, 1, 4) in value.terms
    disk = RealDisk(root)
    store = Store.open(disk, settings_of(identity_of(disk)), WHO, wall_ms=value.timestamp)
    settle(store)
    found = store.reads.terms(name)
    assert found is not None
    assert (found.queues >= 4, found.takes, found.permission) == (True, 1, READ)
    store.close(clean=True)
    row = json.loads(path.read_text())["topicConfigTable"][name]
    assert (row["writeQueueNums"], row["perm"]) == (1, 4)

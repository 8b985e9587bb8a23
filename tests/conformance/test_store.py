"""One suite for both stores: what the driver of a replica may rely on.

The dialogues run on a store in memory (`tests.dialogues.fake_store`), whose batches have round
sizes and whose disk can be full or broken at a word. It must behave as the real one does: the same
methods with the same arguments, the same errors, the same borders.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from storage import CreateTopic, Outcome, Promise, Store, Token
from storage.background import StoreJobs
from storage.errors import BadBatch, Gap, StaleToken
from storage.log.segments import covered
from storage.reads import StoreReads
from tests.dialogues.fake_store import Boot, FakeStore
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import SETTINGS, TOPIC, WHO, run, section
from twinlog.format.batch_index import KIND_EPOCH, KIND_FILLER, BatchEntry
from twinlog.format.epoch_history import Epoch
from twinlog.kernels import crc32c

MASTER, SLAVE, OLD = Token("master", 1, 1), Token("slave", 1, 1), Token("master", 0, 1)
Make = Callable[[], Store]

OF_THE_FAKE = {"check", "reopened"}
"""What the fake has for itself: the check of a token, and its next process."""


@pytest.fixture(params=["real", "fake"])
def make(request: pytest.FixtureRequest) -> Make:
    """Open a new store."""
    if request.param == "real":
        return lambda: Store.open(FakeDisk(page_size=512), SETTINGS, WHO, wall_ms=1000)
    boot = Boot("store", "start")
    return lambda: FakeStore(boot, SETTINGS, WHO)  # type: ignore[return-value]


@pytest.fixture
def leader(make: Make) -> Store:
    """A master with a topic and three batches of records."""
    store = make()
    store.take_token(MASTER)
    end = store.append_epoch(
        MASTER, epoch=1, node="n1", session=1, wall_ms=1000, reason="test", by="test"
    )
    assert end == store.end
    made = store.append_control(MASTER, CreateTopic(TOPIC, 4, 1), wall_ms=1000)
    assert (made.outcome, made.end) == (Outcome.STORED, store.end)
    settle(store)
    for count in (1, 2, 3):
        before = store.end
        [result] = store.append(MASTER, [section(count)], wall_ms=1001)
        assert (result.outcome, result.log_offset, result.end) == (
            Outcome.STORED,
            before,
            store.end,
        )
    return store


def settle(store: Store) -> None:
    """Confirm and dispatch everything."""
    store.set_confirm(store.end)
    while store.dispatch(1 << 20, wall_ms=1000):
        pass
    assert (store.confirm, store.dispatched, store.behind) == (store.end, store.end, False)


def batches(store: Store) -> list[BatchEntry]:
    """The entries of the whole log."""
    return store.entries(store.start, max_bytes=1 << 20)


def payload(store: Store, entries: list[BatchEntry]) -> memoryview:
    """Their bytes, as a frame carries them."""
    return memoryview(b"".join(bytes(store.view(one.start, one.end)) for one in entries))


def shape(owner: object, name: str) -> object:
    """What callers see of a member: the names and kinds of its arguments, or that it has none."""
    member = inspect.getattr_static(owner, name)
    if not inspect.isfunction(member):
        return "a value"
    arguments = list(inspect.signature(member).parameters.values())[1:]
    return [(one.name, one.kind, one.default) for one in arguments]


@pytest.mark.parametrize(
    "name", sorted(n for n in vars(FakeStore) if not n.startswith("_") and n not in OF_THE_FAKE)
)
def test_the_fake_has_only_what_the_real_store_has(name: str) -> None:
    """A method that was renamed, or takes something else now, is changed in both."""
    owners = [one for one in (Store, StoreReads, StoreJobs) if hasattr(one, name)]
    assert owners, f"the store has no {name}: remove it from the fake"
    real, fake = [shape(one, name) for one in owners], shape(FakeStore, name)
    if name in ("snapshot_job", "checkpoint_job"):  # what a stop asks for besides is not faked
        real = [[]]
    assert fake in real


def test_a_log_is_a_chain_of_whole_batches(leader: Store) -> None:
    """From border to border, each with the CRC of its bytes."""
    found = batches(leader)
    assert [one.start for one in found] == [leader.start, *(one.end for one in found[:-1])]
    assert found[-1].end == leader.end == leader.committed
    assert [crc32c(leader.view(one.start, one.end)) for one in found] == [one.crc for one in found]
    assert leader.entries(found[2].start, max_bytes=1) == [found[2]]
    assert (leader.epochs, leader.last_epoch) == ((Epoch(1, 0),), 1)


def test_borders(leader: Store) -> None:
    """The last one at or below an offset; beyond the end it is the end."""
    third = batches(leader)[2]
    for offset, border in (
        (third.start, third.start),
        (third.end - 1, third.start),
        (third.end, third.end),
        (leader.end + 1000, leader.end),
        (0, 0),
    ):
        assert leader.border_at_or_below(offset) == border


def test_only_the_present_writer_writes(leader: Store) -> None:
    """Whoever was writer before is refused before anything happens."""
    before = leader.end
    calls: list[Callable[[], object]] = [
        lambda: leader.append(OLD, [section(1)], wall_ms=1),
        lambda: leader.append_control(OLD, CreateTopic("u", 1, 1), wall_ms=1),
        lambda: leader.receive(OLD, [], memoryview(b"")),
        lambda: leader.receive_alone(OLD, b"", memoryview(b"")),
        lambda: leader.cut_job(OLD, 0),
    ]
    for call in calls:
        with pytest.raises(StaleToken):
            call()
    leader.drop_token()
    with pytest.raises(StaleToken):
        leader.append(MASTER, [section(1)], wall_ms=1)
    assert leader.end == before


def follower(make: Make) -> Store:
    """An empty slave."""
    store = make()
    store.take_token(SLAVE)
    return store


def test_a_slave_gets_the_same_log(leader: Store, make: Make) -> None:
    """Bytes, borders, history, and the CRC over the chain."""
    found, slave = batches(leader), follower(make)
    assert slave.receive(SLAVE, found, payload(leader, found)) == leader.end == slave.end
    assert slave.epochs == leader.epochs
    assert slave.chain_crc(0, slave.end) == leader.chain_crc(0, leader.end)
    assert slave.chain_crc(0, found[2].start) != leader.chain_crc(0, leader.end)


def test_a_batch_elsewhere_or_damaged_is_refused(leader: Store, make: Make) -> None:
    """Nothing of the frame is stored."""
    found, slave = batches(leader), follower(make)
    head = found[:2]
    slave.receive(SLAVE, head, payload(leader, head))
    before = slave.end
    with pytest.raises(Gap):
        slave.receive(SLAVE, found[3:], payload(leader, found[3:]))
    data = bytearray(payload(leader, found[2:]))
    data[-1] ^= 1
    with pytest.raises(BadBatch) as caught:
        slave.receive(SLAVE, found[2:], memoryview(data))
    assert (caught.value.start, caught.value.length) == (found[-1].start, found[-1].length)
    assert slave.end == before
    assert slave.receive(SLAVE, found[2:], payload(leader, found[2:])) == leader.end


def test_a_cut_ends_the_log_at_a_border(leader: Store, make: Make) -> None:
    """What was flushed beyond it is not there any more; the slave goes on from it."""
    found, slave = batches(leader), follower(make)
    slave.receive(SLAVE, found, payload(leader, found))
    while (job := slave.jobs.flush_job(thorough=True)) is not None:
        run(slave, job)
    assert slave.flushed == slave.end
    run(slave, slave.cut_job(SLAVE, found[3].start))
    slave.take_token(SLAVE)
    assert (slave.end, slave.committed) == (found[3].start, found[3].start)
    assert slave.flushed <= slave.end
    assert batches(slave) == [one for one in batches(slave) if one.end <= found[3].start]
    slave.receive(SLAVE, found[3:], payload(leader, found[3:]))
    assert slave.chain_crc(0, slave.end) == leader.chain_crc(0, leader.end)


def test_a_promise_is_there_when_its_job_is_done(make: Make) -> None:
    """Not before."""
    store = make()
    promise = Promise(register_id="r", revision=3, tag=5)
    job = store.jobs.save_promise_job(promise)
    job.run()
    assert store.promise == Promise()
    store.jobs.finish(job)
    assert store.promise == promise


def test_a_file_ends_with_a_filler_and_the_next_begins_with_an_epoch_record(
    leader: Store, make: Make
) -> None:
    """No batch is in two files; a slave gets the same files."""
    size = leader.settings.segment_size
    while leader.end < 2 * size:
        leader.append(MASTER, [section(10, size=100)], wall_ms=1002)
    found = batches(leader)
    kinds = {one.start: one.kind for one in found}
    assert kinds[size] == kinds[2 * size] == KIND_EPOCH
    assert [one.end for one in found if one.kind == KIND_FILLER] == [size, 2 * size]
    assert leader.epochs == (Epoch(1, 0),)
    slave = follower(make)
    for one in found:
        slave.receive(SLAVE, [one], leader.view(one.start, one.start + covered(one)))
    assert slave.chain_crc(0, slave.end) == leader.chain_crc(0, leader.end)

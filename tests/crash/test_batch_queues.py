"""A process with batch queues dies in any disk call: they are what the log says, and nothing more.

The history of `tests.crash.test_every_operation`, with a batch topic that gets an inner batch and a
message of its own, three times at each step.
"""

from __future__ import annotations

from functools import cache

import pytest

from storage import CreateTopic, Outcome, Section, Store
from storage.queues import ConsumeQueues
from tests.crash.rotation import PARTS, numbers
from tests.crash.test_every_operation import LOSSES, History, examine, lose
from tests.crash.workbench import SETTINGS, append, covered_views, settle, token
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import SimulatedCrash
from twinlog.inner_batches import InnerEncoder
from twinlog.kernels import gather_units
from twinlog.messages import messages_of
from twinlog.record import RecordEncoder

NAME, FOLDER = "together", "batchconsumequeue"
STRIDE = 160


class BatchHistory(History):
    """Sends to the batch topic, too."""

    def step(self, number: int) -> None:
        """One step, and three sections more, whose first records are inner batches."""
        assert self.store is not None
        if NAME not in self.store.topics():
            made = CreateTopic(NAME, 2, 1, batch=True)
            self.store.append_control(token(self.epoch), made, wall_ms=1000)
            settle(self.store)
            self.note()
        encoder = InnerEncoder(RecordEncoder(NAME, number % 2), 1 << 20)
        for index in range(2 + number % 5):
            tag = "last" if index == 1 + number % 5 else "x"
            encoder.add(b"%d" % index, b"", sys_flag=0, born_timestamp=1, key=None, tag=tag)
        data, records, *_ = encoder.take(b"")
        sent = Section(NAME, number % 2, records, data)
        for result in append(self.store, sent, sent, sent, epoch=self.epoch):
            assert result.outcome is Outcome.STORED
        self.note()
        super().step(number)


@cache
def calls() -> int:
    """Disk calls of the whole history."""
    disk = FakeDisk(page_size=512)
    BatchHistory(disk).play()
    return disk.faults.calls


def test_batch_queues_are_in_use() -> None:
    """Several files of them, cuts and retention among the calls."""
    disk = FakeDisk(page_size=512)
    disk.faults.recording = True
    BatchHistory(disk).play()
    touched = {op for op, path in disk.faults.record if path.startswith(FOLDER)}
    assert {"queue.create", "queue.write", "retention.queue.remove"} <= touched


def examine_batches(disk: FakeDisk, store: Store) -> None:
    """Files and messages are those of the log, as far as it is kept."""
    if NAME not in store.topics():
        return
    fresh = FakeDisk()
    queues = ConsumeQueues(fresh, SETTINGS.queue_file_size, {NAME})
    for start, view in covered_views(store, store.dispatched):
        for name, queue, first, _, units in gather_units(view, 0, len(view), start, {b"together"}):
            queues.write(name.decode(), queue, first, units)
    for queue in (0, 1):
        start, end = store.queue_range(NAME, queue)
        wanted = queues.get(NAME, queue)
        if wanted is not None:
            assert (start, end) == (wanted.start, wanted.end)
        at = start
        while at < end:
            answer = store.read(NAME, queue, at, max_bytes=1 << 20, max_records=1 << 20)
            found = messages_of(b"".join(answer.slices))
            assert [one.queue_offset for one in found] == list(range(at, answer.next))
            at = answer.next
        if not store.start:
            folder = f"{FOLDER}/{NAME}/{queue}"
            ours = [disk.read(f"{folder}/{name}", "test") for name in disk.list(folder)]
            assert ours == [fresh.read(f"{folder}/{name}", "test") for name in fresh.list(folder)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
def test_a_part_of_the_calls(kind: str) -> None:
    """See the module's text; each kind of loss has calls of its own, ``some`` others each day."""
    step = STRIDE // PARTS if kind == "some" else STRIDE
    for number in numbers(calls(), kind, first=LOSSES.index(kind), step=step):
        disk = FakeDisk(page_size=512)
        history = BatchHistory(disk)
        disk.faults.crash(after=number)
        with pytest.raises(SimulatedCrash):
            history.play()
        lose(disk, kind, number)
        examine(disk, history, kind, also=examine_batches)

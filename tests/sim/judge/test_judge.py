"""The judge must be awake: each kind of broken history is told to it and must be reported."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from tests.sim.judge.contents import Contents
from tests.sim.judge.ledger import Batch, Ledger, Violation
from twinlog.format.batch_index import BatchEntry


def entry(start: int, length: int, epoch: int, crc: int = 1, kind: int = 0) -> BatchEntry:
    """An entry of one record."""
    return BatchEntry(start, length, 1, epoch, crc, 0, kind, 0)


def two_logs() -> Ledger:
    """Two stores with the same two batches."""
    ledger = Ledger(("a", "b"))
    for shadow in ledger.shadows.values():
        ledger.grow(shadow, [entry(0, 100, 1, kind=3), entry(100, 50, 1)])
    return ledger


def test_equal_logs_are_fine_and_match() -> None:
    """A confirmed prefix is matched by every store that holds it."""
    ledger = two_logs()
    a, b = ledger.shadows.values()
    assert len(ledger.confirm(a, 150)) == 2
    assert ledger.holds_canon(b)
    ledger.cut(b, 100)
    assert not ledger.holds_canon(b)


def test_who_had_a_batch_is_remembered() -> None:
    """A slave that lost it has said so in good faith; nobody else has had it."""
    ledger = two_logs()
    a, b = ledger.shadows.values()
    assert ledger.held_elsewhere(a, 150)
    ledger.cut(b, 100)
    assert ledger.held_elsewhere(a, 150)
    ledger.grow(a, [entry(150, 10, 1)])
    assert ledger.held_elsewhere(a, 150)
    assert not ledger.held_elsewhere(a, 151)
    assert not ledger.held_elsewhere(a, 160)


def test_other_bytes_under_the_same_epoch_are_reported() -> None:
    """Two stores disagree on one batch of one epoch."""
    ledger = two_logs()
    a, b = ledger.shadows.values()
    ledger.grow(a, [entry(150, 10, 1, crc=5)])
    with pytest.raises(Violation, match="BatchesEqual"):
        ledger.grow(b, [entry(150, 10, 1, crc=6)])


def test_the_same_batch_after_another_history_is_reported() -> None:
    """Logs that part may not meet again."""
    ledger = two_logs()
    a, b = ledger.shadows.values()
    ledger.grow(a, [entry(150, 10, 1), entry(160, 10, 3, kind=3)])
    with pytest.raises(Violation, match="PrefixAgreement"):
        ledger.grow(b, [entry(150, 10, 2, kind=3), entry(160, 10, 3, kind=3)])


def test_another_confirmed_history_is_reported() -> None:
    """A master that lost a confirmed batch and confirms another one is caught."""
    ledger = two_logs()
    a, b = ledger.shadows.values()
    ledger.confirm(a, 150)
    ledger.cut(b, 100)
    ledger.grow(b, [entry(100, 70, 2, kind=3)])
    with pytest.raises(Violation, match="ConfirmedStays"):
        ledger.confirm(b, 170)


def test_gaps_cuts_and_confirms_inside_batches_are_reported() -> None:
    """The log is whole batches, always."""
    ledger = two_logs()
    a, _ = ledger.shadows.values()
    with pytest.raises(Violation, match="EveryByteHasEntry"):
        ledger.grow(a, [entry(160, 10, 1)])
    with pytest.raises(Violation, match="ConfirmIsBorder"):
        ledger.confirm(a, 120)
    with pytest.raises(Violation, match="EveryByteHasEntry"):
        ledger.cut(a, 120)


def record(name: bytes, queue_offset: int, log_offset: int) -> bytes:
    """A record of the workload in queue 0 of topic t."""
    body = name + b"|"
    size = 88 + len(body) + 2 + 2
    head = struct.pack(
        ">iiiiiqqiq8sq8siqi",
        *(size, 0, 0, 0, 0, queue_offset, log_offset, 0, 0, bytes(8), 0, bytes(8), 0, 0, len(body)),
    )
    return head + body + b"\x01t" + b"\x00\x00"


def told(*records: tuple[bytes, int]) -> Contents:
    """Tell the judge these records, one batch each."""
    contents = Contents()
    at = 0
    for name, queue_offset in records:
        data = record(name, queue_offset, at)
        contents.add(Batch(entry(at, len(data), 1, crc32c(data)), None), data)
        at += len(data)
    return contents


def test_a_good_queue_is_fine() -> None:
    """Dense queue offsets and rising sequences are what a queue is."""
    contents = told((b"p0|0|0|0", 0), (b"p0|0|1|0", 1), (b"p1|0|0|0", 2))
    assert len(contents.queues["t", 0]) == 3


@pytest.mark.parametrize(
    ("records", "invariant"),
    [
        (((b"p0|0|0|0", 0), (b"p0|0|0|0", 1)), "NoGapNoDouble"),
        (((b"p0|0|0|0", 0), (b"p0|0|1|0", 2)), "NoGapNoDouble"),
        (((b"p0|0|0|0", 0), (b"p0|0|1|0", 0)), "NoGapNoDouble"),
        (((b"p0|0|1|0", 0), (b"p0|0|0|0", 1)), "ProducerOrder"),
    ],
)
def test_broken_queues_are_reported(records: tuple[tuple[bytes, int], ...], invariant: str) -> None:
    """A duplicate, a gap, a doubled queue offset, a reordered producer."""
    with pytest.raises(Violation, match=invariant):
        told(*records)

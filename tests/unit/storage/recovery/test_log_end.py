"""What of a log is believed after a stop."""

from __future__ import annotations

import pytest

from storage.recovery.log_end import Found, Plan, plan
from twinlog.format.batch_index import KIND_EPOCH, KIND_FILLER, KIND_RECORDS, BatchEntry

SIZE = 1000


def entry(
    start: int, length: int, *, kind: int = KIND_RECORDS, epoch: int = 1, flushed: int = 0
) -> BatchEntry:
    """One batch entry."""
    return BatchEntry(start, length, 1, epoch, 0, 0, kind, flushed)


def recover(
    *files: tuple[int, list[BatchEntry]], flushed: int = 0, bad: int = -1, prove_from: int = 0
) -> Plan:
    """The plan for files of given entries, in which the batch at ``bad`` does not match."""
    found = [
        Found(start, SIZE, b"".join(one.pack() for one in entries).ljust(480, b"\0"))
        for start, entries in files
    ]
    return plan(
        found, segment_size=SIZE, prove_from=prove_from, flushed=flushed,
        check=lambda one: "bad" if one.start == bad else None,
    )  # fmt: skip


HEAD = entry(0, 100, kind=KIND_EPOCH)

FULL = [HEAD, entry(100, 500), entry(600, 400, kind=KIND_FILLER)]

NEXT = [entry(1000, 100, kind=KIND_EPOCH), entry(1100, 200, flushed=600)]


def test_a_whole_log_ends_behind_its_last_entry() -> None:
    """Over files; the largest flushed offset is that of any entry."""
    found = recover((0, FULL), (1000, NEXT))
    assert found == Plan(1300, 600, {0: 3, 1000: 2}, 0)
    assert recover() == Plan(0, 0, {}, 0)


@pytest.mark.parametrize(
    ("files", "end"),
    [
        ([(0, [HEAD, entry(150, 50)])], 100),
        ([(0, [HEAD, entry(100, 950)])], 100),
        ([(0, [HEAD, entry(100, 900)])], 100),
        ([(0, [HEAD, entry(100, 100, kind=KIND_FILLER)])], 100),
        ([(0, [entry(0, 100)])], 0),
        ([(0, [entry(0, 9, kind=KIND_EPOCH, epoch=2), entry(9, 9, epoch=1)])], 9),
        ([(0, [HEAD, entry(100, 500)]), (1000, NEXT[:1])], 600),
        ([(0, FULL), (2000, NEXT)], 1000),
    ],
)
def test_a_batch_that_breaks_a_rule_ends_the_log(
    files: list[tuple[int, list[BatchEntry]]], end: int
) -> None:
    """Not continued, beyond its file, no filler, no epoch record, a lower epoch, a file missing."""
    found = recover(*files)
    assert (found.end, found.damage) == (end, None)
    if end:
        damaged = recover(*files, flushed=end + 1).damage
        assert damaged is not None
        assert damaged.offset == end


def test_an_index_without_zeros_behind_its_entries_is_at_its_end() -> None:
    """A file that grew exactly so far, or holds a piece of an entry, ends the log there."""
    for tail in (b"", b"\0" * 20, HEAD.pack()[:20]):
        found = plan(
            [Found(0, SIZE, HEAD.pack() + tail)], segment_size=SIZE, prove_from=0, flushed=0,
            check=lambda _: None,
        )  # fmt: skip
        assert (found.end, found.counts, found.damage) == (100, {0: 1}, None)


def test_bytes_are_looked_at_from_a_point_on() -> None:
    """Below it a batch is believed, above it a mismatch is a torn tail or damage."""
    assert recover((0, FULL), (1000, NEXT), bad=100, prove_from=600).end == 1300
    torn = recover((0, FULL), (1000, NEXT[:1]), bad=1000)
    assert (torn.end, torn.cut_batches, torn.damage) == (1000, 1, None)
    named = recover((0, FULL), (1000, NEXT), bad=100)
    assert named.damage is not None
    assert (named.damage.offset, named.damage.length) == (100, 500)
    assert named.damage.file.startswith("commitlog/")


def test_a_file_of_another_length_is_missing() -> None:
    """A log file that is shorter than it must be proves nothing."""
    raw = b"".join(one.pack() for one in FULL)
    found = plan(
        [Found(0, 10, raw)], segment_size=SIZE, prove_from=0, flushed=0, check=lambda _: None
    )
    assert (found.end, found.cut_batches) == (0, 3)


def test_a_log_that_ends_early_without_a_file() -> None:
    """The checkpoint names more than there is, and no file tells why."""
    found = plan([], segment_size=SIZE, prove_from=0, flushed=50, check=lambda _: None)
    assert found.damage is not None
    assert "before its flushed offset" in found.damage.what

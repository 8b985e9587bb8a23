"""The consistent point against the protocol: histories made by masters that append and slaves that
truncate, and the rule as the protocol writes it down."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core import peer_checks
from replication.core.peer_checks import newest_shared, part_around
from twinlog.format.epoch_history import Epoch, HistoriesDiffer, consistent_point

History = list[Epoch]


@dataclass
class Log:
    """A log in which each byte is the number of the epoch that wrote it."""

    data: list[int] = field(default_factory=list[int])

    @property
    def epochs(self) -> History:
        """The history that the bytes tell."""
        starts = {epoch: at for at, epoch in reversed(list(enumerate(self.data)))}
        return [Epoch(epoch, start) for epoch, start in sorted(starts.items())]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # the node that becomes master
        st.integers(1, 5),  # bytes it writes in its epoch
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=3),  # slaves, bytes kept
    ),
    max_size=8,
)


def played(steps: list[tuple[int, int, list[tuple[int, int]]]]) -> list[Log]:
    """Three logs after elections in which each slave copied as much as it was given time for."""
    logs = [Log(), Log(), Log()]
    for epoch, (leader, written, slaves) in enumerate(steps, 1):
        master = logs[leader]
        master.data += [epoch] * written
        for slave, unsent in slaves:
            if slave != leader:
                sent = master.data[: max(len(master.data) - unsent, 0)]
                parted = equal_bytes(logs[slave], master)
                # A slave truncates to the common prefix first and only then copies.
                logs[slave].data = sent if len(sent) > parted else master.data[:parted]
    return logs


def equal_bytes(one: Log, two: Log) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(one.data, two.data, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one.data), len(two.data)))


@given(STEPS)
def test_the_point_is_where_the_bytes_part(
    steps: list[tuple[int, int, list[tuple[int, int]]]],
) -> None:
    """Not one byte that differs is kept, not one that is equal is cut, and both sides agree."""
    logs = played(steps)
    for one in logs:
        for two in logs:
            ends = len(one.data), len(two.data)
            point = consistent_point(one.epochs, ends[0], two.epochs, ends[1])
            assert point == consistent_point(two.epochs, ends[1], one.epochs, ends[0])
            if point is None:
                assert equal_bytes(one, two) == 0
            else:
                assert point == equal_bytes(one, two)


def rule(ours: History, our_end: int, theirs: History, their_end: int) -> int | str | None:
    """Return what R39 of docs/protocol.md says, line by line."""

    def end(history: History, epoch: int, log_end: int) -> int:
        later = [start for other, start in history if other > epoch]
        return later[0] if later else log_end

    starts = dict(theirs)
    for epoch, start in reversed(ours):
        if epoch in starts:
            if starts[epoch] != start:
                return "quarantine"
            return min(end(ours, epoch, our_end), end(theirs, epoch, their_end))
    return None


@st.composite
def histories(draw: st.DrawFn) -> tuple[History, int]:
    """Any history: rising epochs, rising starts, an end."""
    epochs = sorted(draw(st.sets(st.integers(0, 6), max_size=4)))
    starts = sorted(draw(st.sets(st.integers(0, 9), min_size=len(epochs), max_size=len(epochs))))
    end = (starts[-1] if starts else 0) + draw(st.integers(0, 3))
    return [Epoch(*entry) for entry in zip(epochs, starts, strict=True)], end


@given(histories(), histories())
def test_the_rule_is_the_protocols(ours: tuple[History, int], theirs: tuple[History, int]) -> None:
    """Also for histories that no correct group has."""
    wanted = rule(*ours, *theirs)
    if wanted == "quarantine":
        with pytest.raises(HistoriesDiffer):
            consistent_point(*ours, *theirs)
    else:
        assert consistent_point(*ours, *theirs) == wanted


def test_an_older_shared_epoch_does_not_hide_a_conflict() -> None:
    """Both have epoch 1 from 0, but epoch 2 from two places: nothing is known to be equal."""
    with pytest.raises(HistoriesDiffer, match="epoch 2 begins at 50 and at 60"):
        consistent_point([Epoch(1, 0), Epoch(2, 50)], 80, [Epoch(1, 0), Epoch(2, 60)], 90)


@given(STEPS, st.integers(0, 2), st.integers(0, 2))
def test_the_part_of_a_history_that_is_sent_decides_as_the_whole(
    steps: list[tuple[int, int, list[tuple[int, int]]]], slave: int, master: int
) -> None:
    """With two entries a frame, and branches that are longer than that on either side."""
    logs = played(steps)
    one, two = logs[slave], logs[master]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer_checks, "EPOCHS_SENT_MAX", 2)
        part = part_around(two.epochs, newest_shared(two.epochs, one.epochs))
    ends = len(one.data), len(two.data)
    whole = consistent_point(one.epochs, ends[0], two.epochs, ends[1])
    assert consistent_point(one.epochs, ends[0], part, ends[1]) == whole

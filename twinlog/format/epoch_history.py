"""Epoch histories: which epoch wrote which bytes of a log, and where two histories part.

A history has one entry for each epoch in which the log was written, oldest first. An entry says
that the bytes from ``start`` up to the next entry's ``start`` were written in ``epoch``; the last
entry ends at the log's end.

Why `consistent_point` is right: an epoch has exactly one master, and a master only appends. Two
logs that carry the same epoch from the same start therefore agree byte for byte as far as both
reach, so the newest shared epoch decides and older entries need no look.

Offsets are log offsets in bytes, ends are exclusive. Pure functions: both sides of a replication
handshake compute the point and compare, and the offline tools compute the same one.

Not here: whether the master still keeps the bytes at that point (``replication.core``), truncation
(``storage``), the file that RocketMQ keeps (`twinlog.format.epoch_file`).

Sources: RocketMQ, ``EpochFileCache.findConsistentPoint``; Kafka, KIP-101 and KIP-279, which show
why a high watermark alone is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Epoch(NamedTuple):
    """The bytes from ``start`` up to the next entry's start were written in ``epoch``."""

    epoch: int
    start: int


class HistoriesDiffer(Exception):
    """Both logs hold the same epoch from different starts; they are not of the same group."""


def consistent_point(
    ours: Sequence[tuple[int, int]],
    our_end: int,
    theirs: Sequence[tuple[int, int]],
    their_end: int,
) -> int | None:
    """Return the offset up to which both logs are known to hold the same bytes.

    Args:
        ours: One epoch history, (epoch, start) pairs, oldest first.
        our_end: The end of that log, bytes.
        theirs: The other history.
        their_end: The end of its log, bytes.

    Returns:
        A log offset, exclusive; None when no epoch is shared: nothing is known to be equal.

    Raises:
        HistoriesDiffer: The newest shared epoch begins at different offsets.

    The old master wrote 40 bytes in epoch 2 that were never confirmed; the new one opened epoch 3
    at 100:

    >>> old = [Epoch(1, 0), Epoch(2, 80)]
    >>> new = [Epoch(1, 0), Epoch(2, 80), Epoch(3, 100)]
    >>> consistent_point(old, 140, new, 160)
    100
    >>> consistent_point(old, 90, new, 160)
    90
    >>> consistent_point([Epoch(7, 0)], 10, new, 160) is None
    True
    """
    known = {epoch: at for at, (epoch, _) in enumerate(theirs)}
    for at in range(len(ours) - 1, -1, -1):
        epoch, start = ours[at]
        other = known.get(epoch)
        if other is None:
            continue
        # Falling back to an older epoch here would keep bytes that only one side has: two starts
        # of one epoch mean two masters in it, and then no entry of either history can be trusted.
        if start != theirs[other][1]:
            raise HistoriesDiffer(f"epoch {epoch} begins at {start} and at {theirs[other][1]}")
        return min(_end(ours, at, our_end), _end(theirs, other, their_end))
    return None


def _end(history: Sequence[tuple[int, int]], at: int, log_end: int) -> int:
    return history[at + 1][1] if at + 1 < len(history) else log_end

"""Where do two histories part?

A node that comes back as a slave may hold bytes that the new master never had. Before it may copy
anything it must cut those bytes off, and it must not cut off one byte more.

What each side knows about itself is its *epoch history*: one entry for each reign it lived through,
oldest first. An entry says that the bytes from ``start`` up to the next entry's ``start`` were
written under ``epoch``; the last entry ends at the log's end.

Why it is right: an epoch has exactly one master, and a master only appends. Two logs that carry the
same epoch from the same start therefore agree byte for byte as long as both last, so the newest
shared epoch decides and older entries need no look.

All offsets are bytes in the log, ends are exclusive. Pure functions; both sides of a handshake
compute the answer and compare.

Not here: whether the master still keeps the bytes at the answer (``handshake``), and the cut itself
(``storage``). Sources: RocketMQ, ``EpochFileCache.findConsistentPoint``; Kafka, KIP-101 and
KIP-279, which show why the high watermark alone is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage import Epoch


class HistoriesDiffer(Exception):
    """Both logs have the same epoch from another start; one of them is not of this group."""


def consistent_point(
    ours: Sequence[Epoch], our_end: int, theirs: Sequence[Epoch], their_end: int
) -> int | None:
    """Return the offset up to which both logs are known to hold the same bytes.

    Args:
        ours: One epoch history, oldest first.
        our_end: The end of that log, bytes.
        theirs: The other.
        their_end: Its end, bytes.

    Returns:
        A log offset, exclusive; None when no epoch is shared.

    Raises:
        HistoriesDiffer: A shared epoch begins at different offsets.

    The old master wrote 40 bytes in epoch 2 that nobody confirmed; the new one opened epoch 3
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
    known = {epoch.epoch: at for at, epoch in enumerate(theirs)}
    for at in range(len(ours) - 1, -1, -1):
        shared = known.get(ours[at].epoch)
        if shared is None:
            continue
        if ours[at].start != theirs[shared].start:
            text = f"epoch {ours[at].epoch} begins at {ours[at].start} and {theirs[shared].start}"
            raise HistoriesDiffer(text)
        return min(_end(ours, at, our_end), _end(theirs, shared, their_end))
    return None


def _end(epochs: Sequence[Epoch], at: int, log_end: int) -> int:
    return epochs[at + 1].start if at + 1 < len(epochs) else log_end


def point_for(
    slave: Sequence[Epoch],
    slave_range: tuple[int, int],
    master: Sequence[Epoch],
    master_range: tuple[int, int],
) -> int | None:
    """Return where a slave goes on; None when it must be made anew from files.

    Args:
        slave: The slave's epoch history.
        slave_range: Start and end of its log.
        master: The master's epoch history.
        master_range: Start and end of its log.

    Raises:
        HistoriesDiffer: See `consistent_point`.

    An empty log goes on at its own end, if the master still has that byte:

    >>> point_for([], (0, 0), [Epoch(1, 0)], (0, 50))
    0
    >>> point_for([], (0, 0), [Epoch(1, 0)], (40, 50)) is None
    True
    """
    start, end = slave_range
    if start == end:
        point: int | None = end
    else:
        point = consistent_point(slave, end, master, master_range[1])
    if point is None or point < master_range[0] or end < master_range[0] or point < start:
        return None
    return point

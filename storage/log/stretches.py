"""Stretches of the log: whole batches of one file that are processed at once.

Not here: what is done with them (`storage.state.dispatcher`, `storage.key_index.index`).
"""

from __future__ import annotations

from storage.log.segments import Segments
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import KIND_FILLER

STRETCH_MAX = 4 * 1024 * 1024


def stretch(segments: Segments, start: int, limit: int, max_bytes: int) -> tuple[int, int]:
    """Choose whole batches of one segment from border ``start`` on, which is below ``limit``.

    Args:
        segments: The log.
        start: Where to begin.
        limit: Confirm offset.
        max_bytes: About how many bytes; at least one batch.

    Returns:
        Where their records end, and where to continue: after a filler, if one follows.

    Raises:
        CorruptionError: ``limit`` lies inside a batch.
    """
    segment = segments.at(start)
    index = segment.index
    end = index.span(index.find(start))[1]
    if end < limit:  # else it is one batch, as behind a master that serves single requests
        stop = min(limit, start + min(max(max_bytes, 1), STRETCH_MAX))
        end = max(end, segments.border_at_or_below(min(stop, segment.end)))
    if end > limit:
        raise CorruptionError(f"confirm offset {limit} is not a batch border", offset=limit)
    if end == segment.end:
        filler = index.entry(index.count - 1)
        return (filler.start if filler.kind == KIND_FILLER else end), end
    return end, end

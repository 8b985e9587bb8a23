"""Whether the files that a manifest names are there: looked at before a node is told of them.

A manifest says what was written once. A node that believes it may delete the last other copy, so
the files are what counts: every file of every segment must be there with its length, and those of
the segments that some node has not been told yet are read and compared as a whole. From the first
segment on that is not whole nothing is named, whatever is after it.

Offsets are log offsets in bytes.

Not here: who is notified (`twinlog.spark.archive.notify_nodes`), how a segment is compared
(`twinlog.spark.archive.writing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from twinlog.spark.archive.manifest import Segment
from twinlog.spark.archive.writing import check_segment
from twinlog.spark.engine.engine import Engine


def missing(segment: Segment, root: Path) -> str:
    """Return which file of a segment is gone or has another length; "" when none."""
    for file in segment.files:
        try:
            size = (root / file.path).stat().st_size
        except FileNotFoundError:
            return f"{file.path} is gone"
        except OSError as error:
            return f"{file.path} cannot be looked at: {error.strerror}"
        if size != file.bytes:
            return f"{file.path} has {size} bytes, {file.bytes} were written"
    return ""


class ArchiveIntegrity:
    """What of an archive is whole.

    Args:
        engine: Reads the segments.
        root: Directory of the archive.
        compared: Segments that this run has read back already.

    Attributes:
        wrong: What is wrong with each segment that is not whole.
    """

    def __init__(self, engine: Engine, root: Path, compared: Sequence[Segment]) -> None:
        self._engine = engine
        self._root = root
        self._compared = compared
        self.wrong: list[tuple[Segment, str]] = []

    def namable(self, segments: Sequence[Segment], above: int) -> list[Segment]:
        """Return the segments that a node may be told of: those before the first that is damaged.

        Args:
            segments: All of a group, oldest first.
            above: Log offset below which every node has been told.

        Raises:
            TaskError: A file could not be read; nothing may be named.
        """
        self.wrong = [(s, text) for s in segments if (text := missing(s, self._root))]
        good = before(segments, self.wrong)
        new = [s for s in good if s.end > above and s not in self._compared]
        found = self._engine.spread(partial(check_segment, root=str(self._root)), new)
        self.wrong += [(s, text) for s, text in zip(new, found, strict=True) if text]
        self.wrong.sort(key=lambda one: one[0].base)
        return before(segments, self.wrong)


def before(segments: Sequence[Segment], wrong: Sequence[tuple[Segment, str]]) -> list[Segment]:
    """Return the segments before the first wrong one."""
    limit = min((segment.base for segment, _ in wrong), default=None)
    return [s for s in segments if limit is None or s.base < limit]


def not_there(gaps: Sequence[tuple[int, int]]) -> str:
    """Describe holes between segments.

    >>> not_there([(4096, 8192), (12288, 16384)])
    'missing: offsets 4096..8192 and 1 more hole'
    """
    more = len(gaps) - 1
    rest = f" and {more} more hole{'s' * (more > 1)}" if more else ""
    return f"missing: offsets {gaps[0][0]}..{gaps[0][1]}{rest}"

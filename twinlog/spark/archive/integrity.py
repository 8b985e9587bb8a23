"""Checks that the files of a manifest are intact, before nodes are notified of them.

A manifest lists what was written. A node may delete the last other copy because of it, so the files
themselves are checked: every file of every segment must exist with its length, and the files of
segments that some node was not notified of yet are read and compared completely. Nodes are not
notified of the first damaged segment and all after it.

Offsets are log offsets in bytes.

Not here: notifying (`twinlog.spark.archive.notify_nodes`), comparing a segment
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
    """Return which file of a segment is missing or has another length; "" if all are intact."""
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
    """The intact part of an archive.

    Args:
        engine: Reads the segments.
        root: Directory of the archive.
        compared: Segments that this run has already read back.

    Attributes:
        wrong: What is wrong with each damaged segment.
    """

    def __init__(self, engine: Engine, root: Path, compared: Sequence[Segment]) -> None:
        self._engine = engine
        self._root = root
        self._compared = compared
        self.wrong: list[tuple[Segment, str]] = []

    def namable(self, segments: Sequence[Segment], above: int) -> list[Segment]:
        """Return the segments that nodes may be notified of: those before the first damaged one.

        Args:
            segments: All of a group, oldest first.
            above: Log offset below which every node was notified.

        Raises:
            TaskError: A file could not be read; nodes must not be notified.
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

"""A stream over store directories: what `twinlog.spark.plan.stream` asks of a directory.

Units: seconds; log offsets are bytes.

Not here: when a directory is opened again (`twinlog.spark.source.stream_query`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twinlog.spark.directory.view import Directory, PinnedQueue
from twinlog.spark.plan.columns import Column
from twinlog.spark.plan.option_parser import parse
from twinlog.spark.plan.options import Options
from twinlog.spark.plan.selection import selected
from twinlog.spark.plan.splits import Piece, Sizing, splits_of
from twinlog.spark.plan.stream import Ends, Json, Key, Limit, aligned, split_of
from twinlog.spark.source.batch import Task, columns_of, context_of, reading_of
from twinlog.spark.source.stream_query import Places, StreamQuery, waited


class DirectoryView:
    """One directory as it is now, with the queues that the options mean."""

    def __init__(self, root: str, options: Options) -> None:
        self.directory = Directory(root)
        self._root = root
        keys = selected(self.directory.queues, options)
        self._queues = {key: self.directory.queues[key] for key in keys}

    @property
    def group(self) -> str:
        """Its path, as the options have it."""
        return self._root

    @property
    def queues(self) -> Mapping[tuple[str, int], PinnedQueue]:
        """The queues that the options mean."""
        return self._queues

    @property
    def end(self) -> int:
        """Where its log ends."""
        return self.directory.end

    def queue(self, key: Key) -> PinnedQueue | None:
        """Return a queue, whether the options mean it or not."""
        return self.directory.queues.get(key)

    def began_again(self, key: Key, stop: int, end: int) -> bool:
        """Whether the entries of a RocketMQ queue below ``stop`` were written after it was read.

        Twinlog nodes do not delete topics.
        """
        queue = self.directory.queues[key]
        return not self.directory.ours and queue.start < stop and queue.place(stop - 1) >= end

    def parts(self, rows: int) -> int | None:
        """Return None: directories are cut by bytes."""
        del rows
        return None

    def close(self) -> None:
        """Nothing is open."""

    def mark(self, ends: Ends, moved: Sequence[Key]) -> tuple[int | None, int]:
        """Return epoch and end of the newest record below ``ends``."""
        newest = max(self._queues[key].place(ends[key] - 1) for key in moved)
        held = [epoch for start, epoch in self.directory.epochs if start <= newest]
        return held[-1] if held else None, newest + 1

    def cut(self, found: Mapping[Key, tuple[int, int]], limit: Limit) -> Ends:
        """Return where each queue ends in the next batch: all at one place of the log."""
        return aligned(self._queues, found, limit)

    def cut_of(self, epoch: int) -> int | None:
        """Return where the next epoch begins; None while there is no newer one."""
        later = [start for start, other in self.directory.epochs if other > epoch]
        return min(later, default=None)


class DirectoryStream(StreamQuery[DirectoryView, Task]):
    """A streaming query over directories."""

    @classmethod
    def make(
        cls, given: Mapping[str, str], columns: Sequence[Column] | None = None
    ) -> DirectoryStream:
        """Return the query that Spark's options describe.

        Raises:
            SourceError: An option is wrong.
        """
        options = parse(given, use="stream")
        return cls(options, columns if columns is not None else columns_of(options))

    def look(self, read: Places) -> list[DirectoryView]:
        """Return the directories as they are now; see `StreamQuery.look`."""
        roots = self.options.path or ()
        return waited(
            lambda: [DirectoryView(root, self.options) for root in roots],
            read,
            self.options.max_staleness,
        )

    def tasks_of(self, view: DirectoryView, pieces: Sequence[Piece], end: Json) -> list[Task]:
        """Return the tasks that read ``pieces``, cut as the offset says."""
        directory = view.directory
        spans = [
            span
            for piece in pieces
            for span in directory.queues[piece.topic, piece.queue].spans(piece)
        ]
        context = context_of(directory, self.columns)
        reading = reading_of(self.options, self.columns, context)
        sizing = Sizing(split_of(end))
        return [
            Task(view.group, split, reading) for split in splits_of(spans, directory.files, sizing)
        ]

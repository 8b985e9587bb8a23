"""A stream over store directories: what `twinlog.spark.stream` asks of a directory.

A directory is opened anew for every look, at most every `LOOK_SECONDS`: it may grow, or be trimmed,
while the query runs.

Units: seconds; log offsets are bytes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from twinlog.spark.batch import Task, columns_of, context_of, reading_of
from twinlog.spark.columns import Column
from twinlog.spark.directory import Directory, Queue
from twinlog.spark.errors import SourceError
from twinlog.spark.options import Options, parse
from twinlog.spark.planning import Sizing, clipped, splits_of
from twinlog.spark.selection import selected
from twinlog.spark.stream import Ends, Json, Key, Limit, Stream, aligned

LOOK_SECONDS = 0.1
_log = logging.getLogger("twinlog.spark")


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
    def queues(self) -> Mapping[tuple[str, int], Queue]:
        """The queues that the options mean."""
        return self._queues

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


class DirectoryStream:
    """A streaming query over directories.

    Args:
        options: What is asked for.
        columns: The schema.
    """

    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self.options = options
        self._columns = tuple(columns)
        self._views: list[DirectoryView] = []
        self._looked = float("-inf")
        self.stream = Stream(
            options,
            self.views,
            now=time.monotonic,
            wall_ms=lambda: round(time.time() * 1000),
            warn=lambda text: _log.warning("%s", text),
        )

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

    def views(self) -> list[DirectoryView]:
        """Return the directories as they are now, or were a moment ago."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._views = [DirectoryView(root, self.options) for root in self.options.path or ()]
            self._looked = now
        return self._views

    def close(self) -> None:
        """Let go of what was looked at."""
        self._views, self._looked = [], float("-inf")

    def tasks(self, start: Json, end: Json) -> list[Task]:
        """Return the tasks of the batch between two offsets.

        Raises:
            DataLossError: Rows of it are gone, and that is not allowed.
        """
        pieces, size = self.stream.pieces(start, end)
        made: list[Task] = []
        for view in self.views():
            directory = view.directory
            spans: list[Any] = []
            for piece in pieces.get(view.group, []):
                queue = directory.queues.get((piece.topic, piece.queue))
                if queue is None:
                    text = f"topic {piece.topic}, queue {piece.queue} is not there any more"
                    hint = "use another checkpointLocation"
                    raise SourceError(text, code="checkpoint", hint=hint)
                first, lost = clipped(queue, piece.first, self.options.fail_on_data_loss)
                if lost:
                    _log.warning("%s", lost)
                if first < min(piece.stop, queue.end):
                    kept = replace(piece, first=first, stop=min(piece.stop, queue.end))
                    spans += queue.spans(kept)
            context = context_of(directory, self._columns)
            reading = reading_of(self.options, self._columns, context)
            cuts = splits_of(spans, directory.files, Sizing(size))
            made += [Task(view.group, split, reading) for split in cuts]
        return made

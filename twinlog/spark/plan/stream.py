"""What a stream does between triggers: offsets, limits, cuts, and what happened to history.

An offset is a dict that Spark writes into its checkpoint as JSON:

    {"v": 1, "split": 268435456, "groups": {"g1": {"epoch": 7, "end": 73014444032,
     "queues": {"orders": {"0": 1200, "1": 1180}}}}, "from": {...}, "new": {...}}

* ``queues``: next queue offset to read; ``end``: log offset after the newest record below these;
  ``epoch``: its epoch. Nothing in it may change without new rows: Spark compares the text, and a
  clock or the present end of the log would start empty batches for ever.
* ``split``: how the batch is cut; a replay uses it and not today's options.
* ``from``: where the first batch began. Spark does not keep the initial offset: it asks again after
  a restart, and a start that moves (latest, a time, retention) would lose rows silently. Only a
  start that says ``initial`` looks at it.
* ``new``: where queues begin that do not begin where the start says: new ones, and those that go
  on somewhere else because rows are gone.
* ``tasks``: into how many tasks the batch is divided, by group; directories are cut by ``split``.

So the tasks of a batch are a function of its two offsets and of the bytes stored, whatever options,
nodes or retention are when it is replayed.

A store that ends below the checkpoint has lost nothing: it lags, and
`twinlog.spark.source.stream_query` waits for it. Only when its history shows a cut, or a queue ends
below the checkpoint in a store that does not, rows are gone.

Units: queue offsets count records, log offsets are bytes, times are seconds; ``now`` is monotonic.

Not here: reading (`twinlog.spark.directory.split_reader`), Spark's classes
(`twinlog.spark.source.data_source`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from twinlog.spark.arrow import np
from twinlog.spark.errors import DataLossError, SourceError
from twinlog.spark.plan.options import Options
from twinlog.spark.plan.selection import check_named, meant_by_name
from twinlog.spark.plan.splits import Piece, QueueView, clipped, refuse_beyond, start_of

Key = tuple[str, int]
Ends = dict[Key, int]
Json = dict[str, Any]
VERSION = 1
_POINTS = 64


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a store was read.

    Attributes:
        epoch: Of the newest record read; None: the store keeps none.
        end: Log offset that the record is before.
    """

    epoch: int | None
    end: int


class StreamView(Protocol):
    """One group of a cluster, or one directory, as it is now."""

    @property
    def group(self) -> str:
        """Its name in offsets; never changes."""
        ...

    @property
    def queues(self) -> Mapping[Key, StreamQueue]:
        """The queues that the options mean."""
        ...

    def mark(self, ends: Ends, moved: Sequence[Key]) -> tuple[int | None, int]:
        """Epoch and place: the newest record below ``ends`` is before it; ``moved`` grew."""
        ...

    def cut(self, found: Mapping[Key, tuple[int, int]], limit: Limit) -> Ends:
        """Where each queue ends in a batch that begins and could end as ``found`` says."""
        ...

    def cut_of(self, epoch: int) -> int | None:
        """Where the history of ``epoch`` ends in this log; None: nothing speaks against it."""
        ...

    def began_again(self, key: Key, stop: int, end: int) -> bool:
        """Whether a queue is not the one that was read up to ``stop``, below log offset ``end``."""
        ...

    def queue(self, key: Key) -> StreamQueue | None:
        """A queue, whether the options mean it or not; None: it does not exist."""
        ...

    def parts(self, rows: int) -> int | None:
        """How many tasks a batch of this many rows is divided into; None: bytes decide."""
        ...


class StreamQueue(QueueView, Protocol):
    """A queue of a view."""

    def cuts(self, first: int, stop: int, points: Any) -> Any:
        """For each log offset of ``points`` the first of ``first..stop`` not before it."""
        ...

    def place(self, number: int) -> int:
        """Log offset of one record; -1 when it is unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Limit:
    """How much one batch may hold; None: no limit of that kind."""

    rows: int | None = None
    size: int | None = None


@dataclass(slots=True)
class _Group:
    """One group of an offset."""

    queues: Ends = field(default_factory=dict[Key, int])
    epoch: int | None = None
    end: int = 0


class Stream:
    """The decisions of one query.

    Args:
        options: What is asked for.
        views: Looks at the store now; the views it returns reach at least as far as the offsets
        given by group.
        now: Seconds, never going back.
        wall_ms: Milliseconds since 1970, for times in options.
        warn: Receives a sentence on each skipped stretch, the same sentence only once.
    """

    def __init__(
        self,
        options: Options,
        views: Callable[[Mapping[str, Reached]], Sequence[StreamView]],
        *,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        warn: Callable[[str], None],
    ) -> None:
        self._options = options
        self._views = views
        self._now = now
        self._wall_ms = wall_ms
        self._warn = warn
        self._told: set[str] = set()
        self._initial: Json | None = None
        self._cap: dict[str, Ends] | None = None
        self._waiting: float | None = None

    # -- what Spark asks -------------------------------------------------------------------------

    def initial(self) -> Json:
        """Return where the query begins; the same every time.

        Raises:
            SourceError: A start names what is not read.
        """
        if self._initial is None:
            groups: dict[str, _Group] = {}
            views = self._views({})
            check_named((key for view in views for key in view.queues), self._options)
            for view in views:
                ends = {
                    key: start_of(queue, self._options, self._wall_ms(), earliest=False)
                    for key, queue in view.queues.items()
                }
                for key, queue in view.queues.items():
                    ends[key] = self._kept(queue, ends[key])
                    refuse_beyond(queue, ends[key])
                groups[view.group] = self._group(view, ends, _Group())
            self._initial = _json(groups, self._options.split_bytes) | {"initial": True}
        return self._initial

    def available_now(self) -> None:
        """Read up to what is there now and end then."""
        self._cap = {
            view.group: {key: queue.end for key, queue in view.queues.items()}
            for view in self._views({})
        }

    def newest(self) -> Json:
        """Return the offset behind everything that is there, for the progress."""
        groups = {
            view.group: self._group(
                view, {key: queue.end for key, queue in view.queues.items()}, _Group()
            )
            for view in self._views({})
        }
        return _json(groups, self._options.split_bytes)

    def latest(self, start: Json, limit: Limit) -> Json:
        """Return where the next batch ends: ``start`` itself when there is nothing for it.

        Raises:
            DataLossError: History is not what ``start`` says, and that is not allowed.
        """
        old = _groups(start)
        views = self._views(reached_of(start))
        self._same_groups(old, views)
        spans = {view.group: self._spans(view, old.get(view.group, _Group())) for view in views}
        total = sum(stop - first for found in spans.values() for first, stop in found.values())
        if total == 0 or self._too_few(total):
            return start
        self._waiting = None
        groups: dict[str, _Group] = {}
        new: dict[str, Ends] = {}
        tasks: dict[str, int] = {}
        for view in views:
            before, found = old.get(view.group, _Group()), spans[view.group]
            ends = view.cut(found, _share(limit, found, total))
            firsts = {key: first for key, (first, _) in found.items()}
            fresh = {k: first for k, first in firsts.items() if first != before.queues.get(k, 0)}
            if fresh:
                new[view.group] = fresh
            cut = self._history(view, before)
            if cut is not None:  # what was read below the cut is all that counts from now on
                before = _Group(before.queues, before.epoch, cut)
            groups[view.group] = self._group(view, ends, before, firsts)
            rows = sum(stop - firsts[key] for key, stop in ends.items())
            if rows and (count := view.parts(rows)) is not None:
                tasks[view.group] = count
        made = _json(groups, self._options.split_bytes)
        if new:
            made["new"] = {name: _tree(ends) for name, ends in new.items()}
        if tasks:
            made["tasks"] = tasks
        if start.get("initial"):
            made["from"] = {name: _tree(group.queues) for name, group in old.items()}
        return made

    def pieces(self, start: Json, end: Json) -> dict[str, list[Piece]]:
        """Return what the batch between two offsets reads, by group.

        Raises:
            SourceError: The offsets are of another version.
        """
        groups = _groups(end)
        new = {name: _flat(tree) for name, tree in _map(end.get("new")).items()}
        if start.get("initial") and "from" in end:
            began = {name: _flat(tree) for name, tree in _map(end["from"]).items()}
        else:
            began = {name: group.queues for name, group in _groups(start).items()}
        found: dict[str, list[Piece]] = {}
        for name, group in groups.items():
            firsts = began.get(name, {}) | new.get(name, {})
            found[name] = [
                Piece(topic, queue, firsts.get((topic, queue), 0), stop)
                for (topic, queue), stop in sorted(group.queues.items())
                if firsts.get((topic, queue), 0) < stop
            ]
        return found

    def kept(self, view: StreamView, pieces: Sequence[Piece], read: Reached) -> list[Piece]:
        """Return what is still there of the batch that ends at ``read``.

        Raises:
            SourceError: A queue of it is not there.
            DataLossError: Rows of it are gone or are others by now, and that is not allowed.
        """
        cut = self._history(view, _Group({}, read.epoch, read.end))
        found: list[Piece] = []
        for piece in pieces:
            queue, name = view.queue((piece.topic, piece.queue)), _name(piece)
            if queue is None:
                hint = "use another checkpointLocation"
                raise SourceError(f"{name} is not there any more", code="checkpoint", hint=hint)
            first = self._kept(queue, piece.first)
            stop = min(piece.stop, queue.end)
            same = piece.stop if cut is None else _at(queue, cut)
            if same < piece.stop:
                text = f"{name}: {_cut_words(read.epoch, cut)}"
                other = piece.stop - max(same, piece.first)
                self._lost(f"{text}: {other} rows of a started batch have changed")
            elif view.began_again((piece.topic, piece.queue), min(piece.stop, queue.end), read.end):
                self._lost(f"{name}: {_ANEW}: rows of a started batch have changed")
            elif stop < piece.stop:
                gone = piece.stop - max(stop, piece.first)
                self._lost(f"{name} ends at {stop}: {gone} rows of a started batch no longer exist")
            if first < stop:
                found.append(replace(piece, first=first, stop=stop))
        return found

    # -- what happened to history ----------------------------------------------------------------

    def _kept(self, queue: QueueView, first: int) -> int:
        kept, lost = clipped(queue, first, self._options.fail_on_data_loss)
        if lost:
            self._tell(lost)
        return kept

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._warn(text)

    def _lost(self, text: str, hint: str = "use another checkpointLocation") -> None:
        """Report rows that no longer exist.

        Raises:
            DataLossError: That is not allowed.
        """
        if self._options.fail_on_data_loss:
            raise DataLossError(text, hint=f"{hint}, or set failOnDataLoss=false")
        self._tell(text)

    def _same_groups(self, old: Mapping[str, _Group], views: Sequence[StreamView]) -> None:
        names = {view.group for view in views}
        for name in old:
            if name not in names:
                text = f"the checkpoint is of {name}, the query reads {', '.join(sorted(names))}"
                hint = "a checkpoint belongs to one cluster: use another checkpointLocation"
                raise SourceError(text, code="checkpoint", hint=hint)

    def _spans(self, view: StreamView, old: _Group) -> dict[Key, tuple[int, int]]:
        """Return (next, end) of each queue; queues that are new begin at their start."""
        cut = self._history(view, old)
        cap = None if self._cap is None else self._cap.get(view.group, {})
        found: dict[Key, tuple[int, int]] = {}
        for key, queue in view.queues.items():
            first = self._begin(view, key, old, cut)
            end = queue.end if cap is None else min(queue.end, max(cap.get(key, 0), first))
            found[key] = (first, max(first, end))
        for topic, number in old.queues:
            if (topic, number) not in view.queues and self._meant(topic, number):
                text = f"topic {topic}, queue {number} is not there any more"
                self._lost(text, "leave it out of subscribe")
        return found

    def _meant(self, topic: str, number: int) -> bool:
        """Whether the options still name the queue; one that they dropped is not missed."""
        options = self._options
        if options.subscribe is not None:
            return topic in options.subscribe
        if options.assign is not None:
            return number in options.assign.get(topic, ())
        return meant_by_name(topic, options)

    def _history(self, view: StreamView, old: _Group) -> int | None:
        """Return where confirmed history was cut below the checkpoint; None where it was not."""
        if old.epoch is None:
            return None
        cut = view.cut_of(old.epoch)
        return cut if cut is not None and cut < old.end else None

    def _begin(self, view: StreamView, key: Key, old: _Group, cut: int | None) -> int:
        """Return where a queue continues."""
        queue, checkpoint = view.queues[key], old.queues.get(key)
        if checkpoint is None:
            return queue.start
        name = _name(queue)
        if cut is not None and (first := _at(queue, cut)) < checkpoint:
            text = f"{name}: {_cut_words(old.epoch, cut)}: {checkpoint - first} rows from {first}"
            self._lost(f"{text} on that were delivered exist no longer")
            return first
        if checkpoint > queue.end:
            text = f"{name} ends at {queue.end}, below the checkpoint's {checkpoint}"
            if queue.start == 0:
                text = f"{text}: {_ANEW}"
            self._lost(text)
            return queue.start
        if view.began_again(key, checkpoint, old.end):
            self._lost(f"{name}: {_ANEW}: it holds other rows than the {checkpoint} that were read")
            return queue.start
        return self._kept(queue, checkpoint)

    # -- how much --------------------------------------------------------------------------------

    def _too_few(self, total: int) -> bool:
        """Whether to wait for more rows, as minOffsetsPerTrigger and maxTriggerDelay say."""
        least = self._options.min_offsets_per_trigger
        if self._cap is not None or least is None or total >= least:
            return False
        now = self._now()
        if self._waiting is None:
            self._waiting = now
        return now - self._waiting < self._options.max_trigger_delay

    def _group(
        self, view: StreamView, ends: Ends, before: _Group, firsts: Ends | None = None
    ) -> _Group:
        """Return the offset of a group; its place is that of the newest record below the ends.

        ``firsts`` is where the queues went on, where that is not what ``before`` says.
        """
        began = before.queues if firsts is None else firsts
        moved = [
            key
            for key, stop in ends.items()
            if stop > max(began.get(key, 0), view.queues[key].start)
        ]
        epoch, end = view.mark(ends, moved) if moved else (None, 0)
        if end <= before.end:
            return _Group(ends, before.epoch, before.end)
        return _Group(ends, epoch, end)


_ANEW = "the topic was deleted and created again"


def _cut_words(epoch: int | None, cut: int | None) -> str:
    return f"the history of epoch {epoch} was cut at log offset {cut} by an unclean election"


def _name(one: QueueView | Piece) -> str:
    return f"topic {one.topic}, queue {one.queue}"


def _at(queue: StreamQueue, place: int) -> int:
    """Return the first queue offset whose record is at or after a log offset, else the end."""
    return int(queue.cuts(queue.start, queue.end, np.array([place]))[0])


def _share(limit: Limit, found: Mapping[Key, tuple[int, int]], total: int) -> Limit:
    """Return a group's part of the limit, by its part of the rows."""
    mine = sum(stop - first for first, stop in found.values())
    if mine == total:
        return limit
    rows = None if limit.rows is None else max(1, limit.rows * mine // total)
    return Limit(rows, None if limit.size is None else max(1, limit.size * mine // total))


def aligned(
    queues: Mapping[Key, StreamQueue], found: Mapping[Key, tuple[int, int]], limit: Limit
) -> Ends:
    """Return where each queue ends, all of them at one place of the log.

    So a batch is one stretch of the log, and queues go on together in time. At least one row.
    """
    waiting = {key: span for key, span in found.items() if span[0] < span[1]}
    total = sum(stop - first for first, stop in waiting.values())
    ends = {key: stop for key, (_, stop) in found.items()}
    if not waiting or (limit.size is None and (limit.rows is None or limit.rows >= total)):
        return ends
    low = min(queues[key].place(first) for key, (first, _) in waiting.items())
    high = max(queues[key].place(stop - 1) for key, (_, stop) in waiting.items()) + 1
    least = low + 1
    if limit.size is not None:
        high = min(high, low + limit.size)
    if limit.rows is not None:
        high = _by_rows(queues, waiting, limit.rows, (least, high))
    point = np.array([max(high, least)])
    for key, (first, stop) in waiting.items():
        ends[key] = int(queues[key].cuts(first, stop, point)[0])
    return ends


def proportional(found: Mapping[Key, tuple[int, int]], rows: int | None) -> Ends:
    """Return ends that share ``rows`` by what each queue has left, and never more than ``rows``.

    For stores that do not say where in the log a queue is. Each queue continues by one row at
    least; where there are more queues than rows, some do, and the next batch continues after them.

    >>> proportional({("t", 0): (0, 1), ("t", 1): (0, 1), ("t", 2): (0, 100)}, 10)
    {('t', 0): 1, ('t', 1): 1, ('t', 2): 8}
    """
    waiting = {key: stop - first for key, (first, stop) in found.items() if first < stop}
    total, count = sum(waiting.values()), len(waiting)
    if rows is None or rows >= total:
        return {key: stop for key, (_, stop) in found.items()}
    ends = {key: first for key, (first, _) in found.items()}
    if rows < count:
        turn, keys = sum(ends.values()), sorted(waiting)  # it rises by as many rows as a batch has
        for i in range(rows):
            ends[keys[(turn + i) % count]] += 1
        return ends
    for key, left in waiting.items():
        ends[key] += 1 + (rows - count) * (left - 1) // (total - count)
    return ends


def _by_rows(
    queues: Mapping[Key, StreamQueue],
    waiting: Mapping[Key, tuple[int, int]],
    rows: int,
    span: tuple[int, int],
) -> int:
    """Return the largest log offset with at most ``rows`` rows before it, inside ``span``."""
    low, high = span
    while high - low > 1:
        points = np.unique(np.linspace(low, high, _POINTS).astype(np.int64))
        counts = np.zeros(len(points), np.int64)
        for key, (first, stop) in waiting.items():
            counts += queues[key].cuts(first, stop, points) - first
        i = int(np.searchsorted(counts, rows, "right"))
        if i == len(points):
            return high
        if i == 0:
            return low
        low, high = int(points[i - 1]), int(points[i])
    return low


# -- offsets as JSON -----------------------------------------------------------------------------


def reached_of(offset: Json) -> dict[str, Reached]:
    """Return how far an offset says that each group was read.

    Raises:
        SourceError: It is of another version.
    """
    return {name: Reached(group.epoch, group.end) for name, group in _groups(offset).items()}


def split_of(offset: Json) -> int:
    """Return how many log bytes each task of the batch that ends here has."""
    return int(offset["split"])


def tasks_of(offset: Json, group: str) -> int | None:
    """Return into how many tasks the batch that ends here is divided; None: it does not say."""
    count = _map(offset.get("tasks")).get(group)
    return count if isinstance(count, int) else None


def _json(groups: Mapping[str, _Group], split: int) -> Json:
    return {
        "v": VERSION,
        "split": split,
        "groups": {
            name: {"epoch": group.epoch, "end": group.end, "queues": _tree(group.queues)}
            for name, group in sorted(groups.items())
        },
    }


def _tree(ends: Mapping[Key, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, queue), number in sorted(ends.items()):
        found.setdefault(topic, {})[str(queue)] = number
    return found


def _flat(tree: object) -> Ends:
    return {
        (topic, int(queue)): cast("int", number)
        for topic, queues in _map(tree).items()
        for queue, number in _map(queues).items()
    }


def _map(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _groups(offset: Json) -> dict[str, _Group]:
    if "v" not in _map(offset):
        text = "the checkpoint holds offsets of another source"
        raise SourceError(text, code="checkpoint", hint="use another checkpointLocation")
    if offset["v"] != VERSION:
        text = f"the checkpoint holds offsets of version {offset['v']}, this reads {VERSION}"
        hint = "use the version of twinlog that wrote it, or another checkpointLocation"
        raise SourceError(text, code="checkpoint", hint=hint)
    found: dict[str, _Group] = {}
    for name, value in _map(offset.get("groups")).items():
        fields = _map(value)
        epoch, end = fields.get("epoch"), fields.get("end")
        found[name] = _Group(
            _flat(fields.get("queues")),
            epoch if isinstance(epoch, int) else None,
            end if isinstance(end, int) else 0,
        )
    return found

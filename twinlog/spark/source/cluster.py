"""A live cluster as the source sees it: a pinned view, and the records of its queues.

The view is what one node says in one round of questions: the master where there is one, else
another. Its ends are confirmed: no task ever sees a record above them. Tasks ask slaves first, and
a slave that has not got so far is waited for or passed over (`twinlog.spark.nodes.nodes`). So is
one that shows a stream less than its checkpoint: what a slave knows to be confirmed trails its
master.

Splits hold the same share of every queue: queues of one topic fill side by side, so a split is
about one stretch of the log. Rows of one queue keep their order inside a split.

Units: queue offsets count records, log offsets are bytes, times are milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from twinlog import kernels
from twinlog.consumer.start_offsets import parse_offsets
from twinlog.format.record import java_hash
from twinlog.session.reading import NO_MASTER_SECONDS
from twinlog.spark.arrow import np
from twinlog.spark.directory.queue_files import ENTRY
from twinlog.spark.directory.split_reader import Batches, Located, Losses, Payload, Reading
from twinlog.spark.errors import DataLossError
from twinlog.spark.nodes.nodes import NodeAccess, Nodes
from twinlog.spark.plan.columns import Column
from twinlog.spark.plan.decoding import Context, are_inner
from twinlog.spark.plan.options import Options
from twinlog.spark.plan.selection import selected
from twinlog.spark.plan.splits import Piece, Split
from twinlog.spark.plan.stream import Ends, Key, Limit, Reached, proportional
from twinlog.spark.source.batch import reading_of
from twinlog.spark.source.key_lookup import ClusterKeys
from twinlog.store.marks import Owner
from twinlog.units import MiB
from twinlog.wire.frames import Frame, Type

READ_BYTES = 4 * MiB
READ_RECORDS = 65_536
SAMPLE_RECORDS = 64
"""Records that tell how large records are, for the size of splits."""


@dataclass(frozen=True, slots=True)
class LateArchive:
    """Where rows are by now that the plan found live.

    Attributes:
        root: Directory of the archive.
        owner: Whose the live store is.
        check_crc: Compare files with their SHA-256: what nodes send is proven by the wire, what
            is in an archive is not.
    """

    root: str
    owner: Owner
    check_crc: bool


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """What one task reads from a cluster.

    Attributes:
        access: Whom it asks.
        pieces: What of which queue.
        reading: How.
        archive: Where to look for rows that retention took meanwhile; None: nowhere.
    """

    access: NodeAccess
    pieces: tuple[Piece, ...]
    reading: Reading
    archive: LateArchive | None = None


class LiveQueue:
    """One queue of a pinned view."""

    def __init__(self, view: ClusterView, key: Key, extent: tuple[int, int]) -> None:
        self.topic, self.queue = key
        self.start, self.end = extent
        self._view = view

    def at_time(self, ms: int) -> int:
        """Return the first queue offset stored at or after ``ms``, else the end."""
        found = self._view.offsets(self.topic, at_ms=ms).get(self.queue)
        at = None if found is None else found[2]
        return self.end if at is None else min(at, self.end)

    def place(self, number: int) -> int:
        """Return the log offset of a record; -1 when it is unknown."""
        data = self._view.read(self.topic, self.queue, number, 1)
        return int.from_bytes(data[28:36], "big", signed=True) if len(data) >= 91 else -1

    def cuts(self, first: int, stop: int, points: Any) -> Any:
        """Return for each log offset of ``points`` the first of ``first..stop`` not before it."""
        out: list[int] = []
        for point in points.tolist():
            low, high = first, stop
            while low < high:
                middle = (low + high) // 2
                if 0 <= self.place(middle) < point:
                    low = middle + 1
                else:
                    high = middle
            out.append(low)
        return np.array(out, np.int64)


class ClusterView:
    """A cluster, pinned; close it.

    Args:
        options: What is asked for; ``servers`` is set.
        read: How far a stream has read, by group; None: a batch query, which has read nothing.
        kept: Returns the queues that an archive of the cluster has: the options may mean topics
            that the nodes have no more. None: there is no archive.

    Attributes:
        end: Log offset below which everything the view shows is.
        chosen: The queues that the options mean, whether the nodes have them or only the archive.

    Raises:
        SourceUnavailable: No node answered, or none had got as far as ``read`` in time.
        SourceError: What is named does not exist.
    """

    def __init__(
        self,
        options: Options,
        read: Mapping[str, Reached] | None = None,
        *,
        kept: Callable[[Owner], Iterable[Key]] | None = None,
    ) -> None:
        assert options.servers is not None, "a cluster is named by its servers"
        # turn 0 of "any" is the master: a user who just sent a record wants to see it
        pinned_by = "any" if options.read_from == "slave" else options.read_from
        shown = options.credentials
        self._nodes = Nodes(
            NodeAccess(options.servers, pinned_by, options.max_staleness, credentials=shown)
        )
        self.route = self._nodes.route
        self._options = options
        self._read = None if read is None else read.get(self.group)
        self.end = 0
        self._mean: int | None = None
        self._settles_until: float | None = None
        try:
            if self._read is not None and self._read.epoch is not None:
                self._nodes.require(self._read.epoch)
            topics = self.route.topics.items()
            keys = {(topic, queue) for topic, count in topics for queue in range(count)}
            self.chosen = selected(keys.union(kept(self.owner) if kept else ()), options)
            self._queues = self._pin()
            self._epochs = () if read is None else self._nodes.epochs(self.end)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        self._nodes.close()

    def _pin(self) -> dict[Key, LiveQueue]:
        found: dict[Key, LiveQueue] = {}
        for topic in sorted({topic for topic, _ in self.chosen} & self.route.topics.keys()):
            extents = self.offsets(topic)
            for key in self.chosen:
                if key[0] == topic and key[1] in extents:
                    found[key] = LiveQueue(self, key, extents[key[1]][:2])
        return found

    def _lags(self, answer: Frame) -> str | None:
        """Return why an OFFSETS answer does not serve: it ends below what was read before."""
        if self._unsettled(answer):
            return "may end below what was acknowledged: the master has just begun"
        read, shown = self._read, _shown(answer)
        if read is None or shown >= read.end:
            return None
        cut = None if read.epoch is None else _cut_of(self._nodes.epochs(), read.epoch)
        if cut is not None and cut < read.end:
            return None
        return f"lags: it ends at log offset {shown}, the checkpoint at {read.end}"

    def _unsettled(self, answer: Frame) -> bool:
        """Whether to wait for a master that does not know yet all that is confirmed.

        Slaves know no more than it does, so their word is not taken meanwhile. One that does not
        come to know it in time, once for a view, is taken as it is.
        """
        now = time.monotonic()
        if answer.fields.get("role") == "master":
            if answer.fields.get("settled") is not False:
                self._settles_until = None
            elif self._settles_until is None:
                patience = min(NO_MASTER_SECONDS, self._options.max_staleness / 2)
                self._settles_until = now + patience
        return self._settles_until is not None and now < self._settles_until

    @property
    def group(self) -> str:
        """Cluster and group: the name in offsets."""
        return f"{self.route.cluster}/{self.route.group}"

    @property
    def owner(self) -> Owner:
        """Whose an archive of it is."""
        return Owner(self.route.cluster, self.route.group)

    @property
    def queues(self) -> Mapping[Key, LiveQueue]:
        """The queues that the options mean, of those that the nodes have."""
        return self._queues

    def queue(self, key: Key) -> LiveQueue | None:
        """Return a queue, whether the options mean it or not."""
        if key not in self._queues and key[1] < self.route.topics.get(key[0], 0):
            return LiveQueue(self, key, self.offsets(key[0])[key[1]][:2])
        return self._queues.get(key)

    def began_again(self, key: Key, stop: int, end: int) -> bool:
        """Return False: twinlog nodes do not delete topics."""
        del key, stop, end
        return False

    def offsets(self, topic: str, at_ms: int | None = None) -> dict[int, Any]:
        """Return (start, end, offset at the time) by queue."""
        fields = {"topic": topic, "queues": None, "at_ms": at_ms}
        answer = self._nodes.ask(Type.OFFSETS, fields, f"offsets of {topic}", self._lags)
        self.end = max(self.end, _shown(answer))
        return dict(parse_offsets(answer.fields))

    def read(self, topic: str, queue: int, offset: int, records: int) -> bytes:
        """Return the bytes of up to ``records`` records; empty where no record is."""
        what = f"topic {topic}, queue {queue}, offset {offset}"
        fields = read_fields(topic, queue, offset, records)
        answer = self._nodes.ask(Type.READ, fields, what, lambda _: None)
        return bytes(answer.payload)

    def keys(self) -> ClusterKeys:
        """Return the key indexes of the nodes, for what the view shows."""
        return ClusterKeys(self._nodes, self.end, self.route.batched)

    # -- how much and how far --------------------------------------------------------------------

    def mean(self) -> int:
        """Return about how many bytes a record has, from the first ones of the first queue."""
        if self._mean is None:
            held = [queue for queue in self._queues.values() if queue.start < queue.end]
            data = b""
            if held:
                one = held[0]
                data = self.read(one.topic, one.queue, one.start, SAMPLE_RECORDS)
            count = len(kernels.record_starts(data, 0, len(data))[0]) // 8
            self._mean = max(1, len(data) // count) if count else 1
        return self._mean

    def cut(self, found: Mapping[Key, tuple[int, int]], limit: Limit) -> Ends:
        """Return where each queue ends in the next batch; see `proportional`."""
        rows = limit.rows
        if limit.size is not None:
            rows = max(1, limit.size // self.mean())
        return proportional(found, rows)

    def mark(self, ends: Ends, moved: Sequence[Key]) -> tuple[int | None, int]:
        """Return epoch and place of what is confirmed: everything read is below it."""
        del ends, moved
        held = [epoch for start, epoch in self._epochs if start < self.end]
        return held[-1] if held else self.route.epoch, self.end

    def cut_of(self, epoch: int) -> int | None:
        """Return where the next epoch after ``epoch`` begins; None after the last one."""
        return _cut_of(self._epochs, epoch)

    def parts(self, rows: int) -> int:
        """Return into how many tasks this many rows are divided: by their size and the options.

        The answer changes with the options and with what is stored: a stream keeps it.
        """
        wanted = round(rows * self.mean() / self._options.split_bytes) if rows else 0
        return min(max(wanted, self._options.min_partitions or 1, 1), max(rows, 1))

    # -- tasks -----------------------------------------------------------------------------------

    def reading(self, columns: Sequence[Column]) -> Reading:
        """Return how records are read; what the wire brings has CRCs of its own."""
        context = Context(self.route.group, self.epochs(columns))
        reading = reading_of(self._options, columns, context)
        return replace(reading, check_crc=self._options.check_crc == "record")

    def tasks(self, pieces: Sequence[Piece], reading: Reading, count: int) -> list[ClusterTask]:
        """Return the tasks that read ``pieces``: each the same share of every piece."""
        options = self._options
        assert options.servers is not None, "a cluster is named by its servers"
        made: list[ClusterTask] = []
        for i in range(count):
            part = tuple(one for one in (share(p, i, count) for p in pieces) if one)
            if part:
                access = NodeAccess(
                    options.servers, options.read_from, options.max_staleness, self.route.epoch, i,
                    options.credentials,
                )  # fmt: skip
                made.append(ClusterTask(access, part, reading))
        return made

    def epochs(self, columns: Sequence[Column]) -> tuple[tuple[int, int], ...]:
        """Return (start, epoch), oldest first, where a column wants them."""
        if not any(column.name == "epoch" for column in columns):
            return ()
        return self._nodes.epochs(self.end)


def _shown(answer: Frame) -> int:
    """Return the log offset that the queues of an OFFSETS answer reach."""
    found = [answer.fields.get(name) for name in ("confirm", "dispatched")]
    return min((offset for offset in found if isinstance(offset, int)), default=0)


def _cut_of(epochs: Sequence[tuple[int, int]], epoch: int) -> int | None:
    """Return where the first of ``epochs`` after ``epoch`` begins; None after the last one."""
    return min((start for start, number in epochs if number > epoch), default=None)


def share(piece: Piece, i: int, count: int) -> Piece | None:
    """Return part ``i`` of ``count`` of a piece; None when nothing falls into it."""
    rows = piece.stop - piece.first
    first = piece.first + rows * i // count
    stop = piece.first + rows * (i + 1) // count
    return replace(piece, first=first, stop=stop) if first < stop else None


def read_fields(topic: str, queue: int, offset: int, records: int) -> dict[str, object]:
    """Return the fields of a READ."""
    return {
        "topic": topic,
        "queue": queue,
        "offset": offset,
        "max_bytes": READ_BYTES if records > 1 else 1,
        "max_records": records,
        "wait_ms": 0,
        "tags": None,
    }


def read_cluster(task: ClusterTask) -> Iterator[Any]:
    """Yield the Arrow batches of a task.

    Raises:
        DataLossError: Rows are gone or damaged, and that is not allowed.
        SourceUnavailable: No node served them in time.
    """
    nodes = Nodes(task.access)
    split = Split(0, 0, task.pieces)
    losses = Losses(split, task.reading.fail)
    try:
        for at, answer in _answers(nodes, task.pieces, task.reading):
            if isinstance(answer, Gone):
                yield from _late(task, answer, losses)
            else:
                yield from _batches(answer, at, split, task.reading, losses)
        losses.report()
    finally:
        nodes.close()


@dataclass(frozen=True, slots=True)
class Gone:
    """Rows that a node no longer has, as a sentence too."""

    piece: Piece
    text: str


def _late(task: ClusterTask, gone: Gone, losses: Losses) -> Iterator[Any]:
    """Yield rows that retention took between plan and read, from the archive where it has them."""
    from twinlog.spark.archive.view import late_batches

    piece, hint = gone.piece, "start at earliest, read the archive"
    if task.archive is None:
        losses.lost(piece.stop - piece.first, "gone", gone.text, hint)
        return
    reading = replace(task.reading, check_crc=task.archive.check_crc)
    holes = yield from late_batches(task.archive.root, task.archive.owner, piece, reading)
    for hole in holes:
        losses.lost(hole.stop - hole.first, "gone", gone.text, "look at the archive")


def _answers(
    nodes: Nodes, pieces: Sequence[Piece], reading: Reading
) -> Iterator[tuple[tuple[int, int], Frame | Gone]]:
    """Yield what nodes answer, with the index of the piece and the queue offset it was asked for.

    The next answer is asked for before the last one is handed out: a node reads while rows are
    decoded.
    """
    for i, piece in enumerate(pieces):
        following = pieces[i + 1] if i + 1 < len(pieces) else None
        for at, answer in _of_piece(nodes, piece, following, reading):
            yield (i, at), answer


def _of_piece(
    nodes: Nodes, piece: Piece, following: Piece | None, reading: Reading
) -> Iterator[tuple[int, Frame | Gone]]:
    at = piece.first
    while at < piece.stop:
        what = f"topic {piece.topic}, queue {piece.queue}: rows {at}–{piece.stop - 1}"
        answer = nodes.ask(Type.READ, _fields(piece, at, reading), what, _usable, _kept)
        follow, start = _whole(answer, "next"), _whole(answer, "start")
        if answer.fields["status"] == "before-start":
            gone = min(start, piece.stop)
            text = f"topic {piece.topic}, queue {piece.queue}: rows {at}–{gone - 1} are gone "
            text += f"(first kept {start} on {answer.fields['node']})"
            yield at, Gone(replace(piece, first=at, stop=gone), text)
            at = gone
            continue
        if follow < piece.stop:
            nodes.ahead(Type.READ, _fields(piece, follow, reading))
        elif following is not None:
            nodes.ahead(Type.READ, _fields(following, following.first, reading))
        if len(answer.payload):
            yield at, answer
        if follow <= at:
            text = f"{what}: a node answered with nothing and no place to go on"
            raise DataLossError(text, hint="see its log")
        at = follow


def _fields(piece: Piece, at: int, reading: Reading) -> dict[str, object]:
    """Return the fields of the READ that continues with a piece at a queue offset."""
    fields = read_fields(piece.topic, piece.queue, at, min(piece.stop - at, READ_RECORDS))
    fields["max_bytes"] = READ_BYTES
    tags = reading.tags
    fields["tags"] = None if tags is None else [java_hash(tag) for tag in tags]
    return fields


def _usable(answer: Frame) -> str | None:
    """Return why an answer does not serve, or None."""
    status = answer.fields["status"]
    if status == "found":
        return None
    if status == "before-start":
        return f"keeps rows from {answer.fields['start']} on"
    if status in ("none", "past-end", "above-confirm"):
        return f"lags: it ends at {answer.fields['end']}"
    return f"answers {status}"


def _kept(answer: Frame) -> int | None:
    """Return from where a node keeps rows that begin later: nodes need not delete at one time."""
    return _whole(answer, "start") if answer.fields["status"] == "before-start" else None


def _whole(answer: Frame, name: str) -> int:
    value = answer.fields[name]
    assert isinstance(value, int), "the shape was checked"
    return value


def _batches(
    answer: Frame, at: tuple[int, int], split: Split, reading: Reading, losses: Losses
) -> Iterator[Any]:
    """Yield the batches of one answer; ``at``: index of the piece, queue offset of the read."""
    index, first = at
    piece, data = split.pieces[index], answer.payload
    rows: list[Any] = []
    for _, queue, number, raw in kernels.gather_queues(data, 0, len(data), 0):
        entries = np.frombuffer(raw, ENTRY)
        part = np.empty((len(entries), 5), np.int64)
        part[:, 0], part[:, 1] = entries["offset"], entries["size"]
        part[:, 2] = entries["tags"]
        part[:, 3] = np.arange(number, number + len(entries))
        part[:, 4] = queue
        rows.append(part)
    table = np.concatenate(rows) if rows else np.empty((0, 5), np.int64)
    table = table[np.argsort(table[:, 0], kind="stable")]
    # an inner batch stands for offsets after its own; which of them count is looked at later
    inner = are_inner(data, table[:, 0])
    table = table[((table[:, 3] >= first) | inner) & (table[:, 3] < piece.stop)]
    if not len(table):
        return
    starts = np.ascontiguousarray(table[:, 0])
    _, _, raw_places = kernels.decode_columns(data, starts, {"log_offset"})
    places = np.frombuffer(raw_places["log_offset"], np.int64)
    found = Located(
        places,
        table[:, 1],
        table[:, 2],
        table[:, 3],
        np.full(len(table), piece.queue),
        np.full(len(table), index),
    )
    payload = Payload(data, str(answer.fields["node"]), places, starts)
    yield from Batches(payload, split, reading, losses).of(found)

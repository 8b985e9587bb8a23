"""State snapshots: the confirmed layer as of one log offset.

Path ``twinlog/state/{20 digits}``: the name is the log offset the snapshot covers, S. Content: a
sealed map (`storage.disk.packing`) of topics, epochs, queues with start and next queue offset,
producers, groups and what they have consumed, and how far the key index is built. It is written
under another name, fsynced and renamed; the two newest are kept, or the newest twice (``.twin``) if
retention must not wait for the next one.

Rules (R50): S <= min(confirm, flushed), and before the snapshot is written the queue files are
durable up to S, those of the key index up to the position in the snapshot. So a start need not read
queue files below S, builds them from S on, and a queue without a kept record still knows its next
offset.

Not here: when one is taken (`storage.store`), the export for RocketMQ
(`storage.recovery.config_export`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from storage.disk.disk import Disk
from storage.disk.packing import number, seal, unseal
from storage.key_index.file import FileMark
from storage.key_index.index import IndexMark
from storage.messaging.fold import EMPTY, Values
from storage.messaging.groups import Group, group_fields, group_from
from storage.messaging.halves import NO_HALVES, Half, HalfValues
from storage.messaging.share import Run
from storage.messaging.timers import NOTHING, TimerValues, with_places
from storage.state.access import NOBODY, Access, rule_of, user_of, user_row
from storage.state.producers import Done, Key, Line
from storage.state.topics import Gone, Topic
from twinlog.errors import CorruptionError
from twinlog.format.epoch_history import Epoch
from twinlog.format.key_index import IndexHeader
from twinlog.format.log_file import file_name

DIRECTORY = "twinlog/state"
KEPT = 2
_TWIN = ".twin"
_VERSION = 1
_TopicRow = tuple[str, int, int]
_QueueRow = tuple[str, int, int, int]
_IndexRow = tuple[str, int, int, bytes] | tuple[str, int, int, bytes, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The confirmed layer at ``offset``.

    Attributes:
        offset: Log offset it covers.
        epochs: Epochs that begin below it.
        topics: All topics.
        batched: Names of topics whose queues are batch queues.
        queues: (topic, queue, start, next queue offset).
        producers: Lines of idempotent producers.
        timestamp: Store timestamp of the newest record below it, ms.
        index: How far the key index is durable; None if it was never built.
        start: First log offset that was kept.
        lowest: No entry of ``queues`` points below this log offset; lower than ``start`` while
            queues have not been trimmed to it yet.
        groups: All groups.
        messaging: What they have consumed.
        access: Users and rules.
        deleted: Topics that were deleted, made again or not.
    """

    offset: int
    epochs: tuple[Epoch, ...] = ()
    topics: tuple[Topic, ...] = ()
    queues: tuple[tuple[str, int, int, int], ...] = ()
    producers: tuple[tuple[Key, Line], ...] = ()
    timestamp: int = 0
    index: IndexMark | None = None
    start: int = 0
    batched: tuple[str, ...] = ()
    lowest: int = 0
    groups: tuple[Group, ...] = ()
    messaging: Values = EMPTY
    access: Access = NOBODY
    deleted: tuple[Gone, ...] = ()


_WITH_PLACES = 1
"""Behind the values of timers: messages name the record that they are in."""


def encode_snapshot(value: Snapshot) -> bytes:
    """Return the snapshot's file."""
    fields: dict[str, object] = {
        "version": _VERSION,
        "offset": value.offset,
        "timestamp": value.timestamp,
        "start": value.start,
        "lowest": value.lowest,
        "epochs": [[epoch.epoch, epoch.start] for epoch in value.epochs],
        "topics": [[topic.name, topic.queues, topic.created_ms] for topic in value.topics],
        "queues": [list(queue) for queue in value.queues],
        "producers": [
            [*key, line.epoch, [_done_row(done) for done in line.done]]
            for key, line in value.producers
        ],
        "index": _index_row(value.index),
    }
    if value.deleted:
        fields["since"] = {topic.name: topic.since for topic in value.topics if topic.since}
        fields["deleted"] = [
            [one.name, one.end, one.deleted_ms, one.batch] for one in value.deleted
        ]
    altered = {topic.name: _terms(topic) for topic in value.topics if topic.altered}
    if altered:
        fields["altered"] = altered
    if value.batched:
        fields["batched"] = list(value.batched)
    if value.groups:
        fields["groups"] = [group_fields(one) | {"end": one.created_at} for one in value.groups]
    if value.access != NOBODY:
        fields["users"] = [user_row(user) for user in value.access.users.values()]
        fields["rules"] = [[one.who, one.right, one.what] for one in sorted(value.access.rules)]
    if value.messaging.position:
        one = value.messaging
        fields["messaging"] = [
            one.position, one.next_share, one.shares, one.members, one.delays,
        ]  # fmt: skip
        if one.timers != NOTHING:
            fields["timers"] = [*one.timers, _WITH_PLACES]
        if one.halves != NO_HALVES:
            fields["halves"] = list(one.halves)
    return seal(fields)


def _terms(topic: Topic) -> list[int]:
    return [topic.write_queues, topic.permission, *topic.quota, topic.altered]


def _index_row(mark: IndexMark | None) -> list[object] | None:
    if mark is None:
        return None
    files = [
        [file.name, file.slots, file.cells, file.header.pack(), file.crc] for file in mark.files
    ]
    return [mark.position, mark.ahead, files]


def _done_row(done: Done) -> list[int]:
    return [
        done.sequence, done.count, done.queue_offset, done.log_offset, done.end, done.digest,
    ]  # fmt: skip


def decode_snapshot(data: bytes) -> Snapshot:
    """Return the snapshot in a file.

    Raises:
        CorruptionError: Its CRC or structure is wrong, or its version is newer.
    """
    fields = unseal(data)
    if number(fields, "version") != _VERSION:
        raise CorruptionError("a snapshot of another version")
    start = number(fields, "start") if "start" in fields else 0
    try:
        batched = tuple(cast("Sequence[str]", fields.get("batched", ())))
        rows = cast("Sequence[_TopicRow]", fields["topics"])
        since = cast("Mapping[str, int]", fields.get("since", {}))
        altered = cast("Mapping[str, Sequence[int]]", fields.get("altered", {}))
        gone = cast("Sequence[tuple[str, int, int, bool]]", fields.get("deleted", ()))
        return Snapshot(
            number(fields, "offset"),
            tuple(Epoch(*row) for row in _rows(fields, "epochs")),
            tuple(
                Topic(name, n, ms, name in batched, since.get(name, 0), *altered.get(name, ()))
                for name, n, ms in rows
            ),
            tuple((a, b, c, d) for a, b, c, d in cast("Sequence[_QueueRow]", fields["queues"])),
            tuple(_line(row) for row in _rows(fields, "producers")),
            number(fields, "timestamp"),
            _index_mark(fields.get("index")),
            start,
            batched,
            number(fields, "lowest") if "lowest" in fields else start,
            tuple(_group(row) for row in cast("Sequence[object]", fields.get("groups", ()))),
            _messaging(fields.get("messaging"), fields.get("timers"), fields.get("halves")),
            _access(fields),
            tuple(Gone(name, end, ms, batch) for name, end, ms, batch in gone),
        )
    except (TypeError, KeyError, ValueError) as error:
        raise CorruptionError(f"a snapshot of another structure: {error}") from None


def _group(row: object) -> Group:
    fields = cast("Mapping[str, object]", row)
    found = group_from(fields)
    if found is None:
        raise ValueError("a group")
    return replace(found, created_at=number(fields, "end"))


def _access(fields: Mapping[str, object]) -> Access:
    users = [user_of(row) for row in cast("Sequence[object]", fields.get("users", ()))]
    rules = [rule_of(row) for row in cast("Sequence[object]", fields.get("rules", ()))]
    if None in users or None in rules:
        raise ValueError("a user or a rule")
    found = {one.name: one for one in users if one is not None}
    return Access(found, frozenset(one for one in rules if one is not None))


def _messaging(row: object, waiting: object, halves: object) -> Values:
    if row is None:
        return EMPTY
    position, share, shares, members, *later = cast("Sequence[Any]", row)
    delays = later[0] if later else ()  # a snapshot of an older version has none
    return Values(
        position, share, tuple(_share(one) for one in shares),
        tuple((group, number, name, since) for group, number, name, since in members),
        tuple((level, after) for level, after in delays), _timers(waiting), _halves(halves),
    )  # fmt: skip


def _timers(row: object) -> TimerValues:
    if row is None:
        return NOTHING
    (due, offset), seconds, grains, cancelled, (last, size), *later = cast("Sequence[Any]", row)
    whole = bytes if later else with_places  # those of an older version
    return TimerValues(
        (due, offset), tuple((second, whole(entries)) for second, entries in seconds),
        tuple((grain, count) for grain, count in grains),
        tuple((time, at) for time, at in cancelled), (last, size),
    )  # fmt: skip


def _halves(row: object) -> HalfValues:
    if row is None:
        return NO_HALVES
    base, outcomes, halves = cast("Sequence[Any]", row)
    return HalfValues(base, outcomes, tuple(Half(*one) for one in halves))


def _share(row: Sequence[Any]) -> Any:
    *rest, runs = row
    number, group, topic, incarnation, queue, low, after, n = rest
    made = tuple(Run(*run) for run in runs)
    return number, group, topic, incarnation, queue, low, after, n, made


def _index_mark(row: object) -> IndexMark | None:
    if row is None:
        return None
    position, ahead, files = cast("tuple[int, int, Sequence[_IndexRow]]", row)
    marks = (
        # A snapshot of an older version has no checksums.
        FileMark(name, slots, cells, IndexHeader.unpack(header), crc[0] if crc else -1)
        for name, slots, cells, header, *crc in files
    )
    return IndexMark(position, ahead, tuple(marks))


def _rows(fields: Mapping[str, object], name: str) -> Sequence[Sequence[int]]:
    return cast("Sequence[Sequence[int]]", fields.get(name, ()))


def _line(row: Sequence[object]) -> tuple[Key, Line]:
    producer, topic, queue, epoch, done = row
    rows = cast("Sequence[Sequence[int]]", done)
    key = (cast(int, producer), cast(str, topic), cast(int, queue))
    return key, Line(cast(int, epoch), tuple(Done(*one) for one in rows))


class Snapshots:
    """The directory of snapshots."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._older: int | None = None

    def offsets(self) -> list[int]:
        """Return the offsets of the snapshots on the disk, oldest first."""
        return [int(name) for name in self._disk.list(DIRECTORY) if name.isdigit()]

    def _twins(self) -> list[int]:
        names = self._disk.list(DIRECTORY)
        return [int(name[: -len(_TWIN)]) for name in names if name.endswith(_TWIN)]

    @property
    def older(self) -> int:
        """The offset of the older of the two newest snapshots; 0 while there is only one.

        If the newest snapshot cannot be read, a start needs the log from there on (R51).
        """
        if self._older is None:
            offsets = self.offsets()
            self._older = offsets[-KEPT] if len(offsets) >= KEPT else 0
            if offsets and self._disk.exists(_twin(offsets[-1])):
                self._older = offsets[-1]
        return self._older

    def keep_twice(self, offset: int, op: str) -> None:
        """Keep a second copy of the newest snapshot, so that nothing older than it is needed.

        A log without new records gets no newer snapshot, and the older of its two snapshots would
        keep files from being deleted.

        Raises:
            DiskError: There is still only one copy.
        """
        if not self._disk.exists(_twin(offset)) and self._disk.exists(_path(offset)):
            data = self._disk.read(_path(offset), op + ".read")
            decode_snapshot(data)  # a damaged snapshot must not be copied
            self._disk.write_file(_twin(offset), data, op)
        self._older = None

    def newest(self, most: int) -> Snapshot | None:
        """Return the newest readable snapshot at or below log offset ``most``; else None."""
        for offset in reversed(self.offsets()):
            for path in (_path(offset), _twin(offset)):
                if offset > most or not self._disk.exists(path):
                    continue
                try:
                    return decode_snapshot(self._disk.read(path, "snapshot.read"))
                except CorruptionError:
                    continue
        return None

    def write(self, value: Snapshot, op: str) -> None:
        """Write a snapshot durably and remove those before the last two."""
        self._older = None
        self._disk.write_file(_path(value.offset), encode_snapshot(value), op)
        for offset in self.offsets()[:-KEPT]:
            self._disk.remove(_path(offset), op + ".remove")
        for offset in self._twins():
            if offset != value.offset:
                self._disk.remove(_twin(offset), op + ".remove")

    def cut(self, end: int) -> None:
        """Remove snapshots beyond ``end``."""
        self._older = None
        beyond = [_path(offset) for offset in self.offsets() if offset > end]
        beyond += [_twin(offset) for offset in self._twins() if offset > end]
        for path in beyond:
            self._disk.remove(path, "cut.snapshot.remove")
        if beyond:
            self._disk.fsync_dir(DIRECTORY, "cut.snapshot.dir")


def _path(offset: int) -> str:
    return f"{DIRECTORY}/{file_name(offset)}"


def _twin(offset: int) -> str:
    return _path(offset) + _TWIN

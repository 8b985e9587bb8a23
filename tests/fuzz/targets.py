"""What is fuzzed: a function of bytes for each reader, and inputs to begin with.

A target ends quietly or raises what its reader documents; anything else is a finding. Where there
are two implementations (kernels and their plain twins) they must agree, and where a value can be
written again it must read the same.

Not here: how fuzzing runs (`tests.fuzz.__main__`).
"""

from __future__ import annotations

import importlib
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from storage.disk import packing
from storage.log.epoch_history import EpochRecord, decode_epoch, encode_epoch
from storage.marks.two_slots import Slots
from storage.messaging.fold import Messaging
from storage.messaging.groups import Group
from storage.recovery.snapshot import Snapshot, decode_snapshot, encode_snapshot
from storage.state.controls import CreateTopic, decode_control, encode_control
from storage.state.group_controls import CreateGroups
from tests.fakes.disk import FakeDisk
from tests.stores.sample import Ours, sample
from twinlog.errors import Corrupt, CorruptionError, UsageError
from twinlog.filters.sql92 import parse_filter
from twinlog.format import record
from twinlog.format.batch_index import BatchEntry
from twinlog.format.checkpoint import Checkpoint
from twinlog.format.epoch_file import epoch_file_pack, epoch_file_unpack
from twinlog.format.group_rows import (
    AckRow,
    ExtendRow,
    ForgottenRow,
    LeaseRow,
    MemberRow,
    PositionRow,
    ReleaseRow,
    ResetRow,
    Row,
    ShareRow,
    UnknownRow,
    decode_rows,
    encode_rows,
)
from twinlog.format.inner_batches import InnerEncoder
from twinlog.format.key_index import IndexHeader
from twinlog.format.messages import messages_of
from twinlog.kernels import crc32c, plain
from twinlog.store.reader import StoreReader
from twinlog.wire import frames

BATCHES, LOG, QUEUE = "twinlog/batches", "commitlog", "consumequeue"


_ROWS: list[Row] = [
    ShareRow(1, "g", "t", 0, 0, 5),
    MemberRow("g", 9, "w", 1),
    LeaseRow(1, 1, 7, 9, 9, 1, 100, 1),
    AckRow(1, 1, 8, 9),
    ReleaseRow(1, 1, 10, 11, 200, 1),
    ExtendRow(1, 1, 12, 13, 300),
    ShareRow(2, "g~w", "t", 0, 0, 5),
    PositionRow(2, 9, 0, 8),
    ResetRow(2, 3, "x"),
    ForgottenRow(2),
]


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        name: What it reads.
        read: Reads these bytes; raises on a finding.
        seeds: Inputs to begin with.
    """

    name: str
    read: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


@cache
def compiled() -> ModuleType:
    """The compiled kernels; the plain ones where nothing is built."""
    try:
        return importlib.import_module("twinlog.kernels._compiled")
    except ImportError:
        return plain


def _records() -> Iterator[bytes]:
    body = bytes(range(64))
    properties = record.encode_properties({"TAGS": "a", "KEYS": "k1 k2", "TL_SEQ": "1.1.0.1"})
    for topic, host, flag in (("t", "127.0.0.1", 0), ("y" * 130, "::1", 4), ("t", "::1", 0x81)):
        yield record.encode(
            topic, 0, body, queue_offset=1, log_offset=0, properties=properties, sys_flag=flag,
            born_host=(host, 1), store_host=(host, 2), store_timestamp=5,
        )  # fmt: skip


def read_records(data: bytes) -> None:
    """Records one after the other, by every kernel and by the decoder of single records."""
    end = len(data)
    for name, arguments in (
        ("walk", ()),
        ("verify_records", (0,)),
        ("scan_queues", (0,)),
        ("gather_queues", (0,)),
        ("gather_units", (0, (b"t",))),
        ("scan_keys", (0,)),
        ("bodies_digest", ()),
        ("find_property", (b"KEYS",)),
    ):
        expected = getattr(plain, name)(data, 0, end, *arguments)
        found = getattr(compiled(), name)(data, 0, end, *arguments)
        assert found == expected, (name, found, expected)
    try:
        one = record.decode(data)
    except CorruptionError:
        return
    assert 0 < one.size <= end
    assert one.body_crc in (0, record.body_crc(one.body)) or one.properties is not None


def read_section(data: bytes) -> None:
    """A client's section: checked by the kernel and its twin before anything is stored."""
    if len(data) < 2:
        return
    family_bits = data[1]
    count, family, data = data[0] % 4, 4 if family_bits & 1 else 6, data[2:]
    arguments = (0, len(data), count, b"t", 0)
    inner = bool(family_bits & 2)
    found = [
        kernel.check_section(data, *arguments, body_max=250, family=family, inner=inner)
        for kernel in (plain, compiled())
    ]
    assert found[0] == found[1], found
    if found[0] is None and data:
        _number(data, family)


def _number(data: bytes, family: int) -> None:
    """What passes is numbered alike by both twins, and read back message by message."""
    written = [bytearray(data), bytearray(data)]
    for one, kernel in zip(written, (plain, compiled()), strict=True):
        count = kernel.patch_section(
            one, 0, len(one), log_offset=5, queue_offset=9, store_timestamp=7,
            store_host=bytes(8 if family == 4 else 20),
        )  # fmt: skip
        try:
            messages = messages_of(one)
        except (Corrupt, UsageError):  # a body that says it is compressed
            continue
        assert [m.queue_offset for m in messages] == list(range(9, 9 + count))
    assert written[0] == written[1]
    [(*_, first, behind, units)] = plain.gather_units(written[0], 0, len(data), 5, (b"t",))
    assert (first, behind) == (9, 9 + count)
    assert compiled().gather_units(written[0], 0, len(data), 5, (b"t",))[0][-1] == units


def read_properties(data: bytes) -> None:
    """Encoded properties; what comes back can be written and reads the same."""
    assert plain.split_properties(data) == compiled().split_properties(data)
    try:
        found = record.decode_properties(data)
        again = record.decode_properties(record.encode_properties(found))
    except (CorruptionError, UsageError, ValueError):
        return
    assert again == found


def read_filter(data: bytes) -> None:
    """SQL92: an error that is ours, or a filter that can be asked."""
    try:
        found = parse_filter(data.decode())
    except (UnicodeDecodeError, UsageError):
        return
    for value in ("1", "x", "", "true"):
        assert isinstance(found.matches(dict.fromkeys(found.names, value)), bool)
    assert isinstance(found.matches({}), bool)


def read_frames(data: bytes) -> None:
    """The wire: whole, then byte by byte; frames and errors are the same."""
    seen: list[list[object]] = []
    for step in (max(len(data), 1), 1):
        reader = frames.FrameReader(fields_max=4096, payload_max=4096)
        got: list[object] = []
        try:
            for at in range(0, len(data), step):
                reader.feed(data[at : at + step])
                while (frame := reader.next()) is not None:
                    got.append((frame.type, frame.fields, bytes(frame.payload)))
        except frames.FrameError as error:
            got.append(error.code)
        seen.append(got)
    assert repr(seen[0]) == repr(seen[1])


def read_batch_entry(data: bytes) -> None:
    """An entry of the batch index: none, or one that packs to the same bytes."""
    if len(data) < 48:
        return
    found = BatchEntry.unpack(data)
    assert found is None or found.pack() == data[:48]


def read_epochs(data: bytes) -> None:
    """Epoch records and RocketMQ's epoch file."""
    for read in (decode_epoch, epoch_file_unpack):
        try:
            read(data)  # type: ignore[operator]
        except CorruptionError:
            continue


def read_key_index(data: bytes) -> None:
    """Cells of the key index: linked into slots by the kernel and its twin alike."""
    found: list[object] = []
    for kernel in (plain, compiled()):
        slots = bytearray(4 * 16)
        found.append((kernel.link_cells(data, 1, memoryview(slots)), bytes(slots)))
    assert found[0] == found[1], found


def read_small_files(data: bytes) -> None:
    """Checkpoints, marks, snapshots, control records; with a CRC that fits, too."""
    disk = FakeDisk()
    disk.write_file("slots", data, "fuzz")
    Slots(disk, "slots", slot_size=256).load("fuzz")
    decode_control(data)
    for sealed in (data, crc32c(data).to_bytes(4, "big") + data):
        for read in (packing.unseal, decode_snapshot):
            try:
                read(sealed)
            except CorruptionError:
                continue
    for unpack, size in ((Checkpoint.unpack, 24), (IndexHeader.unpack, 40)):
        if len(data) >= size:
            try:
                unpack(data)
            except CorruptionError:
                continue


def read_group_rows(data: bytes) -> None:
    """Rows of groups: whatever they say, a fold of them can be kept and taken up again."""
    rows = decode_rows(data)
    known = [row for row in rows if not isinstance(row, UnknownRow)]
    assert decode_rows(encode_rows(known)) == known
    fold = Messaging()
    fold.apply_body(data, 1, 0, 10)
    kept = decode_snapshot(encode_snapshot(Snapshot(0, messaging=fold.values())))
    assert Messaging.restore(kept.messaging).values() == fold.values()
    for share in fold.shares():
        ends = [share.low, *(run.last + 1 for run in share.runs)]
        assert [run.first for run in share.runs] == ends[:-1], share.runs
        assert ends[-1] == share.next, (ends, share.next)


class Directory:
    """A small store of ours on disk, one file of which is replaced at a time."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="fuzz-"))
        sample().write(self.root, clean=False, flushed=6000)
        with StoreReader(self.root) as store:
            self.records = {one.log_offset: one for one in store.records()}
        self.files = sorted(path for path in self.root.rglob("*") if path.is_file())
        self.whole = {path: path.read_bytes() for path in self.files}

    def read(self, data: bytes) -> None:
        """Patch one file with ``data`` at a place that its first bytes name, and read all."""
        if len(data) < 4:
            return
        number, at, cut = data[0], int.from_bytes(data[1:3], "big"), data[3] & 1
        path = self.files[number % len(self.files)]
        whole = self.whole[path]
        at %= len(whole) + 1
        patched = whole[:at] + data[4:] + (b"" if cut else whole[at + len(data) - 4 :])
        path.write_bytes(patched)
        try:
            with StoreReader(self.root) as store:
                for one in store.records():
                    known = self.records.get(one.log_offset)
                    assert known is None or known.body == one.body or LOG in str(path), one
                for queue in store.queues():
                    assert all(entry.size >= 0 for entry in queue.entries())
        except CorruptionError:
            pass
        finally:
            path.write_bytes(whole)


_directory = cache(Directory)


def read_directory(data: bytes) -> None:
    """A whole store one file of which says something else."""
    _directory().read(data)


def remove_directory() -> None:
    """Remove what `read_directory` made."""
    if _directory.cache_info().currsize:
        shutil.rmtree(_directory().root)
        _directory.cache_clear()


def _properties() -> Iterator[bytes]:
    yield record.encode_properties({"TAGS": "a", "k": "v"})
    yield b"a\x01b\x02\x02c\x01\x02d"


def _filters() -> Iterator[bytes]:
    for text in (
        "a > 1 AND b = 'x' OR NOT c IS NULL",
        "a BETWEEN 1 AND 2.5 AND b IN ('x', 'y')",
        "a CONTAINS 'x' AND b NOT STARTSWITH 'y' AND c = TRUE",
        "((a <> -1e3))",
    ):
        yield text.encode()


def _frames() -> Iterator[bytes]:
    frame = frames.Frame(frames.Type.METADATA, request=7, fields={"topics": ["orders"]})
    yield frames.encode_whole(frame)
    yield frames.encode_whole(frames.Frame(frames.Type.APPEND, frames.BATCH_CRC, payload=b"x" * 40))


def _entries() -> Iterator[bytes]:
    store: Ours = sample()
    with tempfile.TemporaryDirectory() as folder:
        root = store.write(Path(folder))
        yield next((root / BATCHES).iterdir()).read_bytes()[:48]


def _epochs() -> Iterator[bytes]:
    value = EpochRecord(3, 100, "n1", 7, 5, 2, 100, 100, "failover", "alice", 0)
    yield encode_epoch(
        value, queue_offset=0, log_offset=100, store_timestamp=5, store_host=("127.0.0.1", 1)
    )
    yield epoch_file_pack([(1, 0), (2, 100)])


def _small_files() -> Iterator[bytes]:
    yield packing.seal({"flushed": 1, "confirm": 1})
    yield encode_snapshot(Snapshot(0))
    yield encode_control(CreateTopic("t", 4, 5))
    yield encode_control(CreateGroups((Group("g", filters={"t": "a = 1"}),)))
    fold = Messaging()
    fold.apply_body(encode_rows(_ROWS), 1, 0, 10)
    yield encode_snapshot(Snapshot(0, groups=(Group("g"),), messaging=fold.values()))
    disk = FakeDisk()
    slots = Slots(disk, "slots", slot_size=256)
    slots.create("fuzz")
    slots.store(b"x" * 20, "fuzz")
    yield disk.read("slots", "fuzz")


def _rows() -> Iterator[bytes]:
    yield encode_rows(_ROWS)
    for row in _ROWS:
        yield encode_rows([row, row])


def _patches() -> Iterator[bytes]:
    for number in range(8):
        yield struct.pack(">BHB", number, 100, number & 1) + bytes(20)


def _sections() -> Iterator[bytes]:
    for one in _records():
        yield b"\x01\x01" + one
    encoder = InnerEncoder(record.RecordEncoder("t", 0), 250)
    for body in (b"a", b"bb", b""):
        encoder.add(body, b"p\x011\x02", sys_flag=0, born_timestamp=1, key="k", tag="x")
    yield b"\x01\x03" + encoder.take(b"")[0]


TARGETS = (
    Target("record", read_records, _records),
    Target("section", read_section, _sections),
    Target("properties", read_properties, _properties),
    Target("sql92", read_filter, _filters),
    Target("wire", read_frames, _frames),
    Target("batch-entry", read_batch_entry, _entries),
    Target("key-index", read_key_index, lambda: iter([struct.pack(">iqii", 7, 100, 5, 0) * 3])),
    Target("epochs", read_epochs, _epochs),
    Target("small-files", read_small_files, _small_files),
    Target("group-rows", read_group_rows, _rows),
    Target("directory", read_directory, _patches),
)

"""The single calls of a single send: twins agree, and say what the general way says.

Bytes are good frames and sections, then damaged; whatever is not plain must be None.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stores.records.drawn import damaged, frames, u32, u64, values
from twinlog.format import record
from twinlog.format.batch_index import BatchEntry
from twinlog.kernels import plain, single
from twinlog.wire import frames as wire
from twinlog.wire.frames import Frame, FrameReader, encode_whole


def twin() -> ModuleType:
    """The compiled twin; the plain one where nothing is built (CI builds it and insists)."""
    try:
        return importlib.import_module("twinlog.kernels._compiled")
    except ImportError:
        return single


COMPILED = twin()


def general(data: bytes) -> Frame | None:
    """The first frame of ``data`` as the general reader cuts it; None without one."""
    reader = FrameReader(place=lambda frame, length: None)
    reader.feed(data)
    try:
        return reader.next()
    except wire.FrameError:
        return None


def flip(data: bytes, at: int, bit: int) -> bytes:
    """``data`` with one bit turned."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


@given(st.lists(frames, min_size=1, max_size=2), st.integers(0, 2**16), st.integers(0, 8), u32)
@settings(max_examples=150, deadline=None)
def test_a_frame_taken_in_one_call_is_the_general_readers(
    sent: list[Frame], at: int, bit: int, cut: int
) -> None:
    """Whole, damaged (``bit`` below 8), cut off, with another one behind it."""
    data = b"".join(encode_whole(frame) for frame in sent)
    data = data if bit == 8 else flip(data, at, bit)
    data = data[: cut % (2 * len(data))]
    found = single.take_frame(data, 0, len(data), wire.FIELDS_MAX, wire.PAYLOAD_MAX)
    taken = COMPILED.take_frame(
        memoryview(b"ab" + data), 2, len(data) + 2, wire.FIELDS_MAX, wire.PAYLOAD_MAX
    )
    assert repr(taken) == repr(found)  # True is not 1
    expected = general(data)
    if found is not None:
        assert repr(Frame(*found[1:])) == repr(expected)
        assert len(encode_whole(Frame(*found[1:]))) == found[0]
    elif expected is not None:
        inner = expected.fields.values()
        assert any(_is_map_in(value) for value in inner), "only rare fields go the general way"


def _is_map_in(value: object, depth: int = 0) -> bool:
    if isinstance(value, list):
        return depth > 3 or any(_is_map_in(item, depth + 1) for item in value)  # pyright: ignore
    return isinstance(value, dict)


@given(frames, st.integers(0, 4000), st.integers(0, 400))
def test_limits_are_those_of_the_reader(frame: Frame, fields_max: int, payload_max: int) -> None:
    """A frame beyond one of them is left to the reader, which refuses it."""
    data = encode_whole(frame)
    found = single.take_frame(data, 0, len(data), fields_max, payload_max)
    taken = COMPILED.take_frame(data, 0, len(data), fields_max, payload_max)
    assert repr(taken) == repr(found)
    size = len(data) - wire.HEADER_SIZE - len(frame.payload)
    if size > fields_max or len(frame.payload) > payload_max:
        assert found is None


@given(st.integers(0, 255), st.integers(0, 65535), u64, u64, u32, st.binary(max_size=99), u32, u32)
def test_heads_are_alike(
    kind: int, flags: int, epoch: int, request: int, names: int, packed: bytes, size: int, crc: int
) -> None:
    """Header and fields."""
    numbers = kind, flags, epoch, request, names, packed, size, crc
    assert COMPILED.frame_head(*numbers) == single.frame_head(*numbers)


@given(st.binary(max_size=40), values)
def test_broken_fields_are_left_to_the_reader(packed: bytes, value: object) -> None:
    """Fields that are any bytes at all, with right CRCs around them."""
    data = single.frame_head(34, 0, 1, 2, 3, packed, 0, 0)
    found = single.take_frame(data, 0, len(data), 99, 99)
    assert repr(COMPILED.take_frame(data, 0, len(data), 99, 99)) == repr(found)
    expected = general(data)
    if found is not None:
        assert expected is not None
        assert repr(expected.fields) == repr(found[6])


@given(
    damaged(), st.integers(0, 4), st.sampled_from(["t", "flights"]), st.integers(0, 1),
    st.sampled_from([None, b"k", b"00000000000000ff.0.0.1"]), st.sampled_from([4, 6]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_sections_are_placed_alike(
    case: tuple[bytes, int, int],
    count: int,
    topic: str,
    queue: int,
    sequence: bytes | None,
    family: int,
) -> None:
    """Of damaged records nothing is written; of good ones the same bytes."""
    data = case[0][case[1] : case[2]]
    host = bytes(range(8 if family == 4 else 20))
    place, entry = (4096, 17, 1234567, host), (3, 99)
    rooms = bytearray(len(data)), bytearray(len(data))
    made = [
        kernel.place_section(
            data, count, topic.encode(), queue, sequence, (1000, family), room, place, entry
        )
        for kernel, room in zip((single, COMPILED), rooms, strict=True)
    ]
    assert made[0] == made[1]
    assert rooms[0] == rooms[1]
    assert made[0] is not None or not any(rooms[0])


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"t", b"u"]), st.integers(0, 1), st.integers(1, 3),
            st.sampled_from([None, b"00000000000000ff.0.0.1"]), st.integers(0, 40),
            st.sampled_from([-1, -1, -1, 3, 9, 70, 95]),
        ),
        max_size=5,
    ),
    u32, st.integers(0, 30),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_several_sections_are_placed_alike(
    wanted: list[tuple[bytes, int, int, bytes | None, int, int]], crc: int, spare: int
) -> None:
    """As if each were placed alone, up to the first one that is not; behind it are zeros."""
    rows: list[single.Placing] = []
    for number, (topic, queue, count, sequence, size, spoilt) in enumerate(wanted):
        text = b"" if sequence is None else b"TL_SEQ\x01" + sequence + b"\x02"
        body = b"b" * size
        one = record.encode("t", queue, body, properties=text)
        one += (count - 1) * record.encode("t", queue, body, properties=b"")
        one = one if spoilt < 0 else flip(one, spoilt, 2)
        rows.append((one, count, topic, queue, sequence, 7 * number))
    length, host = sum(len(row[0]) for row in rows) + spare, bytes(range(8))
    rooms = bytearray(length), bytearray(length)
    made = [
        kernel.place_sections(rows, (1000, 4), room, (4096, 17, host), crc)
        for kernel, room in zip((single, COMPILED), rooms, strict=True)
    ]
    assert made[0] == made[1]
    assert rooms[0] == rooms[1]
    stepped, digests = bytearray(), list[int]()
    for data, count, topic, queue, sequence, first in rows:
        room, place = bytearray(len(data)), (4096 + len(stepped), first, 17, host)
        alone = COMPILED.place_section(
            data, count, topic, queue, sequence, (1000, 4), room, place, (3, 99)
        )
        if alone is None:
            break
        stepped += room
        digests.append(alone[0])
    assert made[0] == (digests, plain.crc32c(stepped, crc))
    assert rooms[0] == stepped.ljust(length, b"\0")


@pytest.mark.parametrize("kernel", [single, COMPILED], ids=["plain", "compiled"])
def test_sections_need_room_for_all(kernel: ModuleType) -> None:
    """Too little of it, or a host of another family, is a defect of the caller."""
    data = record.encode("t", 0, b"x")
    rows = [(data, 1, b"t", 0, None, 0), (data, 1, b"t", 0, None, 1)]
    with pytest.raises(ValueError, match="room"):
        kernel.place_sections(rows, (9, 4), bytearray(2 * len(data) - 1), (0, 1, bytes(8)), 0)
    with pytest.raises(ValueError, match="family"):
        kernel.place_sections(rows, (9, 6), bytearray(2 * len(data)), (0, 1, bytes(8)), 0)


@pytest.mark.parametrize("kernel", [single, COMPILED], ids=["plain", "compiled"])
def test_a_placed_section_is_what_the_single_steps_make(kernel: ModuleType) -> None:
    """Numbers, stamps, digest and entry; the producer's sequence is looked at."""
    mark = b"TL_SEQ\x0100000000000000ff.0.0.2\x02"
    data = b"".join(
        record.encode("t", 1, body, properties=text)
        for body, text in [(b"one", mark), (b"two", b"")]
    )
    host, room = bytes([127, 0, 0, 1, 0, 0, 1, 2]), bytearray(len(data))
    arguments = data, 2, b"t", 1, b"00000000000000ff.0.0.2", (99, 4), room
    digest, packed = kernel.place_section(*arguments, (640, 7, 1000, host), (5, 320))
    stepped = bytearray(data)
    plain.patch_section(
        stepped, 0, len(data), log_offset=640, queue_offset=7, store_timestamp=1000, store_host=host
    )
    assert room == stepped
    assert digest == plain.bodies_digest(data, 0, len(data))
    crc = plain.crc32c(stepped)
    assert BatchEntry.unpack(packed) == BatchEntry(640, len(data), 2, 5, crc, 1000, 0, 320)
    for other in (None, b"00000000000000ff.0.2.2", b"00000000000000ff.0.0."):
        changed = (*arguments[:4], other, *arguments[5:])
        assert kernel.place_section(*changed, (640, 7, 1000, host), (5, 320)) is None
    with pytest.raises(ValueError, match="room"):
        kernel.place_section(*arguments[:6], bytearray(9), (640, 7, 1000, host), (5, 320))


CONTROL = b"rmq_sys_TWINLOG_META"


@given(
    st.binary(max_size=90), st.integers(0, 3), st.booleans(), u32,
    st.one_of(st.none(), st.tuples(st.integers(0, 35), st.integers(0, 7))),
    st.one_of(st.none(), st.tuples(st.integers(0, 200), st.integers(0, 7))),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_batches_are_placed_alike(
    body: bytes,
    count: int,
    is_control: bool,
    epoch: int,
    entry_bit: tuple[int, int] | None,
    body_bit: tuple[int, int] | None,
) -> None:
    """Of a good entry the same bytes and entry; any other is left to the general way."""
    data = body + CONTROL + b"rest" if is_control else body
    entry = BatchEntry(4096, len(data), count, epoch, plain.crc32c(data), 77, 0, 0).pack()[:36]
    sent = data
    if entry_bit is not None:
        entry = flip(entry, *entry_bit)
    if body_bit is not None and data:
        sent = flip(data, *body_bit)
    rooms = bytearray(len(data)), bytearray(len(data))
    made = [
        kernel.place_batch(entry, memoryview(sent), room, (4096, epoch, 640), CONTROL)
        for kernel, room in zip((single, COMPILED), rooms, strict=True)
    ]
    assert made[0] == made[1]
    assert rooms[0] == rooms[1]
    if made[0] is None:
        spoilt = entry_bit is not None or body_bit is not None
        assert spoilt or len(data) < 8 or (is_control and count == 1)
        return
    packed, stamp = made[0]
    found = BatchEntry.unpack(packed)
    assert found is not None
    assert packed[:36] == entry
    assert (found.start, found.end, found.epoch, found.kind) == (4096, 4096 + len(data), epoch, 0)
    assert (found.crc, found.flushed) == (plain.crc32c(sent), 640)
    assert (found.store_timestamp, bytes(rooms[0])) == (stamp, sent)


@pytest.mark.parametrize("kernel", [single, COMPILED], ids=["plain", "compiled"])
def test_a_batch_has_its_own_room(kernel: ModuleType) -> None:
    """Another length of the room, or no name to look for, is a defect of the caller."""
    entry = BatchEntry(0, 9, 1, 1, plain.crc32c(b"123456789"), 77, 0, 0).pack()[:36]
    with pytest.raises(ValueError, match="room"):
        kernel.place_batch(entry, b"123456789", bytearray(8), (0, 1, 0), CONTROL)
    with pytest.raises(ValueError, match="name"):
        kernel.place_batch(entry, b"123456789", bytearray(9), (0, 1, 0), b"")
    assert kernel.place_batch(entry + b"x", b"123456789", bytearray(9), (0, 1, 0), b"x") is None


@pytest.mark.parametrize("kernel", [single, COMPILED], ids=["plain", "compiled"])
def test_what_is_not_plain_is_left_to_the_general_way(kernel: ModuleType) -> None:
    """One by one: not whole, not ours, damaged, too large, or with fields that are rare."""
    packed = msgpack.packb({"a": [1, ["x", None]], "b": b"c"})
    good = single.frame_head(34, 0, 1, 2, 3, packed, 2, single.crc32c(b"pp")) + b"pp"

    def take(data: bytes, fields_max: int = 99, payload_max: int = 2) -> object:
        return kernel.take_frame(data, 0, len(data), fields_max, payload_max)

    taken = take(good + b"more")
    assert taken == (
        len(good), 34, 0, 1, 2, 3, {"a": [1, ["x", None]], "b": b"c"}, b"pp"
    )  # fmt: skip
    for other in (good[:47], good[:-1], b"TWL2" + good[4:], flip(good, 45, 0), flip(good, -1, 0)):
        assert take(other) is None
    assert take(flip(good, 50, 0)) is None, "the CRC of the fields"
    assert take(good, fields_max=len(packed) - 1) is None
    assert take(good, payload_max=1) is None
    covered = single.frame_head(34, 4, 1, 2, 3, packed, 2, 0)
    assert take(covered + b"pp") is not None, "the batch has a CRC of its own"
    assert take(single.frame_head(34, 4, 1, 2, 3, packed, 2, 1) + b"pp") is None
    deep: object = 1
    for _ in range(5):
        deep = [deep]
    for fields in (
        b"", b"\xdf\0\0\0\0", b"\xc1", msgpack.packb([1]), msgpack.packb({1: 2}), packed + b"\0",
        msgpack.packb({"a": {}}), msgpack.packb({"a": 1.5}), msgpack.packb({"a": deep}),
    ):  # fmt: skip
        assert take(single.frame_head(34, 0, 1, 2, 3, fields, 0, 0)) is None, fields


@pytest.mark.parametrize("kernel", [single, COMPILED], ids=["plain", "compiled"])
def test_a_section_that_is_refused_is_not_placed(kernel: ModuleType) -> None:
    """None, and the room is as it was; a room of another size is the caller's mistake."""
    data, place, entry = record.encode("t", 0, b"x"), (0, 0, 1, bytes(8)), (1, 0)
    room = bytearray(len(data))
    for given_, count, topic in ((data, 1, b"u"), (data, 2, b"t"), (b"", 0, b"t")):
        target = room[: len(given_)]
        arguments = given_, count, topic, 0, None, (9, 4), target, place, entry
        assert kernel.place_section(*arguments) is None
        assert not any(target)
    assert kernel.place_section(data, 1, b"t", 0, b"k", (9, 4), room, place, entry) is None
    assert not any(room)
    with pytest.raises(ValueError, match="family"):
        kernel.place_section(data, 1, b"t", 0, None, (9, 6), room, place, entry)
    found = kernel.place_section(data, 1, b"t", 0, None, (9, 4), room, place, entry)
    assert found is not None and any(room)

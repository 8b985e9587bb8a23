"""Frames survive any cutting, and nothing but a good frame is taken for one."""

from __future__ import annotations

import itertools
import pickle
import struct

import msgpack
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.stores.records.drawn import frames
from twinlog.wire import frames as wire
from twinlog.wire.frames import Frame, FrameError, FrameReader, Type, encode_whole

SAMPLE = Frame(Type.APPEND, 0, 7, 9, 11, {"ack": "confirmed", "n": [1, "x"]}, b"payload" * 5)


def drain(reader: FrameReader, found: list[Frame]) -> list[Frame]:
    while (frame := reader.next()) is not None:
        frame.payload = bytes(frame.payload)
        found.append(frame)
    return found


def outcome(pieces: list[bytes]) -> tuple[list[Frame], str]:
    """Feed the pieces; return the frames and the kind of error, or "" without one."""
    reader = FrameReader()
    found: list[Frame] = []
    kind = ""
    try:
        for piece in pieces:
            reader.feed(piece)
            drain(reader, found)
        reader.finish()
    except FrameError as error:
        kind = error.kind
    if kind not in ("", "truncated"):
        with pytest.raises(FrameError) as again:
            reader.next()
        assert again.value.kind == kind
    return found, kind


@given(st.lists(frames, max_size=4), st.data())
def test_frames_come_back_however_the_stream_is_cut(sent: list[Frame], data: st.DataObject) -> None:
    """Whole, byte by byte and in random pieces, the same frames come out."""
    stream = b"".join(encode_whole(frame) for frame in sent)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    for way in ([stream], pieces, [stream[i : i + 1] for i in range(len(stream))]):
        assert outcome(way) == (sent, "")


def test_every_split_point_and_every_truncation() -> None:
    """Two pieces at any border give the frame; one piece alone gives nothing but "truncated"."""
    stream = encode_whole(SAMPLE)
    for at in range(len(stream)):
        assert outcome([stream[:at], stream[at:]]) == ([SAMPLE], "")
        assert outcome([stream[:at]]) == ([], "truncated" if at else "")


def test_every_bit_flip_is_seen() -> None:
    """No flipped bit of a frame yields a frame; the same kind whole and byte by byte."""
    stream = encode_whole(SAMPLE)
    for bit in range(len(stream) * 8):
        bad = bytearray(stream)
        bad[bit // 8] ^= 1 << bit % 8
        found, kind = outcome([bytes(bad)])
        assert not found, bit
        assert kind in wire.KINDS, bit
        assert outcome([bytes([b]) for b in bad]) == (found, kind), bit


@given(st.binary(min_size=1, max_size=200))
def test_garbage_behind_a_frame_spoils_only_what_follows(garbage: bytes) -> None:
    """The frame before the garbage is delivered; the garbage never becomes one."""
    found, kind = outcome([encode_whole(SAMPLE) + garbage])
    assert found == [SAMPLE]
    assert kind
    assert outcome([encode_whole(SAMPLE), *(bytes([b]) for b in garbage)]) == (found, kind)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"GET / HTTP/1.1\r\n", "http"),
        (b"POST /x", "http"),
        (b"TRACE /", "http"),
        (b"\x16\x03\x01\x02\x00", "tls"),
        (b"\x00", "not-ours"),
        (b"TWL2", "not-ours"),
        (b"TWL1\x02", "version"),
        (b"TWL1\x00", "version"),
    ],
)
def test_foreign_protocols_are_told_apart_by_their_first_bytes(data: bytes, kind: str) -> None:
    """What is counted does not depend on how many bytes came at once, nor waits for a header."""
    assert outcome([data]) == ([], kind)
    assert outcome([bytes([b]) for b in data]) == ([], kind)


def head(kind: int = 33, fields: int = 0, payload: int = 0, fields_crc: int = 0) -> bytes:
    first = wire.HEADER.pack(b"TWL1", 1, kind, 0, fields, payload, 0, 0, 0, fields_crc, 0)
    return first + struct.pack(">I", crc32c(first))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (head(fields=wire.FIELDS_MAX + 1), "oversized"),
        (head(payload=wire.PAYLOAD_MAX + 1), "oversized"),
        (head(kind=0), "type"),
        (head(kind=9), "type"),
        (head(kind=200), "type"),
        (head(fields=0), "fields"),
    ],
)
def test_limits_and_types_are_checked_at_the_header(data: bytes, kind: str) -> None:
    """A header that asks for too much is refused before anything is allocated for it."""
    reader = FrameReader()
    reader.feed(data)
    assert reader.memory <= wire.STAGE_SIZE
    with pytest.raises(FrameError) as caught:
        reader.next()
    assert caught.value.kind == kind


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "fields",
    [
        b"\xc1",
        msgpack.packb([1]),
        msgpack.packb({1: 2}),
        msgpack.packb({b"a": 2}),
        msgpack.packb({"a": {1.5: 2}}),
        b"\x81\xa1a\x81\x90\x01",
        b"\x81\xa1a\xc7\x00\x05",
        msgpack.packb({"a": msgpack.ExtType(5, b"abc")}),
        msgpack.packb({"a": msgpack.Timestamp(1)}),
        msgpack.packb({"a": 1}) + b"\x00",
        msgpack.packb({"a": deep(wire.DEPTH_MAX + 1)}),
        b"\x81\xa1a" + b"\x91" * 2000 + b"\xc0",
        msgpack.packb({"a": [0] * (wire.ITEMS_MAX + 1)}),
        b"\x81\xa1a\xdd\xff\xff\xff\xff",
        b"\x81\xa1a\xdb\xff\xff\xff\xff",
        b"\x81\xa1a\xa2\xff\xfe",
    ],
)
def test_fields_of_another_shape_are_refused(fields: bytes) -> None:
    """Proven bytes may still be no map of ours: keys, nesting, extensions, lengths."""
    assert outcome([head(fields=len(fields), fields_crc=crc32c(fields)) + fields]) == ([], "fields")


def test_fields_up_to_the_limits_pass() -> None:
    """The limits themselves are allowed, and maps inside may count by number."""
    frame = Frame(Type.OFFSETS, fields={"queues": {0: [1, 2]}, "a": deep(wire.DEPTH_MAX)})
    assert outcome([encode_whole(frame)]) == ([frame], "")


def test_a_payload_is_received_where_it_stays() -> None:
    """The memory that ``buffer`` shows is the payload's own: nothing is copied afterwards."""
    frame = Frame(Type.APPEND, payload=bytes(range(256)) * 1000)
    stream, reader = memoryview(encode_whole(frame)), FrameReader()
    sizes: list[int] = []
    while stream:
        with reader.buffer() as room:
            count = min(len(room), len(stream))
            room[:count] = stream[:count]
        sizes.append(count)
        reader.received(count)
        stream = stream[count:]
    got = reader.next()
    assert got is not None
    assert got.payload == frame.payload
    assert isinstance(got.payload, memoryview)
    assert len(sizes) == 2
    assert reader.memory == wire.STAGE_SIZE


def test_memory_follows_what_has_arrived() -> None:
    """A peer that announces 8 MiB and sends little makes us hold little."""
    stream = encode_whole(Frame(Type.APPEND, payload=bytes(wire.PAYLOAD_MAX)))
    reader, sent = FrameReader(), 0
    while sent < len(stream):
        step = 1 << 14
        reader.feed(stream[sent : sent + step])
        sent += step
        assert reader.memory <= 4 * sent + (1 << 20)
    frame = reader.next()
    assert frame is not None
    assert len(frame.payload) == wire.PAYLOAD_MAX
    wide = encode_whole(Frame(Type.METADATA, fields={"x": bytes(900_000)}))
    reader.feed(wide[:5000])
    assert reader.memory <= 20_000
    reader.feed(wide[5000:])
    assert reader.next() is not None
    reader.feed(encode_whole(SAMPLE))
    assert reader.next() == SAMPLE
    assert reader.memory <= wire.STAGE_MAX


def test_many_small_frames_widen_the_room_and_silence_narrows_it() -> None:
    """Bursts are taken with fewer receives; an idle connection costs one stage."""
    reader, burst = FrameReader(), encode_whole(SAMPLE) * 100
    reader.feed(burst)
    assert reader.memory == wire.STAGE_MAX
    reader.feed(encode_whole(SAMPLE))
    assert len(drain(reader, [])) == 101
    assert reader.memory == wire.STAGE_SIZE


@pytest.mark.parametrize("piece", [1, 100, 4096, 1 << 20])
def test_a_payload_can_be_placed_elsewhere(piece: int) -> None:
    """``place`` is asked once, after header and fields are proven, and its memory is filled."""
    target, asked = bytearray(6000), list[tuple[Frame, int]]()

    def place(frame: Frame, length: int) -> memoryview | None:
        asked.append((frame, length))
        return memoryview(target)[1000 : 1000 + length]

    payload = bytes(range(250)) * 20
    stream = encode_whole(Frame(Type.HA_APPEND, fields={"offset": 3}, payload=payload))
    stream += encode_whole(SAMPLE)
    reader = FrameReader(place=lambda f, n: place(f, n) if f.type == Type.HA_APPEND else None)
    for at in range(0, len(stream), piece):
        reader.feed(stream[at : at + piece])
    first, second = reader.next(), reader.next()
    assert first is not None
    assert second == SAMPLE
    assert [(f.fields, n) for f, n in asked] == [({"offset": 3}, 5000)]
    assert target == bytes(1000) + payload
    assert first.payload == payload


def test_a_covered_payload_is_not_checked_again() -> None:
    """With flag 4 the batch CRCs in the fields answer for the payload."""
    stream = bytearray(encode_whole(Frame(Type.HA_APPEND, wire.BATCH_CRC, payload=b"abc")))
    stream[-1] ^= 1
    assert outcome([bytes(stream)])[1] == ""


def test_what_is_too_large_is_not_sent() -> None:
    """`encode` refuses what every reader would refuse."""
    for frame in (
        Frame(Type.APPEND, payload=bytes(wire.PAYLOAD_MAX + 1)),
        Frame(Type.APPEND, fields={"x": bytes(wire.FIELDS_MAX)}),
    ):
        with pytest.raises(FrameError) as caught:
            wire.encode(frame)
        assert caught.value.kind == "oversized"


def test_encode_leaves_the_payload_alone() -> None:
    """The payload travels as the very object that was given."""
    payload = memoryview(bytearray(b"abc"))
    assert wire.encode(Frame(Type.APPEND, payload=payload))[1] is payload


def test_a_payload_in_pieces_is_the_payload_in_one() -> None:
    """A gathered frame has the bytes of the same frame with its payload joined."""
    pieces: list[memoryview | bytes] = [b"one", memoryview(b"two"), b""]
    frame = Frame(Type.READ, wire.ANSWER, request=3)
    head = wire.encode_gather(frame, pieces)
    assert wire.encode_gather(frame, pieces, wire.crc32c(b"onetwo")) == head
    frame.payload = b"onetwo"
    assert head + b"onetwo" == encode_whole(frame)


def test_errors_travel_between_processes() -> None:
    """A frame error is pickled with its kind; its text says the rest."""
    error = pickle.loads(pickle.dumps(FrameError("type", "frame type 9 is not known", type=9)))
    assert (error.kind, error.text, error.code) == (
        "type",
        "frame type 9 is not known",
        "frame-type",
    )


def test_after_an_error_nothing_is_taken() -> None:
    """Bytes behind an error change nothing; the end of the stream repeats the error."""
    reader = FrameReader()
    reader.feed(b"GET / HTTP/1.1")
    reader.received(0)
    reader.feed(encode_whole(SAMPLE))
    for again in (reader.next, reader.finish):
        with pytest.raises(FrameError, match="HTTP"):
            again()
    assert reader.memory == 0


def test_maps_in_lists_and_in_maps() -> None:
    """Maps inside a list are looked at as well."""
    fields = msgpack.packb({"a": [{"b": {1.5: 2}}]})
    assert outcome([head(fields=len(fields), fields_crc=crc32c(fields)) + fields]) == ([], "fields")
    nested: object = 1
    for _ in range(wire.DEPTH_MAX + 1):
        nested = {"a": nested}
    fields = msgpack.packb({"a": nested})
    assert outcome([head(fields=len(fields), fields_crc=crc32c(fields)) + fields]) == ([], "fields")

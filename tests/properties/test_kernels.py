"""The compiled kernels and their plain twins give the same answers, whatever the bytes.

Input is made of whole records and then damaged: cut, bit-flipped, with lengths that lie, with
neighbours on both sides that would change the answer if a kernel looked at them.
"""

from __future__ import annotations

import struct
import zlib
from types import ModuleType
from typing import Any

import crc32c as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stores.records.drawn import (
    COMPILED,
    I32,
    I64,
    NAMES,
    PROPERTIES,
    damaged,
)
from twinlog import kernels
from twinlog.errors import RecordRefused
from twinlog.format import record
from twinlog.kernels import codes, plain


@given(damaged(), st.integers(0, 2**40), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_twins_walk_alike(
    case: tuple[bytes, int, int], log_offset: int, check_crc: bool, check_offsets: bool
) -> None:
    """Every scan of both twins agrees, and depends on nothing outside its range."""
    data, start, end = case
    alone = data[start:end]
    for name, arguments, options in [
        ("walk", (), {"check_crc": check_crc}),
        ("verify_records", (log_offset,), {"check_offsets": check_offsets}),
        ("scan_queues", (log_offset,), {}),
        ("gather_queues", (log_offset,), {}),
        ("gather_units", (log_offset, frozenset([b"t", b"x" * 127])), {}),
        ("scan_keys", (log_offset,), {}),
        ("store_timestamp_last", (), {}),
        ("bodies_digest", (), {}),
        ("find_properties", ((b"KEYS", b"TAGS"),), {}),
    ]:
        expected = getattr(plain, name)(data, start, end, *arguments, **options)
        assert getattr(COMPILED, name)(data, start, end, *arguments, **options) == expected, name
        for kernel in (plain, COMPILED):
            got = getattr(kernel, name)(memoryview(alone), 0, len(alone), *arguments, **options)
            if name == "find_properties":
                got = [(at + start, which, value) for at, which, value in got]
            if name == "walk":
                last = got[4] + start if got[4] >= 0 else -1
                got = (got[0], got[1] + start, *got[2:4], last)
            assert got == expected, name


@given(damaged(), st.binary(max_size=40), st.booleans())
@settings(max_examples=300, deadline=None)
def test_twins_split_alike(case: tuple[bytes, int, int], text: bytes, check_crc: bool) -> None:
    """The fields of a record, whatever follows it; properties that are not UTF-8."""
    data, start, end = case
    expected = plain.split_record(data[start:end], 0, check_crc=check_crc)
    assert COMPILED.split_record(data[start:end], 0, check_crc=check_crc) == expected
    assert plain.split_record(data, start, check_crc=check_crc) == COMPILED.split_record(
        memoryview(data), start, check_crc=check_crc
    )
    tricky = text.translate(bytes(b % 4 if b < 128 else b for b in range(256)))
    assert plain.split_properties(tricky) == COMPILED.split_properties(memoryview(tricky))
    decoded = tricky.decode("utf-8", "replace").split("\x02")
    pairs = [item.partition("\x01") for item in decoded]
    assert plain.split_properties(tricky) == {k: v for k, _, v in pairs if k and v}


@given(
    damaged(),
    st.sampled_from(["t", "flights", "x" * 127]),
    st.integers(0, 3),
    st.integers(0, 4),
    st.sampled_from([4, 6]),
)
@settings(max_examples=300, deadline=None)
def test_twins_check_alike(
    case: tuple[bytes, int, int], topic: str, queue: int, count: int, family: int
) -> None:
    """Both refuse the same record of a section for the same reason; patching agrees too."""
    data, start, end = case
    arguments = (data, start, end - start, count, topic.encode(), queue)
    for inner in (False, True):
        options: dict[str, Any] = {"body_max": 250, "family": family, "inner": inner}
        expected = plain.check_section(*arguments, **options)
        assert COMPILED.check_section(*arguments, **options) == expected
    outcomes = []
    for kernel in (plain, COMPILED):
        copy = bytearray(data)
        try:
            done: object = kernel.patch_section(
                copy,
                start,
                end - start,
                log_offset=1 << 40,
                queue_offset=77,
                store_timestamp=1795245424005,
                store_host=bytes(range(8 if family == 4 else 20)),
            )
        except ValueError as error:
            done = str(error)
        outcomes.append((done, bytes(copy)))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1][:start] == data[:start]
    assert outcomes[0][1][end:] == data[end:]


@given(
    NAMES,
    st.sampled_from(["127.0.0.1", "::1"]),
    st.sampled_from([4, 6]),
    st.lists(st.tuples(st.binary(max_size=5000), PROPERTIES, I32, st.sampled_from([0, 1, 8]), I64)),
)
@settings(max_examples=100, deadline=None)
def test_encoders_write_the_same(
    topic: str,
    host: str,
    family: int,
    items: list[tuple[bytes, dict[str, str], int, int, int]],
) -> None:
    """Both encoders write the same bytes, and the checker finds nothing wrong with them."""
    name = topic.encode()
    written = []
    for kernel in (plain, COMPILED):
        encoder = kernel.SectionEncoder(_head(topic, host, family), name)
        for body, properties, flag, sys_flag, born in items:
            text = record.encode_properties(
                {k: v for k, v in properties.items() if v and k not in ("__CRC32#", "INNER_NUM")}
            )
            before = encoder.size
            size = encoder.add(
                memoryview(body) if flag & 1 else body,
                properties=text,
                flag=flag,
                sys_flag=sys_flag,
                born_timestamp=born,
            )
            assert encoder.size == before + size
        assert encoder.count == len(items)
        written.append(bytes(encoder.take()))
        assert (encoder.count, encoder.size, encoder.take()) == (0, 0, bytearray())
    assert written[0] == written[1]
    arguments = (written[0], 0, len(written[0]), len(items), name, 3)
    checked = COMPILED.check_section(*arguments, body_max=5000, family=family)
    assert checked is None or checked[1] == codes.LIGHT
    found = [record.decode(written[0], at) for at in _starts(written[0])]
    assert [(r.body, r.flag, r.born_timestamp) for r in found] == [
        (body, flag, born) for body, _, flag, _, born in items
    ]


def _head(topic: str, host: str, family: int) -> bytes:
    encoder = record.RecordEncoder(topic, 3, family=family, born_host=(host, 9))
    encoder.add(b"")
    whole = encoder.take()
    width = 1 if len(topic.encode()) <= 127 else 2
    return bytes(whole[: len(whole) - 2 - width - len(topic.encode())])


def _starts(data: bytes) -> list[int]:
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        at += int.from_bytes(data[at : at + 4], "big")
    return starts


@given(st.binary(max_size=2000), st.integers(0, 2**32 - 1), st.integers(0, 300))
@settings(max_examples=200, deadline=None)
def test_both_crcs_at_every_level(data: bytes, value: int, cut: int) -> None:
    """Tables, narrow and wide folding give what zlib and crc32c give, also in two steps."""
    assert plain.crc32(data, value) == zlib.crc32(data, value)
    assert plain.crc32c(data, value) == reference.crc32c(data, value)
    if COMPILED is plain:
        return
    try:
        for level in range(4):
            COMPILED.crc_level(level)
            assert COMPILED.crc32(data, value) == zlib.crc32(data, value)
            assert COMPILED.crc32c(data, value) == reference.crc32c(data, value)
            two = COMPILED.crc32c(data[cut:], COMPILED.crc32c(data[:cut]))
            assert two == reference.crc32c(data)
    finally:
        COMPILED.crc_level(3)


@pytest.mark.parametrize("length", [1 << 16, (1 << 20) + 5])
def test_long_crcs(length: int) -> None:
    """Long inputs release the GIL and still agree."""
    data = bytes(range(256)) * (length // 256 + 1)
    view = memoryview(data)[3 : 3 + length]
    assert COMPILED.crc32(view) == zlib.crc32(view)
    assert COMPILED.crc32c(view) == reference.crc32c(view)


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        (b"", True),
        (b"a\x01b\x02", True),
        (b"a\x01b", True),
        (b"a\x01\x02", True),
        (b"\xc2\x80\x01\xe0\xa0\x80\xed\x9f\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\x02", True),
        (b"\x01b\x02", False),
        (b"ab\x02", False),
        (b"\x02", False),
        (b"a\x01b\x02\x02", False),
        (b"__CRC32#\x011234567890\x02", False),
        (b"a\x01\xed\xa0\x80\x02", False),
        (b"a\x01\xc1\x80\x02", False),
        (b"a\x01\xe0\x9f\x80\x02", False),
        (b"a\x01\xf0\x8f\x80\x80\x02", False),
        (b"a\x01\xf4\x90\x80\x80\x02", False),
        (b"a\x01\xf5\x80\x80\x80\x02", False),
        (b"a\x01\xe2\x82", False),
        (b"a\x01\xe2\x82\x02", False),
        (b"a\x01\x80\x02", False),
    ],
)
@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
def test_which_properties_a_client_may_send(kernel: ModuleType, text: bytes, fine: bool) -> None:
    """UTF-8 as Python takes it, entries with a name and a separator, and no CRC of their own."""
    data = record.encode("t", 0, b"x", properties=text)
    found = kernel.check_section(data, 0, len(data), 1, b"t", 0, body_max=1, family=4)
    assert found == (None if fine else (0, codes.PROPERTIES))


@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
def test_v2_topic_length_is_signed(kernel: ModuleType) -> None:
    """A negative one adds up to no record."""
    data = bytearray(record.encode("y" * 128, 0, b""))
    assert kernel.verify_records(data, 0, len(data), 0, check_offsets=False)[2] == 0
    data[88] = 0xFF
    assert kernel.verify_records(data, 0, len(data), 0, check_offsets=False)[2] != 0


@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
def test_keys_end_before_a_record_that_is_none(kernel: ModuleType) -> None:
    """As queues do; what comes behind it is not looked for."""
    one = record.encode("t", 0, b"x", properties=b"KEYS\x01k\x02")
    assert len(kernel.scan_keys(one + one, 0, 2 * len(one), 0)) == 40
    assert kernel.scan_keys(one + bytes(9) + one, 0, 2 * len(one) + 9, 0) == kernel.scan_keys(
        one, 0, len(one), 0
    )


@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
def test_v1_topic_length_is_signed(kernel: ModuleType) -> None:
    """RocketMQ cannot read a V1 record with a topic above 127 bytes, so it is none."""
    data = bytearray(record.encode("y" * 128, 0, b""))
    struct.pack_into(">i", data, 4, plain.MAGIC_V1)
    del data[88]
    struct.pack_into(">i", data, 0, len(data))
    assert data[88] == 128
    assert kernel.walk(data, 0, len(data))[2] == codes.SIZE


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "u"}, codes.TOPIC),
        ({"queue": 1}, codes.QUEUE),
        ({"body": b"too long"}, codes.BODY_SIZE),
        ({"store_host": ("::1", 1)}, codes.HOST),
        ({"sys_flag": 4}, codes.SYS_FLAG),
        ({"sys_flag": 12}, codes.SYS_FLAG),
        ({"sys_flag": 0x80}, codes.SYS_FLAG),
        ({"sys_flag": 0x400}, codes.SYS_FLAG),
    ],
)
@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
def test_each_reason_to_refuse(kernel: ModuleType, change: dict[str, Any], code: int) -> None:
    """The second record of a section breaks one rule; its number and that rule come back."""
    good: dict[str, Any] = {"topic": "t", "queue": 0, "body": b"abc"}
    data = record.encode(**good) + record.encode(**(good | change))
    found = kernel.check_section(data, 0, len(data), 2, b"t", 0, body_max=3, family=4)
    assert found == (1, code)


@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
def test_counts_and_crcs_of_a_section(kernel: ModuleType) -> None:
    """A wrong count names what was found; a flipped body bit is found, unless told not to look."""
    data = bytearray(record.encode("t", 0, b"abc") * 2)
    arguments: tuple[Any, ...] = (data, 0, len(data))
    options: dict[str, Any] = {"body_max": 3, "family": 4}
    assert kernel.check_section(*arguments, 2, b"t", 0, **options) is None
    assert kernel.check_section(*arguments, 3, b"t", 0, **options) == (2, codes.COUNT)
    data[len(data) // 2 + 88] ^= 1
    assert kernel.check_section(*arguments, 2, b"t", 0, **options) == (1, codes.CRC)
    assert kernel.check_section(*arguments, 2, b"t", 0, check_crc=False, **options) is None


@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
def test_a_record_whose_parts_do_not_add_up(kernel: ModuleType) -> None:
    """Its size is that of its properties' length, or it is none; at most four names are sought."""
    data = bytearray(record.encode("t", 0, b"abc", properties=b"a\x01b\x02"))
    data[-5] += 1
    found = kernel.check_section(data, 0, len(data), 1, b"t", 0, body_max=3, family=4)
    assert found == (0, codes.SIZE)
    assert kernel.find_properties(data, 0, len(data), (b"a",)) == []
    with pytest.raises(ValueError, match="at most 4 names"):
        kernel.find_properties(data, 0, len(data), (b"a",) * 5)


@given(st.text(max_size=20))
def test_hashes_agree(text: str) -> None:
    """Java hashes UTF-16 units; both twins do, also for what is not UTF-8."""
    data = text.encode("utf-8", "replace")
    assert COMPILED.java_hash(data) == plain.java_hash(data)
    assert COMPILED.key_hash(data) == plain.key_hash(data)


@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
def test_known_values(kernel: ModuleType) -> None:
    """Published values: of the format's description, and the smallest integer."""
    assert kernel.crc32(b"123456789") == 0xCBF43926
    assert kernel.crc32c(b"123456789") == 0xE3069283
    assert kernel.java_hash(b"payment") == -786681338
    assert kernel.key_hash(b"polygenelubricants") == 0
    assert kernel.key_hash(b"TopicTest#order-1") == 1829193424
    assert kernel.tags_code(b"SCHEDULE_TOPIC_XXXX", b"DELAY\x013\x02", 1700000000123) == (
        1700000010123
    )
    assert kernel.tags_code(b"t", b"TAGS\x01TagA\x02TAGS\x01payment", 5) == -786681338
    assert kernel.java_hash(b"\xff\xfe") == kernel.java_hash("��".encode())


@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
def test_ranges_outside_the_buffer_are_refused(kernel: ModuleType) -> None:
    """A range that is not inside the buffer is a bug of the caller; nothing beyond it is read."""
    for start, end in [(-1, 5), (3, 2), (0, 11), (11, 11)]:
        with pytest.raises(ValueError, match="not in a buffer"):
            kernel.walk(b"0123456789", start, end)
        with pytest.raises(ValueError, match="not in a buffer"):
            kernel.check_section(
                b"0123456789", start, end - start, 1, b"t", 0, body_max=1, family=4
            )
    with pytest.raises(BufferError if kernel is COMPILED else TypeError):
        kernel.patch_section(
            record.encode("t", 0, b""),
            0,
            92,
            log_offset=0,
            queue_offset=0,
            store_timestamp=0,
            store_host=bytes(8),
        )


@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
def test_properties_too_long(kernel: ModuleType) -> None:
    """The properties length is a signed 16-bit field."""
    encoder = kernel.SectionEncoder(_head("t", "127.0.0.1", 4), b"t")
    encoder.add(b"", properties=bytes(32767))
    with pytest.raises(RecordRefused) as caught:
        encoder.add(b"", properties=bytes(32768))
    assert caught.value.record == 1
    assert encoder.count == 1


def test_each_refusal_has_a_name_and_a_sentence() -> None:
    """A code without a text would reach a user as a number."""
    numbers = {v for k, v in vars(codes).items() if k.isupper() and isinstance(v, int)} - {0}
    assert numbers == set(codes.REFUSALS) == set(codes.EXPLANATIONS)


def test_the_chosen_kernels_say_why() -> None:
    """`twinlog version` prints both."""
    assert kernels.which() in ("compiled", "python")
    assert kernels.why()


@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
def test_interleaved_queues_are_gathered(kernel: ModuleType) -> None:
    """However records interleave, each queue has one item; a jump of its offsets begins another."""
    order = [("a", 0, 5), ("b", 0, 0), ("a", 0, 6), ("a", 1, 0), ("b", 0, 1), ("b", 0, 3)]
    parts = [record.encode(t, q, b"x" * n, queue_offset=o) for n, (t, q, o) in enumerate(order)]
    starts = [sum(map(len, parts[:n])) for n in range(len(parts))]
    data = b"".join(parts)
    found = kernel.gather_queues(data, 0, len(data), 1000)
    assert [
        (topic, queue, first, [e[0] - 1000 for e in struct.iter_unpack(">QIq", entries)])
        for topic, queue, first, entries in found
    ] == [
        (b"a", 0, 5, [starts[0], starts[2]]),
        (b"b", 0, 0, [starts[1], starts[4]]),
        (b"a", 1, 0, [starts[3]]),
        (b"b", 0, 3, [starts[5]]),
    ]


@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
def test_a_digest_sees_bodies_and_not_stamps(kernel: ModuleType) -> None:
    """Another body anywhere in the section changes it; what the master fills in does not."""
    data = bytearray(record.encode("t", 0, b"one") + record.encode("t", 0, b"two"))
    before = kernel.bodies_digest(data, 0, len(data))
    host = bytes(range(8))
    kernel.patch_section(
        data, 0, len(data), log_offset=9, queue_offset=7, store_timestamp=5, store_host=host
    )
    assert kernel.bodies_digest(data, 0, len(data)) == before
    other = record.encode("t", 0, b"one") + record.encode("t", 0, b"TWO")
    assert kernel.bodies_digest(other, 0, len(other)) != before


@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
@pytest.mark.parametrize(
    ("topic", "host", "at", "value"),
    [
        ("t", "::1", 0, 91),
        ("t", "127.0.0.1", 84, 3),
        ("y" * 128, "127.0.0.1", 84, 129),
        ("y" * 128, "127.0.0.1", 84, 128),
        ("t", "127.0.0.1", 84, 1),
        ("t", "127.0.0.1", 84, 9999),
        ("t", "127.0.0.1", 36, 0x10),
    ],
)
def test_lengths_that_leave_no_room(
    kernel: ModuleType, topic: str, host: str, at: int, value: int
) -> None:
    """A size without room for the hosts, a body without room for topic or properties."""
    data = bytearray(record.encode(topic, 0, b"", born_host=(host, 1), store_host=(host, 1)))
    struct.pack_into(">i", data, at, value)
    data = data + bytes(64)
    size = struct.unpack_from(">i", data)[0]
    assert kernel.walk(data, 0, size, check_crc=False)[2] == codes.SIZE
    assert kernel.find_properties(data, 0, size, (b"x",)) == []
    assert kernel.find_property(data, 0, size, b"x") == []
    arguments = (data, 0, size, 1, topic.encode(), 0)
    found = kernel.check_section(*arguments, body_max=9999, family=6 if host == "::1" else 4)
    assert found is not None
    assert found[1] in (codes.SIZE, codes.BODY_SIZE)


class Endless(bytes):
    """Claims to be longer than a record can be."""

    def __len__(self) -> int:
        return 1 << 31


def test_a_record_cannot_exceed_its_size_field() -> None:
    """Only the plain twin can be told so without 2 GiB of memory."""
    encoder = plain.SectionEncoder(_head("t", "127.0.0.1", 4), b"t")
    with pytest.raises(RecordRefused):
        encoder.add(Endless())
    assert encoder.size == 0


@pytest.mark.parametrize("kernel", [plain, COMPILED], ids=["plain", "compiled"])
def test_blanks_and_offsets_of_a_verified_file(kernel: ModuleType) -> None:
    """A blank must reach exactly to the end; a record must name its own place."""
    whole = record.encode("t", 0, b"x", log_offset=4096)
    blank = struct.pack(">Ii", 20, plain.MAGIC_BLANK).ljust(20, b"\0")
    data = whole + blank
    end = len(data)
    assert kernel.verify_records(data, 0, end, 4096) == (1, -1, 0)
    assert kernel.verify_records(data, 0, end - 1, 4096) == (1, 4096 + len(whole), codes.BLANK)
    assert kernel.verify_records(data, 0, end, 4000) == (0, 4000, codes.OFFSET)
    assert kernel.verify_records(data, 0, end, 4000, check_offsets=False) == (1, -1, 0)
    assert kernel.store_timestamp_last(data, 0, len(whole)) == 0
    assert kernel.scan_queues(data, 0, end, 0)[0][3] == kernel.gather_queues(data, 0, end, 0)[0][3]


@given(
    damaged(),
    st.integers(0, 2**40),
    st.lists(st.sampled_from([b"TAGS", b"KEYS", b"a", b"\xc3\xa9", b"", b"TAG"]), max_size=3),
    st.lists(st.tuples(st.integers(-3, 700), st.integers(-1, 3)), max_size=3),
)
@settings(max_examples=300, deadline=None)
def test_twins_pick_alike(
    case: tuple[bytes, int, int],
    base: int,
    names: list[bytes],
    odd: list[tuple[int, int]],
) -> None:
    """A row for each entry, or the number of the first that leads to no record of its size."""
    data, start, end = case
    found, at = list[tuple[int, int]](), start
    while at < end:
        size = int.from_bytes(data[at : at + 4], "big")
        found.append((at, size))
        at += max(size, 91)
    for place, more in odd:
        at, size = found[place % len(found)] if found and place >= 0 else (abs(place), 100)
        found.insert(place % (len(found) + 1), (at, max(size + more, 0)))
    entries = b"".join(struct.pack(">QIq", base + at, size, 0) for at, size in found)
    wanted = [name for name in names if name]
    expected = plain.pick_properties(data, base, entries, wanted)
    assert COMPILED.pick_properties(memoryview(data), base, entries, wanted) == expected
    if isinstance(expected, list):
        assert len(expected) == len(found)
        for (at, _), row in zip(found, expected, strict=True):
            split = plain.split_record(data, at, check_crc=False)
            assert not isinstance(split, int)
            assert row == tuple(split[5].get(name.decode()) for name in wanted)

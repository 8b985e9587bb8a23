"""Records byte for byte: the worked examples of the format, and what reading makes of odd bytes."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.errors import CorruptionError, RecordRefused, UsageError
from twinlog.format import record

EXAMPLE = record.encode(
    "TopicTest",
    2,
    b"hello",
    queue_offset=7,
    log_offset=1000,
    properties={
        "UNIQ_KEY": "0A0000051A2B3C4D5E6F00112233000A",
        "TAGS": "TagA",
        "KEYS": "order-1 order-2",
    },
    born_timestamp=1700000000000,
    born_host=("10.0.0.5", 54321),
    store_timestamp=1700000000123,
    store_host=("192.168.1.10", 10911),
)
KNOWN = (
    "000000b2daa320a73610a6860000000200000000000000000000000700000000000003e800000000"
    "0000018bcfe568000a0000050000d4310000018bcfe5687bc0a8010a00002a9f0000000000000000"
    "000000000000000568656c6c6f09546f70696354657374"
    "0049554e49515f4b455901304130303030303531413242334334443545364630303131323233333030304102"
    "544147530154616741024b455953016f726465722d31206f726465722d3202"
)


def test_the_published_v1_record() -> None:
    """178 bytes, as RocketMQ's own encoder makes them."""
    assert EXAMPLE.hex() == KNOWN
    found = record.decode(EXAMPLE)
    assert (found.topic, found.queue, found.queue_offset, found.log_offset) == (
        "TopicTest",
        2,
        7,
        1000,
    )
    assert (found.body, found.body_crc, found.size) == (b"hello", 907060870, 178)
    assert (found.born_host, found.store_host) == ("10.0.0.5:54321", "192.168.1.10:10911")
    assert (found.key, found.keys) == ("order-1 order-2", ("order-1", "order-2"))
    assert (found.tag, found.tags_code) == ("TagA", 2598919)
    assert found.unique_id == "0A0000051A2B3C4D5E6F00112233000A"
    assert found.message_id == "C0A8010A00002A9F00000000000003E8"
    assert found.queued
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_published_v2_record() -> None:
    """A topic of 130 bytes makes a V2 record; an IPv6 store host 12 more bytes."""
    data = record.encode(
        "%RETRY%" + "g" * 60 + "_" + "t" * 62,
        0,
        b"x",
        log_offset=2000,
        properties={"TAGS": "TagA"},
        born_timestamp=1700000000000,
        born_host=("10.0.0.5", 54321),
        store_timestamp=1700000000123,
        store_host=("2001:db8::1", 10911),
    )
    assert len(data) == 245
    assert data[4:12].hex() == "daa320ab0cdc1683"
    assert data[36:40].hex() == "00000020"
    assert data[64:84].hex() == "20010db800000000000000000000000100002a9f"
    assert data[101:103].hex() == "0082"
    found = record.decode(data)
    assert found.store_host == "[2001:db8:0:0:0:0:0:1]:10911"
    assert found.message_id == "20010DB800000000000000000000000100002A9F00000000000007D0"
    assert (found.magic, len(found.topic)) == (record.MAGIC_V2, 130)


def test_the_smallest_record() -> None:
    """92 bytes, no properties, bodyCRC 0."""
    data = record.encode("t", 0, b"")
    found = record.decode(data)
    assert (len(data), found.body_crc, found.properties, found.tags_code) == (92, 0, {}, 0)
    assert (found.key, found.keys, found.tag, found.unique_id) == (None, (), None, None)


def test_decode_whole_with_trailing_bytes_and_at_an_offset() -> None:
    """What follows a record is none of its business."""
    want = record.decode(EXAMPLE)
    assert record.decode(EXAMPLE + b"\xff" * 9) == want
    assert record.decode(b"\xff" * 9 + EXAMPLE + EXAMPLE, 9) == want
    assert record.decode(memoryview(bytearray(EXAMPLE))) == want


@pytest.mark.parametrize("length", range(178))
def test_decode_of_a_record_cut_anywhere(length: int) -> None:
    """Every proper prefix is refused."""
    with pytest.raises(CorruptionError) as caught:
        record.decode(EXAMPLE[:length])
    assert caught.value.offset == 0


def test_decode_names_what_is_wrong() -> None:
    """A flipped body bit is a CRC, a flipped magic bit a magic; without the check it is read."""
    for at, what in [(88, "crc"), (5, "magic"), (3, "size"), (104, "size")]:
        data = bytearray(EXAMPLE)
        data[at] ^= 1
        with pytest.raises(CorruptionError) as caught:
            record.decode(data + bytes(99))
        assert caught.value.facts["what"] == what
    data = bytearray(EXAMPLE)
    data[88] ^= 1
    assert record.decode(data, check_crc=False).body == b"iello"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (b"", {}),
        (b"A\x011\x02B\x012\x02", {"A": "1", "B": "2"}),
        (b"A\x011\x02B\x012", {"A": "1", "B": "2"}),
        (b"A\x01\x02B\x012", {"B": "2"}),
        (b"\x01x\x02AB\x02A\x011\x02A\x012\x02", {"A": "2"}),
        (b"A\x01x\x01y\x02", {"A": "x\x01y"}),
        (b"A\x01\xff\x02", {"A": "�"}),
    ],
)
def test_properties_are_read_as_rocketmq_reads_them(text: bytes, want: dict[str, str]) -> None:
    """Trailing separator or not, empty values vanish, later ones win."""
    assert record.decode_properties(text) == want
    assert record.decode(record.encode("t", 0, b"", properties=text)).properties == want


@pytest.mark.parametrize(
    "properties", [{"": "x"}, {"x": ""}, {"a\x01": "x"}, {"a": "x\x02"}, {"a": "x" * 32767}]
)
def test_properties_that_would_not_come_back_are_refused(properties: dict[str, str]) -> None:
    """Writing is strict where reading is lenient."""
    with pytest.raises(UsageError):
        record.encode_properties(properties)


@given(
    st.dictionaries(
        st.text(
            st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1
        ),
        st.text(
            st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1
        ),
        max_size=6,
    )
)
def test_properties_come_back(properties: dict[str, str]) -> None:
    """What was written is read."""
    assert record.decode_properties(record.encode_properties(properties)) == properties


@pytest.mark.parametrize("topic", ["", "x" * 32768])
def test_topics_that_do_not_fit(topic: str) -> None:
    """A V2 topic length is a signed 16-bit number."""
    with pytest.raises(UsageError):
        record.RecordEncoder(topic, 0)
    with pytest.raises(UsageError):
        record.encode(topic, 0, b"")


def test_the_encoder_for_clients() -> None:
    """Offsets and store fields are zero and as long as the cluster's family says."""
    encoder = record.RecordEncoder("t", 5, family=6, born_host=("::1", 9))
    size = encoder.add(b"abc", flag=-3, sys_flag=1, born_timestamp=17, prepared=4)
    found = record.decode(encoder.take())
    assert found.size == size
    assert (found.queue, found.flag, found.sys_flag) == (5, -3, 0x31)
    assert (found.queue_offset, found.log_offset, found.store_timestamp) == (0, 0, 0)
    assert (found.born_timestamp, found.prepared_transaction_offset) == (17, 4)
    assert (found.born_host, found.store_host) == ("[0:0:0:0:0:0:0:1]:9", "[0:0:0:0:0:0:0:0]:0")
    with pytest.raises(RecordRefused):
        encoder.add(b"", properties=bytes(32768))


@pytest.mark.parametrize(("flag", "queued"), [(0, True), (4, False), (8, True), (12, False)])
def test_which_records_a_queue_names(flag: int, queued: bool) -> None:
    """Prepared and rolled back ones are in no queue."""
    assert record.decode(record.encode("t", 0, b"", sys_flag=flag)).queued is queued

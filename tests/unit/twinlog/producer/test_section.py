"""A section's bytes say what its request says, whatever was added and however it is renumbered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog import kernels
from twinlog.errors import OutcomeUnknown, RecordRefused
from twinlog.format.record import Record, RecordEncoder, decode
from twinlog.producer.new_message import PROPERTIES_MAX, NewMessage, light_text
from twinlog.producer.section import Section, State

names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


def records(data: bytes | bytearray) -> list[Record]:
    found: list[Record] = []
    at = 0
    while at < len(data):
        found.append(decode(data, at))
        at += found[-1].size
    return found


@given(
    st.integers(1, 2**63 - 1),
    st.integers(0, 99),
    st.integers(0, 2**60),
    st.lists(st.tuples(st.binary(max_size=50), st.none() | names), min_size=1, max_size=30),
    st.integers(0, 2**40),
)
def test_the_mark_says_what_the_row_says(
    producer: int, epoch: int, sequence: int, sent: list[tuple[bytes, str | None]], later: int
) -> None:
    """Only the first record carries it, the count is right, every CRC and size holds."""
    section = Section("orders", 3, producer=producer, epoch=epoch, sequence=sequence, due=0)
    encoder = RecordEncoder("orders", 3)
    for body, key in sent:
        text = NewMessage(key, None).text() if key else b""
        if section.count == 0:
            text += section.mark
            section.first(encoder.add(body, properties=text), len(text))
        else:
            encoder.add(body, properties=text)
        section.count += 1
    section.seal(encoder.take())
    for number in (sequence, later):
        if number != sequence:
            before = memoryview(section.data)  # still on its way out of an old connection
            section.renumber(epoch + 1, number)
            before.release()
        found = records(section.data)
        assert [(r.body, r.key) for r in found] == sent
        row = section.row()
        mark = f"{row[4]:016x}.{row[5]}.{row[6]}.{row[2]}"
        assert [r.properties.get("TL_SEQ") for r in found] == [mark] + [None] * (len(sent) - 1)
        assert row[3] == len(section.data)
        count = len(sent)
        assert None is kernels.check_section(
            section.data, 0, len(section.data), count, b"orders", 3, body_max=99, family=4
        )


@given(names, st.none() | names, st.none() | names, st.dictionaries(names, names, max_size=3))
def test_properties_are_read_back(
    key: str, tag: str | None, order_key: str | None, others: dict[str, str]
) -> None:
    """What goes in comes out under RocketMQ's names."""
    wanted = {"KEYS": key, "TAGS": tag, "__SHARDINGKEY": order_key, **others}
    if {"KEYS", "TAGS", "__SHARDINGKEY", "TL_SEQ"} & others.keys():
        return
    encoder = RecordEncoder("t", 0)
    encoder.add(b"", properties=NewMessage(key, tag, order_key, others).text())
    found = decode(encoder.take()).properties
    assert found == {name: value for name, value in wanted.items() if value is not None}


@pytest.mark.parametrize(
    ("key", "tag", "properties"),
    [
        ("", None, None),
        (None, "", None),
        ("a\x01b", None, None),
        ("a", "a\x02", None),
        ("a\x02TAGS\x01b", None, None),
        (None, None, {"KEYS": "x"}),
        (None, None, {"TL_SEQ": "x"}),
    ],
)
def test_what_cannot_be_stored_is_refused(
    key: str | None, tag: str | None, properties: dict[str, str] | None
) -> None:
    """Nothing that would be read back otherwise, and nobody else's TL_SEQ."""
    with pytest.raises(RecordRefused):
        NewMessage(key, tag, None, properties).text()
    assert PROPERTIES_MAX < 32767


def test_a_receipt_or_the_error() -> None:
    """A section that did not succeed gives its error, never a made-up place."""
    section = Section("orders", 3, producer=1, epoch=0, sequence=0, due=0)
    section.error, section.state = OutcomeUnknown("perhaps"), State.UNKNOWN
    with pytest.raises(OutcomeUnknown):
        section.receipt()
    section.error, section.state, section.queue_offset = None, State.STORED, 10
    section.log_offset = 999
    assert section.receipt(0).address == "orders/3@10"
    assert (section.receipt(2).queue_offset, section.receipt(2).log_offset) == (12, -1)
    section.queue_offset = -1
    assert section.receipt(2).queue_offset == -1


@pytest.mark.parametrize("name", ["orders", "%LMQ%a,b", "%LMQ%a\x02"])
def test_a_name_that_is_no_light_queue_is_refused(name: str) -> None:
    """Before it could be taken for two, or for the end of a property."""
    with pytest.raises(RecordRefused, match="is not a light queue"):
        light_text([name])

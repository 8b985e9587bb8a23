"""Messages of a batch topic on their way: encoded by a producer, checked, numbered, taken apart."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.producer_bench import Bench
from twinlog import kernels
from twinlog.format.inner_batches import NAMES_MAX, InnerEncoder, is_inner_batch
from twinlog.format.messages import Message, messages_of
from twinlog.format.record import RecordEncoder, decode
from twinlog.producer.new_message import NewMessage

BODY_MAX = 400


class Sent(NamedTuple):
    """One message as the caller gives it."""

    body: bytes
    key: str | None
    tag: str | None
    flags: int


SENT = st.builds(
    Sent,
    st.binary(max_size=150),
    st.sampled_from([None, "a", "a b", "é", "k" * 50]),
    st.sampled_from([None, None, "x", "y"]),
    st.sampled_from([0, 0, 0, 0, 2]),
)


def encode(messages: list[Sent], mark: bytes = b"", body_max: int = BODY_MAX) -> tuple[bytes, int]:
    """Return a section and how many records it has."""
    encoder = InnerEncoder(RecordEncoder("t", 1), body_max)
    for body, key, tag, flags in messages:
        text = NewMessage(key, tag, properties={"p": "1"}).text()
        encoder.add(body, text, sys_flag=flags, born_timestamp=9, key=key, tag=tag)
    data, records, size, text_size = encoder.take(mark)
    assert decode(data).size == size
    assert bytes(data[size - text_size : size]).endswith(mark)
    return bytes(data), records


def stored(data: bytes, records: int, first: int) -> list[Message]:
    """Store a section as a node does and read it."""
    options = {"body_max": BODY_MAX, "family": 4, "inner": True}
    assert kernels.check_section(data, 0, len(data), records, b"t", 1, **options) is None
    written = bytearray(data)
    count = kernels.patch_section(
        written, 0, len(data), log_offset=500, queue_offset=first, store_timestamp=77,
        store_host=bytes(8),
    )  # fmt: skip
    found = messages_of(written)
    assert len(found) == count
    return found


@given(st.lists(SENT, min_size=1, max_size=12), st.integers(0, 1 << 40))
@settings(max_examples=150, deadline=None)
def test_what_goes_in_comes_out(messages: list[Sent], first: int) -> None:
    """In order, numbered without a gap, each with its own key, tag and properties."""
    data, records = encode(messages, b"TL_SEQ\x01x\x02")
    found = stored(data, records, first)
    assert [(m.body, m.key, m.tag) for m in found] == [one[:3] for one in messages]
    assert [m.queue_offset for m in found] == list(range(first, first + len(messages)))
    assert {m.properties["p"] for m in found} == {"1"}
    assert {m.store_timestamp for m in found} == {77}
    assert all(m.record.queue_offset == m.queue_offset for m in found)
    at = 0
    while at < len(data):  # what a node filters by and the index knows is that of all inside
        record = decode(data, at)
        inside = messages_of(data[at : at + record.size])
        assert {m.tag for m in inside} == {record.tag}
        assert list(record.keys) == list(
            dict.fromkeys(key for m in inside for key in m.record.keys)
        )
        assert len(record.body) <= BODY_MAX
        assert is_inner_batch(record) == (len(inside) > 1)
        at += record.size


def test_a_batch_ends_where_its_numbers_do() -> None:
    """No more messages than a unit can count, no more keys than properties can hold."""
    many = [Sent(b"", None, None, 0)] * 40_000
    data, records = encode(many, body_max=1 << 30)
    assert records == 2
    assert decode(data).properties["INNER_NUM"] == "32767"
    keys = [Sent(b"", f"{n:0>999}", None, 0) for n in range(40)]
    data, records = encode(keys, body_max=1 << 30)
    assert records == 3
    assert len(decode(data).properties["KEYS"]) <= NAMES_MAX


def test_a_producer_counts_messages_and_numbers_records() -> None:
    """Receipts go by messages; the node is told of records, which its sequences count."""
    bench = Bench(batch_topic=True)
    sections = {bench.add(b"x", tag=tag, queue=0) for tag in "aabbb"}
    [section] = sections
    bench.close_all()
    request = bench.request()
    rows = request.fields["sections"]
    assert isinstance(rows, list)
    assert rows[0][2] == section.records == 2
    assert section.count == 5
    assert decode(bytes(request.pieces[0])).properties["TL_SEQ"].endswith(".0.2")
    bench.add(b"y", queue=0)
    bench.close_all()
    assert decode(bytes(bench.request().pieces[0])).properties["TL_SEQ"].endswith(".2.1")

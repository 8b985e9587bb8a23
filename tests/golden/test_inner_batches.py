"""Inner batches of RocketMQ's store, read message by message."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stores.golden import manifest, unpack
from twinlog.errors import CorruptionError
from twinlog.format.inner_batches import is_inner_batch, messages_in
from twinlog.format.record import Record, decode, encode, encode_properties
from twinlog.store.log import Run
from twinlog.store.reader import StoreReader


def records(store: StoreReader) -> list[Record]:
    """All records of a store."""
    return [
        r for piece in store.pieces() if isinstance(piece, Run) for r in store.decode_run(piece)
    ]


def test_every_message_of_a_batch_queue_has_its_offset(tmp_path: Path) -> None:
    """Units say how many messages a record holds; together they are the queue, without a gap."""
    expected = manifest("09-batch")
    queues = [queue for queue in expected["queues"] if queue["type"] == "BatchCQ"]
    assert queues
    with StoreReader(unpack("09-batch", tmp_path)) as store:
        by_offset = {record.log_offset: record for record in records(store)}
        inner = 0
        for queue in queues:
            offsets: list[int] = []
            for base, log_offset, _, _, size, *_ in queue["entries"]:
                found = messages_in(by_offset[log_offset])
                assert len(found) == size
                assert found[0].queue_offset == base
                offsets += [message.queue_offset for message in found]
                inner += len(found) if is_inner_batch(by_offset[log_offset]) else 0
                for message in found:
                    assert message.topic == queue["topic"]
                    assert not is_inner_batch(message)
            assert offsets == list(range(queue["min"], queue["max"]))
    assert inner > 20


def batch(items: list[tuple[bytes, bytes, int]]) -> bytes:
    """The body of an inner batch."""
    return b"".join(
        struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, flag, len(body))
        + body
        + struct.pack(">H", len(text))
        + text
        for body, text, flag in items
    )


texts = st.sampled_from([b"", encode_properties({"TAGS": "a"}), encode_properties({"é": "ü"})])


@given(
    st.lists(st.tuples(st.binary(max_size=20), texts, st.integers(-9, 9)), max_size=5),
    st.booleans(),
    st.integers(0, 200),
    st.integers(0, 255),
)
def test_what_was_put_in_comes_out(
    items: list[tuple[bytes, bytes, int]], packed: bool, at: int, flip: int
) -> None:
    """Compressed or not; a changed body is other messages or an error, never a crash."""
    body = batch(items)
    stored, flags = (zlib.compress(body), 0x301) if packed else (body, 0)
    whole = decode(encode("t", 1, stored, queue_offset=7, log_offset=99, sys_flag=0xC0 | flags))
    found = messages_in(whole)
    assert [(m.body, m.flag) for m in found] == [(body, flag) for body, _, flag in items]
    assert [m.queue_offset for m in found] == list(range(7, 7 + len(items)))
    assert {m.sys_flag for m in found} <= {0}
    if body and not packed:
        with pytest.raises(CorruptionError):
            messages_in(replace(whole, body=body[:-1]))
        changed = bytearray(body)
        changed[at % len(body)] = flip
        try:
            messages_in(replace(whole, body=bytes(changed)))
        except CorruptionError as error:
            caught = error
            assert caught.offset == 99

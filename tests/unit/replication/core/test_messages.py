"""Frames between nodes: what is sent arrives, and garbage is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core import messages
from replication.pacing import Window
from replication.settings import ReplicationSettings
from storage.errors import BadBatch
from twinlog.errors import ProtocolError
from twinlog.format.batch_index import BatchEntry
from twinlog.format.epoch_history import Epoch
from twinlog.wire import frames

ENTRY = BatchEntry(100, 50, 2, 3, 0xABCDEF, 1_700_000_000_000, 0, 0)

MESSAGES: list[messages.Message] = [
    messages.Hello(
        epoch=7,
        session=3,
        node="n2",
        store="store",
        start=0,
        end=500,
        confirm=300,
        border=200,
        epochs=(Epoch(1, 0), Epoch(7, 90)),
        register_id="r1",
        revision=9,
        tag=77,
        family=4,
        segment_size=1 << 20,
        least_version=1,
        version=1,
        features=0,
        quality="received",
    ),
    messages.HelloOk(7, 3, "n1", 480, 200, 5, 0, 900, 300, (Epoch(1, 0),), 1, 0),
    messages.HelloErr(7, 3, "FENCED", "no", None),
    messages.HelloErr(7, 3, "NOT_MASTER", "no", "n3"),
    messages.Ready(7, 3, 480),
    messages.Append(7, 3, 480, 7, 470, 480, 5, 9, 77),
    messages.Append(7, 3, 100, 3, 90, 150, 5, 9, 77, messages.pack_entries([ENTRY]), b"x" * 50),
    messages.Ack(7, 3, 500, 400, 300, 9, "disk full"),
    messages.Ping(7, 3, 1),
    messages.Pong(7, 3, 1),
    messages.Bye(7, 3, "role-changed", "why"),
    messages.Nack(7, 3, 100, 50, "crc"),
    messages.Seed(7, 3, "n1", 0, 4, b"seed"),
]


def over_the_wire(message: messages.Message) -> frames.Frame:
    """Encode, send and receive, byte by byte."""
    reader = frames.FrameReader()
    for byte in frames.encode_whole(messages.encode(message, 5)):
        reader.feed(bytes([byte]))
    frame = reader.next()
    assert frame is not None
    assert frame.names_crc == 5
    return frame


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_what_is_sent_arrives(message: messages.Message) -> None:
    """Header fields, fields and payload."""
    found = messages.decode(over_the_wire(message))
    if isinstance(found, (messages.Append, messages.Seed)):
        found = replace(found, payload=bytes(found.payload))
    assert found == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_missing_field_or_one_of_another_type_is_refused(message: messages.Message) -> None:
    """Every field is looked at; an unknown one is not."""
    frame = over_the_wire(message)
    messages.decode(replace(frame, fields={**frame.fields, "newer": [1]}))
    optional = {"leader", "newest", "seed_from", "flushed"}
    for name in frame.fields:
        odds: list[object] = [1.5, -1, {}]
        for odd in odds:
            with pytest.raises(ProtocolError):
                messages.decode(replace(frame, fields={**frame.fields, name: odd}))
        if name not in optional:
            rest = {other: value for other, value in frame.fields.items() if other != name}
            with pytest.raises(ProtocolError):
                messages.decode(replace(frame, fields=rest))


@pytest.mark.parametrize("kind", [frames.Type.APPEND, frames.Type.CO_CALL])
def test_a_type_that_is_not_between_nodes_is_refused(kind: frames.Type) -> None:
    """Clients and coordinators have ports of their own."""
    with pytest.raises(ProtocolError):
        messages.decode(frames.Frame(kind))


def test_an_answer_flag_between_nodes_is_refused() -> None:
    """Frames between nodes answer nothing."""
    frame = over_the_wire(messages.Ping(1, 1, 1))
    with pytest.raises(ProtocolError):
        messages.decode(replace(frame, flags=frames.ANSWER))


def test_batches_without_a_payload_are_refused_and_the_other_way_round() -> None:
    """Also batches whose bytes the header's CRC covers: then nobody checked the batch's."""
    frame = over_the_wire(MESSAGES[6])
    for odd in (
        replace(frame, payload=b""),
        replace(frame, fields={**frame.fields, "entries": b""}),
        replace(frame, flags=0),
    ):
        with pytest.raises(ProtocolError):
            messages.decode(odd)


def test_entries_travel_without_flushed() -> None:
    """Every other field is kept."""
    entries = [replace(ENTRY, flushed=9), replace(ENTRY, start=150, kind=1, length=1 << 27)]
    found = messages.unpack_entries(messages.pack_entries(entries))
    assert found == [replace(entry, flushed=0) for entry in entries]


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 35,
        messages.pack_entries([replace(ENTRY, length=0)]),
        messages.pack_entries([replace(ENTRY, length=5_000_000)]),
        messages.pack_entries([replace(ENTRY, start=1 << 63)]),
        bytes(36 * (messages.ENTRIES_MAX + 1)),
    ],
)
def test_odd_entries_are_refused(data: bytes) -> None:
    """Half an entry, a length that no batch has, too many."""
    with pytest.raises(ProtocolError):
        messages.unpack_entries(data)


@pytest.mark.parametrize(
    "epochs",
    [[[1, 0], [1, 5]], [[2, 9], [3, 5]], [[-1, 0]], [[1, 0], [0, 5]], [[1]], ["x"], [[1, -1]]],
)
def test_a_history_that_does_not_rise_is_refused(epochs: list[object]) -> None:
    """Epochs rise strictly, starts never fall."""
    frame = over_the_wire(MESSAGES[0])
    with pytest.raises(ProtocolError):
        messages.decode(replace(frame, fields={**frame.fields, "epochs": epochs}))


@given(
    st.sampled_from(sorted(frames.HA_TYPES)),
    st.dictionaries(
        st.sampled_from(["end", "epochs", "node", "entries", "revision", "code"]) | st.text(),
        st.none() | st.integers() | st.text() | st.binary() | st.lists(st.integers()),
    ),
    st.binary(max_size=40),
)
def test_garbage_is_refused(kind: frames.Type, fields: dict[str, object], payload: bytes) -> None:
    """With a ProtocolError and nothing else."""
    try:
        messages.decode(frames.Frame(kind, frames.BATCH_CRC, 1, 1, 0, fields, payload))
    except ProtocolError:
        return


def test_a_bad_batch_names_what_is_wrong() -> None:
    """For the log and for the master."""
    error = BadBatch(100, 50, "crc")
    assert (error.start, error.length, error.reason) == (100, 50, "crc")
    assert ReplicationSettings().ack == "received"
    assert Window(1, 1).open

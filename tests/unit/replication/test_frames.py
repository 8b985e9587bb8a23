"""Frames between nodes: what is sent arrives, and garbage is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication import frames
from storage import Epoch
from twinlog import wire
from twinlog.errors import ProtocolError
from twinlog.layout import BatchEntry

ENTRY = BatchEntry(100, 50, 2, 3, 0xABCDEF, 1_700_000_000_000, 0, 0)

MESSAGES: list[frames.Message] = [
    frames.Hello(
        epoch=7,
        session=3,
        node="n2",
        store="store",
        start=0,
        end=500,
        flushed=400,
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
    ),
    frames.HelloOk(7, 3, "n1", 480, 200, 5, 0, 900, 300, (Epoch(1, 0),), 1, 0),
    frames.HelloErr(7, 3, "FENCED", "no", None),
    frames.HelloErr(7, 3, "NOT_MASTER", "no", "n3"),
    frames.Ready(7, 3, 480),
    frames.Append(7, 3, 480, 7, 470, 480, 5, 9, 77),
    frames.Append(7, 3, 100, 3, 90, 150, 5, 9, 77, frames.pack_entries([ENTRY]), b"x" * 50),
    frames.Ack(7, 3, 500, 400, 300, 9, "disk full"),
    frames.Ping(7, 3, 1),
    frames.Pong(7, 3, 1),
    frames.Bye(7, 3, "role-changed", "why"),
    frames.Nack(7, 3, 100, 50, "crc"),
]


def over_the_wire(message: frames.Message) -> wire.Frame:
    """Encode, send and receive, byte by byte."""
    reader = wire.FrameReader()
    for byte in wire.encode_whole(frames.encode(message, 5)):
        reader.feed(bytes([byte]))
    frame = reader.next()
    assert frame is not None
    assert frame.names_crc == 5
    return frame


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_what_is_sent_arrives(message: frames.Message) -> None:
    """Header fields, fields and payload."""
    found = frames.decode(over_the_wire(message))
    if isinstance(found, frames.Append):
        found = replace(found, payload=bytes(found.payload))
    assert found == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_missing_field_or_one_of_another_type_is_refused(message: frames.Message) -> None:
    """Every field is looked at; an unknown one is not."""
    frame = over_the_wire(message)
    frames.decode(replace(frame, fields={**frame.fields, "newer": [1]}))
    optional = {"leader"} if isinstance(message, frames.HelloErr) else set[str]()
    for name in frame.fields:
        odds: list[object] = [1.5, -1, {}]
        for odd in odds:
            with pytest.raises(ProtocolError):
                frames.decode(replace(frame, fields={**frame.fields, name: odd}))
        if name not in optional:
            rest = {other: value for other, value in frame.fields.items() if other != name}
            with pytest.raises(ProtocolError):
                frames.decode(replace(frame, fields=rest))


@pytest.mark.parametrize("kind", [wire.Type.APPEND, wire.Type.CO_CALL])
def test_a_type_that_is_not_between_nodes_is_refused(kind: wire.Type) -> None:
    """Clients and coordinators have ports of their own."""
    with pytest.raises(ProtocolError):
        frames.decode(wire.Frame(kind))


def test_an_answer_flag_between_nodes_is_refused() -> None:
    """Frames between nodes answer nothing."""
    frame = over_the_wire(frames.Ping(1, 1, 1))
    with pytest.raises(ProtocolError):
        frames.decode(replace(frame, flags=wire.ANSWER))


def test_batches_without_a_payload_are_refused_and_the_other_way_round() -> None:
    """Also batches whose bytes the header's CRC covers: then nobody checked the batch's."""
    frame = over_the_wire(MESSAGES[6])
    for odd in (
        replace(frame, payload=b""),
        replace(frame, fields={**frame.fields, "entries": b""}),
        replace(frame, flags=0),
    ):
        with pytest.raises(ProtocolError):
            frames.decode(odd)


def test_entries_travel_without_flushed() -> None:
    """Every other field is kept."""
    entries = [replace(ENTRY, flushed=9), replace(ENTRY, start=150, kind=1, length=1 << 27)]
    found = frames.unpack_entries(frames.pack_entries(entries))
    assert found == [replace(entry, flushed=0) for entry in entries]


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 35,
        frames.pack_entries([replace(ENTRY, length=0)]),
        frames.pack_entries([replace(ENTRY, length=5_000_000)]),
        frames.pack_entries([replace(ENTRY, start=1 << 63)]),
        bytes(36 * (frames.ENTRIES_MAX + 1)),
    ],
)
def test_odd_entries_are_refused(data: bytes) -> None:
    """Half an entry, a length that no batch has, too many."""
    with pytest.raises(ProtocolError):
        frames.unpack_entries(data)


@pytest.mark.parametrize(
    "epochs", [[[1, 0], [1, 5]], [[2, 9], [3, 5]], [[0, 0]], [[1]], ["x"], [[1, -1]]]
)
def test_a_history_that_does_not_rise_is_refused(epochs: list[object]) -> None:
    """Epochs rise strictly, starts never fall."""
    frame = over_the_wire(MESSAGES[0])
    with pytest.raises(ProtocolError):
        frames.decode(replace(frame, fields={**frame.fields, "epochs": epochs}))


@given(
    st.sampled_from(sorted(wire.HA_TYPES)),
    st.dictionaries(
        st.sampled_from(["end", "epochs", "node", "entries", "revision", "code"]) | st.text(),
        st.none() | st.integers() | st.text() | st.binary() | st.lists(st.integers()),
    ),
    st.binary(max_size=40),
)
def test_garbage_is_refused(kind: wire.Type, fields: dict[str, object], payload: bytes) -> None:
    """With a ProtocolError and nothing else."""
    try:
        frames.decode(wire.Frame(kind, wire.BATCH_CRC, 1, 1, 0, fields, payload))
    except ProtocolError:
        return


@pytest.mark.parametrize("message", MESSAGES[5:8])
def test_the_short_way_takes_what_the_general_way_takes(
    message: frames.Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the two frames that each record costs."""
    frame = over_the_wire(message)
    found = frames.decode(frame)
    monkeypatch.setattr(frames, "_quick_ack", lambda frame: None)
    monkeypatch.setattr(frames, "_quick_append", lambda frame: None)
    assert frames.decode(frame) == found

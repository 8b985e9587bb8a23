"""Memory of a payload is used for the next one, and never while there is a reference to it."""

from __future__ import annotations

import pytest

from twinlog.wire.frames import Frame, FrameReader, Type, encode_whole

KEPT = 2 << 20


def answer(reader: FrameReader, fill: int, size: int) -> Frame:
    """A frame that arrives in pieces, as from a socket."""
    data = encode_whole(Frame(Type.READ, payload=bytes([fill]) * size))
    for at in range(0, len(data), 100_000):
        reader.feed(data[at : at + 100_000])
    found = reader.next()
    assert found is not None
    assert bytes(found.payload) == bytes([fill]) * size
    return found


def memory_of(frame: Frame) -> int:
    """What its payload lies in."""
    assert isinstance(frame.payload, memoryview)
    return id(frame.payload.obj)


@pytest.mark.parametrize("sizes", [(1 << 20, 1 << 20), (1 << 20, 600_000), (1 << 20, 1_100_000)])
def test_memory_is_used_again(sizes: tuple[int, int]) -> None:
    """Also for a payload that is a little larger."""
    reader = FrameReader(kept=KEPT)
    first = memory_of(answer(reader, 1, sizes[0]))
    assert memory_of(answer(reader, 2, sizes[1])) == first


def test_a_payload_that_is_kept_stays_as_it_is() -> None:
    """Whole or a part of it, and what lies in between is not touched."""
    reader = FrameReader(kept=KEPT)
    whole = answer(reader, 1, 1 << 20)
    part = memoryview(answer(reader, 2, 1 << 20).payload)[500_000:500_010]
    last = answer(reader, 3, 1 << 20)
    assert bytes(whole.payload) == b"\1" * (1 << 20)
    assert bytes(part) == b"\2" * 10
    assert len({memory_of(whole), id(part.obj), memory_of(last)}) == 3


def test_memory_is_used_again_while_the_last_payload_is_looked_at() -> None:
    """Two of them take turns, and no more are kept."""
    reader = FrameReader(kept=KEPT)
    used: set[int] = set()
    last = answer(reader, 1, 1 << 20)
    for fill in range(2, 9):
        last = answer(reader, fill, 1 << 20)
        used.add(memory_of(last))
        assert len(reader._spares) <= 2
    assert len(used) == 2


@pytest.mark.parametrize(("kept", "size"), [(0, 1 << 20), (KEPT, 3 << 20)])
def test_what_is_larger_than_the_limit_is_not_kept(kept: int, size: int) -> None:
    """A server keeps nothing: it has thousands of connections."""
    reader = FrameReader(kept=kept)
    answer(reader, 1, size)
    assert not reader._spares


def test_a_closed_reader_keeps_nothing() -> None:
    """Neither does one whose peer broke the rules."""
    reader = FrameReader(kept=KEPT)
    answer(reader, 1, 1 << 20)
    assert reader._spares
    reader.release()
    assert not reader._spares

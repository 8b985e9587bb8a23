"""Messages are cut alike by both twins, whatever the bytes, and as the decoder reads them."""

from __future__ import annotations

from types import ModuleType

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stores.records.drawn import COMPILED, damaged
from twinlog.format import record
from twinlog.kernels import plain


class Cut:
    """What a message is to the kernels."""

    queue_offset: int

    def __init__(self) -> None:
        raise AssertionError("kernels pass over the constructor")

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError("and over this")


def taken_apart(record: bytes) -> list[Cut]:
    """Two messages with offsets that lie about the record's own."""
    found: list[Cut] = []
    for number in (-1, 2):
        one = object.__new__(Cut)
        one.__dict__.update(queue_offset=number, record=record)
        found.append(one)
    return found


def cut(kernel: ModuleType, data: bytes, low: int, high: int) -> object:
    """What a twin finds, as plain values."""
    found = kernel.cut_messages(memoryview(data), Cut, taken_apart, low, high)
    return found if isinstance(found, tuple) else [one.__dict__ for one in found]


@given(damaged(), st.integers(-2, 6), st.integers(-2, 6))
@settings(max_examples=300, deadline=None)
def test_twins_cut_alike(case: tuple[bytes, int, int], low: int, high: int) -> None:
    """The same messages or the same refusal; damage anywhere refuses the whole answer."""
    data, start, end = case
    alone = data[start:end]
    expected = cut(plain, alone, low, high)
    assert cut(COMPILED, alone, low, high) == expected
    _, stop, code, _, _ = plain.walk(alone, 0, len(alone))
    if code:
        assert expected == (stop, code)
        return
    assert isinstance(expected, list)
    assert all(low <= one["queue_offset"] < high for one in expected)
    at = 0
    every = cut(COMPILED, alone, -(2**63), 2**63 - 1)
    assert isinstance(every, list)
    for one in every:
        if "record" in one:
            continue
        wanted = record.decode(alone, at)
        while wanted.sys_flag & 0x81:
            at += wanted.size
            wanted = record.decode(alone, at)
        assert (one["queue_offset"], one["body"]) == (wanted.queue_offset, wanted.body)
        assert len(one["_rest"]) + len(wanted.body) == wanted.size
        head = at + len(one["_rest"]) - (wanted.size - len(wanted.body))
        assert alone[head : head + 72] == one["_rest"][:72]
        at += wanted.size

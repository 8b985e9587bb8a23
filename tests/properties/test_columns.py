"""The two twins that turn records into columns give the same buffers, whatever the bytes."""

from __future__ import annotations

from array import array
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stores.records.drawn import COMPILED, damaged
from twinlog.format import record
from twinlog.kernels import codes, columns, fields

WANTED = st.sets(st.sampled_from(columns.NAMES))
PIECE = [b"\x01", b"\x02", b"KEYS", b"TAGS", b"UNIQ_KEY", b"a", b"\xff", b"\xc3", "é".encode()]
PIECES = st.lists(st.sampled_from(PIECE), max_size=24)


def starts_of(data: bytes) -> bytes:
    return bytes(columns.record_starts(data, 0, len(data))[0])


@given(damaged(), WANTED, st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_twins_decode_alike(
    case: tuple[bytes, int, int], wanted: set[str], check_crc: bool, placed: bool
) -> None:
    """Damaged or not: rows, code and every byte of every buffer."""
    data, start, end = case
    part = data[start:end]
    places = starts_of(part) + array("q", [len(part) // 2]).tobytes()
    options = {"log_offset": 1000 if placed else -1, "check_crc": check_crc}
    expected = columns.decode_columns(part, places, wanted, **options)
    assert COMPILED.decode_columns(part, places, wanted, **options) == expected
    assert columns.record_starts(*case) == COMPILED.record_starts(*case)


@given(st.lists(PIECES, min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_properties_are_read_as_the_record_reader_reads_them(texts: list[list[bytes]]) -> None:
    """Quirks included: absent separators, duplicates, empty values, bytes that are not UTF-8."""
    joined = [b"".join(text) for text in texts]
    data = b"".join(
        record.encode("t", 0, b"x" * i, properties=text) for i, text in enumerate(joined)
    )
    wanted = {"properties", "key", "tags", "unique_id", "body", "topic"}
    found = [kernel.decode_columns(data, starts_of(data), wanted) for kernel in (columns, COMPILED)]
    assert found[0] == found[1]
    rows, code, out = found[0]
    assert (rows, code) == (len(texts), codes.FINE)
    entries, names, values = out["properties"]
    offsets = array("i")
    offsets.frombytes(bytes(entries))
    keys, held = texts_of(names), texts_of(values)
    for i, text in enumerate(joined):
        row = slice(offsets[i], offsets[i + 1])
        pairs = list(zip(keys[row], held[row], strict=True))
        assert dict(pairs) == fields.split_properties(text)
        assert len(pairs) == len(dict(pairs)), "a map key stands once"
        assert texts_of(out["key"])[i] == fields.split_properties(text).get("KEYS")


def texts_of(column: columns.Text) -> list[str | None]:
    """The values of a text column."""
    valid, raw, values = column
    offsets = array("i")
    offsets.frombytes(bytes(raw))
    return [
        None
        if valid is not None and not valid[i >> 3] >> (i & 7) & 1
        else bytes(values[offsets[i] : offsets[i + 1]]).decode()
        for i in range(len(offsets) - 1)
    ]


@pytest.mark.parametrize("kernel", [columns, COMPILED])
@pytest.mark.parametrize("place", [-1, 500])
def test_a_start_outside_the_bytes_is_no_record(kernel: ModuleType, place: int) -> None:
    """What came before it counts."""
    data = record.encode("t", 0, b"x")
    places = array("q", [0, place]).tobytes()
    rows, code, _ = kernel.decode_columns(data, places, {"topic"})
    assert (rows, code) == (1, codes.SIZE)


def test_a_column_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that fit are given, and why there are no more."""
    monkeypatch.setattr(columns, "_COLUMN_BYTES_MAX", 25)
    data = b"".join(record.encode("t", 0, b"x" * 10) for _ in range(4))
    rows, code, _ = columns.decode_columns(data, starts_of(data), {"body"})
    assert (rows, code) == (2, codes.COUNT)

"""Idempotent sections in the log, found by their marks."""

from __future__ import annotations

import pytest

from storage.state.gathered import Gathered, idempotent_sections
from storage.state.sequences import marks_of, parse_sequence
from twinlog import kernels
from twinlog.format.record import RecordEncoder, encode_properties


@pytest.mark.parametrize(
    "value",
    [b"", b"ff.1.2.3", b"00000000000000ff.1.2", b"00000000000000zz.1.2.3", b"0" * 16 + b".1.2.3",
     b"00000000000000ff.1.x.3", b"00000000000000ff.1.2.0", b"00000000000000ff.-1.2.3"],
)  # fmt: skip
def test_other_texts_are_no_sequences(value: bytes) -> None:
    """A property that somebody else wrote says nothing."""
    assert parse_sequence(value) is None


def in_log(
    *sections: tuple[int, int, int],
) -> tuple[memoryview, Gathered]:
    """Records of queue 0 as they lie in the log: (records, sequence said, records said) each."""
    data, at = bytearray(), 0
    for count, sequence, said in sections:
        encoder = RecordEncoder("t", 0)
        for each in range(count):
            text = f"{9:016x}.0.{sequence}.{said}" if each == 0 else ""
            encoder.add(b"x", properties=encode_properties({"TL_SEQ": text} if text else {}),
                        born_timestamp=1)  # fmt: skip
        part = encoder.take()
        kernels.patch_section(part, 0, len(part), log_offset=1000 + len(data), queue_offset=at,
                              store_timestamp=5, store_host=bytes(8))  # fmt: skip
        data += part
        at += count
    view = memoryview(bytes(data))
    return view, Gathered(kernels.gather_queues(view, 0, len(view), 1000))


def sequences(view: memoryview, gathered: Gathered) -> list[int]:
    """Sequences of the idempotent sections that are found."""
    marks, _ = marks_of(view)
    return [one[4].sequence for one in idempotent_sections(view, 1000, gathered, marks)]


def test_a_section_in_the_log_is_what_its_property_says() -> None:
    """One that names more records than there are, or stands inside another one, is none."""
    assert sequences(*in_log((2, 0, 2), (1, 2, 1))) == [0, 2]
    assert sequences(*in_log((2, 0, 2), (1, 2, 5))) == [0]
    assert sequences(*in_log((1, 0, 2), (1, 1, 1), (1, 2, 1))) == [0, 2]
    view, gathered = in_log((1, 0, 1))
    assert list(idempotent_sections(view, 1000, gathered, [(0, b"no sequence")])) == []


def test_a_section_of_a_batch_queue_ends_with_its_units() -> None:
    """Records are counted, not messages; one that is not there, or not whole, is no section."""
    for sections, found in (
        (((2, 0, 2), (3, 2, 3)), [0, 2]),
        (((2, 0, 2), (3, 2, 4)), [0]),
        (((1, 0, 2), (1, 1, 1), (1, 2, 1)), [0, 2]),
    ):
        view, _ = in_log(*sections)
        units = kernels.gather_units(view, 0, len(view), 1000, {b"t"})
        others = [(b"u", *units[0][1:]), (b"t", 7, *units[0][2:])]
        assert sequences(view, Gathered((), [*others, *units])) == found
        assert sequences(view, Gathered((), others)) == []
    [(topic, queue, first, behind, whole)] = units
    late = [(topic, queue, first, behind, whole[46:])]
    assert sequences(view, Gathered((), late)) == [1, 2], "the first unit is of another stretch"
    marks = marks_of(view)[0]
    ends = [one[4].end for one in idempotent_sections(view, 1000, Gathered((), units), marks)]
    assert ends[-1] == 1000 + len(view)

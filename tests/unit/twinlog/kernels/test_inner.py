"""Inner batches case by case: what is refused, how they are numbered, which units they become.

Both twins; `tests.properties.test_kernels` compares them over what nobody thought of.
"""

from __future__ import annotations

import importlib
import struct
from types import ModuleType

import pytest

from tests.stores.records.inner import TWO, batch, item
from twinlog.format import record
from twinlog.kernels import codes, plain
from twinlog.kernels.inner import decimal

UNIT = struct.Struct(">qiqqqhii")


def twin() -> ModuleType:
    """The compiled twin; the plain one where nothing is built (CI builds it and insists)."""
    try:
        return importlib.import_module("twinlog.kernels._compiled")
    except ImportError:
        return plain


both = pytest.mark.parametrize("kernel", [plain, twin()], ids=["plain", "compiled"])


@both
@pytest.mark.parametrize(
    ("data", "fine"),
    [
        (batch(TWO, 2), True),
        (batch(b"x", None, None, flags=0), True),
        (batch(TWO, 1), False),
        (batch(TWO, 3), False),
        (batch(b"", 0), False),
        (batch(TWO, None), False),
        (batch(TWO, "two"), False),
        (batch(TWO, "2" * 20), False),
        (batch(TWO, 2, None), False),
        (batch(TWO, 2, "0" * 18), False),
        (batch(TWO, 2, "0" * 18 + "1"), False),
        (batch(TWO, 2, flags=0), False),
        (batch(TWO[:-1], 2), False),
        (batch(TWO + b"\0" * 21, 2), False),
        (batch(item(size=1), 1), False),
        (batch(item(size=-1), 1), False),
        (batch(item(length=2), 1), False),
        (batch(item(length=1 << 30), 1), False),
        (batch(struct.pack(">i12xi", 22, -1) + b"\0\0", 1), False),
        (batch(item(text=bytes(9))[:-9], 1), False),
        (batch(item(text=bytes(32768)), 1), False),
        (batch(item(text=bytes(32767)), 1), True),
    ],
)
def test_number_flags_and_messages_must_agree(kernel: ModuleType, data: bytes, fine: bool) -> None:
    """What does not is refused as an inner batch; and so is any where the topic has none."""
    options = {"body_max": 1 << 16, "family": 4}
    found = kernel.check_section(data, 0, len(data), 1, b"t", 0, inner=True, **options)
    assert found == (None if fine else (0, codes.INNER))
    if fine and data != batch(b"x", None, None, flags=0):
        found = kernel.check_section(data, 0, len(data), 1, b"t", 0, **options)
        assert found == (0, codes.SYS_FLAG)


def patched(kernel: ModuleType, data: bytes) -> tuple[int, record.Record]:
    """Number a section whose first queue offset is 7; return messages and its first record."""
    written = bytearray(data)
    held = kernel.patch_section(
        written, 0, len(data), log_offset=0, queue_offset=7, store_timestamp=1, store_host=bytes(8)
    )
    return held, record.decode(bytes(written))


@both
def test_the_offset_goes_where_its_room_is(kernel: ModuleType) -> None:
    """Into 19 digits, the last that are named; a batch without a number counts for one."""
    held, found = patched(kernel, batch(TWO, 2))
    assert (held, found.properties["INNER_BASE"]) == (2, f"{7:019d}")
    held, found = patched(kernel, batch(TWO, 2, "12"))
    assert (held, found.properties["INNER_BASE"]) == (2, "12"), "no room"
    held, found = patched(kernel, batch(TWO, 40_000))
    assert (held, found.properties["INNER_BASE"]) == (1, f"{7:019d}")
    held, found = patched(kernel, batch(TWO, None, None))
    assert (held, found.properties) == (1, {})


@both
def test_a_batch_that_does_not_hold_together_is_not_numbered(kernel: ModuleType) -> None:
    """The caller did not check it."""
    data = bytearray(batch(TWO, 2))
    at = data.index(b"INNER_NUM") - 2
    data[at : at + 2] = b"\x7f\xff"  # length of the properties
    with pytest.raises(ValueError, match="record 0 was not checked: size"):
        patched(kernel, bytes(data))


@both
def test_units_of_a_queue(kernel: ModuleType) -> None:
    """A simple record counts one; numbers that do not follow one another begin another item."""
    records = [
        batch(TWO, 2, 5),
        batch(b"x", None, None, flags=0),
        batch(TWO, 3, 7),
        batch(TWO, 2, "9" * 19),
        batch(TWO, 40_000, 10),
        record.encode("t", 1, b"other queue"),
        record.encode("u", 0, b"other topic"),
        record.encode("t", 0, b"prepared", sys_flag=4),
        record.encode("t", 0, b"", queue_offset=10),
    ]
    for i, offset in ((1, 7), (2, 8), (3, 11), (4, 12)):
        fixed = bytearray(records[i])
        fixed[20:28] = offset.to_bytes(8, "big")
        records[i] = bytes(fixed)
    records[2] = batch(TWO, 3, 8)
    data = b"".join(records)
    found = kernel.gather_units(data + b"end", 0, len(data), 100, {b"t"})
    held = [
        (topic, queue, first, behind, [unit[4:6] for unit in UNIT.iter_unpack(units)])
        for topic, queue, first, behind, units in found
    ]
    assert held == [
        (b"t", 0, 5, 13, [(5, 2), (7, 1), (8, 3), (11, 1), (12, 1)]),
        (b"t", 1, 0, 1, [(0, 1)]),
        (b"t", 0, 10, 11, [(10, 1)]),
    ]
    sizes = [unit[:2] for unit in UNIT.iter_unpack(found[0][4])]
    assert sizes[:2] == [(100, len(records[0])), (100 + len(records[0]), len(records[1]))]
    torn = data[: len(records[0]) + 50]
    assert kernel.gather_units(torn, 0, len(torn), 100, {b"t"})[0][3] == 7


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (None, -1),
        (b"", -1),
        (b"-1", -1),
        (b"007", 7),
        (b"9223372036854775807", 2**63 - 1),
        (b"9223372036854775808", -1),
        (b"0" * 20, -1),
    ],
)
def test_decimals(text: bytes | None, value: int) -> None:
    """Up to 19 digits below 2^63, with leading zeros; -1 for anything else."""
    assert decimal(text) == value

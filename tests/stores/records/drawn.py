"""Records, damage and frames that property tests draw."""

from __future__ import annotations

import importlib
import struct
from types import ModuleType

from hypothesis import strategies as st

from twinlog.format import record
from twinlog.kernels import plain
from twinlog.wire.frames import Frame, Type

NAMES = st.sampled_from(["t", "flights", "SCHEDULE_TOPIC_XXXX", "ж" * 40, "x" * 127, "y" * 128])


TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12)


PROPERTIES = st.dictionaries(
    st.sampled_from(
        [
            *("TAGS", "KEYS", "UNIQ_KEY", "DELAY", "a", "__CRC32#", "é", "INNER_MULTI_DISPATCH"),
            *("INNER_NUM", "INNER_BASE"),
        ]
    ),
    st.one_of(
        TEXT, st.sampled_from(["TagA", "3", "99", "k1 k2  k3 ", "payment", "0" * 19, "9" * 19, "1"])
    ),
    max_size=5,
)


ITEM = st.tuples(st.binary(max_size=9), st.sampled_from([b"", b"a\x01b\x02"])).map(
    lambda item: (
        struct.pack(">i12xi", 22 + len(item[0]) + len(item[1]), len(item[0]))
        + item[0]
        + len(item[1]).to_bytes(2, "big")
        + item[1]
    )
)


BODIES = st.one_of(st.binary(max_size=300), st.lists(ITEM, max_size=3).map(b"".join))


I64 = st.integers(-(2**63), 2**63 - 1)


I32 = st.integers(-(2**31), 2**31 - 1)


def twin() -> ModuleType:
    """The compiled twin; the plain one where nothing is built (CI builds it and insists)."""
    try:
        return importlib.import_module("twinlog.kernels._compiled")
    except ImportError:
        return plain


COMPILED = twin()


@st.composite
def records(draw: st.DrawFn) -> bytes:
    properties = {k: v for k, v in draw(PROPERTIES).items() if v}
    return record.encode(
        draw(NAMES),
        draw(st.integers(0, 3)),
        draw(BODIES),
        queue_offset=draw(st.integers(0, 5)),
        log_offset=draw(st.integers(0, 5000)),
        properties=record.encode_properties(properties),
        flag=draw(I32),
        sys_flag=draw(
            st.sampled_from([0, 0, 0, 1, 2, 4, 8, 12, 0x40, 0x80, 0xC0, 0xC0, 0x101, 0x400])
        ),
        born_host=(draw(st.sampled_from(["127.0.0.1", "::1"])), draw(st.integers(0, 65535))),
        store_host=(draw(st.sampled_from(["10.0.0.1", "::2"])), 10911),
        store_timestamp=draw(I64),
    )


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes, int, int]:
    """(buffer, start, end): some records, perhaps damaged, between neighbours."""
    data = bytearray(b"".join(draw(st.lists(records(), max_size=4))))
    for _ in range(draw(st.integers(0, 3))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["flip", "length", "cut", "blank", "zero"])):
            case "flip":
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "length":
                value = draw(st.one_of(I32, st.integers(-3, 400)))
                data[at : at + 4] = struct.pack(">i", value)[: len(data) - at]
            case "cut":
                del data[at:]
            case "blank":
                data += struct.pack(">Ii", draw(st.integers(0, 60)), plain.MAGIC_BLANK)
                data += bytes(draw(st.integers(0, 60)))
            case _:
                data[at:] = bytes(len(data) - at)
    before, after = draw(st.binary(max_size=9)), draw(records())
    return before + bytes(data) + after, len(before), len(before) + len(data)


u32 = st.integers(0, 2**32 - 1)


u64 = st.integers(0, 2**64 - 1)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


frames = st.builds(
    Frame,
    st.sampled_from(sorted(Type)).map(int),
    st.sampled_from([0, 1, 3, 4, 5]),
    u64,
    u64,
    u32,
    st.dictionaries(st.text(), values, max_size=4),
    st.binary(max_size=300),
)

"""Bodies go both ways: RocketMQ's clients read what ours packs, and ours what theirs packs."""

from __future__ import annotations

import pytest

from twinlog.format.compression import COMPRESSION_MASK, LEVELS, Compression, decompress

pytestmark = pytest.mark.interop

BODIES = [
    b"x" * 4096,
    b"".join(b"line %d of a body\n" % number for number in range(4000)),
    bytes(3_000_000),
]
FLAGS = {"lz4": 0x101, "zstd": 0x201, "zlib": 0x301}


def test_rocketmq_reads_what_we_pack(judge) -> None:
    """Every kind, its lowest, default and highest level."""
    rows, wanted = [], []
    for kind, levels in LEVELS.items():
        for level in sorted(set(levels)):
            for body in BODIES:
                packed, flags = Compression(kind, level).pack(body)
                assert flags == FLAGS[kind]
                rows.append([flags, 0, packed.hex()])
                wanted.append(body.hex())
    assert judge.ask("unpack", rows=rows)["bodies"] == wanted


def test_we_read_what_rocketmq_packs(judge) -> None:
    """At the levels its clients use; zstandard comes without its size in the frame."""
    rows = [
        [flags, level, body.hex()]
        for flags in FLAGS.values()
        for level in (1, 5, 9)
        for body in BODIES
    ]
    packed = judge.ask("pack", rows=rows)["bodies"]
    for (flags, _, body), found in zip(rows, packed, strict=True):
        assert decompress(bytes.fromhex(found), flags & COMPRESSION_MASK).hex() == body

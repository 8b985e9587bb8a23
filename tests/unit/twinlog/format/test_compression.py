"""Compressed bodies: what is packed comes back, what is cut or endless never does."""

from __future__ import annotations

import random
import sys
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.node import FakeCluster
from twinlog import AsyncClient, Client
from twinlog.errors import Corrupt, RecordRefused, UsageError
from twinlog.format import compression as module
from twinlog.format.compression import (
    COMPRESSION_MASK,
    FROM,
    LEVELS,
    Compression,
    decompress,
    parse_compression,
)

TEXT = b"".join(b"line %d of a body that repeats itself\n" % n for n in range(400))
KINDS = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}


@pytest.mark.parametrize("kind", KINDS)
def test_every_level_comes_back(kind: str) -> None:
    """With RocketMQ's bits; higher levels are taken up to the library's highest."""
    low, high, _ = LEVELS[kind]
    for level in {low, (low + high) // 2, high}:
        packed, flags = Compression(kind, level).pack(TEXT)
        assert flags == KINDS[kind]
        assert len(packed) < len(TEXT) / 3
        assert decompress(packed, flags & COMPRESSION_MASK) == TEXT


def test_lz4_blocks_stand_alone() -> None:
    """RocketMQ's reader knows no others."""
    packed, _ = Compression("lz4", 0).pack(TEXT * 20)
    assert not lz4.frame.get_frame_info(packed)["block_linked"]


def test_small_and_dense_bodies_stay_as_they_are() -> None:
    """Below 4 KiB, and where it would not become smaller."""
    zstd = Compression("zstd", 5)
    assert zstd.pack(bytes(FROM - 1)) == (bytes(FROM - 1), 0)
    assert zstd.pack(bytes(FROM))[1] == 0x201
    dense = random.Random(1).randbytes(9000)
    for kind in KINDS:
        assert Compression(kind, LEVELS[kind][2]).pack(dense) == (dense, 0)


def test_what_nobody_could_read_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body beyond the readers' limit is refused, however small it packs."""
    monkeypatch.setattr(module, "BODY_MAX", 9000)
    packing = Compression("zlib", 5)
    packed, flags = packing.pack(bytes(9000))
    assert decompress(packed, flags & COMPRESSION_MASK) == bytes(9000)
    with pytest.raises(RecordRefused, match="at most 9000"):
        packing.pack(bytes(9001))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, None),
        ("none", None),
        ("zlib", Compression("zlib", 5)),
        ("zlib:1", Compression("zlib", 1)),
        ("lz4", Compression("lz4", 0)),
        ("lz4:16", Compression("lz4", 16)),
        ("zstd:22", Compression("zstd", 22)),
    ],
)
def test_compressions_as_they_are_written(text: str | None, wanted: Compression | None) -> None:
    """A kind, perhaps a level."""
    assert parse_compression(text) == wanted


@pytest.mark.parametrize("text", ["", "gzip", "zlib:", "zlib:0", "zlib:10", "zstd:x", "lz4:17"])
def test_compressions_that_are_none(text: str) -> None:
    """What is wrong is named."""
    with pytest.raises(UsageError) as caught:
        parse_compression(text)
    assert caught.value.code == "compression"


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told when the producer is made, not with its first large body."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UsageError) as caught:
        parse_compression("zstd")
    assert "twinlog[compression]" in (caught.value.hint or "")


def frames() -> list[tuple[int, bytes]]:
    """Packed bodies of every kind: with and without their size and checksum in the frame."""
    stream = zstandard.ZstdCompressor(level=3, write_checksum=True).compressobj()
    streamed = stream.compress(TEXT) + stream.flush()
    assert zstandard.frame_content_size(streamed) == -1
    zeros = zstandard.ZstdCompressor(level=1).compress(bytes(300_000))
    return [
        (0, zlib.compress(TEXT)),
        (0x300, zlib.compress(TEXT)),
        (0x100, lz4.frame.compress(TEXT, content_checksum=True)),
        (0x200, zstandard.compress(TEXT)),
        (0x200, streamed),
        (0x200, zeros),
    ]


@pytest.mark.parametrize(("kind", "packed"), frames())
def test_a_cut_body_is_an_error(kind: int, packed: bytes) -> None:
    """At every place; a frame's beginning is never taken for the whole."""
    assert len(decompress(packed, kind)) > 10_000
    for end in {*range(20), *range(0, len(packed), 37), *range(len(packed) - 9, len(packed))}:
        with pytest.raises(Corrupt):
            decompress(packed[:end], kind)


@given(st.sampled_from([0, 0x100, 0x200, 0x300]), st.integers(0, 5), st.binary(max_size=60))
def test_any_bytes_are_a_body_or_corrupt(kind: int, which: int, noise: bytes) -> None:
    """Noise over a good frame: no other error, no crash."""
    packed = bytearray(frames()[which][1])
    packed[3 : 3 + len(noise)] = noise
    try:
        decompress(bytes(packed), kind)
    except Corrupt:
        return


def test_a_window_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that would have its reader keep more than the limit."""
    parameters = zstandard.ZstdCompressionParameters(window_log=24, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = stream.compress(TEXT) + stream.flush()
    assert decompress(packed, 0x200) == TEXT
    monkeypatch.setattr(module, "WINDOW_MAX", 1 << 20)
    with pytest.raises(Corrupt):
        decompress(packed, 0x200)


@pytest.mark.parametrize("kind", KINDS)
def test_a_producer_compresses_and_a_reader_does_not_notice(
    client: Client, cluster: FakeCluster, kind: str
) -> None:
    """Stored small, with its flags; read as it was sent; the receipts count as before."""
    client.send("orders", TEXT, queue=0, compress=kind)
    with client.producer("orders", compress=kind) as producer:
        producer.send(TEXT + b"2", queue=0, tag="x")
        producer.send(b"small", queue=0)
    client.send("orders", TEXT, queue=0)
    found = list(client.read("orders"))
    assert [message.body for message in found] == [TEXT, TEXT + b"2", b"small", TEXT]
    assert [m.record.sys_flag for m in found] == [KINDS[kind], KINDS[kind], 0, 0]
    assert found[1].tag == "x"
    assert len(found[0].record.body) < len(TEXT) / 3
    with pytest.raises(UsageError):
        client.producer("orders", compress="gzip")
    with pytest.raises(UsageError):
        client.send("orders", b"x", compress="zlib:99")


async def test_the_awaiting_producer_compresses(cluster: FakeCluster, client: Client) -> None:
    """Large bodies in a thread, in the order in which they were sent."""
    endpoints = [cluster.nodes["n1"].address]
    large = TEXT * 8
    async with AsyncClient(endpoints) as awaiting:
        await awaiting.send("orders", large, queue=1, compress="zlib")
        async with awaiting.producer("orders", compress="zstd") as producer:
            await producer.send(large + b"2", queue=1)
            await producer.send(TEXT, queue=1)
    assert [m.body for m in client.read("orders", queue=1)] == [large, large + b"2", TEXT]
    assert [m.record.sys_flag for m in client.read("orders", queue=1)] == [0x301, 0x201, 0x201]

"""Queue entries compared with records: both twins agree, and what they say is right.

What is right is told by `scan_queues`, which walks the log record by record: entries match when the
scan finds the same ones at those places.
"""

from __future__ import annotations

import importlib
import struct
from itertools import pairwise
from types import ModuleType

from hypothesis import given, settings
from hypothesis import strategies as st

from twinlog.format import record
from twinlog.kernels import plain


def twin() -> ModuleType:
    """The compiled twin; the plain one where nothing is built (CI builds it and insists)."""
    try:
        return importlib.import_module("twinlog.kernels._compiled")
    except ImportError:
        return plain


COMPILED = twin()
ENTRY = struct.Struct(">QIq")
BASE = 5000


def one(topic: str, queue: int, number: int, size: int, sys_flag: int) -> bytes:
    """A record; some topics have delays instead of tags."""
    properties = {"TAGS": f"t{number % 3}"} if number % 4 else {"DELAY": "3"}
    return record.encode(
        topic, queue, bytes([number % 251]) * size, queue_offset=number, log_offset=0,
        properties=record.encode_properties(properties), sys_flag=sys_flag, store_timestamp=7,
        born_host=("::1" if sys_flag & 0x10 else "127.0.0.1", 1), store_host=("127.0.0.1", 2),
    )  # fmt: skip


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, bytes, str, int]:
    """Some records of two queues, and entries for one of them; then topic and first number."""
    topic = draw(st.sampled_from(["t", "SCHEDULE_TOPIC_XXXX", "y" * 130]))
    first = draw(st.integers(0, 9))
    number, log, entries = first, b"", b""
    kinds = st.sampled_from([(0, 0), (0, 0), (0, 0x10), (1, 0), (0, 4), (0, 12)])
    for queue, flag in draw(st.lists(kinds, max_size=12)):
        size = draw(st.sampled_from([0, 20, 3000, 9000]))
        data = one(topic, queue, number, size, flag)
        if queue == 0 and not flag & 0xC:
            ((_, _, _, entry),) = plain.scan_queues(data, 0, len(data), BASE + len(log))
            entries += entry
            number += 1
        log += data
    return log, entries, topic, first


@given(logs())
@settings(max_examples=100, deadline=None)
def test_entries_of_the_log_match(case: tuple[bytes, bytes, str, int]) -> None:
    """Neighbours are joined, others left out, and the CRC is that of what is found."""
    log, entries, topic, first = case
    for kernel in (plain, COMPILED):
        edges, crc = kernel.match_entries(log, BASE, entries, topic.encode(), 0, first)
        places = list(zip(edges[::2], edges[1::2], strict=True))
        found = b"".join(log[at:to] for at, to in places)
        wanted = [(at - BASE, size) for at, size, _ in ENTRY.iter_unpack(entries)]
        assert found == b"".join(log[at : at + size] for at, size in wanted)
        assert crc == plain.crc32c(found)
        assert all(to < at for (_, to), (at, _) in pairwise(places))


@given(logs(), st.data())
@settings(max_examples=200, deadline=None)
def test_twins_refuse_alike(case: tuple[bytes, bytes, str, int], data: st.DataObject) -> None:
    """Damage in log or entries: the same number, and never an entry that the scan does not find."""
    log, entries, topic, first = case
    changed = [bytearray(log), bytearray(entries)]
    for each in changed:
        for _ in range(data.draw(st.integers(0, 2))):
            if each:
                at = data.draw(st.integers(0, len(each) - 1))
                each[at] ^= 1 << data.draw(st.integers(0, 7))
    base = BASE + data.draw(st.sampled_from([0, 0, 0, 1, -1, 10_000]))
    queue = data.draw(st.sampled_from([0, 0, 0, 1, -1]))
    bytes_, made = (
        bytes(changed[0]),
        bytes(changed[1][: data.draw(st.sampled_from([-1, 40, 2000]))]),
    )
    arguments = (bytes_, base, made, topic.encode(), queue, first)
    found = plain.match_entries(*arguments)
    assert COMPILED.match_entries(memoryview(bytes_), *arguments[1:]) == found
    right = found if isinstance(found, int) else len(made) // 20
    for number, (at, size, code) in enumerate(ENTRY.iter_unpack(made[: 20 * right])):
        ((name, its, its_first, entry),) = plain.scan_queues(
            bytes_, at - base, at - base + size, at
        )
        assert (name, its, its_first) == (topic.encode(), queue, first + number)
        assert entry == ENTRY.pack(at, size, code)
    if isinstance(found, int) and (at := ENTRY.unpack_from(made, 20 * found)[0] - base) >= 0:
        end = at + ENTRY.unpack_from(made, 20 * found)[1]
        before = 0 if not found else sum(ENTRY.unpack_from(made, 20 * (found - 1))[:2]) - base
        if before <= at <= end <= len(bytes_):  # it lies well, so it is no such record
            runs = plain.scan_queues(bytes_, at, end, at + base)
            wanted = [(topic.encode(), queue, first + found, made[20 * found : 20 * found + 20])]
            assert runs != wanted


def test_what_no_entry_stands_for() -> None:
    """A size that is not the record's, a prepared record, another number, one that comes twice."""
    log = one("t", 0, 5, 30, 0) + one("t", 0, 6, 30, 0)
    ((_, _, _, right),) = plain.scan_queues(log, 0, len(log), 0)
    at, size, code = ENTRY.unpack_from(right)
    for kernel in (plain, COMPILED):
        assert kernel.match_entries(log, 0, right, b"t", 0, 5) == ([0, len(log)], plain.crc32c(log))
        assert kernel.match_entries(log, 0, b"", b"t", 0, 5) == ([], 0)
        for more in (-1, 1):
            wrong = ENTRY.pack(at, size + more, code)
            assert kernel.match_entries(log, 0, wrong, b"t", 0, 5) == 0
        assert kernel.match_entries(log, 0, right, b"t", 0, 6) == 0
        assert kernel.match_entries(log, 0, right[:20] * 2, b"t", 0, 5) == 1
        for flag in (4, 12):
            other = one("t", 0, 5, 30, flag)
            assert kernel.match_entries(other, 0, right[:20], b"t", 0, 5) == 0

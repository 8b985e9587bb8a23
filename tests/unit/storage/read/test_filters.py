"""Reads with a filter over properties: the right records, bounded work, no damage passed over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from storage import ReadStatus, Section, Store, StoreSettings
from storage.read import filters
from storage.read.filters import (
    ROW_MAX,
    SIFT_RECORDS,
    VERDICTS_MAX,
    PropertyFilter,
    property_filter,
)
from storage.read.result import ReadResult
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import TOPIC, WHO, append, flip, master, section, settle
from twinlog.errors import CorruptionError
from twinlog.filters.sql92 import FilterError, parse_filter
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.record import RecordEncoder, decode, encode_properties, java_hash

BIG = StoreSettings(segment_size=256 * 1024, queue_segment_entries=1000)


def priced(prices: Sequence[int | None], *, tag: str = "", size: int = 20) -> Section:
    """A section of records with these prices; None: without the property."""
    encoder = RecordEncoder(TOPIC, 0)
    for price in prices:
        properties = {} if price is None else {"price": str(price)}
        if tag:
            properties["TAGS"] = tag
        text = encode_properties(properties)
        encoder.add(b"x" * size, properties=text, born_timestamp=1)
    return Section(TOPIC, 0, len(prices), encoder.take())


def numbers(answer: ReadResult) -> list[int]:
    """Queue offsets of the records in an answer."""
    found: list[int] = []
    for view in answer.slices:
        at = 0
        while at < len(view):
            record = decode(view, at)
            found.append(record.queue_offset)
            at += record.size
    assert len(found) == answer.count
    return found


def read(
    store: Store, at: int, where: str, *, most: int = 1 << 20, records: int = 9999
) -> ReadResult:
    """Read queue 0."""
    return store.reads.read(
        TOPIC, 0, at, max_bytes=most, max_records=records, where=property_filter(where)
    )


def everything(store: Store, where: str, *, most: int, records: int) -> list[int]:
    """Queue offsets of all that match, read in many small answers."""
    at, found = 0, list[int]()
    end = store.reads.queue_range(TOPIC, 0)[1]
    while at < end:
        answer = read(store, at, where, most=most, records=records)
        assert answer.status is ReadStatus.FOUND
        assert answer.next > at, "every answer gets on"
        assert answer.count <= records
        assert answer.count <= 1 or sum(map(len, answer.slices)) <= most
        found += numbers(answer)
        at = answer.next
    return found


@pytest.mark.parametrize("records", [1, 7, 5000])
@pytest.mark.parametrize("most", [1, 900, 1 << 20])
def test_what_matches_is_found_however_it_is_cut(most: int, records: int) -> None:
    """Over several log files, between records of other queues, with and without the property."""
    store = master(FakeDisk(), settings=StoreSettings(segment_size=16 * 1024))
    wanted, total = list[int](), 0
    for number in range(60):
        prices = [None if n % 5 == 4 else (number * n) % 13 for n in range(6)]
        wanted += [total + n for n, price in enumerate(prices) if price is not None and price > 9]
        total += len(prices)
        append(store, priced(prices[:3]), section(2, queue=1), priced(prices[3:]))
    settle(store)
    assert store.end > 2 * 16 * 1024
    assert everything(store, "price > 9", most=most, records=records) == wanted


def test_tag_and_filter_together() -> None:
    """The tag by its hash, then the properties of what is left."""
    store = master(FakeDisk(), settings=BIG)
    for number in range(20):
        append(store, priced([1, 10], tag="AB"[number % 2]))
    settle(store)
    answer = store.reads.read(
        TOPIC,
        0,
        0,
        max_bytes=1 << 20,
        max_records=3,
        tag_hashes=frozenset({java_hash("B")}),
        where=property_filter("price = 10"),
    )
    assert (numbers(answer), answer.next) == ([3, 7, 11], 15)


def test_work_is_bounded_by_records_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without a match still says how far it came."""
    store = master(FakeDisk(), settings=StoreSettings(segment_size=1 << 20))
    for _ in range(12):
        append(store, priced([1] * 100))
    settle(store)
    answer = read(store, 0, "price = 2")
    assert (answer.status, answer.count, answer.next) == (ReadStatus.FOUND, 0, SIFT_RECORDS)
    assert read(store, answer.next, "price = 2").next == 1200
    monkeypatch.setattr("storage.read.selection.SIFT_BYTES", 1000)
    record = len(bytes(read(store, 0, "price = 1", records=1).slices[0]))
    assert read(store, 0, "price = 2").next == 1000 // record
    monkeypatch.setattr("storage.read.selection.SIFT_BYTES", 1)
    assert read(store, 5, "price = 2").next == 6


def test_a_cold_filter_touches_the_log_only_in_its_thread() -> None:
    """Before ``fetch`` is called nothing is known but what there is to look at."""
    settings = StoreSettings(segment_size=64 * 1024, hot_bytes=2000)
    store = master(FakeDisk(), settings=settings)
    for _ in range(20):
        append(store, priced([1, 20, 3]))
    settle(store)
    answer = read(store, 0, "price > 9", records=4)
    assert answer.cold
    assert answer.fetch is not None
    sifted = answer.fetch()
    assert (numbers(sifted), sifted.next) == ([1, 4, 7, 10], 13)
    assert not read(store, 58, "price > 9").cold


def _settled(store: Store, where: str) -> ReadResult:
    """What a reader gets, through a thread if need be."""
    answer = read(store, 0, where)
    return store.reads.fetched(answer, answer.outcome()) if answer.cold else answer


@pytest.mark.parametrize("hot", [1 << 30, 2000])
def test_a_damaged_record_is_an_error_and_not_one_that_does_not_match(hot: int) -> None:
    """What was read back from disk is proven before its properties decide anything."""
    disk = FakeDisk()
    store = master(disk, settings=StoreSettings(segment_size=64 * 1024, hot_bytes=hot))
    for _ in range(20):
        append(store, priced([1, 20, 3]))
    settle(store)
    store.close(clean=True)
    store = Store.open(disk, StoreSettings(segment_size=64 * 1024, hot_bytes=hot), WHO, wall_ms=1)
    view = bytes(store.view(0, store.end))
    at = view.index(b"price\x0120")
    flip(disk, "commitlog/00000000000000000000", at)
    with pytest.raises(CorruptionError):
        _settled(store, "price > 9")
    assert store.damage is not None


def test_an_entry_that_leads_nowhere_is_an_error() -> None:
    """A queue entry with another size than its record, between good neighbours."""
    disk = FakeDisk()
    store = master(disk, settings=BIG)
    append(store, priced([1, 2, 3]))
    settle(store)
    path = "consumequeue/flights/0/00000000000000000000"
    size = int.from_bytes(disk.read_at(path, 28, 4, "test"), "big")
    disk.write_at(path, 28, (size - 1).to_bytes(4, "big"), "test")
    disk.write_at(path, 40, disk.read_at(path, 20, 20, "test"), "test")
    with pytest.raises(CorruptionError, match="points to no such record"):
        read(store, 0, "price = 2")


def test_verdicts_are_kept_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same row is evaluated once; long rows and too many rows are not kept."""
    seen: list[object] = []
    wanted = parse_filter("a = 'x'")
    made = PropertyFilter(wanted)
    verdicts = made._verdicts  # pyright: ignore[reportPrivateUsage]
    assert [verdicts[("x",)], verdicts[("x",)], verdicts[(None,)]] == [True, True, False]
    assert len(verdicts) == 2
    assert not verdicts[("y" * (ROW_MAX + 1),)]
    assert len(verdicts) == 2
    for number in range(VERDICTS_MAX + 5):
        seen.append(verdicts[(str(number),)])
        assert len(verdicts) <= VERDICTS_MAX
    assert not any(seen)
    monkeypatch.setattr(filters, "parse_filter", None)
    with pytest.raises(TypeError):
        property_filter("a = 'not parsed yet'")


def test_a_text_that_is_no_filter() -> None:
    """The parser's error, each time anew: it is not kept."""
    for _ in range(2):
        with pytest.raises(FilterError, match="character 3"):
            property_filter("a ! b")


def test_an_entry_that_leads_to_no_record_is_named_by_its_number() -> None:
    """The filter does not guess: whoever gave the entries calls it damage."""
    view = memoryview(bytes(200))
    entries = QUEUE_ENTRY.pack(1000, 100, 0)
    assert property_filter("a = 1").keep(view, 1000, entries) == 0

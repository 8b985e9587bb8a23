"""Sections out of the ordinary in nothing: the short ways leave what the general one would have."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from storage import Section, SectionResult, Store
from storage.append.appender import Appender
from storage.state.sections import Outcome
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import SETTINGS, TOPIC, append, master, section, settle, token
from twinlog.format.group_rows import AckRow, LeaseRow, ShareRow

APPENDS = 120


def story(seed: int) -> list[Section]:
    """Sections of two producers and none, most of them good: one in three is not."""
    rng, made, following = random.Random(seed), list[Section](), dict[tuple[int, int], int]()
    for number in range(APPENDS):
        producer, queue = rng.choice([0, 7, 9]), rng.randrange(4)
        count = rng.randrange(1, 4)
        sequence = following.get((producer, queue), 0)
        one = section(
            count, queue=queue, producer=producer, sequence=sequence, size=rng.randrange(1, 90),
            mark=number, light=["%LMQ%x"] if rng.random() < 0.1 else (),
        )  # fmt: skip
        odd = rng.randrange(12)
        if odd == 0 and made:
            one = rng.choice(made)  # an old one comes again
        elif odd == 1:
            one = replace(one, count=count + 1)
        elif odd == 2:
            one = replace(one, queue=rng.choice([-1, queue + 1, 9]))
        elif odd == 3:
            one = replace(one, sequence=sequence + rng.choice([-1, 1]), producer_epoch=1)
        elif odd == 4:
            data = bytearray(one.data)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            one = replace(one, data=bytes(data))
        else:
            following[producer, queue] = sequence + count
        made.append(one)
    return made


def tell(store: Store, disk: FakeDisk, sections: list[Section]) -> list[SectionResult]:
    """Append each alone, the disk full now and then."""
    results: list[SectionResult] = []
    for number, one in enumerate(sections):
        if number % 30 == 29:
            disk.faults.fail("log.append", after=0, error=28)
        if number % 40 == 10:  # meets the next change of the file
            what = ["log.filler", "log.roll", "log.epoch"][number // 40]
            disk.faults.fail(what, after=0, error=28)
        results += append(store, one)
        if number % 25 == 24:
            settle(store)
    settle(store)
    return results


@pytest.mark.parametrize("seed", range(4))
def test_the_short_way_leaves_what_the_general_way_leaves(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same results, same bytes in every file, same queues, same answer to what comes again."""
    sections, short, taken = story(seed), Appender._alone, list[bool]()  # pyright: ignore[reportPrivateUsage]

    def counted(self: Appender, one: Section, system: bool) -> SectionResult | None:
        found = short(self, one, system)
        taken.append(found is not None)
        return found

    left: list[tuple[object, ...]] = []
    for way in (counted, lambda self, one, system: None):  # pyright: ignore[reportUnknownLambdaType]
        monkeypatch.setattr(Appender, "_alone", way)
        disk = FakeDisk()
        store = master(disk)
        results = tell(store, disk, sections)
        again = [append(store, one)[0] for one in sections if one.producer]
        names = [f"{where}/{name}" for where in ("commitlog", "twinlog/batches")
                 for name in disk.list(where)]  # fmt: skip
        files = {name: bytes(disk.peek(name) or b"") for name in names}
        left.append((results, again, files, store.end, store.reads.queue_range("flights", 0)))
    assert left[0] == left[1]
    assert "disk-full" in {result.code for result in results}
    assert APPENDS // 3 < sum(taken) < len(taken), "both ways are gone"


def test_a_change_of_the_file_goes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A section alone that begins a file is not judged a second time; a bad one begins none."""
    store = master(FakeDisk())
    monkeypatch.setattr(Appender, "_one", None)
    while len(store._log.segments.all) < 3:
        assert append(store, section(3, mark=store.end))[0].queue_offset >= 0
    monkeypatch.undo()
    room = store._log.room
    while room > 2000:
        append(store, section(3))
        room = store._log.room
    before, bad = store.end, bytearray(section(3, size=600).data)
    bad[-60] ^= 1
    assert append(store, Section("flights", 0, 3, bad))[0].code == "crc"
    assert (store.end, store._log.room) == (before, room)
    assert append(store, section(3, size=600))[0].log_offset > before + room


@pytest.mark.parametrize("seed", range(3))
def test_a_turn_of_sections_leaves_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """One call a section or several: bytes, entries, results, with batches that fill up."""
    settings = replace(SETTINGS, batch_size_max=4096)
    found: list[tuple[list[SectionResult], bytes, list[bytes]]] = []
    for short in (True, False):
        if not short:
            monkeypatch.setattr(Appender, "_run", lambda *_: 0)
        disk = FakeDisk()
        store, rng, told = master(disk, settings=settings), random.Random(seed), story(seed) * 2
        results: list[SectionResult] = []
        while told:
            count = rng.randrange(2, 30)
            turn, told = told[:count], told[count:]
            if rng.random() < 0.1:
                disk.faults.fail("log.append", after=rng.randrange(2), error=28)
            results += append(store, *turn)
            settle(store)
        indexes = [bytes(one.index.packed(0, one.index.count)) for one in store._log.segments.all]
        names = [name for name in disk.list("commitlog") if name.isdigit()]
        log = b"".join(disk.read_at(f"commitlog/{n}", 0, 16 * 1024, "") for n in sorted(names))
        assert len(names) > 1
        found.append((results, log, indexes))
    assert found[0] == found[1]


def test_rows_leave_by_the_short_way_what_they_leave_by_the_general_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Same bytes in every file and the same folds, across files and where the disk is full."""
    short, taken = Appender._alone, list[bool]()  # pyright: ignore[reportPrivateUsage]

    def counted(self: Appender, one: Section, system: bool) -> SectionResult | None:
        found = short(self, one, system)
        taken.append(found is not None)
        return found

    left: list[tuple[object, ...]] = []
    for way in (counted, lambda self, one, system: None):  # pyright: ignore[reportUnknownLambdaType]
        monkeypatch.setattr(Appender, "_alone", way)
        disk = FakeDisk()
        store = master(disk)
        append(store, section(4))
        settle(store)
        results = [store.append_rows(token(1), [ShareRow(1, "g", TOPIC, 0, 0, 0)], wall_ms=2000)]
        for number in range(APPENDS):
            if number % 30 == 29:
                disk.faults.fail("log.append", after=0, error=28)
            n = 1 + sum(result.outcome is Outcome.STORED for result in results[1:])
            rows = [LeaseRow(1, n, n, 1, 1, n, 5000, 1), AckRow(1, n, n, n)] * (1 + number % 9)
            results.append(store.append_rows(token(1), rows, wall_ms=2000 + number))
            if number % 25 == 24:
                settle(store)
        settle(store)
        names = [f"{where}/{name}" for where in ("commitlog", "twinlog/batches")
                 for name in disk.list(where)]  # fmt: skip
        files = {name: bytes(disk.peek(name) or b"") for name in names}
        left.append((results, files, store.messaging.confirmed.values(), store.end))
    assert left[0] == left[1]
    assert "disk-full" in {result.code for result in results}
    assert len(names) > 2, "one file holds them all"
    assert sum(taken) > APPENDS // 2

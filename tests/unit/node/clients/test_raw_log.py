"""What a node makes of a LOG: bytes as they lie, the entries that prove them, and where it ends."""

from __future__ import annotations

import pytest

from node.clients.freshness import Freshness
from node.clients.limits import Limits
from node.clients.raw_log import RawLog, parse_log
from storage import Store
from storage.read.raw import ENTRIES_MAX
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import SETTINGS, fill, master, run, settle
from twinlog.errors import UsageError
from twinlog.format.batch_index import KIND_FILLER, BatchEntry
from twinlog.kernels import crc32c

LIMITS = Limits()


def filled() -> tuple[FakeDisk, Store]:
    """A store of several files."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 40)
    settle(store)
    return disk, store


def ask(store: Store, offset: int, max_bytes: int) -> tuple[dict[str, object], bytes]:
    """One LOG, its copying included."""
    raw = RawLog(
        store.reads,
        lambda: Freshness("n2", "slave", 99.0, None, 7),
        segment_size=SETTINGS.segment_size,
    )
    query = parse_log({"offset": offset, "max_bytes": max_bytes}, LIMITS)
    piece = raw.begin(query)
    fields, slices = raw.finish(query, piece, b"" if piece is None else piece.copy())
    return dict(fields), b"".join(slices)


@pytest.mark.parametrize("size", [1000, 16 * 1024, 1 << 20])
def test_pieces_tile_the_log_and_their_entries_prove_them(size: int) -> None:
    """Of any size: together the files' bytes, and every batch below confirm is as its entry says;
    a slave serves it however long it has not heard of its master."""
    disk, store = filled()
    data, entries, at = b"", b"", 0
    while at < store.confirm:
        fields, payload = ask(store, at, size)
        assert (fields["status"], fields["node"], fields["role"]) == ("found", "n2", "slave")
        assert len(payload) == int(str(fields["next"])) - at <= size
        data, at = data + payload, int(str(fields["next"]))
        entries += bytes(fields["entries"])  # type: ignore[call-overload]
    names = sorted(name for name in disk.list("commitlog") if name.isdigit())
    stored = b"".join(disk.read_at(f"commitlog/{n}", 0, SETTINGS.segment_size, "") for n in names)
    assert len(names) > 3 and data == stored[: store.confirm]
    known = 0
    for place in range(0, len(entries), 48):
        entry = BatchEntry.unpack(entries, place)
        assert entry is not None and entry.start == known
        length = 8 if entry.kind == KIND_FILLER else entry.length
        assert crc32c(data[entry.start : entry.start + length]) == entry.crc
        known = entry.end
    assert known == store.confirm


def test_nothing_at_or_above_confirm_is_served() -> None:
    """Nor before the start; both say so, with the borders."""
    _, store = filled()
    fields, payload = ask(store, store.confirm, 100)
    assert (fields["status"], fields["next"], payload) == ("above-confirm", store.confirm, b"")
    fill(store, 1)
    fields, payload = ask(store, store.confirm - 1, 1 << 20)
    assert fields["next"] == fields["confirm"] == store.confirm < store.end
    assert (fields["start"], fields["segment_size"]) == (0, SETTINGS.segment_size)
    for _ in range(2):
        run(store, store.jobs.flush_job(thorough=True))
        run(store, store.jobs.snapshot_job())
        fill(store, 1)
        settle(store)
    store.head.leave(SETTINGS.segment_size, store.confirm, 0.0)
    fields, payload = ask(store, 0, 100)
    assert (fields["status"], fields["start"], payload) == (
        "before-start",
        SETTINGS.segment_size,
        b"",
    )


def test_an_answer_holds_no_more_entries_than_its_fields_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A piece of many small batches ends earlier, at a border."""
    monkeypatch.setattr("storage.read.raw.ENTRIES_MAX", 3)
    _, store = filled()
    fields, payload = ask(store, 0, 1 << 20)
    assert len(bytes(fields["entries"])) == 3 * 48  # type: ignore[call-overload]
    assert store.border_at_or_below(len(payload)) == len(payload)
    assert ENTRIES_MAX * 48 < 1 << 20


@pytest.mark.parametrize("fields", [{}, {"offset": -1, "max_bytes": 1}, {"offset": 1}])
def test_what_is_no_question(fields: dict[str, object]) -> None:
    """Refused before anything is looked at."""
    with pytest.raises(UsageError, match="log names offset and max_bytes"):
        parse_log(fields, LIMITS)

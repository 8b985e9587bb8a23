"""What every place for the register promises, whether it is a file or etcd: one suite for both."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from replication.coordinator import etcd_store
from replication.coordinator.etcd_gateway import EtcdGateway, GatewayUnknown, text_of
from replication.coordinator.etcd_store import OPERATIONS_MAX, EtcdStore, prefix_of
from replication.coordinator.seat import Seat, SeatLost, holder, take
from replication.coordinator.store import CoordinatorStore, RegisterStore, StoreStopped
from tests.fixtures.etcd import Etcd, lone_etcd
from twinlog.errors import CorruptionError, UsageError

__all__ = ["lone_etcd"]

TAG = (1 << 64) - 1
Open = Callable[[], RegisterStore]
_clusters = itertools.count()


class Opener:
    """Opens the store of one register again and again, as one process after another would."""

    def __init__(self, folder: Path, etcd: Etcd | None) -> None:
        self.folder = folder
        self.etcd = etcd
        self.prefix = prefix_of(f"c{next(_clusters)}", "g1")
        self.seats: list[Seat] = []

    def __call__(self) -> RegisterStore:
        if self.etcd is None:
            return CoordinatorStore(self.folder, "demo", "g1")
        gateway = EtcdGateway(self.etcd.endpoints, seconds=60)
        seat = take(gateway, self.prefix + "seat", "test")
        assert seat is not None
        self.seats.append(seat)
        return EtcdStore(gateway, seat, self.prefix)


@pytest.fixture(params=["file", "etcd"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens a store of each kind."""
    etcd: Etcd | None = None
    if request.param == "etcd":
        etcd = request.getfixturevalue("lone_etcd")
    return Opener(tmp_path, etcd)


@pytest.fixture
def in_etcd(tmp_path: Path, lone_etcd: Etcd) -> Opener:
    """Opens a store in etcd."""
    return Opener(tmp_path, lone_etcd)


def test_a_new_store_is_empty_and_keeps_its_register_id(opened: Opener) -> None:
    store = opened()
    assert store.load().document is None
    first = store.register_id
    store.close()
    store.close()
    again = opened()
    assert again.register_id == first
    again.close()


def test_what_was_recorded_is_found_again(opened: Opener) -> None:
    store = opened()
    store.record(1, TAG, {"state": {"revision": 1}}, [])
    store.record(2, 0, {"state": {"revision": 2}}, [{"epoch": 1, "start": None}])
    store.record(3, 7, {"state": {"revision": 3}}, [{"epoch": 1, "start": 0}, {"epoch": 2}])
    store.prove()
    store.close()
    again = opened()
    recorded = again.load()
    assert recorded.document == {"state": {"revision": 3}}
    assert recorded.pairs == {1: TAG, 2: 0, 3: 7}
    assert recorded.history == ({"epoch": 1, "start": 0}, {"epoch": 2})
    again.record(4, 8, {"state": {"revision": 4}}, [*recorded.history, {"epoch": 3}])
    again.close()
    third = opened()
    assert third.load().history == ({"epoch": 1, "start": 0}, {"epoch": 2}, {"epoch": 3})
    third.close()


def test_a_recovered_register_forgets_the_pairs_before_it(opened: Opener) -> None:
    store = opened()
    for revision in (1, 2, 7):
        store.record(revision, revision, {"n": revision}, [])
    store.record(5 << 40, 9, {"n": 3}, [], afresh=True)
    store.close()
    again = opened()
    assert again.load().pairs == {5 << 40: 9}
    again.close()


def test_an_alarm_is_kept_without_a_revision(opened: Opener) -> None:
    store = opened()
    store.record(1, 5, {"alarm": None}, [])
    store.keep({"alarm": "seen"})
    store.close()
    again = opened()
    assert again.load().document == {"alarm": "seen"}
    assert again.load().pairs == {1: 5}
    again.close()


def test_more_pairs_and_history_than_one_call_carries(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_store, "PAGE", 5)
    history = [{"epoch": epoch} for epoch in range(2 * OPERATIONS_MAX + 1)]
    store = opened()
    store.record(1, 1, {"n": 1}, history)
    for revision in range(2, 13):
        store.record(revision, revision, {"n": revision}, history)
    store.close()
    again = opened()
    found = again.load()
    assert found.pairs == {revision: revision for revision in range(1, 13)}
    assert list(found.history) == history
    again.close()


# -- the seat


def test_a_taken_seat_is_not_taken_again(in_etcd: Opener) -> None:
    store = in_etcd()
    gateway = EtcdGateway(in_etcd.etcd.endpoints) if in_etcd.etcd else None
    assert gateway is not None
    assert take(gateway, in_etcd.prefix + "seat", "other") is None
    assert holder(gateway, in_etcd.prefix + "seat") == "test"
    store.close()
    assert holder(gateway, in_etcd.prefix + "seat") is None
    gateway.close()


def test_who_lost_the_seat_changes_nothing(in_etcd: Opener) -> None:
    """Its lease was ended behind its back; the next holder's register is untouched."""
    old = in_etcd()
    old.record(1, 1, {"n": 1}, [])
    assert in_etcd.etcd is not None
    gateway = EtcdGateway(in_etcd.etcd.endpoints, seconds=60)
    gateway.ask("lease/revoke", {"ID": in_etcd.seats[0].lease})
    new = in_etcd()
    new.record(2, 2, {"n": 2}, [])
    old.prove()  # it cannot know yet
    with pytest.raises(SeatLost, match="another process has the seat"):
        old.record(2, 3, {"n": 3}, [])
    with pytest.raises(SeatLost):
        old.prove()
    with pytest.raises(SeatLost):
        old.keep({"n": 4})
    with pytest.raises(SeatLost, match="has ended"):
        in_etcd.seats[0].renew(gateway)
    assert new.load().document == {"n": 2}
    assert new.load().pairs == {1: 1, 2: 2}
    for each in (old, new):
        each.close()
    gateway.close()


def test_a_holder_says_nothing_once_its_lease_may_have_ended(in_etcd: Opener) -> None:
    store = in_etcd()
    seat = in_etcd.seats[0]
    seat._until = 0.0
    with pytest.raises(SeatLost, match="may have ended"):
        store.prove()
    with pytest.raises(SeatLost, match="may have ended"):
        store.record(1, 1, {}, [])
    gateway = EtcdGateway(in_etcd.etcd.endpoints, seconds=60) if in_etcd.etcd else None
    assert gateway is not None
    seat.renew(gateway)
    store.prove()
    store.close()
    gateway.close()


class Silent(EtcdGateway):
    """A gateway that sends a change and never hears of it."""

    def change(self, path: str, body: object) -> dict[str, object]:
        """Lose the answer to a transaction."""
        answer = super().change(path, body)  # type: ignore[arg-type]
        if path == "kv/txn" and self.silent:
            raise GatewayUnknown("no answer")
        return answer

    silent = False


def test_a_change_of_unknown_outcome_ends_the_seat_and_the_next_one_knows(in_etcd: Opener) -> None:
    assert in_etcd.etcd is not None
    gateway = Silent(in_etcd.etcd.endpoints, seconds=60)
    seat = take(gateway, in_etcd.prefix + "seat", "test")
    assert seat is not None
    store = EtcdStore(gateway, seat, in_etcd.prefix)
    store.record(1, 1, {"n": 1}, [])
    gateway.silent = True
    with pytest.raises(SeatLost, match="no answer"):
        store.record(2, 2, {"n": 2}, [])
    with pytest.raises(SeatLost):
        store.record(3, 3, {"n": 3}, [])
    store.close()
    again = in_etcd()
    assert again.load().pairs == {1: 1, 2: 2}
    again.close()


def test_a_late_write_of_an_older_seat_fails(in_etcd: Opener) -> None:
    """etcd was seen to apply a transaction long after its client had given up (decision 0021)."""
    old = in_etcd()
    late = {
        "compare": [in_etcd.seats[0].held()],
        "success": [
            {"request_put": {"key": text_of(in_etcd.prefix + "register"), "value": text_of("x")}}
        ],
        "failure": [],
    }
    old.record(1, 1, {"n": 1}, [])
    old.close()
    new = in_etcd()
    assert in_etcd.etcd is not None
    gateway = EtcdGateway(in_etcd.etcd.endpoints, seconds=60)
    assert gateway.change("kv/txn", late).get("succeeded") is None
    assert new.load().document == {"n": 1}
    new.close()
    gateway.close()


# -- what etcd may hold


def put(opener: Opener, name: str, value: str) -> None:
    """Write one key behind the store's back."""
    assert opener.etcd is not None
    gateway = EtcdGateway(opener.etcd.endpoints, seconds=60)
    gateway.ask("kv/put", {"key": text_of(opener.prefix + name), "value": text_of(value)})
    gateway.close()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("register", "x", "no JSON"),
        ("register", "[]", "not a document"),
        ("register", '{"revision": 4, "document": {}}', "revision 4 but pairs up to 1"),
        ("pairs/00000000000000000009", "1", "but pairs up to 9"),
        ("pairs/x", "1", "where a number belongs"),
        ("pairs/00000000000000000001", "-1", "where a number belongs"),
        ("history/0000000000", "{", "no JSON"),
    ],
)
def test_keys_that_nobody_wrote_are_damage(
    in_etcd: Opener, name: str, value: str, why: str
) -> None:
    store = in_etcd()
    store.record(1, 1, {"n": 1}, [{"epoch": 1}])
    put(in_etcd, name, value)
    with pytest.raises(CorruptionError, match=why):
        store.load()
    store.close()


def test_a_newer_schema_is_refused(in_etcd: Opener) -> None:
    put(in_etcd, "facts", '{"schema": 9, "register_id": "x"}')
    with pytest.raises(UsageError, match="schema 9"):
        in_etcd()


def test_no_member_at_all(tmp_path: Path) -> None:
    """A refused connection is not an unknown outcome: nothing was sent."""
    gateway = EtcdGateway([("127.0.0.1", 9)], seconds=5)
    seat = Seat("seat", 1, "1", float("inf"))
    with pytest.raises(StoreStopped, match="no member of etcd answers"):
        EtcdStore(gateway, seat, "/twinlog/a/b/")

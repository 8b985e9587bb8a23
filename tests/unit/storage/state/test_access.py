"""Users and rules: what binds when, what a cut takes back, what a snapshot keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.recovery.snapshot import Snapshot, decode_snapshot, encode_snapshot
from storage.state.access import NOBODY, Access, Rule, User, rule_refusal, user_refusal
from storage.state.controls import ChangeAccess, UnknownControl, decode_control, encode_control
from storage.state.layers import Layers
from storage.state.topics import State
from twinlog.wire.scram import Verifier

KEPT = Verifier(b"saltsalt", 4096, b"s" * 32, b"k" * 32)
OTHER = replace(KEPT, stored_key=b"t" * 32)
ALICE = User("alice", ("shop",), KEPT)
READ, WRITE = Rule("alice", "read", "topic:a*"), Rule("@shop", "write", "topic:a")


def test_every_change_can_be_read_again() -> None:
    """And what has another shape is a control record that this version does not know."""
    change = ChangeAccess((ALICE, User("bob")), (READ,), ("carol",), (WRITE,))
    assert decode_control(encode_control(change)) == change
    odd = {"users": [["alice", [], [b"", 1, b""]]], "rules": [], "gone": [], "ended": []}
    for fields in (odd, {**odd, "users": 1}, {**odd, "users": [], "rules": [["a"]]}, {}):
        assert ChangeAccess.read(fields) is None
    assert isinstance(decode_control(b"\x81\xa4kind\xa6access"), UnknownControl)


def test_a_snapshot_keeps_users_and_rules() -> None:
    """Both ways; one without any is as it was in older versions."""
    access = Access({"alice": ALICE, "bob": User("bob")}, frozenset({READ, WRITE}))
    found = decode_snapshot(encode_snapshot(Snapshot(4096, access=access)))
    assert found.access == access
    plain = encode_snapshot(Snapshot(4096))
    assert b"rules" not in plain
    assert decode_snapshot(plain).access == NOBODY


def test_a_removal_binds_from_its_append_and_an_addition_from_its_confirm() -> None:
    """R48; a cut takes both back."""
    layers = Layers()
    layers.append(10, ChangeAccess(users=(ALICE,), rules=(READ,)))
    assert layers.access_now() == NOBODY
    layers.confirm(10)
    assert layers.access_now().rules == {READ}
    layers.append(20, ChangeAccess(ended=(READ,)))
    layers.append(30, ChangeAccess(rules=(READ,)))
    assert layers.access_now().rules == frozenset(), "what is made again is not confirmed yet"
    layers.cut(20)
    assert layers.access_now().rules == frozenset()
    layers.cut(10)
    assert layers.access_now().rules == {READ}
    layers.append(20, ChangeAccess(users=(replace(ALICE, verifier=OTHER),)))
    assert "alice" not in layers.access_now().users, "neither password until it is confirmed"
    layers.confirm(20)
    assert layers.access_now().users["alice"].verifier == OTHER
    layers.append(30, ChangeAccess(users=(User("alice", ("lab",), OTHER),)))
    assert layers.access_now().users["alice"].teams == ()
    same = layers.access_now()
    assert layers.access_now() is same, "it is compared by identity at each turn"


def test_a_user_leaves_with_its_rules() -> None:
    """Else who gets the name later would inherit them."""
    state = State(access=Access({"alice": ALICE}, frozenset({READ, WRITE})))
    assert ChangeAccess(gone=("alice",)).apply(state, 1)
    assert state.access == Access({}, frozenset({WRITE}))
    assert not ChangeAccess(gone=("alice",)).apply(state, 2)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (ChangeAccess(), "access"),
        (ChangeAccess(users=(User("operator"),)), "access"),
        (ChangeAccess(users=(User("a b"),)), "access"),
        (ChangeAccess(users=(User("a", ("@x",)),)), "access"),
        (ChangeAccess(users=(User("a", (), replace(KEPT, iterations=1)),)), "access"),
        (ChangeAccess(users=(User("a", (), replace(KEPT, server_key=b"")),)), "access"),
        (ChangeAccess(rules=(Rule("alice", "operate", "topic:a"),)), "access"),
        (ChangeAccess(rules=(Rule("alice", "write", "group:a"),)), "access"),
        (ChangeAccess(rules=(Rule("alice", "read", "cluster"),)), "access"),
        (ChangeAccess(rules=(Rule("alice", "operate", "cluster:x"),)), "access"),
        (ChangeAccess(rules=(Rule("alice", "read", "topic:"),)), "access"),
        (ChangeAccess(rules=(Rule("alice", "read", "topic:a*b"),)), "access"),
        (ChangeAccess(rules=(Rule("operator", "read", "topic:a"),)), "access"),
        (ChangeAccess(gone=("alice",)), "unknown-user"),
        (ChangeAccess(ended=(READ,)), "unknown-rule"),
    ],
)
def test_what_no_master_appends(change: ChangeAccess, code: str) -> None:
    """And where an older version did, the illegal ones change nothing."""
    found = change.refusal(Layers())
    assert found is not None
    assert found[0] == code
    if code == "access":
        assert not change.apply(State(), 1)


def test_legal_names() -> None:
    """As docs/access.md says."""
    assert user_refusal(User("billing@shop.example", ("a.b",), KEPT)) is None
    for what in ("topic:*", "topic:%RETRY%g*", "group:g"):
        assert rule_refusal(Rule("@shop", "read", what)) is None
    assert rule_refusal(Rule("a", "operate", "cluster")) is None


RULES = st.sampled_from([READ, WRITE, Rule("bob", "operate", "cluster")])
USERS = st.sampled_from([ALICE, replace(ALICE, verifier=OTHER), User("bob"), User("bob", ("x",))])
CHANGES = st.builds(
    ChangeAccess,
    st.lists(USERS, max_size=1).map(tuple),
    st.lists(RULES, max_size=2).map(tuple),
    st.lists(st.sampled_from(["alice", "bob"]), max_size=1).map(tuple),
    st.lists(RULES, max_size=1).map(tuple),
)
STEPS = st.lists(
    st.one_of(CHANGES, st.tuples(st.sampled_from(["confirm", "cut"]), st.floats(0, 1)))
)


@given(STEPS)
def test_what_binds_is_what_confirmed_and_all_later_states_allow(
    steps: list[ChangeAccess | tuple[str, float]],
) -> None:
    """Held against a list of all records, folded anew after each step."""
    layers, log, confirm = Layers(), list[ChangeAccess](), 0
    for step in steps:
        match step:
            case ChangeAccess():
                log.append(step)
                layers.append(len(log), step)
            case "confirm", share:
                confirm += round((len(log) - confirm) * share)
                layers.confirm(confirm)
            case _, share:
                del log[confirm + round((len(log) - confirm) * share) :]
                layers.cut(len(log))
        states, state = [NOBODY], State()
        for at, change in enumerate(log):
            change.apply(state, at + 1)
            states.append(state.access)
        assert layers.confirmed.access == states[confirm]
        assert layers.access == states[-1]
        bound = layers.access_now()
        for allowed in states[confirm:]:
            assert bound.rules <= allowed.rules
            for name, user in bound.users.items():
                assert allowed.users[name].verifier == user.verifier
                assert set(user.teams) <= set(allowed.users[name].teams)
        expected = states[confirm].rules
        for one in states[confirm:]:
            expected &= one.rules
        assert bound.rules == expected

"""Bytes under a rule: none is lost or overtaken, each is as late as the rule says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cli.drill.link import HELD_MAX, PASS, RESEND_SECONDS, Link, Rule

RULES = st.builds(
    Rule,
    cut=st.booleans(),
    delay=st.floats(0, 2),
    loss=st.floats(0, 1),
    rate=st.sampled_from([0.0, 1000.0]),
)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=50), RULES, st.floats(0, 1)), max_size=20))
def test_everything_arrives_in_order(pieces: list[tuple[bytes, Rule, float]]) -> None:
    """Whatever the rules were meanwhile, once they are gone."""
    link, now = Link(), 0.0
    arrived = b""
    for data, rule, chance in pieces:
        now += 0.1
        link.put(data, now=now, rule=rule, chance=chance)
        arrived += link.take(now, rule)
    while data := link.take(now + 1000, PASS):
        arrived += data
    assert arrived == b"".join(data for data, _, _ in pieces)
    assert link.held == 0


def test_a_cut_holds_bytes_back_until_it_is_healed() -> None:
    """The end of the sender too."""
    link = Link()
    link.put(b"abc", now=1.0, rule=PASS, chance=1.0)
    link.ended = True
    cut = Rule(cut=True)
    assert (link.take(9.0, cut), link.due(cut), link.finished(cut)) == (b"", None, False)
    assert not link.finished(PASS)
    assert link.take(9.0, PASS) == b"abc"
    assert link.finished(PASS)


def test_a_lost_piece_is_late_and_holds_up_the_rest() -> None:
    """As TCP does it."""
    link = Link()
    link.put(b"a", now=0.0, rule=Rule(loss=0.5), chance=0.4)
    link.put(b"b", now=0.0, rule=Rule(loss=0.5), chance=0.6)
    assert link.take(RESEND_SECONDS / 2, PASS) == b""
    assert link.take(RESEND_SECONDS, PASS) + link.take(RESEND_SECONDS, PASS) == b"ab"


def test_a_rate_is_kept() -> None:
    """1,000 bytes at 1,000 bytes a second take a second."""
    link, rule = Link(), Rule(rate=1000.0)
    for _ in range(10):
        link.put(bytes(100), now=0.0, rule=rule, chance=1.0)
    arrived = 0
    while data := link.take(0.5, rule):
        arrived += len(data)
    assert arrived == 500


def test_what_is_held_has_a_limit_and_can_be_given_back() -> None:
    """The sender waits then."""
    link = Link()
    link.put(bytes(HELD_MAX), now=0.0, rule=PASS, chance=1.0)
    assert link.full
    data = link.take(0.0, PASS)
    link.give_back(data[10:])
    assert not link.full
    assert link.take(0.0, PASS) == data[10:]

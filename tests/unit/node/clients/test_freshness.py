"""How far a node's answers can be trusted: age of its data, whether it may have been deposed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.clients.freshness import Freshness
from replication.core.view import PeerView, RoleView
from twinlog.errors import UnknownTopic
from twinlog.format.epoch_history import Epoch
from twinlog.wire.schema import AGE_UNKNOWN_MS

PEER = PeerView("n2", "slave", 60, 40, 20, 0.1, 0.2, True, "streaming", None)
MASTER = RoleView(
    role="master", state="serving", epoch=7, leader="n1", session=3, in_sync=("n1", "n2"),
    min_in_sync=2, effective=("n1", "n2"), confirm=60, end=80, flushed=50, peers=(PEER,),
    quarantined=None, admission=None, age_seconds=0.0, why=None, register_id="r", revision=9,
)  # fmt: skip


def of(view: RoleView) -> Freshness:
    """Return the freshness of n1, whose link time-out is 3 s."""
    return Freshness.of(view, "n1", silence_max=3.0)


def test_a_master_that_hears_its_members_is_up_to_date() -> None:
    found = of(MASTER)
    assert (found.leads, found.age_ms, found.redirect) == (True, 0, "n2")
    assert found.knows([Epoch(7, 50)], 60)


@pytest.mark.parametrize("contact", [3.1, None])
def test_a_master_cut_off_from_a_member_of_its_set_answers_nothing_as_settled(
    contact: float | None,
) -> None:
    """The member may be the master by now: everything this node says may be that old."""
    found = of(replace(MASTER, peers=(replace(PEER, contact_seconds=contact),)))
    assert not found.leads
    assert not found.knows([Epoch(7, 50)], 60)
    assert found.age_ms == (AGE_UNKNOWN_MS if contact is None else 3100)
    assert found.doubted(UnknownTopic("no")).facts["settled"] is False


def test_a_silent_node_outside_the_set_cannot_be_elected() -> None:
    """It left the set with the coordinator's consent, so the master's word still counts."""
    found = of(replace(MASTER, peers=(replace(PEER, in_sync=False, contact_seconds=99.0),)))
    assert (found.leads, found.age_ms, found.redirect) == (True, 0, None)


def test_every_error_about_something_missing_says_how_old_the_data_is() -> None:
    slave = of(replace(MASTER, role="slave", peers=(), age_seconds=1.5))
    facts = slave.doubted(UnknownTopic("no")).facts
    assert (facts["age_ms"], facts["settled"]) == (1500, False)
    assert of(MASTER).doubted(UnknownTopic("no")).facts["age_ms"] == 0


def test_a_node_that_never_heard_from_a_master_has_an_unknown_age() -> None:
    lost = of(replace(MASTER, role="fenced", peers=(), age_seconds=None))
    assert lost.age_ms == AGE_UNKNOWN_MS

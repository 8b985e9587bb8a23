"""When the lease of a message that a body has ends, while extensions are asked for and answered."""

from __future__ import annotations

import math

import pytest

from tests.fakes.group_master import stored_record
from twinlog.format.messages import messages_of
from twinlog.groups.leases import TICK_SECONDS, Held
from twinlog.groups.outcomes import Row, Told
from twinlog.groups.renewal import Renewals
from twinlog.wire.groups import What

INVISIBLE = 10.0


class Lease:
    """One message that a body has since second 0, under a lease of 10 s."""

    def __init__(self) -> None:
        (message,) = messages_of(stored_record("orders", 0, 3, b"x"))
        self.held = Held(message, 1, 7, 1, INVISIBLE)
        self.handed = {(1, 7, 3): self.held}
        self.renewals = Renewals()
        self.renewals.begun(self.held, INVISIBLE)

    def due(self, now: float, most: float = 3600.0) -> bool:
        """Whether an extension is to be asked for; it counts as asked for then."""
        found = self.renewals.due(self.handed.values(), INVISIBLE, most, now)
        for held in found:
            held.extending = True
        return bool(found)

    def answered(self, sent: float, seconds: float = INVISIBLE, *, taken: bool = True) -> None:
        """The node answers an extension."""
        row = Row(1, 7, Told(What.EXTEND, round(seconds * 1000)), 3, 3)
        self.renewals.answered(row, self.handed, sent, INVISIBLE, taken=taken)


@pytest.fixture
def lease() -> Lease:
    return Lease()


def test_a_lease_is_extended_once_half_of_it_has_passed(lease: Lease) -> None:
    """And not a second time while that is under way."""
    assert lease.renewals.at == 5.0
    assert not lease.due(4.9)
    assert lease.due(5.0)
    assert not lease.due(6.0)
    assert lease.renewals.at == math.inf


def test_an_extension_counts_once_the_node_has_taken_it(lease: Lease) -> None:
    """From when it was sent, less one tick of the node's clock; then the next one is due."""
    assert lease.due(5.0)
    assert lease.held.ends == INVISIBLE
    lease.answered(5.5)
    assert lease.held.ends == 15.5 - TICK_SECONDS
    assert lease.renewals.at == 10.5 - TICK_SECONDS
    assert lease.due(10.5)


def test_a_refused_extension_prolongs_nothing(lease: Lease) -> None:
    """Nor is another one asked for: the message is somebody else's."""
    assert lease.due(5.0)
    lease.answered(5.5, taken=False)
    assert lease.held.ends == INVISIBLE
    assert not lease.due(9.0)


def test_the_extension_that_was_sent_last_counts(lease: Lease) -> None:
    """Whatever is answered first: a shorter one ends the lease earlier."""
    lease.answered(6.0, 2.0)
    lease.answered(5.0, 60.0)
    assert lease.held.ends == 8.0 - TICK_SECONDS


def test_a_lease_is_not_extended_for_ever(lease: Lease) -> None:
    """Neither after the longest time, nor once it is over."""
    assert not lease.due(9.0, most=8.0)
    assert not Lease().due(10.0)
    assert not Lease().due(9.0, most=0.0)

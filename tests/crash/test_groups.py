"""A process dies in any disk call: what its groups have consumed is what the log says.

`tests.stores.histories.groups.GroupHistory` leases, settles and gives back in each step, in records
of their own and in one batch with sections; groups are deleted and made again.
"""

from __future__ import annotations

import pytest

from tests.crash.deaths import GROUPS
from tests.crash.rotation import PARTS, numbers
from tests.fakes.disk import FakeDisk
from tests.stores.histories.groups import KINDS, GroupHistory, rows_in
from tests.stores.histories.history import LOSSES

STRIDE = 160


def test_groups_consume() -> None:
    """Leases, cuts, restarts and snapshots with something in them."""
    disk = FakeDisk(page_size=512)
    history = GroupHistory(disk)
    history.play()
    store = history.store
    assert store is not None
    assert len(history.told) > 20
    assert len(store.messaging.confirmed) > 1
    assert any(share.runs for share in store.messaging.confirmed.shares())
    assert {type(row) for one in history.told for row in rows_in(one)} >= KINDS
    assert disk.exists("config/consumerOffset.json")


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
def test_a_part_of_the_calls(kind: str) -> None:
    """See the module's text; each kind of loss has calls of its own, ``some`` others each day."""
    step = STRIDE // PARTS if kind == "some" else STRIDE
    for number in numbers(GROUPS.calls, kind, first=LOSSES.index(kind), step=step):
        GROUPS.die(number, kind)

"""A process dies in any disk call: what waits for a time comes once, in whatever record it waits.

`tests.stores.histories.timers.TimerHistory` sends messages that wait, delivers some, takes some
back, and rescues the rest before their files leave, each time as one batch.
"""

from __future__ import annotations

import pytest

from tests.crash.deaths import TIMERS
from tests.crash.rotation import PARTS, numbers
from tests.fakes.disk import FakeDisk
from tests.stores.histories.history import LOSSES
from tests.stores.histories.timers import TimerHistory, examine_timers, small_grains
from tests.stores.workbench import settle

STRIDE = 480


def test_much_waits_and_is_delivered_taken_back_and_rescued() -> None:
    """Cuts, restarts, snapshots and retention with something that waits; the state at the end."""
    with small_grains():
        history = TimerHistory(FakeDisk(page_size=512))
        history.play()
        store = history.store
        assert store is not None
        settle(store)
        model = examine_timers(history, store)
        assert store.start > 0, "files with what waits have left"
        assert len(model.waiting) > 10
        assert len(model.gone) > 10
        assert model.taken_back > 2
        assert model.rescued > 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
def test_a_part_of_the_calls(kind: str) -> None:
    """See the module's text; each kind of loss has calls of its own, ``some`` others each day."""
    step = STRIDE // PARTS if kind == "some" else STRIDE
    for number in numbers(TIMERS.calls, kind, first=LOSSES.index(kind), step=step):
        TIMERS.die(number, kind)

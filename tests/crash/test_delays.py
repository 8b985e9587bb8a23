"""A process dies in any disk call: what is delayed has one copy exactly where a row passes it.

`tests.stores.histories.delays.DelayHistory` sends delayed messages in each step and delivers some,
each time copies and their row as one batch.
"""

from __future__ import annotations

import pytest

from tests.crash.deaths import DELAYS
from tests.crash.rotation import PARTS, numbers
from tests.fakes.disk import FakeDisk
from tests.stores.histories.delays import DelayHistory, examine_delays
from tests.stores.histories.history import LOSSES
from tests.stores.workbench import settle
from twinlog.format.system_topics import DELAY_TOPIC

STRIDE = 160


def test_much_is_delayed_and_delivered() -> None:
    """Cuts, restarts, snapshots and retention with something that waits; the state at the end."""
    disk = FakeDisk(page_size=512)
    history = DelayHistory(disk)
    history.play()
    store = history.store
    assert store is not None
    settle(store)
    examine_delays(history, store)
    waits = sum(store.messaging.delays_waiting(level) for level in (1, 2, 3))
    sent = sum(one.topic == DELAY_TOPIC for one in history.told)
    assert waits > 10
    assert sent > waits + 10
    assert store.start > 0
    assert disk.exists("config/delayOffset.json")


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
def test_a_part_of_the_calls(kind: str) -> None:
    """See the module's text; each kind of loss has calls of its own, ``some`` others each day."""
    step = STRIDE // PARTS if kind == "some" else STRIDE
    for number in numbers(DELAYS.calls, kind, first=LOSSES.index(kind), step=step):
        DELAYS.die(number, kind)

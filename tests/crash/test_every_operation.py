"""A process that dies in any disk call leaves a store that a start understands.

One scripted history (appends, rolls, flushes, checkpoints, snapshots, a cut, epochs, retention,
restarts, clean and not) is run once to count its disk calls, then once for each call, dying there,
with three kinds of loss: nothing (kill -9), everything that was not flushed, a random part of it
(each day of another eighth of the calls, see `tests.crash.rotation`). After each the store opens
without damage, holds what the model says it must, nothing the model does not know, only zeros
beyond, and goes on.

Not here: damage by other hands (`tests.crash.test_damage`).
"""

from __future__ import annotations

import pytest

from tests.crash.deaths import ONE_FOLDER
from tests.crash.rotation import numbers
from tests.fakes.disk import FakeDisk
from tests.stores.histories.history import LOSSES, History


def test_the_history_is_worth_it() -> None:
    """Hundreds of calls, several files, cuts and restarts among them."""
    disk = FakeDisk(page_size=512)
    disk.faults.recording = True
    History(disk).play()
    ops = {op for op, _ in disk.faults.record}
    assert disk.faults.calls >= 400
    assert {"cut.log.zero", "log.roll.create", "prepare.create", "snapshot.write.rename"} <= ops
    assert {"key-index.roll.slots", "key-index.cut.remove", "snapshot.index.slots"} <= ops
    assert {"retention.mark.fsync", "retention.erase", "retention.remove"} <= ops
    assert "retention.queue.remove" in ops


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("part", range(8))
def test_every_call(kind: str, part: int) -> None:
    """See the module's text; which calls those are: `tests.crash.rotation`."""
    for number in numbers(ONE_FOLDER.calls, kind, first=part, step=8):
        ONE_FOLDER.die(number, kind)

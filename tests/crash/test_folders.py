"""A process whose log lies in several folders dies in any disk call.

The history of `tests.stores.histories` on a `MultiFolderDisk`: files are made, adopted,
cut and removed in three folders, whose names become durable one by one.
"""

from __future__ import annotations

import pytest

from tests.crash.deaths import THREE_FOLDERS
from tests.stores.histories.history import LOSSES

PARTS = 96


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
def test_every_ninety_sixth_call(kind: str) -> None:
    """See the module's text; each kind of loss has calls of its own."""
    for number in range(PARTS // 3 * LOSSES.index(kind), THREE_FOLDERS.calls, PARTS):
        THREE_FOLDERS.die(number, kind)

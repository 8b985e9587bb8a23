"""A store of ours whose groups have settled messages behind others that they have not."""

from __future__ import annotations

from dataclasses import replace

from storage import Outcome, Store
from storage.disk.disk import Disk
from storage.messaging.groups import Group
from storage.settings import StoreSettings
from storage.state.controls import CreateTopic
from storage.state.group_controls import CreateGroups
from tests.stores.workbench import SETTINGS, TOPIC, WHO, append, lead, section, settle, token
from twinlog.format.group_rows import AckRow, LeaseRow, ReleaseRow, Row, ShareRow

MINUTE = 60_000
ADOPTABLE = replace(SETTINGS, index_slots=100, index_cells=400)
"""With a key index of which a tool sees how many slots it has."""
OPEN = (0, 1, 6, 7, 8, 9)
"""What ``billing`` has open of queue 0: 0 was tried twice, the others once, 9 not at all."""
ATTEMPTS = {0: 2, 1: 1, 6: 1, 7: 1, 8: 1, 9: 0}


def unsettled(disk: Disk, settings: StoreSettings = ADOPTABLE, *, wall_ms: int = 1000) -> Store:
    """Open a new store, and let its groups consume.

    Of 20 messages in queue 0 the shared group ``billing`` was handed 0 to 9 and has settled 2 to 5;
    of those in queue 2 it has settled all that it was handed. The ordered group ``lane`` was handed
    0 to 5 of queue 0 and has settled 2 and 3. A member of ``audit``, a broadcast group, is at 7.
    """
    store = Store.open(disk, settings, WHO, wall_ms=wall_ms)
    lead(store, epoch=1)
    store.append_control(token(1), CreateTopic(TOPIC, 4, 1), wall_ms=wall_ms)
    groups = Group("billing"), Group("lane", "ordered"), Group("audit", "broadcast")
    store.append_control(token(1), CreateGroups(groups), wall_ms=wall_ms)
    settle(store)
    append(store, section(20, key="a"), section(6, queue=2, key="b"))
    settle(store)
    until = wall_ms + MINUTE
    rows: tuple[Row, ...] = (
        ShareRow(1, "billing", TOPIC, 0, 0, 0), LeaseRow(1, 1, 0, 10, 1, 1, until, 1),
        AckRow(1, 1, 2, 5), LeaseRow(1, 2, 0, 1, 1, 2, until, 2),
        ReleaseRow(1, 1, 8, 8, until + MINUTE, 0), ReleaseRow(1, 1, 9, 9, 0, 1),
        ShareRow(2, "billing", TOPIC, 0, 2, 0), LeaseRow(2, 1, 0, 4, 1, 3, until, 1),
        AckRow(2, 1, 0, 3),
        ShareRow(3, "lane", TOPIC, 0, 0, 0), LeaseRow(3, 1, 0, 6, 2, 4, until, 1),
        AckRow(3, 1, 2, 3),
        ShareRow(4, "audit~w1", TOPIC, 0, 0, 7),
    )  # fmt: skip
    done = store.append_rows(token(1), rows, wall_ms=wall_ms)
    assert done.outcome is Outcome.STORED, done
    settle(store)
    return store

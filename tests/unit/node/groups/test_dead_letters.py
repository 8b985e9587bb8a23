"""Dead letters of a group whose dead letter topic was deleted and is made again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from node.groups.dead_letters import RETRY_SECONDS, DeadLetters
from node.leases.limits import GroupLimits
from node.leases.settles import Dying
from storage import CreateTopic, Outcome
from storage.messaging.groups import Group
from storage.state.controls import DeleteTopic
from storage.state.group_controls import CreateGroups
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import TOPIC, append, master, section, settle, token
from twinlog.format.group_rows import LeaseRow, ShareRow

DEAD = "%DLQ%g"


class Driver:
    """Appends to a store; what is confirmed already is answered at once, as the real one does."""

    def __init__(self) -> None:
        self.store = master(FakeDisk())
        self.creates = 0
        self.buried = 0
        self.later: list[Callable[[], None]] = []

    def control(self, now: float, change: CreateTopic, *, deadline: float, reply: Any) -> None:
        """See `Driver.control`."""
        self.creates += 1
        assert self.creates < 10, "it goes round without an end"
        result = self.store.append_control(token(1), change, wall_ms=3_000)
        if result.end:
            self.later.append(lambda: reply([result], "n1"))
        else:
            reply([result], None)

    def append_rows(self, now: float, rows: Any, **terms: Any) -> None:
        """See `Driver.append_rows`."""
        self.buried += 1


def test_a_topic_that_is_made_again_is_waited_for_without_spinning() -> None:
    """It is confirmed before the dispatcher has passed the deletion: work ends, and comes back."""
    driver = Driver()
    store = driver.store
    for change in CreateGroups((Group("g"),)), CreateTopic(DEAD, 1, 1):
        store.append_control(token(1), change, wall_ms=1_000)
    append(store, section(3))
    settle(store)
    lease = LeaseRow(1, 1, 0, 3, 1, 1, 5_000, 1)
    store.append_rows(token(1), [ShareRow(1, "g", TOPIC, 0, 0, 0), lease], wall_ms=2_000)
    settle(store)
    context = SimpleNamespace(
        driver=driver, records=store.reads, messaging=store.messaging, limits=GroupLimits(),
        family=4, wall_ms=lambda: 3_000, seconds=lambda: 0.0, settled=lambda *_: None,
    )  # fmt: skip
    dead = DeadLetters(cast("Any", context), lambda *_: None)
    dead.add(Dying("g", 1, 1, 0, 2, "rejected", 1), None)
    gone = store.append_control(token(1), DeleteTopic(DEAD, 5), wall_ms=3_000)
    assert gone.outcome is Outcome.STORED
    dead.work(0.0)
    store.commit()
    store.set_confirm(store.end)
    assert store.reads.queues(DEAD) is None, "the dispatcher has not run"
    driver.later.pop()()
    dead.work(0.0)
    assert driver.creates == 1
    assert dead.next_deadline() == RETRY_SECONDS
    settle(store)
    dead.work(RETRY_SECONDS)
    assert (driver.creates, driver.buried) == (1, 1)

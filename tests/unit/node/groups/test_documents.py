"""Lists of many groups and their figures: what one turn of the loop has to do for them."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from node.groups.backlog import Ends
from node.groups.documents import PAGE_QUEUES, page_of_groups
from node.groups.figures import Figures
from storage.messaging.fold import Messaging
from storage.messaging.groups import Group
from twinlog.errors import UnknownTopic
from twinlog.format.group_rows import LeaseRow, ShareRow

QUEUES = 8


class Stage:
    """Groups that consume the same queues, and a count of the questions about those."""

    def __init__(self, groups: int) -> None:
        self.asked: Counter[tuple[str, int]] = Counter()
        fold = Messaging()
        names = {f"g{number:04}": Group(f"g{number:04}") for number in range(groups)}
        for number, name in enumerate(names):
            for queue in range(QUEUES):
                share = number * QUEUES + queue + 1
                fold.apply(ShareRow(share, name, "t", 0, queue, 10), 1)
        fold.apply(LeaseRow(1, 1, 10, 3, 7, 1, 99, 1), 1)
        messaging = SimpleNamespace(confirmed=fold, groups=lambda: names.keys(), group=names.get)
        records = SimpleNamespace(queue_range=self.queue_range, queues=lambda topic: QUEUES)
        members = SimpleNamespace(of=lambda name: [])
        self.context: Any = SimpleNamespace(messaging=messaging, records=records, members=members)

    def queue_range(self, topic: str, queue: int) -> tuple[int, int]:
        """Each queue has 100 messages."""
        self.asked[topic, queue] += 1
        if topic != "t":
            raise UnknownTopic(topic)
        return 0, 100


def test_pages_have_every_group_once_and_bounded_work() -> None:
    """1,000 groups of 8 queues: a page looks at about a thousand of them, at each end once."""
    stage = Stage(1000)
    found: list[Any] = []
    pages, after = 0, ""
    while True:
        stage.asked.clear()
        page = page_of_groups(stage.context, after)
        groups: Any = page["groups"]
        assert len(groups) * QUEUES <= PAGE_QUEUES + QUEUES
        assert max(stage.asked.values()) == 1, "the end of each queue is asked once a page"
        found += groups
        pages += 1
        if page["more"] is None:
            break
        after = str(page["more"])
    assert [one["name"] for one in found] == [f"g{number:04}" for number in range(1000)]
    assert pages == -(-1000 * QUEUES // PAGE_QUEUES)
    assert (found[0]["lag"], found[0]["leased"]) == (90 * QUEUES, 3)
    assert {one["lag"] for one in found} == {90 * QUEUES}


def test_figures_ask_for_each_end_once() -> None:
    """However many groups consume a queue."""
    stage = Stage(200)
    figures = Figures(SimpleNamespace(context=stage.context))  # type: ignore[arg-type]
    lags = figures.lags()
    assert len(lags) == 200
    assert set(lags.values()) == {90.0 * QUEUES}
    assert set(stage.asked.values()) == {1}


def test_a_queue_that_is_gone_has_what_was_handed_out() -> None:
    """Its topic was deleted: nothing new is left in it."""
    stage = Stage(1)
    fold = stage.context.messaging.confirmed
    fold.apply(ShareRow(100, "g0000", "gone", 0, 0, 5), 1)
    share = fold.share(100)
    ends = Ends(stage.context.records)
    assert ends.of(share) is None
    assert ends.lag(share) == 0

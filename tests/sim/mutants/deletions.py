"""Mutants of deleted topics: numbers, when a deletion binds, what snapshots and searches know.

Not here: how they are hunted (`tests.sim.mutants`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from storage.queues.consume_queue import ConsumeQueue
from storage.queues.queues import ConsumeQueues
from storage.read.reader import Reader
from storage.reads import StoreReads
from storage.recovery.derived import Derived
from storage.state.layers import Layers
from tests.sim.mutants.mutant import Mutant, always
from tests.sim.patches import Patches
from tests.sim.swarm import Plan


def _brief(deletions: float = 0.3, **rates: float) -> Callable[[Plan], None]:
    """A topic that is deleted often, and exactly these faults."""

    def change(plan: Plan) -> None:
        plan.rates = dict(rates)
        plan.members, plan.delayed, plan.deletions = 0, 0.0, deletions
        plan.weather.damage_share = 0.0

    return change


def _from_zero(patches: Patches) -> None:
    def drop(self: ConsumeQueue) -> None:
        self.start = self.end = 0

    patches.set(ConsumeQueue, "drop", drop)


def _ignored(patches: Patches) -> None:
    patches.set(ConsumeQueues, "drop", lambda self, topic: None)
    patches.set(ConsumeQueues, "remove_files", always(False))


def _at_confirm(patches: Patches) -> None:
    patches.set(Layers, "_open_again", lambda self: None)


def _forgotten(patches: Patches) -> None:
    whole = Derived.snapshot

    def without(self: Derived, log: Any) -> Any:
        made = whole(self, log)
        topics = tuple(replace(topic, since=0) for topic in made.topics)
        return replace(made, topics=topics, deleted=())

    patches.set(Derived, "snapshot", without)


MUTANTS = (
    Mutant(
        "numbers_from_zero", "R75: a topic made again goes on at its offsets", _from_zero,
        _brief(), alone="QueueFollowsLog",
    ),
    Mutant(
        "incarnation_ignored", "R75: queues begin at their ends",
        _ignored,
        _brief(), alone="DeletedStaysDeleted",
    ),
    Mutant(
        "deletion_at_confirm", "R75: a deletion binds from its append", _at_confirm, _brief(),
        alone="DeletedStaysDeleted",
    ),
    Mutant(
        "served_before_dispatch", "R75: a topic made again is served once its queues are",
        lambda patches: patches.set(Reader, "_early", always(False)),
        _brief(deletions=0.6), alone="DeletedStaysDeleted",
    ),
    Mutant(
        "deletion_forgotten", "R75: a snapshot knows what was deleted", _forgotten,
        _brief(kill=0.3), alone="KeysFindRecords",
    ),
    Mutant(
        "search_of_all_lives", "R75: a search finds only the topic of today",
        lambda patches: patches.set(StoreReads, "since", always(0)),
        _brief(), alone="KeysFindRecords",
    ),
)  # fmt: skip
"""Every mutant of deleted topics."""

"""Mutants of what a node tells those who ask it as the master.

Not here: mutants of replication and of the store (`tests.sim.mutants.replication`,
`tests.sim.mutants.storage`), how they are hunted (`tests.sim.mutants`).
"""

from __future__ import annotations

from collections.abc import Sequence

from node.clients.freshness import Freshness
from node.clients.lookups import Lookups
from node.clients.searches import Answer, Finds
from storage.key_index.search import Lookup
from tests.sim.mutants.mutant import Mutant, bend
from tests.sim.patches import Patches
from tests.sim.swarm import Plan
from twinlog.errors import TwinlogError
from twinlog.format.epoch_history import Epoch

_BEHIND = bend(failover=0.4, kill=0.3, all_killed=0.1)


def _settled_without_confirm(patches: Patches) -> None:
    def knows(self: Freshness, epochs: Sequence[Epoch], confirm: int) -> bool:
        return self.role == "master"

    patches.set(Freshness, "knows", knows)


def _settled_without_dispatch(patches: Patches) -> None:
    def settled(self: Lookups, freshness: Freshness) -> bool:
        return freshness.knows(self._store.epochs, self._store.confirm)

    patches.set(Lookups, "_settled", settled)


def _search_says_nothing(patches: Patches) -> None:
    real = Finds.finish

    def finish(self: Finds, lookup: Lookup, error: TwinlogError | None) -> Answer:
        fields, slices = real(self, lookup, error)
        return {name: value for name, value in fields.items() if name != "settled"}, slices

    patches.set(Finds, "finish", finish)


def _slave_denies_topic(patches: Patches) -> None:
    def doubted(self: Freshness, error: TwinlogError) -> TwinlogError:
        return error

    patches.set(Freshness, "doubted", doubted)


def _in_slices(plan: Plan) -> None:
    _BEHIND(plan)
    plan.slice_bytes = 1024


MUTANTS = (
    Mutant("settled_without_confirm", "a master says that it does not know yet what is confirmed",
           _settled_without_confirm, _BEHIND),
    Mutant("settled_without_dispatch", "a master says that its queues are not built up",
           _settled_without_dispatch, _in_slices),
    Mutant("search_says_nothing", "a search says that it may not have seen all that is confirmed",
           _search_says_nothing, _BEHIND),
    Mutant("slave_denies_topic", "only a master's word counts that there is no such topic",
           _slave_denies_topic, bend(wipe=0.2, kill=0.2, topic=0.3, failover=0.2)),
)  # fmt: skip

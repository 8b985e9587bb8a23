"""The mutants: one named function of production replaced, one rule gone.

Names are those of the protocol's lists. The functions exist under these names so that they can be
taken away one by one; when one is renamed, its mutant fails with an AttributeError or KeyError
before it runs.

Not here: how they are hunted (`tests.sim.mutants`).
"""

from __future__ import annotations

from collections.abc import Callable

from replication import register_rules, slave_session
from replication.core import ReplicaCore
from replication.in_sync import InSyncSet
from replication.master_session import MasterSession
from tests.sim.mutants import Patches
from tests.sim.swarm import Plan


def always(value: object) -> Callable[..., object]:
    """A function that returns ``value`` whatever it is asked."""
    return lambda *args, **names: value


# -- bends: circumstances in which a rule matters


def faults(**rates: float) -> Callable[[Plan], None]:
    """Exactly these faults, often, in a world that is otherwise kind."""

    def bend(plan: Plan) -> None:
        plan.rates = dict(rates)

    return bend


def _no_minisr(patches: Patches) -> None:
    patches.set(InSyncSet, "may_confirm", always(True))


def _no_co_expand(patches: Patches) -> None:
    patches.set(InSyncSet, "has_confirmed", always(True))
    patches.set(InSyncSet, "has_epoch", always(True))


def _shrink_eager(patches: Patches) -> None:
    def names(self: InSyncSet) -> set[str]:
        found = set(self.state.isr)
        if self.proposal is not None:
            found |= set(self.proposal.add)
            found -= set(self.proposal.remove)
        return found

    patches.set(InSyncSet, "counted_names", names)


def _no_maximal(patches: Patches) -> None:
    patches.set(InSyncSet, "counted_names", lambda self: set(self.state.isr))


def _rollback_on_read(patches: Patches) -> None:
    patches.set(InSyncSet, "settles", always(True))


def _no_unclean_exclusion(patches: Patches) -> None:
    patches.set(register_rules, "loses_membership", always(False))


def _unclean_elect(patches: Patches) -> None:
    patches.set(register_rules, "is_eligible", lambda state, node: node in state.reg)
    patches.set(ReplicaCore, "may_stand", always(True))


def _no_session_check(patches: Patches) -> None:
    patches.set(register_rules, "has_registered_session", always(True))
    patches.set(register_rules, "has_current_session", always(True))
    patches.set(InSyncSet, "is_of_session", always(True))


def _no_epoch_in_ack(patches: Patches) -> None:
    patches.set(MasterSession, "is_of_epoch", always(True))


def _adopt_foreign_isr(patches: Patches) -> None:
    patches.set(ReplicaCore, "is_our_reign", always(True))


def _no_revision_in_ack(patches: Patches) -> None:
    patches.set(InSyncSet, "shows_revision", always(True))


def _cut_below_confirm(patches: Patches) -> None:
    patches.set(slave_session, "keeps_confirmed", always(True))

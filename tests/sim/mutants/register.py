"""Mutants of joining, of quarantine, and of the ways back: vacancy, seeds, recovery, leases.

Not here: mutants of the replication core (`tests.sim.mutants.replication`), how they are hunted
(`tests.sim.mutants`).
"""

from __future__ import annotations

from dataclasses import replace

from replication.core.master.in_sync import InSyncSet
from replication.core.master.leading import Leading
from replication.core.register_questions import Questions
from replication.core.roles import Role
from replication.register import leases, membership, recovery, rules, vacancy
from replication.register.group_state import GroupState
from replication.register.register import Register
from storage.recovery import open as recovery_open
from storage.recovery import reseed
from tests.sim.mutants.mutant import Mutant, always, bend
from tests.sim.patches import Patches
from tests.sim.stories import tales
from tests.sim.swarm import Plan


def _half_is_enough(patches: Patches) -> None:
    def is_open(self: Register) -> bool:
        replicas = self.state.replicas
        reported = sum(name in self._reported for name in replicas)
        return not self._restarted or not replicas or 2 * reported >= len(replicas)

    patches.set(Register, "is_open", is_open)


def _join_without_epoch(patches: Patches) -> None:
    patches.set(InSyncSet, "has_epoch", always(True))


def _active_before_flush(patches: Patches) -> None:
    real = Leading.__dict__["_open"]

    def begin(self: Leading, now: float) -> None:
        log = self._context.log
        if self._context.role.state is Role.STARTING:
            self._context.log = _Flushed(log)  # type: ignore[assignment]
        try:
            real(self, now)
        finally:
            self._context.log = log

    patches.set(Leading, "_open", begin)


class _Flushed:
    """A log that calls all of itself flushed."""

    def __init__(self, log: object) -> None:
        self._log = log

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, "end" if name == "flushed" else name)


def _quarantine_ignored(patches: Patches) -> None:
    patches.set(recovery_open, "read_quarantine", always(None))


def _best_without_all(patches: Patches) -> None:
    patches.set(vacancy, "missing_ends", always(()))


def _seed_forgotten(patches: Patches) -> None:
    patches.set(reseed, "read_seed", always(None))


def _overtaken(plan: Plan) -> None:
    bend(keep_files=1, wipe=0.3, kill=0.2, crash_in_call=0.8)(plan)
    plan.absent_seconds = 1.0
    plan.segment_size = 16 * 1024


def _granted_again(patches: Patches) -> None:
    patches.set(recovery, "EPOCH_STEP", 0)


def _no_lease(patches: Patches) -> None:
    patches.set(Questions, "refuses", always(None))


def _other_store_counts(patches: Patches) -> None:
    patches.set(rules, "is_other_store", always(False))


def _leaver_stays(patches: Patches) -> None:
    real = rules.crowned

    def crowned(state: GroupState, node: str) -> GroupState:
        made, old = real(state, node), state.previous
        if old is None or old not in state.isr:
            return made
        return replace(made, isr=dict(sorted({**made.isr, old: state.isr[old]}.items())))

    patches.set(rules, "crowned", crowned)


def _weak_and_cut_off(plan: Plan) -> None:
    bend(isolate=0.2, one_way=0.2, coordinator_cut=0.6)(plan)
    plan.failover = "automatic"
    plan.producers = ("written", "flushed", "written")
    plan.pause_between_sends = 0.1


def _pause_ignored(patches: Patches) -> None:
    patches.set(leases, "is_paused", always(False))


def _maintenance_ignored(patches: Patches) -> None:
    patches.set(rules, "is_in_maintenance", always(False))


def _learner_counts(patches: Patches) -> None:
    patches.set(InSyncSet, "is_learner", always(False))
    patches.set(rules, "may_be_in_sync", always(True))


def _old_node_registers(patches: Patches) -> None:
    patches.set(rules, "is_new_enough", always(True))


def _level_unasked(patches: Patches) -> None:
    patches.set(membership, "knows_level", always(True))


MUTANTS = (
    Mutant("half_is_enough", "no change before more than half have reported", _half_is_enough,
           None, tale=tales.half_of_the_replicas_report),
    Mutant("join_without_epoch", "a joining slave has the whole epoch record", _join_without_epoch,
           None, tale=tales.a_sleeping_master_confirms_late),
    Mutant("active_before_flush", "a master takes writes once its epoch record is flushed",
           _active_before_flush, None),
    Mutant("quarantine_ignored", "a quarantine outlives a restart",
           _quarantine_ignored, None, tale=tales.a_reader_finds_rot),
    Mutant("best_without_all", "the best is elected once every replica has reported",
           _best_without_all, None, tale=tales.the_best_is_away),
    Mutant("seed_forgotten", "a start that finds a seed repeats the deletion", _seed_forgotten,
           _overtaken),
    Mutant("granted_again", "a recovered register grants no epoch that was granted before",
           _granted_again, None, tale=tales.a_grant_that_no_node_saw),
    Mutant("other_store_counts", "an empty or an old directory leaves both sets",
           _other_store_counts, bend(wipe=0.3, old_disk=0.2, kill=0.2, failover=0.2)),
    Mutant("leaver_stays", "an election takes the old master out of the in-sync set",
           _leaver_stays, bend(failover=0.3, partition=0.3, pause=0.2, coordinator_cut=0.3),
           redundant="who is in the set is waited for until a recorded change removes it"),
    Mutant("pause_ignored", "a silent master is not deposed during a pause", _pause_ignored, None,
           tale=tales.a_master_dies_during_a_pause),
    Mutant("maintenance_ignored", "a node in maintenance is not elected", _maintenance_ignored,
           None, tale=tales.an_operator_elects_a_node_in_maintenance),
    Mutant("learner_counts", "a learner is in no set", _learner_counts, None,
           tale=tales.a_learner_copies),
    Mutant("old_node_registers", "a node that is too old is not registered", _old_node_registers,
           None, tale=tales.a_group_is_upgraded),
    Mutant("level_unasked", "the level rises once every node knows it", _level_unasked, None,
           tale=tales.a_group_is_upgraded),
    Mutant("no_lease", "without a lease no weak acknowledgement is given", _no_lease,
           _weak_and_cut_off),
)  # fmt: skip

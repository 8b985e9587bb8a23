"""Mutants of the replication core and of the register.

Names are those of docs/protocol.md. The functions exist under these names so that they can be
taken away one by one; when one is renamed, its mutant fails with a KeyError before it runs.

Not here: mutants of the store (`tests.sim.mutants.storage`), how they are hunted
(`tests.sim.mutants`).
"""

from __future__ import annotations

from dataclasses import replace

from replication.core import peer_checks
from replication.core.commands import TakeToken
from replication.core.context import Context
from replication.core.following import Following
from replication.core.master.in_sync import InSyncSet
from replication.core.master.session import MasterSession
from replication.core.master.slave_links import SlaveLinks
from replication.core.master.waiters import Waiters
from replication.core.messages import Ack, Append, HelloOk
from replication.core.promises import Promises
from replication.core.replica import ReplicaCore
from replication.driver.driver import Driver
from replication.driver.outgoing_batches import OutgoingBatches
from replication.register import rules as register_rules
from replication.register.group_state import GroupState
from replication.register.operations import AlterInSync
from replication.register.register import Register
from storage.marks.promise import PromiseFile
from tests.sim.mutants.mutant import Mutant, always, bend
from tests.sim.patches import Patches
from tests.sim.swarm import Plan

_DEPOSED = bend(failover=0.3, partition=0.3, one_way=0.3, pause=0.2, coordinator_cut=0.3)
_LOSSES = bend(power=0.25, failover=0.25, kill=0.1, pause=0.1)


def _no_minisr(patches: Patches) -> None:
    patches.set(InSyncSet, "may_confirm", always(True))


def _no_co_expand(patches: Patches) -> None:
    patches.set(InSyncSet, "has_confirmed", always(True))
    patches.set(InSyncSet, "has_epoch", always(True))


def _shrink_eager(patches: Patches) -> None:
    def names(self: InSyncSet) -> set[str]:
        found = set(self.state.isr)
        if self.proposal is not None:
            found = (found | set(self.proposal.add)) - set(self.proposal.remove)
        return found

    patches.set(InSyncSet, "counted_names", names)


def _no_maximal(patches: Patches) -> None:
    patches.set(InSyncSet, "counted_names", lambda self: set(self.state.isr))


def _rollback_on_read(patches: Patches) -> None:
    patches.set(InSyncSet, "settles", always(True))


def _no_unclean_exclusion(patches: Patches) -> None:
    patches.set(register_rules, "loses_membership", always(False))


def _suspect_not_complete(patches: Patches) -> None:
    """Who registered uncleanly is eligible like any other member that left a small set."""
    real = register_rules.settle_sets

    def settle(before: GroupState, after: GroupState) -> GroupState:
        settled = real(before, replace(after, suspect={}))
        return replace(settled, suspect=after.suspect)

    patches.set(register_rules, "settle_sets", settle)


def _blame_slave(patches: Patches) -> None:
    patches.set(OutgoingBatches, "damage_at", always(None))


def _unclean_elect(patches: Patches) -> None:
    patches.set(register_rules, "is_eligible", lambda state, node: node in state.reg)
    patches.set(ReplicaCore, "may_stand", always(True))


def _no_session_check(patches: Patches) -> None:
    patches.set(register_rules, "has_registered_session", always(True))
    patches.set(InSyncSet, "is_of_session", always(True))


def _no_epoch_in_ack(patches: Patches) -> None:
    patches.set(MasterSession, "is_of_epoch", always(True))


def _no_promise_first(patches: Patches) -> None:
    real = ReplicaCore.__dict__["see"]

    def see(self: ReplicaCore, now: float, state: GroupState) -> None:
        real(self, now, state)
        self._act(now)

    patches.set(Promises, "has_promised", always(True))
    patches.set(ReplicaCore, "see", see)


def _adopt_foreign_isr(patches: Patches) -> None:
    patches.set(ReplicaCore, "is_our_leadership", always(True))


def _same_epoch_restart(patches: Patches) -> None:
    real = register_rules.leaderless

    def keep(state: object, *, reason: str, by: str) -> object:
        return state if reason == "restart" else real(state, reason=reason, by=by)  # type: ignore[arg-type]

    def lead_again(self: ReplicaCore, now: float) -> None:
        state = self.context.newest
        if state is not None and state.leader == self.context.node.name:
            object.__setattr__(state, "leader_session", self.context.session)
        _act(self, now)

    _act = ReplicaCore.__dict__["_act"]
    patches.set(register_rules, "leaderless", keep)
    patches.set(ReplicaCore, "_act", lead_again)
    patches.set(ReplicaCore, "may_begin_leading", always(True))


def _volatile_promise(patches: Patches) -> None:
    patches.set(PromiseFile, "write", always(None))


def _trunc_hw(patches: Patches) -> None:
    real = peer_checks.judge_hello_ok

    def judge(ok: HelloOk, own: peer_checks.Own, *rest: object) -> peer_checks.Verdict:
        verdict = real(ok, own, *rest)  # type: ignore[arg-type]
        if isinstance(verdict, peer_checks.Agreed):
            return peer_checks.Agreed(min(verdict.point, own.confirm))
        return verdict

    patches.set(peer_checks, "judge_hello_ok", judge)


def _trunc_to_co(patches: Patches) -> None:
    real = Driver.__dict__["_do_take"]

    def take(self: Driver, now: float, command: TakeToken) -> None:
        real(self, now, command)
        if command.token.role == "master" and self.store.confirm < self.store.end:
            job = self.store.cut_job(command.token, self.store.confirm)
            job.run()
            self.store.jobs.finish(job)

    patches.set(Driver, "_do_take", take)


def _cut_below_confirm(patches: Patches) -> None:
    _unclean_elect(patches)
    patches.set(peer_checks, "keeps_confirmed", always(True))


def _confirm_own_end(patches: Patches) -> None:
    real = Following.__dict__["_follow_confirm"]

    def follow(self: Following, confirm: int) -> None:
        real(self, self._context.log.end)

    patches.set(Following, "_follow_confirm", follow)


def _ack_before_fsync(patches: Patches) -> None:
    patches.set(SlaveLinks, "quality_of", lambda self, ack: ack.end)


def _leader_no_fsync(patches: Patches) -> None:
    patches.set(Context, "own_end", lambda self: self.log.end)


def _ack_before_entry(patches: Patches) -> None:
    real = Following.__dict__["_on_append"]

    def on_append(self: Following, now: float, append: Append) -> None:
        from replication.core import commands, messages

        entries = messages.unpack_entries(append.entries)
        if entries and self.streaming and self.conn is not None:
            end, context = entries[-1].end, self._context
            flushed, revision = context.log.flushed, context.promise.revision
            ack = Ack(self.epoch, context.session, end, flushed, context.log.confirm, revision, "")
            context.do(commands.Send(self.conn, ack))
        real(self, now, append)

    patches.set(Following, "_on_append", on_append)


def _no_revision_in_ack(patches: Patches) -> None:
    patches.set(InSyncSet, "shows_revision", always(True))
    patches.set(Following, "may_ack", always(True))


def _register_restored(patches: Patches) -> None:
    patches.set(Register, "_knows", always(True))
    patches.set(Promises, "is_older", always(False))


def _changes_before_reports(patches: Patches) -> None:
    patches.set(Register, "is_open", always(True))
    patches.set(Register, "_knows", always(True))


def _propose_without_revision(patches: Patches) -> None:
    real = register_rules.__dict__["_RULES"][AlterInSync]

    def alter(state: object, op: AlterInSync, wall_ms: int) -> object:
        return real(state, replace(op, revision=state.revision), wall_ms)  # type: ignore[attr-defined]

    rules = dict(register_rules.__dict__["_RULES"])
    rules[AlterInSync] = alter
    patches.set(register_rules, "_RULES", rules)


def _waiters_outlive_leadership(patches: Patches) -> None:
    patches.set(Waiters, "drain", always([]))


def _patient(plan: Plan) -> None:
    _DEPOSED(plan)
    plan.append_deadline = 30.0


MUTANTS = (
    Mutant("waiters_outlive_leadership", "the end of a leadership answers all that waits: unknown",
           _waiters_outlive_leadership, _patient),
    Mutant("no_minisr", "confirm needs min_isr recorded members", _no_minisr, _LOSSES),
    Mutant("no_co_expand", "a joining slave has all that is confirmed", _no_co_expand,
           bend(stream_cut=0.5, kill=0.2, failover=0.2)),
    Mutant("shrink_eager", "who leaves counts until the change is recorded", _shrink_eager,
           bend(one_way=0.4, coordinator_cut=0.5, failover=0.3, partition=0.2)),
    Mutant("no_maximal", "who is proposed counts from the proposal on", _no_maximal,
           bend(coordinator_cut=0.5, kill=0.2, stream_cut=0.5, failover=0.3)),
    Mutant("rollback_on_read", "only a newer revision settles a proposal", _rollback_on_read,
           bend(coordinator_cut=0.5, kill=0.2, stream_cut=0.5, failover=0.3)),
    Mutant("propose_no_revision", "a proposal names the revision it changes",
           _propose_without_revision, bend(coordinator_cut=0.5, kill=0.2, stream_cut=0.5)),
    Mutant("no_unclean_exclusion", "an unclean store leaves both sets", _no_unclean_exclusion,
           _LOSSES),
    Mutant("blame_slave", "a master looks at its own copy first", _blame_slave,
           bend(rot=2.0, partition=0.3)),
    Mutant("suspect_not_complete", "a suspect is no candidate", _suspect_not_complete, _LOSSES),
    Mutant("unclean_elect", "only members of either set are elected", _unclean_elect, _LOSSES),
    Mutant("unclean_master", "only members of either set are elected", _unclean_elect, _LOSSES,
           alone="MasterComplete"),
    Mutant("cut_below_confirm", "no cut below the own confirm offset", _cut_below_confirm,
           _LOSSES, alone="TruncateOnlyUnconfirmed"),
    Mutant("confirm_own_end", "a slave's confirm offset follows its master's", _confirm_own_end,
           _DEPOSED, alone="ConfirmBehindEnd"),
    Mutant("no_session_check", "proposals and acks name the incarnation", _no_session_check,
           _LOSSES,
           redundant="a registration is a new revision, and a proposal names the one it changes"),
    Mutant("no_epoch_in_ack", "acknowledgements count in their epoch", _no_epoch_in_ack, _DEPOSED,
           redundant="a link belongs to one leadership and is closed with it"),
    Mutant("no_promise_first", "nothing is acted upon before its promise is on disk",
           _no_promise_first, _LOSSES),
    Mutant("adopt_foreign_isr", "another leader in the register ends the leadership",
           _adopt_foreign_isr, _DEPOSED),
    Mutant("same_epoch_restart", "no second life in the same epoch", _same_epoch_restart,
           bend(kill=0.4, power=0.2)),
    Mutant("volatile_promise", "a promise survives the process", _volatile_promise,
           bend(kill=0.3, failover=0.2)),
    Mutant("trunc_hw", "a slave cuts to the common point, not to its confirm", _trunc_hw,
           _DEPOSED),
    Mutant("trunc_to_co", "a new master keeps its whole log", _trunc_to_co, _DEPOSED),
    Mutant("ack_before_fsync", "durable counts flushed bytes only", _ack_before_fsync,
           bend(quality="durable", blackout=0.2, power=0.3, failover=0.2)),
    Mutant("leader_no_fsync", "durable holds for the master's own part", _leader_no_fsync,
           bend(quality="durable", blackout=0.2, power=0.3, failover=0.2)),
    Mutant("ack_before_entry", "acknowledged is what has its entry", _ack_before_entry, None),
    Mutant("register_restored", "the register never goes back", _register_restored,
           bend(register_restored=0.3, failover=0.2)),
    Mutant("changes_before_reports", "no change before more than half have reported",
           _changes_before_reports, bend(register_restored=0.3, failover=0.2)),
    Mutant("no_revision_in_ack", "acks show the revision of the set they count under",
           _no_revision_in_ack,
           bend(set_forgotten=1.0, kill=0.3, coordinator_cut=1.0, stream_cut=0.6)),
)  # fmt: skip

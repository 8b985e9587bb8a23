"""Mutants of groups: leases, settling, dead letters, members, and what a member believes.

Not here: how they are hunted (`tests.sim.mutants`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import node.groups.dead_letters as dead_letters_module
import node.groups.service as service_module
import node.groups.together as together_module
import node.leases.due as due_module
import node.leases.leasing as leasing_module
import twinlog.groups.core as core_module
from node.groups.dead_letters import DeadLetters
from node.groups.joining import Joining
from node.groups.members import Members, Session
from node.groups.pops import Pops
from node.groups.service import WorkQueues
from node.leases.due import Due
from node.leases.leasing import Handed, Leasing
from node.leases.settles import Settling
from replication.driver.driver import Driver
from storage.messaging.ahead import Ahead
from storage.messaging.copies import dead_letters
from storage.messaging.fold import Member, Messaging, Values
from storage.messaging.share import SETTLED, WAITING, Run, Share
from storage.progress import StoreMessaging
from storage.recovery import config_export
from tests.sim.judge.contents import DEAD_TOPIC, STEP_TOPIC
from tests.sim.mutants.mutant import Mutant, always
from tests.sim.patches import Patches
from tests.sim.swarm import Plan
from twinlog.format.group_rows import AckRow, MemberRow
from twinlog.groups.core import GroupCore
from twinlog.groups.leases import Held
from twinlog.groups.outcomes import Told
from twinlog.groups.ready import Ready
from twinlog.wire.groups import What


def _busy(
    *, lights: bool = False, span_max: int = 0, ordered: bool = False, **rates: float
) -> Callable[[Plan], None]:
    """Many members, exactly these faults."""

    def change(plan: Plan) -> None:
        plan.rates = dict(rates)
        plan.members, plan.disturbance, plan.fast_share = 5, 3.0, 0.0
        plan.lights, plan.span_max, plan.runs_max, plan.dead_max = lights, span_max, 0, 0
        plan.keep_files, plan.ordered = 0, ordered
        plan.weather.damage_share = 0.0

    return change


_QUIET = _busy()
_FAILING = _busy(failover=0.3, kill=0.2)


def _slow(*, pause: float = 0.3, extends: float = 0.0, **rates: float) -> Callable[[Plan], None]:
    """As `_busy`, and most bodies take about as long as their lease."""
    busy = _busy(**rates)

    def change(plan: Plan) -> None:
        busy(plan)
        plan.pause_between_sends = pause
        plan.long_share, plan.extend_share, plan.extend_late = 0.9, extends, True

    return change


def _any_order(patches: Patches) -> None:
    patches.set(Leasing, "_in_order", Leasing._in_any_order)  # pyright: ignore


def _passed_over(patches: Patches) -> None:
    def passed(share: Share, member: int, now_ms: int) -> int:
        runs = [run for run in share.runs if run.state == WAITING]
        return runs[0].first if runs else share.next

    patches.set(leasing_module, "head", passed)


def _rest_kept(patches: Patches) -> None:
    def keep(self: Ready, share: int, offset: int, last_pop: int) -> list[Held]:
        return []

    patches.set(Ready, "cut", keep)


def _kept_ahead(patches: Patches) -> None:
    def forget(self: Ahead) -> None:
        self.since = None

    patches.set(Ahead, "forget", forget)


def _before_dispatch(patches: Patches) -> None:
    patches.set(Ahead, "ready", lambda self, dispatched: self.since is not None)


def _answered_at_append(patches: Patches) -> None:
    real = Pops.__dict__["_hand"]

    def hand(self: Pops, pop: Any, handed: Handed, turn: Any) -> None:
        pop.fast = True
        real(self, pop, handed, turn)

    patches.set(Pops, "_hand", hand)


def _settled_at_append(patches: Patches) -> None:
    real = WorkQueues.__dict__["_settle"]

    def settle(self: WorkQueues, fields: Any, rows: Any, done: Any, turn: Any) -> None:
        real(self, fields, rows, done, turn)
        turn.appended.append(turn.answers.pop())

    patches.set(WorkQueues, "_settle", settle)


def _any_lease(patches: Patches) -> None:
    real = Share.__dict__["settle"]

    def settle(self: Share, n: int, first: int, last: int) -> bool:
        run = self.run_at(first)
        return bool(real(self, run.n if run is not None else n, first, last))

    patches.set(Share, "settle", settle)


def _pop_is_new(patches: Patches) -> None:
    patches.set(Leasing, "find", lambda self, group, wish: Handed())


def _reset_keeps(patches: Patches) -> None:
    def reset(self: Share, to: int) -> bool:
        self.low = self.next = to
        self.runs.clear()
        return True

    patches.set(Share, "reset", reset)


def _unused_counts(patches: Patches) -> None:
    real = Share.__dict__["release"]

    def release(self: Share, n: int, first: int, last: int, at: int, unused: int) -> bool:
        return bool(real(self, n, first, last, at, 0))

    patches.set(Share, "release", release)


def _attempts_anew(patches: Patches) -> None:
    real = Leasing.__dict__["_lease"]

    def lease(self: Leasing, wish: Any, handed: Any, share: Any, first: int, count: int,
              attempt: int, found: Any) -> None:  # fmt: skip
        real(self, wish, handed, share, first, count, 1, found)

    patches.set(Leasing, "_lease", lease)


def _apart(prefix: str) -> Callable[[Patches], None]:
    """Sections of such topics and the rows that belong to them are two batches."""

    def apply(patches: Patches) -> None:
        real = Driver.__dict__["append_rows"]

        def append(self: Driver, now: float, rows: Sequence[Any], *, deadline: float, reply: Any,
                   sections: Sequence[Any] = (), size: int = 0) -> None:  # fmt: skip
            if sections and rows and sections[0].topic.startswith(prefix):
                real(self, now, (), deadline=deadline, reply=lambda *_: None, sections=sections)
                sections = ()
            real(self, now, rows, deadline=deadline, reply=reply, sections=sections, size=size)

        patches.set(Driver, "append_rows", append)

    return apply


def _no_grace(patches: Patches) -> None:
    real = WorkQueues.__dict__["_begin"]

    def begin(self: WorkQueues, epoch: int, now: float) -> None:
        real(self, epoch, now)
        self._grace_until = now

    patches.set(WorkQueues, "_begin", begin)


def _low_over_waiting(patches: Patches) -> None:
    def trim(self: Share) -> None:
        while self.runs and self.runs[0].state in (SETTLED, WAITING):
            self.low = self.runs[0].last + 1
            del self.runs[0]

    patches.set(Share, "_trim", trim)


def _snapshot_lacks(what: str) -> Callable[[Patches], None]:
    def apply(patches: Patches) -> None:
        real = Messaging.__dict__["values"]

        def values(self: Messaging) -> Values:
            whole: Values = real(self)
            if what == "members":
                return replace(whole, members=())
            return replace(
                whole, shares=tuple((*one[:6], one[5], *one[7:8], ()) for one in whole.shares)
            )

        patches.set(Messaging, "values", values)

    return apply


def _dispatch_wakes_nobody(patches: Patches) -> None:
    patches.set(Pops, "stirred", lambda self: set())


def _room_wakes_nobody(patches: Patches) -> None:
    patches.set(WorkQueues, "_roomy", lambda self: [])


def _whole_unasked(patches: Patches) -> None:
    patches.set(together_module, "whole", always(True))


def _sessions_end(patches: Patches) -> None:
    real = Members.__dict__["begin"]

    def begin(
        self: Members, groups: Iterable[tuple[str, Member]], now: float, seconds: float
    ) -> None:
        real(self, groups, now, 1.0)

    patches.set(Members, "begin", begin)


def _pops_unheard(patches: Patches) -> None:
    real, answered = Pops.__dict__["pop"], Pops.__dict__["_answer"]

    def pop(self: Pops, fields: Mapping[str, object], asker: Any, done: Any, turn: Any) -> None:
        session = self._context.members.get(str(fields["group"]), int(str(fields["member"])))
        heard = session.heard_at if session is not None else 0.0
        real(self, fields, asker, done, turn)
        if session is not None:
            session.heard_at = heard

    def answer(self: Pops, pop: Any, done: Any, outcome: Any, waited: int = 0) -> None:
        heard = pop.session.heard_at
        answered(self, pop, done, outcome, waited)
        pop.session.heard_at = heard

    patches.set(Pops, "pop", pop)
    patches.set(Pops, "_answer", answer)


def _left_twice(patches: Patches) -> None:
    real = Joining.__dict__["end"]

    def end(self: Joining, session: Session, turn: Any) -> None:
        real(self, session, turn)
        turn.scratch.rows.append(MemberRow(session.group, session.member, session.name, 0))

    patches.set(Joining, "end", end)


def _begins_now(patches: Patches) -> None:
    def first(self: StoreMessaging, group: Any, topic: str, queue: int) -> int:
        found = self._opened.derived.queues.get(topic, queue)
        return found.end if found is not None else 0

    patches.set(StoreMessaging, "first_offset", first)


def _leases_last(patches: Patches) -> None:
    real = core_module.__dict__["leased"]

    def leased(answer: Any, asked: float, taken: float) -> list[Held]:
        found: list[Held] = real(answer, asked, taken)
        for held in found:
            held.ends += 3.0
        return found

    patches.set(core_module, "leased", leased)


def _light_letters(patches: Patches) -> None:
    def copies(*args: Any, light: str = "", **names: Any) -> Any:
        return dead_letters(*args, **names)

    patches.set(dead_letters_module, "dead_letters", copies)


def _deleted_stays(patches: Patches) -> None:
    patches.set(Messaging, "drop_all", lambda self, groups, start, end: None)


def _export_next(patches: Patches) -> None:
    real = config_export.__dict__["group_files"]

    def files(groups: Any, positions: Any, *, changes: int, timestamp: int) -> Any:
        moved = [(topic, group, queue, offset + 1) for topic, group, queue, offset in positions]
        return real(groups, moved, changes=changes, timestamp=timestamp)

    patches.set(config_export, "group_files", files)


def _expiry_wakes_nobody(patches: Patches) -> None:
    real = WorkQueues.__dict__["_pass_time"]

    def pass_time(self: WorkQueues, turn: Any) -> None:
        before, passed, ready = set(turn.stirred), set[str](), Due.ready

        def note(due: Due, group: str, entry: Any) -> None:
            passed.add(group)
            ready(due, group, entry)

        with_notes = Patches()
        with_notes.set(Due, "ready", note)
        try:
            real(self, turn)
        finally:
            with_notes.undo()
        turn.stirred -= passed - before

    patches.set(WorkQueues, "_pass_time", pass_time)


def _refused_forgets(patches: Patches) -> None:
    patches.set(WorkQueues, "_restore", lambda self: None)


def _extension_believed(patches: Patches) -> None:
    real = GroupCore.__dict__["settle"]

    def settle(self: GroupCore, held: Held, told: Told, now: float) -> bool:
        noted = bool(real(self, held, told, now))
        if noted and told.what == What.EXTEND:
            held.ends = now + told.number / 1000
        return noted

    patches.set(GroupCore, "settle", settle)


def _first_end(patches: Patches) -> None:
    def over(share: Share, entry: Any, now_ms: int) -> list[Run]:
        return real(share, entry, 1 << 60)

    real = due_module.over
    for module in (due_module, service_module, leasing_module):
        patches.set(module, "over", over)


def _spins(patches: Patches) -> None:
    real = Members.__dict__["silent"]

    def silent(self: Members, now: float) -> list[Session]:
        before = self._look_at  # pyright: ignore[reportPrivateUsage]
        found: list[Session] = real(self, now)
        if not found:
            self._look_at = before  # pyright: ignore[reportPrivateUsage]
        return found

    patches.set(Members, "silent", silent)


def _gives_up_early(patches: Patches) -> None:
    real = DeadLetters.__dict__["_append"]

    def append(self: DeadLetters, now: float, death: Any, row: Any, sections: Any, *,
               whole: bool) -> None:  # fmt: skip
        real(self, now, death, row, (), whole=whole)

    patches.set(DeadLetters, "_append", append)


def _releases_settle(patches: Patches) -> None:
    def release(self: Settling, group: Any, row: Any, runs: Any) -> None:
        self._scratch.write(AckRow(row.share, row.n, row.first, row.last))

    patches.set(Settling, "_release", release)


MUTANTS = (
    Mutant("services_before_dispatch", "groups are served before all is dispatched",
           _before_dispatch, _FAILING),
    Mutant("ahead_survives_step_down", "a master drops what it decided by", _kept_ahead, _FAILING),
    Mutant("lease_answered_early", "a pop is answered at its confirm", _answered_at_append,
           _QUIET, alone="PopOnce"),
    Mutant("ack_answered_at_append", "a settle is answered at its confirm", _settled_at_append,
           _FAILING, alone="SettledStays"),
    Mutant("n_not_compared", "a row counts for its own lease only", _any_lease, _QUIET),
    Mutant("pop_number_ignored", "a pop that is repeated brings the same", _pop_is_new, _FAILING,
           alone="PopOnce"),
    Mutant("reset_keeps_leases", "a reset ends leases", _reset_keeps, _QUIET,
           alone="StateFollowsLog"),
    Mutant("unused_counts", "what was given back unused does not count", _unused_counts, _QUIET,
           alone="StateFollowsLog"),
    Mutant("attempts_start_anew", "attempts rise", _attempts_anew, _QUIET),
    Mutant("dlq_apart", "a dead letter and its row are one batch", _apart(DEAD_TOPIC), _QUIET),
    Mutant("dlq_without_copy", "what is given up is copied", _gives_up_early, _QUIET),
    Mutant("step_apart", "a step is one batch", _apart(STEP_TOPIC), _QUIET),
    Mutant("no_grace", "a reign begins with a grace", _no_grace, _FAILING),
    Mutant("low_over_waiting", "low moves over settled messages only", _low_over_waiting, _QUIET),
    Mutant("snapshot_without_runs", "a snapshot has the runs", _snapshot_lacks("runs"), _FAILING),
    Mutant("snapshot_without_members", "a snapshot has the members", _snapshot_lacks("members"),
           _FAILING),
    Mutant("dispatch_wakes_nobody", "new messages wake pops", _dispatch_wakes_nobody, _QUIET),
    Mutant("room_wakes_nobody", "room in a share wakes pops", _room_wakes_nobody,
           _busy(span_max=4)),
    Mutant("step_unasked", "a step needs its leases", _whole_unasked, _QUIET),
    Mutant("sessions_end_at_failover", "a reign gives members a session", _sessions_end, _FAILING),
    Mutant("pops_unheard", "a pop is a sign of life", _pops_unheard, _QUIET),
    Mutant("left_twice", "a member leaves once", _left_twice, _QUIET),
    Mutant("begins_now", "a group begins where it was made", _begins_now, _QUIET),
    Mutant("leases_last", "a member's end of a lease is never after the node's", _leases_last,
           _QUIET, alone="LeaseExclusive"),
    Mutant("light_letters_lost", "dead letters of light queues", _light_letters,
           _busy(lights=True)),
    Mutant("release_settles", "what is given back comes again", _releases_settle, _QUIET),
    Mutant("deleted_group_stays", "a deletion takes what the group had", _deleted_stays, _QUIET),
    Mutant("export_next", "the export has the first unsettled message", _export_next, _QUIET,
           alone="ExportIsState"),
    Mutant("order_ignored", "a queue is handed out in order", _any_order, _busy(ordered=True),
           alone="InOrder"),
    Mutant("lease_passed_over", "a lease keeps its queue", _passed_over, _busy(ordered=True),
           alone="InOrder"),
    Mutant("rest_is_kept", "what comes after a failed message is given back", _rest_kept,
           _busy(ordered=True), alone="InOrder"),
    Mutant("expiry_wakes_nobody", "a lease that ends wakes pops", _expiry_wakes_nobody,
           _slow(pause=8.0), alone="ParkedPopsWake"),
    Mutant("refused_turn_forgets", "a turn that was refused has taken nothing", _refused_forgets,
           _slow(pause=1.0, disk_full=0.3)),
    Mutant("extension_believed", "a lease lasts longer once the node has said so",
           _extension_believed, _slow(extends=1.0), alone="LeaseExclusive"),
    Mutant("expiry_at_first_end", "an extended lease ends later", _first_end, _slow(extends=1.0),
           alone="LeaseExclusive"),
    Mutant("sign_of_life_spins", "a sign of life moves the end of a session", _spins, _QUIET,
           alone="NeverSpins"),
)  # fmt: skip

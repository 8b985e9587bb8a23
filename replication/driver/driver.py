"""The driver: connects the pure core with a store and the world. Synchronous, one owner, no tasks.

Production (``replica_service``) and the simulator call the same methods with the same meaning of
``now``; the world is an `Outside`. A call executes the core's commands before it returns: an
appended batch has been handed to every slave's link when `Driver.append` returns.

Invariants:

* every reply given to `append`, `control`, `transfer` and `stop` is called exactly once, maybe
before the call returns; a reply may call the driver again;
* answers are sent before dispatching begins;
* a disk error other than "no space" ends the process: `Outside.crash`, then no more actions.

Links: dialed ones have numbers below `ACCEPTED_FROM`, accepted ones are numbered by the outside
from there. Units: bytes, seconds. Not here: decisions (``core``), sockets, threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from replication.core import commands, messages
from replication.core.context import Node
from replication.core.master.waiters import CONFIRMED, FLUSHED, WRITTEN
from replication.core.replica import ReplicaCore
from replication.core.view import PeerView, RoleView, is_only_copy, role_view
from replication.driver import odd_frames
from replication.driver.appends import Appends, TogetherReply
from replication.driver.background_jobs import FULL_SECONDS, BackgroundJobs
from replication.driver.incoming_batches import received
from replication.driver.outcomes import refusal
from replication.driver.outgoing_batches import OutgoingBatches
from replication.driver.outside import Done, Outside, Reply
from replication.driver.replies import Replies
from replication.driver.retention import RetentionDriver
from replication.driver.scrubbing import ScrubDriver
from replication.register.operations import to_wire
from replication.settings import ReplicationSettings
from storage import (
    Control,
    Damage,
    Job,
    Outcome,
    Promise,
    Section,
    Store,
)
from storage.errors import DiskError, DiskFull
from storage.marks.archive_mark import ArchivedPart, Claim
from storage.state.sections import Together
from twinlog.errors import CorruptionError, ProtocolError
from twinlog.format.group_rows import Row
from twinlog.wire import frames

ACCEPTED_FROM = 1 << 20
"""Numbers of accepted links begin here; a process dials fewer than a million times."""

__all__ = ["ACCEPTED_FROM", "Driver", "Outside", "PeerView", "RoleView"]


class Driver:
    """See the module's text.

    Args:
        store: Open, its recovery done.
        settings: Replication settings; ``settings.ack`` must be the store's ``quality`` at its
        start.
        outside: The world.
        node, cluster, group: Names.
        wall_ms: Wall clock in ms, for records and for people.
        seed: Seed of the jitter of pauses.
        now: Clock at the start.
    """

    def __init__(
        self,
        store: Store,
        settings: ReplicationSettings,
        outside: Outside,
        *,
        node: str,
        wall_ms: Callable[[], int],
        seed: int,
        cluster: str = "",
        group: str = "g1",
        now: float = 0.0,
    ) -> None:
        settings = replace(settings, flush_first=store.settings.flush == "sync")
        self.store = store
        self.settings = settings
        self._outside = outside
        self._wall_ms = wall_ms
        self._now = now
        self.node = node
        names_crc = frames.names_crc(cluster or store.who.cluster, group)
        self._names_crc = names_crc
        family, size = store.who.family, store.settings.segment_size
        who = Node.started(store.boot, node, names_crc, family=family, segment_size=size)
        self.core = ReplicaCore(who, settings, store, store.promise, seed=seed, now=now)
        eager = self.core.context.counts_flushed
        self.jobs = BackgroundJobs(
            store, outside, eager=eager, dispatch_bytes=settings.dispatch_bytes, now=now
        )
        self.retention = RetentionDriver(
            store, self.core, outside, wall_ms=wall_ms, control=self.control, now=now
        )
        self.scrub = ScrubDriver(store, self.core, outside, wall_ms=wall_ms, now=now)
        self._promising: tuple[Job, Promise] | None = None
        self._cutting: tuple[Job, commands.Cut | commands.BeginAgain] | None = None
        self._seeding: dict[Job, int] = {}
        self._again: dict[str, tuple[float, commands.Command]] = {}
        self._replies = Replies(store, self.core, node)
        self._appends = Appends(store, self.core, self._replies, self.jobs, wall_ms=wall_ms)
        self._outgoing = OutgoingBatches(store)
        self._answers: deque[Callable[[], None]] = deque()
        self._running = False
        self._crashed = False
        self._do = self._handlers()

    def _handlers(self) -> Mapping[type, Callable[..., None]]:
        return {
            commands.Send: self._do_send,
            commands.Ship: self._do_ship,
            commands.Receive: self._do_receive,
            commands.Dial: self._do_dial,
            commands.Close: self._do_close,
            commands.Coordinate: self._do_coordinate,
            commands.SavePromise: self._do_promise,
            commands.TakeToken: self._do_take,
            commands.DropToken: self._do_drop,
            commands.AppendEpoch: self._do_epoch,
            commands.RebuildPending: lambda *_: self.store.rebuild_pending(),
            commands.Flush: self._do_flush,
            commands.Cut: self._do_cut,
            commands.MakeSeed: self._do_seed,
            commands.BeginAgain: self._do_begin_again,
            commands.Confirm: self._do_confirm,
            commands.Release: self._replies.release,
            commands.GiveUp: self._replies.give_up,
            commands.Verify: self._do_verify,
            commands.Registered: lambda *_: self.store.registered(),
            commands.SetFacts: self._do_facts,
            commands.Quarantine: self._do_quarantine,
            commands.Answer: self._replies.answer,
            commands.Tell: self._do_tell,
            commands.Changed: self._do_changed,
        }

    # -- events

    def start(self, now: float) -> None:
        """Start the core; called once."""
        self._turn(now, self.core.start)

    def on_accept(self, now: float, conn: int) -> None:
        """A node connected to our slave port."""
        self._turn(now, self.core.on_accept, conn)

    def on_dialed(self, now: float, conn: int) -> None:
        """A dialed link is up."""
        self._turn(now, self.core.on_dialed, conn)

    def on_closed(self, now: float, conn: int, why: str) -> None:
        """A link ended, or a dial failed."""
        self._turn(now, self.core.on_closed, conn, why)

    def on_frame(self, now: float, conn: int, frame: frames.Frame) -> None:
        """A frame arrived; its payload is not kept."""
        try:
            if frame.names_crc != self._names_crc:
                raise ProtocolError("the peer is of another cluster or group", code="names")
            message = messages.decode(frame)
        except ProtocolError as error:
            if not self._crashed:
                self._on_odd_frame(now, conn, frame, error)
            return
        self._turn(now, self.core.on_message, conn, message, brief=True)

    def _on_odd_frame(
        self, now: float, conn: int, frame: frames.Frame, error: ProtocolError
    ) -> None:
        text = odd_frames.odd_text(frame, error)
        self._outside.event("odd-frame", "warning", conn=conn, why=text)
        if (answer := odd_frames.refusal(frame, error, self.core)) is not None:
            self._outside.send(conn, messages.encode(answer, self._names_crc))
        self._outside.close(conn, text)
        self._turn(now, self.core.on_closed, conn, text)

    def on_answer(self, now: float, call_id: int, answer: object) -> None:
        """The register answered with a map; anything else means that the outcome is unknown."""
        known = cast("Mapping[str, object]", answer) if isinstance(answer, Mapping) else None
        self._turn(now, self.core.on_answer, call_id, known)

    def on_group_state(self, now: float, state: Mapping[str, object]) -> None:
        """A state of the register arrived by a watch or a poll."""
        self._turn(now, self.core.on_group_state, state)

    def on_tick(self, now: float) -> None:
        """A deadline passed."""
        for kind, (due, command) in list(self._again.items()):
            if now >= due:
                del self._again[kind]
                self._turn(now, self._once_more, command)
        self._turn(now, self.core.on_tick)

    def _once_more(self, now: float, command: commands.Command) -> None:
        self.core.context.do(command)

    def on_job(self, now: float, job: Job, error: Exception | None) -> None:
        """A job has ended in its thread."""
        self._turn(now, self._finish, job, error)

    def on_copy(self, now: float, start: int, data: bytes | None, text: str) -> None:
        """See `ScrubDriver.on_copy`."""
        self._turn(now, self.scrub.on_copy, start, data, text)

    def order_scrub(self, now: float) -> None:
        """See `ScrubDriver.order`."""
        self._turn(now, self.scrub.order)

    def enter(self, now: float) -> None:
        """A reader needs the queues: dispatch everything confirmed now."""
        if self.store.dispatched < self.store.confirm:
            self.jobs.patient = False
            self._turn(now, self._drain)

    def next_deadline(self) -> float | None:
        """Return when `on_tick` is due; None for never."""
        if self._crashed:
            return None
        due = min(
            self.jobs.next_deadline(self._now),
            self.retention.next_deadline(),
            self.scrub.next_deadline(),
        )
        core = self.core.next_deadline()
        if core is not None and core < due:
            due = core
        for at, _ in self._again.values():
            due = min(due, at)
        return due

    def _turn(
        self, now: float, event: Callable[..., None], *args: object, brief: bool = False
    ) -> None:
        """Give an event to the core and execute its commands; ``brief``: store work may wait."""
        if self._crashed:
            return
        self._now = now
        try:
            try:
                event(now, *args)
                self._drain(now, brief=brief)
            except CorruptionError:
                if self.store.damage is None:
                    raise
            if self.store.damage is not None and self.core.context.damage is None:
                self.core.on_damage(now, self.store.damage.what)
                self._drain(now)
        except CorruptionError as error:
            self._crash(f"the log: {error}")
        except AssertionError as error:
            self._crash(f"an invariant is broken: {error}")
        except DiskError as error:
            self._crash(f"the disk: {error}")

    def _drain(self, now: float, *, brief: bool = False) -> None:
        if self._running:
            return  # called by a reply: the loop below executes the new commands
        self._running = True
        try:
            self._carry_out(now)
            while not self._crashed and self.jobs.commit(now):
                self.core.on_appended(now)
                self._carry_out(now)
            if self._crashed:
                return
            self._outside.push()
            if not (brief and self.jobs.may_wait(now)):
                self._look_after(now)
                self._carry_out(now)
        finally:
            self._running = False
            self._outgoing.clear()

    def _carry_out(self, now: float) -> None:
        """Execute the core's commands, then deliver their answers, until neither is left."""
        out, answers, do = self.core.context.out, self._answers, self._do
        while not self._crashed:
            if out:
                command = out.popleft()
                do[type(command)](now, command)
            elif answers:
                answers.popleft()()
            else:
                return

    def _look_after(self, now: float) -> None:
        self.jobs.work(now)
        self.retention.work(now)
        self.scrub.work(now)
        if (full := self.jobs.dispatch(now, self._wall_ms())) is not None:
            self._outside.event("dispatch-waits", "alarm", what=full)
        for damage in self.store.reads.refused_batches():
            facts = {"file": damage.file, "offset": damage.offset, "what": damage.what}
            self._outside.event("only-copy-damaged", "alarm", **facts)
        for note in self.store.reads.index_notes():
            self._outside.event("index-repaired", "alarm", what=note)

    def _crash(self, why: str) -> None:
        self._crashed = True
        self._outside.event("crash", "alarm", why=why)
        self._outside.crash(why)

    # -- clients

    def append(
        self,
        now: float,
        sections: Sequence[Section],
        *,
        ack: str,
        deadline: float,
        reply: Reply,
    ) -> None:
        """Append sections and answer once ``ack`` holds.

        Args:
            now: Clock.
            sections: Each is stored as a whole or not at all; their bytes are not kept.
            ack: ``written``, ``flushed``, ``replicated`` or ``confirmed``.
            deadline: When the answer becomes "unknown".
            reply: Called exactly once.
        """
        if ack == WRITTEN and self.core.context.settings.flush_first:
            ack = FLUSHED  # such a node gives no weaker acknowledgement
        size = 0
        for section in sections:
            size += len(section.data)
        self.core.questions.look(now)  # a process that slept may get here before its next tick
        refused = self._closed() or self.core.admission(ack, size)
        if refused is not None:
            reply([refusal(*refused) for _ in sections], None)
            return
        self._turn(now, self._appends.sections, sections, ack, deadline, size, reply, brief=True)

    def _closed(self) -> tuple[str, str] | None:
        """Return the refusal of a node that is ending, quarantined or out of space."""
        if self._crashed:
            return "not-master", f"{self.node} is ending"
        if self.store.damage is not None:
            return "not-master", f"{self.node} is quarantined: {self.store.damage.what}"
        if self.retention.refuses:
            return "disk-full", f"the disk of {self.node} is too full for writes; reads continue"
        return None

    def control(
        self,
        now: float,
        change: Control,
        *,
        deadline: float,
        reply: Reply,
    ) -> None:
        """Append a control record; answered once it is confirmed."""
        refused = self._closed() or self.core.admission(CONFIRMED, 1024)
        if refused is not None:
            reply([refusal(*refused)], None)
            return
        self._turn(now, self._appends.control, change, deadline, reply)

    def reign(self) -> tuple[int, tuple[str, str] | None]:
        """Return the epoch that this node leads (0: none), and why groups are not served in it.

        They are served by an active master whose epoch record is confirmed, once all that it
        inherited is dispatched (R62): (code, text) of a refusal until then, None from then on.
        """
        leading = self.core.leading
        epoch = leading.epoch if leading is not None and not self._crashed else 0
        refused = self._closed() or self.core.admission(CONFIRMED, 0)
        if refused is None and not self.store.messaging.ready:
            refused = "not-ready", f"{self.node} has not read all of its log yet"
        return epoch, refused

    def append_rows(
        self,
        now: float,
        rows: Sequence[Row],
        *,
        deadline: float,
        reply: TogetherReply,
        sections: Sequence[Section] = (),
        size: int = 0,
    ) -> None:
        """Append rows of groups, and sections with them in one batch; answered at their confirm.

        Without either it is answered when everything appended so far is confirmed. ``size`` is what
        the answer holds in memory until then, bytes. A refusal means that nothing was written.
        """
        for section in sections:
            size += len(section.data)
        refused = self._closed() or self.core.admission(CONFIRMED, size)
        if refused is not None:
            reply(Together(Outcome.REFUSED, [], 0, *refused), None)
            return
        self._turn(now, self._appends.rows, sections, rows, deadline, size, reply, brief=True)

    def transfer(self, now: float, to: str, reply: Done, *, who: str = "") -> None:
        """Hand the leadership to ``to``; ``ok`` once the register has recorded it."""
        self._turn(now, self._transfer, self._replies.order(reply), to, who)

    def _transfer(self, now: float, request: int, to: str, who: str) -> None:
        if self.jobs.commit(now, at_once=True):
            self.core.on_appended(now)
        self.core.transfer(now, request, to, who)

    @property
    def oldest_stranger(self) -> int | None:
        """The oldest accepted link that has not said HELLO; None when all have."""
        return self.core.oldest_stranger

    def archived(self, now: float, parts: Sequence[ArchivedPart], reply: Done, by: Claim) -> None:
        """See `RetentionDriver.archived`."""
        self._turn(now, self.retention.archived, parts, reply, by)

    def stop(self, now: float, reply: Done) -> None:
        """Refuse new work, answer pending requests, then ``ok``: the store may be closed."""
        self._turn(now, self.core.stop, self._replies.order(reply))

    def view(self, now: float | None = None) -> RoleView:
        """Return the view of this node's role; ``now`` makes the ages exact."""
        at, full = self._now if now is None else now, self._appends.full or self.retention.refuses
        return role_view(self.core, at, full=full)

    # -- commands: links

    def _do_dial(self, now: float, command: commands.Dial) -> None:
        self._outside.dial(command.conn, command.peer)

    def _do_close(self, now: float, command: commands.Close) -> None:
        self._outside.close(command.conn, command.why)

    def _do_coordinate(self, now: float, command: commands.Coordinate) -> None:
        self._outside.coordinate(command.call, to_wire(command.op))

    def _do_tell(self, now: float, command: commands.Tell) -> None:
        self._outside.event(command.name, command.level, **command.facts)

    def _do_changed(self, now: float, command: commands.Changed) -> None:
        self.store.reads.only_copy = is_only_copy(self.core)
        self._outside.changed()

    def _do_send(self, now: float, command: commands.Send) -> None:
        self._outside.send(command.conn, messages.encode(command.message, self._names_crc))

    def _do_ship(self, now: float, command: commands.Ship) -> None:
        append = command.append
        append.time_ms, end = self._wall_ms(), append.offset
        if end < self.store.committed:
            append.entries, append.payload, end = self._outgoing.at(end)
        self._outside.send(command.conn, messages.encode(append, self._names_crc))
        self._answers.append(partial(self.core.on_shipped, now, command.conn, append, end))

    def _do_receive(self, now: float, command: commands.Receive) -> None:
        outcome = received(self.store, command.token, command.append)
        self._answers.append(
            partial(self.core.on_received, now, command.conn, command.append, outcome)
        )

    def _do_verify(self, now: float, command: commands.Verify) -> None:
        what = self._outgoing.damage_at(command.start)
        repairs = what is not None and self.scrub.wounded(command.start)
        args = now, command.conn, command.start, what, repairs
        self._answers.append(partial(self.core.on_verified, *args))

    # -- commands: the log

    def _do_confirm(self, now: float, command: commands.Confirm) -> None:
        self.store.set_confirm(command.offset)

    def _do_take(self, now: float, command: commands.TakeToken) -> None:
        self._appends.token = command.token
        self.store.take_token(command.token)

    def _do_drop(self, now: float, command: commands.DropToken) -> None:
        self._appends.token = None
        self.store.drop_token()

    def _do_epoch(self, now: float, command: commands.AppendEpoch) -> None:
        if self.store.damage is not None:
            return  # found by the command before, and this turn ends the role: no one waits for it
        end: int | None = None
        try:
            end = self.store.append_epoch(
                command.token,
                epoch=command.epoch,
                node=self.node,
                session=command.session,
                wall_ms=self._wall_ms(),
                reason=command.reason,
                by=command.by,
            )
        except DiskFull as error:
            self._outside.event("disk-full", "alarm", what=str(error))
        else:
            self.jobs.wanted = max(self.jobs.wanted, end)
        self._appends.full = end is None
        self._answers.append(partial(self.core.on_epoch_appended, now, command.epoch, end))

    def _do_flush(self, now: float, command: commands.Flush) -> None:
        self.jobs.wanted = max(self.jobs.wanted, self.store.committed)

    def _do_cut(self, now: float, command: commands.Cut) -> None:
        assert self._appends.token is not None
        assert self._cutting is None
        job = self.store.cut_job(self._appends.token, command.to)
        self._cutting = (job, command)
        self._outside.run_job(job)

    def _do_seed(self, now: float, command: commands.MakeSeed) -> None:
        job = self.store.seed_job()
        self._seeding[job] = command.conn
        self._outside.run_job(job)

    def _do_begin_again(self, now: float, command: commands.BeginAgain) -> None:
        assert self._appends.token is not None
        assert self._cutting is None
        try:
            job = self.store.reseed_job(self._appends.token, command.seed)
        except CorruptionError as error:
            self._outside.event("seed-damaged", "alarm", what=str(error))
            self._answers.append(partial(self.core.on_cut, now))
            return
        self._cutting = (job, command)
        self._outside.run_job(job)

    def _do_promise(self, now: float, command: commands.SavePromise) -> None:
        job = self.store.jobs.save_promise_job(command.promise)
        self._promising = (job, command.promise)
        self._outside.run_job(job)

    def _do_facts(self, now: float, command: commands.SetFacts) -> None:
        self.store.note_facts(command.quality, command.level)
        self.jobs.eager = self.core.context.counts_flushed

    def _do_quarantine(self, now: float, command: commands.Quarantine) -> None:
        damage = Damage("", command.start, command.length, command.what)
        self.store.mark_quarantine(damage)

    def _finish(self, now: float, job: Job, error: Exception | None) -> None:
        """Handle a job that has ended."""
        if self._promising is not None and job is self._promising[0]:
            self._finish_promise(now, error)
        elif self._cutting is not None and job is self._cutting[0]:
            self._finish_cut(now, error)
        elif job in self._seeding:
            self._finish_seed(now, job, error)
        else:
            flushed = self.store.flushed
            others = self.retention, self.scrub
            if not any(one.on_job(now, job, error) for one in others):
                self.jobs.on_job(now, job, error)
            if self.store.flushed > flushed:
                self.core.on_flushed(now)

    def _finish_promise(self, now: float, error: Exception | None) -> None:
        assert self._promising is not None
        (job, promise), self._promising = self._promising, None
        self.store.jobs.finish(job)
        if isinstance(error, DiskFull):
            self._again["promise"] = (now + FULL_SECONDS, commands.SavePromise(promise))
            return
        if error is not None:
            raise error
        self.core.on_promised(now, promise)

    def _finish_seed(self, now: float, job: Job, error: Exception | None) -> None:
        conn = self._seeding.pop(job)
        self.store.jobs.finish(job)
        data = job.result if isinstance(job.result, bytes) and error is None else None
        self.core.on_seed(now, conn, data)

    def _finish_cut(self, now: float, error: Exception | None) -> None:
        assert self._cutting is not None
        (job, command), self._cutting = self._cutting, None
        self.store.jobs.finish(job)
        if isinstance(error, DiskFull):
            self._again["cut"] = (now + FULL_SECONDS, command)
            return
        if error is not None:
            # The next start finishes a cut that stopped half-way, from its intent.
            self._crash(f"the cut: {error}")
            return
        if job.result is False and isinstance(command, commands.Cut):
            self._outside.event("cut-without-copy", "alarm", to=command.to)
        self.core.on_cut(now)

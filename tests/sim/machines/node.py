"""One simulated machine with one production node on it: Driver and Store, nothing replaced.

The node is the `Outside` of its driver: frames go to the simulated network, coordinator calls to
the simulated coordinator, jobs run after a delay as a worker thread would run them. A process has
an *incarnation*; everything under way names the incarnation it was meant for, and what arrives at
another one is dropped, as a kernel drops it.

A paused process keeps all that arrives, in order, and wakes with a clock that has jumped.

After everything the driver was told, the judge looks at the node (`World.observe`).

Not here: who decides on crashes (`tests.sim.faults`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING

from replication.driver.driver import Driver
from storage import Job, SectionResult, Store, StoreSettings, Token, Who
from storage.errors import DiskError
from storage.state.controls import CreateTopic
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import SimulatedCrash
from tests.sim.judge.contents import BATCH_TOPIC
from tests.sim.judge.ledger import Violation
from tests.sim.machines.clock import Clock
from tests.sim.machines.copies import ask_others
from tests.sim.machines.group_port import GroupPort, Listener
from tests.sim.machines.node_settings import replication_of, retention_of
from twinlog.format.batch_index import BatchEntry
from twinlog.levels import LEVEL
from twinlog.wire import frames

if TYPE_CHECKING:
    from tests.sim.users.clients import Request
    from tests.sim.world import World

TICKS_MAX = 2000  # a second; a busy master has some hundreds


class ProcessEnded(BaseException):
    """The driver asked for the end of the process; nothing of it runs any more."""


class SimNode:
    """A machine: its disk survives, its process comes and goes.

    Attributes:
        name: Node name.
        incarnation: Number of the process, from 1.
        alive: A process runs.
        paused: It is stopped (SIGSTOP).
        lost_power: The last end of the process took the page cache with it.
        died_cutting: It ended in the middle of a cut.
        died_in_call: It ended in the middle of a call of the disk.
        ended: A writer's token of this process that has ended.
        unclean_pending: An unclean start has not heard the answer to its registration.
        cut_before: A cut was under way when its last event came.
        opened: This process got through opening its store.
        copied: A backup of the data directory.
        queues_checked: Where the judge stopped reading each queue of this process.
        acted_before: Epoch in which it acted as master when its last event came.
        cause: Why the process ended.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        plan = world.plan
        self.disk = FakeDisk(page_size=plan.page_size, seed=f"{plan.seed} {name}")
        self.clock = Clock(world.schedule, plan.drift, Random(f"clock {plan.seed} {name}"))
        self.quality = plan.qualities.get(name, plan.quality)
        self.store: Store | None = None
        self.driver: Driver | None = None
        self.groups: GroupPort | None = None
        self.listener = Listener(self)
        self.incarnation = 0
        self.alive = False
        self.paused = False
        self.lost_power = False
        self.died_cutting = False
        self.died_in_call = False
        self.ended: Token | None = None
        self._token: Token | None = None
        self.unclean_pending = False
        self.copied: FakeDisk | None = None
        self.copies = 0
        self.queues_checked: dict[tuple[str, int], int] = {}
        self.acted_before: int | None = None
        self.cut_before = False
        self.cause = "never started"
        self.opened = False
        self._backlog: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._tick_at = float("inf")
        self._ticks = self._tick_second = 0
        self._jobs = 0
        self._view_seen: tuple[object, ...] = ()

    # -- life and death

    def boot(self) -> None:
        """Start a process; recovery runs at once, its first event comes a little later."""
        self.incarnation += 1
        self.queues_checked = {}
        self.alive = True
        self.clock.resume()
        self.opened = False
        self.ended = self._token = None
        self.cause = ""
        self._backlog = []
        self._tick_at = float("inf")
        self._jobs = 0
        self.world.trace(self.name, "boot", f"#{self.incarnation}")
        try:
            self._open()
        except SimulatedCrash as crash:
            self._died(f"crash in {crash}")
        except DiskError as error:
            self._died(f"disk: {error}")

    def _open(self) -> None:
        world = self.world
        plan = world.plan
        settings = StoreSettings(
            segment_size=plan.segment_size,
            queue_segment_entries=200,
            index_slots=16,
            index_cells=120,
            flush=plan.flushes.get(self.name, plan.flush),
            buffer_pool_bytes=16 * 1024,
            quality=self.quality,
            retention=retention_of(plan), scrub_every_seconds=5.0)  # fmt: skip
        who = Who("sim", "g1", self.name, 4)
        self.store = Store.open(self.disk, settings, who, wall_ms=self.clock.wall_ms())
        world.booted(self)
        self.opened = True
        self.driver = Driver(
            self.store,
            replication_of(plan, self.quality, plan.levels.get(self.name, LEVEL)),
            self,
            node=self.name,
            wall_ms=self.clock.wall_ms,
            seed=plan.seed * 64 + self.incarnation,
            now=self.clock.now(),
        )
        if plan.members or plan.transactions:
            self.groups = GroupPort(self)
        self.tell(self.driver.start)
        self._poll_again(self.incarnation)

    def crash(self, why: str) -> None:
        """The driver gives the process up (`Outside`)."""
        raise ProcessEnded(why)

    def kill(self, *, power: bool) -> None:
        """Kill the process; with ``power`` the machine goes down with it."""
        self._end("power lost" if power else "killed", power=power)

    def _died(self, cause: str) -> None:
        faults = self.world.faults
        self._end(cause, power=False)
        if faults is not None and faults.active:
            faults.node_died(self)
        else:
            self.world.schedule.after(1.0, self._boot_again, self.incarnation)

    def _boot_again(self, incarnation: int) -> None:
        if not self.alive and self.incarnation == incarnation:
            self.boot()

    def _end(self, cause: str, *, power: bool) -> None:
        world = self.world
        world.trace(self.name, "end", cause)
        if not power and self.driver is not None:
            world.coordinator.hang_up(self.name, self.driver.core.context.session)
        self.alive = False
        self.paused = False
        self.cause = cause
        # A start that did not get through leaves the disk as the end before it did.
        self.lost_power = power or (self.lost_power and not self.opened)
        self.died_cutting = self.cutting or (self.died_cutting and not self.opened)
        in_call = cause.startswith("crash in")
        self.died_in_call = in_call or (self.died_in_call and not self.opened)
        # A kill between a failed flush and the note of it may leave no trace.
        errors = self.disk.faults.io_errors > 0
        broken = errors and "EIO" in cause
        self.unclean_pending = self.unclean_pending or errors
        self.disk.faults.io_errors = 0
        self._backlog = []
        world.network.process_gone(self, silently=power)
        self.disk.crash(keep_page_cache=not power, rng=world.schedule.rng)
        self.store = None
        self.driver = None
        self.groups = None
        if power or broken:
            world.lost_bytes(self)

    def wipe(self) -> None:
        """Exchange the disk for an empty one; the process is gone already."""
        self.world.trace(self.name, "wipe")
        plan = self.world.plan
        seed = f"{plan.seed} {self.name} {self.incarnation} new"
        self.disk = FakeDisk(page_size=plan.page_size, seed=seed)
        self.copies += 1
        self.died_cutting = self.lost_power = False
        self.world.wiped(self)

    def back_up(self) -> None:
        """Keep a copy of the data directory as it is now."""
        self.copied = self.disk.copy(f"{self.world.plan.seed} {self.name} {self.incarnation}")

    def restore(self) -> None:
        """Put the copy in the directory's place; the process is gone already."""
        assert self.copied is not None
        self.world.trace(self.name, "old disk")
        self.disk, self.copied = self.copied, None
        self.copies += 1
        self.died_cutting = self.lost_power = False
        self.world.wiped(self)

    def order_stop(self) -> None:
        """Stop cleanly, as TERM does: the driver pays its debts, then the store is closed."""
        if self.driver is not None:
            self.tell(self._stop)

    def _stop(self, now: float) -> None:
        assert self.driver is not None
        incarnation = self.incarnation
        self.driver.stop(now, lambda code, text: self._stopped(incarnation))

    def _stopped(self, incarnation: int) -> None:
        self.world.schedule.after(0.001, self._close, incarnation)

    def _close(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self.store is None:
            return
        if self._jobs or self.paused:
            self.world.schedule.after(0.05, self._close, incarnation)
            return
        cause = "stopped"
        try:
            self.store.close(clean=True)
        except DiskError as error:
            cause = f"stop: {error}"
        except SimulatedCrash as crash:
            cause = f"crash in {crash}"
        self._died(cause)

    def pause(self) -> None:
        """Stop the process; the world goes on."""
        self.world.trace(self.name, "pause")
        self.paused = True

    def resume(self) -> None:
        """Let the process go on with everything that arrived meanwhile."""
        if not self.paused:
            return
        self.world.trace(self.name, "resume")
        self.paused = False
        self.clock.resume()
        backlog, self._backlog = self._backlog, []
        for call, args in backlog:
            self.tell(call, *args)

    # -- everything the driver is told goes through here

    def tell(self, call: Callable[..., None], *args: object) -> None:
        """Call ``call(now, *args)`` of the driver, or later when the process is paused."""
        if not self.alive:
            return
        if self.paused:
            self._backlog.append((call, args))
            return
        self.acted_before = self.acts_in_epoch()
        self.cut_before = self.cutting
        try:
            call(self.clock.now(), *args)
            if self.groups is not None:
                self.groups.after_turn()
        except SimulatedCrash as crash:
            self._observe_last()
            self._died(f"crash in {crash}")
            return
        except ProcessEnded as end:
            self._observe_last()
            self._gave_up(str(end))
            return
        self.world.observe(self)
        self._note_token()
        self._set_tick()

    def _note_token(self) -> None:
        """Keep the token of a writer that ended: somebody may still hold it, too."""
        token = self.store._token if self.store is not None else None
        if token != self._token:
            self.ended, self._token = self._token or self.ended, token

    def _gave_up(self, why: str) -> None:
        """The driver ended its process: right only when the disk left it no choice."""
        if not self.disk.faults.io_errors:
            raise Violation("NeverCrashes", f"{self.name} ends itself: {why}")
        self._died(f"ended itself: {why}")

    def _observe_last(self) -> None:
        """A process that died in the middle of a call may have done something before."""
        self.world.observe(self)

    def _set_tick(self) -> None:
        if self.driver is None:
            return
        deadline = self.driver.next_deadline()
        if deadline is None:
            return
        due = self.clock.true_time(deadline)
        if due < self._tick_at - 1e-9:
            self._tick_at = max(due, self.world.schedule.now + 1e-6)
            self.world.schedule.at(self._tick_at, self._tick, self.incarnation, self._tick_at)

    def _tick(self, incarnation: int, due: float) -> None:
        if not self.alive or incarnation != self.incarnation or due != self._tick_at:
            return
        self._tick_at = float("inf")
        self.count_tick()
        assert self.driver is not None
        deadline = self.driver.next_deadline()
        if deadline is not None and deadline > self.clock.now() + 1e-9 and not self.paused:
            self._set_tick()
            return
        self.tell(self.driver.on_tick)

    def count_tick(self) -> None:
        """A deadline that stays in the past is a timer that burns a core."""
        second = int(self.world.schedule.now)
        if second != self._tick_second:
            self._tick_second, self._ticks = second, 0
        self._ticks += 1
        if self._ticks > TICKS_MAX:
            raise Violation("NeverSpins", f"{self.name}: {self._ticks} ticks in a second")

    # -- streams (Endpoint)

    def stream_opened(self, incarnation: int, conn: int) -> None:
        """A dial succeeded."""
        if incarnation == self.incarnation and self.driver is not None:
            self.tell(self.driver.on_dialed, conn)

    def stream_accepted(self, incarnation: int, conn: int) -> None:
        """Somebody dialed us."""
        if incarnation == self.incarnation and self.driver is not None:
            self.tell(self.driver.on_accept, conn)

    def stream_frame(self, incarnation: int, conn: int, frame: object) -> None:
        """A frame arrived."""
        if incarnation == self.incarnation and self.driver is not None:
            self.tell(self.driver.on_frame, conn, frame)

    def stream_closed(self, incarnation: int, conn: int, why: str) -> None:
        """The stream is gone."""
        if incarnation == self.incarnation and self.driver is not None:
            self.tell(self.driver.on_closed, conn, why)

    # -- Outside

    def send(self, conn: int, frame: frames.Frame) -> None:
        """Put a frame on the wire; its bytes are those of this moment."""
        self.world.sending(self, frame)
        if self.world.plan.wire:
            head, payload = frames.encode(frame)
            reader = frames.FrameReader()
            reader.feed(bytes(head) + bytes(payload))
            copied = reader.next()
            assert copied is not None
        else:
            copied = frames.Frame(
                frame.type,
                flags=frame.flags,
                epoch=frame.epoch,
                request=frame.request,
                names_crc=frame.names_crc,
                fields=frame.fields,
                payload=self.world.network.damaged(bytes(frame.payload)),
            )
        self.world.network.send(self, conn, copied)

    def dial(self, conn: int, peer: str) -> None:
        """Connect to a node."""
        self.world.network.dial(self, conn, self.world.nodes.get(peer))

    def close(self, conn: int, why: str) -> None:
        """Close a link; nothing more is heard of it."""
        self.world.network.close(self, conn, why)

    def coordinate(self, call_id: int, op: dict[str, object]) -> None:
        """Ask the coordinator; silence becomes an unknown outcome."""
        self.world.coordinator.ask(self, self.incarnation, call_id, op)

    def answered(self, incarnation: int, call_id: int, answer: object) -> None:
        """The coordinator's answer, or that there was none."""
        if incarnation == self.incarnation and self.driver is not None:
            self.tell(self.driver.on_answer, call_id, answer)

    def group_state(self, incarnation: int, state: Mapping[str, object]) -> None:
        """The coordinator's state as polled."""
        if incarnation == self.incarnation and self.driver is not None:
            self.tell(self.driver.on_group_state, state)

    def push(self) -> None:
        """Frames leave at once."""

    def run_job(self, job: Job) -> None:
        """Run a job as a thread would: later, at one instant, and tell later still."""
        self._jobs += 1
        self.world.schedule.after(self.disk_delay(), self._job_runs, self.incarnation, job)

    def disk_delay(self) -> float:
        plan, chance = self.world.plan, self.world.schedule.rng.random()
        if plan.disk_slow > plan.disk_delay and chance < 0.05:
            return plan.disk_slow * chance * 20
        return plan.disk_delay * (0.5 + chance)

    def _job_runs(self, incarnation: int, job: Job) -> None:
        if incarnation != self.incarnation or not self.alive:
            return
        error: Exception | None = None
        try:
            job.run()
        except SimulatedCrash as crash:
            self._died(f"crash in {crash}")
            return
        except DiskError as caught:
            error = caught
        self.world.schedule.after(self.disk_delay(), self._job_ran, incarnation, job, error)

    def _job_ran(self, incarnation: int, job: Job, error: Exception | None) -> None:
        if incarnation == self.incarnation and self.driver is not None:
            self._jobs -= 1
            self.tell(self.driver.on_job, job, error)

    def fetch(self, start: int, length: int) -> None:
        """Ask the other machines for a batch."""
        ask_others(self, start, length, self.disk_delay(), self.tell)

    def event(self, name: str, level: str, **facts: object) -> None:
        """Write the driver's event into the trace."""
        self.world.event(self, name, level, facts)

    def changed(self) -> None:
        """The driver's view moved."""
        if self.driver is not None:
            self.world.role_changed(self)

    def view_moved(self) -> bool:
        """Note role and epoch; returns whether they moved."""
        assert self.driver is not None
        core = self.driver.core
        seen = (core.role, core.context.promise.epoch)
        moved = seen != self._view_seen
        if moved:
            self._view_seen = seen
            self.world.trace(self.name, "role", f"{core.role.value} e{seen[1]} {core.trouble}")
        return moved

    # -- coordinator polls

    def _poll_again(self, incarnation: int) -> None:
        if incarnation != self.incarnation or not self.alive:
            return
        self.world.coordinator.poll(self, incarnation)
        rng = self.world.schedule.rng
        self.world.schedule.after(0.8 + 0.4 * rng.random(), self._poll_again, incarnation)

    # -- clients and operators

    def client_append(self, request: Request) -> None:
        """An append request reached this machine."""
        if self.alive and self.driver is not None:
            self.tell(self._append, self.incarnation, request)

    def _append(self, now: float, incarnation: int, request: Request) -> None:
        assert self.driver is not None

        def reply(results: list[SectionResult], how: object) -> None:
            self.world.replied(self, request, results)

        self.driver.append(
            now,
            request.store_sections(),
            ack=request.producer.acknowledge,
            deadline=now + self.world.plan.append_deadline,
            reply=reply,
        )

    def order_transfer(self, to: str) -> None:
        """An operator's switchover."""
        if self.driver is not None:
            self.tell(self._transfer, to)

    def _transfer(self, now: float, to: str) -> None:
        assert self.driver is not None
        name = self.name
        self.driver.transfer(
            now, to, lambda code, text: self.world.trace(name, "transferred", f"{code} {text}")
        )

    def order_topic(self, name: str, queues: int, deadline: float) -> None:
        """An operator's new topic."""
        if self.driver is not None:
            self.tell(self._topic, name, queues, deadline)

    def _topic(self, now: float, name: str, queues: int, deadline: float) -> None:
        assert self.driver is not None
        change = CreateTopic(name, queues, self.clock.wall_ms(), batch=name == BATCH_TOPIC)

        def reply(results: list[SectionResult], how: object) -> None:
            epoch = self.driver.core.context.promise.epoch if self.driver is not None else 0
            self.world.topic_answered(epoch, name, queues, results[0])

        self.driver.control(now, change, deadline=now + deadline, reply=reply)

    # -- what the judge asks

    def entries(self, start: int, end: int) -> list[BatchEntry]:
        """All batches of the store in ``start..end``."""
        assert self.store is not None
        found: list[BatchEntry] = []
        while start < end:
            some = self.store.entries(start, max_bytes=1 << 30, end=end)
            if not some:
                raise Violation("EveryByteHasEntry", f"{self.name}: nothing at {start}, end {end}")
            found.extend(some)
            start = some[-1].start + some[-1].length
        return found

    def acts_in_epoch(self) -> int | None:
        """Epoch in which this node acts as master, None when it does not."""
        leading = self.driver.core.leading if self.driver is not None else None
        return leading.epoch if leading is not None else None

    def session(self) -> int:
        """Session of this process, 0 before it has one."""
        return self.driver.core.context.session if self.driver is not None else 0

    def is_registered(self) -> bool:
        """True when the register names this very process."""
        known = self.world.coordinator.state.reg.get(self.name)
        return (
            self.store is not None
            and known is not None
            and (known.start == self.store.boot.start_id)
        )

    def is_displaced(self) -> bool:
        """True when the node says that another process registered under its name."""
        return self.driver is not None and self.driver.core.trouble.startswith("another process")

    @property
    def is_quarantined(self) -> bool:
        """True when the node says that its log is damaged."""
        return self.driver is not None and self.driver.core.context.damage is not None

    @property
    def cutting(self) -> bool:
        """A cut is under way: log and positions do not fit each other until it is done."""
        return self.driver is not None and self.driver.core.context.cutting

    def describe(self) -> str:
        """Say what this node is, for a person."""
        if self.driver is None:
            return f"down: {self.cause}"
        core = self.driver.core
        link = core.following.why if core.following is not None else ""
        return f"{core.role.value} {core.trouble} {link}".strip()

"""The world around the driver of one node: links to other nodes, threads, the timer, the register.

`ReplicaService` is the driver's `Outside` made of trio. It turns sockets, finished jobs, answers of
the coordinator and the passing of time into calls of the driver, and carries out what the driver
asks for. It decides nothing about the protocol.

A *turn* is what happens between two waits of the loop: some events go into the driver, then `turn`
writes everything that was queued, lets the node look at what moved (`after_turn`) and sets the
timer. Nothing waits inside a turn.

What ends the node: an exception in any task here or in the driver (`driving`), `crash` called by
the driver, a job whose error the driver does not survive. All of them leave through the nursery of
`run` as one exception. A defect of one socket costs that link only.

Limits: a link may have `LINK_UNSENT_MAX` unsent bytes (the driver's own window is smaller); jobs
run on `JOB_THREADS` threads of their own, so that cold reads never delay a flush.

Why one task and threads: docs/decisions/0015.
"""

from __future__ import annotations

import contextlib
import math
import socket
import traceback
from collections.abc import Awaitable, Callable, Generator

import trio

from replication.coordinator.client import CoordinatorClient
from replication.driver.driver import ACCEPTED_FROM, Driver
from replication.net.streams import Outbox, Stream, accept, connect
from storage import Job
from twinlog.errors import TwinlogError
from twinlog.wire import frames

LINK_UNSENT_MAX = 64 << 20
"""Unsent bytes on a link beyond which it is closed: four times the default window of a slave."""

LINKS_MAX = 256
"""Links at a time, far more than a group has nodes: strangers cannot take every descriptor."""

GUEST_FIELDS_MAX = 64 * 1024
"""Bytes of fields that who connects to us may send in a frame, and no payload: slaves greet and
acknowledge. Batches come over links that this node made. `LINKS_MAX` strangers hold 16 MiB."""

JOB_THREADS = 4
"""Flush, cut or promise, checkpoint, prepare: one of each may run at a time."""

DIAL_SECONDS = 2.0
"""How long a slave tries to reach its master's port before it says that nobody answers."""

TIMER_SLACK = 0.0005
"""A deadline this near is due: the timer never wakes for less."""

TIMER_SECONDS = 0.005
"""Between two looks at the driver's deadlines: turns come faster than anything it waits for, and
asking all of its parts costs as much as an acknowledgement. So late may a new deadline be found."""


class NodeCrashed(RuntimeError):
    """The node cannot go on; the text says why. Its store is left as it is, for recovery."""


class ReplicaService:
    """Links, threads, timer and coordinator of one node; implements
    ``replication.driver.driver.Outside``.

    Args:
        peers: Where other nodes take slaves, by name; None for one that is not known.
        tell: Logs and counts an event of the driver.
        moved: Called when the driver's view changed.
        copy: Asks other nodes for a batch, in a thread: its bytes and who gave them, or why not.
        spin_seconds: See `readiness_service`.
    """

    def __init__(
        self,
        *,
        peers: Callable[[str], tuple[str, int] | None],
        tell: Callable[..., None],
        moved: Callable[[], None],
        copy: Callable[[int, int], tuple[bytes | None, str]] | None = None,
        spin_seconds: float = 0.0,
    ) -> None:
        self._spin_seconds = spin_seconds
        self._register: CoordinatorClient | None = None
        self._peers = peers
        self._tell = tell
        self._moved = moved
        self._copy = copy
        self._links: dict[int, Stream] = {}
        self._next_conn = ACCEPTED_FROM
        self._limiter = trio.CapacityLimiter(JOB_THREADS)
        self._driver: Driver | None = None
        self._nursery: trio.Nursery | None = None
        self._outbox: Outbox | None = None
        self._timer = trio.CancelScope()
        self._looked_until = 0.0
        self.after_turn: list[Callable[[float], None]] = []
        """What the node looks at when a turn's bytes are written."""
        self.crashed: str | None = None
        """Why the node ends; nothing may be given to the driver any more."""
        self.timed: Callable[[str, float], None] | None = None
        """Told the kind of each job that left its thread and how long it ran, seconds."""
        self.jobs_running = 0
        self.links_closed: dict[str, int] = {}
        """Links that left the rules of the wire or met a defect, by kind, since the start."""

    # ── life ────────────────────────────────────────────────────────────────────────────────────

    def attach(self, driver: Driver, register: CoordinatorClient) -> None:
        """Name the driver whose world this is, and the group's coordinator; before `run`."""
        self._driver, self._register = driver, register

    @property
    def driver(self) -> Driver:
        """The driver whose world this is."""
        assert self._driver is not None, "attach comes first"
        return self._driver

    @property
    def register(self) -> CoordinatorClient:
        """The coordinator of the group."""
        assert self._register is not None, "attach comes first"
        return self._register

    @property
    def outbox(self) -> Outbox:
        """Where every stream of the node is written at the end of a turn; while `run` runs."""
        assert self._outbox is not None, "the service does not run"
        return self._outbox

    async def run(
        self,
        listener: socket.socket,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Start the driver and serve until cancelled; ready when the tasks stand.

        Cancelled: links are closed without a word, jobs in their threads are waited for (a flush
        cannot be recalled), their results are not given to the driver.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._outbox = Outbox(nursery, self._spin_seconds)
            # The driver begins before anything can reach it.
            self.driver.start(self.now())
            self.turn()
            nursery.start_soon(accept, listener, self._accepted)
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self.register.run)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                for stream in list(self._links.values()):
                    stream.close("node stops")
                self._links.clear()

    def now(self) -> float:
        """Read the loop's time, seconds, and make it the time of this turn."""
        return self.outbox.begin()

    def turn(self) -> None:
        """End a turn: write what was queued, let the node look at what moved, set the timer."""
        outbox, driver = self.outbox, self.driver
        outbox.flush()
        now = outbox.now
        for look in self.after_turn:
            look(now)
        outbox.flush()
        if now >= self._looked_until or driver.jobs.more:
            self._set_timer(now)
        elif self._timer.deadline > self._looked_until:
            self._timer.deadline = self._looked_until

    def enter(self) -> None:
        """Have what is confirmed in its queues: somebody looks."""
        try:
            self.driver.enter(self.outbox.now)
        except Exception as error:
            self._half_done(error)
            raise

    def watched(self, *, by_readers: bool) -> None:
        """Say whether readers wait for records: then none waits for its entry in a queue."""
        assert self._driver is not None, "attach comes first"
        self._driver.jobs.patient = not by_readers

    @contextlib.contextmanager
    def driving(self) -> Generator[None]:
        """Call the driver in the body, for a client: what raises there ends the node.

        Not a `TwinlogError`: that refuses an order before anything of it was done.
        """
        try:
            yield
        except TwinlogError:
            raise
        except Exception as error:
            self._half_done(error)
            raise

    def _half_done(self, error: Exception) -> None:
        """The driver stopped in the middle of an event: nobody knows what it holds."""
        if self.crashed is None:
            self.crashed = f"{type(error).__name__}: {error}"

    def turn_soon(self) -> None:
        """End the turn with the round: once, however many sockets were served in it."""
        self.outbox.readiness.soon(self.turn)

    # ── Outside: what the driver asks for ───────────────────────────────────────────────────────

    def send(self, conn: int, frame: frames.Frame) -> None:
        """Queue a frame; a link that is gone or takes nothing swallows it."""
        stream = self._links.get(conn)
        if stream is None:
            return
        try:
            head, payload = frames.encode(frame)
        except frames.FrameError as error:  # an answer that grew too large: this peer goes without
            stream.close(f"{error.kind}: {error.text}")
            return
        stream.send(head, (payload,) if payload else ())
        if stream.unsent > LINK_UNSENT_MAX:
            stream.close("takes nothing")

    def dial(self, conn: int, peer: str) -> None:
        """Connect to a node's slave port; answered by ``on_dialed`` or ``on_closed``."""
        self._task(self._dial, conn, peer)

    def close(self, conn: int, why: str) -> None:
        """Close a link after what was queued; the driver hears nothing more of it."""
        stream = self._links.pop(conn, None)
        if stream is not None:
            stream.push()
            stream.close(why)

    def coordinate(self, call_id: int, op: dict[str, object]) -> None:
        """Ask the coordinator; answered by ``on_answer``, unknown after its deadline."""
        self._task(self._coordinate, call_id, op)

    def push(self) -> None:
        """Write what was queued before work begins that nobody waits for."""
        self.outbox.flush()

    def run_job(self, job: Job) -> None:
        """Run a job in a thread; answered by ``on_job``."""
        self.jobs_running += 1
        self._task(self._job, job)

    def fetch(self, start: int, length: int) -> None:
        """Ask other nodes for a batch in a thread; answered by ``on_copy``."""
        self._task(self._fetch, start, length)

    def event(self, name: str, level: str, **facts: object) -> None:
        """Log an event of the driver; an alarm is an error, another node is the peer."""
        if "node" in facts:
            facts["peer"] = facts.pop("node")
        self._tell(name, "error" if level == "alarm" else level, **facts)

    def changed(self) -> None:
        """The driver's view moved."""
        self._moved()

    def crash(self, why: str) -> None:
        """End the node at once, without a clean stop.

        Raises:
            NodeCrashed: Always; it leaves through the task that called the driver.
        """
        self.crashed = why
        for stream in list(self._links.values()):
            stream.close("node crashed")
        raise NodeCrashed(why)

    # ── tasks ───────────────────────────────────────────────────────────────────────────────────

    def _task(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        assert self._nursery is not None, "the service does not run"
        self._nursery.start_soon(task, *args)

    def _accepted(self, sock: socket.socket, peer: str) -> None:
        if len(self._links) >= LINKS_MAX and not self._make_room():
            self._count_link("too-many")
            sock.close()
            return
        conn, self._next_conn = self._next_conn, self._next_conn + 1
        guest = frames.FrameReader(fields_max=GUEST_FIELDS_MAX, payload_max=0)
        stream = self._stream(conn, sock, peer, guest)
        self.driver.on_accept(self.now(), conn)
        self.turn()
        self._task(self._serve, conn, stream)

    def _make_room(self) -> bool:
        """Close the link that has waited longest without a HELLO; False when all have greeted.

        Members greet within milliseconds, so strangers cannot keep them out.
        """
        conn = self.driver.oldest_stranger
        if conn is None:
            return False
        self._count_link("stranger")
        why = "no HELLO, and the place is needed"
        self.close(conn, why)
        self.driver.on_closed(self.now(), conn, why)
        return True

    def _stream(
        self, conn: int, sock: socket.socket, peer: str, reader: frames.FrameReader
    ) -> Stream:
        def defect(error: Exception) -> None:
            if self.crashed is not None:
                raise error
            self._count_link("defect")
            trace = "".join(traceback.format_exception(error))
            self._tell("connection_defect", "error", peer=peer, trace=trace)

        stream = Stream(sock, self.outbox, reader, congested=None, defect=defect)
        self._links[conn] = stream
        return stream

    def _count_link(self, kind: str) -> None:
        self.links_closed[kind] = self.links_closed.get(kind, 0) + 1

    async def _dial(self, conn: int, peer: str) -> None:
        address = self._peers(peer)
        why = f"no live entry of {peer} at the coordinator"
        sock: socket.socket | None = None
        if address is not None:
            try:
                with trio.fail_after(DIAL_SECONDS):
                    sock = await connect(*address)
            except (OSError, trio.TooSlowError) as error:
                why = f"{peer} at {address[0]}:{address[1]} does not answer: {error}"
        if self.crashed is not None:
            return
        if sock is None:
            self.driver.on_closed(self.now(), conn, why)
            self.turn()
            return
        stream = self._stream(conn, sock, peer, frames.FrameReader())
        self.driver.on_dialed(self.now(), conn)
        self.turn()
        await self._serve(conn, stream)

    async def _serve(self, conn: int, stream: Stream) -> None:
        driver, outbox = self.driver, self.outbox

        def on_frame(frame: frames.Frame) -> None:
            if self.crashed is None and conn in self._links:
                try:
                    driver.on_frame(outbox.now, conn, frame)
                except Exception as error:
                    self._half_done(error)
                    raise

        try:
            why = await stream.serve(on_frame, self.turn_soon)
        except frames.FrameError as error:
            why = f"{error.kind}: {error.text}"
            self._count_link(error.kind)
            stream.close(why)
        if self._links.pop(conn, None) is not None and self.crashed is None:
            self.driver.on_closed(self.now(), conn, why)
            self.turn()

    async def _coordinate(self, call_id: int, op: dict[str, object]) -> None:
        answer = await self.register.call(op)
        if self.crashed is None:
            self.driver.on_answer(self.now(), call_id, answer)
            self.turn()

    def on_state(self, state: dict[str, object]) -> None:
        """Give the driver a newer group state; the coordinator's client calls this."""
        if self.crashed is None:
            self.driver.on_group_state(self.now(), state)
            self.turn()

    async def _job(self, job: Job) -> None:
        error: Exception | None = None
        started = trio.current_time()
        try:
            with self.outbox.readiness.awaiting():
                await trio.to_thread.run_sync(job.run, limiter=self._limiter)
        except Exception as caught:  # the driver decides which error ends the node
            error = caught
        self.jobs_running -= 1
        if self.timed is not None:
            self.timed(job.kind, trio.current_time() - started)
        if self.crashed is None:
            self.driver.on_job(self.now(), job, error)
            self.turn()

    async def _fetch(self, start: int, length: int) -> None:
        data: bytes | None = None
        why = "no other node is known"
        if self._copy is not None:
            data, why = await trio.to_thread.run_sync(
                self._copy, start, length, abandon_on_cancel=True
            )
        if self.crashed is None:
            self.driver.on_copy(self.now(), start, data, why)
            self.turn()

    async def _keep_time(self) -> None:
        while True:
            with trio.CancelScope() as self._timer:
                self._timer.deadline = self._next()
                await trio.sleep_forever()
            now = self.now()
            if now + TIMER_SLACK >= self._next():
                self.driver.on_tick(now)
                self.turn()

    def _next(self) -> float:
        deadline = self.driver.next_deadline()
        return math.inf if deadline is None else deadline

    def _set_timer(self, now: float) -> None:
        """Wake earlier when a new deadline is earlier; a later one is found when it wakes.

        What turns within `TIMER_SECONDS` from now bring is looked at when they are over.
        """
        if self.crashed is not None:
            return
        deadline = self._next()
        if deadline < self._timer.deadline:
            self._timer.deadline = deadline
        self._looked_until = now + TIMER_SECONDS

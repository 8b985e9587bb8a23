"""The driver's world in a node: links to other nodes, threads, the timer, the coordinator.

`ReplicaService` implements the driver's `Outside` with trio. It turns frames, finished jobs,
answers of the coordinator and deadlines into calls of the driver, and executes the driver's
requests. It decides nothing about the protocol.

A *turn* is the work between two waits of the loop: events are given to the driver, then `turn`
writes everything that was queued, lets the node react to changes (`after_turn`) and sets the timer.
Nothing waits inside a turn.

These end the node: an exception in any task here or in the driver (`driving`), a `crash` of the
driver, a fatal error of a job. All of them propagate through the nursery of `run` as one exception.
A defect of one socket costs only that link.

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
from functools import partial

import trio

from replication.coordinator.client import CoordinatorClient
from replication.driver.driver import ACCEPTED_FROM, Driver
from replication.net.certificates import Certificates
from replication.net.handshakes import Handshakes, connect, connect_secured
from replication.net.streams import Outbox, Stream, accept
from replication.net.threads import Threads
from storage import Job
from twinlog.errors import TwinlogError
from twinlog.session.tls import TlsRefused
from twinlog.session.tls_socket import TlsSocket
from twinlog.wire import frames

LINK_UNSENT_MAX = 64 << 20
"""Unsent bytes on a link beyond which it is closed: four times the default window of a slave."""

LINKS_MAX = 256
"""Links at a time, far more than a group has nodes, so that strangers cannot use up the
descriptors."""

GUEST_FIELDS_MAX = 64 * 1024
"""Bytes of fields in a frame on an accepted link, without payload: slaves only send HELLO and
acknowledgements. Batches arrive on dialed links. `LINKS_MAX` strangers hold at most 16 MiB."""

FRAME_KEPT = 2 << 20
"""Bytes of memory that a slave uses again for the next frame: a full frame, and as much again
because a frame may begin while the one before is in use."""

JOB_THREADS = 4
"""Flush, cut or promise, checkpoint, prepare: one of each may run at a time."""

DIAL_SECONDS = 2.0
"""How long a slave tries to connect to its master before the dial fails."""

TIMER_SLACK = 0.0005
"""A deadline this near counts as due: the timer never wakes for less."""

TIMER_SECONDS = 0.005
"""Time between two reads of the driver's deadline, and how late a new deadline may be noticed:
turns are frequent, and computing the deadline costs as much as an acknowledgement."""


class NodeCrashed(RuntimeError):
    """The node cannot continue; the text says why. Its store is left as it is, for recovery."""


class ReplicaService:
    """Links, threads, timer and coordinator of one node; implements
    ``replication.driver.driver.Outside``.

    Args:
        peers: Addresses of other nodes' slave ports, by name; None for an unknown node.
        tell: Logs and counts an event of the driver.
        moved: Called when the driver's view changed.
        copy: Asks other nodes for a batch, in a thread: its bytes and who gave them, or why not.
        spin_seconds: See `readiness_service`.
        certificates: For TLS with other nodes, in both directions; None: none is spoken.
    """

    def __init__(
        self,
        *,
        peers: Callable[[str], tuple[str, int] | None],
        tell: Callable[..., None],
        moved: Callable[[], None],
        copy: Callable[[int, int], tuple[bytes | None, str]] | None = None,
        spin_seconds: float = 0.0,
        certificates: Certificates | None = None,
    ) -> None:
        self._certificates = certificates
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
        """Called when a turn's bytes are written."""
        self.crashed: str | None = None
        """Why the node ends; the driver must not be called any more."""
        self.timed: Callable[[str, float], None] | None = None
        """Called with the kind of each finished job and its running time, seconds."""
        self.threads = Threads()
        """Runs the node's work beside the loop."""
        self.jobs_running = 0
        self.links_closed: dict[str, int] = {}
        """Links closed for a protocol violation or a defect, by kind, since the start."""

    # ── life ────────────────────────────────────────────────────────────────────────────────────

    def attach(self, driver: Driver, register: CoordinatorClient) -> None:
        """Set the driver and the coordinator's client; before `run`."""
        self._driver, self._register = driver, register

    @property
    def driver(self) -> Driver:
        """The node's driver."""
        assert self._driver is not None, "attach comes first"
        return self._driver

    @property
    def register(self) -> CoordinatorClient:
        """The client of the group's coordinator."""
        assert self._register is not None, "attach comes first"
        return self._register

    @property
    def outbox(self) -> Outbox:
        """Writes every stream of the node at the end of a turn; only while `run` runs."""
        assert self._outbox is not None, "the service does not run"
        return self._outbox

    async def run(
        self,
        listener: socket.socket,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Start the driver and serve until cancelled; ready when the tasks have started.

        Cancelled: links are closed without notice, running jobs are waited for (a flush cannot be
        interrupted), and their results are not given to the driver.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._outbox = Outbox(nursery, self._spin_seconds)
            self._outbox.readiness.idle = self._idle
            # The driver begins before anything can reach it.
            self.driver.start(self.now())
            self.turn()
            accepted: Callable[[socket.socket, str], None] = self._accepted
            if self._certificates is not None:
                context = self._certificates.peers
                accepted = Handshakes(nursery, context, self._accepted, self._tls_refused).begin
            nursery.start_soon(accept, listener, accepted)
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
        """End a turn: write what was queued, let the node react to changes, set the timer."""
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
        """Dispatch everything confirmed: a reader needs the queues."""
        try:
            self.driver.enter(self.outbox.now)
        except Exception as error:
            self._half_done(error)
            raise

    def watched(self, *, by_readers: bool) -> None:
        """Set whether readers wait for records; then dispatching is not delayed."""
        assert self._driver is not None, "attach comes first"
        self._driver.jobs.patient = not by_readers

    @contextlib.contextmanager
    def driving(self) -> Generator[None]:
        """Call the driver in the body, for a client: an exception ends the node.

        Except a `TwinlogError`, which refuses a request before anything was done.
        """
        try:
            yield
        except TwinlogError:
            raise
        except Exception as error:
            self._half_done(error)
            raise

    def _half_done(self, error: Exception) -> None:
        """Note that the driver failed in the middle of an event: its state is unknown."""
        if self.crashed is None:
            self.crashed = f"{type(error).__name__}: {error}"

    def turn_soon(self) -> None:
        """End the turn at the end of the round: once, however many sockets were served in it."""
        self.outbox.readiness.soon(self.turn)

    # ── Outside: requests of the driver ────────────────────────────────────────────────────────

    def send(self, conn: int, frame: frames.Frame) -> None:
        """Queue a frame; on a closed link it is dropped."""
        stream = self._links.get(conn)
        if stream is None:
            return
        try:
            head, payload = frames.encode(frame)
        except frames.FrameError as error:  # an answer that is too large: close this link only
            stream.close(f"{error.kind}: {error.text}")
            return
        stream.send(head, (payload,) if payload else ())
        if stream.unsent > LINK_UNSENT_MAX:
            stream.close("takes nothing")

    def dial(self, conn: int, peer: str) -> None:
        """Connect to a node's slave port; answered by ``on_dialed`` or ``on_closed``."""
        self._task(self._dial, conn, peer)

    def close(self, conn: int, why: str) -> None:
        """Close a link after sending what was queued; no more events of it follow."""
        stream = self._links.pop(conn, None)
        if stream is not None:
            stream.push()
            stream.close(why)

    def coordinate(self, call_id: int, op: dict[str, object]) -> None:
        """Call the coordinator; answered by ``on_answer``, as unknown after its deadline."""
        self._task(self._coordinate, call_id, op)

    def push(self) -> None:
        """Write what was queued, before background work begins."""
        self.outbox.flush()

    def run_job(self, job: Job) -> None:
        """Run a job in a thread; answered by ``on_job``."""
        self.jobs_running += 1
        self._task(self._job, job)

    def fetch(self, start: int, length: int) -> None:
        """Ask other nodes for a batch in a thread; answered by ``on_copy``."""
        self._task(self._fetch, start, length)

    def event(self, name: str, level: str, **facts: object) -> None:
        """Log an event of the driver; an alarm becomes an error, the fact ``node`` a ``peer``."""
        if "node" in facts:
            facts["peer"] = facts.pop("node")
        self._tell(name, "error" if level == "alarm" else level, **facts)

    def changed(self) -> None:
        """The driver's view changed."""
        self._moved()

    def crash(self, why: str) -> None:
        """End the node at once, without a clean stop.

        Raises:
            NodeCrashed: Always; it propagates through the task that called the driver.
        """
        self.crashed = why
        for stream in list(self._links.values()):
            stream.close("node crashed")
        raise NodeCrashed(why)

    # ── tasks ───────────────────────────────────────────────────────────────────────────────────

    def _task(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        assert self._nursery is not None, "the service does not run"
        self._nursery.start_soon(task, *args)

    def _tls_refused(self, peer: str, why: str) -> None:
        self._count_link("tls")
        self._tell("tls_refused", "warning", port="slaves", peer=peer, why=why)

    def _accepted(self, sock: socket.socket | TlsSocket, peer: str) -> None:
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
        """Close the oldest link without a HELLO; False if all have sent one.

        Members send theirs within milliseconds, so strangers cannot keep them out.
        """
        conn = self.driver.oldest_stranger
        if conn is None:
            return False
        self._count_link("stranger")
        why = "no HELLO, and a new link needs the place"
        self.close(conn, why)
        self.driver.on_closed(self.now(), conn, why)
        return True

    def _stream(
        self, conn: int, sock: socket.socket | TlsSocket, peer: str, reader: frames.FrameReader
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
        sock: socket.socket | TlsSocket | None = None
        if address is not None:
            try:
                with trio.fail_after(DIAL_SECONDS):
                    sock = await self._connect(*address)
            except TlsRefused as error:
                why = f"{peer} at {address[0]}:{address[1]} {error.text}"
                self._tell("tls_refused", "warning", peer=peer, why=why, hint=error.hint)
            except (OSError, trio.TooSlowError) as error:
                why = f"{peer} at {address[0]}:{address[1]} does not answer: {error}"
        if self.crashed is not None:
            return
        if sock is None:
            self.driver.on_closed(self.now(), conn, why)
            self.turn()
            return
        stream = self._stream(conn, sock, peer, frames.FrameReader(kept=FRAME_KEPT))
        self.driver.on_dialed(self.now(), conn)
        self.turn()
        await self._serve(conn, stream)

    async def _connect(self, host: str, port: int) -> socket.socket | TlsSocket:
        if self._certificates is None:
            return await connect(host, port)
        return await connect_secured(host, port, self._certificates.outgoing())

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
                await self.threads.run(job.kind, job.run, limiter=self._limiter)
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
            copy = partial(self._copy, start, length)
            data, why = await self.threads.run("fetch", copy, abandon=True)
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

    def _idle(self) -> None:
        """Nothing arrives: send the notice of a confirm offset that is due.

        A slave's waiting readers see the record when the notice is there, and the timer would look
        at its deadline only after `TIMER_SECONDS`: a busy log needs no notices.
        """
        leading = self.driver.core.leading
        notice_at = leading.slaves.notice_at if leading is not None else None
        if self.crashed is None and notice_at is not None and (now := self.now()) >= notice_at:
            self.driver.on_tick(now)
            self.turn()

    def _next(self) -> float:
        deadline = self.driver.next_deadline()
        return math.inf if deadline is None else deadline

    def _set_timer(self, now: float) -> None:
        """Wake earlier if a new deadline is earlier; a later one is noticed when it wakes.

        Deadlines set by turns within the next `TIMER_SECONDS` are checked after that time.
        """
        if self.crashed is not None:
            return
        deadline = self._next()
        if deadline < self._timer.deadline:
            self._timer.deadline = deadline
        self._looked_until = now + TIMER_SECONDS

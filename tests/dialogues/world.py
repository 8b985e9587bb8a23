"""A small world for tests: drivers, fake stores, one register, links and a clock.

Everything takes a fixed time, so a test reads like a story and its trace is the same every time.
The large simulator with weather and crashes is ``tests/sim``.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from replication.core import messages
from replication.driver.driver import ACCEPTED_FROM, Driver
from replication.register.operations import Operation
from replication.register.register import Register, parse_op
from replication.settings import ReplicationSettings
from storage import Outcome, Section, SectionResult, StoreSettings, Who
from tests.dialogues.fake_store import Boot, FakeStore
from twinlog.wire import frames

LINK = 0.001
DISK = 0.002
COORDINATOR = 0.001
UNKNOWN = object()


class Crashed(Exception):
    """A driver ended its process."""


class Clock:
    """Events in order of time; equal times in order of arrival."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """Call later."""
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, call, args))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until, at_once = self.now + seconds, 0
        while self._events and self._events[0][0] <= until:
            before = self.now
            self.now, _, call, args = heapq.heappop(self._events)
            at_once = at_once + 1 if self.now == before else 0
            assert at_once < 10_000, f"something spins: {call.__qualname__} {call.__self__}"  # type: ignore[attr-defined]
            call(*args)
        self.now = until


class Node:
    """One process: the `Outside` of its driver."""

    def __init__(self, world: World, name: str, store: FakeStore) -> None:
        self.world = world
        self.name = name
        self.store = store
        self.alive = True
        self.paused = False
        self.crashed: str | None = None
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.links: dict[int, tuple[Node, int]] = {}
        self.next_accepted = ACCEPTED_FROM
        self.events: list[tuple[str, str, dict[str, object]]] = []
        self.changes = 0
        self._tick_at = float("inf")
        self.driver = Driver(
            store,  # type: ignore[arg-type]
            world.settings,
            self,
            node=name,
            cluster="c",
            wall_ms=lambda: int(world.clock.now * 1000),
            seed=1,
            now=world.clock.now,
        )

    def tell(self, call: Callable[..., None], *args: Any) -> None:
        """Hand the driver an event, and set its timer."""
        if not self.alive:
            return
        if self.paused:
            self.backlog.append((call, args))
            return
        call(self.world.clock.now, *args)
        self.set_timer()

    def set_timer(self) -> None:
        """Wake the driver when it wants."""
        due = self.driver.next_deadline()
        if due is not None and due < self._tick_at:
            self._tick_at = max(due, self.world.clock.now)
            self.world.clock.after(self._tick_at - self.world.clock.now, self._tick, self._tick_at)

    def _tick(self, at: float) -> None:
        if at != self._tick_at:
            return
        self._tick_at = float("inf")
        self.tell(self.driver.on_tick)

    # -- Outside

    def send(self, conn: int, frame: frames.Frame) -> None:
        """To the other side, after a while."""
        link = self.links.get(conn)
        if link is None:
            return
        other, number = link
        copied = replace(frame, payload=bytes(frame.payload))
        self.world.sent(self, other, copied)
        bent = self.world.bend(self, other, copied)
        if bent is not None:
            self.world.clock.after(LINK, self._arrive, other, number, bent)

    def _arrive(self, other: Node, number: int, frame: frames.Frame) -> None:
        if (self.name, other.name) in self.world.cut:
            return
        if other.alive and number in other.links:
            other.tell(other.driver.on_frame, number, frame)

    def dial(self, conn: int, peer: str) -> None:
        """Connect, or hear that nobody is there."""
        other = self.world.nodes.get(peer)
        self.world.clock.after(LINK, self._dial, conn, peer, other)

    def _dial(self, conn: int, peer: str, other: Node | None) -> None:
        if not self.alive:
            return
        cut = {(self.name, peer), (peer, self.name)} & self.world.cut
        if other is None or not other.alive or cut:
            self.tell(self.driver.on_closed, conn, "refused")
            return
        other.next_accepted += 1
        number = other.next_accepted
        self.links[conn] = (other, number)
        other.links[number] = (self, conn)
        other.tell(other.driver.on_accept, number)
        self.tell(self.driver.on_dialed, conn)

    def close(self, conn: int, why: str) -> None:
        """Close; the other side hears of it."""
        link = self.links.pop(conn, None)
        if link is not None:
            self.world.clock.after(LINK, link[0].hear_close, link[1], f"closed: {why}")

    def hear_close(self, conn: int, why: str) -> None:
        """The other side closed."""
        if self.links.pop(conn, None) is not None:
            self.tell(self.driver.on_closed, conn, why)

    def coordinate(self, call_id: int, op: dict[str, object]) -> None:
        """Ask the register."""
        self.world.asked(self, parse_op(op))
        self.world.clock.after(COORDINATOR, self._ask, call_id, op)

    def _ask(self, call_id: int, op: Mapping[str, object]) -> None:
        world = self.world
        if not self.alive:
            return
        if world.coordinator_down or (self.name, "coordinator") in world.cut:
            world.clock.after(1.0, self.tell, self.driver.on_answer, call_id, UNKNOWN)
            return
        if world.lose is not None and isinstance(parse_op(op), world.lose):
            world.lose = None
            world.apply(parse_op(op))
            world.clock.after(1.0, self.tell, self.driver.on_answer, call_id, UNKNOWN)
            return
        answer = world.apply(parse_op(op)).to_wire()
        world.clock.after(COORDINATOR, self.tell, self.driver.on_answer, call_id, answer)

    def push(self) -> None:
        """Frames leave when they are sent."""

    def run_job(self, job: Any) -> None:
        """Run it a little later."""
        self.world.clock.after(DISK, self._job, job)

    def _job(self, job: Any) -> None:
        if not self.alive:
            return
        error = self.world.job_errors.pop((self.name, job.kind), None)
        if error is None:
            job.run()
        else:
            job.error = error
        if job.kind == "cut":
            self.world.note(f"{self.name} does  cut to {self.store.end}")
        self.tell(self.driver.on_job, job, error)

    def event(self, name: str, level: str, **facts: object) -> None:
        """Keep it."""
        self.events.append((name, level, facts))

    def changed(self) -> None:
        """Count it."""
        self.changes += 1

    def crash(self, why: str) -> None:
        """The process ends."""
        self.crashed = why
        self.alive = False

    def has_event(self, name: str) -> bool:
        """Whether an event of that name was told."""
        return any(event[0] == name for event in self.events)


class World:
    """See the module."""

    def __init__(
        self,
        *names: str,
        min_in_sync: int = 2,
        ack: Any = "received",
        first: str | None = "n1",
        segment_size: int = 1 << 20,
        **settings: Any,
    ) -> None:
        self.clock = Clock()
        self.names = names
        self.register = Register("register-1")
        self.settings = ReplicationSettings(
            members=names, first=first, in_sync_min=min_in_sync, ack=ack, **settings
        )
        self.store_settings = StoreSettings(segment_size=segment_size, quality=ack)
        self.nodes: dict[str, Node] = {}
        self.cut: set[tuple[str, str]] = set()
        self.coordinator_down = False
        self.lose: type | None = None
        self.watch = True
        self.job_errors: dict[tuple[str, str], Exception] = {}
        self.trace: list[str] = []
        self.bender: Callable[[Node, Node, frames.Frame], frames.Frame | None] | None = None
        self._tag = 0
        self._starts = 0
        self.replies: dict[str, list[tuple[list[SectionResult], str | None]]] = {}

    # -- nodes

    def boot(self, name: str, store: FakeStore | None = None) -> Node:
        """Start a process on a store, a new one unless given."""
        self._starts += 1
        if store is None:
            boot = Boot(f"store-{name}-{self._starts}", f"start-{self._starts}")
            store = FakeStore(boot, self.store_settings, Who("c", "g1", name, 4))
        node = Node(self, name, store)
        self.nodes[name] = node
        node.tell(node.driver.start)
        return node

    def boot_all(self) -> None:
        """Start all."""
        for name in self.names:
            self.boot(name)

    def kill(self, name: str) -> None:
        """Kill a process; its kernel closes its links."""
        node = self.nodes[name]
        node.alive = False
        for other, number in list(node.links.values()):
            self.clock.after(LINK, other.hear_close, number, "reset")
        node.links.clear()

    def restart(self, name: str, *, power_lost: bool = False) -> Node:
        """Start a killed node again on its store."""
        old = self.nodes[name]
        assert not old.alive
        self._starts += 1
        return self.boot(name, old.store.reopened(f"start-{self._starts}", power_lost=power_lost))

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        self.nodes[name].paused = True

    def resume(self, name: str) -> None:
        """SIGCONT."""
        node = self.nodes[name]
        node.paused = False
        backlog, node.backlog = node.backlog, []
        for call, args in backlog:
            node.tell(call, *args)
        node.tell(node.driver.on_tick)

    def partition(self, one: str, other: str) -> None:
        """Cut both directions."""
        self.cut |= {(one, other), (other, one)}

    def heal(self) -> None:
        """End all cuts."""
        self.cut.clear()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.run(seconds)

    # -- the register

    def apply(self, op: Operation) -> Any:
        """Do an operation at the register."""
        self._tag += 1
        answer = self.register.apply(op, wall_ms=int(self.clock.now * 1000), tag=self._tag)
        if answer.changed and self.watch:
            for node in list(self.nodes.values()):
                self.clock.after(2 * COORDINATOR, self._push, node, answer.state.to_json())
        return answer

    def _push(self, node: Node, state: Mapping[str, object]) -> None:
        """The watch of a node brings a state."""
        if not self.coordinator_down and (node.name, "coordinator") not in self.cut:
            node.tell(node.driver.on_group_state, state)

    # -- clients

    def send(self, name: str, size: int = 100, *, ack: str = "confirmed", wait: float = 5.0) -> str:
        """Append ``size`` bytes on a node; the answer is found under the returned key."""
        key = f"request-{len(self.replies)}"
        answers = self.replies.setdefault(key, [])
        node = self.nodes[name]
        body = key.encode().ljust(size, b"-")

        def reply(results: list[SectionResult], by: str | None) -> None:
            answers.append((results, by))

        node.driver.append(
            self.clock.now,
            [Section("t", 0, 1, body)],
            ack=ack,
            deadline=self.clock.now + wait,
            reply=reply,
        )
        node.set_timer()
        return key

    def outcome(self, key: str) -> tuple[Outcome, str] | None:
        """Outcome and code of a request; None while it waits. Twice answered is an error."""
        answers = self.replies[key]
        assert len(answers) <= 1, f"{key} was answered {len(answers)} times"
        if not answers:
            return None
        result = answers[0][0][0]
        return result.outcome, result.code

    def stored(self, key: str) -> bool:
        """Whether the request was answered well."""
        return self.outcome(key) == (Outcome.STORED, "")

    def master(self) -> str | None:
        """The node that leads the newest epoch."""
        leads = [
            (node.driver.view().epoch, name)
            for name, node in self.nodes.items()
            if node.alive and node.driver.view().role == "master"
        ]
        return max(leads)[1] if leads else None

    # -- the story

    def note(self, line: str) -> None:
        """Add a line."""
        self.trace.append(line)

    def sent(self, source: Node, target: Node, frame: frames.Frame) -> None:
        """Add a frame to the story; heartbeats are left out."""
        line = describe(messages.decode(frame))
        if line:
            self.trace.append(f"{source.name} > {target.name}  {line}")

    def bend(self, source: Node, target: Node, frame: frames.Frame) -> frames.Frame | None:
        """Change or lose a frame on its way."""
        return self.bender(source, target, frame) if self.bender is not None else frame

    def asked(self, node: Node, op: Operation) -> None:
        """Add a question to the story; reads are left out."""
        name = type(op).__name__
        if name not in ("Read", "Annotate"):
            self.trace.append(f"{node.name} asks  {describe_op(op)}")


def describe_op(op: Operation) -> str:
    """An operation in a few words."""
    match type(op).__name__:
        case "RegisterNode":
            return "register" + ("" if getattr(op, "clean") else " unclean")  # noqa: B009
        case "Elect":
            return "elect me"
        case "AlterInSync":
            add = " ".join(f"+{name}" for name in sorted(op.add))  # type: ignore[union-attr]
            remove = " ".join(f"-{name}" for name in op.remove)  # type: ignore[union-attr]
            return f"in-sync set {add}{remove}"
        case "Transfer":
            return f"transfer to {op.to}"  # type: ignore[union-attr]
        case other:
            return other


def describe(message: messages.Message) -> str:
    """A message in a few words; empty for a heartbeat."""
    match message:
        case messages.Hello():
            history = " ".join(f"{e.epoch}@{e.start}" for e in message.epochs) or "nothing"
            return f"hello  epochs {history}  end {message.end}  confirm {message.confirm}"
        case messages.HelloOk():
            return f"welcome  point {message.point}  chain from {message.chain_start}"
        case messages.HelloErr():
            return f"no  {message.code}"
        case messages.Ready():
            return f"ready  {message.end}"
        case messages.Append() if not message.entries:
            return f"notice  epoch {message.epoch}  confirm {message.confirm}"
        case messages.Append():
            batches = messages.unpack_entries(message.entries)
            size = sum(batch.length for batch in batches)
            return (
                f"append  epoch {message.epoch}  offset {message.offset}  {len(batches)} batches"
                f"  {size} bytes  confirm {message.confirm}"
            )
        case messages.Ack():
            health = f"  {message.health}" if message.health else ""
            return f"ack  {message.end}  flushed {message.flushed}{health}"
        case messages.Nack():
            return f"nack  {message.start}  {message.length} bytes"
        case messages.Bye():
            return f"bye  {message.code}"
        case _:
            return ""


__all__ = ["Clock", "Crashed", "Node", "World", "deque", "describe"]

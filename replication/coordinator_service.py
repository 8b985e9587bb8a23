"""The embedded coordinator: one small process that keeps the register and answers for it.

`serve` opens the store, listens, writes ``run.json`` into its data folder and answers frames of
types 64-79 (fields: ``coordinator_calls``). The rules are those of ``replication.register``; here
is only this: operations are carried out one at a time, and **nobody hears of a change, by answer,
read or watch, before the disk has it**. When the disk refuses, the process stops.

Live entries (where a node listens, what it is) are kept in memory only: they are information, and
every node says them again each second.

A connection asks one question at a time; a parked watch ends early when the peer says something or
goes away. Limits: `CONNECTIONS_MAX` connections, `FIELDS_MAX` bytes a frame, no payload,
`LIVE_MAX` live entries of `LIVE_BYTES_MAX`, `IDLE_SECONDS` of silence, answers of one frame. A
frame that breaks the rules of the wire closes its connection and is counted by kind; it changes
nothing.

While the coordinator is away roles cannot change and traffic goes on. After its own start it
changes nothing until more than half of the replicas have reported. Sources: protocol.md 8.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

import trio

from replication.coordinator_client import Event, no_event
from replication.coordinator_store import (
    CoordinatorStore,
    StoreStopped,
    remove_run_file,
    write_run_file,
)
from replication.register import Answer, Register
from replication.register_ops import Operation, Read, parse_op
from replication.stream_service import listen
from twinlog import wire
from twinlog.errors import Busy, ProtocolError, TwinlogError, UsageError

CONNECTIONS_MAX = 256
"""A node has three, a command one; beyond it a connection is closed at once."""

FIELDS_MAX = 256 << 10
"""The largest frame is a group state with its registrations, some KiB."""

LIVE_MAX = 64
LIVE_BYTES_MAX = 4096
HELLO_SECONDS = 10.0
IDLE_SECONDS = 60.0
SEND_SECONDS = 10.0
WATCH_SECONDS_MAX = 30.0
HISTORY_SENT_MAX = 10_000
"""Newest entries of an answer to HISTORY."""
HISTORY_BYTES_MAX = 768 << 10
"""Bytes of these entries: a frame carries `wire.FIELDS_MAX` of fields."""

Fields = dict[str, object]


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """What the coordinator needs to start. ``port`` 0 takes a free one."""

    cluster: str
    group: str
    host: str
    port: int
    data: Path
    version: str = "0"


@dataclass(slots=True)
class CoordinatorCounts:
    """Plain numbers that only rise."""

    accepted: int = 0
    refused: int = 0
    """Connections closed because there were too many."""
    changes: int = 0
    closed: dict[str, int] = field(default_factory=dict[str, int])
    """Connections ended by the coordinator, by kind of frame error, idle or hello."""


@dataclass(frozen=True, slots=True)
class _Live:
    info: Fields
    at: float


class CoordinatorService:
    """The register with its store, and what may be asked of both. Made by `serve`."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        store: CoordinatorStore,
        *,
        event: Event = no_event,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        random_tag: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        self._settings = settings
        self._store = store
        self._event = event
        self._wall_ms = wall_ms
        self._random_tag = random_tag
        self._names = wire.names_crc(settings.cluster, settings.group)
        recorded = store.load()
        if recorded.document is None:
            self._register = Register(store.register_id)
        else:
            self._register = Register.load(recorded.document, recorded.pairs, recorded.history)
        self._published: Fields = self._register.state.to_json()
        self._revision = self._register.state.revision
        self._history: list[Fields] = [dict(entry) for entry in self._register.history]
        self._newer = trio.Event()
        self._turn = trio.Lock()
        self._live: dict[str, _Live] = {}
        self._connections = 0
        self._started_at = trio.current_time()
        self.counts = CoordinatorCounts()

    # ── the register ────────────────────────────────────────────────────────────────────────────

    async def _apply(self, op: Operation) -> Fields:
        """Carry out one operation; return its answer once the disk has what it changed.

        A cancelled call is carried to its end first: half a change would be shown by nobody.
        """
        async with self._turn:
            register, alarm = self._register, self._register.alarm
            answer = register.apply(op, wall_ms=self._wall_ms(), tag=self._random_tag())
            with trio.CancelScope(shield=True):
                if answer.changed:
                    await self._record(op, answer)
                elif register.alarm != alarm:
                    await trio.to_thread.run_sync(self._store.keep, register.dump())
            if register.alarm is not None and alarm is None:
                self._event("register_readonly", "error", why=register.alarm)
            return answer.to_wire()

    async def _record(self, op: Operation, answer: Answer) -> None:
        register, state = self._register, answer.state
        await trio.to_thread.run_sync(
            self._store.record, state.revision, state.tag, register.dump(), register.history
        )
        self.counts.changes += 1
        self._published = state.to_json()
        self._revision = state.revision
        self._history = [dict(entry) for entry in register.history]
        newer, self._newer = self._newer, trio.Event()
        newer.set()
        self._event(
            "register_changed",
            "info",
            op=type(op).__name__.lower(),
            revision=state.revision,
            epoch=state.epoch,
            leader=state.leader,
            in_sync=sorted(state.isr),
        )

    # ── questions ───────────────────────────────────────────────────────────────────────────────

    async def answer(self, frame: wire.Frame) -> wire.Frame:
        """Return the answer to one frame; errors become error answers.

        Raises:
            StoreStopped: The disk refused; the process must end.
        """
        try:
            asked = frame.names_crc
            if asked != self._names and (asked or frame.type != wire.Type.CO_HELLO):
                raise self._other_cluster()
            return wire.answer(frame, await self._fields(frame), names=self._names)
        except StoreStopped:
            raise
        except TwinlogError as error:
            fields: Fields = {
                "code": error.code,
                "text": str(error),
                "hint": error.hint,
                "retryable": error.retryable,
            }
            return wire.refusal(frame, fields, names=self._names)

    # Only HELLO may leave the names out: a command that knows an address and no name learns them
    # there, and from then on says them, so that an order never reaches another cluster's register.
    def _other_cluster(self) -> UsageError:
        ours = self._settings
        text = f"this is the coordinator of cluster {ours.cluster}, group {ours.group}"
        return UsageError(text, code="other-cluster")

    async def _fields(self, frame: wire.Frame) -> Fields:
        fields = frame.fields
        match frame.type:
            case wire.Type.CO_HELLO:
                return self._hello(fields)
            case wire.Type.CO_READ:
                report = parse_op({"op": "read", "report": fields.get("report")})
                assert isinstance(report, Read)
                await self._apply(report)
                return {"state": self._published}
            case wire.Type.CO_CALL:
                op = fields.get("op")
                if not isinstance(op, dict):
                    raise ProtocolError("a call carries an operation", code="fields")
                return await self._apply(parse_op(cast("Fields", op)))
            case wire.Type.CO_WATCH:
                await self._watch(_number(fields, "revision"), _number(fields, "wait_ms"))
                return {"state": self._published}
            case wire.Type.CO_LIVE:
                return {"live": self._lives(fields)}
            case wire.Type.CO_HISTORY:
                return {"history": newest(self._history)}
            case wire.Type.CO_STATUS:
                return self.status()
            case _:
                raise ProtocolError(f"{wire.type_name(frame.type)} is for a node", code="type")

    def _hello(self, fields: Mapping[str, object]) -> Fields:
        low, high = fields.get("min", wire.VERSION), fields.get("max", wire.VERSION)
        if not isinstance(low, int) or not isinstance(high, int) or not low <= wire.VERSION <= high:
            text = f"the coordinator speaks wire version {wire.VERSION}, not {low} to {high}"
            raise ProtocolError(text, code="version", min=wire.VERSION, max=wire.VERSION)
        return {
            "version": wire.VERSION,
            "cluster": self._settings.cluster,
            "group": self._settings.group,
            "register_id": self._register.state.register_id,
            "revision": self._revision,
        }

    async def _watch(self, revision: int, wait_ms: int) -> None:
        """Wait until the published revision is above ``revision``, or for so long.

        A caller that knows a larger revision than ours waits, too: its report raises the alarm.
        """
        with trio.move_on_after(min(wait_ms / 1000, WATCH_SECONDS_MAX)):
            while self._revision <= revision:
                await self._newer.wait()

    def _lives(self, fields: Mapping[str, object]) -> Fields:
        """Take the caller's live entry, when it gives one; return everybody's."""
        node, info = fields.get("node"), fields.get("info")
        now = trio.current_time()
        if isinstance(node, str) and isinstance(info, dict):
            if len(json.dumps(info, default=str)) > LIVE_BYTES_MAX or len(node) > 63:
                raise UsageError(f"the live entry of {node[:63]} is too large", code="oversized")
            if node not in self._live and len(self._live) >= LIVE_MAX:
                raise Busy(f"{LIVE_MAX} nodes have live entries already")
            self._live[node] = _Live(cast("Fields", info), now)
        return {
            name: {**live.info, "age": round(now - live.at, 3)}
            for name, live in sorted(self._live.items())
        }

    def status(self) -> Fields:
        """Return the coordinator's own figures (kind CoordinatorStatus, version 1)."""
        register = self._register
        return {
            "kind": "CoordinatorStatus",
            "version": 1,
            "cluster": self._settings.cluster,
            "group": self._settings.group,
            "register_id": register.state.register_id,
            "revision": self._revision,
            "pid": os.getpid(),
            "uptime_seconds": round(trio.current_time() - self._started_at, 3),
            "read_only": register.alarm,
            "waiting_for": list(register.missing),
            "connections": self._connections,
            "changes": self.counts.changes,
            "closed": dict(self.counts.closed),
            "refused": self.counts.refused,
        }

    # ── connections ─────────────────────────────────────────────────────────────────────────────

    async def connection(self, stream: trio.SocketStream) -> None:
        """Serve one peer until it goes, breaks a rule, or stays silent; closes the stream."""
        self.counts.accepted += 1
        if self._connections >= CONNECTIONS_MAX:
            self.counts.refused += 1
            stream.socket.close()
            return
        self._connections += 1
        peer = _Peer(stream)
        try:
            await self._serve(peer)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass
        finally:
            self._connections -= 1
            stream.socket.close()

    async def _serve(self, peer: _Peer) -> None:
        greeted = False
        while True:
            frame = None
            with trio.move_on_after(IDLE_SECONDS if greeted else HELLO_SECONDS) as patience:
                try:
                    frame = await peer.frame()
                except wire.FrameError as error:
                    await self._broken(peer, error)
                    return
            if patience.cancelled_caught:
                self._closed("idle" if greeted else "hello")
                return
            if frame is None:
                return
            if not greeted and frame.type != wire.Type.CO_HELLO:
                self._closed("hello")
                return
            if frame.type not in wire.COORDINATOR_TYPES or frame.is_answer:
                self._closed("type")
                return
            answer = await self._answer(peer, frame)
            await peer.send(answer, frame)
            if answer.is_error and not greeted:
                self._closed(str(answer.fields.get("code")))
                return
            greeted = True

    async def _answer(self, peer: _Peer, frame: wire.Frame) -> wire.Frame:
        """Answer ``frame``; a watch also ends when the peer says something or is gone."""
        if frame.type != wire.Type.CO_WATCH:
            return await self.answer(frame)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.hear, nursery.cancel_scope)
            answer = await self.answer(frame)
            nursery.cancel_scope.cancel()
            return answer
        return wire.answer(frame, {"state": self._published}, names=self._names)

    async def _broken(self, peer: _Peer, error: wire.FrameError) -> None:
        """Count a stream that left the rules; a wrong version is told which one is spoken."""
        self._closed(error.kind)
        if error.kind == "version":
            fields: Fields = {"code": "version", "text": error.text, "hint": None}
            fields |= {"retryable": False, "min": wire.VERSION, "max": wire.VERSION}
            refused = wire.Frame(
                wire.Type.CO_HELLO, wire.ANSWER | wire.ERROR, names_crc=self._names, fields=fields
            )
            await peer.send(refused)

    def _closed(self, kind: str) -> None:
        self.counts.closed[kind] = self.counts.closed.get(kind, 0) + 1


def _number(fields: Mapping[str, object], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or value < 0:
        raise ProtocolError(f"{key} is not a number from 0", code="fields")
    return value


def newest(history: Sequence[Fields]) -> list[Fields]:
    """Return the newest entries, oldest first, as many as an answer carries."""
    found: list[Fields] = []
    size = 0
    for entry in reversed(history[-HISTORY_SENT_MAX:]):
        size += len(json.dumps(entry, default=str))  # never shorter than it is on the wire
        if size > HISTORY_BYTES_MAX:
            break
        found.append(entry)
    return found[::-1]


class _Peer:
    """Frames in and out of one stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._reader = wire.FrameReader(fields_max=FIELDS_MAX, payload_max=0)
        self._ended = False

    async def frame(self) -> wire.Frame | None:
        """Return the next frame, or None at the end of the stream."""
        while (frame := self._reader.next()) is None:
            if self._ended:
                self._reader.finish()
                return None
            await self.receive()
        return frame

    async def receive(self) -> None:
        """Take what the peer says next; its end is remembered."""
        data = await self._stream.receive_some(16384)
        self._ended = not data
        self._reader.feed(data)

    async def hear(self, scope: trio.CancelScope) -> None:
        """Cancel ``scope`` once the peer has said something or gone away."""
        try:
            await self.receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._ended = True
        scope.cancel()

    async def send(self, frame: wire.Frame, asked: wire.Frame | None = None) -> None:
        """Send one frame; a peer that takes nothing for `SEND_SECONDS` is broken.

        An answer that no frame can carry is refused to who ``asked``: it must end nobody.
        """
        try:
            data = wire.encode_whole(frame)
        except wire.FrameError as error:
            if asked is None:
                raise
            fields: Fields = {"code": "too-large", "text": error.text, "hint": None}
            refused = wire.refusal(asked, {**fields, "retryable": False}, names=frame.names_crc)
            data = wire.encode_whole(refused)
        try:
            with trio.fail_after(SEND_SECONDS):
                await self._stream.send_all(data)
        except trio.TooSlowError:
            raise trio.BrokenResourceError("the peer takes nothing") from None


async def serve(
    settings: CoordinatorSettings,
    *,
    event: Event = no_event,
    ready: Callable[[int], None] | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Keep the register until cancelled; ``ready`` and `task_status` are given the port.

    Cancelled: an operation under way is finished first, connections are closed without a word,
    ``run.json`` is removed, the store is closed. What was answered stays.

    Raises:
        UsageError: The data folder is in use or belongs to another cluster.
        CorruptionError: The store is damaged.
        OSError: The port is taken.
        StoreStopped: The disk refused; nothing after the last answer is promised.
    """
    store = CoordinatorStore(settings.data, settings.cluster, settings.group)
    try:
        service = CoordinatorService(settings, store, event=event)
        listener = trio.SocketListener(
            trio.socket.from_stdlib_socket(listen(settings.host, settings.port))
        )
        port = int(listener.socket.getsockname()[1])
        facts = {"pid": os.getpid(), "ports": {"coordinator": port}, "version": settings.version}
        try:
            write_run_file(settings.data, {"host": settings.host, **facts})
            event("coordinator_started", "info", host=settings.host, port=port)
            await _accept(service, listener, port, ready, task_status)
        finally:
            remove_run_file(settings.data)
            listener.socket.close()
            event("coordinator_stopped", "info", changes=service.counts.changes)
    finally:
        store.close()


async def _accept(
    service: CoordinatorService,
    listener: trio.SocketListener,
    port: int,
    ready: Callable[[int], None] | None,
    task_status: trio.TaskStatus[int],
) -> None:
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, service.connection, [listener])
            task_status.started(port)
            if ready is not None:
                ready(port)
    except BaseExceptionGroup as group:
        stopped = group.subgroup(StoreStopped)
        if stopped is None:
            raise
        raise StoreStopped("the coordinator's disk refused; it stops") from group


class _Coordinator(Protocol):
    @property
    def endpoints(self) -> Sequence[tuple[str, int]]: ...
    @property
    def data(self) -> Path: ...


class Config(Protocol):
    """What `run` needs of ``cluster.toml``; ``node.config.ClusterConfig`` is one."""

    @property
    def name(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def coordinator(self) -> _Coordinator: ...


def settings_of(config: Config, version: str = "0") -> CoordinatorSettings:
    """Return the settings of the coordinator that ``cluster.toml`` names first."""
    host, port = config.coordinator.endpoints[0]
    data = config.coordinator.data
    return CoordinatorSettings(config.name, config.group, host, port, data, version)


async def run(
    config: Config,
    *,
    ready: Callable[[int], None] | None = None,
    event: Event = no_event,
    version: str = "0",
) -> int | None:
    """Be the coordinator's process: `serve` until SIGTERM or SIGINT, then stop cleanly.

    Must be called in the main thread. A second signal changes nothing: stopping takes no longer
    than the operation under way.

    Returns:
        The signal that stopped it.

    Raises:
        As `serve`.
    """
    settings = settings_of(config, version)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        stopped = _Stopped()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stopped.wait, signals, nursery.cancel_scope)
                await serve(settings, event=event, ready=ready)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        return stopped.by


class _Stopped:
    """Which signal ended the process."""

    def __init__(self) -> None:
        self.by: int | None = None

    async def wait(self, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        async for signum in signals:
            self.by = signum
            scope.cancel()
            return

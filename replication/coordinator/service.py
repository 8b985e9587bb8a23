"""The embedded coordinator: one small process that keeps and serves the register.

It answers frames of types 64-79 (fields: ``replication.coordinator.blocking_client``). The rules
are those of ``replication.register.register``; this module adds one: operations are executed one at
a time, and **no change is visible, by answer, read or watch, before it is durable** (R17). If the
disk fails, the process stops.

Live entries (addresses and role of a node) are kept in memory only: every node sends its own each
second.

Limits: `LIVE_MAX` live entries of `LIVE_BYTES_MAX`, answers of one frame.

While the coordinator is away, roles cannot change and traffic continues. After its own start it
changes nothing until more than half of the replicas have reported (R19).

Not here: connections (``replication.coordinator.peer``), the process
(``replication.coordinator.process``). Rules: docs/protocol.md R17 to R19.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import trio

from replication.coordinator.blocking_client import Endpoint
from replication.coordinator.client import Event, no_event
from replication.coordinator.history import newest
from replication.coordinator.store import RegisterStore, StoreStopped
from replication.register.leases import Incarnation, Leases
from replication.register.operations import Depose, Operation, Read, parse_op
from replication.register.register import Answer, Register
from twinlog.errors import Busy, ProtocolError, TwinlogError, UsageError
from twinlog.levels import LEVEL
from twinlog.session.tls_files import NOTHING, EtcdShown, TlsSettings
from twinlog.wire import frames

LIVE_MAX = 64
LIVE_BYTES_MAX = 4096
WATCH_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.05
"""How often the leases are checked for a master that is gone, if no connection ends."""

REFUSED_SECONDS = 1.0
"""Pause after the register refused to end a leadership: it waits for reports, or is read-only."""

Fields = dict[str, object]


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Settings of the coordinator. ``port`` 0 takes a free port."""

    cluster: str
    group: str
    host: str
    port: int
    data: Path
    version: str = "0"
    etcd: tuple[Endpoint, ...] = ()
    """Client addresses of etcd's members; empty: the register is a file in ``data``."""
    etcd_shown: EtcdShown = NOTHING
    """What is shown to etcd."""
    tls: TlsSettings | None = None
    """The files for TLS; None: none is spoken."""


@dataclass(slots=True)
class CoordinatorCounts:
    """Counters; all except ``open`` only rise."""

    open: int = 0
    """Present connections."""
    accepted: int = 0
    refused: int = 0
    """Connections closed because there were too many."""
    changes: int = 0
    closed: dict[str, int] = field(default_factory=dict[str, int])
    """Connections ended by the coordinator, by kind of frame error, idle or hello."""

    def close(self, kind: str) -> None:
        """Count a connection that the coordinator ended."""
        self.closed[kind] = self.closed.get(kind, 0) + 1


@dataclass(frozen=True, slots=True)
class _Live:
    info: Fields
    at: float


class CoordinatorService:
    """The register with its store, and the requests on both.

    Attributes:
        names: Checksum of the cluster's and the group's name; every frame carries it.
        counts: See the class.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        store: RegisterStore,
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
        self.names = frames.names_crc(settings.cluster, settings.group)
        recorded = store.load()
        if recorded.document is None:
            self._register = Register(store.register_id)
        else:
            self._register = Register.load(recorded.document, recorded.pairs, recorded.history)
        self._refuse_newer()
        self._published: Fields = self._register.state.to_json()
        self._revision = self._register.state.revision
        self._history: list[Fields] = [dict(entry) for entry in self._register.history]
        self._newer = trio.Event()
        self._turn = trio.Lock()
        self._stirred = trio.Event()
        self._live: dict[str, _Live] = {}
        self._started_at = trio.current_time()
        self.leases = Leases(self._started_at)
        self.counts = CoordinatorCounts()

    def _refuse_newer(self) -> None:
        level = self._register.state.level
        if level > LEVEL:
            text = f"the register is of a group at level {level}, this release knows {LEVEL}"
            hint = "run the newer release: twinlog version --check"
            raise UsageError(text, code="too-old", hint=hint)

    # ── the register ────────────────────────────────────────────────────────────────────────────

    async def _apply(self, op: Operation) -> Fields:
        """Execute one operation; return its answer once the change is durable.

        A cancelled call is completed first, so that no change stays half recorded.
        """
        async with self._turn:
            self._store.prove()
            register, alarm = self._register, self._register.alarm
            answer = register.apply(op, wall_ms=self._wall_ms(), tag=self._random_tag())
            self.leases.heard(trio.current_time(), register.state, op.report)
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
        record = partial(self._store.record, afresh=answer.afresh)
        await trio.to_thread.run_sync(
            record, state.revision, state.tag, register.dump(), register.history
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

    @property
    def members(self) -> tuple[str, ...]:
        """Names of members and learners; their connections are not closed for new ones."""
        return self._register.state.followers

    async def watch_master(self) -> None:
        """End the leadership of a master that is gone (R59), and a pause (R68).

        Runs until cancelled.

        Cancellation: a running change is completed.
        """
        not_before = 0.0
        while True:
            with trio.move_on_after(LOOK_SECONDS):
                await self._stirred.wait()
            self._stirred = trio.Event()
            if self._turn.locked():
                continue  # a change is being recorded: no call is heard meanwhile
            now = trio.current_time()
            self.leases.awake(now)
            due = self.leases.due(now, self._register.state, self._wall_ms())
            if due is None or now < not_before:
                continue
            answer = await self._apply(due)
            if not answer["ok"]:
                not_before = trio.current_time() + REFUSED_SECONDS
                continue
            if isinstance(due, Depose):
                self._event("master_gone", "warning", node=due.leader, why=due.why)

    def left(self, who: Incarnation) -> None:
        """The last connection of a node has ended: its process may have died (R59)."""
        self.leases.ended(trio.current_time(), who)
        self._stirred.set()

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    async def answer(self, frame: frames.Frame) -> frames.Frame:
        """Return the answer to one frame; errors become error answers.

        Raises:
            StoreStopped: The disk failed, or the seat is lost: no more answers may be sent.
        """
        try:
            asked = frame.names_crc
            if asked != self.names and (asked or frame.type != frames.Type.CO_HELLO):
                raise self._other_cluster()
            answer = frames.answer(frame, await self._fields(frame), names=self.names)
            self._store.prove()  # last: the process may have been suspended before
            return answer
        except StoreStopped:
            raise
        except TwinlogError as error:
            fields: Fields = {
                "code": error.code,
                "text": str(error),
                "hint": error.hint,
                "retryable": error.retryable,
            }
            return frames.refusal(frame, fields, names=self.names)

    def unchanged(self, frame: frames.Frame) -> frames.Frame:
        """Return the answer to a watch that ended before there was news.

        Raises:
            StoreStopped: As `answer`.
        """
        self._store.prove()
        return frames.answer(frame, {"state": self._published}, names=self.names)

    # Only HELLO may omit the names: a command that only has an address learns them there, and sends
    # them from then on, so that no request reaches another cluster's register.
    def _other_cluster(self) -> UsageError:
        ours = self._settings
        text = f"this is the coordinator of cluster {ours.cluster}, group {ours.group}"
        return UsageError(text, code="other-cluster")

    async def _fields(self, frame: frames.Frame) -> Fields:
        fields = frame.fields
        match frame.type:
            case frames.Type.CO_HELLO:
                return self._hello(fields)
            case frames.Type.CO_READ:
                report = parse_op({"op": "read", "report": fields.get("report")})
                assert isinstance(report, Read)
                await self._apply(report)
                return {"state": self._published}
            case frames.Type.CO_CALL:
                op = fields.get("op")
                if not isinstance(op, dict):
                    raise ProtocolError("a call carries an operation", code="fields")
                return await self._apply(parse_op(cast("Fields", op)))
            case frames.Type.CO_WATCH:
                await self._watch(_number(fields, "revision"), _number(fields, "wait_ms"))
                return {"state": self._published}
            case frames.Type.CO_LIVE:
                return {"live": self._lives(fields)}
            case frames.Type.CO_HISTORY:
                return {"history": newest(self._history)}
            case frames.Type.CO_STATUS:
                return self.status()
            case frames.Type.CO_ENDED:
                return self._ended(fields)
            case _:
                raise ProtocolError(f"{frames.type_name(frame.type)} is for a node", code="type")

    def _hello(self, fields: Mapping[str, object]) -> Fields:
        low, high = fields.get("min", frames.VERSION), fields.get("max", frames.VERSION)
        if (
            not isinstance(low, int)
            or not isinstance(high, int)
            or not low <= frames.VERSION <= high
        ):
            text = f"the coordinator speaks wire version {frames.VERSION}, not {low} to {high}"
            raise ProtocolError(text, code="version", min=frames.VERSION, max=frames.VERSION)
        return {
            "version": frames.VERSION,
            "cluster": self._settings.cluster,
            "group": self._settings.group,
            "register_id": self._register.state.register_id,
            "revision": self._revision,
        }

    async def _watch(self, revision: int, wait_ms: int) -> None:
        """Wait until the published revision is above ``revision``, at most ``wait_ms``.

        A caller that knows a larger revision waits, too: its report raises the alarm.
        """
        with trio.move_on_after(min(wait_ms / 1000, WATCH_SECONDS_MAX)):
            while self._revision <= revision:
                await self._newer.wait()

    def _ended(self, fields: Mapping[str, object]) -> Fields:
        node = fields.get("node")
        if not isinstance(node, str):
            raise ProtocolError("node is not a name", code="fields")
        session = self.leases.reaped(self._register.state, node)
        self._stirred.set()
        return {"session": session}

    def _lives(self, fields: Mapping[str, object]) -> Fields:
        """Store the caller's live entry, if it sends one; return all entries."""
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
            "twinlog": self._settings.version,
            "level": LEVEL,
            "register_id": register.state.register_id,
            "revision": self._revision,
            "pid": os.getpid(),
            "uptime_seconds": round(trio.current_time() - self._started_at, 3),
            "read_only": register.alarm,
            "waiting_for": list(register.missing),
            "connections": self.counts.open,
            "changes": self.counts.changes,
            "closed": dict(self.counts.closed),
            "refused": self.counts.refused,
        }


def _number(fields: Mapping[str, object], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or value < 0:
        raise ProtocolError(f"{key} is not a number from 0", code="fields")
    return value

"""The parts of a node while it serves, and how they are wired.

One `NodeServices` lives from the recovered store to the end of service. Parts get references to
each other only here; facts about the node itself that several of them need come from
``node.observation``.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from node.clients.admin import Admin
from node.clients.append_path import AppendPath
from node.clients.connection import RequestHandlers
from node.clients.counts import ClientCounts
from node.clients.lookups import Lookups
from node.clients.metadata import Metadata
from node.clients.off_loop import ColdWork
from node.clients.presence import Presence
from node.clients.raw_log import RawLog
from node.clients.reads import Reads
from node.clients.refusals import Refusals, no_topic
from node.clients.searches import Finds
from node.clients.server import ClientServer
from node.config import layer_settings
from node.config.config import ClusterConfig
from node.groups.context import Context
from node.groups.figures import Figures
from node.groups.service import WorkQueues
from node.observation import Observation, Parts
from node.observe.exposition import NodeMetrics
from node.observe.logs import NodeLog
from node.peer_copies import PeerCopies
from replication.coordinator.client import CoordinatorClient
from replication.driver.driver import Driver
from replication.replica_service import ReplicaService
from storage import Store
from storage.disk.disk import Disk
from twinlog.wire import frames

if TYPE_CHECKING:
    from node.observe.http_server import Pages

Endpoints = Sequence[tuple[str, int]] | Callable[[], Sequence[tuple[str, int]]]


class NodeServices:
    """Wires the parts of one node.

    Args:
        config: The whole file.
        name: Which node of it.
        store: Recovered and open.
        disk: Its directory.
        ports: The ports the listeners got: clients, slaves, http.
        coordinator: Where the coordinator listens.
        log: Receives events.
        stop: Called by a stop command; its argument: do not wait for pending requests.
        wall_ms: The wall clock.
    """

    def __init__(
        self,
        config: ClusterConfig,
        name: str,
        store: Store,
        *,
        disk: Disk,
        ports: Mapping[str, int],
        coordinator: Endpoints,
        log: NodeLog,
        stop: Callable[[bool], None],
        wall_ms: Callable[[], int],
    ) -> None:
        settings = config.node(name)
        self._wall_ms = wall_ms
        self._config = config
        self._settings = settings
        self._unlocked = 0
        self.log = log
        self.store = store
        self.observation = Observation(config, name, disk=disk, ports=ports)
        self.metrics = NodeMetrics(self.observation.metrics)
        self.presence = Presence(name, lambda: self.register.live)
        self.world = ReplicaService(
            peers=self.presence.slave_address,
            tell=log,
            moved=self.observation.moved,
            copy=PeerCopies(self.presence).fetch,
            spin_seconds=settings.limits.spin_seconds,
        )
        self.register = CoordinatorClient(
            coordinator,
            frames.names_crc(config.name, config.group),
            name=name,
            on_state=self.world.on_state,
            event=log,
            report=self._report,
        )
        self.driver = Driver(
            store,
            layer_settings.replication_settings(config, settings),
            self.world,
            node=name,
            cluster=config.name,
            group=config.group,
            wall_ms=wall_ms,
            now=trio.current_time(),
            seed=int.from_bytes(os.urandom(8)),
        )
        self.world.attach(self.driver, self.register)
        self.clients = ClientServer(self._request_handlers(stop))
        self.observation.attach(self._parts())
        self.world.after_turn.append(self._look)
        self.world.timed = self._timed

    def _parts(self) -> Parts:
        return Parts(
            store=self.store,
            driver=self.driver,
            world=self.world,
            register=self.register,
            clients=self.clients,
            presence=self.presence,
            log=self.log,
            groups=Figures(self.groups),
        )

    def _request_handlers(self, stop: Callable[[bool], None]) -> RequestHandlers:
        limits, store = self._settings.limits, self.store.reads
        freshness = self.observation.freshness
        staleness_max = self._settings.read.staleness_max
        identity = layer_settings.identity(self._config, self._settings)
        leadership = self.observation.leadership
        refusals = Refusals(identity.name, self.presence, leadership)
        metadata = Metadata(
            identity, store, self.presence, leadership=leadership, freshness=freshness
        )
        counts = ClientCounts()
        reads = Reads(store, freshness, staleness_max=staleness_max)
        finds = Finds(store, freshness, staleness_max=staleness_max, wall_ms=self._wall_ms)
        raw = RawLog(store, freshness, segment_size=self._settings.storage.segment_size)
        cold = ColdWork(self.world, limits, counts, reads=reads, finds=finds, raw=raw)
        appends = AppendPath(
            self.driver,
            limits,
            counts,
            clock=trio.lowlevel.current_clock().current_time,
            waited=self.metrics.observe_often("twinlog_confirm_wait_seconds"),
        )
        self.groups = self._work_queues(refusals, cold)
        return RequestHandlers(
            self.world,
            limits=limits,
            appends=appends,
            reads=reads,
            cold=cold,
            metadata=metadata,
            lookups=Lookups(store, freshness),
            refusals=refusals,
            admin=Admin(
                self.driver, store, refusal=refusals.error, stop=stop, wall_ms=self._wall_ms
            ),
            groups=self.groups,
            status=self.observation.status,
            counts=counts,
            tell=self.log,
            names_crc=frames.names_crc(identity.cluster, identity.group),
        )

    def _work_queues(self, refusals: Refusals, cold: ColdWork) -> WorkQueues:
        records = self.store.reads
        context = Context(
            self.driver,
            records,
            self.store.messaging,
            layer_settings.group_limits(self._settings),
            refusal=refusals.error,
            missing=partial(no_topic, records),
            wall_ms=self._wall_ms,
            tell=self.log,
            draw=lambda: secrets.randbits(53) or 1,
            family=self._config.family,
            seconds=trio.lowlevel.current_clock().current_time,
        )
        enabled = self._settings.messaging.enabled
        return WorkQueues(context, fetch=cold.look, observed=self._observed, enabled=enabled)

    def _observed(self) -> dict[str, object]:
        """Say who answers, and how old what it knows is."""
        freshness = self.observation.freshness()
        return {"node": freshness.node, "role": freshness.role, "age_ms": freshness.age_ms}

    def _timed(self, kind: str, seconds: float) -> None:
        """Record the duration of a job; flushes have a histogram."""
        if self.store.unlocked_bytes > self._unlocked:
            self._unlocked = self.store.unlocked_bytes
            self.log("memory_not_locked", "warning", bytes=self._unlocked)
        if kind == "flush":
            self.metrics.observe("twinlog_log_flush_duration_seconds", seconds)

    def _look(self, now: float) -> None:
        """Wake readers and publish the role, at the end of a turn."""
        self.clients.look(now)
        self.observation.look()

    def _report(self) -> tuple[str, int, int, int] | None:
        """The newest register state that is durable here, and this node's session."""
        promise, session = self.store.promise, self.driver.core.context.session
        if not promise.register_id:
            return None
        return promise.register_id, promise.revision, promise.tag, session

    def pages(self) -> Pages:
        """The content of the HTTP port; its module is loaded late, see `node.node`."""
        from node.observe.http_server import Pages

        enabled = self._settings.metrics.enabled
        return Pages(
            document=self.observation.status,
            metrics=self.metrics.render if enabled else None,
            delayed=partial(self.metrics.observe, "twinlog_loop_delay_seconds"),
            limited=self.clients.handlers.counts.limit_reached,
            groups=lambda after: {**self._observed(), **self.groups.orders.page(after)},
            group=self.groups.orders.document,
        )


def wall_ms() -> int:
    """Return the wall clock, milliseconds since 1970."""
    return time.time_ns() // 1_000_000

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
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from node.access.gate import Gate
from node.access.orders import AccessOrders
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
from node.groups.figures import Figures
from node.groups.service import WorkQueues
from node.leases.settles import SettleCounts
from node.leases.times import LeaseTimes
from node.observation import Observation, Parts
from node.observe.exposition import NodeMetrics
from node.observe.logs import NodeLog
from node.peer_copies import PeerCopies
from node.topics.quotas import Quotas
from node.turns.context import Context, GroupCounts
from replication.coordinator.client import CoordinatorClient
from replication.driver.driver import Driver
from replication.net.certificates import Certificates
from replication.replica_service import ReplicaService
from storage import Store
from storage.disk.disk import Disk
from storage.state.access import OPERATOR
from twinlog.session.login import nonce
from twinlog.session.tls_files import Login
from twinlog.wire import frames

if TYPE_CHECKING:
    from node.observe.http_server import Pages
    from twinlog.session.connection import Secure

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
        picture: See `node.observe.live.Live`.
        certificates: For TLS on every port and to other processes; None: none is spoken.
        secret: The operator's password; None: no client is asked who it is.
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
        picture: Callable[[], str] | None = None,
        certificates: Certificates | None = None,
        secret: str | None = None,
    ) -> None:
        settings = config.node(name)
        self.gate = None if secret is None else Gate(store.reads.access, secret, log, nonce)
        outgoing = None if certificates is None else certificates.outgoing
        self._wall_ms = wall_ms
        self._picture = picture
        self._config = config
        self._settings = settings
        self._unlocked = 0
        self.log = log
        self.store = store
        self.observation = Observation(
            config, name, disk=disk, ports=ports, certificates=certificates
        )
        self.metrics = NodeMetrics(self.observation.metrics)
        self.presence = Presence(name, lambda: self.register.live)
        self.world = ReplicaService(
            peers=self.presence.slave_address,
            tell=log,
            moved=self.observation.moved,
            copy=PeerCopies(
                self.presence, outgoing, None if secret is None else Login(OPERATOR, secret)
            ).fetch,
            spin_seconds=settings.limits.spin_seconds,
            certificates=certificates,
        )
        self.register = self._coordinator_client(coordinator, outgoing)
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
        self.clients = ClientServer(self._request_handlers(stop), certificates)
        self.observation.attach(self._parts())
        self.world.after_turn.append(self._look)
        self.world.timed = self._timed

    def _coordinator_client(self, endpoints: Endpoints, secure: Secure | None) -> CoordinatorClient:
        config = self._config
        return CoordinatorClient(
            endpoints,
            frames.names_crc(config.name, config.group),
            name=self._settings.name,
            on_state=self.world.on_state,
            event=self.log,
            report=self._report,
            secure=secure,
        )

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
        if self.gate is not None:
            identity = replace(identity, features=identity.features | frames.ACCESS)
        leadership = self.observation.leadership
        refusals = Refusals(identity.name, self.presence, leadership)
        metadata = Metadata(
            identity, store, self.presence, leadership=leadership, freshness=freshness
        )
        counts = ClientCounts()
        self.quotas = Quotas(store.limited, self.log)
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
            quotas=self.quotas,
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
                self.driver,
                store,
                refusal=refusals.error,
                stop=stop,
                wall_ms=self._wall_ms,
                groups=self.groups,
            ),
            groups=self.groups,
            access=AccessOrders(self.driver, store.access, refusal=refusals.error),
            gate=self.gate,
            status=self.observation.status,
            counts=counts,
            quotas=self.quotas,
            tell=self.log,
            names_crc=frames.names_crc(identity.cluster, identity.group),
        )

    def _work_queues(self, refusals: Refusals, cold: ColdWork) -> WorkQueues:
        records, held = self.store.reads, self.metrics.observe_often("twinlog_lease_seconds")
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
            counts=GroupCounts(SettleCounts(LeaseTimes(held))),
            quotas=self.quotas,
        )
        enabled = self._settings.messaging.enabled
        return WorkQueues(
            context, fetch=cold.look, looks=cold.look, observed=self._observed, enabled=enabled,
            transactions=layer_settings.check_settings(self._settings),
            late=self.metrics.observe_often("twinlog_delay_lateness_seconds"),
            timer_late=self.metrics.observe_often("twinlog_timer_lateness_seconds"),
        )  # fmt: skip

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
        from node.observe.live import Live

        enabled = self._settings.metrics.enabled
        limited = self.clients.handlers.counts.limit_reached
        return Pages(
            document=self.observation.status,
            metrics=self.metrics.pieces if enabled else None,
            delayed=partial(self.metrics.observe, "twinlog_loop_delay_seconds"),
            limited=limited,
            groups=lambda after: {**self._observed(), **self.groups.orders.page(after)},
            group=self.groups.orders.document,
            timers=self.groups.orders.waiting.overview,
            live=Live(self._picture, self.log.recent, limited, self.world.threads),
            admits=None if self.gate is None else self.gate.operates,
        )


def wall_ms() -> int:
    """Return the wall clock, milliseconds since 1970."""
    return time.time_ns() // 1_000_000

"""A node's view of itself: its role, the freshness of its data, its status.

A view of the role costs as much as an append, so it is cached: it is made again when role, promise
or group state have changed, and otherwise after `VIEW_SECONDS`, because ages grow.

Not here: the parts themselves (``node.services``), the form of the documents
(``node.observe.status``) and of the metrics (``node.observe.metrics``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

import trio

from node.clients.freshness import Freshness
from node.clients.metadata import Leadership
from node.config.config import ClusterConfig
from node.observe.metrics import Observed, counters, present
from node.observe.status import Facts, node_status
from replication.core.view import RoleView
from storage.disk.disk import Disk
from storage.log.log_folders import passed_over

if TYPE_CHECKING:
    from node.clients.presence import Presence
    from node.clients.server import ClientServer
    from node.groups.figures import Figures
    from node.observe.logs import NodeLog
    from replication.coordinator.client import CoordinatorClient
    from replication.driver.driver import Driver
    from replication.net.certificates import Certificates
    from replication.replica_service import ReplicaService
    from storage import Store

VIEW_SECONDS = 0.25
"""Largest age of a view whose ages are used."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a node that are watched."""

    store: Store
    driver: Driver
    world: ReplicaService
    register: CoordinatorClient
    clients: ClientServer
    presence: Presence
    log: NodeLog
    groups: Figures


class Observation:
    """Observes the parts of one node; `attach` must be called first.

    Args:
        config: The whole file.
        name: Which node of it.
        disk: The data directory.
        ports: The ports the listeners got: clients, slaves, http.
        certificates: Of TLS; None: none is spoken.
    """

    def __init__(
        self,
        config: ClusterConfig,
        name: str,
        *,
        disk: Disk,
        ports: Mapping[str, int],
        certificates: Certificates | None = None,
    ) -> None:
        self._certificates = certificates
        self._attached: Parts | None = None
        self._config = config
        self._settings = config.node(name)
        self._disk = disk
        self._ports = ports
        self._view: RoleView | None = None
        self._view_at = 0.0
        self._fresh: tuple[RoleView, Freshness] | None = None
        self._seen: tuple[object, ...] = ()
        self._dirty = True
        self._published: tuple[object, ...] = ()
        self._started_at = trio.current_time()

    def attach(self, parts: Parts) -> None:
        """Set the parts; once, when all of them exist."""
        self._attached = parts

    @property
    def _parts(self) -> Parts:
        assert self._attached is not None, "attach comes first"
        return self._attached

    # ── the role ────────────────────────────────────────────────────────────────────────────────

    def moved(self) -> None:
        """Note that the view of the driver may have changed."""
        self._dirty = True

    def look(self) -> None:
        """Publish the role if it has changed; called at the end of every turn."""
        if self._dirty:
            self._dirty = False
            if self._parts.driver.core.standing != self._seen:
                self._publish(self.view())

    def view(self) -> RoleView:
        """Return the view of the role; its offsets and ages are at most `VIEW_SECONDS` old."""
        now, key = trio.current_time(), self._parts.driver.core.standing
        view = self._view
        old = now - self._view_at > VIEW_SECONDS or key != self._seen
        if view is None or old or view.age_seconds is None:
            view = self._view = self._parts.driver.view(now)
            self._view_at, self._seen = now, key
        return view

    def freshness(self) -> Freshness:
        """Return the node's freshness, for answers to readers."""
        view = self.view()
        if self._fresh is not None and self._fresh[0] is view:
            return self._fresh[1]
        silence = self._settings.replication.link_timeout
        freshness = Freshness.of(view, self._settings.name, silence_max=silence)
        self._fresh = view, freshness
        return freshness

    def leadership(self) -> Leadership:
        """Return the master that this node knows of."""
        view = self.view()
        writable = view.role == "master" and view.admission is None
        return Leadership(view.leader, view.epoch, writable)

    # ── published ─────────────────────────────────────────────────────────────────────────────

    def addresses(self) -> dict[str, object]:
        """Return this node's addresses, as others reach it."""
        listen = self._settings.listen
        return {
            "host": self._settings.address,
            "client_port": listen.clients_advertised or self._ports["clients"],
            "slave_port": listen.slaves_advertised or self._ports["slaves"],
            "http_port": self._ports["http"],
        }

    def _publish(self, view: RoleView) -> None:
        """Publish role and addresses at the coordinator when they have changed."""
        parts = self._parts
        key = (view.role, view.state, view.epoch)
        parts.clients.handlers.epoch = view.epoch
        if key == self._published:
            return
        self._published = key
        parts.log.bind(role=view.role, epoch=view.epoch)
        parts.presence.own = {
            "name": self._settings.name,
            "group": self._config.group,
            "role": view.role,
            "state": view.state,
            "epoch": view.epoch,
            **self.addresses(),
        }
        parts.register.publish(parts.presence.own)

    def status(self) -> dict[str, object]:
        """Return the status document of this node as of now."""
        node = self._observed()
        return node_status(node.view, node.facts, counters(node))

    def metrics(self) -> dict[str, float | Mapping[tuple[str, ...], float]]:
        """Return the present value of every metric for one scrape."""
        return present(self._observed())

    def _observed(self) -> Observed:
        parts = self._parts
        view, clients = parts.driver.view(trio.current_time()), parts.clients
        return Observed(
            view, self._facts(), clients, clients.handlers, parts.world, parts.log, parts.groups
        )

    def _facts(self) -> Facts:
        parts, store, certificates = self._parts, self._parts.store, self._certificates
        free, size = self._disk.free_bytes()
        now = trio.current_time()
        contact = parts.register.contact_at
        boot = store.boot
        return Facts(
            node=self._settings.name,
            cluster=self._config.name,
            group=self._config.group,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            version=version("twinlog"),
            pid=os.getpid(),
            uptime_seconds=now - self._started_at,
            addresses=self.addresses(),
            offsets={
                "start": store.start,
                "checkpointed": store.checkpointed,
                "flushed": store.flushed,
                "dispatched": store.dispatched,
                "confirm": store.confirm,
                "committed": store.committed,
                "end": store.end,
            },
            coordinator_seconds=None if contact == -float("inf") else now - contact,
            topics=len(store.reads.topics()),
            disk_free=free,
            disk_size=size,
            folders_passed_over=passed_over(self._disk),
            boot={
                "clean": boot.clean,
                "why_unclean": boot.why_unclean,
                "segments": boot.found_segments,
                "cut_bytes": boot.cut_bytes,
            },
            unlocked_bytes=store.unlocked_bytes,
            staleness_max_seconds=self._settings.read.staleness_max,
            retention=parts.driver.retention.document(),
            scrub=parts.driver.scrub.document(),
            insecure=self._config.insecure,
            certificate_until=None if certificates is None else certificates.until,
        )

"""The parts of a node while it serves, and how they are tied together.

One `Running` lives from the recovered store to the end of service. It holds what several parts look
at: the newest view of the driver, who leads, what this node publishes. Parts know each other only
through what they are given here.

A view costs as much as an append, so it is not made for each: it is taken anew when role, promise
or group state are others than before, and otherwise after `VIEW_SECONDS`, because ages grow without
anybody saying so.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import trio

from node import parts
from node.admin import Admin
from node.answers import Answers, Leadership
from node.append_path import AppendPath
from node.client_server import ClientServer
from node.cold_work import ColdWork
from node.config import ClusterConfig
from node.counts import ClientCounts
from node.figures import Counters, figures
from node.finds import Finds
from node.logs import NodeLog
from node.metrics import NodeMetrics
from node.presence import Presence
from node.raw_log import RawLog
from node.reads import Reads, Standing
from node.status import Facts, node_status
from replication.coordinator_client import CoordinatorClient
from replication.driver import Driver, RoleView
from replication.replica_service import ReplicaService
from storage import ReadResult, Store
from storage.disk import Disk
from twinlog import wire

if TYPE_CHECKING:
    from node.http_server import Pages

Endpoints = Sequence[tuple[str, int]] | Callable[[], Sequence[tuple[str, int]]]

VIEW_SECONDS = 0.25
"""How old a view may be that ages are read from."""


class Running:
    """Ties the parts of one node together.

    Args:
        config: The whole file.
        name: Which node of it.
        store: Recovered and open.
        disk: Its directory.
        ports: What the listeners got: clients, slaves, http.
        coordinator: Where the coordinator listens.
        log: Where events go.
        stop: Called by an order to stop; the argument says at once.
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
    ) -> None:
        settings = config.node(name)
        self._config = config
        self._settings = settings
        self._ports = ports
        self._disk = disk
        self._log = log
        self._view: RoleView | None = None
        self._view_at = 0.0
        self._stood: tuple[RoleView, Standing] | None = None
        self._seen: tuple[object, ...] = ()
        self._dirty = True
        self._published: tuple[object, ...] = ()
        self._unlocked = 0
        self._started_at = trio.current_time()
        self.store = store
        self.metrics = NodeMetrics(self._figures)
        self.presence = Presence(name, lambda: self.register.live)
        self.world = ReplicaService(
            peers=self.presence.slave_address,
            tell=log,
            moved=self._moved,
            spin_seconds=settings.limits.spin_seconds,
        )
        self.register = CoordinatorClient(
            coordinator,
            wire.names_crc(config.name, config.group),
            name=name,
            on_state=self.world.on_state,
            event=log,
            report=self._report,
        )
        self.driver = Driver(
            store,
            parts.replication_settings(config, settings),
            self.world,
            node=name,
            cluster=config.name,
            group=config.group,
            wall_ms=wall_ms,
            now=trio.current_time(),
            seed=int.from_bytes(os.urandom(8)),
        )
        self.world.attach(self.driver, self.register)
        self.clients = self._client_server(stop)
        self.world.after_turn.append(self._look)
        self.world.timed = self._timed

    def _client_server(self, stop: Callable[[bool], None]) -> ClientServer:
        limits = self._settings.limits
        answers = Answers(
            parts.identity(self._config, self._settings),
            self.store,
            self.presence,
            leadership=self.leadership,
            standing=self.standing,
        )
        admin = Admin(self.driver, self.store, refusal=answers.refusal, stop=stop, wall_ms=wall_ms)
        counts = ClientCounts()
        reads = Reads(self.store, self.standing, staleness_max=self._settings.read.staleness_max)
        finds = Finds(
            self.store,
            self.standing,
            staleness_max=self._settings.read.staleness_max,
            wall_ms=wall_ms,
        )
        cold = ColdWork(
            self.world,
            limits,
            counts,
            reads=reads,
            finds=finds,
            raw=RawLog(self.store, self.standing, segment_size=self._settings.storage.segment_size),
            fetch=fetch,
        )
        return ClientServer(
            self.world,
            limits=limits,
            appends=AppendPath(
                self.driver,
                limits,
                counts,
                clock=trio.lowlevel.current_clock().current_time,
                waited=self.metrics.observe_often("twinlog_confirm_wait_seconds"),
            ),
            reads=reads,
            cold=cold,
            answers=answers,
            admin=admin,
            status=self.status,
            counts=counts,
            tell=self._log,
        )

    def _timed(self, kind: str, seconds: float) -> None:
        """Take the duration of a job: flushes are what acknowledgements wait for."""
        if self.store.unlocked_bytes > self._unlocked:
            self._unlocked = self.store.unlocked_bytes
            self._log("memory_not_locked", "warning", bytes=self._unlocked)
        if kind == "flush":
            self.metrics.observe("twinlog_log_flush_duration_seconds", seconds)

    # ── what several parts look at ──────────────────────────────────────────────────────────────

    def _moved(self) -> None:
        self._dirty = True

    def _look(self, now: float) -> None:
        """At the end of a turn: wake readers, publish what others must know."""
        self.clients.look(now)
        if self._dirty:
            self._dirty = False
            if self._standing_of_core() != self._seen:
                self._publish(self.view())

    def _standing_of_core(self) -> tuple[object, ...]:
        """What a view depends on besides offsets and ages; cheap, compared each turn."""
        context = self.driver.core.context
        return context.role.state, context.promise, context.newest

    def view(self) -> RoleView:
        """What the driver shows; offsets and ages not older than `VIEW_SECONDS`."""
        now, seen = trio.current_time(), self._standing_of_core()
        view = self._view
        old = now - self._view_at > VIEW_SECONDS or seen != self._seen
        if view is None or old or view.age_seconds is None:
            view = self._view = self.driver.view(now)
            self._view_at, self._seen = now, seen
        return view

    def standing(self) -> Standing:
        """What an answer to a reader says about this node."""
        view = self.view()
        if self._stood is not None and self._stood[0] is view:
            return self._stood[1]
        standing = Standing.of(view, self._settings.name)
        self._stood = view, standing
        return standing

    def leadership(self) -> Leadership:
        """Who is master as far as this node knows."""
        view = self.view()
        writable = view.role == "master" and view.admission is None
        return Leadership(view.leader, view.epoch, writable)

    def _report(self) -> tuple[str, int, int] | None:
        """The newest register this node has seen, as its disk remembers it."""
        promise = self.store.promise
        return (promise.register_id, promise.revision, promise.tag) if promise.register_id else None

    # ── what others are told ────────────────────────────────────────────────────────────────────

    def addresses(self) -> dict[str, object]:
        """Where this node listens, as others use it."""
        return {
            "host": self._settings.address,
            "client_port": self._ports["clients"],
            "slave_port": self._ports["slaves"],
            "http_port": self._ports["http"],
        }

    def _publish(self, view: RoleView) -> None:
        """Say at the coordinator who we are, when that changed."""
        now = (view.role, view.state, view.epoch)
        self.clients.epoch = view.epoch
        if now == self._published:
            return
        self._published = now
        self._log.bind(role=view.role, epoch=view.epoch)
        self.presence.own = {
            "name": self._settings.name,
            "group": self._config.group,
            "role": view.role,
            "state": view.state,
            "epoch": view.epoch,
            **self.addresses(),
        }
        self.register.publish(self.presence.own)

    def status(self) -> dict[str, object]:
        """The status document of this node, of this moment."""
        return node_status(self.driver.view(trio.current_time()), self.store, self._facts())

    def _facts(self) -> Facts:
        free, size = self._disk.free_bytes()
        now = trio.current_time()
        contact = self.register.contact_at
        boot = self.store.boot
        return Facts(
            node=self._settings.name,
            cluster=self._config.name,
            group=self._config.group,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            version=version("twinlog"),
            pid=os.getpid(),
            uptime_seconds=now - self._started_at,
            addresses=self.addresses(),
            coordinator_seconds=None if contact == -float("inf") else now - contact,
            topics=self.store.topics(),
            disk_free=free,
            disk_size=size,
            boot={
                "clean": boot.clean,
                "why_unclean": boot.why_unclean,
                "segments": boot.found_segments,
                "cut_bytes": boot.cut_bytes,
            },
            counters=self.counters(),
            staleness_max_seconds=self._settings.read.staleness_max,
            retention=self.driver.keeping.document(),
        )

    def counters(self) -> dict[str, object]:
        """Plain numbers that only rise, and a few of now."""
        clients = self.clients
        counts, reads = clients.counts, clients.reads
        return {
            "connections": clients.connections,
            "accepted": counts.accepted,
            "in_flight": clients.in_flight,
            "appends_waiting": clients.appends.waiting,
            "long_polls_waiting": reads.waiting,
            "memory_unlocked_bytes": self.store.unlocked_bytes,
            "reads_cold": reads.counts.cold,
            "cold_answers_bytes": clients.cold.held,
            "cold_answers_waiting": clients.cold.waiting,
            "reads_stale": reads.counts.stale,
            "answers": {f"{kind}/{code}": n for (kind, code), n in counts.answers.items()},
            "closings": dict(counts.closings),
            "links_closed": dict(self.world.links_closed),
            "limits": dict(counts.limits),
        }

    def _figures(self) -> Mapping[str, float | Mapping[tuple[str, ...], float]]:
        """The present numbers for one scrape."""
        clients, reads = self.clients, self.clients.reads
        counts = clients.counts
        counters = Counters(
            answers=counts.answers,
            closings=counts.closings,
            limits=counts.limits,
            accepted=counts.accepted,
            connections=clients.connections,
            in_flight=clients.in_flight,
            long_polls=reads.waiting,
            events=self._log.counts,
            appended=counts.records,
            appended_bytes=counts.size,
            read=reads.counts.records,
            read_bytes=reads.counts.size,
            links_closed=self.world.links_closed,
            unlocked=self.store.unlocked_bytes,
            cold_bytes=clients.cold.held,
            cold_waiting=clients.cold.waiting,
        )
        return figures(self.status(), counters, python=platform.python_version())

    def pages(self) -> Pages:
        """What the HTTP port serves; its module is loaded late, see `node.node`."""
        from node.http_server import Pages

        enabled = self._settings.metrics.enabled
        return Pages(
            document=self.status,
            metrics=self.metrics.render if enabled else None,
            delayed=partial(self.metrics.observe, "twinlog_loop_delay_seconds"),
            limited=self.clients.counts.limit_reached,
        )


def fetch(result: ReadResult) -> ReadResult | Exception:
    """Return a cold read with its slices copied, proven and filtered first; or what ended it.

    Runs in a thread, because the pages may have to come from disk. The log may be cut and files may
    leave under it, so what it meets is judged on the loop (`Store.fetched`).
    """
    assert result.fetch is not None
    try:
        return result.fetch()
    except Exception as error:
        return error


def wall_ms() -> int:
    """Return the wall clock, milliseconds since 1970."""
    return time.time_ns() // 1_000_000

"""One node: its parts, in the order in which they start and stop.

Start (`Node.run`):

1. **listeners**: the three ports are taken first, so that a port in use is noticed early, and the
number behind port 0 is known before it is published;
2. **store**: the directory is locked, its identity checked, the log recovered, in a thread;
3. **driver**: core, store and `ReplicaService` are wired together;
4. **role**: the driver starts, before anything can reach it: it registers and learns which node to
follow. Then the coordinator's client watches and polls, and slaves may connect. From here on events
drive everything;
5. **servers**: clients, then HTTP, whose library is loaded meanwhile;
6. **ready**: ``DATA/twinlog/run.json`` is written, `Node.ready` set.

Stop (`Node.stop`; TERM and INT call it): new appends are refused and pending requests are answered
(`Driver.stop`); answers are sent; servers and links close; jobs in threads are waited for; the
store is closed cleanly; ``run.json`` is removed. A second signal skips the waiting; the store is
still closed cleanly.

A task that ends with an exception ends the node (`NodeCrashed` and everything else): store and
``run.json`` are left as they are, as after kill -9, and the exception propagates from `run`.

Nothing here is global: several nodes run inside one loop. `run` is the form for a process: signals,
collector settings, one node.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import cast

import trio

from node.clients.limits import queue_descriptors_that_fit
from node.config import layer_settings
from node.config.config import ClusterConfig
from node.observe import systemd
from node.observe.logs import NodeLog
from node.observe.task_tree import task_tree
from node.reload import STARTED_FILE, Reload, started_with
from node.services import Endpoints, NodeServices, wall_ms
from replication.net.certificates import Certificates
from replication.net.streams import listen
from storage import Store, Who
from storage.disk.disk import Disk, RealDisk
from storage.disk.drill_faults import DrillFaults
from storage.disk.thread_names import name_thread
from storage.log.log_folders import multi_folder_disk
from twinlog.run_file import RUN_FILE, running_port
from twinlog.session.login import password_in

DRAIN_SECONDS = 12.0
"""A clean stop waits this long for pending requests, then closes in any case."""


class Node:
    """One node of a cluster; see the module.

    Args:
        config: The whole file.
        name: Which node of it.
        log: Receives events; None makes one from the file's settings.
        disk: The data directory; None: the one in the file.
        coordinator: Addresses of the coordinator; None: those in the file.
        picture: Makes a picture of the cluster, for the HTTP port; see `node.observe.live.Live`.
    """

    def __init__(
        self,
        config: ClusterConfig,
        name: str,
        *,
        log: NodeLog | None = None,
        disk: Disk | None = None,
        coordinator: Endpoints | None = None,
        picture: Callable[[], str] | None = None,
    ) -> None:
        self._config = config
        self._picture = picture
        self._settings = config.node(name)
        self._coordinator = coordinator or endpoints_of(config)
        data = self._settings.data
        drill = DrillFaults(data) if self._settings.storage.drill_faults else None
        self._wall_ms = wall_ms if drill is None else lambda: wall_ms() + drill.clock_ms
        tls = config.tls_of(name)
        self.certificates = None if tls is None else Certificates(tls)
        secret = layer_settings.secret_file(config)
        self._secret = None if secret is None else password_in(str(secret))
        self._disk = disk or multi_folder_disk(
            RealDisk(data, descriptors_max=queue_descriptors_that_fit(), drill=drill),
            layer_settings.log_folders(self._settings),
        )
        self._stopping = trio.Event()
        self._drain = trio.CancelScope()
        self._started_at = 0.0
        self.name = name
        self.log = log or NodeLog(
            level=self._settings.log.level, style=self._settings.log.format, node=name
        )
        self.ended = trio.Event()
        """Set when `run` has ended, for any reason."""
        self.stopped_by: int | None = None
        """The first signal that ended the process."""
        self.ready = trio.Event()
        """Set when the ports answer and ``run.json`` is written."""
        self.services: NodeServices | None = None
        """The parts, once the store is recovered; for tests."""
        self.run_document: dict[str, object] = {}
        """The content of ``run.json``: pid, ports, version, and the state of the store."""

    # ── life ────────────────────────────────────────────────────────────────────────────────────

    async def run(
        self, *, task_status: trio.TaskStatus[Mapping[str, object]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Start, serve until `stop`, stop in order; started with ``run.json``'s document.

        Cancelled: the node ends as if its process had been killed, and releases its directory.

        Raises:
            OSError: A port is in use.
            TwinlogError: The directory is in use, of another node, newer or damaged.
            NodeCrashed: The driver or a disk error ended the node; other exceptions of tasks
                propagate.
        """
        self._started_at = trio.current_time()
        listeners = self._listen()
        try:
            store = await self._open(listeners)
            clean = False
            try:
                await self._serve(store, listeners, task_status)
                clean = True
            finally:
                with trio.CancelScope(shield=True):
                    close = partial(store.close, clean=clean)
                    await trio.to_thread.run_sync(close, thread_name="close")
            self._disk.remove(RUN_FILE, op="node.run.remove")
            self._disk.remove(STARTED_FILE, op="node.started.remove")
            self.log("node_stopped", "info", end=store.end)
        except BaseExceptionGroup as group:
            raise only(group) from None
        finally:
            for sock in listeners.values():
                sock.close()
            self.ended.set()

    def stop(self, *, now: bool = False) -> None:
        """Stop in order; ``now`` (or a second call) does not wait for pending requests."""
        if now or self._stopping.is_set():
            self._drain.cancel()
        self._stopping.set()

    def _listen(self) -> dict[str, socket.socket]:
        listen_to, host = self._settings.listen, self._settings.bind
        ports = {"clients": listen_to.clients, "slaves": listen_to.slaves, "http": listen_to.http}
        taken: dict[str, socket.socket] = {}
        for name, port in ports.items():
            try:
                taken[name] = listen(host, port)
            except OSError as error:
                for sock in taken.values():
                    sock.close()
                text = f"port {port} at {host} ({name} of {self.name}): {error.strerror}"
                raise OSError(error.errno, text) from error
        return taken

    async def _open(self, listeners: Mapping[str, socket.socket]) -> Store:
        """Recover the store in a thread: it may take seconds, and other nodes may share the
        loop."""
        settings, config = self._settings, self._config
        host = (await trio.socket.getaddrinfo(settings.address, None))[0][4][0]
        port = listeners["clients"].getsockname()[1]
        who = Who(config.name, config.group, self.name, config.family)
        return await trio.to_thread.run_sync(
            partial(
                Store.open,
                self._disk,
                layer_settings.store_settings(settings, str(host), port),
                who,
                wall_ms=self._wall_ms(),
            )
        )

    async def _serve(
        self,
        store: Store,
        listeners: Mapping[str, socket.socket],
        task_status: trio.TaskStatus[Mapping[str, object]],
    ) -> None:
        """Run the parts until `stop`; the caller closes the store."""
        ports = {name: sock.getsockname()[1] for name, sock in listeners.items()}
        services = self.services = NodeServices(
            self._config,
            self.name,
            store,
            disk=self._disk,
            ports=ports,
            coordinator=self._coordinator,
            log=self.log,
            stop=lambda now: self.stop(now=now),
            wall_ms=self._wall_ms,
            picture=self._picture,
            certificates=self.certificates,
            secret=self._secret,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(services.world.run, listeners["slaves"])
            await nursery.start(services.clients.run, listeners["clients"])
            nursery.start_soon(_serve_http, listeners["http"], services, self.certificates)
            self.run_document = self._run_document(store, ports)
            started = started_with(self._config)
            self._disk.write_file(STARTED_FILE, started, op="node.started.write")
            self._disk.write_file(
                RUN_FILE, json.dumps(self.run_document).encode(), op="node.run.write"
            )
            self.log("node_started", "info", **self.run_document)
            self.ready.set()
            task_status.started(self.run_document)
            await self._stopping.wait()
            self.log("node_stopping", "info")
            await self._drained(services)
            nursery.cancel_scope.cancel()

    def _run_document(self, store: Store, ports: Mapping[str, int]) -> dict[str, object]:
        boot = store.boot
        return {
            "kind": "NodeRun",
            "name": self.name,
            "pid": os.getpid(),
            "host": self._settings.address,
            "ports": dict(ports),
            "version": version("twinlog"),
            "data": str(self._settings.data),
            "start": store.start,
            "end": store.end,
            "found_segments": boot.found_segments,
            "epochs": [[each.epoch, each.start] for each in store.epochs[-8:]],
            "clean": boot.clean,
            "why_unclean": boot.why_unclean,
            "cut_bytes": boot.cut_bytes,
            "start_seconds": round(trio.current_time() - self._started_at, 3),
        }

    async def _drained(self, services: NodeServices) -> None:
        """Answer pending requests, for `DRAIN_SECONDS` or until `stop` is called again."""
        done = trio.Event()

        def stopped(code: str, text: str) -> None:
            if text:
                self.log("leadership_at_stop", "info", outcome=text)
            done.set()

        with self._drain:
            self._drain.deadline = trio.current_time() + DRAIN_SECONDS
            services.driver.stop(services.world.now(), stopped)
            services.world.turn()
            await done.wait()
            services.world.turn()
            await services.clients.emptied()


async def _serve_http(
    listener: socket.socket, services: NodeServices, certificates: Certificates | None
) -> None:
    """Serve HTTP; its library is loaded while the node already serves.

    Loading takes a third of a node's start, which a returning master's clients need not wait for.
    Connections made earlier find the port open and are answered a moment later.
    """
    http_server = await trio.to_thread.run_sync(import_module, "node.observe.http_server")
    await http_server.serve(
        listener, services.pages(), None if certificates is None else certificates.http
    )


async def run(
    config: ClusterConfig,
    name: str,
    *,
    ready: Callable[[Mapping[str, object]], None] | None = None,
    read: Callable[[], ClusterConfig] | None = None,
    picture: Callable[[], str] | None = None,
) -> int | None:
    """Run one node as this process; return the signal that stopped it, None for a command.

    ``ready`` is given ``run.json``'s document once the node serves; ``read`` reads the file again,
    at SIGHUP; ``picture`` shows the cluster at the HTTP port. Raises as `Node.run` does.
    """
    name_thread(f"twinlog {name}")
    node = Node(config, name, picture=picture)
    again = Reload(config, name, node.log, read or (lambda: config), node.certificates)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(_signals, node, again)
            document = await nursery.start(node.run)
            if ready is not None:
                ready(document)
            systemd.report("READY=1")
            nursery.start_soon(systemd.beat)
            # Objects that exist now live as long as the process: the collector can skip them.
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 50)
            await node.ended.wait()
            nursery.cancel_scope.cancel()
        return node.stopped_by
    except BaseExceptionGroup as group:
        raise only(group) from None


async def _signals(
    node: Node, again: Reload, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
    with trio.open_signal_receiver(*wanted) as received:
        task_status.started()
        async for number in received:
            if number == signal.SIGUSR1:
                node.log("tasks_dumped", "info", tasks=task_tree())
            elif number == signal.SIGHUP:
                await again.run()
            else:
                systemd.report("STOPPING=1")
                node.stopped_by = node.stopped_by or number
                node.stop()


def endpoints_of(config: ClusterConfig) -> Endpoints:
    """Return the coordinator's addresses; port 0 is looked up in its run file each time."""
    fixed, folder = config.coordinator.endpoints, config.coordinator.data
    if all(port for _, port in fixed):
        return fixed

    def found() -> list[tuple[str, int]]:
        port = running_port(folder, "coordinator")
        return [(host, port) for host, _ in fixed if port is not None]

    return found


def only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the cause in a group of exceptions: the first that is not a cancellation."""
    for error in group.exceptions:
        found = error
        if isinstance(error, BaseExceptionGroup):
            found = only(cast("BaseExceptionGroup[BaseException]", error))
        if not isinstance(found, trio.Cancelled):
            return found
    return group.exceptions[0]

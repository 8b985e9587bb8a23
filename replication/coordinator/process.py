"""The coordinator's process: opens the store, listens, writes ``run.json``, serves until a signal.

With its register in etcd there may be several such processes. One has the seat and serves; the
others wait for it and do not listen, so that clients try the next address. A process that loses its
seat drops its state and waits again.

Not here: answers (``replication.coordinator.service``), connections
(``replication.coordinator.peer``).
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from replication.coordinator.client import Event, no_event
from replication.coordinator.peer import Connections
from replication.coordinator.seat import SeatLost
from replication.coordinator.service import CoordinatorService, CoordinatorSettings
from replication.coordinator.standby import LOOK_SECONDS, Standby
from replication.coordinator.store import CoordinatorStore, RegisterStore, StoreStopped
from replication.net.certificates import Certificates, renew
from replication.net.handshakes import Handshakes
from replication.net.streams import accept, listen
from replication.net.tls_stream import TlsStream
from twinlog.run_file import remove_run_file, write_run_file
from twinlog.session.tls_files import EtcdShown, TlsSettings
from twinlog.session.tls_socket import TlsSocket

WRITABLE = "make it writable and start the coordinator again; what it answered is kept"
"""What to do about a store that failed: a disk that is full or broken, or etcd."""


async def serve(
    settings: CoordinatorSettings,
    *,
    event: Event = no_event,
    ready: Callable[[int], None] | None = None,
    certificates: Certificates | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Keep the register until cancelled; ``ready`` and ``task_status`` are given the port.

    ``certificates``: those of ``settings.tls``, if the caller wants to read them again; else they
    are read here.

    With etcd, ``task_status`` waits for the first seat, and ``ready`` is called for each seat.

    Cancelled: a running operation is completed first, connections are closed without notice,
    ``run.json`` is removed, the store is closed. Answered changes are durable.

    Raises:
        UsageError: The data folder is in use or belongs to another cluster.
        CorruptionError: The store is damaged.
        OSError: The port is taken.
        StoreStopped: The disk failed; only answered changes are durable.
    """
    if certificates is None and settings.tls is not None:
        certificates = Certificates(settings.tls)
    process = _Process(settings, event, ready, task_status, certificates)
    if settings.etcd:
        await process.take_turns(Standby(settings, event))
        return
    store = CoordinatorStore(settings.data, settings.cluster, settings.group)
    try:
        await process.keep(store)
    finally:
        store.close()


class _Process:
    """One process and the task that waits for it to be ready, notified the first time only."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        event: Event,
        ready: Callable[[int], None] | None,
        task_status: trio.TaskStatus[int],
        certificates: Certificates | None = None,
    ) -> None:
        self._settings = settings
        self._event = event
        self._ready = ready
        self._status: trio.TaskStatus[int] | None = task_status
        self._certificates = certificates

    async def take_turns(self, standby: Standby) -> None:
        """Keep the register whenever this process has the seat, until cancelled."""
        try:
            await self._take_turns(standby)
        finally:
            remove_run_file(self._settings.data)

    async def _take_turns(self, standby: Standby) -> None:
        while True:
            try:
                store, renew = await standby.seated()
            except SeatLost as lost:
                self._event("seat_lost", "warning", why=str(lost))
                await trio.sleep(LOOK_SECONDS)  # etcd may go on answering half of what it is asked
                continue
            try:
                await self.keep(store, renew)
            except SeatLost as lost:
                self._event("seat_lost", "warning", why=str(lost))
            finally:
                with trio.CancelScope(shield=True):  # bounded by the deadlines of the calls
                    await trio.to_thread.run_sync(store.close)

    async def keep(
        self, store: RegisterStore, beside: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Serve from ``store`` until cancelled; ``beside`` runs for the same time."""
        settings, event = self._settings, self._event
        service = CoordinatorService(settings, store, event=event)
        listener = listen(settings.host, settings.port)
        port = int(listener.getsockname()[1])
        facts = {"pid": os.getpid(), "ports": {"coordinator": port}, "version": settings.version}
        try:
            try:
                settings.data.mkdir(parents=True, exist_ok=True)
                write_run_file(settings.data, {"host": settings.host, **facts})
            except OSError as error:
                text = f"cannot write the run file in {settings.data}: {error}"
                raise StoreStopped(text, hint=WRITABLE) from error
            event("coordinator_started", "info", host=settings.host, port=port)
            await self._accept(Connections(service), listener, port, beside)
        finally:
            remove_run_file(settings.data)
            listener.close()
            event("coordinator_stopped", "info", changes=service.counts.changes)

    async def _accept(
        self,
        connections: Connections,
        listener: socket.socket,
        port: int,
        beside: Callable[[], Awaitable[None]] | None,
    ) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._listen(nursery, connections, listener)
                nursery.start_soon(connections.service.watch_master)
                if beside is not None:
                    nursery.start_soon(beside)
                self._tell_ready(port)
        except BaseExceptionGroup as group:
            stopped = group.subgroup(StoreStopped)
            if stopped is None:
                raise
            lost = _first(stopped)
            if isinstance(lost, SeatLost):
                raise SeatLost(str(lost)) from group
            raise StoreStopped(f"the coordinator stops: {lost.text}", hint=WRITABLE) from group

    def _listen(
        self, nursery: trio.Nursery, connections: Connections, listener: socket.socket
    ) -> None:
        if self._certificates is None:
            plain = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
            serve: Callable[[trio.SocketStream], Awaitable[None]] = connections.serve
            nursery.start_soon(partial(trio.serve_listeners, serve, [plain]))
            return

        def opened(secured: TlsSocket, peer: str) -> None:
            nursery.start_soon(connections.serve, TlsStream(secured))

        def refused(peer: str, why: str) -> None:
            connections.service.counts.close("tls")
            self._event("tls_refused", "warning", peer=peer, why=why)

        shaking = Handshakes(nursery, self._certificates.peers, opened, refused)
        nursery.start_soon(accept, listener, shaking.begin)

    def _tell_ready(self, port: int) -> None:
        if self._status is not None:
            self._status.started(port)
            self._status = None
        if self._ready is not None:
            self._ready(port)


def _first(group: BaseExceptionGroup[StoreStopped]) -> StoreStopped:
    """Return one of the exceptions in a group."""
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


class _Coordinator(Protocol):
    @property
    def endpoints(self) -> Sequence[tuple[str, int]]: ...
    def folder(self, number: int) -> Path: ...
    @property
    def etcd(self) -> Sequence[tuple[str, int]]: ...
    @property
    def etcd_shown(self) -> EtcdShown: ...


class Config(Protocol):
    """The part of ``cluster.toml`` that `run` needs; see ``node.config.config.ClusterConfig``."""

    @property
    def name(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def coordinator(self) -> _Coordinator: ...
    def tls_of(self, name: str) -> TlsSettings | None:
        """Return the files of a process; None: no TLS."""
        ...


def settings_of(config: Config, version: str = "0", number: int = 1) -> CoordinatorSettings:
    """Return the settings of the coordinator whose address ``cluster.toml`` names as ``number``."""
    host, port = config.coordinator.endpoints[number - 1]
    data = config.coordinator.folder(number)
    etcd = tuple(config.coordinator.etcd)
    tls = config.tls_of("coordinator" if number == 1 else f"coordinator-{number}")
    shown = config.coordinator.etcd_shown
    return CoordinatorSettings(
        config.name, config.group, host, port, data, version, etcd, shown, tls
    )


async def run(
    config: Config,
    *,
    ready: Callable[[int], None] | None = None,
    event: Event = no_event,
    version: str = "0",
    number: int = 1,
) -> int | None:
    """Run the coordinator's process: `serve` until SIGTERM or SIGINT, then stop cleanly.

    SIGHUP has it read the files of its certificates again.

    Must be called in the main thread. A second signal changes nothing: stopping takes no longer
    than the running operation.

    Args:
        config: Of the cluster.
        ready: Given the port.
        event: Given events.
        version: Version of this program, for the run file.
        number: Which of the coordinator's addresses is this process's, from 1.

    Returns:
        The signal that stopped it.

    Raises:
        As `serve`.
    """
    settings = settings_of(config, version, number)
    certificates = None if settings.tls is None else Certificates(settings.tls)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        stopped = _Stopped(certificates, event)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stopped.wait, signals, nursery.cancel_scope)
                await serve(settings, event=event, ready=ready, certificates=certificates)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        return stopped.by


class _Stopped:
    """Which signal ended the process; SIGHUP does not."""

    def __init__(self, certificates: Certificates | None, event: Event) -> None:
        self.by: int | None = None
        self._certificates = certificates
        self._event = event

    async def wait(self, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        async for signum in signals:
            if signum == signal.SIGHUP:
                if self._certificates is not None:
                    await renew(self._certificates, self._event)
                continue
            self.by = signum
            scope.cancel()
            return

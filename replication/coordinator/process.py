"""The coordinator's process: store opened, port taken, ``run.json`` written, served until a signal.

Not here: what it answers (``replication.coordinator.service``), connections
(``replication.coordinator.peer``).
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Protocol

import trio

from replication.coordinator.client import Event, no_event
from replication.coordinator.peer import Connections
from replication.coordinator.service import CoordinatorService, CoordinatorSettings
from replication.coordinator.store import CoordinatorStore, StoreStopped
from replication.net.streams import listen
from twinlog.run_file import remove_run_file, write_run_file


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
            try:
                write_run_file(settings.data, {"host": settings.host, **facts})
            except OSError as error:
                raise StoreStopped(f"cannot write the run file: {error}") from error
            event("coordinator_started", "info", host=settings.host, port=port)
            await _accept(Connections(service), listener, port, ready, task_status)
        finally:
            remove_run_file(settings.data)
            listener.socket.close()
            event("coordinator_stopped", "info", changes=service.counts.changes)
    finally:
        store.close()


async def _accept(
    connections: Connections,
    listener: trio.SocketListener,
    port: int,
    ready: Callable[[int], None] | None,
    task_status: trio.TaskStatus[int],
) -> None:
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, connections.serve, [listener])
            nursery.start_soon(connections.service.watch_master)
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
    """What `run` needs of ``cluster.toml``; ``node.config.config.ClusterConfig`` is one."""

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

"""Waits for the seat: a coordinator process with etcd while another keeps the register.

Each `LOOK_SECONDS` it checks whether the seat is free, and takes it. It does not listen meanwhile;
the run file says that the process runs, and names no port.

Not here: serving (``replication.coordinator.process``), the seat's rules
(``replication.coordinator.seat``).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import trio

from replication.coordinator.client import Event
from replication.coordinator.etcd_gateway import (
    EtcdGateway,
    GatewayAway,
    GatewayRefused,
    GatewayUnknown,
)
from replication.coordinator.etcd_store import EtcdStore, prefix_of
from replication.coordinator.seat import RENEW_SECONDS, Seat, holder, take
from replication.coordinator.service import CoordinatorSettings
from replication.coordinator.store import StoreStopped
from twinlog.run_file import write_run_file

LOOK_SECONDS = 0.5


class Standby:
    """Takes the seat for one process, each time it is free."""

    def __init__(self, settings: CoordinatorSettings, event: Event) -> None:
        self._settings = settings
        self._event = event
        self._prefix = prefix_of(settings.cluster, settings.group)
        self._told = ""

    async def seated(self) -> tuple[EtcdStore, Callable[[], Awaitable[None]]]:
        """Wait for the seat; return the register and a function that keeps renewing the seat.

        Cancellation: a seat that was just taken expires with its lease.

        Raises:
            SeatLost: It was taken and lost again before the register was read.
            StoreStopped: The run file cannot be written.
            UsageError, CorruptionError: The register in etcd is not one this version keeps.
        """
        own = self._settings
        no_ports: dict[str, int] = {}
        facts = {"pid": os.getpid(), "ports": no_ports, "version": own.version, "host": own.host}
        try:
            own.data.mkdir(parents=True, exist_ok=True)
            write_run_file(own.data, facts)
        except OSError as error:
            raise StoreStopped(f"cannot write the run file: {error}") from error
        # One for all looks: each new one would log in to etcd, which costs its members a change.
        gateway = EtcdGateway(own.etcd, own.etcd_shown)
        while True:
            try:
                seat = await trio.to_thread.run_sync(self._take, gateway, abandon_on_cancel=True)
            except (GatewayAway, GatewayUnknown, GatewayRefused) as error:
                self._tell("etcd_away", "warning", why=str(error))
                gateway.close()
            else:
                if seat is not None:
                    self._told = ""
                    self._event("seat_taken", "info", revision=seat.revision)
                    return await self._opened(gateway, seat)
            await trio.sleep(LOOK_SECONDS)

    async def _opened(
        self, gateway: EtcdGateway, seat: Seat
    ) -> tuple[EtcdStore, Callable[[], Awaitable[None]]]:
        store = await trio.to_thread.run_sync(EtcdStore, gateway, seat, self._prefix)

        async def renew() -> None:
            # A running `record` uses the other one.
            own = EtcdGateway(self._settings.etcd, self._settings.etcd_shown)
            while True:
                await trio.sleep(RENEW_SECONDS)
                await trio.to_thread.run_sync(seat.renew, own, abandon_on_cancel=True)

        return store, renew

    def _take(self, gateway: EtcdGateway) -> Seat | None:
        key = self._prefix + "seat"
        name = f"{self._settings.host}:{self._settings.port}"
        seat = take(gateway, key, name)
        if seat is None:
            self._tell("seat_taken_by_other", "info", holder=holder(gateway, key))
        return seat

    def _tell(self, name: str, level: str, **facts: object) -> None:
        """Report an event, the same one not twice in a row."""
        said = f"{name} {facts}"
        if said != self._told:
            self._told = said
            self._event(name, level, **facts)

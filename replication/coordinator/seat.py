"""The seat: the right of one of several coordinator processes to keep the register, by etcd.

The holder has written its name under the key ``seat``, attached to a lease of `SEAT_SECONDS` that
it renews each `RENEW_SECONDS`. Every write of the register compares the seat's creation revision in
the same transaction. So a process that lost its seat, or was paused and does not know it yet,
cannot change anything; and **a new seat settles every write of earlier seats**: a write of unknown
outcome either happened before, and is found by the load that follows, or its comparison fails.

The lease bounds how long a former holder may still *answer*: it stops answering once the lease may
have ended (`Seat.prove`), counted from when the last renewal was sent, by a clock that also runs
while the machine is suspended. etcd never ends a lease early, and ends it up to 0.5 s late.

Not here: the register's keys (``replication.coordinator.etcd_store``).
Sources: etcd, "Lease"; Jepsen, "etcd 3.4.3" (a lease is no lock without a fencing token).
"""

from __future__ import annotations

import time
from contextlib import suppress

from replication.coordinator.etcd_gateway import (
    EtcdGateway,
    Fields,
    GatewayAway,
    GatewayRefused,
    GatewayUnknown,
    bytes_of,
    map_of,
    number_of,
    rows_of,
    text_of,
)
from replication.coordinator.store import StoreStopped
from twinlog.errors import TwinlogError

SEAT_SECONDS = 5
"""Time to live of the lease: how long the register is unavailable after its holder was killed."""

RENEW_SECONDS = 1.0
MARGIN_SECONDS = 1.0
"""The holder stops answering this long before its lease can end."""


class SeatLost(StoreStopped):
    """This process no longer keeps the register; another may. Its answers stay valid."""

    default_code = "seat-lost"


def boot_time() -> float:
    """Return seconds of a clock that also runs while the machine is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class Seat:
    """A seat that was taken; see `take`.

    Attributes:
        key: Its key in etcd.
        revision: Its creation revision, which every write compares.
        lease: Id of its lease.
    """

    def __init__(self, key: str, revision: int, lease: str, until: float) -> None:
        self.key = key
        self.revision = revision
        self.lease = lease
        self._until = until

    def held(self) -> Fields:
        """Return the comparison that every write of the holder makes."""
        return {
            "target": "CREATE",
            "key": text_of(self.key),
            "result": "EQUAL",
            "create_revision": str(self.revision),
        }

    def prove(self) -> None:
        """Prove that no other process can have the seat yet.

        Raises:
            SeatLost: The lease may have ended.
        """
        if boot_time() >= self._until:
            raise SeatLost("the lease of the seat may have ended: it was not renewed in time")

    def renew(self, gateway: EtcdGateway) -> None:
        """Renew the lease. Without an answer the next call renews it again.

        Raises:
            SeatLost: The lease has ended.
        """
        sent = boot_time()
        try:
            answer = gateway.ask("lease/keepalive", {"ID": self.lease})
        except (GatewayUnknown, GatewayAway):
            self.prove()
            return
        except GatewayRefused as error:
            raise SeatLost(str(error)) from error
        # A lease that has ended is answered with status 200 and no time to live.
        if not number_of(map_of(answer, "result").get("TTL")):
            raise SeatLost("the lease of the seat has ended")
        self._until = sent + SEAT_SECONDS - MARGIN_SECONDS

    def leave(self, gateway: EtcdGateway) -> None:
        """Give up the seat, so that another process can take it; without etcd it expires."""
        self._until = 0.0
        with suppress(TwinlogError):
            gateway.ask("lease/revoke", {"ID": self.lease})


def holder(gateway: EtcdGateway, key: str) -> str | None:
    """Return the name of the seat's holder; None if the seat is free.

    Raises:
        GatewayUnknown, GatewayAway: etcd does not answer.
    """
    rows = rows_of(gateway.ask("kv/range", {"key": text_of(key)}))
    return bytes_of(rows[0].get("value")).decode(errors="replace") if rows else None


def take(gateway: EtcdGateway, key: str, name: str) -> Seat | None:
    """Take a free seat; return None if another process has it, or if that is unknown.

    With an unknown outcome the lease is revoked, so that the seat is free again for the next
    request, mostly of this process.

    Args:
        gateway: To etcd.
        key: Of the seat.
        name: Name of the holder, for people: the address that it will listen on.

    Raises:
        GatewayUnknown, GatewayAway: etcd does not answer; the seat was not taken.
    """
    if holder(gateway, key) is not None:
        return None
    sent = boot_time()
    lease = str(gateway.ask("lease/grant", {"TTL": str(SEAT_SECONDS)}).get("ID"))
    free: Fields = {
        "target": "CREATE", "key": text_of(key), "result": "EQUAL", "create_revision": "0",
    }  # fmt: skip
    put: Fields = {"key": text_of(key), "value": text_of(name), "lease": lease}
    seat = Seat(key, 0, lease, sent + SEAT_SECONDS - MARGIN_SECONDS)
    try:
        answer = gateway.change(
            "kv/txn", {"compare": [free], "success": [{"request_put": put}], "failure": []}
        )
    except TwinlogError:
        seat.leave(gateway)
        return None
    if answer.get("succeeded") is not True:
        seat.leave(gateway)
        return None
    seat.revision = number_of(map_of(answer, "header").get("revision"))
    return seat

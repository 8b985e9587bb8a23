"""Settings of replication: values with their unit, limit and reason.

``node/config/config.py`` fills them from ``cluster.toml``; tests make them by hand. Units are in
the names: bytes, seconds. Not here: the origin of a value, settings of the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from replication.register.operations import Seed
from twinlog.levels import LEVEL

KiB = 1 << 10
MiB = 1 << 20

DISK_FULL = "disk full"
"""How a slave whose disk has no room begins to say why it does not follow."""

VERSION = 1
"""Version of the frames between nodes."""

FEATURES = 0
"""Feature bits of this version; a field that a check depends on needs one."""

FRAME_BYTES_MAX = MiB
"""Bytes of whole batches in one APPEND, or one larger batch."""

CHAIN_CHECK_BYTES = 64 * MiB
"""How much of the log before its end a slave proves to be equal in the handshake, at least
(R40)."""

SEED_BYTES_MAX = 256 * MiB
"""Largest seed (R57): topics, queues and producers, about 40 bytes each."""

SEED_SECONDS = 60.0
"""How long a slave waits for the first piece of a seed: the master looks up where each queue
begins."""

SEED_PIECE_BYTES = MiB
"""Bytes of a seed in one frame."""

EPOCHS_SENT_MAX = 1000
"""Newest entries of the epoch history in a handshake."""

NACKS_MAX = 3
"""How often one batch is sent again before the link is closed."""


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """See the module's text; the defaults are those of unset keys.

    Attributes:
        members: Full members of the group at its first registration; ``first`` is the one with
            ``role = "master"``, ``priorities`` order candidates (larger first), ``in_sync_min`` is
            the smallest in-sync set that accepts writes. Afterwards the group state decides.
        level: The highest level that this release knows (R74); tests play an older one.
        ack: Meaning of a member's acknowledgement: ``received`` (in the page cache of its file) or
        ``durable`` (flushed). Also for the master's own part (R27).
        flush_first: Nothing of this node counts before it is flushed, neither its own part as a
        master nor what it acknowledges as a slave: ``flush = "sync"``. The driver takes it from the
        store.
        after_power_loss: Whether the group by itself elects the node with the greatest log when no
        node is known to have everything (R56).
        failover: Whether the coordinator ends the leadership of a master that is gone (R59).
        in_flight_bytes_max: Un-acknowledged bytes per slave: 100 ms of round trip at 1 Gbit/s.
        catch_up_bytes_per_second: How fast a slave that is no member is sent what it lacks,
            until it lacks less than ``in_flight_bytes_max``; None: as fast as it takes it.
        in_flight_frames_max: Un-acknowledged frames per slave: bounds small frames.
        heartbeat_seconds: How often a heartbeat is sent on a quiet link.
        silence_seconds: A link on which nothing arrived for this long is closed.
        slow_seconds: A member that takes longer than this for every acknowledgement is named.
        lag_seconds_max: A member that was not level with the master for this long leaves the
            in-sync set; below the producers' time-out, so that they survive it.
        disconnect_seconds: A member without a link for this long leaves; longer than a reconnect.
        join_seconds: A slave joins after this long of a healthy link.
        rejoin_seconds, rejoin_seconds_max: A member that left joins again after this pause, doubled
            each time up to the limit, so that a flapping one does not slow every write.
        stand_seconds: Candidates wait this long, times their rank from 0: the best stands alone.
        transfer_stand_seconds: For this long only the target of a switchover may stand.
        transfer_seconds: A switchover that is not level by then is given up.
        transfer_lag_bytes_max: A switchover to a slave that lags more bytes is refused.
        coordinator_poll_seconds: The group state is read when nothing was heard for this long.
        coordinator_retry_seconds: Pause before a call without an answer is repeated.
        redial_seconds, redial_seconds_max: Pause before dialing again, doubled up to the limit.
        confirm_notice_seconds: A confirm offset that no batch carries is sent after this long:
            readers wait for it at slaves, and the next batch of a busy log comes sooner.
        waiters_max, waiters_bytes_max: Appends that wait for an acknowledgement; beyond: busy.
        stop_seconds: How long a stopping master waits for pending acknowledgements.
        dispatch_bytes: Bytes of log dispatched in one slice, so that the loop stays responsive.
    """

    members: tuple[str, ...] = ()
    first: str | None = None
    level: int = LEVEL
    priorities: Mapping[str, int] = field(default_factory=lambda: dict[str, int]())
    in_sync_min: int = 1
    ack: Literal["received", "durable"] = "received"
    flush_first: bool = False
    after_power_loss: Literal["wait", "best"] = "wait"
    failover: Literal["manual", "automatic"] = "manual"
    in_flight_bytes_max: int = 16 * MiB
    catch_up_bytes_per_second: int | None = None
    in_flight_frames_max: int = 64
    heartbeat_seconds: float = 0.5
    silence_seconds: float = 3.0
    slow_seconds: float = 0.01
    lag_seconds_max: float = 3.0
    disconnect_seconds: float = 1.0
    join_seconds: float = 1.0
    rejoin_seconds: float = 2.0
    rejoin_seconds_max: float = 60.0
    stand_seconds: float = 0.3
    transfer_stand_seconds: float = 5.0
    transfer_seconds: float = 3.0
    transfer_lag_bytes_max: int = MiB
    coordinator_poll_seconds: float = 1.0
    coordinator_retry_seconds: float = 0.5
    redial_seconds: float = 0.01
    redial_seconds_max: float = 2.0
    confirm_notice_seconds: float = 0.0005
    waiters_max: int = 10_000
    waiters_bytes_max: int = 64 * MiB
    stop_seconds: float = 3.0
    dispatch_bytes: int = 4 * MiB

    @property
    def seed(self) -> Seed | None:
        """The content of the first registration; None if no members are named."""
        if not self.members:
            return None
        return Seed(
            self.members,
            self.in_sync_min,
            self.first,
            self.priorities,
            self.ack,
            self.after_power_loss,
            self.failover,
        )

"""How a simulated node is configured: what its plan says, as production's settings.

Not here: what a plan draws (`tests.sim.swarm`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from replication.settings import ReplicationSettings
from storage.settings import RetentionSettings

if TYPE_CHECKING:
    from tests.sim.swarm import Plan


def retention_of(plan: Plan) -> RetentionSettings | None:
    """Return what a node keeps: so many files, whatever the disk, and whatever a slave lacks."""
    if not plan.keep_files:
        return None
    return RetentionSettings(
        keep_seconds=None, keep_bytes=plan.keep_files * plan.segment_size, hours=None,
        disk_clean=0.9, disk_force=0.9, disk_refuse=1.0, look_seconds=0.5, hold_seconds=5.0,
        absent_seconds=plan.absent_seconds,
    )  # fmt: skip


def replication_of(plan: Plan, quality: str, level: int) -> ReplicationSettings:
    """Return how a node takes part; the group goes by the first that registers."""
    settings = ReplicationSettings(
        members=plan.nodes,
        first=plan.first,
        level=level,
        in_sync_min=plan.in_sync_min,
        ack="durable" if quality == "durable" else "received",
        failover="automatic" if plan.failover == "automatic" else "manual",
        after_power_loss="best" if plan.after_power_loss == "best" else "wait",
        dispatch_bytes=plan.slice_bytes,
    )
    limits = plan.limits
    return replace(
        settings,
        in_flight_bytes_max=limits.get("window_bytes", settings.in_flight_bytes_max),
        in_flight_frames_max=limits.get("window_frames", settings.in_flight_frames_max),
        waiters_max=limits.get("waiters", settings.waiters_max),
    )

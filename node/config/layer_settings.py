"""From ``cluster.toml`` to the settings of each layer of one node.

The file describes the cluster, each layer has settings of its own; only this module knows both.
Units are those of the layers: bytes and seconds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from node.clients.metadata import Identity
from node.config.config import ClusterConfig, NodeConfig
from node.leases.limits import GroupLimits
from node.transactions.checks import CheckSettings
from replication.settings import ReplicationSettings
from storage.log.log_folders import Folders
from storage.log.segment import DIRECTORY
from storage.settings import RetentionSettings, StoreSettings
from twinlog.wire.frames import MESSAGING

HOT_SHARE = 0.4
"""Share of the machine's memory that the end of the log is expected to take (as in RocketMQ)."""


def store_settings(node: NodeConfig, host: str, port: int) -> StoreSettings:
    """Return the settings of a node's store.

    Args:
        node: The node's part of the file.
        host: Its IP address, as it is stamped into records.
        port: The port of its client listener.
    """
    storage = node.storage
    return StoreSettings(
        segment_size=storage.segment_size,
        queue_segment_entries=storage.queue_segment_entries,
        flush=storage.flush,
        flush_interval_seconds=storage.flush_interval,
        flush_timeout_seconds=storage.flush_timeout,
        flush_on_write=storage.flush_on_write,
        buffer_pool_bytes=storage.buffer_pool,
        commit_interval_seconds=storage.commit_interval,
        message_size_max=storage.message_size_max,
        batch_size_max=node.replication.batch_size_max,
        quality=node.replication.ack,
        store_host=(host, port),
        hot_bytes=storage.hot_memory or hot_bytes(),
        warm=storage.warm,
        lock_memory=storage.lock_memory,
        key_index=storage.key_index,
        index_slots=storage.key_index_slots,
        index_cells=storage.key_index_cells,
        retention=retention_settings(node),
        scrub_bytes_per_second=storage.scrub_rate,
        scrub_every_seconds=storage.scrub_every,
    )


def log_folders(node: NodeConfig) -> Folders:
    """Return the folders of a node's log files."""
    closed = {str(folder) for folder in node.log_folders_closed}
    if node.data / DIRECTORY in node.log_folders_closed:
        closed.add(DIRECTORY)
    return Folders(tuple(map(str, node.log_folders)), frozenset(closed))


def retention_settings(node: NodeConfig) -> RetentionSettings:
    """Return a node's retention settings; hours of day are those of its own clock."""
    given, storage = node.retention, node.storage
    hours: tuple[int, ...] | None = None
    if given.delete_at != "any time":
        hours = tuple(int(part.strip()[:2]) for part in given.delete_at.split(";"))
    return RetentionSettings(
        keep_seconds=given.keep,
        keep_bytes=given.keep_bytes,
        hours=hours,
        disk_clean=storage.disk_clean,
        disk_force=storage.disk_force,
        disk_refuse=storage.disk_refuse,
        look_seconds=given.look,
        pause_seconds=given.pause,
        hold_seconds=given.hold,
        archive=given.archive,
        erase=given.erase,
        keep_cut_seconds=given.keep_cut,
        absent_seconds=given.wait_for_slaves,
        hour_of=lambda wall_ms: time.localtime(wall_ms / 1000).tm_hour,
    )


def hot_bytes() -> int:
    """Return how many bytes at the end of the log are expected to be in memory."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return int(pages * size * HOT_SHARE)


def replication_settings(config: ClusterConfig, node: NodeConfig) -> ReplicationSettings:
    """Return the settings of a node's replication; members as the file lists them."""
    replication = node.replication
    masters = [each.name for each in config.nodes if each.role == "master"]
    return ReplicationSettings(
        members=tuple(each.name for each in config.nodes),
        first=masters[0] if masters else None,
        priorities={each.name: each.priority for each in config.nodes},
        in_sync_min=config.in_sync_min,
        ack=replication.ack,
        after_power_loss=config.after_power_loss,
        failover=config.failover,
        in_flight_bytes_max=replication.bytes_in_flight_max,
        catch_up_bytes_per_second=replication.catch_up_rate,
        heartbeat_seconds=replication.heartbeat,
        silence_seconds=replication.link_timeout,
        slow_seconds=replication.slow_slave,
        lag_seconds_max=replication.in_sync_lag_max,
        waiters_max=node.limits.producers_waiting_max,
    )


def group_limits(node: NodeConfig) -> GroupLimits:
    """Return what a node lets the members of groups use."""
    groups = node.groups
    return GroupLimits(
        auto_create=groups.auto_create,
        session_seconds=groups.session,
        invisible_ms=round(groups.invisible * 1000),
        attempts=groups.attempts,
        span_max=groups.span_max,
        runs_max=groups.runs_max,
        groups_max=groups.groups_max,
        members_max=groups.members_max,
        lease=groups.lease,
        bytes_max=node.limits.response_size_max,
        long_poll_seconds_max=node.limits.long_poll_seconds_max,
    )


def check_settings(node: NodeConfig) -> CheckSettings:
    """Return when a node asks about transactions and gives them up."""
    found = node.transactions
    return CheckSettings(
        first_ms=round(found.first_check * 1000),
        checks=found.checks,
        keep_ms=round(found.keep * 1000),
    )


def secret_file(config: ClusterConfig) -> Path | None:
    """Return the file with the operator's password; None: no client is asked who it is."""
    return config.path.parent / config.access.secret if config.access.enabled else None


def identity(config: ClusterConfig, node: NodeConfig) -> Identity:
    """Return what clients must know about a node's group."""
    return Identity(
        cluster=config.name,
        group=config.group,
        name=node.name,
        family=config.family,
        segment_size=node.storage.segment_size,
        message_size_max=node.storage.message_size_max,
        acknowledge=node.replication.acknowledge,
        features=MESSAGING if node.messaging.enabled else 0,
    )

"""The metrics of a node: one table with the name of each metric and how it is read.

`METRICS` is the only place where a metric is declared. Prometheus, ``docs/metrics.md`` and the
``counters`` of the status document are made from it, so a new metric is one row here and one line
in the code that counts it. A row reads the live parts of the node (`Observed`) at a scrape; the
code that does the work keeps plain integers. Durations are the exception: a histogram cannot be
computed afterwards, so it is updated when the duration is known (``node.observe.exposition``).

Names: prefix, subject, thing, base unit; the exposition adds ``_total`` to counters. Label values
come from code and settings. Topics are the one label that users choose; their number is bounded by
``node.observe.exposition.TOPICS_MAX``. Counters never fall while the process lives. A value that
does not apply now (the lag of a slave on a slave) or is unknown is None, never 0.

Not here: the Prometheus registry (``node.observe.exposition``), the HTTP port
(``node.observe.http_server``).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from node.observe.status import Facts, not_ready
from storage.messaging.share import LEASED, WAITING

if TYPE_CHECKING:
    from node.clients.connection import RequestHandlers
    from node.clients.server import ClientServer
    from node.groups.figures import Figures
    from node.observe.logs import NodeLog
    from replication.core.view import PeerView, RoleView
    from replication.replica_service import ReplicaService

ROLES = ("master", "slave", "fenced", "candidate", "quarantined", "stopped")
"""As ``replication.core.view`` names them."""

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Of what a node does by itself, seconds."""
HELD_BUCKETS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 43_200.0)
"""Of what bodies of consumers do, up to the longest lease, seconds."""

Labels = tuple[str, ...]
Value = float | Mapping[Labels, float] | None
"""A number, or one for each combination of label values; None: does not apply, or is unknown."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The input of rows: one view of the role, one set of facts, and the parts with counters."""

    view: RoleView
    facts: Facts
    clients: ClientServer
    requests: RequestHandlers
    world: ReplicaService
    log: NodeLog
    groups: Figures


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    Attributes:
        name: In Prometheus, without ``_total``.
        kind: gauge, counter, histogram, info or stateset.
        help: One sentence for operators.
        read: Its present value; None for a histogram alone.
        labels: Names of the labels, in the order of the label values.
        status: Its name among the ``counters`` of the status document; empty: not there.
        alike: What RocketMQ, Kafka or etcd call it, for people who come from there.
        buckets: Upper ends of a histogram's buckets, seconds.
    """

    name: str
    kind: str
    help: str
    read: Callable[[Observed], Value] | None = None
    labels: Labels = ()
    status: str = ""
    alike: str = ""
    buckets: tuple[float, ...] = BUCKETS


def _offset(name: str, help_: str) -> Metric:
    return Metric(
        f"twinlog_log_{name}_offset_bytes", "gauge", help_, lambda node: node.facts.offsets[name]
    )


def _labelled(counts: Mapping[str, int]) -> Mapping[Labels, float]:
    return {(name,): float(count) for name, count in counts.items()}


def _pairs(counts: Mapping[tuple[str, str], int]) -> Mapping[Labels, float]:
    return {key: float(count) for key, count in counts.items()}


def _slaves(node: Observed, read: Callable[[PeerView], float | None]) -> Value:
    """Return a value for each slave, on a master; slaves without one are left out."""
    if node.view.role != "master":
        return None
    found = {(peer.name,): read(peer) for peer in node.view.peers}
    return {name: value for name, value in found.items() if value is not None}


def _retention(node: Observed, key: str) -> float | None:
    value = node.facts.retention.get(key)
    return float(value) if isinstance(value, (int, float)) else None


def _scrub(node: Observed, key: str) -> float | None:
    value = node.facts.scrub.get(key)
    return float(value) if isinstance(value, (int, float)) else None


def _deleted(node: Observed) -> Value:
    found = node.facts.retention.get("deleted")
    return None if found is None else _labelled(cast("Mapping[str, int]", found))


def _in_sync(node: Observed) -> Value:
    return float(len(node.view.in_sync)) if node.view.role == "master" else None


def _ready(node: Observed) -> float:
    return float(not not_ready(node.view, node.facts.staleness_max_seconds))


def _between(low: str, high: str) -> Callable[[Observed], float]:
    def read(node: Observed) -> float:
        return max(0, node.facts.offsets[high] - node.facts.offsets[low])

    return read


METRICS: tuple[Metric, ...] = (
    Metric(
        "twinlog_build", "info", "Versions of twinlog and Python.",
        lambda node: {(node.facts.version, platform.python_version()): 1.0}, ("version", "python"),
    ),
    Metric(
        "twinlog_node_role", "stateset", "Role of the node.",
        lambda node: {(name,): float(name == node.view.role) for name in ROLES}, ("role",),
        alike="etcd_server_is_leader",
    ),
    Metric(
        "twinlog_node_epoch", "gauge", "Epoch in which the node acts; 0: none yet.",
        lambda node: node.view.epoch,
    ),
    Metric(
        "twinlog_writable", "gauge", "1 if this node accepts writes.",
        lambda node: float(node.view.role == "master" and node.view.admission is None),
    ),
    Metric("twinlog_ready", "gauge", "1 if /readyz answers 200.", _ready),
    _offset("start", "First byte of the log that is still kept."),
    _offset("end", "End of the log: the next byte to be written."),
    _offset("flushed", "Everything below is on disk."),
    _offset("confirm", "Everything below is on all in-sync nodes; readers see no further."),
    _offset("dispatched", "Everything below is in the consume queues."),
    Metric(
        "twinlog_log_flush_behind_bytes", "gauge", "Bytes written but not yet flushed to disk.",
        _between("flushed", "end"),
    ),
    Metric(
        "twinlog_log_dispatch_behind_bytes", "gauge",
        "Bytes confirmed but not yet in the consume queues.", _between("dispatched", "confirm"),
    ),
    Metric(
        "twinlog_log_size_bytes", "gauge", "Size of the log, start to end.",
        _between("start", "end"),
    ),
    Metric(
        "twinlog_log_flush_duration_seconds", "histogram",
        "Duration of one flush of the log and the batch index.",
    ),
    Metric(
        "twinlog_memory_unlocked_bytes", "gauge",
        "Memory that should be locked but exceeds RLIMIT_MEMLOCK.",
        lambda node: node.facts.unlocked_bytes, status="memory_unlocked_bytes",
    ),
    Metric(
        "twinlog_records_appended", "counter", "Records stored by clients.",
        lambda node: _labelled(node.requests.counts.records), ("topic",), "records_appended",
    ),
    Metric(
        "twinlog_appended_bytes", "counter", "Bytes of records stored by clients.",
        lambda node: _labelled(node.requests.counts.size), ("topic",), "appended_bytes",
    ),
    Metric(
        "twinlog_quota_refused", "counter", "Appends refused because of a topic's quota.",
        lambda node: _labelled(node.requests.quotas.refused), ("topic",), "quota_refused",
    ),
    Metric(
        "twinlog_records_read", "counter", "Records served to readers.",
        lambda node: _labelled(node.requests.reads.counts.records), ("topic",), "records_read",
    ),
    Metric(
        "twinlog_read_bytes", "counter", "Bytes of records served to readers.",
        lambda node: _labelled(node.requests.reads.counts.size), ("topic",), "read_bytes",
    ),
    Metric(
        "twinlog_reads_cold", "counter", "Reads that had to wait for the disk.",
        lambda node: node.requests.reads.counts.cold, status="reads_cold",
    ),
    Metric(
        "twinlog_reads_stale", "counter", "Reads refused because the node's data was too old.",
        lambda node: node.requests.reads.counts.stale, status="reads_stale",
    ),
    Metric(
        "twinlog_replication_lag_bytes", "gauge", "Bytes by which the slave is behind the log end.",
        lambda node: _slaves(node, lambda peer: peer.lag_bytes), ("slave",),
    ),
    Metric(
        "twinlog_replication_lag_seconds", "gauge", "Age of the oldest byte the slave lacks.",
        lambda node: _slaves(node, lambda peer: peer.lag_seconds), ("slave",),
    ),
    Metric(
        "twinlog_replication_contact_age_seconds", "gauge",
        "Time since the slave was last heard from.",
        lambda node: _slaves(node, lambda peer: peer.contact_seconds), ("slave",),
    ),
    Metric(
        "twinlog_replication_round_trip_seconds", "gauge",
        "Time from sending to the slave until its acknowledgement that counts, smoothed.",
        lambda node: _slaves(node, lambda peer: peer.round_trip_seconds), ("slave",),
    ),
    Metric(
        "twinlog_replication_unacknowledged_bytes", "gauge",
        "Bytes sent to the slave that it has not acknowledged.",
        lambda node: _slaves(node, lambda peer: peer.unacknowledged_bytes), ("slave",),
    ),
    Metric(
        "twinlog_replication_slow", "gauge",
        "1 if the slave is in sync and so slow that confirmed writes wait for it.",
        lambda node: _slaves(node, lambda peer: float(peer.slow)), ("slave",),
    ),
    Metric(
        "twinlog_replication_in_sync", "gauge",
        "1 if the slave is in the in-sync set; learners have no value.",
        lambda node: _slaves(
            node, lambda peer: None if peer.role == "learner" else float(peer.in_sync)
        ), ("slave",),
    ),
    Metric(
        "twinlog_replication_in_sync_nodes", "gauge",
        "Nodes in the in-sync set, including the master.", _in_sync,
    ),
    Metric(
        "twinlog_replication_in_sync_min", "gauge",
        "Writes are refused when fewer nodes are in sync.",
        lambda node: node.view.min_in_sync if node.view.role == "master" else None,
    ),
    Metric(
        "twinlog_replication_links_closed", "counter",
        "Links between nodes closed for a protocol violation or a defect.",
        lambda node: _labelled(node.world.links_closed), ("kind",), status="links_closed",
    ),
    Metric(
        "twinlog_confirm_wait_seconds", "histogram",
        "Time from the arrival of an append to its acknowledgement.",
    ),
    Metric(
        "twinlog_requests", "counter", "Requests answered, by kind and outcome.",
        lambda node: _pairs(node.requests.counts.answers), ("kind", "outcome"), status="answers",
    ),
    Metric(
        "twinlog_requests_in_flight", "gauge", "Requests not answered yet.",
        lambda node: node.clients.in_flight, status="in_flight",
    ),
    Metric(
        "twinlog_appends_waiting", "gauge", "Appends waiting for their acknowledgement.",
        lambda node: node.requests.appends.waiting, status="appends_waiting",
    ),
    Metric(
        "twinlog_connections", "gauge", "Open client connections.",
        lambda node: node.clients.connections, status="connections",
    ),
    Metric(
        "twinlog_connections_accepted", "counter", "Client connections accepted since the start.",
        lambda node: node.requests.counts.accepted, status="accepted",
    ),
    Metric(
        "twinlog_connections_closed", "counter", "Client connections closed by the node.",
        lambda node: _labelled(node.requests.counts.closings), ("kind",), status="closings",
    ),
    Metric(
        "twinlog_partial_frames_bytes", "gauge", "Memory held by half-received frames of clients.",
        lambda node: node.clients.partial_bytes, status="partial_frames_bytes",
    ),
    Metric(
        "twinlog_long_polls_waiting", "gauge", "Reads waiting for new records.",
        lambda node: node.requests.reads.waiting, status="long_polls_waiting",
    ),
    Metric(
        "twinlog_cold_answers_bytes", "gauge",
        "Memory of answers read from disk that clients have not taken yet.",
        lambda node: node.requests.cold.held, status="cold_answers_bytes",
    ),
    Metric(
        "twinlog_cold_answers_waiting", "gauge", "Answers waiting for this memory.",
        lambda node: node.requests.cold.waiting, status="cold_answers_waiting",
    ),
    Metric(
        "twinlog_limit_reached", "counter", "How often each limit was reached.",
        lambda node: _labelled(node.requests.counts.limits), ("limit",), status="limits",
    ),
    Metric(
        "twinlog_events", "counter", "Log events, whether written or suppressed.",
        lambda node: _pairs(node.log.counts), ("event", "level"),
    ),
    Metric(
        "twinlog_coordinator_contact_age_seconds", "gauge",
        "Time since the coordinator last answered.", lambda node: node.facts.coordinator_seconds,
    ),
    Metric(
        "twinlog_certificate_expiry_timestamp_seconds", "gauge",
        "When the certificate expires, seconds since 1970; absent without TLS.",
        lambda node: node.facts.certificate_until,
    ),
    Metric(
        "twinlog_disk_free_bytes", "gauge", "Free space on the file system of the data directory.",
        lambda node: node.facts.disk_free,
    ),
    Metric(
        "twinlog_disk_size_bytes", "gauge", "Size of that file system.",
        lambda node: node.facts.disk_size,
    ),
    Metric(
        "twinlog_disk_used_ratio", "gauge", "Share of that file system in use, 0 to 1.",
        lambda node: _retention(node, "disk_used"),
    ),
    Metric(
        "twinlog_disk_refuses", "gauge", "1 while writes are refused because the disk is full.",
        lambda node: _retention(node, "refuses"),
    ),
    Metric(
        "twinlog_scrub_compared_bytes", "counter",
        "Bytes of sealed log files that were compared with their check sums.",
        lambda node: _scrub(node, "compared_bytes"),
    ),
    Metric(
        "twinlog_scrub_found", "counter", "Damaged places found in the log.",
        lambda node: _scrub(node, "found"),
    ),
    Metric(
        "twinlog_scrub_repaired", "counter",
        "Damaged batches that were replaced by another node's copy.",
        lambda node: _scrub(node, "repaired"),
    ),
    Metric(
        "twinlog_scrub_waiting_batches", "gauge",
        "Damaged batches that are refused until another node's copy has arrived.",
        lambda node: _scrub(node, "waiting"),
    ),
    Metric(
        "twinlog_retention_files", "counter", "Log files deleted, by reason.", _deleted,
        ("reason",),
    ),
    Metric(
        "twinlog_retention_leaving_files", "gauge",
        "Log files taken out of the log but still on disk.",
        lambda node: _retention(node, "leaving"),
    ),
    Metric(
        "twinlog_retention_forced", "counter", "Log files deleted while a reader was using them.",
        lambda node: _retention(node, "forced"),
    ),
    Metric(
        "twinlog_retention_overtaken", "counter",
        "Slaves whose missing bytes were deleted because the disk was full.",
        lambda node: _retention(node, "overtaken"),
    ),
    Metric(
        "twinlog_messaging_ready", "gauge", "1 while this node serves groups of consumers.",
        lambda node: node.groups.ready,
    ),
    Metric(
        "twinlog_group_lag_messages", "gauge",
        "Messages of a topic that a group has not settled; of broadcast members together.",
        lambda node: node.groups.lags(), ("group", "topic"),
        alike="records-lag (Kafka), consumer lag of POP groups (RocketMQ)",
    ),
    Metric(
        "twinlog_group_leased_messages", "gauge", "Messages that members hold at this moment.",
        lambda node: node.groups.count(LEASED), ("group",),
    ),
    Metric(
        "twinlog_group_waiting_messages", "gauge",
        "Messages that were given back and wait to be handed out again.",
        lambda node: node.groups.count(WAITING), ("group",),
    ),
    Metric(
        "twinlog_group_members", "gauge", "Members of a group.",
        lambda node: node.groups.members(), ("group",),
    ),
    Metric(
        "twinlog_messages_leased", "counter", "Messages handed out by this node as master.",
        lambda node: node.groups.leased(), ("group",),
    ),
    Metric(
        "twinlog_messages_settled", "counter",
        "Messages by what became of them on this node as master: ack, release, unused, dead.",
        lambda node: node.groups.settled(), ("group", "how"),
    ),
    Metric(
        "twinlog_lease_seconds", "histogram",
        "How long members held messages: from when they were handed out until each outcome.",
        buckets=HELD_BUCKETS,
    ),
    Metric(
        "twinlog_messages_redelivered", "counter",
        "Messages handed out again by this node as master.",
        lambda node: node.groups.redelivered,
    ),
    Metric(
        "twinlog_dead_letters", "counter", "Dead letters made by this node as master.",
        lambda node: node.groups.dead(), ("group",),
    ),
    Metric(
        "twinlog_group_rows", "counter",
        "Rows of what groups have consumed that this node appended as master, by kind.",
        lambda node: node.groups.rows(), ("row",),
    ),
    Metric(
        "twinlog_pops_parked", "gauge", "Requests of members that wait for messages.",
        lambda node: node.groups.parked,
    ),
    Metric(
        "twinlog_delays_waiting", "gauge", "Messages that wait for a delay level.",
        lambda node: node.groups.delays_waiting(), ("level",),
    ),
    Metric(
        "twinlog_delays_delivered", "counter",
        "Delayed messages delivered by this node as master, undeliverable ones included.",
        lambda node: node.groups.delivered,
    ),
    Metric(
        "twinlog_delay_lateness_seconds", "histogram",
        "From the due time of a delivery's oldest delayed message to the confirm of its copy.",
    ),
    Metric(
        "twinlog_timers_waiting", "gauge", "Messages that wait for a time.",
        lambda node: node.groups.timers_waiting,
    ),
    Metric(
        "twinlog_timers_delivered", "counter",
        "Messages that waited for a time, delivered by this node as master.",
        lambda node: node.groups.timers_delivered,
    ),
    Metric(
        "twinlog_timers_cancelled", "counter",
        "Messages that waited for a time and were taken back, by this node as master.",
        lambda node: node.groups.timers_cancelled,
    ),
    Metric(
        "twinlog_timer_lateness_seconds", "histogram",
        "From the time of a delivery's first message that waited for a time to the confirm of its "
        "copy.",
    ),
    Metric(
        "twinlog_rescued", "counter",
        "Messages that waited in a log file that was to leave, appended again by this node.",
        lambda node: node.groups.rescued(), ("kind",),
    ),
    Metric(
        "twinlog_halves_open", "gauge", "Messages that wait for the end of their transaction.",
        lambda node: node.groups.halves_open,
    ),
    Metric(
        "twinlog_transaction_messages", "counter",
        "Messages of transactions that this node ended as master.",
        lambda node: node.groups.settled_halves(), ("outcome",),
    ),
    Metric(
        "twinlog_checks", "counter",
        "Messages of transactions that producers were asked about, by what followed; `none`: they "
        "could not tell.",
        lambda node: node.groups.checks(), ("outcome",),
    ),
    Metric(
        "twinlog_checks_parked", "gauge",
        "Producers that wait to be asked what became of transactions.",
        lambda node: node.groups.checks_parked,
    ),
    Metric(
        "twinlog_undeliverable", "counter",
        "Delayed messages whose topic or queue was not there when they were due.",
        lambda node: node.groups.undeliverable,
    ),
    Metric(
        "twinlog_loop_polling_seconds", "counter",
        "CPU time of the event loop without work: it polled for the next request (limits.spin).",
        lambda node: node.world.outbox.readiness.polled, status="loop_polling_seconds",
    ),
    Metric(
        "twinlog_thread_cpu_seconds", "counter",
        "CPU time of threads by what they do: `loop` is the event loop, jobs of the store go by "
        "their kind, `read` is what clients ask of the disk.",
        lambda node: {(name,): spent for name, spent in node.world.threads.seconds().items()},
        ("thread",),
    ),
    Metric(
        "twinlog_loop_delay_seconds", "histogram",
        "How long a task that was ready waited for the event loop.",
    ),
)  # fmt: skip
"""Every metric of a node."""

BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}


def present(node: Observed) -> dict[str, float | Mapping[Labels, float]]:
    """Return the present value of every metric that has one, by name."""
    values = {metric.name: metric.read(node) for metric in METRICS if metric.read is not None}
    return {name: value for name, value in values.items() if value is not None}


def counters(node: Observed) -> dict[str, object]:
    """Return the ``counters`` of the status document; labels are joined by slashes.

    Topics are summed: the document's size does not depend on what users store.
    """
    found: dict[str, object] = {}
    for metric in METRICS:
        if metric.status and metric.read is not None:
            value = metric.read(node)
            if isinstance(value, Mapping) and metric.labels == ("topic",):
                found[metric.status] = int(sum(value.values()))
            elif isinstance(value, Mapping):
                found[metric.status] = {"/".join(key): int(n) for key, n in value.items()}
            else:
                found[metric.status] = value
    return found


def reference() -> str:
    """Return the page ``docs/metrics.md``: every metric with type, labels and help."""
    lines = [
        "# Metrics",
        "",
        "Served by every node at `/metrics` of its http port, as Prometheus text or OpenMetrics.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for metric in METRICS:
        suffix = {"counter": "_total", "info": "_info"}.get(metric.kind, "")
        labels = ", ".join(metric.labels) or "-"
        lines.append(f"| `{metric.name}{suffix}` | {metric.kind} | {labels} | {metric.help} |")
    lines += ["", "`process_*` and `python_*` come from the Prometheus library.", ""]
    return "\n".join(lines)

"""Figures for Prometheus: one table, one registry for each node, nothing global.

`METRICS` names every figure with type, labels and help; docs, alerts and the exposition are made
from it. Figures are read when somebody asks: `NodeMetrics` is given a function that returns the
present numbers by name, so the paths that work keep plain integers and know nothing of Prometheus.
Only durations are told when they happen (`NodeMetrics.observe`), because a histogram cannot be read
afterwards.

Names: prefix, subject, thing, base unit, ``_total`` for counters. Label values come from code and
settings; topics are the one label that users choose, cut at `TOPICS_MAX` series (the rest is summed
as ``other``). Counters never fall while the process lives.

Not here: the HTTP path (``node.http_server``), where the numbers come from (``node.figures``).
Sources: user-experience.md section 9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

OFTEN_MAX = 1024
"""Durations kept before they go into their buckets: one by one that costs ten times as much."""

TOPICS_MAX = 200
"""Series with a topic label; every further topic is summed under ``other``."""

ROLES = ("master", "slave", "fenced", "candidate", "quarantined", "stopped")
"""As ``replication.view`` names them."""

Labels = tuple[str, ...]
Figures = Mapping[str, "float | Mapping[Labels, float]"]
"""Present numbers by name; those with labels as a map from label values to number."""

_TIMES = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table; ``kind``: gauge, counter, histogram, info or stateset."""

    name: str
    kind: str
    help: str
    labels: Labels = ()
    alike: str = ""
    """What RocketMQ, Kafka or etcd call it, for people who come from there."""


def _offset(what: str, meaning: str) -> Figure:
    return Figure(f"twinlog_log_{what}_offset_bytes", "gauge", meaning)


METRICS: tuple[Figure, ...] = (
    Figure("twinlog_build", "info", "Version of twinlog and of Python.", ("version", "python")),
    Figure("twinlog_node_role", "stateset", "The node's role.", ("role",), "etcd_server_is_leader"),
    Figure("twinlog_node_epoch", "gauge", "Epoch the node acts in; 0 is nobody's."),
    Figure("twinlog_writable", "gauge", "1 when this node accepts writes."),
    Figure("twinlog_ready", "gauge", "1 when /readyz answers 200."),
    _offset("start", "First byte still kept."),
    _offset("end", "First byte not yet written."),
    _offset("flushed", "Everything below is on disk."),
    _offset("confirm", "Everything below is on every in-sync node; readers see no further."),
    _offset("dispatched", "Queues are built up to here."),
    Figure("twinlog_log_flush_behind_bytes", "gauge", "Written and not yet on disk."),
    Figure("twinlog_log_dispatch_behind_bytes", "gauge", "Confirmed and not yet in queues."),
    Figure("twinlog_log_size_bytes", "gauge", "From start to end of the log."),
    Figure("twinlog_log_flush_duration_seconds", "histogram", "One flush of log and batch index."),
    Figure(
        "twinlog_memory_unlocked_bytes",
        "gauge",
        "Memory that the settings want locked and RLIMIT_MEMLOCK does not allow.",
    ),
    Figure("twinlog_records_appended", "counter", "Records stored by clients.", ("topic",)),
    Figure("twinlog_appended_bytes", "counter", "Their bytes as stored.", ("topic",)),
    Figure("twinlog_records_read", "counter", "Records served to readers.", ("topic",)),
    Figure("twinlog_read_bytes", "counter", "Their bytes as stored.", ("topic",)),
    Figure("twinlog_replication_lag_bytes", "gauge", "Log end less the slave's.", ("slave",)),
    Figure(
        "twinlog_replication_lag_seconds",
        "gauge",
        "Age of the oldest byte the slave lacks.",
        ("slave",),
    ),
    Figure(
        "twinlog_replication_contact_age_seconds",
        "gauge",
        "Since the slave was last heard.",
        ("slave",),
    ),
    Figure(
        "twinlog_replication_in_sync", "gauge", "1 when the node is in the in-sync set.", ("slave",)
    ),
    Figure("twinlog_replication_in_sync_nodes", "gauge", "Nodes in sync, the master included."),
    Figure("twinlog_replication_in_sync_min", "gauge", "Fewer nodes in sync: writes are refused."),
    Figure("twinlog_replication_links_closed", "counter", "Links closed for a frame.", ("kind",)),
    Figure("twinlog_confirm_wait_seconds", "histogram", "From append to confirmation."),
    Figure("twinlog_requests", "counter", "Answers to clients.", ("kind", "outcome")),
    Figure("twinlog_requests_in_flight", "gauge", "Requests without an answer yet."),
    Figure("twinlog_connections", "gauge", "Client connections open."),
    Figure("twinlog_connections_accepted", "counter", "Client connections since the start."),
    Figure("twinlog_connections_closed", "counter", "Connections ended by the node.", ("kind",)),
    Figure("twinlog_long_polls_waiting", "gauge", "Reads parked for a new record."),
    Figure("twinlog_cold_answers_bytes", "gauge", "Copied answers that clients have not taken."),
    Figure("twinlog_cold_answers_waiting", "gauge", "Answers that wait for this memory."),
    Figure("twinlog_limit_reached", "counter", "Times a named limit was reached.", ("limit",)),
    Figure("twinlog_events", "counter", "Log events, written or not.", ("event", "level")),
    Figure(
        "twinlog_coordinator_contact_age_seconds", "gauge", "Since the coordinator last answered."
    ),
    Figure("twinlog_disk_free_bytes", "gauge", "Free on the data folder's file system."),
    Figure("twinlog_disk_size_bytes", "gauge", "Size of that file system."),
    Figure("twinlog_disk_used_ratio", "gauge", "Share of that file system in use."),
    Figure("twinlog_disk_refuses", "gauge", "1 while writes are refused for lack of space."),
    Figure("twinlog_retention_files", "counter", "Log files that left, by why.", ("reason",)),
    Figure("twinlog_retention_leaving_files", "gauge", "Log files that left and are not removed."),
    Figure("twinlog_retention_forced", "counter", "Log files removed while a reader held them."),
    Figure("twinlog_retention_overtaken", "counter", "Slaves whose bytes went for lack of space."),
    Figure("twinlog_loop_delay_seconds", "histogram", "How long a ready task had to wait."),
)
"""Every figure of a node. Counters get ``_total`` when they are written."""

BY_NAME: Mapping[str, Figure] = {figure.name: figure for figure in METRICS}


class UnknownFigure(LookupError):
    """A number was given under a name (or with labels) that the table does not have."""


class NodeMetrics:
    """The registry of one node.

    Args:
        figures: Returns the present numbers; called once for each scrape, on the loop. What it
            leaves out is left out of the answer.
    """

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._histograms = {
            figure.name: Histogram(
                figure.name,
                figure.help,
                figure.labels,
                buckets=_TIMES,
                registry=self.registry,
            )
            for figure in METRICS
            if figure.kind == "histogram"
        }
        self._often: list[_Often] = []
        self.registry.register(_Present(figures))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def observe_often(self, name: str) -> Callable[[float], None]:
        """Return what takes the durations of one histogram without labels, many a second.

        They are sorted into buckets when somebody asks, or when `OFTEN_MAX` are there.

        Raises:
            UnknownFigure: No histogram of the table has this name.
        """
        histogram = self._histograms.get(name)
        if histogram is None:
            raise UnknownFigure(name)
        return _Often(histogram, self._often).take

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        """Take one duration.

        Raises:
            UnknownFigure: No histogram of the table has this name.
        """
        histogram = self._histograms.get(name)
        if histogram is None:
            raise UnknownFigure(name)
        (histogram.labels(*labels) if labels else histogram).observe(seconds)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return every figure in the format the Accept header prefers, and its content type."""
        for often in self._often:
            often.sort()
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class _Often:
    """Durations that wait for their buckets."""

    def __init__(self, histogram: Histogram, everyone: list[_Often]) -> None:
        self._histogram = histogram
        self._waiting: list[float] = []
        everyone.append(self)

    def take(self, seconds: float) -> None:
        """Keep one duration."""
        waiting = self._waiting
        waiting.append(seconds)
        if len(waiting) >= OFTEN_MAX:
            self.sort()

    def sort(self) -> None:
        """Put everything kept into its bucket."""
        waiting, self._waiting = self._waiting, []
        for seconds in waiting:
            self._histogram.observe(seconds)


class _Present(Collector):
    """Turns the present numbers into families when the registry is collected."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        for name, value in self._figures().items():
            figure = BY_NAME.get(name)
            if figure is None or figure.kind == "histogram":
                raise UnknownFigure(name)
            yield _family(figure, value)


def _family(figure: Figure, value: float | Mapping[Labels, float]) -> Metric:
    rows: Mapping[Labels, float] = {(): value} if isinstance(value, (int, float)) else value
    if figure.kind == "info":
        info = InfoMetricFamily(figure.name, figure.help)
        for labels in rows:
            info.add_metric((), dict(zip(figure.labels, labels, strict=True)))
        return info
    if figure.kind == "stateset":
        states = StateSetMetricFamily(figure.name, figure.help)
        states.add_metric((), {labels[0]: bool(on) for labels, on in rows.items()})
        return states
    make = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
    family = make(figure.name, figure.help, labels=figure.labels)
    for labels, number in _bounded(figure, rows).items():
        if len(labels) != len(figure.labels):
            raise UnknownFigure(f"{figure.name} has labels {figure.labels}, not {labels}")
        family.add_metric(labels, number)
    return family


def _bounded(figure: Figure, rows: Mapping[Labels, float]) -> Mapping[Labels, float]:
    """Sum what lies beyond `TOPICS_MAX` topics; the first stay, so that no counter falls."""
    if figure.labels != ("topic",) or len(rows) <= TOPICS_MAX:
        return rows
    kept = dict(list(rows.items())[:TOPICS_MAX])
    kept[("other",)] = sum(rows.values()) - sum(kept.values())
    return kept


def reference() -> str:
    """Return the page ``docs/metrics.md``: every figure with type, labels and help."""
    lines = [
        "# Metrics",
        "",
        "Served on every node's http port under `/metrics`, as Prometheus text or OpenMetrics.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for figure in METRICS:
        suffix = {"counter": "_total", "info": "_info"}.get(figure.kind, "")
        labels = ", ".join(figure.labels) or "-"
        lines.append(f"| `{figure.name}{suffix}` | {figure.kind} | {labels} | {figure.help} |")
    lines += ["", "`process_*` and `python_*` come from the Prometheus library.", ""]
    return "\n".join(lines)

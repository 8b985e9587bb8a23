"""Metrics for Prometheus: one registry for each node, nothing global.

Values of ``node.observe.metrics.METRICS`` are read at a scrape. Only durations are reported when
they occur (`NodeMetrics.observe`), because a histogram cannot be computed afterwards.

Not here: which metrics there are (``node.observe.metrics``), the HTTP path
(``node.observe.http_server``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

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
    StateSetMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from node.observe.metrics import BY_NAME, METRICS, Labels, Metric

OFTEN_MAX = 1024
"""Durations buffered before they are sorted into buckets; one at a time costs ten times as much."""

TOPICS_MAX = 200
"""Series with a topic label; all further topics are summed under ``other``."""

GROUPS_MAX = 1000
"""Series with a group label, likewise."""

MOST: Mapping[str, int] = {"topic": TOPICS_MAX, "group": GROUPS_MAX}
"""How many series a first label may have that users choose."""

Values = Mapping[str, "float | Mapping[Labels, float]"]
"""Present values by metric name; those with labels as a map from label values to number."""


class UnknownMetric(LookupError):
    """A value was given under a name, or with labels, that the table does not have."""


class NodeMetrics:
    """The registry of one node.

    Args:
        values: Returns the present values; called once for each scrape, on the loop. A metric it
            leaves out is left out of the answer.
    """

    def __init__(self, values: Callable[[], Values]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._histograms = {
            metric.name: Histogram(
                metric.name,
                metric.help,
                metric.labels,
                buckets=metric.buckets,
                registry=self.registry,
            )
            for metric in METRICS
            if metric.kind == "histogram"
        }
        self._often: list[_Often] = []
        self.registry.register(_Present(values))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def observe_often(self, name: str) -> Callable[[float], None]:
        """Return a function that takes durations for one histogram without labels, many a second.

        They are buffered, and sorted into buckets at a scrape or when there are `OFTEN_MAX`.

        Raises:
            UnknownMetric: No histogram of the table has this name.
        """
        return _Often(self._histogram(name), self._often).take

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        """Take one duration.

        Raises:
            UnknownMetric: No histogram of the table has this name.
        """
        histogram = self._histogram(name)
        (histogram.labels(*labels) if labels else histogram).observe(seconds)

    def _histogram(self, name: str) -> Histogram:
        histogram = self._histograms.get(name)
        if histogram is None:
            raise UnknownMetric(name)
        return histogram

    def pieces(self, accept: str) -> tuple[Iterator[bytes], str]:
        """Return all metrics in the format the Accept header prefers, and its content type.

        One metric at a time is made and encoded, as the iterator is asked for it: of those by group
        or topic each is milliseconds of work, between which the loop has others to serve. Values
        are of the moment of the first piece.
        """
        for often in self._often:
            often.sort()
        encode, content_type = choose_encoder(accept)

        def encoded() -> Iterator[bytes]:
            for family in self.registry.collect():
                yield encode(_Alone(family)).removesuffix(_END)
            if encode(_Alone()):
                yield _END

        return encoded(), content_type

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return `pieces` at once."""
        pieces, content_type = self.pieces(accept)
        return b"".join(pieces), content_type


_END = b"# EOF\n"
"""The last line of OpenMetrics."""


class _Alone(Collector):
    """A registry of one metric, or of none."""

    def __init__(self, *families: Family) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


class _Often:
    """Durations not yet sorted into buckets."""

    def __init__(self, histogram: Histogram, all_: list[_Often]) -> None:
        self._histogram = histogram
        self._waiting: list[float] = []
        all_.append(self)

    def take(self, seconds: float) -> None:
        """Buffer one duration."""
        waiting = self._waiting
        waiting.append(seconds)
        if len(waiting) >= OFTEN_MAX:
            self.sort()

    def sort(self) -> None:
        """Sort everything buffered into its bucket."""
        waiting, self._waiting = self._waiting, []
        for seconds in waiting:
            self._histogram.observe(seconds)


class _Present(Collector):
    """Turns the present values into metric families when the registry is collected."""

    def __init__(self, values: Callable[[], Values]) -> None:
        self._values = values

    def collect(self) -> Iterable[Family]:
        for name, value in self._values().items():
            metric = BY_NAME.get(name)
            if metric is None or metric.kind == "histogram":
                raise UnknownMetric(name)
            yield _family(metric, value)


def _family(metric: Metric, value: float | Mapping[Labels, float]) -> Family:
    rows: Mapping[Labels, float] = {(): value} if isinstance(value, (int, float)) else value
    if metric.kind == "info":
        info = InfoMetricFamily(metric.name, metric.help)
        for labels in rows:
            info.add_metric((), dict(zip(metric.labels, labels, strict=True)))
        return info
    if metric.kind == "stateset":
        states = StateSetMetricFamily(metric.name, metric.help)
        states.add_metric((), {labels[0]: bool(on) for labels, on in rows.items()})
        return states
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.labels)
    for labels, number in _bounded(metric, rows).items():
        if len(labels) != len(metric.labels):
            raise UnknownMetric(f"{metric.name} has labels {metric.labels}, not {labels}")
        family.add_metric(labels, number)
    return family


def _bounded(metric: Metric, rows: Mapping[Labels, float]) -> Mapping[Labels, float]:
    """Sum what users name beyond a limit; the first ones stay, so that no counter falls."""
    most = MOST.get(metric.labels[0]) if metric.labels else None
    if most is None or len(rows) <= most:
        return rows
    kept = dict(list(rows.items())[:most])
    kept[("other",) * len(metric.labels)] = sum(rows.values()) - sum(kept.values())
    return kept

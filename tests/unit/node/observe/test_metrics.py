"""Metrics: every one has a help text, a home and a value that means what its name says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

from node.clients.counts import ClientCounts
from node.clients.reads import ReadCounts
from node.observe.exposition import GROUPS_MAX, OFTEN_MAX, TOPICS_MAX, NodeMetrics, UnknownMetric
from node.observe.metrics import (
    BY_NAME,
    METRICS,
    Metric,
    Observed,
    counters,
    present,
    reference,
)
from node.observe.status import Facts
from replication.core.view import PeerView, RoleView

if TYPE_CHECKING:
    from node.clients.connection import RequestHandlers
    from node.clients.server import ClientServer
    from node.groups.figures import Figures
    from node.observe.logs import NodeLog
    from replication.replica_service import ReplicaService

NODE = Path(__file__).parents[4] / "node"

COUNTS = ClientCounts(
    accepted=9,
    answers={("append", "ok"): 5, ("append", "busy"): 1},
    closings={"http": 2},
    limits={"connections_max": 1},
    records={"orders": 10},
    size={"orders": 1000},
)
READS = ReadCounts(records={"orders": 7}, size={"orders": 700}, cold=3, stale=1)

REQUESTS = SimpleNamespace(
    counts=COUNTS,
    quotas=SimpleNamespace(refused={"t": 3}),
    reads=SimpleNamespace(counts=READS, waiting=1),
    appends=SimpleNamespace(waiting=6),
    cold=SimpleNamespace(held=4096, waiting=0),
)

GROUPS = SimpleNamespace(
    ready=1.0,
    parked=2.0,
    redelivered=3.0,
    delays_waiting=lambda: {("3",): 2.0},
    delivered=5.0,
    undeliverable=1.0,
    halves_open=2.0,
    checks=lambda: {("commit",): 4.0},
    checks_parked=1.0,
    settled_halves=lambda: {("commit",): 3.0},
    rescued=lambda: {("timer",): 5.0},
    timers_waiting=2.0,
    timers_delivered=5.0,
    timers_cancelled=1.0,
    lags=lambda: {("billing", "orders"): 5.0},
    count=lambda state: {("billing",): float(state)},
    members=lambda: {("billing",): 2.0},
    leased=lambda: {("billing",): 9.0},
    dead=lambda: {("billing",): 1.0},
    settled=lambda: {("billing", "ack"): 8.0},
    rows=lambda: {("LeaseRow",): 4.0},
)

CLIENTS = SimpleNamespace(connections=4, in_flight=2, partial_bytes=512)

SLAVES = (
    PeerView("n2", "slave", 60, 40, 20, 0.1, 0.2, True, "streaming", None),
    PeerView("n3", "slave", None, None, None, None, 9.0, False, "away", "silent"),
)

VIEW = RoleView(
    role="master", state="serving", epoch=7, leader="n1", session=3, in_sync=("n1", "n2"),
    min_in_sync=2, effective=("n1", "n2"), confirm=60, end=80, flushed=50, peers=SLAVES,
    quarantined=None, admission=None, age_seconds=0.0, why=None, register_id="r", revision=9,
)  # fmt: skip

FACTS = Facts(
    node="n1", cluster="demo", group="g1", time="2026-11-21T10:15:02.118Z", version="0.1.0", pid=42,
    uptime_seconds=12.0, addresses={},
    offsets={"start": 0, "checkpointed": 40, "flushed": 50, "dispatched": 55, "confirm": 60,
             "committed": 80, "end": 80},
    coordinator_seconds=0.5, topics=2, disk_free=100, disk_size=200, boot={},
    staleness_max_seconds=5.0, certificate_until=2_000_000_000.0,
    scrub={"compared_bytes": 1 << 20, "found": 1, "repaired": 1, "waiting": 0},
    retention={"deleted": {"age": 3}, "leaving": 1, "forced": 2, "overtaken": 0,
               "disk_used": 0.5, "refuses": False},
)  # fmt: skip

NODE_1 = Observed(
    VIEW,
    FACTS,
    cast("ClientServer", CLIENTS),
    cast("RequestHandlers", REQUESTS),
    cast(
        "ReplicaService",
        SimpleNamespace(
            links_closed={"crc": 1},
            outbox=SimpleNamespace(readiness=SimpleNamespace(polled=1.5)),
            threads=SimpleNamespace(seconds=lambda: {"loop": 2.5, "flush": 0.5}),
        ),
    ),
    cast("NodeLog", SimpleNamespace(counts={("coordinator_lost", "warning"): 1})),
    cast("Figures", GROUPS),
)
"""A master with one slave that streams and one that is away."""


def values(**changes: object) -> Mapping[str, float | Mapping[tuple[str, ...], float]]:
    """The present values of the node above, with other parts."""
    return present(replace(NODE_1, **changes))  # type: ignore[arg-type]


def scrape(metrics: NodeMetrics, accept: str = "") -> dict[tuple[str, tuple[str, ...]], float]:
    """What a scrape shows, by sample name and label values."""
    body, kind = metrics.render(accept)
    parse = openmetrics if "openmetrics" in kind else classic
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in parse(body.decode())
        for sample in family.samples
    }


def test_a_learner_is_not_out_of_sync() -> None:
    """It has a lag, and no value that an alert takes for a slave which should count (R70)."""
    learner = PeerView("n4", "learner", 60, 40, 20, 0.1, 0.2, False, "streaming", "a learner")
    found = values(view=replace(VIEW, peers=(*SLAVES, learner)))
    assert found["twinlog_replication_in_sync"] == {("n2",): 1.0, ("n3",): 0.0}
    lags = found["twinlog_replication_lag_bytes"]
    assert isinstance(lags, dict)
    assert lags["n4",] == 20


def test_every_figure_has_help_and_a_proper_name() -> None:
    """Prometheus' rules for names, so that nobody is surprised."""
    units = ("bytes", "seconds", "offset_bytes")
    for figure in METRICS:
        assert figure.help.endswith("."), figure.name
        assert re.fullmatch(r"twinlog_[a-z_]+", figure.name)
        assert not figure.name.endswith("_total"), "the exposition adds it"
        if figure.kind == "histogram":
            assert figure.name.endswith(units)
    assert len(BY_NAME) == len(METRICS)


def test_every_figure_of_the_table_is_shown() -> None:
    """A row that no scrape shows is a promise without a figure."""
    metrics = NodeMetrics(values)
    body = metrics.render("")[0].decode()
    for figure in METRICS:
        assert f"# HELP {figure.name}" in body, figure.name
        assert figure.help in body


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_a_scrape_of_many_groups_is_made_in_pieces(accept: str) -> None:
    """Each is one metric, of at most 1,000 series; together they are the whole answer."""
    lags = {(f"g{number}", "t"): 1.0 for number in range(5000)}
    metrics = NodeMetrics(lambda: {**values(), "twinlog_group_lag_messages": lags})
    pieces, kind = metrics.pieces(accept)
    found = list(pieces)
    assert all(piece.count(b"# HELP ") <= 2 for piece in found), "a histogram says when it began"
    assert max(piece.count(b"\n") for piece in found) < GROUPS_MAX + 10
    assert len(found) > len(METRICS) / 2
    parse = openmetrics if "openmetrics" in kind else classic
    names = {family.name for family in parse(b"".join(found).decode())}
    assert "twinlog_group_lag_messages" in names
    assert (b"# EOF\n" in found) == ("openmetrics" in kind)


def test_every_histogram_is_fed_by_somebody() -> None:
    """A figure that stays 0 for ever is worse than none."""
    sources = "".join(path.read_text() for path in NODE.rglob("*.py") if path.name != "metrics.py")
    for figure in METRICS:
        assert figure.kind != "histogram" or f'"{figure.name}"' in sources, figure.name


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_both_formats_say_the_same(accept: str) -> None:
    found = scrape(NodeMetrics(values), accept)
    assert found[("twinlog_node_epoch", ())] == 7
    assert found[("twinlog_requests_total", ("append", "busy"))] == 1
    assert found[("twinlog_node_role", ("master",))] == 1
    assert found[("twinlog_node_role", ("slave",))] == 0
    assert found[("twinlog_log_end_offset_bytes", ())] == 80
    assert found[("twinlog_log_flush_behind_bytes", ())] == 30
    assert found[("twinlog_replication_in_sync", ("n3",))] == 0
    assert found[("twinlog_records_appended_total", ("orders",))] == 10


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_read_and_has_a_value(metric: Metric) -> None:
    """On a master that serves, each row has a value of its own shape; histograms are fed."""
    assert (metric.read is None) == (metric.kind == "histogram"), metric.name
    if metric.read is not None:
        value = metric.read(NODE_1)
        assert value is not None, f"{metric.name} has no value"
        labelled = isinstance(value, Mapping)
        assert labelled == bool(metric.labels), f"{metric.name} has labels {metric.labels}"
        for labels in value if isinstance(value, Mapping) else ():
            assert len(labels) == len(metric.labels), metric.name


def test_the_counters_of_a_status_document_are_the_same_numbers() -> None:
    found = counters(NODE_1)
    assert found["answers"] == {"append/ok": 5, "append/busy": 1}
    assert found["closings"] == {"http": 2}
    assert (found["connections"], found["accepted"], found["reads_cold"]) == (4, 9, 3)
    assert (found["partial_frames_bytes"], found["cold_answers_bytes"]) == (512, 4096)


def test_an_unknown_value_is_not_shown_as_zero() -> None:
    unknown = replace(FACTS, disk_size=None, retention={})
    found = scrape(NodeMetrics(lambda: values(facts=unknown)))
    assert ("twinlog_replication_lag_bytes", ("n3",)) not in found
    assert ("twinlog_disk_size_bytes", ()) not in found
    assert not [name for name, _ in found if name.startswith("twinlog_retention")]
    slave = replace(VIEW, role="slave")
    assert not [name for name, _ in scrape(NodeMetrics(lambda: values(view=slave)))
                if name.startswith("twinlog_replication_lag")]  # fmt: skip


def test_durations_are_told_when_they_happen() -> None:
    metrics = NodeMetrics(values)
    metrics.observe("twinlog_log_flush_duration_seconds", 0.002)
    metrics.observe("twinlog_confirm_wait_seconds", 0.1)
    found = scrape(metrics)
    assert found[("twinlog_log_flush_duration_seconds_count", ())] == 1
    assert found[("twinlog_confirm_wait_seconds_sum", ())] == 0.1


def test_frequent_durations_are_all_there_when_somebody_asks() -> None:
    metrics = NodeMetrics(values)
    take = metrics.observe_often("twinlog_confirm_wait_seconds")
    for _ in range(OFTEN_MAX + 3):
        take(0.25)
    for _ in range(2):  # asking twice counts nothing twice
        found = scrape(metrics)
        assert found[("twinlog_confirm_wait_seconds_count", ())] == OFTEN_MAX + 3
    assert found[("twinlog_confirm_wait_seconds_sum", ())] == (OFTEN_MAX + 3) / 4
    with pytest.raises(UnknownMetric):
        metrics.observe_often("twinlog_nonsense")


def test_a_name_outside_the_table_is_refused() -> None:
    metrics = NodeMetrics(lambda: {"twinlog_nonsense": 1})
    with pytest.raises(UnknownMetric):
        metrics.render("")
    with pytest.raises(UnknownMetric):
        metrics.observe("twinlog_node_epoch", 1)
    with pytest.raises(UnknownMetric, match="labels"):
        NodeMetrics(lambda: {"twinlog_requests": {("append",): 1.0}}).render("")


def test_topics_are_bounded_and_sums_stay_right() -> None:
    """A thousand topics are not a thousand series, and no counter falls when the bound is met."""
    topics = {f"t{number}": 1 for number in range(TOPICS_MAX + 50)}
    many = SimpleNamespace(**{**vars(REQUESTS), "counts": replace(COUNTS, records=topics)})
    found = scrape(NodeMetrics(lambda: values(requests=many)))
    series = {labels: n for (name, labels), n in found.items() if "records_appended" in name}
    assert len(series) == TOPICS_MAX + 1
    assert series[("other",)] == 50
    assert series[("t0",)] == 1


def test_nodes_of_one_process_share_nothing() -> None:
    """Several nodes run inside one test."""
    first, second = NodeMetrics(values), NodeMetrics(lambda: values(view=replace(VIEW, epoch=9)))
    first.observe("twinlog_loop_delay_seconds", 0.1)
    assert scrape(first)[("twinlog_node_epoch", ())] == 7
    assert scrape(second)[("twinlog_node_epoch", ())] == 9
    assert scrape(second)[("twinlog_loop_delay_seconds_count", ())] == 0


def test_the_reference_has_a_row_for_each() -> None:
    page = reference()
    assert "| `twinlog_requests_total` | counter | kind, outcome | Requests answered" in page
    assert page.count("| `twinlog_") == len(METRICS)
    assert page.endswith("\n")

"""Figures: every one has a help text, a home and a value that means what its name says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

from node.figures import Counters, _retention, figures
from node.metrics import (
    BY_NAME,
    METRICS,
    OFTEN_MAX,
    TOPICS_MAX,
    NodeMetrics,
    UnknownFigure,
    reference,
)

NODE = Path(__file__).parents[3] / "node"

COUNTERS = Counters(
    answers={("append", "ok"): 5, ("append", "busy"): 1},
    closings={"http": 2},
    limits={"connections_max": 1},
    accepted=9,
    connections=4,
    in_flight=2,
    long_polls=1,
    events={("coordinator_lost", "warning"): 1},
    appended={"orders": 10},
    appended_bytes={"orders": 1000},
)

DOCUMENT: dict[str, object] = {
    "twinlog": "0.1.0",
    "role": "master",
    "epoch": 7,
    "writable": True,
    "ready": True,
    "in_sync": ["n1", "n2"],
    "in_sync_min": 2,
    "offsets": {"start": 0, "end": 80, "flushed": 50, "confirm": 60, "dispatched": 55},
    "peers": [
        {"name": "n2", "in_sync": True, "lag_bytes": 20, "lag_seconds": 0.1,
         "contact_seconds": 0.2},
        {"name": "n3", "in_sync": False, "lag_bytes": None, "lag_seconds": None,
         "contact_seconds": 9},
    ],
    "disk": {"free_bytes": 100, "size_bytes": 200},
    "coordinator": {"contact_seconds": 0.5},
    "retention": {"deleted": {"age": 3}, "leaving": 1, "forced": 2, "overtaken": 0,
                  "disk_used": 0.5, "refuses": False},
}  # fmt: skip


def present(**changes: object) -> Mapping[str, float | Mapping[tuple[str, ...], float]]:
    """The figures of the document above, with changes."""
    return figures({**DOCUMENT, **changes}, COUNTERS, python="3.11")


def scrape(metrics: NodeMetrics, accept: str = "") -> dict[tuple[str, tuple[str, ...]], float]:
    """What a scrape shows, by sample name and label values."""
    body, kind = metrics.render(accept)
    parse = openmetrics if "openmetrics" in kind else classic
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in parse(body.decode())
        for sample in family.samples
    }


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
    metrics = NodeMetrics(present)
    body = metrics.render("")[0].decode()
    for figure in METRICS:
        assert f"# HELP {figure.name}" in body, figure.name
        assert figure.help in body


def test_every_histogram_is_fed_by_somebody() -> None:
    """A figure that stays 0 for ever is worse than none."""
    sources = "".join(path.read_text() for path in NODE.glob("*.py") if path.name != "metrics.py")
    for figure in METRICS:
        assert figure.kind != "histogram" or f'"{figure.name}"' in sources, figure.name


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_both_formats_say_the_same(accept: str) -> None:
    found = scrape(NodeMetrics(present), accept)
    assert found[("twinlog_node_epoch", ())] == 7
    assert found[("twinlog_requests_total", ("append", "busy"))] == 1
    assert found[("twinlog_node_role", ("master",))] == 1
    assert found[("twinlog_node_role", ("slave",))] == 0
    assert found[("twinlog_log_end_offset_bytes", ())] == 80
    assert found[("twinlog_log_flush_behind_bytes", ())] == 30
    assert found[("twinlog_replication_in_sync", ("n3",))] == 0
    assert found[("twinlog_records_appended_total", ("orders",))] == 10


def test_what_is_not_known_is_not_shown_as_zero() -> None:
    disk = {"free_bytes": None, "size_bytes": None}
    found = scrape(NodeMetrics(lambda: present(disk=disk)))
    assert ("twinlog_replication_lag_bytes", ("n3",)) not in found
    assert ("twinlog_disk_size_bytes", ()) not in found
    assert not [name for name, _ in scrape(NodeMetrics(lambda: present(role="slave")))
                if name.startswith("twinlog_replication_lag")]  # fmt: skip


def test_durations_are_told_when_they_happen() -> None:
    metrics = NodeMetrics(present)
    metrics.observe("twinlog_log_flush_duration_seconds", 0.002)
    metrics.observe("twinlog_confirm_wait_seconds", 0.1)
    found = scrape(metrics)
    assert found[("twinlog_log_flush_duration_seconds_count", ())] == 1
    assert found[("twinlog_confirm_wait_seconds_sum", ())] == 0.1


def test_frequent_durations_are_all_there_when_somebody_asks() -> None:
    metrics = NodeMetrics(present)
    take = metrics.observe_often("twinlog_confirm_wait_seconds")
    for _ in range(OFTEN_MAX + 3):
        take(0.25)
    for _ in range(2):  # asking twice counts nothing twice
        found = scrape(metrics)
        assert found[("twinlog_confirm_wait_seconds_count", ())] == OFTEN_MAX + 3
    assert found[("twinlog_confirm_wait_seconds_sum", ())] == (OFTEN_MAX + 3) / 4
    with pytest.raises(UnknownFigure):
        metrics.observe_often("twinlog_nonsense")


def test_a_name_outside_the_table_is_refused() -> None:
    metrics = NodeMetrics(lambda: {"twinlog_nonsense": 1})
    with pytest.raises(UnknownFigure):
        metrics.render("")
    with pytest.raises(UnknownFigure):
        metrics.observe("twinlog_node_epoch", 1)
    with pytest.raises(UnknownFigure, match="labels"):
        NodeMetrics(lambda: {"twinlog_requests": {("append",): 1.0}}).render("")


def test_topics_are_bounded_and_sums_stay_right() -> None:
    """A thousand topics are not a thousand series, and no counter falls when the bound is met."""
    topics = {f"t{number}": 1 for number in range(TOPICS_MAX + 50)}
    many = replace(COUNTERS, appended=topics)
    found = scrape(NodeMetrics(lambda: figures(DOCUMENT, many, python="3")))
    series = {labels: n for (name, labels), n in found.items() if "records_appended" in name}
    assert len(series) == TOPICS_MAX + 1
    assert series[("other",)] == 50
    assert series[("t0",)] == 1


def test_nodes_of_one_process_share_nothing() -> None:
    """Several nodes run inside one test."""
    first, second = NodeMetrics(present), NodeMetrics(lambda: present(epoch=9))
    first.observe("twinlog_loop_delay_seconds", 0.1)
    assert scrape(first)[("twinlog_node_epoch", ())] == 7
    assert scrape(second)[("twinlog_node_epoch", ())] == 9
    assert scrape(second)[("twinlog_loop_delay_seconds_count", ())] == 0


def test_the_reference_has_a_row_for_each() -> None:
    page = reference()
    assert "| `twinlog_requests_total` | counter | kind, outcome | Answers to clients. |" in page
    assert page.count("| `twinlog_") == len(METRICS)
    assert page.endswith("\n")


def test_a_document_from_before_retention_shows_none_of_it() -> None:
    """What is not known is not 0."""
    assert _retention({}) == {}

"""The dashboard for Grafana: every metric and label in it exists, and panels do not overlap."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

from node.observe.metrics import BY_NAME

ROOT = Path(__file__).parents[4]
BOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "twinlog.json").read_text())
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
OURS = {"job", "instance", "le"}
"""Labels that Prometheus adds, and the ends of buckets."""


def known() -> dict[str, set[str]]:
    """Each name in Prometheus, with its labels."""
    suffixes = {
        "counter": ["_total"],
        "info": ["_info"],
        "histogram": ["_bucket", "_count", "_sum"],
    }
    found: dict[str, set[str]] = {}
    for metric in BY_NAME.values():
        labels = set(metric.labels) | OURS
        if metric.kind == "stateset":
            labels = {metric.name} | OURS
        for suffix in suffixes.get(metric.kind, [""]):
            found[metric.name + suffix] = labels
    return found


def test_every_metric_and_label_exists() -> None:
    """A panel about a metric that no node has would stay empty."""
    names = known()
    for expression in EXPRESSIONS:
        used = re.findall(r"\btwinlog_\w+", expression)
        assert used, expression
        for name in used:
            assert name in names, name
        labels = set(re.findall(r"(\w+)=~?\"", expression))
        for group in re.findall(r"by \(([^)]*)\)", expression):
            labels |= {label.strip() for label in group.split(",")}
        assert labels <= names[used[0]], expression
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            name = re.findall(r"\btwinlog_\w+", target["expr"])[0]
            assert shown <= names[name], target


def test_what_matters_is_on_it() -> None:
    """Whether writes work, who is slow, how long sends wait, what groups have left, the disk."""
    text = " ".join(EXPRESSIONS)
    for name in ("writable", "replication_slow", "confirm_wait", "replication_lag", "group_lag",
                 "disk_used", "events_total"):  # fmt: skip
        assert f"twinlog_{name}" in text


def test_panels_have_places_of_their_own() -> None:
    """On a grid of 24 columns, each with a number of its own and the chosen data source."""
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        )  # fmt: skip
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)

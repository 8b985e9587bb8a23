"""The alert rules name metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_every_metric_of_an_alert_exists() -> None:
    """A rule about a metric that no node has would never fire."""
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    known = set(re.findall(r"`(twinlog_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    used = {name.removesuffix("_bucket") for name in re.findall(r"twinlog_\w+", rules)}
    assert len(used) > 8
    assert used <= known, used - known

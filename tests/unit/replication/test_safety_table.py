"""The table of load-bearing checks in the front page of `replication`."""

from __future__ import annotations

import importlib
import re

import replication


def test_every_load_bearing_check_is_where_the_page_says() -> None:
    """The simulator takes them away by these names."""
    rows = re.findall(
        r"^    \S.*?  +(\w+\.\w+)\.([\w.]+)$", replication.__doc__ or "", re.MULTILINE
    )
    assert len(rows) > 30
    for module, name in rows:
        owner: object = importlib.import_module(f"replication.{module}")
        for part in name.split("."):
            owner = getattr(owner, part)
        assert callable(owner)

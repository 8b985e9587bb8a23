"""The programs of docs/applications.md: all compile, those without a web server run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fakes.node import FakeCluster

PAGE = (Path(__file__).parents[4] / "docs" / "applications.md").read_text()
BLOCKS = dict(re.findall(r"## ([^\n]+)\n(?:(?!## ).)*?```python\n(.*?)```", PAGE, re.DOTALL))


def test_every_program_compiles() -> None:
    """Also those that need Flask, Django or FastAPI."""
    found = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(found) == 8
    for text in found:
        compile(text, "applications.md", "exec")


@pytest.mark.parametrize(
    ("title", "stored"),
    [("asyncio", 10), ("trio", 10), ("Threads that share work", 3), ("Sending without waiting", 3)],
)
def test_a_program_runs(cluster: FakeCluster, title: str, stored: int) -> None:
    """As it stands, but for the address and the name of the cluster."""
    text = re.sub(r'"10\.[^"]*"', f'"{cluster.servers}"', BLOCKS[title])
    exec(text.replace('"prod"', '"demo"'), {"__name__": "page"})
    assert sum(len(bodies) for bodies in cluster.bodies("orders")) == stored

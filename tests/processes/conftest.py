"""Running clusters for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.fixtures.cluster import cluster
from tests.fixtures.full_disk import small
from tests.fixtures.processes import processes

__all__ = ["cluster", "processes", "small"]


@pytest.fixture(scope="module", autouse=True)
def _patient() -> Iterator[None]:
    """Commands have a minute: that a machine stands still for their 10 s is no outcome."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWINLOG_TIMEOUT", "60s")
        yield

"""Running clusters for the tests of this folder."""

from tests.fixtures.cluster import cluster
from tests.fixtures.processes import processes

__all__ = ["cluster", "processes"]

"""Commits to an archive, as a run of the archiver makes them."""

from __future__ import annotations

from collections.abc import Sequence

from twinlog.spark.archive.lease import Lease
from twinlog.spark.archive.manifest import Manifest, Segment
from twinlog.spark.archive.place import Place


def committed(place: Place, segments: Sequence[Segment]) -> Manifest:
    """Add segments to an archive under a lease of their own."""
    with Lease(place.root) as lease:
        return place.commit(segments, lease.folder)

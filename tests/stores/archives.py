"""Commits to an archive, as a run of the archiver makes them; a store that is half archived."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.stores.sample import SEGMENT, Ours
from twinlog.spark.archive.archive_dir import ArchiveDir
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.archive.lease import Lease
from twinlog.spark.archive.manifest import Manifest, Segment
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.jobs.reports.reference import TRACE_TOPIC


def committed(place: ArchiveDir, segments: Sequence[Segment]) -> Manifest:
    """Add segments to an archive under a lease of their own."""
    with Lease(place.root) as lease:
        return place.commit(segments, lease.folder)


def told(stamp: int | str, group: str, name: str, again: str = "0") -> bytes:
    """What a consumer's client traces before it hands out a message."""
    fields = ("SubBefore", str(stamp), "cn", group, f"R{stamp}", name, again, "key")
    return "\x01".join(fields).encode() + b"\x02"


def half_archived(home: Path) -> None:
    """Make ``whole``, a store with traces; ``archive`` of it; ``live``, what retention left.

    Two epochs; every fifth message is traced right behind it, by two groups.
    """
    made = Ours()
    for epoch in (1, 2):
        made.open_epoch(epoch)
        for number in range(40):
            name = f"ID{epoch}-{number}"
            made.properties = {"TAGS": "a", "UNIQ_KEY": name, "KEYS": f"k{number % 7}"}
            made.batch(b"%d" % number, topic=f"t{number % 3}", queue=number % 2)
            if number % 5 == 0:
                made.properties = {"TAGS": "a"}
                traces = told(number, "g1", name) + told(2 * number, "g2", name, str(number % 2))
                made.batch(traces + b"SubBefore\x01\xff\x02", topic=TRACE_TOPIC)
    made.write(home / "whole", confirm=made.end)
    archive(PlainEngine(), ArchiveSettings(home / "whole", home / "archive"))
    kept = ArchiveDir(home / "archive").newest().segments[-1].base
    assert kept > SEGMENT, "the archive and what is live overlap"
    shutil.copytree(home / "whole", home / "live")
    for folder in ("commitlog", "twinlog/batches"):
        for path in (home / "live" / folder).iterdir():
            if int(path.name) < kept:
                path.unlink()

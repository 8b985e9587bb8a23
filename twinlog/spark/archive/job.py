"""archive: sealed segments of a store into Parquet files.

Each sealed segment that the archive lacks is written by one task, which then reads its files back,
rebuilds the bytes and compares them with the log file. The manifest that names them is created only
after that is done for every segment of a portion. Then the archive's files are checked once more
(`twinlog.spark.archive.integrity`), and the nodes are notified of the intact part
(`twinlog.spark.archive.notify_nodes`). A run that ends early leaves the archive as of its last
commit, without other files (`twinlog.spark.archive.lease`).

The store is a directory, or a cluster, from whose nodes each task reads itself
(`twinlog.spark.archive.sources`).

Offsets are log offsets in bytes, times seconds unless they say ms.

Not here: restoring (`twinlog.spark.archive.restore`), what a node may delete
(``storage.retention.policy``), reading archived rows (`twinlog.spark.archive.view`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from twinlog.errors import CorruptionError, UsageError
from twinlog.spark.archive.archive_dir import (
    ORPHAN_SECONDS,
    ArchiveDir,
    require_directory,
)
from twinlog.spark.archive.integrity import ArchiveIntegrity, missing, not_there
from twinlog.spark.archive.lease import Lease, collect
from twinlog.spark.archive.manifest import Manifest, Segment
from twinlog.spark.archive.notify_nodes import Notified, notify
from twinlog.spark.archive.scan import Sealed
from twinlog.spark.archive.sources import (
    STALENESS_SECONDS,
    Cluster,
    changed_since,
    of_directory,
    older_in_directory,
)
from twinlog.spark.archive.writing import (
    Codec,
    write_segment,
)
from twinlog.spark.engine.engine import Engine
from twinlog.spark.engine.report import Report, Rows, Value, Verdict
from twinlog.spark.nodes.nodes import NodeAccess
from twinlog.store.files import is_store
from twinlog.store.marks import owner_of

PORTION_SEGMENTS = 16
"""Segments of one commit at least: a minute or two of work, lost when a run ends early."""


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """What to archive and where to.

    Attributes:
        path: The store; a slave's serves as well as the master's. None: read from ``servers``.
        to: Directory of the archive.
        group: Group the directory belongs to; a cluster names its own.
        servers: Addresses of a cluster's nodes.
        read_from: Which of them: ``slave`` (then the master), ``any``, ``master``, a node's name.
        notify: Nodes to notify of archived segments; empty: those of ``servers``.
        silent: No node is notified.
        replace: The nodes count this archive from now on, even if they count another one today.
        codec: Of the Parquet files.
        older_than: Only segments whose newest record is at least this old, seconds.
        orphans_after: Files of runs without a sign of life for this long are removed, seconds.
    """

    path: Path | None
    to: Path
    group: str = "g1"
    servers: tuple[str, ...] = ()
    read_from: str = "slave"
    notify: tuple[str, ...] = ()
    silent: bool = False
    replace: bool = False
    codec: Codec = field(default_factory=Codec)
    older_than: float = 0.0
    orphans_after: float = ORPHAN_SECONDS


def archive(engine: Engine, settings: ArchiveSettings) -> Report:
    """Archive all sealed segments that are not archived yet; all tasks must see the directory.

    Each portion of segments is written, proven, committed and reported to the nodes before the next
    one begins, so a run of many hours that ends early keeps what it has proven.

    Raises:
        UsageError: There is no store, or the archive cannot be in that directory.
        SourceUnavailable: No node answers.
        CorruptionError: The archive's own manifest is damaged, or it is another store's.
        TaskError: A segment could not be read or written, or holds bytes that are not a record.
    """
    _require_place(settings.to, settings.path)
    place = ArchiveDir(settings.to)
    before = place.newest()
    source = unarchived(settings, before)
    written, nodes = list[Segment](), settings.notify or settings.servers
    done = ArchiveRun(source.group, before, written)
    with Lease(settings.to) as lease:
        try:
            for portion in portions(source.items, engine.at_once):
                proven = prove(engine, settings, lease.run, portion)
                after = place.commit(proven, lease.folder, source.cluster) if proven else before
                written += proven
                whole = ArchiveIntegrity(engine, settings.to, written)
                names = () if settings.silent else nodes
                told = notify(
                    names, done.group, after, whole.namable, place.newest, replace=settings.replace
                )
                done = replace(done, after=after, told=told, wrong=whole.wrong)
        except BaseException:
            discard(place, lease.run)
            raise
        # an apparent orphan may be the only copy of records that a node was notified of
        contrary = done.wrong or any(one.differs for one in done.told)
        orphans = 0 if contrary else collect(place, lease, settings.orphans_after)
    return _archived(settings, replace(done, orphans=orphans))


def _require_place(to: Path, store: Path | None) -> None:
    """Check that an archive may be in a directory, which need not exist.

    Raises:
        UsageError: It is not a directory, or is inside a store: removing that would remove both.
    """
    require_directory(to)
    root = to.resolve()
    inside = store is not None and store.resolve() in (root, *root.parents)
    if inside or is_store(root):
        text = f"{to} is inside a store, and an archive must outlive it"
        raise UsageError(text, hint="name another directory, best on another disk")


def portions(items: Sequence[Sealed], at_once: int) -> list[Sequence[Sealed]]:
    """Divide segments into portions that are committed together; one empty portion without items.

    Args:
        items: In the order of the log, so that what is archived grows without a hole.
        at_once: How many tasks the engine runs at one time.
    """
    size = max(PORTION_SEGMENTS, at_once)
    return [items[at : at + size] for at in range(0, max(len(items), 1), size)]


def prove(
    engine: Engine, settings: ArchiveSettings, run: str, items: Sequence[Sealed]
) -> list[Segment]:
    """Write segments and return them, read back and compared; nothing is committed.

    Raises:
        CorruptionError: What was written is not what the log is.
        TaskError: See `archive`.
    """
    work = partial(write_segment, to=str(settings.to), codec=settings.codec, run=run)
    written = engine.spread(work, items)
    # an operator may have deleted files: all files of the manifest must exist
    wrong = [text for segment in written if (text := missing(segment, settings.to))]
    if wrong:
        hint = "it was not committed; can this machine see what the tasks write?"
        raise CorruptionError(f"the archive is not what was written: {wrong[0]}", hint=hint)
    return written


@dataclass(frozen=True, slots=True)
class Unarchived:
    """The segments to archive, with their cluster ("" for a directory) and group."""

    cluster: str
    group: str
    items: Sequence[Sealed]


def unarchived(settings: ArchiveSettings, before: Manifest) -> Unarchived:
    """Return the segments that are sealed, old enough and not archived yet.

    Raises:
        CorruptionError: What is archived is not this log.
    """
    have = {(segment.group, segment.base) for segment in before.segments}
    if settings.path is not None:
        owner = _owner(settings, settings.path, before)
        other = changed_since(settings.path, before.of_group(settings.group))
        if other is not None:
            text = f"the log file at {other.base} differs from what was archived of it"
            hint = "it was archived while it was written, or is damaged: twinlog spark verify; "
            hint += "archive the store into another directory"
            raise CorruptionError(text, hint=hint, offset=other.base)
        found = of_directory(settings.path, settings.group)
        found = [item for item in found if (item.group, item.base) not in have]
        found = older_in_directory(settings.path, found, settings.older_than)
        return Unarchived(owner, settings.group, found)
    access = NodeAccess(settings.servers, settings.read_from, STALENESS_SECONDS)
    with Cluster(access) as cluster:
        before.require(cluster.name, "the nodes are of")
        found = [s for s in cluster.sealed() if (s.group, s.base) not in have]
        found = cluster.older(found, settings.older_than)
        contrary = cluster.contradicts(before.of_group(cluster.group)) if found else None
        if contrary is not None:
            text = f"the nodes' log at {contrary.base} differs from what was archived of it"
            hint = "the archive is of another log: archive this one into another directory"
            raise CorruptionError(text, hint=hint, offset=contrary.base)
        return Unarchived(cluster.name, cluster.group, found)


def _owner(settings: ArchiveSettings, path: Path, before: Manifest) -> str:
    """Return the name of the cluster that a directory belongs to; empty if unknown.

    Raises:
        UsageError: It belongs to another group.
        CorruptionError: The archive is another cluster's.
    """
    owner = owner_of(path)
    if owner is None:
        return ""
    if owner.group != settings.group:
        text = f"{path} belongs to the group {owner.group!r}, not to {settings.group!r}"
        raise UsageError(text, hint=f"name its group: --group {owner.group}")
    before.require(owner.cluster, f"{path} is of")
    return owner.cluster


@dataclass(frozen=True, slots=True)
class ArchiveRun:
    """The result of a run of the archiver."""

    group: str
    after: Manifest
    written: Sequence[Segment]
    orphans: int = 0
    told: Sequence[Notified] = ()
    wrong: Sequence[tuple[Segment, str]] = ()


def discard(place: ArchiveDir, run: str) -> None:
    """Remove the files of a run that ended early, if this machine sees them.

    The run may have ended right after its commit, so files in the newest manifest stay.
    """
    named = place.newest().files()
    for path in place.root.rglob(f"*-{run}-*"):
        if path.relative_to(place.root).as_posix() not in named:
            path.unlink(missing_ok=True)


def _archived(settings: ArchiveSettings, done: ArchiveRun) -> Report:
    ours = {(segment.group, segment.base): segment for segment in done.after.segments}
    new = [s for s in done.written if ours.get((s.group, s.base)) == s]
    rows: list[tuple[Value, ...]] = [
        (s.base, s.end, s.records, sum(f.bytes for f in s.files), len(s.files), s.sha256)
        for s in new
    ]
    stored, held = sum(s.end - s.base for s in new), sum(int(str(row[3])) for row in rows)
    covered = done.after.covered(done.group)
    fields: dict[str, Value | Sequence[Value] | Mapping[str, Value]] = {
        "archive": str(settings.to),
        "id": done.after.id or None,
        "group": done.group,
        "manifest": done.after.number,
        "segments_added": len(new),
        "records": sum(s.records for s in new),
        "log_bytes": stored,
        "archive_bytes": held,
        "covered_start": covered[0] if covered else None,
        "covered_end": covered[1] if covered else None,
        "orphans_removed": done.orphans,
    }
    ratio = f", {stored / held:.1f} to 1" if held else ""
    head = f"{settings.to} · {len(new)} segments added{ratio} · manifest {done.after.number}"
    tables = {"segments": Rows("START> END> RECORDS> BYTES> FILES> SHA256", rows)}
    if done.told:
        told = [(one.node, one.archived, one.state) for one in done.told]
        tables["told"] = Rows("NODE ARCHIVED> STATE", told)
    gaps = done.after.holes(done.group)
    if gaps:
        tables["missing"] = Rows("START> END>", gaps)
        head += f" · {not_there(gaps)}"
    if done.wrong:
        wrong: list[tuple[Value, ...]] = [(s.base, s.end, text) for s, text in done.wrong]
        tables["damaged"] = Rows("START> END> STATE", wrong)
        head += f" · {len(wrong)} segments damaged, nodes not notified from offset {wrong[0][0]}"
    differ = any(one.differs for one in done.told)
    verdict = Verdict.UNDECIDED if any(one.other for one in done.told) else Verdict.FINE
    verdict = Verdict.DAMAGED if differ or done.wrong else verdict
    return Report("SparkArchive", head, fields, tables, verdict)

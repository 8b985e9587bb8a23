"""archive and restore: jobs that move sealed segments to Parquet files and back.

archive: the sealed segments of a store that the archive does not have are written, each by one
task, which then reads its files back, makes the bytes again and compares them with the log file;
only when that is done for every segment of a portion, the manifest that names them is created. Then
the archive's files are looked at once more (`archive.proof`), and the nodes are told what is whole
(`archive.telling`). A run that ends early leaves the archive as its last commit made it, and no
file besides (`archive.lease`).

The store is a directory, or a cluster whose nodes each task asks itself (`archive.sources`).

restore: segments back into log files, byte for byte, with their batch indexes.

Offsets are log offsets in bytes, times seconds unless they say ms.

Not here: who may delete what (``storage.retention``); reading archived rows (`archive.view`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from twinlog.errors import CorruptionError, UsageError
from twinlog.spark.archive.lease import Lease, collect
from twinlog.spark.archive.manifest import ArchivedFile, Manifest, Segment
from twinlog.spark.archive.place import (
    ORPHAN_SECONDS,
    Place,
    sha256_of,
    sync_directory,
    sync_file,
)
from twinlog.spark.archive.proof import Whole, missing
from twinlog.spark.archive.scan import Sealed
from twinlog.spark.archive.sources import (
    STALENESS_SECONDS,
    Cluster,
    changed_since,
    of_directory,
    older_in_directory,
)
from twinlog.spark.archive.telling import Told, tell
from twinlog.spark.archive.writing import (
    COPY,
    Codec,
    check_segment,
    segment_bytes,
    write_segment,
)
from twinlog.spark.asking import Asking
from twinlog.spark.jobs.building import building
from twinlog.spark.jobs.engine import Engine
from twinlog.spark.jobs.report import Report, Rows, Value, Verdict
from twinlog.store_files import FileSeries, is_store
from twinlog.store_owner import owner_of

PORTION_SEGMENTS = 16
"""Segments of one commit at least: a minute or two of work, lost when a run ends early."""


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """What to archive and where to.

    Attributes:
        path: The store; a slave's serves as well as the master's. None: ``servers`` are asked.
        to: Directory of the archive.
        group: Group the directory belongs to; a cluster says itself.
        servers: Addresses of a cluster's nodes.
        read_from: Which of them: ``slave`` (then the master), ``any``, ``master``, a node's name.
        tell: Nodes that are told what the archive has; without any, those of ``servers``.
        silent: No node is told.
        replace: For the nodes this archive counts from now on, whatever one has counted so far.
        codec: Of the Parquet files.
        older_than: Only segments whose newest record is so old, seconds.
        orphans_after: Files of runs that gave no sign for so long are removed, seconds.
    """

    path: Path | None
    to: Path
    group: str = "g1"
    servers: tuple[str, ...] = ()
    read_from: str = "slave"
    tell: tuple[str, ...] = ()
    silent: bool = False
    replace: bool = False
    codec: Codec = field(default_factory=Codec)
    older_than: float = 0.0
    orphans_after: float = ORPHAN_SECONDS


def archive(engine: Engine, settings: ArchiveSettings) -> Report:
    """Archive what is sealed and not archived yet; every task must see the archive's directory.

    A portion of segments is written, proven, committed and told before the next one is begun, so a
    run of many hours that ends early keeps what it has proven.

    Raises:
        UsageError: There is no store, or the archive's place is none.
        SourceUnavailable: No node answers.
        CorruptionError: The archive's own manifest is damaged, or it is another store's.
        TaskError: A segment could not be read or written, or holds something that is no record.
    """
    _require_place(settings.to, settings.path)
    place = Place(settings.to)
    before = place.newest()
    source = unarchived(settings, before)
    written, nodes = list[Segment](), settings.tell or settings.servers
    done = Outcome(source.group, before, written)
    with Lease(settings.to) as lease:
        try:
            for portion in portions(source.items, engine.at_once):
                proven = prove(engine, settings, lease.run, portion)
                after = place.commit(proven, lease.folder, source.cluster) if proven else before
                written += proven
                whole = Whole(engine, settings.to, written)
                names = () if settings.silent else nodes
                told = tell(
                    names, done.group, after, whole.namable, place.newest, replace=settings.replace
                )
                done = replace(done, after=after, told=told, wrong=whole.wrong)
        except BaseException:
            discard(place, lease.run)
            raise
        # what looks like an orphan may be all there is of what a node was told
        contrary = done.wrong or any(one.differs for one in done.told)
        orphans = 0 if contrary else collect(place, lease, settings.orphans_after)
    return _archived(settings, replace(done, orphans=orphans))


def _require_place(to: Path, store: Path | None) -> None:
    """Do nothing when an archive may lie in a directory, which need not exist.

    Raises:
        UsageError: It is no directory, or belongs to a store: who removes that takes both.
    """
    _require_directory(to)
    root = to.resolve()
    inside = store is not None and store.resolve() in (root, *root.parents)
    if inside or is_store(root):
        text = f"{to} lies in a store, which an archive is to outlive"
        raise UsageError(text, hint="name another directory, best on another disk")


def _require_directory(path: Path) -> None:
    if not path.is_dir() and (path.exists() or path.is_symlink()):
        hint = "name a directory, or one that does not exist yet"
        raise UsageError(f"{path} is no directory", code="exists", hint=hint)


def portions(items: Sequence[Sealed], at_once: int) -> list[Sequence[Sealed]]:
    """Divide what is to be archived into what is committed together; one portion without items.

    Args:
        items: In the order of the log, so that what is archived grows without a hole.
        at_once: How many the engine can make good use of.
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
    # somebody may clean up by hand: what is named must be there
    wrong = [text for segment in written if (text := missing(segment, settings.to))]
    if wrong:
        hint = "it was not committed; can this machine see what the tasks write?"
        raise CorruptionError(f"the archive is not what was written: {wrong[0]}", hint=hint)
    return written


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be archived: of which cluster ("" for a directory) and group, which segments."""

    cluster: str
    group: str
    items: Sequence[Sealed]


def unarchived(settings: ArchiveSettings, before: Manifest) -> Source:
    """Return the segments that are sealed, old enough and not archived yet.

    Raises:
        CorruptionError: What is archived is not this log.
    """
    have = {(segment.group, segment.base) for segment in before.segments}
    if settings.path is not None:
        owner = _owner(settings, settings.path, before)
        other = changed_since(settings.path, before.of_group(settings.group))
        if other is not None:
            text = f"the log file at {other.base} is not what was archived of it"
            hint = "it was archived while it was written, or is damaged: twinlog spark verify; "
            hint += "archive the store into another directory"
            raise CorruptionError(text, hint=hint, offset=other.base)
        found = of_directory(settings.path, settings.group)
        found = [item for item in found if (item.group, item.base) not in have]
        found = older_in_directory(settings.path, found, settings.older_than)
        return Source(owner, settings.group, found)
    asking = Asking(settings.servers, settings.read_from, STALENESS_SECONDS)
    with Cluster(asking) as cluster:
        before.require(cluster.name, "the nodes are of")
        found = [s for s in cluster.sealed() if (s.group, s.base) not in have]
        found = cluster.older(found, settings.older_than)
        contrary = cluster.contradicts(before.of_group(cluster.group)) if found else None
        if contrary is not None:
            text = f"what the nodes have at {contrary.base} is not what was archived of it"
            hint = "the archive is of another log: archive this one into another directory"
            raise CorruptionError(text, hint=hint, offset=contrary.base)
        return Source(cluster.name, cluster.group, found)


def _owner(settings: ArchiveSettings, path: Path, before: Manifest) -> str:
    """Return the name of the cluster that a directory belongs to; empty where nothing says it.

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
class Outcome:
    """What a run of the archiver did."""

    group: str
    after: Manifest
    written: Sequence[Segment]
    orphans: int = 0
    told: Sequence[Told] = ()
    wrong: Sequence[tuple[Segment, str]] = ()


def discard(place: Place, run: str) -> None:
    """Remove the files of a run that ended early, as far as this machine sees them.

    The run may have ended right after its commit, so what the newest manifest names stays.
    """
    named = place.newest().files()
    for path in place.root.rglob(f"*-{run}-*"):
        if path.relative_to(place.root).as_posix() not in named:
            path.unlink(missing_ok=True)


def _archived(settings: ArchiveSettings, done: Outcome) -> Report:
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
        head += f" · {len(wrong)} segments damaged, nothing told from {wrong[0][0]} on"
    differ = any(one.differs for one in done.told)
    verdict = Verdict.UNDECIDED if any(one.other for one in done.told) else Verdict.FINE
    verdict = Verdict.DAMAGED if differ or done.wrong else verdict
    return Report("SparkArchive", head, fields, tables, verdict)


def not_there(gaps: Sequence[tuple[int, int]]) -> str:
    """Return the words for holes between segments.

    >>> not_there([(4096, 8192), (12288, 16384)])
    'missing: offsets 4096..8192 and 1 more hole'
    """
    more = len(gaps) - 1
    rest = f" and {more} more hole{'s' * (more > 1)}" if more else ""
    return f"missing: offsets {gaps[0][0]}..{gaps[0][1]}{rest}"


# ── restore ─────────────────────────────────────────────────────────────────────────────────────


LAST = 1 << 62
"""A log offset behind every log's end."""


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """What to restore.

    Attributes:
        archive: Directory of the archive.
        to: Directory of the store that is made.
        group: Whose segments.
        start: First log offset wanted; -1: where the archive begins.
        end: Log offset after the last one wanted; `LAST`: where it ends.
        check: Only look whether the archive is whole; write nothing.
    """

    archive: Path
    to: Path | None
    group: str = "g1"
    start: int = -1
    end: int = LAST
    check: bool = False


def restore(engine: Engine, settings: RestoreSettings) -> Report:
    """Write archived segments as log files again, or check that they are whole.

    A log file that is there already and has the same bytes counts; another one is an error. All of
    it appears when it is whole: a run that ends early leaves ``to`` as it was. A store that is
    there is locked meanwhile, and must be of the same cluster and group where it says so.

    Raises:
        UsageError: The archive has nothing of the group in that range, no target is named, or the
            target cannot be one: a file, a store of another group, one that a node runs on.
        CorruptionError: The manifest is damaged, a segment is not whole (nothing is written), or
            the store that is there is another cluster's.
        TaskError: A file could not be read or written.
    """
    manifest = Place(settings.archive).newest()
    segments = [
        segment
        for segment in manifest.of_group(settings.group)
        if segment.end > settings.start and segment.base < settings.end
    ]
    if not segments:
        known = sorted({segment.group for segment in manifest.segments})
        hint = f"it has {', '.join(known)}" if known else "it is empty"
        text = f"the archive {settings.archive} has nothing of {settings.group} in that range"
        raise UsageError(text, code="not-archived", hint=hint)
    spans = [(segment.base, segment.end) for segment in segments]
    if settings.check:
        wrong = engine.spread(partial(check_segment, root=str(settings.archive)), segments)
        return _restored(settings, segments, wrong, _gaps(settings, spans))
    if settings.to is None:
        raise UsageError("restoring needs a directory", hint="name it: --to DIRECTORY")
    _require_target(settings.to, settings.group, manifest)
    with _locked(settings.to), building(settings.to) as aside:
        for folder in RESTORED:
            (aside / folder).mkdir(parents=True)
        work = partial(
            restore_segment, root=str(settings.archive), aside=str(aside), to=str(settings.to)
        )
        wrong = engine.spread(work, segments)
        _appear(aside, settings.to)
    spans += [(file.start, file.end) for file in FileSeries(settings.to / "commitlog").files]
    return _restored(settings, segments, wrong, _gaps(settings, spans))


def _gaps(settings: RestoreSettings, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the log offsets that are wanted, and that none of ``spans`` has."""
    held = sorted(spans)
    at = held[0][0] if settings.start < 0 else settings.start
    end = max(end for _, end in held) if settings.end == LAST else settings.end
    found: list[tuple[int, int]] = []
    for start, stop in [*held, (end, end)]:
        if at < min(start, end):
            found.append((at, min(start, end)))
        at = max(at, stop)
    return found


def _require_target(to: Path, group: str, manifest: Manifest) -> None:
    """Do nothing when log files may be restored into a directory, which need not exist.

    Raises:
        UsageError: It is none, or a store of another group.
        CorruptionError: It is a store of another cluster.
    """
    for path in (to, *(to / name for name in ("commitlog", "twinlog", RESTORED[0]))):
        _require_directory(path)
    if to == to.parent:
        raise UsageError(f"{to} is no place for a store", hint="name a directory in it")
    owner = owner_of(to)
    if owner is not None:
        if owner.group != group:
            text = f"{to} belongs to the group {owner.group!r}, not to {group!r}"
            raise UsageError(text, hint="restore into an empty directory")
        manifest.require(owner.cluster, f"{to} is of")


@contextmanager
def _locked(to: Path) -> Generator[None]:
    """Hold the lock of a store that is there already, as a node does; nothing where there is none.

    Nobody in this process may open the file meanwhile: closing it would drop the lock.

    Raises:
        UsageError: A node runs on it.
    """
    try:
        fd = os.open(to / "lock", os.O_RDWR)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError:
            hint = "stop it, or restore into an empty directory"
            raise UsageError(f"a node runs on {to}", code="directory-in-use", hint=hint) from None
        yield
    finally:
        os.close(fd)


RESTORED = ("twinlog/batches", "commitlog")
"""Directories of a store that are restored; a log file comes after its batch index."""


def _appear(aside: Path, to: Path) -> None:
    """Give what was restored its place: at once, or in a store that is there file by file.

    Of a log the files come in its order, so that whatever ends this leaves no hole.
    """
    for path in aside.glob("*/**/.*"):  # of attempts that died
        path.unlink()
    if not any((aside / RESTORED[0]).iterdir()):  # a store of RocketMQ's
        shutil.rmtree(aside / "twinlog")
    if not to.exists():
        aside.rename(to)
        sync_directory(to.parent)
        return
    for name in RESTORED:
        folder = to / name
        for path in sorted((aside / name).glob("*")):
            folder.mkdir(parents=True, exist_ok=True)
            path.replace(folder / path.name)
        if folder.is_dir():
            sync_directory(folder)


def restore_segment(segment: Segment, root: str, aside: str, to: str) -> str:
    """Write one segment into ``aside``, and return ""; one that ``to`` has already is left out.

    Raises:
        CorruptionError: The archive does not hold the segment's bytes.
        UsageError: Another file is in the way.
    """
    name = f"{segment.base:020d}"
    for file in segment.files:
        if file.kind == "batches":
            _restore_batches(Path(root), file, Path(aside), segment)
    there = Path(to) / "commitlog" / name
    if there.exists():
        if _same(there, segment):
            return ""
        hint = "restore into an empty directory"
        raise UsageError(f"another file is in the way: {there}", code="exists", hint=hint)
    target = Path(aside) / "commitlog" / name
    part = target.with_name(f".{name}.{uuid.uuid4().hex}")
    digest = hashlib.sha256()
    with part.open("xb") as out:
        for data in segment_bytes(segment, Path(root)):
            digest.update(data)
            out.write(data)
    if digest.hexdigest() != segment.sha256:
        text = f"segment {segment.base} made again has another SHA-256"
        raise CorruptionError(text, offset=segment.base)
    sync_file(part)
    part.replace(target)
    sync_directory(target.parent)
    return ""


def _same(target: Path, segment: Segment) -> bool:
    return sha256_of(target) == segment.sha256


def _restore_batches(root: Path, file: ArchivedFile, to: Path, segment: Segment) -> None:
    folder, source = to / RESTORED[0], root / file.path
    part = folder / f".{segment.base:020d}.{uuid.uuid4().hex}"
    try:
        data = source.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise CorruptionError(f"{source} is gone", file=str(source), hint=COPY) from None
    if hashlib.sha256(data).hexdigest() != file.sha256:
        text = f"{source} is not what was written"
        raise CorruptionError(text, file=str(source), hint=COPY)
    part.write_bytes(data)
    sync_file(part)
    part.replace(folder / f"{segment.base:020d}")
    sync_directory(folder)


def _restored(
    settings: RestoreSettings,
    segments: Sequence[Segment],
    wrong: Sequence[str],
    gaps: Sequence[tuple[int, int]],
) -> Report:
    rows: list[tuple[Value, ...]] = [
        (s.base, s.end, s.records, text or "whole") for s, text in zip(segments, wrong, strict=True)
    ]
    bad = sum(1 for text in wrong if text)
    fields: dict[str, Value | Sequence[Value] | Mapping[str, Value]] = {
        "archive": str(settings.archive),
        "to": str(settings.to) if settings.to else None,
        "segments": len(segments),
        "records": sum(s.records for s in segments),
        "wrong": bad,
        "missing_bytes": sum(b - a for a, b in gaps),
    }
    done = "whole" if settings.check else f"restored to {settings.to}"
    word = (
        f"{bad} of {len(segments)} segments damaged" if bad else f"{len(segments)} segments {done}"
    )
    verdict = Verdict.NO if gaps else Verdict.FINE
    verdict = Verdict.DAMAGED if bad else verdict
    tables = {"restored": Rows("START> END> RECORDS> STATE", rows)}
    if gaps:
        tables["missing"] = Rows("START> END>", gaps)
        word += f" · {not_there(gaps)}"
    return Report("SparkRestore", f"{settings.archive} · {word}", fields, tables, verdict)

"""archive and restore: jobs that move sealed segments to Parquet files and back.

archive: the sealed segments of a store that the archive does not have are written, each by one
task; then every one is read back, made into bytes again and compared with the log file; only then
the manifest that names them is created. A run that ends early leaves the archive as it was.

A segment is sealed when it will never change: another one follows it, and in a store of ours all of
it is confirmed.

restore: segments back into log files, byte for byte, with their batch indexes.

Offsets are log offsets in bytes, times seconds unless they say ms.

Not here: who may delete what (``storage.retention``); reading archived rows (`archive.reading`).
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from twinlog.errors import CorruptionError, UsageError
from twinlog.spark.archive.manifest import Manifest, Segment
from twinlog.spark.archive.place import (
    ORPHAN_SECONDS,
    Place,
    sha256_of,
    sync_directory,
    sync_file,
)
from twinlog.spark.archive.writing import (
    Codec,
    Sealed,
    check_segment,
    segment_bytes,
    write_segment,
)
from twinlog.spark.jobs.engine import Engine
from twinlog.spark.jobs.report import Report, Rows, Value, Verdict
from twinlog.store_log import Run, TwinLog
from twinlog.store_reader import StoreReader


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """What to archive and where to.

    Attributes:
        path: The store; a slave's serves as well as the master's.
        to: Directory of the archive.
        group: Group the store belongs to.
        codec: Of the Parquet files.
        older_than: Only segments whose newest record is so old, seconds.
        orphans_after: Files that no manifest names are removed at this age, seconds.
    """

    path: Path
    to: Path
    group: str = "g1"
    codec: Codec = field(default_factory=Codec)
    older_than: float = 0.0
    orphans_after: float = ORPHAN_SECONDS


def archive(engine: Engine, settings: ArchiveSettings) -> Report:
    """Archive what is sealed and not archived yet; every task must see both directories.

    Raises:
        UsageError: There is no store.
        CorruptionError: The archive's own manifest is damaged.
        TaskError: A segment could not be written or holds something that is no record.
    """
    place = Place(settings.to)
    before = place.newest()
    items = wanted(sealed_segments(settings), before, settings)
    run = uuid.uuid4().hex[:12]
    try:
        work = partial(write_segment, to=str(settings.to), codec=settings.codec, run=run)
        written = engine.spread(work, items)
        check = engine.spread(partial(check_segment, root=str(settings.to)), written)
        wrong = [text for text in check if text]
        if wrong:
            hint = "nothing was committed; look at the log: twinlog spark verify"
            raise CorruptionError(f"the archive is not what the log is: {wrong[0]}", hint=hint)
        after = place.commit(written) if written else before
    except BaseException:
        discard(place, run)
        raise
    orphans = place.orphans(older_than=settings.orphans_after)
    for path in orphans:
        path.unlink(missing_ok=True)
    return _archived(settings, after, written, len(orphans))


def discard(place: Place, run: str) -> None:
    """Remove the files of a run that ended early, as far as this machine sees them.

    The run may have ended right after its commit, so what the newest manifest names stays.
    """
    named = place.newest().files()
    for path in place.root.rglob(f"*-{run}-*"):
        if path.relative_to(place.root).as_posix() not in named:
            path.unlink(missing_ok=True)


def sealed_segments(settings: ArchiveSettings) -> list[Sealed]:
    """Return the log files of a store that will never change."""
    with StoreReader(settings.path) as store:
        epochs = store.epochs()
        limit = store.marks.confirm if store.ours and store.marks.live else store.series.end
        found: list[Sealed] = []
        for file, following in zip(store.series.files, store.series.files[1:], strict=False):
            if file.end > limit or file.end != following.start:
                continue
            if isinstance(store.log, TwinLog) and not _tiled(store.log, file.start, file.end):
                continue
            starts = [start for _, start in epochs]
            own = [
                (epoch, start)
                for i, (epoch, start) in enumerate(epochs)
                if start < file.end and (i + 1 == len(epochs) or starts[i + 1] > file.start)
            ]
            root, name = str(store.root), file.path.name
            found.append(Sealed(root, settings.group, name, file.start, file.end, own, store.ours))
        return found


def _tiled(log: TwinLog, start: int, end: int) -> bool:
    """Whether good batch index entries cover a whole file."""
    at = start
    for _, entry in log.entries.get(start, ()):
        if entry is None or entry.start != at:
            return False
        at = entry.end
    return at == end


def wanted(sealed: Sequence[Sealed], manifest: Manifest, settings: ArchiveSettings) -> list[Sealed]:
    """Return the segments that are not archived yet and old enough."""
    have = {(segment.group, segment.base) for segment in manifest.segments}
    new = [item for item in sealed if (item.group, item.base) not in have]
    if not settings.older_than:
        return new
    limit = (time.time() - settings.older_than) * 1000
    with StoreReader(settings.path) as store:
        times = {
            run.file.start: store.last_timestamp(run)
            for item in new
            for run in store.pieces(item.base, item.end)
            if isinstance(run, Run)
        }
    return [item for item in new if times.get(item.base, 0) <= limit]


def _archived(
    settings: ArchiveSettings, after: Manifest, written: Sequence[Segment], orphans: int
) -> Report:
    ours = {(segment.group, segment.base): segment for segment in after.segments}
    new = [s for s in written if ours.get((s.group, s.base)) == s]
    rows: list[tuple[Value, ...]] = [
        (s.base, s.end, s.records, sum(f.bytes for f in s.files), len(s.files), s.sha256)
        for s in new
    ]
    stored, held = sum(s.end - s.base for s in new), sum(int(str(row[3])) for row in rows)
    covered = after.covered(settings.group)
    fields: dict[str, Value | Sequence[Value] | Mapping[str, Value]] = {
        "archive": str(settings.to),
        "manifest": after.number,
        "segments_added": len(new),
        "records": sum(s.records for s in new),
        "log_bytes": stored,
        "archive_bytes": held,
        "covered_start": covered[0] if covered else None,
        "covered_end": covered[1] if covered else None,
        "orphans_removed": orphans,
    }
    ratio = f", {stored / held:.1f} to 1" if held else ""
    head = f"{settings.to} · {len(new)} segments added{ratio} · manifest {after.number}"
    headers = "START> END> RECORDS> BYTES> FILES> SHA256"
    return Report("SparkArchive", head, fields, {"segments": Rows(headers, rows)})


# ── restore ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """What to restore.

    Attributes:
        archive: Directory of the archive.
        to: Directory of the store that is made.
        group: Whose segments.
        start: First log offset wanted.
        end: Log offset after the last one wanted.
        check: Only look whether the archive is whole; write nothing.
    """

    archive: Path
    to: Path | None
    group: str = "g1"
    start: int = 0
    end: int = 1 << 62
    check: bool = False


def restore(engine: Engine, settings: RestoreSettings) -> Report:
    """Write archived segments as log files again, or check that they are whole.

    A log file that is there already and has the same bytes is left; another one is an error.

    Raises:
        UsageError: The archive has nothing of the group in that range, or no target is named.
        CorruptionError: The manifest is damaged.
        TaskError: A file in the way, or a segment that is not whole (nothing of it is written).
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
    if settings.check:
        wrong = engine.spread(partial(check_segment, root=str(settings.archive)), segments)
        return _restored(settings, segments, wrong)
    if settings.to is None:
        raise UsageError("restoring needs a directory", hint="name it: --to DIRECTORY")
    work = partial(restore_segment, root=str(settings.archive), to=str(settings.to))
    return _restored(settings, segments, engine.spread(work, segments))


def restore_segment(segment: Segment, root: str, to: str) -> str:
    """Write one segment, and return ""; the same again changes nothing.

    Raises:
        CorruptionError: The archive does not hold the segment's bytes; nothing is left behind.
        UsageError: Another file is in the way.
    """
    folder = Path(to) / "commitlog"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{segment.base:020d}"
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    digest = hashlib.sha256()
    try:
        with aside.open("xb") as out:
            for data in segment_bytes(segment, Path(root)):
                digest.update(data)
                out.write(data)
        if digest.hexdigest() != segment.sha256:
            text = f"segment {segment.base} made again has another SHA-256"
            raise CorruptionError(text, offset=segment.base)
        if target.exists() and not _same(target, segment):
            hint = "restore into an empty directory"
            raise UsageError(f"another file is in the way: {target}", code="exists", hint=hint)
        sync_file(aside)
        for file in segment.files:
            if file.kind == "batches":
                _restore_batches(Path(root) / file.path, Path(to), segment)
        aside.replace(target)
        sync_directory(folder)
    finally:
        aside.unlink(missing_ok=True)
    return ""


def _same(target: Path, segment: Segment) -> bool:
    return sha256_of(target) == segment.sha256


def _restore_batches(source: Path, to: Path, segment: Segment) -> None:
    folder = to / "twinlog" / "batches"
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{segment.base:020d}.{uuid.uuid4().hex}"
    aside.write_bytes(source.read_bytes())
    sync_file(aside)
    aside.replace(folder / f"{segment.base:020d}")
    sync_directory(folder)


def _restored(
    settings: RestoreSettings, segments: Sequence[Segment], wrong: Sequence[str]
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
    }
    done = "whole" if settings.check else f"restored to {settings.to}"
    word = (
        f"{bad} of {len(segments)} segments damaged" if bad else f"{len(segments)} segments {done}"
    )
    verdict = Verdict.DAMAGED if bad else Verdict.FINE
    tables = {"restored": Rows("START> END> RECORDS> STATE", rows)}
    return Report("SparkRestore", f"{settings.archive} · {word}", fields, tables, verdict)

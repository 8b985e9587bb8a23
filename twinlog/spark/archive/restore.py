"""restore: archived segments back into log files, byte for byte, with their batch indexes.

The result appears only when it is complete; an existing store is locked meanwhile.

Offsets are log offsets in bytes.

Not here: archiving (`twinlog.spark.archive.job`), queues and indexes of the restored log
(`twinlog.spark.jobs.rebuild`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from twinlog.errors import CorruptionError, UsageError
from twinlog.spark.archive.archive_dir import (
    ArchiveDir,
    require_directory,
    sha256_of,
    sync_directory,
    sync_file,
)
from twinlog.spark.archive.integrity import not_there
from twinlog.spark.archive.manifest import ArchivedFile, Manifest, Segment
from twinlog.spark.archive.writing import COPY, check_segment, segment_bytes
from twinlog.spark.engine.atomic_output import building
from twinlog.spark.engine.engine import Engine
from twinlog.spark.engine.report import Report, Rows, Value, Verdict
from twinlog.store.files import FileSeries
from twinlog.store.marks import owner_of

LAST = 1 << 62
"""A log offset after the end of every log."""


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """What to restore.

    Attributes:
        archive: Directory of the archive.
        to: Directory of the store that is created.
        group: Name of the group whose segments are restored.
        start: First log offset wanted; -1: where the archive begins.
        end: Log offset after the last one wanted; `LAST`: where it ends.
        check: Only check that the archive is intact; write nothing.
    """

    archive: Path
    to: Path | None
    group: str = "g1"
    start: int = -1
    end: int = LAST
    check: bool = False


def restore(engine: Engine, settings: RestoreSettings) -> Report:
    """Write archived segments as log files again, or check that they are intact.

    An existing log file with the same bytes is kept; a different one is an error. The result
    appears only when it is complete: a run that ends early leaves ``to`` unchanged. An existing
    store is locked meanwhile, and must be of the same cluster and group, if it names them.

    Raises:
        UsageError: The archive has nothing of the group in that range, no target is named, or the
            target cannot be one: a file, a store of another group, one that a node runs on.
        CorruptionError: The manifest is damaged, a segment is not whole (nothing is written), or
            the store that is there is another cluster's.
        TaskError: A file could not be read or written.
    """
    manifest = ArchiveDir(settings.archive).newest()
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
    """Return the wanted log offsets that are in none of ``spans``."""
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
    """Check that log files may be restored into a directory, which need not exist.

    Raises:
        UsageError: It is not a directory, or a store of another group.
        CorruptionError: It is a store of another cluster.
    """
    for path in (to, *(to / name for name in ("commitlog", "twinlog", RESTORED[0]))):
        require_directory(path)
    if to == to.parent:
        raise UsageError(f"{to} cannot hold a store", hint="name a directory in it")
    owner = owner_of(to)
    if owner is not None:
        if owner.group != group:
            text = f"{to} belongs to the group {owner.group!r}, not to {group!r}"
            raise UsageError(text, hint="restore into an empty directory")
        manifest.require(owner.cluster, f"{to} is of")


@contextmanager
def _locked(to: Path) -> Generator[None]:
    """Hold the lock of an existing store, as a node does; do nothing without one.

    No other code of this process may open the file meanwhile: closing it would drop the lock.

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
    """Move the restored files into place: at once, or file by file into an existing store.

    Log files are moved in order, so that an interruption leaves no hole.
    """
    for path in aside.glob("*/**/.*"):  # of attempts that died
        path.unlink()
    if not any((aside / RESTORED[0]).iterdir()):  # a RocketMQ store
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
        text = f"segment {segment.base} rebuilt has another SHA-256"
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
        raise CorruptionError(f"{source} is missing", file=str(source), hint=COPY) from None
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

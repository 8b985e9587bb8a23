"""rebuild: queue files and key index again from the log, byte for byte as RocketMQ makes them.

Nothing is touched until all is built: into ``--to``, or beside the old directories, which are then
exchanged by rename. A rebuild in place holds the node's lock to its end. What is built must be all
that the log holds: damage in it, a batch index that does not hold together, and a queue that would
become shorter than what its records say end the run, and the store stays as it was.

Each run builds in a directory of its own, ``rebuilt.*.building`` or ``TO.*.building``. What a run
left that was killed may be removed; a later one in place removes it after a day.

Offsets are log offsets in bytes unless called queue offsets.

Not here: how queue files (`twinlog.spark.jobs.rebuild.queues`) and index files
(`twinlog.spark.jobs.rebuild.key_index`) are made.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from twinlog.errors import UsageError
from twinlog.spark.directory.log_ranges import SPLIT_BYTES, plan
from twinlog.spark.engine.atomic_output import drop
from twinlog.spark.engine.engine import Engine
from twinlog.spark.engine.report import Report, Rows, Value, Verdict
from twinlog.spark.jobs.rebuild.key_index import build_index, index_differences
from twinlog.spark.jobs.rebuild.queues import Key, build_queues, queue_differences, queue_rows
from twinlog.store.files import store_root

FINDINGS_SHOWN = 20
LEFT_SECONDS = 24 * 3600.0
"""Age at which the files of a killed run are removed: no run takes this long."""


@dataclass(frozen=True, slots=True)
class RebuildSettings:
    """What to rebuild and where.

    Attributes:
        path: The store.
        queues: Whether queue files are built.
        index: Whether the key index is.
        to: Directory for the result; None: in place.
        check: Compare with what is there and keep nothing.
    """

    path: Path
    queues: bool = True
    index: bool = True
    to: Path | None = None
    check: bool = False
    split_bytes: int = SPLIT_BYTES


def run(engine: Engine, settings: RebuildSettings) -> Report:
    """Rebuild queues and index of a store directory.

    Raises:
        UsageError: There is no store, or ``to`` exists already, or a node runs on it (code
            ``directory-in-use``).
        CorruptionError: The log itself does not hold together.
    """
    # Tasks have a working directory of their own.
    to = None if settings.to is None else settings.to.absolute()
    settings = replace(settings, path=settings.path.absolute(), to=to)
    root = store_root(settings.path)
    if to is not None and to.exists():
        hint = "name a directory that does not exist, or remove this one"
        raise UsageError(f"{to} exists already", code="exists", hint=hint)
    base = to or root / "rebuilt"
    target = base.with_name(f"{base.name}.{uuid.uuid4().hex[:12]}.building")
    with _locked(root, wanted=to is None and not settings.check) as held:
        if held:
            _tidy(root)
        target.mkdir(parents=True)
        try:
            return _build(engine, settings, target, held=held)
        finally:
            drop(target)


def _tidy(root: Path) -> None:
    """Remove what runs left that were killed; a run beside this one may still build."""
    for path in root.glob("rebuilt.*building"):
        if time.time() - path.stat().st_mtime > LEFT_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _build(engine: Engine, settings: RebuildSettings, target: Path, *, held: bool) -> Report:
    cut = plan(settings.path, settings.split_bytes, probe=not held)
    cut.complete()
    root = store_root(settings.path)
    rows: list[tuple[Value, ...]] = []
    odd: list[Key] = []
    if settings.queues:
        wrote, odd = build_queues(engine, root, cut.splits, target / "consumequeue")
        rows = queue_rows(wrote)
    images = 0
    if settings.index:
        images = build_index(engine, root, cut.splits, target / "index")
    if settings.check:
        return _checked(settings, target, rows, images)
    if settings.to is None:
        for name in [name for name, on in _wanted(settings) if on]:
            exchange(root / name, target / name)
    else:
        target.rename(settings.to)
    return _report(settings, rows, images, odd)


def _wanted(settings: RebuildSettings) -> list[tuple[str, bool]]:
    return [("consumequeue", settings.queues), ("index", settings.index)]


def exchange(old: Path, new: Path) -> None:
    """Put ``new`` in the place of ``old``; at every moment one of them is complete on the disk."""
    aside = old.with_name(f"{old.name}.before")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        if old.exists():
            old.rename(aside)
        new.rename(old)
    except BaseException:  # Ctrl-C, too: a store without its queues is not a store
        if aside.exists() and not old.exists():
            aside.rename(old)
        raise
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _locked(root: Path, *, wanted: bool) -> Generator[bool]:
    """Hold the lock of the data directory, as a node does; yields whether it is held.

    No other code of this process may open the file meanwhile: closing it would drop the lock.
    """
    if not wanted:
        yield False
        return
    import fcntl

    fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError:
            text = f"a node runs on {root}"
            hint = "stop it, or build beside it: --to NEWDIR"
            raise UsageError(text, code="directory-in-use", hint=hint) from None
        yield True
    finally:
        os.close(fd)


def _checked(
    settings: RebuildSettings, target: Path, rows: Sequence[tuple[Value, ...]], images: int
) -> Report:
    """Compare what was built with what is there."""
    root = store_root(settings.path)
    found: list[tuple[Value, ...]] = []
    if settings.queues:
        found += queue_differences(root / "consumequeue", target / "consumequeue")
    if settings.index:
        found += index_differences(root / "index", target / "index")
    fields = _fields(settings, rows, images, ())
    fields["differences_found"] = len(found)
    headers = "FILE POSITION> STORED BUILT WHAT"
    tables = {"differences": Rows(headers, found[:FINDINGS_SHOWN])}
    word = "as the log says" if not found else f"{len(found)} differences"
    verdict = Verdict.NO if found else Verdict.FINE
    return Report("SparkRebuild", f"{settings.path} · {word}", fields, tables, verdict)


def _fields(
    settings: RebuildSettings,
    rows: Sequence[tuple[Value, ...]],
    images: int,
    odd: Sequence[Key],
) -> dict[str, Value | Sequence[Value] | Mapping[str, Value]]:
    return {
        "directory": str(settings.path),
        "to": str(settings.to) if settings.to else None,
        "queues": len(rows),
        "entries": sum(int(str(row[3])) - int(str(row[2])) for row in rows),
        "index_files": images,
        "written_in_order": [f"{topic}/{queue}" for topic, queue in odd],
    }


def _report(
    settings: RebuildSettings,
    rows: Sequence[tuple[Value, ...]],
    images: int,
    odd: Sequence[Key],
) -> Report:
    fields = _fields(settings, rows, images, odd)
    head = (
        f"{settings.path} · {fields['queues']} queues with {fields['entries']} entries, "
        f"{images} index files"
    )
    tables = {"rebuilt": Rows("TOPIC QUEUE> START> END>", rows)}
    return Report("SparkRebuild", head, fields, tables)

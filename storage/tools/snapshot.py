"""A snapshot of a store while its node runs, and a store from a snapshot.

The snapshot is a folder: ``manifest.json`` names every file with its size and SHA-256, ``store``
holds the files, ``identity`` the file that says whose store it is. Because that one lies apart, no
node can be started in ``store``: a copy must never become a second node of the same name.

What makes it consistent is the order, which leaves what a crash of the process at that moment would
leave; the start of a node recovers from that:

1. log files that are full and confirmed, with their batch index: they do not change any more, so
they are linked where the file system can; retention may delete the originals meanwhile;
2. the checkpoint and the other marks: all that the checkpoint calls flushed is in the log already;
3. queues and key index: what they name is in the log already;
4. the rest of the log, each batch index before its log file: an entry has its batch.

A restored store is recognized as a copy by the inodes that it noted: it does not count as in sync
until it has every confirmed record.

Units: log offsets, bytes. Not here: the commands (``cli.cluster.snapshot``), what a start does with
a copy (`storage.recovery.open`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import cast

from storage.disk import copies
from storage.disk.disk import RealDisk
from storage.log.batch_index import DIRECTORY as BATCHES
from storage.log.log_folders import noted
from storage.log.segment import DIRECTORY as LOG
from storage.marks.checkpoint import CheckpointFile
from storage.marks.identity import IDENTITY, Who
from storage.tools.recover import identity_of
from twinlog.errors import CorruptionError, Unavailable, UsageError

MANIFEST = "manifest.json"
STORE = "store"
VERSION = 1
MANIFEST_MAX = 256 * 1024 * 1024
"""Largest manifest that is read, bytes: a million files."""

LEFT_OUT = frozenset(
    {"lock", "twinlog/run.json", "twinlog/started.json", "twinlog/reserve", IDENTITY}
)
"""What belongs to the running process; the identity is kept apart."""

FOLDERS = ("twinlog/state", "twinlog", "config", "consumequeue", "index")
"""Folders besides the log's, in the order in which they are taken."""

_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a snapshot says of itself.

    Attributes:
        who: Whose store it is.
        store_id: Id of the store.
        flushed: Every byte of the log below is in the snapshot.
        confirm: What was confirmed below when it was taken, as far as the checkpoint knew.
        taken_ms: When it was begun, ms since 1970.
        folders: The store's folders, of which some are empty.
        files: (size, SHA-256) of each file, by its path below ``store``.
    """

    who: Who
    store_id: str
    flushed: int
    confirm: int
    taken_ms: int
    folders: tuple[str, ...]
    files: Mapping[str, tuple[int, str]]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.files.values())

    def document(self) -> dict[str, object]:
        """The manifest as it is written."""
        return {
            "kind": "Snapshot",
            "version": VERSION,
            "cluster": self.who.cluster,
            "group": self.who.group,
            "node": self.who.node,
            "family": self.who.family,
            "store": self.store_id,
            "flushed": self.flushed,
            "confirm": self.confirm,
            "taken_ms": self.taken_ms,
            "folders": list(self.folders),
            "files": {path: list(row) for path, row in self.files.items()},
        }


@dataclass(slots=True)
class _Taking:
    """One snapshot under way."""

    data: Path
    store: Path
    links: bool
    done: set[str] = field(default_factory=set[str])
    linked: int = 0

    def take(self, path: str, *, sealed: bool = False) -> None:
        """Take one file; one that was deleted meanwhile is left out."""
        if path in self.done or path in LEFT_OUT or path.endswith(".new"):
            return
        source, target = self.data / path, self.store / path
        try:
            if sealed and self.links and copies.link(source, target):
                self.linked += source.stat().st_size
            else:
                copies.copy(source, target)
        except FileNotFoundError:
            target.unlink(missing_ok=True)
            return
        self.done.add(path)

    def below(self, folder: str) -> list[str]:
        """Paths of the files below a folder of the store."""
        found = copies.files_below(self.data / folder)
        return [str(path.relative_to(self.data)) for path in found]

    def log(self, segment_size: int, sealed_below: int | None) -> None:
        """Take log files with their batch index; only those that end below an offset, if given."""
        for path in self.below(LOG):
            name = Path(path).name
            if not name.isdigit():
                continue
            sealed = sealed_below is not None and int(name) + segment_size <= sealed_below
            if sealed_below is None or sealed:
                self.take(f"{BATCHES}/{name}")
                self.take(path, sealed=sealed)


def take_snapshot(
    data: Path, target: Path, *, now_ms: int, links: bool = True
) -> tuple[Manifest, int]:
    """Take a snapshot of the store in ``data``, whether its node runs or not.

    Args:
        data: The node's data directory.
        target: The snapshot's folder; it must not exist, or be empty.
        now_ms: Wall time.
        links: Link sealed log files where the file system can, instead of copying them.

    Returns:
        The manifest, and the bytes that are linked.

    Raises:
        UsageError: ``target`` holds something, or the log lies in several folders.
        ForeignStore: ``data`` is not a twinlog store.
        Unavailable: Retention has deleted log files in the middle of what was taken.
        OSError: A file cannot be read or written. What was taken so far is deleted.
    """
    disk = RealDisk(data)
    identity = identity_of(disk)
    if noted(disk):
        text = f"the log of {data} lies in several folders, which a snapshot does not support"
        raise UsageError(text, code="log-folder", hint="copy the folders of the stopped node")
    _require_empty(target)
    partial = target.with_name(target.name + _PARTIAL)
    _require_empty(partial)
    mark = CheckpointFile(disk).load()
    taking = _Taking(data, partial / STORE, links)
    try:
        taking.log(identity.segment_size, min(mark.flushed, mark.confirm))
        taking.take("twinlog/checkpoint")
        for folder in FOLDERS:
            for path in taking.below(folder):
                if not path.startswith(BATCHES):
                    taking.take(path)
        for path in sorted(one.name for one in data.iterdir() if one.is_file()):
            taking.take(path)
        taking.log(identity.segment_size, None)
        _require_no_gap(taking.done, identity.segment_size)
        held = {path: taking.store / path for path in sorted(taking.done)}
        files = {path: (one.stat().st_size, copies.digest(one)) for path, one in held.items()}
        made = Manifest(
            identity.who,
            identity.store_id,
            mark.flushed,
            mark.confirm,
            now_ms,
            tuple(one for one in FOLDERS if (data / one).is_dir()),
            files,
        )
        copies.write_durably(partial / "identity", (data / IDENTITY).read_bytes())
        copies.write_durably(partial / MANIFEST, json.dumps(made.document(), indent=1).encode())
        copies.sync_folders(partial)
        partial.rename(target)
    except BaseException:
        copies.remove_all(partial)
        raise
    return made, taking.linked


def _require_no_gap(paths: Iterable[str], segment_size: int) -> None:
    """Raise where a file was deleted that was not taken yet, and a later one was taken."""
    there = [Path(path) for path in paths]
    bases = sorted(int(one.name) for one in there if str(one.parent) == LOG and one.name.isdigit())
    for base, following in pairwise(bases):
        if following != base + segment_size:
            raise Unavailable(
                f"retention deleted the log file at {base + segment_size} before it was taken",
                code="overtaken",
                hint="take the snapshot again, with more room on the disk or a longer retention",
            )


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a snapshot.

    Raises:
        UsageError: The folder is not a snapshot.
        CorruptionError: The manifest cannot be read.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MANIFEST_MAX:
            raise CorruptionError(f"{path} is too large for a manifest", file=str(path), offset=0)
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        hint = "make one: twinlog node snapshot NODE DIR"
        raise UsageError(
            f"{folder} is not a snapshot: no {MANIFEST}", code="none", hint=hint
        ) from None
    except ValueError as error:
        raise CorruptionError(f"{path} is damaged: {error}", file=str(path), offset=0) from None
    try:
        if found["kind"] != "Snapshot" or found["version"] != VERSION:
            raise UsageError(f"{path} is of another kind or version", code="newer-version")
        rows = cast("dict[str, list[object]]", found["files"])
        return Manifest(
            Who(
                str(found["cluster"]), str(found["group"]), str(found["node"]), int(found["family"])
            ),
            str(found["store"]),
            int(found["flushed"]),
            int(found["confirm"]),
            int(found["taken_ms"]),
            tuple(folder for folder in FOLDERS if folder in found["folders"]),
            {path: (int(cast("int", size)), str(sum_)) for path, (size, sum_) in rows.items()},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError(f"{path} is damaged: {error!r}", file=str(path), offset=0) from None


def check_snapshot(folder: Path) -> Manifest:
    """Compare every file of a snapshot with its manifest, and return the manifest.

    Raises:
        UsageError: The folder is not a snapshot.
        CorruptionError: A file is missing or differs; nothing of it may be used.
    """
    made = read_manifest(folder)
    for path, (size, wanted) in made.files.items():
        held = folder / STORE / path
        if ".." in Path(path).parts or Path(path).is_absolute():
            raise CorruptionError(f"the manifest names {path}", file=path, offset=0)
        if not held.is_file():
            raise CorruptionError(f"{held} is missing", file=path, offset=0)
        if held.stat().st_size != size or copies.digest(held) != wanted:
            raise CorruptionError(f"{held} is not what the manifest says", file=path, offset=0)
    if not (folder / "identity").is_file():
        raise CorruptionError(f"{folder / 'identity'} is missing", file="identity", offset=0)
    return made


def restore_snapshot(folder: Path, data: Path, who: Who) -> Manifest:
    """Make the data directory of a node from a snapshot; every file is compared first.

    The identity is written last: a directory that was not restored to its end does not start.

    Args:
        folder: The snapshot.
        data: The node's data directory; it must not exist, or be empty.
        who: The node; the snapshot must be its own.

    Raises:
        UsageError: ``data`` holds something, or the snapshot is of another node.
        CorruptionError: The snapshot is damaged; nothing was written.
        OSError: A file cannot be written.
    """
    made = read_manifest(folder)
    if made.who != who:
        theirs, ours = made.who, who
        text = f"the snapshot is of node {theirs.node} of {theirs.cluster}, group {theirs.group}"
        hint = f"restore it as that node; {ours.node} of {ours.cluster} copies the log by itself"
        raise UsageError(text, code="identity", hint=hint)
    _require_empty(data)
    check_snapshot(folder)
    for path in made.folders:
        (data / path).mkdir(parents=True, exist_ok=True)
    for path in made.files:
        copies.copy(folder / STORE / path, data / path)
    copies.sync_folders(data)
    copies.write_durably(data / IDENTITY, (folder / "identity").read_bytes())
    copies.sync_folders(data)
    return made


def _require_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = "name a folder that does not exist yet, or move it away"
        raise UsageError(f"{folder} holds something", code="exists", hint=hint)

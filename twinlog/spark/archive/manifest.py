"""The manifest: the segments of an archive, their files, and its history; pure.

A manifest lists segments, oldest first for each group. A segment is one whole log file: its bytes
can be made again from its files, and their SHA-256 is ``sha256``. Manifests are numbered from 1;
each names the SHA-256 of the one before, and has a checksum of its own content, so a changed
manifest is noticed, even the newest. Manifests of version 1 have no checksum. An archive belongs
to one cluster: two histories in one manifest would be read as one.

Offsets are log offsets in bytes, ends exclusive; times are milliseconds since 1970.

Not here: reading and committing (`twinlog.spark.archive.archive_dir`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise

from twinlog.errors import CorruptionError

VERSION = 2
READ = (1, 2)
"""Versions that are read."""
COPY = "bring the manifest back from a copy of the archive"

MIXED = "__mixed__"
"""In place of a topic in the path of a file that holds several small topics."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One Parquet file.

    Attributes:
        path: Relative to the archive, with slashes.
        kind: ``data``, ``keys`` or ``batches``.
        rows: Rows in it; 0 for a batch index.
        bytes: Its length.
        sha256: Of its bytes.
        first: Log offset of its first record.
        last: Log offset of its last record.
        queues: First and last queue offset of each ``topic/queue`` in it.
        oldest_ms: Store time of its oldest record.
        newest_ms: Of its newest.
    """

    path: str
    kind: str
    rows: int
    bytes: int
    sha256: str
    first: int = -1
    last: int = -1
    queues: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    oldest_ms: int = 0
    newest_ms: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """One archived log file.

    Attributes:
        group: Group it belongs to.
        base: Log offset of its first byte.
        end: Log offset after its last byte.
        sha256: Of its bytes.
        records: Records in it.
        records_end: Log offset after the last record; after it is ``rest``, then zeros.
        rest: What follows the records, hexadecimal, zeros at its end left out: the blank.
        epochs: (epoch, start) of the masterships that wrote it.
        files: What holds it.
        again: Queues that begin again in it, because their topic was deleted and created again: by
            ``topic/queue`` the log offset from which on the last such beginning counts, and the
            first and last queue offset after it.
    """

    group: str
    base: int
    end: int
    sha256: str
    records: int
    records_end: int
    rest: str
    epochs: Sequence[tuple[int, int]]
    files: Sequence[ArchivedFile]
    anew: Mapping[str, tuple[int, int, int]] = field(
        default_factory=dict[str, tuple[int, int, int]]
    )

    @property
    def ours(self) -> bool:
        """Whether a twinlog node wrote it: those do not delete topics."""
        return any(file.kind == "batches" for file in self.files)

    @property
    def data(self) -> list[ArchivedFile]:
        """The files that hold its records."""
        return [file for file in self.files if file.kind == "data"]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of an archive after commit ``number``; number 0 is the empty archive."""

    number: int = 0
    previous: str = ""
    segments: Sequence[Segment] = ()
    tool: str = "twinlog"
    id: str = ""
    """Random id of the archive, made with manifest 1; nodes store it with their mark."""

    cluster: str = ""
    """Name of the cluster that it was read from; empty if no store named one yet."""

    def of_group(self, group: str) -> list[Segment]:
        """Return a group's segments, oldest first."""
        return sorted((s for s in self.segments if s.group == group), key=lambda s: s.base)

    def covered(self, group: str) -> tuple[int, int] | None:
        """Return (start, end) of the newest stretch without a gap; None without a segment."""
        found: tuple[int, int] | None = None
        for segment in self.of_group(group):
            if found is not None and found[1] == segment.base:
                found = found[0], segment.end
            else:
                found = segment.base, segment.end
        return found

    def holes(self, group: str, start: int = 0, end: int = 1 << 62) -> list[tuple[int, int]]:
        """Return the log offsets (a, b) that are missing between a group's segments.

        Args:
            group: Name of the group.
            start: Only holes between segments that end after it,
            end: and begin before it.
        """
        held = [s for s in self.of_group(group) if s.end > start and s.base < end]
        return [(one.end, two.base) for one, two in pairwise(held) if one.end < two.base]

    def require_apart(self, name: str) -> None:
        """Check that no two segments of a group hold the same log offset.

        Raises:
            CorruptionError: Two do: rows would come twice, or it is unknown which ones are right.
        """
        for group in sorted({segment.group for segment in self.segments}):
            for one, two in pairwise(self.of_group(group)):
                if two.base < one.end:
                    spans = f"{one.base}..{one.end} and {two.base}..{two.end}"
                    text = f"{name} lists {spans} of {group}, which overlap"
                    raise CorruptionError(text, hint=COPY, offset=two.base)

    def files(self) -> set[str]:
        """Return the paths of all files it names."""
        return {file.path for segment in self.segments for file in segment.files}

    def after(self, added: Sequence[Segment], digest: str) -> Manifest:
        """Return the next manifest: this one and segments that it does not have yet.

        Args:
            added: New segments.
            digest: SHA-256 of this manifest's text; empty for number 0.

        Raises:
            CorruptionError: One of them is here with other bytes, or overlaps another one: the
                logs are not the same.
        """
        have = {(segment.group, segment.base): segment.sha256 for segment in self.segments}
        for segment in added:
            if have.get((segment.group, segment.base), segment.sha256) != segment.sha256:
                text = f"the archive has other bytes of {segment.group} at {segment.base}"
                hint = "archive this log into another directory"
                raise CorruptionError(text, hint=hint, offset=segment.base)
        new = [segment for segment in added if (segment.group, segment.base) not in have]
        every = sorted([*self.segments, *new], key=lambda s: (s.group, s.base))
        found = replace(self, number=self.number + 1, previous=digest, segments=every)
        found.require_apart("the manifest with what is added")
        return found

    def require(self, cluster: str, who: str) -> None:
        """Check that the archive may belong to that cluster.

        Args:
            cluster: Its name; empty if unknown.
            who: Says who is of it, as ``the nodes are of``.

        Raises:
            CorruptionError: It belongs to another cluster.
        """
        if self.cluster and cluster and cluster != self.cluster:
            text = f"the archive is of the cluster {self.cluster!r}, {who} {cluster!r}"
            raise CorruptionError(text, hint="name the archive of that cluster, or a new directory")

    def text(self) -> str:
        """Return its JSON text, the same for the same content."""
        fields: dict[str, object] = {"version": VERSION, **asdict(self)}
        return _written(fields | {"checksum": digest(_written(fields))})


def _written(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, sort_keys=True, indent=1) + "\n"


def digest(text: str) -> str:
    """Return the SHA-256 of a manifest's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def parse(text: str, name: str) -> Manifest:
    """Return the manifest in ``text``.

    Raises:
        CorruptionError: It is not a manifest, was changed, is of a later version, or its segments
            overlap.
    """
    try:
        fields = json.loads(text)
        version = fields["version"]
        if version not in READ:
            text = f"{name} is of version {version}, this twinlog reads {READ[0]} to {READ[-1]}"
            raise CorruptionError(text, file=name, hint="use the twinlog that wrote it")
        checksum = fields.pop("checksum", None)
        if version > 1 and checksum != digest(_written(fields)):
            text = f"{name} is not what was written: it was changed, or is damaged"
            raise CorruptionError(text, file=name, hint=COPY)
        del fields["version"]
        segments = [_segment(item) for item in fields.pop("segments")]
        found = Manifest(**fields, segments=segments)
        _require_typed(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        text = f"{name} is not a manifest: {error}"
        raise CorruptionError(text, file=name, hint=COPY) from None
    found.require_apart(name)
    return found


def _require_typed(found: Manifest) -> None:
    """Do nothing when every value is one that could have been written.

    Raises:
        ValueError: One is not.
    """
    numbers: list[object] = [found.number]
    texts: list[object] = [found.previous, found.tool, found.id, found.cluster]
    for one in found.segments:
        numbers += [one.base, one.end, one.records, one.records_end]
        texts += [one.group, one.sha256, one.rest]
        for file in one.files:
            numbers += [file.rows, file.bytes, file.first, file.last]
            numbers += [file.oldest_ms, file.newest_ms]
            texts += [file.path, file.kind, file.sha256]
    for value in numbers:
        if type(value) is not int:
            raise ValueError(f"{value!r} is not a number")
    for value in texts:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is not a text")
    for one in found.segments:
        bytes.fromhex(one.rest)
        if not 0 <= one.base <= one.records_end <= one.end:
            raise ValueError(f"a segment goes from {one.base} to {one.end}")
        for file in one.files:
            if file.path.startswith("/") or ".." in file.path.split("/"):
                raise ValueError(f"the file {file.path} is outside the archive")


def _segment(fields: dict[str, object]) -> Segment:
    files = fields.pop("files")
    epochs = fields.pop("epochs")
    anew = fields.pop("anew", {})
    if not isinstance(files, list) or not isinstance(epochs, list):
        raise TypeError("files and epochs are lists")
    if not isinstance(anew, dict):
        raise TypeError("anew is an object")
    return Segment(
        **fields,  # type: ignore[arg-type]  # pyright: ignore
        epochs=[(int(epoch), int(start)) for epoch, start in epochs],  # pyright: ignore
        files=[_file(item) for item in files],  # pyright: ignore
        anew={str(k): (int(at), int(a), int(b)) for k, (at, a, b) in anew.items()},  # pyright: ignore
    )


def _file(fields: dict[str, object]) -> ArchivedFile:
    queues = fields.pop("queues")
    if not isinstance(queues, dict):
        raise TypeError("queues is an object")
    spans = {str(name): (int(a), int(b)) for name, (a, b) in queues.items()}  # pyright: ignore
    return ArchivedFile(**fields, queues=spans)  # type: ignore[arg-type]  # pyright: ignore

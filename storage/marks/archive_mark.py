"""How far the log is archived: with retention by archive, only files below may be deleted.

Path ``twinlog/archive`` (slots): a log offset, and the id of the archive it refers to: the progress
of one archive says nothing about another. The mark rises only when the archive names sealed parts
of the log, without a gap from the mark on, each with the SHA-256 of its bytes, and our own bytes
have the same hash: bytes that the archive cannot prove are kept (`storage.retention.policy`,
``archive``). It falls only in a cut, to the border of the file that is cut, because bytes written
there later are not archived. An order of another archive is refused, unless it says that it
replaces the one before: then it must prove everything from the start of the log on, and the mark
becomes the end of that.

The hashing reads every byte once, in a worker thread, through the file and not through the mapping.

Not here: the archive and its manifest (the Spark job ``archive``), who may give the order
(``node.clients.admin``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from storage.disk.disk import Disk
from storage.disk.packing import number, pack, text, unpack
from storage.log.segment import log_path
from storage.marks.two_slots import Slots

PATH = "twinlog/archive"
PARTS_MAX = 1024
"""Parts in one order."""
_PIECE = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """An archived part of the log.

    Attributes:
        start: Log offset of its first byte.
        end: Log offset after its last byte; in the same log file.
        sha256: Hash of its bytes, 64 hexadecimal digits.
    """

    start: int
    end: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Which archive has the parts of an order.

    Attributes:
        archive: Its id.
        replace: This archive counts from now on, instead of the present one.
    """

    archive: str = ""
    replace: bool = False


NOBODY = Claim()
"""An archive without an id; accepted only by a node that has recorded none."""


def refusal(parts: Sequence[ArchivedPart], *, mark: int, start: int, limit: int, size: int) -> str:
    """Return why ``parts`` cannot raise the mark; "" if their bytes may be compared.

    Args:
        parts: In order.
        mark: The present mark.
        start: First log offset still kept.
        limit: Log offset up to which the log is confirmed and flushed.
        size: Bytes of a log file.

    >>> refusal([ArchivedPart(0, 10, "")], mark=0, start=0, limit=5, size=100)
    'the archive names 10, the log is confirmed and flushed up to 5'
    >>> refusal([ArchivedPart(20, 30, "")], mark=0, start=0, limit=50, size=100)
    'the archive has nothing of 0..20'
    """
    at = max(mark, start)
    for part in parts:
        if part.end <= at:
            continue
        if part.start > at:
            return f"the archive has nothing of {at}..{part.start}"
        if part.end > limit:
            return f"the archive names {part.end}, the log is confirmed and flushed up to {limit}"
        if not part.start < part.end <= part.start - part.start % size + size:
            return f"{part.start}..{part.end} is not within one log file"
        at = part.end
    return ""


class ArchiveMark:
    """The mark of one store.

    Attributes:
        offset: Everything below it is archived.
        archive: Id of the archive; empty before the first order.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._slots = Slots(disk, PATH)
        data = self._slots.load("open.archive")
        fields = unpack(data) if data is not None else {"end": 0}
        self.offset = number(fields, "end")
        self.archive = text(fields, "archive") if "archive" in fields else ""

    def proven_to(self, claim: Claim) -> int | None:
        """Return the mark that counts for an archive; None: the log belongs to another archive."""
        if claim.archive == self.archive or not self.offset:
            return self.offset
        return 0 if claim.replace else None

    def compare(
        self, parts: Sequence[ArchivedPart], *, start: int, size: int, above: int | None = None
    ) -> str:
        """Return which part differs from our files, "" if none does.

        Parts below ``above`` (the mark), or that begin before ``start``, are skipped.

        Raises:
            DiskError: The parts could not be compared.
        """
        above = self.offset if above is None else above
        for part in parts:
            if part.start < start or part.end <= above:
                continue
            digest = hashlib.sha256()
            base = part.start - part.start % size
            for at in range(part.start, part.end, _PIECE):
                length = min(_PIECE, part.end - at)
                # Hashes the bytes themselves, not index CRCs: after this the files may be deleted.
                digest.update(self._disk.read_at(log_path(base), at - base, length, "archive.read"))
            if digest.hexdigest() != part.sha256.lower():
                return f"{part.start}..{part.end} differs: our SHA-256 is {digest.hexdigest()}"
        return ""

    def raise_to(self, offset: int, archive: str = "") -> None:
        """Make a new mark durable; a lower one of the same archive changes nothing.

        Raises:
            DiskError: The old mark still counts.
        """
        if offset > self.offset or archive != self.archive:
            if not self._disk.exists(PATH):
                self._slots.create("archive.create")
            self._slots.store(pack({"end": offset, "archive": archive}), "archive.mark")
            self.offset, self.archive = offset, archive

    def lower_to(self, offset: int) -> None:
        """Lower the mark durably before a cut; a higher offset changes nothing.

        Raises:
            DiskError: It is unknown which mark counts; call again before the log is used.
        """
        if offset < self.offset:
            self._slots.store(pack({"end": offset, "archive": self.archive}), "archive.lower")
            self.offset = offset

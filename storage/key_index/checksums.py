"""Checksums of full key-index files, kept in files of their own: RocketMQ's format has none.

A damaged slot or cell may still look valid: a search would silently find fewer records. When a file
is full and flushed, a CRC of each `CHUNK` is written to ``twinlog/index-crc/{name}``. A search
checks each chunk that it touches, once per process, so it costs at most one read of the chunk, and
no start has to read a whole index.

A file without checksums (written by an older version, or by a process that died before it wrote
them) is searched unchecked. When a cut makes a full file grow again, its checksums are removed.

Not here: what is done about a damaged file (`storage.key_index.index`).
"""

from __future__ import annotations

import errno
from collections.abc import Container, Iterable

from storage.disk.disk import Disk
from storage.disk.packing import number, seal, unseal
from storage.errors import DiskError
from storage.key_index.file import FileMark
from twinlog.errors import CorruptionError
from twinlog.kernels import crc32c

DIRECTORY = "twinlog/index-crc"
CHUNK = 64 * 1024
_CRC = 4


def _path(name: str) -> str:
    return f"{DIRECTORY}/{name}"


def write_seals(
    disk: Disk, marks: Iterable[FileMark], kept: Iterable[str], op: str, *, broken: Container[str]
) -> None:
    """Write the checksums of full files durably, and remove those of deleted files.

    Args:
        disk: The data directory; the files' bytes are all written.
        marks: Files that have become full.
        kept: Names of all files there are.
        op: Name of the operation.
        broken: Names of files that must not get checksums; the set may grow during the call.
    """
    for mark in marks:
        if mark.name not in broken and disk.exists(mark.path):
            _seal(disk, mark, op, broken)
    known = set(kept)
    for name in disk.list(DIRECTORY):
        if name not in known:
            _remove(disk, name, op + ".remove")


def _seal(disk: Disk, mark: FileMark, op: str, broken: Container[str]) -> None:
    try:
        crcs = b"".join(_crc(disk, mark, at) for at in range(0, mark.size, CHUNK))
    except DiskError as error:
        if error.errno != errno.ENOENT:
            raise
        return  # removed meanwhile
    if mark.name in broken:
        return
    disk.make_dir(DIRECTORY, op + ".make-dir")
    disk.write_file(_path(mark.name), seal({"size": mark.size, "crcs": crcs}), op)
    # Checked before and after the write: the owner may reopen the file at any moment, and the old
    # checksums would then call its new cells damaged.
    if mark.name in broken:
        _remove(disk, mark.name, op + ".remove")


def break_seal(disk: Disk, name: str) -> None:
    """Remove the checksums of a file that will change."""
    if disk.exists(_path(name)):
        _remove(disk, name, "key-index.unseal")
        disk.fsync_dir(DIRECTORY, "key-index.unseal.dir")


def break_seals(disk: Disk, full: Container[str]) -> None:
    """Remove all checksums except those of ``full`` files.

    For a start: a process that died between a flush and its snapshot leaves checksums of a file
    that grows again, maybe with other keys, and may be full again before its next flush.
    """
    gone = [name for name in disk.list(DIRECTORY) if name not in full]
    for name in gone:
        _remove(disk, name, "key-index.load.unseal")
    if gone:
        disk.fsync_dir(DIRECTORY, "key-index.load.unseal.dir")


def _remove(disk: Disk, name: str, op: str) -> None:
    try:
        disk.remove(_path(name), op)
    except DiskError as error:
        if error.errno != errno.ENOENT:
            raise  # else a job and the index's owner removed it at the same time


def _crc(disk: Disk, mark: FileMark, at: int) -> bytes:
    data = disk.read_at(mark.path, at, min(CHUNK, mark.size - at), "key-index.seal.read")
    return crc32c(data).to_bytes(_CRC, "big")


class Seals:
    """The checksums of an index, and which chunks were already compared.

    Several searches may use it at the same time: comparing a chunk twice does no harm.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._crcs: dict[str, bytes] = {}
        self._proven: set[tuple[str, int]] = set()

    def prove(self, mark: FileMark, at: int, length: int) -> bool:
        """Whether the ``length`` bytes from ``at`` on are as they were when the file became full.

        Also true if the file has no checksums, so nothing is known.
        """
        crcs = self._of(mark)
        for chunk in range(at // CHUNK, (at + length - 1) // CHUNK + 1):
            if not crcs or (mark.name, chunk) in self._proven:
                continue
            if _crc(self._disk, mark, chunk * CHUNK) != crcs[chunk * _CRC : (chunk + 1) * _CRC]:
                return False
            self._proven.add((mark.name, chunk))
        return True

    def _of(self, mark: FileMark) -> bytes:
        found = self._crcs.get(mark.name)
        if found is None:
            found = self._crcs[mark.name] = self._read(mark)
        return found

    def _read(self, mark: FileMark) -> bytes:
        if not self._disk.exists(_path(mark.name)):
            return b""
        try:
            fields = unseal(self._disk.read(_path(mark.name), "key-index.seal.load"))
            crcs = fields.get("crcs")
            fits = isinstance(crcs, bytes) and number(fields, "size") == mark.size
        except CorruptionError:
            return b""
        return crcs if fits and isinstance(crcs, bytes) else b""

    def forget(self, name: str) -> None:
        """Forget a file's checksums and results: it or its checksums were rewritten."""
        self._crcs.pop(name, None)
        self._proven = {one for one in self._proven if one[0] != name}

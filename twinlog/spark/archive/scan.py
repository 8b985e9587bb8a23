"""One sealed segment, opened and read: from a directory, or fetched from the nodes of a cluster.

`Sealed` names a log file that will never change, for a task. `Scan` opens it and yields its records
in windows, the bytes after them, and any range of its bytes. A segment of a cluster is first
fetched into a file without a name, which does not survive the process: it needs the space of a log
file in the temporary directory of the executor.

A twinlog segment is compared with its batch index before its records are used. Bytes are read into
a reused buffer (`twinlog.spark.directory.read_buffer`). Offsets are log offsets in bytes.

Not here: what is written (`twinlog.spark.archive.writing`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from twinlog import kernels
from twinlog.errors import CorruptionError
from twinlog.format.log_file import BLANK
from twinlog.kernels import codes
from twinlog.spark.archive.rows import numpy, starts_of
from twinlog.spark.directory import read_buffer
from twinlog.spark.nodes.nodes import NodeAccess
from twinlog.spark.nodes.remote_log import ENTRY_BYTES, LogPiece, ProofOfBytes, RemoteLog, proven
from twinlog.store.files import log_file, store_root
from twinlog.units import KiB, MiB

WINDOW = 8 * MiB
"""Bytes of the log that are held as columns at once; also the largest row group, roughly. Four
times as much would cost twice the CPU: every step would fetch its columns from memory again."""

RECORD_MAX = 8 * MiB
REST_MAX = 64 * KiB
"""Most bytes after the records of a segment that are no zeros and no record: the blank has 8."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A log file that will never change, as sent to a task.

    Attributes:
        root: Directory of the store; empty if it is read from nodes.
        group: Group it belongs to.
        name: Of the file.
        base: Log offset of its first byte.
        end: Log offset after its last byte.
        epochs: (epoch, start) of the masterships that wrote it.
        batches: Whether a batch index belongs to it.
        access: Access to the nodes; None for a directory.
    """

    root: str
    group: str
    name: str
    base: int
    end: int
    epochs: Sequence[tuple[int, int]]
    batches: bool
    access: NodeAccess | None = None


def _open(sealed: Sealed) -> tuple[IO[bytes], bytes]:
    """Return the open log file and its batch index."""
    if sealed.access is None:
        index = store_root(sealed.root) / "twinlog" / "batches" / sealed.name
        opened = log_file(sealed.root, sealed.name).open("rb")
        try:
            return opened, index.read_bytes() if sealed.batches else b""
        except BaseException:
            opened.close()
            raise
    return _fetch(sealed, sealed.access)


def _fetch(sealed: Sealed, access: NodeAccess) -> tuple[IO[bytes], bytes]:
    """Copy a segment from the nodes of a cluster, proven."""
    out, entries = tempfile.TemporaryFile(prefix="twinlog-"), bytearray()  # noqa: SIM115

    def take(piece: LogPiece) -> None:
        out.write(piece.data)
        entries.extend(piece.entries)

    def reset() -> None:
        out.seek(0)
        entries.clear()

    log = RemoteLog(access)
    try:
        proven(log, sealed.base, sealed.end, take, reset)
        out.flush()
    except BaseException:
        out.close()
        raise
    finally:
        log.close()
    return out, bytes(entries)


class Scan:
    """One log file, read from its beginning to its end in windows of whole records.

    Args:
        sealed: The file.

    Attributes:
        topics: Bytes of each topic.
        records: How many there are.
        records_end: Log offset after the last one.
        index: The file's batch index; empty for one that is not ours.

    Raises:
        CorruptionError: It holds something that is neither a record nor a blank, or a batch that
            differs from its batch index entry.
        SourceUnavailable: No node served it.
    """

    def __init__(self, sealed: Sealed) -> None:
        self._sealed = sealed
        self._file, self.index = _open(sealed)
        self.topics: dict[str, int] = {}
        self.records = 0
        self.records_end = sealed.base
        self._windows: list[tuple[int, int]] = []
        try:
            self._look(
                ProofOfBytes(sealed.base) if sealed.batches and sealed.access is None else None
            )
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Scan:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()

    def read(self, at: int, length: int) -> memoryview:
        """Return up to ``length`` bytes from a log offset on, valid until the next read.

        Raises:
            CorruptionError: The file has become shorter.
        """
        data, done = read_buffer.lend(min(length, self._sealed.end - at)), 0
        while done < len(data):
            count = os.preadv(self._file.fileno(), [data[done:]], at + done - self._sealed.base)
            if not count:
                name = self._sealed.name
                raise CorruptionError(f"{name} has become shorter", file=name, offset=at)
            done += count
        return data

    def _whole(self, at: int) -> tuple[memoryview, int, int, int]:
        """Return (bytes, index after the last whole record, code, records) of a window."""
        size = WINDOW
        while True:
            data = self.read(at, size)
            count, stop, code, _, _ = kernels.walk(data, 0, len(data), check_crc=False)
            if stop or code == codes.BLANK or size > WINDOW or at + len(data) >= self._sealed.end:
                return data, stop, code, count
            size = WINDOW + RECORD_MAX

    def _look(self, proof: ProofOfBytes | None) -> None:
        """Find where windows and the records end, and how many bytes each topic has.

        Every batch is compared with its entry on the way, in front of what is made of its records.
        """
        at = seen = self._sealed.base
        entries = self.index.rstrip(b"\0")
        entries += bytes(-len(entries) % ENTRY_BYTES)
        while at < self._sealed.end:
            data, stop, code, count = self._whole(at)
            if proof is not None:
                proof.take(data[seen - at :], entries)
                entries, seen = b"", max(seen, at + len(data))
            self.records += count
            self._count(data, stop)
            if stop:
                self._windows.append((at, stop))
            at += stop
            if code == codes.BLANK and BLANK.unpack_from(data, stop)[0] == self._sealed.end - at:
                break
            if not stop:
                what = kernels.EXPLANATIONS[code]
                hint = "look: twinlog spark verify"
                text = f"{self._sealed.name} holds no record at {at}: {what}"
                raise CorruptionError(text, hint=hint, offset=at, file=self._sealed.name)
        self.records_end = at
        if proof is not None:
            proof.finish(self._sealed.end)

    def _count(self, data: memoryview, stop: int) -> None:
        """Add the bytes of each topic in a window."""
        np = numpy()
        kind = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
        for topic, _, _, entries in kernels.gather_queues(data, 0, stop, 0):
            name = topic.decode("utf-8", "replace")
            size = int(np.frombuffer(entries, kind)["size"].sum())
            self.topics[name] = self.topics.get(name, 0) + size

    def windows(self) -> Iterator[tuple[memoryview, Any, int]]:
        """Yield (bytes, where records begin, where the last one ends) up to the last record.

        The bytes are valid until the next read.
        """
        for at, length in self._windows:
            data = self.read(at, length)
            yield data, starts_of(data, 0, length), length

    def rest(self) -> bytes:
        """Return what follows the records, zeros at its end left out.

        Raises:
            CorruptionError: More than `REST_MAX` bytes.
        """
        found, at = bytearray(), self.records_end
        while at < self._sealed.end:
            data = self.read(at, MiB)
            used = bytes(data).rstrip(b"\0")
            if used:
                found += bytes(at - self.records_end - len(found)) + used
            if len(found) > REST_MAX:
                text = f"{self._sealed.name} holds bytes after its records that are not records"
                raise CorruptionError(text, offset=self.records_end, file=self._sealed.name)
            at += len(data)
        return bytes(found)

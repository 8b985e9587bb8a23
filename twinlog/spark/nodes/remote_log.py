"""The log of a running cluster as bytes: what nodes serve below confirm, on every node.

Slaves are asked first, in turn; a node that cannot be reached, has not got so far, no longer keeps
the bytes or has served damaged ones is passed over (`twinlog.spark.nodes.nodes`). Bytes below
confirm are the same on all nodes, so a read continues in the middle of a file with another node.

Each piece comes with the batch index entries that prove it. `ProofOfBytes` compares them, whatever
the size of the pieces.

Units: log offsets in bytes, ends exclusive.

Not here: what is made of the bytes (`twinlog.spark.archive`, `twinlog.spark.jobs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from twinlog import kernels
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import KIND_FILLER, BatchEntry
from twinlog.format.log_file import BLANK
from twinlog.spark.nodes.nodes import NodeAccess, Nodes
from twinlog.units import MiB
from twinlog.wire.frames import Frame, Type

PIECE_BYTES = 4 * MiB
"""Of one answer; a node copies it in one go."""
ENTRY_BYTES = 48


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Bytes of the log.

    Attributes:
        start: Log offset of the first one.
        data: The bytes.
        entries: Packed entries of the batches that begin in it.
        node: Who served it.
    """

    start: int
    data: memoryview
    entries: bytes
    node: str

    @property
    def end(self) -> int:
        """Log offset after the last byte."""
        return self.start + len(self.data)


@dataclass(frozen=True, slots=True)
class Borders:
    """What one node has.

    Attributes:
        node: Its name.
        start: First log offset it keeps.
        confirm: Log offset up to which it has confirmed.
        segment_size: Bytes of a log file.
    """

    node: str
    start: int
    confirm: int
    segment_size: int


class RemoteLog:
    """The log of a cluster, or of one node of it; close it.

    Args:
        access: Whom to ask.

    Raises:
        SourceUnavailable: No node answers at all.
    """

    def __init__(self, access: NodeAccess) -> None:
        self.nodes = Nodes(access)
        self.avoided: set[str] = set()
        """Nodes whose bytes were damaged: they are not asked again."""

    def close(self) -> None:
        """Close the connections."""
        self.nodes.close()

    def borders(self) -> list[Borders]:
        """Return what each node has that may be asked and answers, in the order of asking.

        Raises:
            SourceUnavailable: None does.
        """
        fields = {"offset": 0, "max_bytes": 1}
        numbers = ("start", "confirm", "segment_size")
        return [
            Borders(str(answer.fields["node"]), *(_whole(answer.fields[name]) for name in numbers))
            for answer in self.nodes.each(Type.LOG, fields, "the borders of the log")
        ]

    def read(self, start: int, end: int) -> Iterator[LogPiece]:
        """Yield the bytes of ``start..end`` in order; ``end`` must be confirmed somewhere.

        Raises:
            SourceUnavailable: No node served a piece in time.
        """
        at = start
        while at < end:
            what = f"log {at}..{end}"
            answer = self.nodes.ask(Type.LOG, _fields(at, end), what, self._usable)
            entries = answer.fields["entries"]
            assert isinstance(entries, bytes), "the shape was checked"
            found = LogPiece(at, memoryview(answer.payload), entries, str(answer.fields["node"]))
            if not found.data:
                raise CorruptionError(f"{found.node} served nothing of {what}", offset=at)
            at = found.end
            if at < end:
                self.nodes.ahead(Type.LOG, _fields(at, end))
            yield found

    def _usable(self, answer: Frame) -> str | None:
        """Return why an answer does not serve, or None."""
        fields = answer.fields
        if fields["node"] in self.avoided:
            return "has served damaged bytes"
        match fields["status"]:
            case "found":
                return None
            case "before-start":
                return f"keeps the log from {fields['start']} on"
            case _:
                return f"lags: it has confirmed {fields['confirm']}"


def _fields(at: int, end: int) -> dict[str, object]:
    """Return the fields of the LOG that continues at a log offset."""
    return {"offset": at, "max_bytes": min(PIECE_BYTES, end - at)}


def _whole(value: object) -> int:
    assert isinstance(value, int), "the shape was checked"
    return value


@dataclass(slots=True)
class ProofOfBytes:
    """Compares the batches of a stretch of the log with their entries, piece by piece.

    Args:
        at: Log offset at which the stretch begins, a batch border.
    """

    at: int
    _held: bytearray = field(default_factory=bytearray)
    _entries: list[BatchEntry] = field(default_factory=list[BatchEntry])
    _held_at: int = -1

    def take(self, data: memoryview | bytes, entries: bytes) -> None:
        """Take the next bytes, and the entries of the batches that begin in them.

        Raises:
            CorruptionError: A batch is not what its entry says; facts ``offset``.
        """
        for place in range(0, len(entries) - len(entries) % ENTRY_BYTES, ENTRY_BYTES):
            entry = BatchEntry.unpack(entries, place)
            if entry is None or entry.start != self._next():
                text = f"the batch index says nothing good of {self._next()}"
                raise CorruptionError(text, offset=self._next())
            self._entries.append(entry)
        if self._held_at < 0:
            self._held_at = self.at
        self._held += data
        self._prove()

    def _next(self) -> int:
        return self._entries[-1].end if self._entries else self.at

    def _prove(self) -> None:
        base, limit, done = self._held_at, self._held_at + len(self._held), 0
        with memoryview(self._held) as held:
            for entry in self._entries:  # a filler may be longer than what can be held
                size = BLANK.size if entry.kind == KIND_FILLER else entry.length
                if entry.start + size > limit:
                    break
                begin = entry.start - base
                if kernels.crc32c(held[begin : begin + size]) != entry.crc:
                    text = f"the batch at {entry.start} does not match its CRC"
                    raise CorruptionError(text, offset=entry.start)
                self.at = entry.end
                done += 1
        del self._entries[:done]
        past = min(self.at, limit) - base
        del self._held[:past]
        self._held_at += past

    def finish(self, end: int) -> None:
        """Say that the stretch ends at ``end``.

        Raises:
            CorruptionError: Its batches do not.
        """
        if self.at != end:
            raise CorruptionError(f"no good batch index entry for {self.at}", offset=self.at)


def proven(
    log: RemoteLog,
    start: int,
    end: int,
    take: Callable[[LogPiece], None],
    reset: Callable[[], None],
) -> None:
    """Hand the pieces of ``start..end`` to ``take``, all of them proven when this returns.

    When a node served damaged bytes, ``reset`` is called and everything is asked again of others.

    Raises:
        CorruptionError: Every node that has them served damaged bytes.
        SourceUnavailable: No node served them in time.
    """
    while True:
        check, node = ProofOfBytes(start), ""
        try:
            for piece in log.read(start, end):
                node = piece.node
                check.take(piece.data, piece.entries)
                take(piece)
            check.finish(end)
        except CorruptionError as error:
            log.avoided.add(node)
            if not set(log.nodes.order()) - log.avoided:
                text = f"{error.text}, on every node"
                raise CorruptionError(text, offset=error.facts.get("offset")) from None
            reset()
        else:
            return

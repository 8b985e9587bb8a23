"""Raw reads of the log: the request LOG, its checks and its answer.

For archives and for jobs that prove or compare nodes. A piece of the log below confirm is chosen on
the loop and copied in a thread, because it is rarely in memory. A slave answers however stale it
is: bytes below confirm never change.

Answers: ``status`` (``found``; ``before-start`` and ``above-confirm`` without bytes), the bytes as
payload, where they end (``next``), packed batch index entries (`storage.read.raw`), the log's
start, the confirm offset and the length of a log file.

Units: log offsets in bytes. Not here: threads and sockets (`node.clients.server`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.clients.freshness import Freshness
from node.clients.limits import Limits
from storage.read.raw import RawPiece
from twinlog.errors import Busy, UsageError

if TYPE_CHECKING:
    from storage.reads import StoreReads

Answer = tuple[Mapping[str, object], Sequence[memoryview]]


@dataclass(frozen=True, slots=True)
class RawQuery:
    """One LOG of a client."""

    offset: int
    max_bytes: int


def parse_log(fields: Mapping[str, object], limits: Limits) -> RawQuery:
    """Parse a client's request, limited to the node's limits.

    Raises:
        UsageError: A field is missing or not of its kind.
    """
    offset, size = fields.get("offset"), fields.get("max_bytes")
    if type(offset) is not int or type(size) is not int or offset < 0 or size < 0:
        raise UsageError("log names offset and max_bytes, whole numbers", code="fields")
    return RawQuery(offset, min(max(size, 1), limits.response_size_max))


class RawLog:
    """The raw reads of one node; holds no state of its own.

    Args:
        store: Where to read.
        freshness: Returns the node's present freshness.
        segment_size: Bytes of a log file.
    """

    def __init__(
        self, store: StoreReads, freshness: Callable[[], Freshness], *, segment_size: int
    ) -> None:
        self._store = store
        self._freshness = freshness
        self._segment_size = segment_size

    def begin(self, query: RawQuery) -> RawPiece | None:
        """Return the piece to copy; None if the log does not hold it here.

        Raises:
            Busy: The file was deleted meanwhile; ask again.
        """
        if not self._store.start <= query.offset < self._store.confirm:
            return None
        try:
            return self._store.raw(query.offset, query.max_bytes)
        except IndexError:
            raise Busy("the log moved during the read", hint="ask again") from None

    def finish(self, query: RawQuery, piece: RawPiece | None, data: bytes) -> Answer:
        """Return the answer with what the thread copied."""
        store, freshness = self._store, self._freshness()
        status = "before-start" if query.offset < store.start else "above-confirm"
        fields: dict[str, object] = {
            "status": "found" if piece is not None else status,
            "next": query.offset if piece is None else piece.end,
            "entries": b"" if piece is None else piece.entries,
            "start": store.start,
            "confirm": store.confirm,
            "segment_size": self._segment_size,
            "node": freshness.node,
            "role": freshness.role,
        }
        return fields, [memoryview(data)] if data else []

"""Finding messages by key: the request FIND, its checks and its answer.

A search is prepared on the loop and run in a thread, because index and records may have to come
from the disk. Like a read it is bounded by confirm, and a slave that has not heard from its master
for too long refuses it.

Answers: records newest first as payload; ``more`` (ask again below the last one), ``complete``
(False: the index had too many entries to search all of them, or to do so in time), ``confirm`` (the
offset below which was searched), ``settled`` (a master: everything acknowledged before is below
that), and as for a read age, node, role.

Not here: searching (`storage.key_index.search`), threads and sockets (`node.clients.server`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from node.clients.freshness import Freshness
from node.clients.limits import Limits
from node.clients.reads import whole_number
from storage.errors import DiskError
from storage.key_index.search import RESULTS_DEFAULT, RESULTS_MAX, TIME_MAX, KeyQuery, Lookup
from twinlog.errors import (
    Busy,
    CorruptionError,
    TwinlogError,
    Unavailable,
    UnknownTopic,
    UsageError,
)

if TYPE_CHECKING:
    from storage.reads import StoreReads

Answer = tuple[Mapping[str, object], Sequence[memoryview]]


def parse_find(fields: Mapping[str, object], limits: Limits) -> tuple[KeyQuery, float]:
    """Parse a client's search; return it and how long the client waits, s, within limits.

    Raises:
        UsageError: A field is missing or not of its kind.
    """
    topic, key = fields.get("topic"), fields.get("key")
    if not isinstance(topic, str) or not isinstance(key, str) or not key:
        raise UsageError("a search names topic and key", code="fields")
    query = KeyQuery(
        topic,
        key,
        most=min(max(whole_number(fields, "max", RESULTS_DEFAULT), 1), RESULTS_MAX),
        begin=whole_number(fields, "begin", 0),
        end=whole_number(fields, "end", TIME_MAX),
        before=whole_number(fields, "before", TIME_MAX),
        unique=fields.get("unique") is True,
        max_bytes=limits.response_size_max,
    )
    most = limits.find_seconds_max
    return query, min(whole_number(fields, "timeout_ms", round(most * 1000)) / 1000, most)


class Finds:
    """The searches of one node; holds no state of its own.

    Args:
        store: Where to look.
        freshness: Returns the node's present freshness.
        staleness_max: Seconds without a word from the master after which a slave refuses.
        wall_ms: Names a new file of the index.
    """

    def __init__(
        self,
        store: StoreReads,
        freshness: Callable[[], Freshness],
        *,
        staleness_max: float,
        wall_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._freshness = freshness
        self._staleness_max = staleness_max
        self._wall_ms = wall_ms

    def begin(self, query: KeyQuery, limit: float | None = None) -> Lookup:
        """Return the search; `search` runs it, then `finish` must be called.

        ``limit`` is how old the data may be, seconds, as the client says; None: as configured.

        Raises:
            Unavailable: This node is too stale, has no index, or is building it.
            UnknownTopic: There is no such topic.
            TopicClosed: It may not be read.
        """
        self._store.check_open(query.topic)
        freshness = self._freshness()
        limit = self._staleness_max if limit is None else limit
        if freshness.role != "master" and not freshness.within(limit):
            raise Unavailable(
                f"{freshness.node} has not heard from its master for too long",
                code="stale",
                hint="ask another node, or the master",
                node=freshness.node,
                age_ms=freshness.age_ms,
            )
        try:
            return self._store.look_up(query, wall_ms=self._wall_ms())
        except UnknownTopic as error:
            raise freshness.doubted(error) from None

    def finish(self, lookup: Lookup, error: TwinlogError | None) -> Answer:
        """Return the answer to a search that ran, or raise its error.

        Raises:
            TwinlogError: Nothing is served; a retryable one may be tried again at once.
        """
        damage = error if isinstance(error, CorruptionError) else None
        self._store.looked_up(lookup, damage)
        if error is not None:
            raise error
        found, freshness = lookup.found, self._freshness()
        fields: dict[str, object] = {
            "count": len(found.slices),
            "more": found.more,
            "complete": found.complete,
            "confirm": lookup.confirm,
            "settled": freshness.knows(self._store.epochs, lookup.confirm),
            "age_ms": freshness.age_ms,
            "node": freshness.node,
            "role": freshness.role,
        }
        return fields, found.slices


def search(lookup: Lookup) -> TwinlogError | None:
    """Run a search; return the error that ended it early.

    Runs in a thread: neither the index nor the records are likely to be in memory. If files or the
    log change meanwhile (a cut), the error says so, and the client asks again.
    """
    try:
        lookup.run()
    except (DiskError, IndexError, ValueError, struct.error):  # a file was deleted meanwhile
        return Busy("index or log changed during the search", hint="ask again")
    except TwinlogError as error:
        return error
    return None


def copy(lookup: Lookup) -> TwinlogError | None:
    """Copy the records that a search found, in a thread too; `Finds.finish` checks the result."""
    found = lookup.found
    found.slices = [memoryview(bytes(piece)) for piece in found.slices]
    return None

"""Finding messages by key: what a FIND asks for, who searches, what is answered.

A search is chosen on the loop and carried out in a thread, because index and records may have to
come from the disk. Like a read it is bound by confirm, and a slave that has not heard from its
master for too long refuses it.

Answers: records newest first as payload; ``more`` (ask again below the last one), ``complete``
(False: the index had too many entries to look at all, or in time), ``confirm`` (below which was
searched), ``settled`` (that is everything that was acknowledged before; of a master), and as for a
read age, node, role.

Not here: searching (`storage.key_query`), threads and sockets (`node.client_server`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from node.limits import Limits
from node.reads import Standing
from storage.epoch_history import Epoch
from storage.errors import DiskError
from storage.key_query import RESULTS_DEFAULT, RESULTS_MAX, TIME_MAX, KeyQuery, Lookup
from twinlog.errors import (
    Busy,
    CorruptionError,
    TwinlogError,
    Unavailable,
    UnknownTopic,
    UsageError,
)

Answer = tuple[Mapping[str, object], Sequence[memoryview]]


class FindStore(Protocol):
    """The part of the store this module uses."""

    @property
    def epochs(self) -> Sequence[Epoch]:
        """The epochs of the log, oldest first."""
        ...

    def look_up(self, query: KeyQuery, *, wall_ms: int = 0) -> Lookup:
        """A search, to be run in a thread."""
        ...

    def looked_up(self, lookup: Lookup, error: CorruptionError | None) -> None:
        """Take a search back; raises what came of damage."""
        ...


def parse_find(fields: Mapping[str, object], limits: Limits) -> tuple[KeyQuery, float]:
    """Return what a client asks for and how long it waits, s, its wishes cut to the node's limits.

    Raises:
        UsageError: A field is missing or not of its kind.
    """
    topic, key = fields.get("topic"), fields.get("key")
    if not isinstance(topic, str) or not isinstance(key, str) or not key:
        raise UsageError("a search names topic and key", code="fields")
    query = KeyQuery(
        topic,
        key,
        most=min(max(_whole(fields, "max", RESULTS_DEFAULT), 1), RESULTS_MAX),
        begin=_whole(fields, "begin", 0),
        end=_whole(fields, "end", TIME_MAX),
        before=_whole(fields, "before", TIME_MAX),
        unique=fields.get("unique") is True,
        max_bytes=limits.response_size_max,
    )
    most = limits.find_seconds_max
    return query, min(_whole(fields, "timeout_ms", round(most * 1000)) / 1000, most)


def _whole(fields: Mapping[str, object], name: str, default: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or value < 0:
        raise UsageError(f"{name} is a whole number", code="fields")
    return value


class Finds:
    """The searches of one node; holds no state of its own.

    Args:
        store: Where to look.
        standing: What the node is now.
        staleness_max: Seconds without a word from the master after which a slave refuses.
        wall_ms: Names a new file of the index.
    """

    def __init__(
        self,
        store: FindStore,
        standing: Callable[[], Standing],
        *,
        staleness_max: float,
        wall_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._standing = standing
        self._staleness_max = staleness_max
        self._wall_ms = wall_ms

    def begin(self, query: KeyQuery) -> Lookup:
        """Return the search; `search` carries it out, then `finish` takes it.

        Raises:
            Unavailable: This node is too far behind, has no index, or is building it.
            UnknownTopic: There is no such topic.
        """
        standing = self._standing()
        if standing.role != "master" and standing.age_seconds > self._staleness_max:
            raise Unavailable(
                f"{standing.node} has not heard from its master for {standing.age_ms} ms",
                code="stale",
                hint="ask another node, or the master",
            )
        try:
            return self._store.look_up(query, wall_ms=self._wall_ms())
        except UnknownTopic as error:
            raise standing.doubted(error) from None

    def finish(self, lookup: Lookup, error: TwinlogError | None) -> Answer:
        """Return the answer to a search that ran, or raise what came of it.

        Raises:
            TwinlogError: Nothing is served; a retryable one may be tried again at once.
        """
        damage = error if isinstance(error, CorruptionError) else None
        self._store.looked_up(lookup, damage)
        if error is not None:
            raise error
        found, standing = lookup.found, self._standing()
        fields: dict[str, object] = {
            "count": len(found.slices),
            "more": found.more,
            "complete": found.complete,
            "confirm": lookup.confirm,
            "settled": standing.knows(self._store.epochs, lookup.confirm),
            "age_ms": standing.age_ms,
            "node": standing.node,
            "role": standing.role,
        }
        return fields, found.slices


def search(lookup: Lookup) -> TwinlogError | None:
    """Carry out a search; returns what ended it early.

    Runs in a thread: neither the index nor the records are likely to be in memory. Files and log
    may change under it (a cut); then it says so, and the client asks again.
    """
    try:
        lookup.run()
    except (DiskError, IndexError, ValueError, struct.error):  # a file left, be it half read
        return Busy("index or log changed during the search", hint="ask again")
    except TwinlogError as error:
        return error
    return None


def copy(lookup: Lookup) -> TwinlogError | None:
    """Copy what a search found, in a thread too; whether it is whole is for `Finds.finish`."""
    found = lookup.found
    found.slices = [memoryview(bytes(piece)) for piece in found.slices]
    return None

"""OFFSETS, GET and lists of topics: offsets of queues and times, single records by log offset.

Each method takes a request's fields and returns the answer, or the lookup that a thread must run
for it (`Asked`, run by ``node.clients.off_loop``). Offsets are queue offsets in records unless a
name says log offset (bytes); ages on the wire are milliseconds.

Not here: reads of ranges (``node.clients.reads``), searches by key (``node.clients.searches``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from node.clients.freshness import Freshness
from node.clients.metadata import everything, page_of_topics
from node.clients.refusals import no_topic
from node.topics.altering import terms_of
from storage.read.lookups import OffLoopLookup
from storage.state.gathered import topic_of
from twinlog.errors import UnknownTopic, UsageError
from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.format.record import FLAG_BORN_V6, FLAG_STORE_V6, decode, unpack_host
from twinlog.format.system_topics import (
    DELAY_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    SYSTEM_TOPIC_GROUP,
    TIMER_TOPIC,
)
from twinlog.format.waiting.delay_levels import REAL_TOPIC

if TYPE_CHECKING:
    from storage.reads import StoreReads

T = TypeVar("T")
LIST_QUEUES_MAX = 4096
"""Queues in one page of topics with their messages: some milliseconds on the loop."""

Reads = Callable[[str], bool]
"""Whether who asks may read a topic."""

Answer = tuple[Mapping[str, object], Sequence[memoryview]]
"""Fields and payload."""

_OWN = frozenset({SYSTEM_TOPIC_GROUP, DELAY_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC})
"""Topics that clients may read and no list of topics shows."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[T]):
    """An answer that needs a lookup in a worker thread first.

    Attributes:
        look: The lookup.
        finish: Makes the answer from its result, on the loop; raises the error for the client.
    """

    look: OffLoopLookup[T]
    finish: Callable[[T | Exception], Answer]


class Lookups:
    """Answers lookups from one store; keeps no state."""

    def __init__(self, store: StoreReads, freshness: Callable[[], Freshness]) -> None:
        self._store = store
        self._freshness = freshness

    def _settled(self, freshness: Freshness) -> bool:
        """Whether the queues have everything that was acknowledged before this moment (R53).

        The queues of a master that has just started end where its snapshot was taken, until they
        are built up to the confirm offset.
        """
        store = self._store
        return store.dispatched >= store.confirm and freshness.knows(store.epochs, store.confirm)

    def offsets(self, fields: Mapping[str, object]) -> Answer | Asked[list[tuple[int, int, int]]]:
        """Return first and next offset of a topic's queues; times are looked up in a thread.

        Raises:
            UnknownTopic: No such topic, or no such queue of it.
            NotYetConfirmed: Its record is in the log but not confirmed yet.
            UsageError: A field has the wrong type.
        """
        topic, wanted, at_ms = fields.get("topic"), fields.get("queues"), fields.get("at_ms")
        if not isinstance(topic, str):
            raise UsageError("offsets names a topic", code="fields")
        if at_ms is not None and not isinstance(at_ms, int):
            raise UsageError("at_ms is a time in ms", code="fields")
        freshness = self._freshness()
        own = topic in _OWN or topic.startswith(LIGHT_PREFIX)
        count = self._store.queues(topic) if own else self._store.topics().get(topic)
        if count is None:
            raise freshness.doubted(no_topic(self._store, topic))
        queues = range(count) if wanted is None else list(dict.fromkeys(_numbers(wanted)))
        for queue in queues:
            if not 0 <= queue < count:
                text = f"topic {topic} has queues 0 to {count - 1}, not {queue}"
                raise freshness.doubted(UnknownTopic(text, code="unknown-queue"))
        fields = {  # taken at the same moment as the ends of the queues
            "confirm": self._store.confirm,
            "dispatched": self._store.dispatched,
            "age_ms": freshness.age_ms,
            "node": freshness.node,
            "role": freshness.role,
            "settled": self._settled(freshness),
        }
        if at_ms is None:
            spans = [(*self._store.queue_range(topic, queue), None) for queue in queues]
            return {"queues": _by_queue(queues, spans), **fields}, ()
        look = self._store.offsets_at_time(topic, queues, at_ms)

        def finish(found: list[tuple[int, int, int]] | Exception) -> Answer:
            spans = self._store.looked_at(look, found)
            return {"queues": _by_queue(queues, spans), **fields}, ()

        return Asked(look, finish)

    def topics(
        self, fields: Mapping[str, object], sees: Callable[[str, str], bool] = everything
    ) -> dict[str, object]:
        """Return a page of topics with the number of messages in each, by name.

        Only topics that who asks ``sees``.

        A page has at most `LIST_QUEUES_MAX` queues, unless its only topic has more: their ends are
        looked up on the loop.
        """
        after, known = fields.get("after"), self._store.topics()
        if sees is not everything:
            known = {name: queues for name, queues in known.items() if sees("topic", name)}
        page = page_of_topics(known, after if isinstance(after, str) else "", LIST_QUEUES_MAX)
        freshness = self._freshness()
        listed = cast("Mapping[str, int]", page["topics"])
        return {
            **page,
            "messages": {name: self._messages(name, queues) for name, queues in listed.items()},
            "terms": self._terms(listed),
            "role": freshness.role,
            "age_ms": freshness.age_ms,
            "settled": self._settled(freshness) and not self._store.topics_waiting(),
        }

    def _terms(self, listed: Collection[str]) -> dict[str, object]:
        """Return permission, quotas and queues that take messages, of topics that were altered."""
        found = {name: self._store.terms(name) for name in self._store.grown().keys() & listed}
        return {name: terms_of(one) for name, one in found.items() if one is not None}

    def _messages(self, topic: str, queues: int) -> int:
        if self._store.since(topic) > self._store.dispatched:
            return 0  # made again: what its queues may still hold is of the topic before
        ranges = [self._store.queue_range(topic, queue) for queue in range(queues)]
        return sum(end - start for start, end in ranges)

    def topic_at(self, log_offset: int) -> str:
        """Return for which topic a record waits, or its own; empty: there is no such record."""
        if not self._store.start <= log_offset < self._store.confirm:
            return ""
        record = self._store.record_at(log_offset)
        if record is None:
            return ""
        return _topic(record)

    def get(
        self, fields: Mapping[str, object], reads: Reads | None = None
    ) -> Answer | Asked[memoryview | None]:
        """Return one record by its log offset; with ``host``, only if that host has stored it.

        A record of a topic that who asks may not read is not there.

        A record that may need the disk is looked up in a thread. For one above confirm the answer
        says whether it may have been acknowledged nevertheless: see `Freshness.knows`.

        Raises:
            UsageError: No log offset is named.
        """
        offset = fields.get("log_offset")
        if not isinstance(offset, int) or offset < 0:
            raise UsageError("get names a log offset", code="fields")
        if offset >= self._store.confirm:
            status = "above-confirm" if offset < self._store.end else "past-end"
            known = self._freshness().knows(self._store.epochs, self._store.confirm)
            return {"status": status, "settled": known}, ()
        wanted = fields.get("host")
        look = self._store.record_cold(offset)
        if look is None:
            return _one(self._store.record_at(offset), wanted, reads)
        return Asked(look, lambda found: _one(self._store.looked_at(look, found), wanted, reads))


def _by_queue(
    queues: Sequence[int], spans: Sequence[tuple[int, int, int | None]]
) -> dict[int, list[int | None]]:
    return {queue: list(span) for queue, span in zip(queues, spans, strict=True)}


def _topic(record: memoryview) -> str:
    """Return the topic of a record, of one that waits the topic for which it does."""
    topic = topic_of(record, 0).decode()
    if topic in (DELAY_TOPIC, TIMER_TOPIC):
        return decode(record, check_crc=False).properties.get(REAL_TOPIC, topic)
    return topic


def _one(record: memoryview | None, wanted: object, reads: Reads | None) -> Answer:
    """Return the answer to a GET of a record; ``wanted`` is the host that must have stored it."""
    if record is None or (reads is not None and not reads(_topic(record))):
        return {"status": "none"}, ()
    if isinstance(wanted, bytes) and (host := _store_host(record)) != wanted:
        return {"status": "other-host", "stored_by": unpack_host(host)}, ()
    return {"status": "found"}, (record,)


def _store_host(record: memoryview) -> bytes:
    """Return the address that a stored record says it was stored at, 8 or 20 bytes."""
    at = 56 + (12 if record[39] & FLAG_BORN_V6 else 0) + 8
    return bytes(record[at : at + (20 if record[39] & FLAG_STORE_V6 else 8)])


def _numbers(value: object) -> list[int]:
    if not isinstance(value, list):
        raise UsageError("queues is a list of numbers", code="fields")
    found: list[int] = []
    for item in value:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(item, int):
            raise UsageError("queues is a list of numbers", code="fields")
        found.append(item)
    return found

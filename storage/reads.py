"""Reads of an open store: records by offset, time, key and log offset, below confirm.

While a cut removes confirmed records, reads are refused. Results of worker threads are judged on
the event loop afterwards (`StoreReads.fetched`, `looked_at`, `looked_up`): the log may have been
cut meanwhile.

Not here: how records are found and proven (`storage.read.reader`, `storage.read.lookups`,
`storage.key_index.search`), writing and cutting (`storage.store`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from storage.damage import Damage
from storage.errors import IndexBehind, IndexOff
from storage.key_index.search import KeyQuery, Lookup
from storage.read.filters import PropertyFilter
from storage.read.lookups import Lookups, OffLoopLookup
from storage.read.raw import RawPiece, raw_piece
from storage.read.reader import Reader
from storage.read.result import ReadResult
from storage.recovery.opened import Opened
from storage.state.access import Access
from storage.state.control import Control
from storage.state.topics import Topic
from twinlog import levels
from twinlog.errors import Busy, CorruptionError, TopicClosed, TwinlogError
from twinlog.format.epoch_history import Epoch

T = TypeVar("T")


class StoreReads:
    """The reads of one open store.

    Args:
        opened: The store.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._disk = opened.disk
        self._log = opened.log
        self._lookups = Lookups(opened.log, opened.settings.hot_bytes, opened.read_damaged)
        self.rewire()

    def rewire(self) -> None:
        """Use the present derived state: a cut has replaced it."""
        opened, derived = self._opened, self._opened.derived
        self._reader = Reader(
            opened.log, settings=opened.settings, layers=derived.layers, queues=derived.queues,
            dispatched=lambda: derived.dispatcher.position, damaged=opened.read_damaged,
        )  # fmt: skip

    # -- positions that bound reads

    @property
    def start(self) -> int:
        """First byte still kept."""
        return self._log.start

    @property
    def end(self) -> int:
        """First byte not yet written, to the file or to the memory pool."""
        return self._log.tail

    @property
    def confirm(self) -> int:
        """Only records below it are read."""
        return self._opened.confirm

    @property
    def dispatched(self) -> int:
        """Queues are built up to here."""
        return self._opened.derived.dispatcher.position

    @property
    def timestamp(self) -> int:
        """Store timestamp of the newest record, ms; it never falls along the log."""
        return self._log.timestamp

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The epochs of the log, oldest first."""
        return self._log.history.epochs

    # -- topics and queues

    def topics(self) -> dict[str, int]:
        """Return confirmed topics and how many queues they have."""
        found = self._opened.derived.layers.confirmed.topics
        return {name: topic.queues for name, topic in found.items()}

    def terms(self, topic: str) -> Topic | None:
        """Return a confirmed topic with its permission and quotas, as all nodes have it."""
        return self._opened.derived.layers.confirmed.topics.get(topic)

    def refusal(self, change: Control) -> tuple[str, str] | None:
        """Return (code, text) if a master would not append a control record now."""
        layers = self._opened.derived.layers
        return levels.refusal(change.LEVEL, layers.level) or change.refusal(layers)

    def limited(self) -> Mapping[str, tuple[int, int]]:
        """Return the topics with a quota: records and bytes a second; 0: none of that kind."""
        return self._opened.derived.layers.limited

    def narrowed(self) -> Mapping[str, int]:
        """Return how many queues take messages, by topic, where it is not all of them."""
        return self._opened.derived.layers.narrowed

    def grown(self) -> Mapping[str, int]:
        """Return how many queues a topic has, of those that were altered."""
        return self._opened.derived.layers.grown

    def closed(self) -> frozenset[str]:
        """Return the topics of which no message may be read."""
        return self._opened.derived.layers.closed

    def check_open(self, topic: str) -> None:
        """Refuse a topic of which no message may be read.

        Raises:
            TopicClosed: It may not be read.
        """
        if topic in self._opened.derived.layers.closed:
            text = f"topic {topic} may not be read"
            raise TopicClosed(text, hint=f"allow it: twinlog topic alter {topic} --perm rw")

    def access(self) -> Access:
        """Return the users and rules that bind now; the same object until they may have changed."""
        return self._opened.derived.layers.access_now()

    def queues(self, topic: str) -> int | None:
        """Return how many queues a topic has that may be consumed; None: no such topic.

        Not one that a record in the log deletes, nor one that was made again while its queues may
        still hold what was before: then `missing` says so.
        """
        derived = self._opened.derived
        confirmed = derived.layers.confirmed
        known = confirmed.topics.get(topic)
        if known is None or (derived.layers.open is confirmed.topics and not confirmed.deleted):
            return confirmed.queues(topic)
        early = known.since > derived.dispatcher.position
        return known.queues if topic in derived.layers.open and not early else None

    def _exists(self, topic: str) -> bool:
        return self._opened.derived.layers.confirmed.queues(topic) is not None

    def since(self, topic: str) -> int:
        """Return the log offset from which on records are of a topic; 0: all of that name are."""
        known = self._opened.derived.layers.confirmed.topics.get(topic)
        return known.since if known is not None else 0

    def remains(self, topic: str) -> bool:
        """Whether the log still holds what a deleted topic of this name may have left."""
        gone = self._opened.derived.layers.gone(topic)
        return gone is not None and gone.end > self.start

    def missing(self, topic: str) -> TwinlogError:
        """Return why a topic is not among `topics`; see `storage.state.layers.Layers.missing`."""
        return self._opened.derived.layers.missing(topic)

    def topics_waiting(self) -> bool:
        """Return whether the log has topics that are not confirmed."""
        return self._opened.derived.layers.topics_waiting()

    def batched(self) -> frozenset[str]:
        """Return the confirmed topics that have batch queues."""
        confirmed = self._opened.derived.layers.confirmed
        return frozenset(confirmed.batched & confirmed.topics.keys())

    def queue_range(self, topic: str, queue: int) -> tuple[int, int]:
        """Return (start, end) of a queue; raises `twinlog.errors.UnknownTopic`."""
        return self._reader.range(topic, queue)

    def offset_at(self, topic: str, queue: int, ms: int) -> int:
        """Return the first queue offset whose record was stored at ``ms`` or later.

        Reads some records from the disk: for what happens once. Raises as `offsets_at_time`, and
        `CorruptionError` for damage.
        """
        look = self.offsets_at_time(topic, [queue], ms)
        return self.looked_at(look, look.run(lambda: False))[0][2]

    def _check_readable(self) -> None:
        if self._opened.losing:
            raise Busy("a cut is removing confirmed records at this moment", hint="ask again")

    def read(
        self,
        topic: str,
        queue: int,
        queue_offset: int,
        *,
        max_bytes: int,
        max_records: int,
        tag_hashes: frozenset[int] | None = None,
        where: PropertyFilter | None = None,
    ) -> ReadResult:
        """Return confirmed records; see `storage.read.reader.Reader.read`.

        A ``cold`` result is completed in a thread and then passed to `fetched`.

        Raises:
            Busy: A cut is removing confirmed records.
            CorruptionError: Damage; the store is quarantined and no wrong record was served.
        """
        self._check_readable()
        unconfirmed = self._opened.derived.dispatcher.position < self._log.tail
        found = self._reader.read(
            topic, queue, queue_offset, max_bytes=max_bytes, max_records=max_records,
            tag_hashes=tag_hashes, where=where, unconfirmed=unconfirmed,
        )  # fmt: skip
        return replace(found, generation=self._opened.generation) if found.cold else found

    def fetched(self, result: ReadResult, outcome: ReadResult | Exception) -> ReadResult:
        """Return the servable part of a cold answer after its thread; see `Reader.fetched`.

        Raises:
            Busy: The log was cut or files were deleted meanwhile: the result is void.
            CorruptionError: Damage; the store is quarantined.
        """
        if result.generation != self._opened.generation:
            raise Busy("the log was cut while it was read", hint="ask again")
        return self._reader.fetched(result, outcome)

    def offsets_at_time(
        self, topic: str, queues: Sequence[int], ms: int, *, upper: bool = False
    ) -> OffLoopLookup[list[tuple[int, int, int]]]:
        """Return the lookup of start, end and offset of a time; see `storage.read.lookups`.

        Raises:
            Busy: A cut is removing confirmed records.
            UnknownTopic: There is no such topic or queue.
        """
        self._check_readable()
        spans = [self._reader.span(topic, queue) for queue in queues]
        return replace(
            self._lookups.times(spans, ms, upper=upper), generation=self._opened.generation
        )

    def stored_at(self, places: Sequence[tuple[str, int, int]]) -> OffLoopLookup[list[int]]:
        """Return the lookup of when messages were stored: (topic, queue, queue offset) of each.

        Its result is passed to `looked_at`.

        Raises:
            Busy: A cut is removing confirmed records.
            UnknownTopic: There is no such topic or queue.
        """
        self._check_readable()
        spans = [(self._reader.span(topic, queue), number) for topic, queue, number in places]
        return replace(self._lookups.stamps(spans), generation=self._opened.generation)

    def record_at(self, log_offset: int) -> memoryview | None:
        """Return the confirmed record that begins at ``log_offset``; None if none does.

        For a record in memory; for others see `record_cold`.
        """
        self._check_readable()
        return self._lookups.record_at(log_offset, self._opened.confirm)

    def record_cold(self, log_offset: int) -> OffLoopLookup[memoryview | None] | None:
        """Return the lookup of a record that is probably not in memory; None for others.

        Its result is passed to `looked_at`.
        """
        self._check_readable()
        look = self._lookups.record_cold(log_offset, self._opened.confirm)
        return None if look is None else replace(look, generation=self._opened.generation)

    def is_cold(self, offset: int) -> bool:
        """Whether a record is probably not in memory."""
        return self._lookups.is_cold(offset)

    def stretches(
        self, places: Sequence[tuple[int, int]]
    ) -> list[memoryview] | OffLoopLookup[list[memoryview]]:
        """Return confirmed records by (log offset, size), or a lookup for `looked_at`.

        Raises:
            Busy: A cut is removing confirmed records.
            CorruptionError: Damage; the store is quarantined.
        """
        self._check_readable()
        found = self._lookups.stretches(places)
        if isinstance(found, list):
            return found
        return replace(found, generation=self._opened.generation)

    def looked_at(self, look: OffLoopLookup[T], outcome: T | Exception) -> T:
        """Return what a thread found; see `storage.read.lookups.Lookups.judged`.

        Raises:
            Busy: The log was cut or files were deleted meanwhile: the result is void.
            CorruptionError: Damage; the store is quarantined.
        """
        if look.generation != self._opened.generation:
            raise Busy("the log was cut during the lookup", hint="ask again")
        return self._lookups.judged(look, outcome)

    def raw(self, offset: int, max_bytes: int) -> RawPiece | None:
        """Return bytes below confirm as stored; see `storage.read.raw.raw_piece`.

        Raises:
            Busy: A cut is removing confirmed records.
            CorruptionError: The batch index is damaged there; the store is quarantined.
        """
        self._check_readable()
        limit = min(self._opened.confirm, self._log.end)
        try:
            return raw_piece(self._log.segments, offset, limit=limit, max_bytes=max_bytes)
        except CorruptionError as error:
            self._opened.read_damaged(error)
            raise

    def look_up(self, query: KeyQuery, *, wall_ms: int = 0) -> Lookup:
        """Return a search for the confirmed records with a key; ``run`` it, then `looked_up`.

        Raises:
            UnknownTopic: There is no such topic.
            NotYetConfirmed: Its record is not confirmed.
            Busy: A cut is removing confirmed records.
            Unavailable: The index is turned off, or (retryable) is being built.
            DiskError: The index could not be brought up to date.
            CorruptionError: The log is damaged; the store is quarantined.
        """
        self._check_readable()
        keys, segments = self._opened.derived.keys, self._log.segments
        if not self._exists(query.topic):
            raise self.missing(query.topic)
        if keys is None:
            raise IndexOff.of_node()
        try:
            if not keys.catch_up(segments, self._opened.confirm, wall_ms):
                raise IndexBehind.at(keys.position, self._opened.confirm)
        except CorruptionError as error:
            self._opened.read_damaged(error)
            raise
        since = self.since(query.topic)
        lookup = Lookup(self._disk, segments, query, self._opened.confirm, since)
        lookup.generation = self._opened.generation
        return lookup.over(keys.files, keys.current, keys.seals)

    def looked_up(self, lookup: Lookup, error: CorruptionError | None) -> None:
        """Finish a search after it ran.

        With damage: a damaged index file is set aside and rebuilt, damage of the log quarantines
        the store.

        Raises:
            Busy: The log was cut, or files were deleted, meanwhile; the result is void.
            IndexBehind: A file of the index was damaged; try again later.
            CorruptionError: The log is damaged; no wrong record was returned.
        """
        keys = self._opened.derived.keys
        if lookup.generation != self._opened.generation:
            raise Busy("the log was cut during the search", hint="ask again")
        if lookup.since != self.since(lookup.query.topic) or not self._exists(lookup.query.topic):
            raise Busy("the topic was deleted during the search", hint="ask again")
        if error is None:
            return
        if not lookup.bad_file and lookup.at < self._log.start:
            raise Busy("retention deleted a record during the search", hint="ask again")
        if not lookup.bad_file or keys is None:
            self._opened.read_damaged(error)
            raise error
        keys.give_up(lookup.bad_file, error.text, self._log.segments)
        raise IndexBehind.at(keys.position, self._opened.confirm)

    @property
    def only_copy(self) -> bool:
        """Whether no other node is known to have what this log has (`Opened.only_copy`)."""
        return self._opened.only_copy

    @only_copy.setter
    def only_copy(self, alone: bool) -> None:
        self._opened.only_copy = alone

    def refused_batches(self) -> list[Damage]:
        """Return damage that reads found while this log is the only copy, once each."""
        found, self._opened.refused = self._opened.refused, []
        return found

    def index_notes(self) -> list[str]:
        """Return damage of the key index that was found and repaired since the last call."""
        keys = self._opened.derived.keys
        notes = list(keys.notes) if keys is not None else []
        if keys is not None:
            keys.notes.clear()
        return notes

"""What an open store answers: records by offset, time, key and log offset, below confirm.

While a cut takes confirmed records away, nothing is read. What is read in a thread is judged on the
loop afterwards (`Serving.fetched`, `looked_at`, `looked_up`): the log may have been cut meanwhile.

Not here: how records are found and proven (`storage.reads`, `storage.looks`,
`storage.key_query`), writing and
cutting (`storage.store`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from storage.cold_look import ColdLook
from storage.derived import damage_of
from storage.errors import IndexBehind, IndexOff
from storage.filtering import Sieve
from storage.key_query import KeyQuery, Lookup
from storage.raw import RawPiece, raw_piece
from storage.reads import ReadResult
from storage.upkeep import Upkeep
from twinlog.errors import Busy, CorruptionError, TwinlogError

T = TypeVar("T")


class Serving(Upkeep):
    """The answers of an open store; see `storage.store.Store` for the attributes."""

    def topics(self) -> dict[str, int]:
        """Return confirmed topics and how many queues they have."""
        found = self._derived.layers.confirmed.topics
        return {name: topic.queues for name, topic in found.items()}

    def missing(self, topic: str) -> TwinlogError:
        """Return why a topic is not among `topics`; see `storage.state.Layers.missing`."""
        return self._derived.layers.missing(topic)

    def topics_waiting(self) -> bool:
        """Return whether the log has topics that are not confirmed."""
        return self._derived.layers.topics_waiting()

    def batched(self) -> frozenset[str]:
        """Return the confirmed topics that have batch queues."""
        confirmed = self._derived.layers.confirmed
        return frozenset(confirmed.batched & confirmed.topics.keys())

    def queue_range(self, topic: str, queue: int) -> tuple[int, int]:
        """Return (start, end) of a queue; raises `twinlog.errors.UnknownTopic`."""
        return self._reader.range(topic, queue)

    def _check_readable(self) -> None:
        if self._losing:
            raise Busy("a cut takes confirmed records away at this moment", hint="ask again")

    def read(
        self,
        topic: str,
        queue: int,
        queue_offset: int,
        *,
        max_bytes: int,
        max_records: int,
        tag_hashes: frozenset[int] | None = None,
        where: Sieve | None = None,
    ) -> ReadResult:
        """Return confirmed records; see `storage.reads.Reader.read`.

        What is ``cold`` is proven in a thread and then goes through `fetched`.

        Raises:
            Busy: Records are being cut off that were confirmed.
            CorruptionError: Damage; the store is quarantined and nothing wrong was served.
        """
        self._check_readable()
        unconfirmed = self._derived.dispatcher.position < self._log.tail
        found = self._reader.read(
            topic, queue, queue_offset, max_bytes=max_bytes, max_records=max_records,
            tag_hashes=tag_hashes, where=where, unconfirmed=unconfirmed,
        )  # fmt: skip
        return replace(found, generation=self._generation) if found.cold else found

    def fetched(self, result: ReadResult, outcome: ReadResult | Exception) -> ReadResult:
        """Return what may be served of a cold answer after its thread; see `Reader.fetched`.

        Raises:
            Busy: The log was cut or files left meanwhile: what was fetched says nothing.
            CorruptionError: Damage; the store is quarantined.
        """
        if result.generation != self._generation:
            raise Busy("the log was cut while it was read", hint="ask again")
        return self._reader.fetched(result, outcome)

    def offsets_at_time(
        self, topic: str, queues: Sequence[int], ms: int, *, upper: bool = False
    ) -> ColdLook[list[tuple[int, int, int]]]:
        """Return the look for start, end, offset of a time, of queues; see `storage.looks`.

        Raises:
            Busy: Records are being cut off that were confirmed.
            UnknownTopic: There is no such topic or queue.
        """
        self._check_readable()
        spans = [self._reader.span(topic, queue) for queue in queues]
        return replace(self._looks.times(spans, ms, upper=upper), generation=self._generation)

    def record_at(self, log_offset: int) -> memoryview | None:
        """Return the confirmed record that begins at ``log_offset``; None when none does.

        For one that is in memory: see `record_cold`.
        """
        self._check_readable()
        return self._looks.record_at(log_offset, self.confirm)

    def record_cold(self, log_offset: int) -> ColdLook[memoryview | None] | None:
        """Return the look for a record that is hardly in memory; None for one that is.

        What is looked up in a thread goes through `looked_at`.
        """
        self._check_readable()
        look = self._looks.record_cold(log_offset, self.confirm)
        return None if look is None else replace(look, generation=self._generation)

    def looked_at(self, look: ColdLook[T], outcome: T | Exception) -> T:
        """Return what a thread found; see `storage.looks.Looks.judged`.

        Raises:
            Busy: The log was cut or files left meanwhile: what was found says nothing.
            CorruptionError: Damage; the store is quarantined.
        """
        if look.generation != self._generation:
            raise Busy("the log was cut during the look", hint="ask again")
        return self._looks.judged(look, outcome)

    def raw(self, offset: int, max_bytes: int) -> RawPiece | None:
        """Return bytes below confirm as they lie; see `storage.raw.raw_piece`.

        Raises:
            Busy: Records are being cut off that were confirmed.
            CorruptionError: The batch index is damaged there; the store is quarantined.
        """
        self._check_readable()
        limit = min(self.confirm, self._log.end)
        try:
            return raw_piece(self._log.segments, offset, limit=limit, max_bytes=max_bytes)
        except CorruptionError as error:
            self._damaged(error)
            raise

    def look_up(self, query: KeyQuery, *, wall_ms: int = 0) -> Lookup:
        """Return a search for the confirmed records with a key; ``run`` it, then `looked_up`.

        Raises:
            UnknownTopic: There is no such topic.
            NotYetConfirmed: Its record is not confirmed.
            Busy: Records are being cut off that were confirmed.
            Unavailable: The index is turned off, or (retryable) is being built.
            DiskError: The index could not be brought up to date.
            CorruptionError: The log is damaged; the store is quarantined.
        """
        self._check_readable()
        keys, segments = self._derived.keys, self._log.segments
        if self._derived.layers.confirmed.queues(query.topic) is None:
            raise self._derived.layers.missing(query.topic)
        if keys is None:
            raise IndexOff.of_node()
        try:
            if not keys.catch_up(segments, self.confirm, wall_ms):
                raise IndexBehind.at(keys.position, self.confirm)
        except CorruptionError as error:
            self.mark_quarantine(damage_of(error))
            raise
        lookup = Lookup(self._disk, segments, query, self.confirm)
        lookup.generation = self._generation
        return lookup.over(keys.files, keys.current, keys.seals)

    def looked_up(self, lookup: Lookup, error: CorruptionError | None) -> None:
        """Take a search back after it ran.

        With damage: a file of the index is set aside and built again, one of the log quarantines
        the store.

        Raises:
            Busy: The log was cut, or files left, meanwhile; what was found says nothing.
            IndexBehind: A file of the index was damaged; to be tried again.
            CorruptionError: The log is damaged; nothing wrong was found.
        """
        keys = self._derived.keys
        if lookup.generation != self._generation:
            raise Busy("the log was cut during the search", hint="ask again")
        if error is None:
            return
        if not lookup.bad_file and lookup.at < self._log.start:
            raise Busy("retention took a record while it was looked for", hint="ask again")
        if not lookup.bad_file or keys is None:
            self.mark_quarantine(damage_of(error))
            raise error
        keys.give_up(lookup.bad_file, error.text, self._log.segments)
        raise IndexBehind.at(keys.position, self.confirm)

    def index_notes(self) -> list[str]:
        """Return what was found damaged in the key index since the last call, and mended."""
        keys = self._derived.keys
        notes = list(keys.notes) if keys is not None else []
        if keys is not None:
            keys.notes.clear()
        return notes

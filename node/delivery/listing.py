"""What waits, shown: answers to WAITING about messages that wait for a time or a delay level.

From the confirmed fold, so every node answers, and says how old what it knows is. A page has the
messages after a key, in the order in which they come. Their topics are in their records: a page
reads at most `PAGE_RECORDS` and about `PAGE_BYTES` of them, in a thread where they are not in
memory, and of a page for one topic the others are left out. Counts of seconds, minutes and hours
read nothing.

Not here: transactions (`node.transactions`), delivering (`node.delivery.service`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from node.clients.lookups import Answer, Asked
from storage.messaging.timers import Timers, Waiting
from storage.read.lookups import OffLoopLookup
from twinlog.errors import UsageError
from twinlog.format import record
from twinlog.format.waiting.delay_levels import LEVELS, destination
from twinlog.kernels.fields import DELAY_LEVELS_MS
from twinlog.units import MiB

if TYPE_CHECKING:
    from node.groups.context import Context, Done
    from node.groups.parked import Asker

PAGE_RECORDS = 500
"""Messages of one page."""
PAGE_BYTES = MiB
"""Records that are read for one page, but at least one."""
PAGE_SECONDS = 20_000
"""Seconds with waiting messages that are counted for one page: some milliseconds."""
PAGE_COUNTS = 2_000
"""Counts of one page."""
BY_MS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000}
"""What messages are counted by."""

Document = dict[str, object]


class Listing:
    """See the module.

    Args:
        context: The node.
        observed: Role, node and age, for answers.
        fetch: Reads cold records in a thread.
    """

    def __init__(
        self,
        context: Context,
        observed: Callable[[], Mapping[str, object]],
        fetch: Callable[[Asked[Any], Any, Any], None],
    ) -> None:
        self._context = context
        self._observed = observed
        self._fetch = fetch

    def answer(self, fields: Mapping[str, object], asker: Asker, done: Done) -> None:
        """Answer a WAITING, by what it asks for.

        * ``timers``: ``messages`` after the key (``first``, ``offset``); ``next`` and
          ``next_offset`` say where the next page begins.
        * ``times``: ``counts`` from the time ``first`` on, by ``by``.
        * ``delays``: ``levels`` that something waits for.

        Raises:
            UsageError: It asks for something else.
            TwinlogError: The records cannot be read now.
        """
        first, offset = _whole(fields, "first", 0), _whole(fields, "offset", -1)
        match fields["what"]:
            case "timers":
                limit = min(max(_whole(fields, "limit", 1), 1), PAGE_RECORDS)
                found = self._cut(self._timers.page((first, offset), limit))
                topic = fields.get("topic")
                more = bool(found) and bool(self._timers.page(found[-1][:2], 1))
                self._show(found, topic if isinstance(topic, str) else None, more, asker, done)
            case "times":
                done(self.times(str(fields.get("by") or "minute"), first))
            case "delays":
                done({**self._told(), "levels": self.levels()})
            case what:
                text = f"{str(what)[:100]!r} cannot be listed: halves, timers, times and"
                raise UsageError(f"{text} delays can", code="fields")

    @property
    def _timers(self) -> Timers:
        return self._context.messaging.confirmed.timers

    def _told(self) -> Document:
        return {
            "rows": [],
            "next": -1,
            "now_ms": self._context.wall_ms(),
            "epoch": self._context.driver.reign()[0],
            "waiting": self._timers.count,
            **self._observed(),
        }

    # -- counts

    def times(self, by: str, first_ms: int) -> Document:
        """Return how many messages wait for each second, minute or hour from a time on.

        Raises:
            UsageError: ``by`` is something else.
        """
        width = BY_MS.get(by)
        if width is None:
            raise UsageError(f"by is second, minute or hour, not {by[:100]!r}", code="fields")
        found: dict[int, int] = {}
        after = -1
        begin = max(first_ms, 0) // width * width
        for looked, (second, count) in enumerate(self._timers.counts(begin // 1000)):
            at = second * 1000 // width * width
            if at not in found and (looked >= PAGE_SECONDS or len(found) == PAGE_COUNTS):
                after = at
                break
            found[at] = found.get(at, 0) + count
        counts = [[at, count] for at, count in found.items()]
        return {**self._told(), "by": by, "counts": counts, "next": after}

    def overview(self, by: str, first_ms: int) -> Document:
        """Return `times`, and the delay levels that something waits for, for the HTTP port.

        Raises:
            UsageError: ``by`` is something else.
            TwinlogError: The queue of a level cannot be read now.
        """
        found = {**self.times(by, first_ms), "levels": self.levels()}
        del found["rows"]
        return found

    def levels(self) -> list[Document]:
        """Return the delay levels that something waits for: how many, and when the first is due."""
        messaging, found = self._context.messaging, list[Document]()
        for level in range(1, LEVELS + 1):
            count = messaging.delays_waiting(level)
            if count:
                first = messaging.first_delayed(level)
                found.append(
                    {
                        "level": level,
                        "delay_ms": DELAY_LEVELS_MS[level - 1],
                        "waiting": count,
                        "due_ms": first.due if first is not None else None,
                    }
                )
        return found

    # -- messages

    @staticmethod
    def _cut(found: list[Waiting]) -> list[Waiting]:
        """Leave out what is beyond the bytes of a page."""
        left = PAGE_BYTES
        for number, one in enumerate(found):
            left -= one.size
            if left < 0:
                return found[: max(number, 1)]
        return found

    def _show(
        self, found: Sequence[Waiting], topic: str | None, more: bool, asker: Asker, done: Done
    ) -> None:
        """Answer with messages, of one topic only; ``more``: others come after the last one."""

        def answer(pieces: Sequence[memoryview]) -> Document:
            messages = [_document(one, piece) for one, piece in zip(found, pieces, strict=True)]
            if topic is not None:
                messages = [one for one in messages if one["topic"] == topic]
            last = {"next": found[-1].due, "next_offset": found[-1].offset} if more else {}
            return {**self._told(), "messages": messages, **last}

        self._read([(one.at, one.size) for one in found], answer, asker, done)

    def _read(
        self,
        places: Sequence[tuple[int, int]],
        answer: Callable[[list[memoryview]], Document],
        asker: Asker,
        done: Done,
    ) -> None:
        records = self._context.records
        read = records.stretches(places) if places else list[memoryview]()
        if not isinstance(read, OffLoopLookup):
            done(answer(read))
            return

        def finish(outcome: list[memoryview] | Exception) -> Answer:
            return answer(records.looked_at(read, outcome)), ()

        self._fetch(Asked(read, finish), asker, done)


def _whole(fields: Mapping[str, object], name: str, otherwise: int) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else otherwise


def _document(one: Waiting, piece: memoryview) -> Document:
    """Return what is shown of a message; ``at`` is where it can be read, and taken back."""
    found = record.decode(piece)
    place = destination(found.properties)
    return {
        "due_ms": one.due,
        "log_offset": one.offset,
        "at": one.at,
        "size": one.size,
        "topic": place.topic if place is not None else None,
        "queue": place.queue if place is not None else None,
        "key": found.properties.get("KEYS"),
        "tag": found.properties.get("TAGS"),
        "stored_ms": found.store_timestamp,
        "born_ms": found.born_timestamp,
        "bytes": len(found.body),
    }

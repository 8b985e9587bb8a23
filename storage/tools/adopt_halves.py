"""Which messages of transactions an adoption finds open: what the log says, not RocketMQ's file.

A broker remembers ends for some seconds before it writes them (*op* records), so after a kill some
commits have no op, and it would ask about them and store them again. And each time it asks, it
stores the message again as another half; only the unique key ties the two. Here a message is taken
as one, whatever halves it has. It is not open if

* an op record names one of its halves;
* the log has its commit, which names the log offset of one of its halves;
* it was given up: RocketMQ writes no op for that, only the copy;
* all its halves lie below the position up to which the broker had looked.

How often RocketMQ asked does not count: it counts questions that no producer heard.

Not here: the adoption itself (`storage.tools.adopt`).

Source: RocketMQ 5.3 (``TransactionalMessageServiceImpl``, ``TransactionalMessageBridge``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from storage.tools.adopt_groups import positions_of
from twinlog.format.group_rows import COMMIT, GIVEN_UP, HalfRow, OpenRow
from twinlog.format.record import Record
from twinlog.format.system_topics import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from twinlog.format.waiting.delay_levels import REAL_QUEUE, REAL_TOPIC
from twinlog.format.waiting.halves import CHECKER, COMMITTED, GROUP, KIND_BITS, NAME
from twinlog.store.queues import Queue
from twinlog.store.reader import StoreReader

CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
"""Property of a half that was stored again, to be asked about."""
_UNIQUE = "UNIQ_KEY"

_Message = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class OpenHalves:
    """What is known of messages of transactions.

    Attributes:
        rows: Those that are open, in the order of the log.
        repeated: Commits without an op record: the broker's next start would have asked about them,
            and could have delivered them a second time.
        ended: Halves after the first open one that are settled and that no op record names: a
            broker that opens the store again would ask about them.
    """

    rows: tuple[OpenRow, ...] = ()
    repeated: int = 0
    ended: tuple[HalfRow, ...] = ()


NOTHING_OPEN = OpenHalves()


@dataclass(slots=True)
class _One:
    """A message: its newest half, when its first was stored, and how it ended."""

    half: Record
    stored_ms: int
    named: bool = False
    committed: bool = False
    gone: bool = False


@dataclass(slots=True)
class _Found:
    """The messages by what ties their halves, by half and by log offset."""

    by_message: dict[_Message, _One] = field(default_factory=dict[_Message, _One])
    by_number: dict[int, _One] = field(default_factory=dict[int, _One])
    by_offset: dict[int, _One] = field(default_factory=dict[int, _One])
    named: set[int] = field(default_factory=set[int])

    def enter(self, half: Record) -> None:
        """Take a half, in the order of the log."""
        key = _message(half)
        one = self.by_message.get(key)
        if one is None or (len(key) > 1 and CHECK_TIMES not in half.properties):
            one = self.by_message[key] = _One(half, half.store_timestamp)
        one.half = half
        self.by_number[half.queue_offset] = self.by_offset[half.log_offset] = one

    def see(self, record: Record) -> None:
        """Take another record of the log: it may say how a message ended."""
        if record.topic == OP_TOPIC:
            for word in record.body.split(b","):
                if word.isdigit() and len(word) < 19 and int(word) in self.by_number:
                    self.by_number[int(word)].named = True
                    self.named.add(int(word))
        elif record.topic == GIVEN_UP_TOPIC:
            one = self.by_message.get(_message(record))
            if one is not None:
                one.gone = True
        elif record.sys_flag & KIND_BITS == COMMITTED:
            one = self.by_offset.get(record.prepared_transaction_offset)
            if one is not None and one.half.properties.get(REAL_TOPIC) == record.topic:
                one.committed = True


def read_halves(reader: StoreReader) -> OpenHalves:
    """Return which messages of transactions are open in a stopped broker's directory."""
    halves = list(_halves(reader))
    if not halves:
        return NOTHING_OPEN
    found, at = _Found(), 0
    for record in reader.records(halves[0].log_offset):
        while at < len(halves) and halves[at].log_offset <= record.log_offset:
            found.enter(halves[at])
            at += 1
        if record.topic != HALF_TOPIC:
            found.see(record)
    looked = positions_of(reader.config(), CHECKER).get((HALF_TOPIC, 0), 0)
    left = {id(one): one for one in found.by_number.values() if one.half.queue_offset >= looked}
    rows = [_row(one) for one in left.values() if not (one.named or one.committed or one.gone)]
    repeated = sum(one.committed and not one.named and not one.gone for one in left.values())
    return OpenHalves(tuple(sorted(rows)), repeated, _ended(found, min(rows, default=None)))


def _ended(found: _Found, first: OpenRow | None) -> tuple[HalfRow, ...]:
    if first is None:
        return ()
    return tuple(
        HalfRow(number, COMMIT if one.committed else GIVEN_UP)
        for number, one in sorted(found.by_number.items())
        if number > first.half and number not in found.named and (one.committed or one.gone)
    )


def _row(one: _One) -> OpenRow:
    half, named = one.half, one.half.properties
    name = named.get(NAME) or named.get(_UNIQUE, "")
    return OpenRow(
        half.queue_offset, half.log_offset, half.size, one.stored_ms, named.get(GROUP, ""), name
    )


def _halves(reader: StoreReader) -> Iterator[Record]:
    """Yield the halves, in the order of the log."""
    for queue in reader.queues():
        if queue.topic != HALF_TOPIC or queue.queue or not isinstance(queue, Queue):
            continue
        for entry in queue.entries(queue.min):
            one = reader.record_at(entry.log_offset)
            if one is not None and one.topic == HALF_TOPIC and REAL_TOPIC in one.properties:
                yield one


def _message(one: Record) -> _Message:
    """Return what the halves of one message have in common: its unique key, if it has one."""
    named = one.properties
    if unique := named.get(_UNIQUE):
        return (unique,)
    return (
        named.get(NAME), named.get(GROUP), named.get(REAL_TOPIC), named.get(REAL_QUEUE),
        one.born_timestamp, one.body_crc,
    )  # fmt: skip

"""The pieces of a log as plain objects, one for each line of ``twinlog log dump``.

A record has the names and values of RocketMQ's own reading of it (the manifests of the golden
stores); a blank has ``offset`` and the ``size`` it declares; damage has ``file``, ``offset``,
``length`` and ``what``.

A window is a part of one log. The grammar is that of every range; here a number is a log offset,
``-100:`` and ``+100`` count records, times are store times.

Not here: reading (``twinlog.store.reader``), printing (``cli.log.dump``).
"""

from __future__ import annotations

import base64
import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from twinlog.errors import TwinlogError
from twinlog.format.compression import COMPRESSION_MASK, decompress
from twinlog.format.inner_batches import is_inner_batch, messages_in
from twinlog.format.record import FLAG_COMPRESSED, Record
from twinlog.ranges import Mark, Point, Range, parse_range
from twinlog.store.damage import Damage
from twinlog.store.log import Blank, Run
from twinlog.store.reader import StoreReader

Item = dict[str, object]
"""One object of a dump; ``kind`` says which."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which records are meant, with times made absolute."""

    wanted: Range
    now_ms: int

    @classmethod
    def parse(cls, text: str, now_ms: int) -> Self:
        """Read a range.

        Raises:
            RangeError: The text is not a range.
        """
        return cls(parse_range(text), now_ms)

    def bounds(self, store: StoreReader) -> tuple[int, int]:
        """Log offsets that the range names itself; the whole log where it names none."""
        first, last = self.wanted.first, self.wanted.last
        low = first.value if first.mark is Mark.OFFSET else 0
        low = store.end if first.mark is Mark.END else low
        named = last is not None and last.mark is Mark.OFFSET
        high = last.value if last is not None and named else 1 << 62
        return low, high

    def begins(self, record: Record, behind: int) -> bool:
        """Whether the first point lies at or before ``record``, the ``behind``-th from the end."""
        return self._reached(self.wanted.first, record, behind)

    def ends(self, record: Record, behind: int) -> bool:
        """Whether the last point lies at or before ``record``."""
        last = self.wanted.last
        return (
            last is not None and last.mark is not Mark.END and self._reached(last, record, behind)
        )

    def _reached(self, point: Point, record: Record, behind: int) -> bool:
        match point.mark:
            case Mark.FROM_END:
                return behind <= point.value
            case Mark.OFFSET:
                return record.log_offset >= point.value
            case Mark.TIME | Mark.AGO:
                return record.store_timestamp >= (point.at_ms(self.now_ms) or 0)
            case _:
                return point.mark is Mark.START


def items(
    store: StoreReader, window: Window, *, bodies: bool, raw_bytes: bool = False
) -> Iterator[Item]:
    """Yield the objects of a window of the log, in log order."""
    queued = _Queued(store)
    for found in walk(store, window):
        if isinstance(found, Record):
            item = of_record(found, in_queue=queued.has(found), bodies=bodies)
            if raw_bytes:
                item["hex"] = store.series.read(found.log_offset, found.size).hex()
            yield item
        elif isinstance(found, Blank):
            yield of_blank(found)
        else:
            yield of_damage(found)


def walk(store: StoreReader, window: Window) -> Iterator[Record | Blank | Damage]:
    """Yield what lies in a window of the log, in log order, leftovers left out."""
    low, high = window.bounds(store)
    total = sum(piece.count for piece in store.pieces() if isinstance(piece, Run))
    count, begun = 0, window.wanted.first.mark in (Mark.START, Mark.OFFSET)
    left = total - sum(p.count for p in store.pieces(end=low) if isinstance(p, Run))
    for piece in store.pieces(low, high):
        if not isinstance(piece, Run):
            if begun and not (isinstance(piece, Damage) and not piece.harm.in_log):
                yield piece
            continue
        for record in store.decode_run(piece):
            behind, left = left, left - 1
            begun = begun or window.begins(record, behind)
            if not begun:
                continue
            if window.ends(record, behind) or count == window.wanted.count:
                return
            count += 1
            yield record


HEX_WIDTH = 16


def hex_lines(text: str, offset: int) -> Iterator[str]:
    """Yield the lines of a hex dump: log offset, bytes, what of them is ASCII.

    >>> list(hex_lines("0041ff", 4096))
    ['       4096  00 41 ff                                          .A.']
    """
    data = bytes.fromhex(text)
    for at in range(0, len(data), HEX_WIDTH):
        part = data[at : at + HEX_WIDTH]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"{offset + at:>11}  {part.hex(' '):<{3 * HEX_WIDTH}}  {plain}"


class _Queued:
    """Which records have an entry in their queue; each queue is looked through once.

    Eight bytes for each entry: a store may have more of them than Python can hold as numbers.
    """

    def __init__(self, store: StoreReader) -> None:
        self._store = store
        self._known: dict[tuple[str, int], array[int]] = {}

    def has(self, record: Record) -> bool:
        """Whether an entry of the record's queue points to it."""
        key = record.topic, record.queue
        if key not in self._known:
            queue = self._store.queue(*key)
            offsets = array("q", (e.log_offset for e in queue.entries(0)) if queue else ())
            if any(one > other for one, other in pairwise(offsets)):
                offsets = array("q", sorted(offsets))  # damaged
            self._known[key] = offsets
        offsets = self._known[key]
        at = bisect_left(offsets, record.log_offset)
        return at < len(offsets) and offsets[at] == record.log_offset


def of_record(record: Record, *, in_queue: bool, bodies: bool) -> Item:
    """A record under RocketMQ's names, body as its digest; ``bodies`` adds the body itself."""
    found: Item = {
        "kind": "Record",
        "topic": record.topic,
        "queue_id": record.queue,
        "queue_offset": record.queue_offset,
        "physical_offset": record.log_offset,
        "size": record.size,
        "magic": record.magic,
        "sys_flag": record.sys_flag,
        "flag": record.flag,
        "born_timestamp": record.born_timestamp,
        "born_host": record.born_host,
        "store_timestamp": record.store_timestamp,
        "store_host": record.store_host,
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_transaction_offset,
        "body_crc": record.body_crc,
        "body_sha256": hashlib.sha256(record.body).hexdigest(),
        "body_len": len(record.body),
        "msg_id": record.message_id,
        "properties": dict(record.properties),
        "tags_code": record.tags_code,
        "in_cq": in_queue,
    }
    if record.sys_flag & FLAG_COMPRESSED:
        plain = _plain(record)
        if plain is not None:
            found["plain_body_sha256"] = hashlib.sha256(plain).hexdigest()
            found["plain_body_len"] = len(plain)
    if is_inner_batch(record):
        found["inner"] = _inner(record, bodies=bodies)
    if bodies:
        found["body"] = base64.b64encode(record.body).decode()
    return found


def _inner(record: Record, *, bodies: bool) -> list[Item] | None:
    """The messages of an inner batch; None when its body does not hold whole messages."""
    try:
        messages = messages_in(record)
    except TwinlogError:
        return None
    found: list[Item] = []
    for message in messages:
        item: Item = {
            "queue_offset": message.queue_offset,
            "flag": message.flag,
            "body_sha256": hashlib.sha256(message.body).hexdigest(),
            "body_len": len(message.body),
            "properties": dict(message.properties),
        }
        if bodies:
            item["body"] = base64.b64encode(message.body).decode()
        found.append(item)
    return found


def _plain(record: Record) -> bytes | None:
    """The decompressed body; None when it does not decompress or a library is missing."""
    try:
        return decompress(record.body, record.sys_flag & COMPRESSION_MASK)
    except TwinlogError:
        return None


def of_blank(blank: Blank) -> Item:
    """The end-of-file record of a log file."""
    return {
        "kind": "Blank",
        "file": f"commitlog/{blank.file.path.name}",
        "offset": blank.offset,
        "size": blank.size,
    }


def of_damage(damage: Damage) -> Item:
    """A stretch that cannot be used: a torn tail has ``harm`` tail."""
    return {
        "kind": "Damage",
        "file": damage.name,
        "offset": damage.offset,
        "length": damage.length,
        "what": damage.what,
        "harm": damage.harm.value,
    }

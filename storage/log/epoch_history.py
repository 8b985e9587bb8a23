"""Epochs of the log: the records that open them, and the list of them.

The first record of each epoch, and the first record of every log file, is a record in queue 0 of
``rmq_sys_TWINLOG_EPOCH``, a batch of its own (kind 3). When the file has no room for the record of
a new epoch, the filler that ends the file is the new master's and so of the new epoch: it opens the
epoch at its own start, and the record at the head of the next file repeats that. (A filler of the
old epoch would extend the history of an epoch that belongs to another master.)

At the head of a file it repeats epoch and start of the current epoch, so that the epoch of each
file is known after retention. The epoch of a byte is that of the last epoch record before it;
``epochFileCheckpoint`` is written for RocketMQ and never read.

Invariants of a history: epochs rise strictly, starts rise, the oldest entry keeps its original
start even after the file that held it is deleted.

Not here: comparing histories (``replication.core.peer_checks``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace

from storage.disk.packing import number, pack, text, unpack
from twinlog import kernels
from twinlog.errors import CorruptionError
from twinlog.format import record
from twinlog.format.epoch_file import epoch_file_pack
from twinlog.format.epoch_history import Epoch
from twinlog.format.system_topics import SYSTEM_TOPIC_EPOCH

NAME_MAX = 64
REASON_MAX = 120
"""Bytes kept of names and reasons, so that an epoch record fits the reserve of a file (1 KiB)."""
EPOCH_FILE = "epochFileCheckpoint"


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """Body of an epoch record.

    Attributes:
        epoch: The epoch that begins or continues.
        start: Log offset of its first record.
        node: Its master.
        session: The master's session.
        wall_ms: Its wall clock, for people.
        previous: The epoch before; 0 for the first.
        confirm: Confirm offset at promotion.
        end: End of the log at promotion.
        reason: Why the role changed.
        by: Who changed it.
        chain: At the head of a file: crc32c over the previous file's entries, equal on every node
            that has both files; 0 elsewhere, and if there is nothing to compare.
    """

    epoch: int
    start: int
    node: str
    session: int
    wall_ms: int
    previous: int
    confirm: int
    end: int
    reason: str
    by: str
    chain: int = 0


_U32, _U64, _PLACE = struct.Struct(">I"), struct.Struct(">Q"), struct.Struct(">qq")
_CHAIN_WIDE = 1 << 16
"""From here on msgpack encodes a number, up to 32 bits, in five bytes."""


def _short(value: str, most: int) -> str:
    return value.encode()[:most].decode(errors="ignore")


def encode_epoch(
    value: EpochRecord,
    *,
    log_offset: int,
    queue_offset: int,
    store_timestamp: int,
    store_host: tuple[str, int],
) -> bytes:
    """Return the whole record, an ordinary one in RocketMQ's format."""
    fields: dict[str, object] = {
        "epoch": value.epoch,
        "start": value.start,
        "node": _short(value.node, NAME_MAX),
        "session": value.session,
        "wall": value.wall_ms,
        "previous": value.previous,
        "confirm": value.confirm,
        "end": value.end,
        "reason": _short(value.reason, REASON_MAX),
        "by": _short(value.by, NAME_MAX),
        "chain": value.chain,
    }
    return record.encode(
        SYSTEM_TOPIC_EPOCH,
        0,
        pack(fields),
        queue_offset=queue_offset,
        log_offset=log_offset,
        born_timestamp=store_timestamp,
        born_host=store_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
    )


class EpochPattern:
    """A prepared epoch record for file heads: only offsets, time and chain differ.

    Encoding one in the middle of an append costs ten times as much.
    """

    def __init__(self, value: EpochRecord, store_host: tuple[str, int]) -> None:
        self._pattern = encode_epoch(
            replace(value, chain=_CHAIN_WIDE), log_offset=0, queue_offset=0, store_timestamp=0,
            store_host=store_host,
        )  # fmt: skip
        self.length = len(self._pattern)
        """Bytes of the record."""
        self._stamp = 48 + len(record.pack_host(store_host))
        at = self._stamp + (self._stamp - 48) + 24
        self._body = at, at + int.from_bytes(self._pattern[at - 4 : at], "big")

    def fill(
        self, *, log_offset: int, queue_offset: int, store_timestamp: int, chain: int
    ) -> bytes | None:
        """Return the record; None if the chain needs fewer bytes than the pattern has."""
        if not _CHAIN_WIDE <= chain < 1 << 32:
            return None
        data, (begin, end) = bytearray(self._pattern), self._body
        _U32.pack_into(data, end - 4, chain)  # the last of the fields
        _U32.pack_into(data, 8, kernels.crc32(data[begin:end]) & 0x7FFFFFFF)
        _PLACE.pack_into(data, 20, queue_offset, log_offset)
        _U64.pack_into(data, 40, store_timestamp)
        _U64.pack_into(data, self._stamp, store_timestamp)
        return bytes(data)


def decode_epoch(data: memoryview | bytes) -> EpochRecord:
    """Return the value of an epoch record.

    Raises:
        CorruptionError: It is not an epoch record.
    """
    found = record.decode(data)
    if found.topic != SYSTEM_TOPIC_EPOCH or found.queue or found.size != len(data):
        raise CorruptionError("an epoch batch holds something other than one epoch record")
    body = unpack(found.body)
    names = ("epoch", "start", "session", "wall", "previous", "confirm", "end", "chain")
    epoch, start, session, wall, previous, confirm, end, chain = (number(body, n) for n in names)
    return EpochRecord(
        epoch,
        start,
        text(body, "node"),
        session,
        wall,
        previous,
        confirm,
        end,
        text(body, "reason"),
        text(body, "by"),
        chain,
    )


def wrong_chain(value: EpochRecord, held: int | None) -> str | None:
    """Return what is wrong with the file before that of ``value``; None if nothing is.

    ``held`` is this node's chain over that file, None if it cannot be compared.
    """
    if not value.chain or held is None or value.chain == held:
        return None
    return "the file before it differs from the master's"


class EpochHistory:
    """The epochs of a log, oldest first."""

    def __init__(self, epochs: Iterable[Epoch] = ()) -> None:
        self.epochs: tuple[Epoch, ...] = tuple(epochs)

    @property
    def last(self) -> int:
        """The newest epoch; 0 for an empty log."""
        return self.epochs[-1].epoch if self.epochs else 0

    @property
    def last_start(self) -> int:
        """Where the newest epoch begins; 0 for an empty log."""
        return self.epochs[-1].start if self.epochs else 0

    def refusal(self, value: EpochRecord, at: int) -> str | None:
        """Return why an epoch record at log offset ``at`` does not continue the history."""
        # R39: the same epoch with another start would be two histories under one number.
        if value.epoch == self.last and value.epoch:
            return None if value.start == self.last_start else "another start of the same epoch"
        if value.epoch < self.last:
            return "an epoch that is older than the last"
        if not self.epochs:  # the oldest kept file may begin in the middle of an epoch
            return None if value.start <= at else "an epoch that starts after its record"
        # Only the repeated record at a file's head may start before its place.
        if value.start != at:
            return "a new epoch that does not start at its record"
        # A gap in the chain of epochs: this log lacks an epoch that the record's master had.
        return None if value.previous == self.last else "an epoch that follows another one"

    def add(self, value: EpochRecord) -> bool:
        """Add an epoch record that `refusal` allows; returns whether the epoch is new."""
        if value.epoch == self.last:
            return False
        self.epochs = (*self.epochs, Epoch(value.epoch, value.start))
        return True

    def open(self, epoch: int, start: int) -> None:
        """Add an epoch that begins with a filler; does nothing if it is the current one."""
        if epoch > self.last:
            self.epochs = (*self.epochs, Epoch(epoch, start))

    def adopt(self, start: int) -> None:
        """Note that the log begins with RocketMQ's bytes (epoch 0), unless that is known."""
        if not self.epochs:
            self.epochs = (Epoch(0, start),)

    def cut(self, end: int) -> None:
        """Forget epochs that begin at or beyond ``end``."""
        self.epochs = tuple(epoch for epoch in self.epochs if epoch.start < end)

    def file(self) -> bytes:
        """Return the text of RocketMQ's ``epochFileCheckpoint``."""
        return epoch_file_pack((epoch.epoch, epoch.start) for epoch in self.epochs)

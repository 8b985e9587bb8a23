"""What the core is told: facts about this node, its log, and events of later versions.

Everyday events are method calls of ``core.ReplicaCore`` (``on_frame``, ``on_ack`` ...): a frozen
value per acknowledgement would cost more than the acknowledgement. What is here are the values that
such calls carry, and the events that this version takes and refuses loudly.

Sources: replication.md G.19; protocol.md "Stages".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from storage import BootSummary, Epoch


class Log(Protocol):
    """What the core may ask of the log; all answers are of this moment, nothing is changed."""

    @property
    def start(self) -> int:
        """First byte kept."""
        ...

    @property
    def end(self) -> int:
        """First byte not written."""
        ...

    @property
    def committed(self) -> int:
        """Everything below is in the file, with its entries."""
        ...

    @property
    def flushed(self) -> int:
        """Everything below is on the disk, with its entries."""
        ...

    @property
    def confirm(self) -> int:
        """The confirm offset."""
        ...

    @property
    def epochs(self) -> Sequence[Epoch]:
        """The epoch history."""
        ...

    @property
    def last_epoch(self) -> int:
        """Epoch of the last byte, 0 of an empty log."""
        ...

    def chain_crc(self, start: int, end: int) -> int:
        """CRC-32C over the entries between two borders."""
        ...

    def border_at_or_below(self, offset: int) -> int:
        """The last batch border that is not beyond ``offset``."""
        ...


@dataclass(frozen=True, slots=True)
class Node:
    """Who this node is.

    Attributes:
        name: Of the replica.
        names_crc: CRC of cluster and group, in every frame.
        family: 4 or 6: length of the host in every record.
        segment_size: Of the group, bytes.
        store: Store id. ``start``: random id of this process start. ``known``: all start ids of
            the store.
        clean: Nothing acknowledged can be missing. ``why``: else, why.
        damage: What recovery found; None for a sound log.
    """

    name: str
    names_crc: int
    family: int
    segment_size: int
    store: str
    start: str
    known: tuple[str, ...]
    clean: bool
    why: str = ""
    damage: str | None = None

    @classmethod
    def started(
        cls, boot: BootSummary, name: str, names_crc: int, *, family: int, segment_size: int
    ) -> Node:
        """Return who this node is by what its start found."""
        return cls(
            name=name,
            names_crc=names_crc,
            family=family,
            segment_size=segment_size,
            store=boot.store_id,
            start=boot.start_id,
            known=(*boot.unseen, boot.start_id),
            clean=boot.clean,
            why=boot.why_unclean,
            damage=boot.damage.what if boot.damage is not None else None,
        )


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """[later] A lease was renewed; this version has none."""

    sent_at: float
    ttl: float


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """[later] A lease ended; this version has none."""


@dataclass(frozen=True, slots=True)
class SegmentOffered:
    """[later] A master offers sealed files for catch-up; this version streams only."""

    conn: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class ForeignRegister:
    """[later] A coordinator of kind ``etcd`` spoke; this version knows ``embedded`` only."""

    kind: str


Later = LeaseRenewed | LeaseLost | SegmentOffered | ForeignRegister

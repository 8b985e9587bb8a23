"""How a producer works, what it must know beforehand, and what it counts.

Sizes are bytes, times seconds. Not here: what the numbers do (``twinlog.producer.core``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twinlog.errors import UsageError
from twinlog.format.compression import Compression
from twinlog.units import KiB, MiB

SECTION_MAX: Final = 4 * MiB
"""Largest section, bytes: a log batch holds 4,259,840, and one more property fits beside it."""

LAST_SECONDS: Final = 0.001
"""What is left at least to a single send once everything before it was answered in time."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer gathers and sends.

    Attributes:
        acknowledge: ``written``, ``flushed``, ``replicated`` or ``confirmed``.
        batch: A section closes at this size, bytes.
        linger: Or when its first record is this old, seconds.
        window: Sections of one queue under way; the node remembers 5.
        timeout: From closing to the final answer, seconds, retries and failover included.
        compression: What is done to large bodies; None: they are sent as they are.
        bytes_in_flight: Sections that are not answered, all queues together; beyond it
            the producer is `full`.
    """

    acknowledge: str = "confirmed"
    batch: int = 256 * KiB
    linger: float = 0.002
    window: int = 5
    timeout: float = 30.0
    bytes_in_flight: int = 8 * MiB
    compression: Compression | None = None

    def __post_init__(self) -> None:
        """Check the numbers; raises UsageError."""
        if not 1 <= self.window <= 5:
            raise UsageError(f"window is {self.window}; a node remembers 1 to 5 sections")
        if not 1 <= self.batch <= SECTION_MAX // 2:
            raise UsageError(f"batch is {self.batch} bytes; 1 byte to {SECTION_MAX // 2} work")
        if self.timeout <= 0 or self.linger < 0:
            raise UsageError("timeout must be above 0 s and linger not below")
        if self.acknowledge not in ("written", "flushed", "replicated", "confirmed"):
            hint = "write written, flushed, replicated or confirmed"
            raise UsageError(f"there is no acknowledgement {self.acknowledge!r}", hint=hint)


@dataclass(frozen=True, slots=True)
class Target:
    """What a producer must know of the topic and the cluster before it encodes a record.

    Attributes:
        queues: Number of queues.
        family: 4 or 6, see `routing.Route`.
        producer: The id that a node gave; above 0.
        message_size_max: Largest body, bytes.
        segment_size: Bytes of one log file; a section must fit well into one.
        born_host: The producer's own (IP address, port).
        batch: The topic has batch queues: neighbours go as one record.
        epoch: A producer epoch that was given from outside and is never renewed: after a section
            without success nothing more is taken, and its owner begins again with the same
            records. None: from ``first_epoch``, renewed when needed.
        first_epoch: The producer epoch to begin with where none is given.
    """

    topic: str
    queues: int
    family: int
    producer: int
    message_size_max: int
    segment_size: int
    born_host: tuple[str, int] = ("127.0.0.1", 0)
    epoch: int | None = None
    batch: bool = False
    first_epoch: int = 0


@dataclass(slots=True)
class Statistics:
    """What a producer has done so far; numbers only grow."""

    records: int = 0
    bytes: int = 0
    sections: int = 0
    requests: int = 0
    resent: int = 0
    acknowledged: int = 0
    duplicates: int = 0
    refused: int = 0
    unknown: int = 0

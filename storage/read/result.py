"""What a read found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from storage.disk.mapping import Loan


class ReadStatus(Enum):
    """What a read found."""

    FOUND = "found"
    NONE = "none"
    BEFORE_START = "before-start"
    PAST_END = "past-end"
    ABOVE_CONFIRM = "above-confirm"
    UNKNOWN_TOPIC = "unknown-topic"
    UNKNOWN_QUEUE = "unknown-queue"


@dataclass(slots=True)
class ReadResult:
    """The answer to a read. Treat as immutable; a frozen value of this size costs a microsecond.

    Attributes:
        status: See `ReadStatus`; NONE: the offset is the end of the queue.
        slices: Records as they are stored, one after the other. In a cold answer: what is to be
            fetched, for its length alone; touching it may block.
        count: Records in ``slices``.
        next: Queue offset to go on with; records left out by a filter are before it, too.
        start: First queue offset of the queue.
        end: Queue offset after its last confirmed record.
        cold: Some of the bytes must come from the disk.
        fetch: In a cold answer: reads the records from their files, compares them with CRCs and
            queue entries, drops what a filter over properties does not want, and returns the
            answer with copies. Called in a worker thread; `Reader.fetched` judges the outcome.
        lowest: In a cold answer: log offset of its first byte.
        generation: In a cold answer: how many times the log had been cut.
        unsifted: A filter over properties was asked for and is left to the client.
        crc: CRC-32C of the slices, one after the other, if it was computed on the way.
        lent: The same bytes for a socket, the long ones lent from their file; empty: none.
    """

    status: ReadStatus
    slices: list[memoryview] = field(default_factory=list[memoryview])
    count: int = 0
    next: int = 0
    start: int = 0
    end: int = 0
    cold: bool = False
    fetch: Callable[[], ReadResult] | None = None
    lowest: int = 0
    generation: int = 0
    unsifted: bool = False
    crc: int | None = None
    lent: Sequence[memoryview | Loan] = ()

    def outcome(self) -> ReadResult | Exception:
        """Run ``fetch``; return its answer or the error that ended it. In a worker thread.

        Meanwhile the log may be cut and files may be deleted, so the error is judged afterwards.
        """
        assert self.fetch is not None
        try:
            return self.fetch()
        except Exception as error:
            return error

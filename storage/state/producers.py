"""The sections of idempotent producers that are already in the log. Pure.

For each (producer, topic, queue) the last `KEPT` sections are known: first sequence, count, queue
offset, where it ends in the log, and a digest of its bodies. The rule on append:

* the sequence after the last one is *next* and accepted;
* a lower one is a *duplicate*: answered with the original's offsets if it is among the last five,
else "stored, offset unknown"; with other bodies it is an error (*another*);
* anything else (higher, overlapping) is *out of order*: nothing is stored, the producer resends in
  order from its first unanswered section;
* a sequence above 0 of a producer without a line belongs to an *unknown producer*: its line was
forgotten. Nothing is stored, but it is unknown whether an earlier attempt was;
* a higher producer epoch starts again at sequence 0, a lower one is out of date.

Two layers. *Confirmed* covers the log up to the dispatcher, on every node; *pending* from there to
the end, on the master. A rebuild from the log accepts a section only if it is that producer's next:
a copied record with its old property changes nothing.

Nothing expires by a node's own clock. The master writes a control record that names a log offset
(`storage.state.controls.ForgetProducers`): lines whose last section ends at or below it are
forgotten, on the master from the append on, on every node when the dispatcher passes the record.
`Producers.stale_below` decides when, by ages on a monotonic clock (`storage.state.ages`). The
newest `LINES_KEPT` lines are never forgotten, others once they were not used for `IDLE_SECONDS`,
and with more than `LINES_MANY` once they were not used for `RETRY_SECONDS_MAX`. No retry comes
later than that, so no forgotten section can be stored twice. If `LINES_MAX` lines are younger,
there is no room for a new one: its producer is refused with ``busy``.

Sequences count records, per producer and queue, from 0.

Not here: the sequence in a record (`storage.state.sequences`).

Rules: docs/protocol.md R45 to R49. Source: Kafka's ProducerStateManager (five batches, next
sequence, UNKNOWN_PRODUCER_ID).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

KEPT = 5
LINES_KEPT = 10_000
"""Lines that are never forgotten, however old."""
LINES_MANY = 50_000
"""Number of lines beyond which those that no retry can need are forgotten."""
LINES_MAX = 250_000
"""Number of lines at which no new one may begin; 0.5 to 2 KiB of memory each."""
IDLE_SECONDS = 7 * 24 * 3600.0
"""How long a producer may pause while there are few lines."""
RETRY_SECONDS_MAX = 600.0
"""Longest time after the first attempt in which a client may send a section again."""
Key = tuple[int, str, int]
"""(producer, topic, queue)."""


@dataclass(slots=True)
class Done:
    """One section in the log; treat as immutable.

    Attributes:
        sequence: Number of its first record.
        count: Records.
        queue_offset: Of the first record.
        log_offset: Of the first record.
        end: Log offset after it; the section is confirmed once confirm reaches this.
        digest: Digest of its bodies; 0 if it was not computed.
    """

    sequence: int
    count: int
    queue_offset: int
    log_offset: int
    end: int
    digest: int


@dataclass(frozen=True, slots=True)
class Line:
    """The known sections of one producer in one queue; ``done`` is oldest first."""

    epoch: int
    done: tuple[Done, ...]

    @property
    def next(self) -> int:
        """The sequence that is accepted next."""
        return self.done[-1].sequence + self.done[-1].count if self.done else 0

    @property
    def end(self) -> int:
        """Log offset after the last section."""
        return self.done[-1].end if self.done else 0

    def with_done(self, epoch: int, done: Done) -> Line:
        """Return the line after one more section."""
        kept = self.done if epoch == self.epoch else ()
        return Line(epoch, (*kept[1 - KEPT :], done))


class Verdict(Enum):
    """How a section relates to its producer's line."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    ANOTHER = "sequence-reused"
    OUT_OF_ORDER = "out-of-sequence"
    UNKNOWN = "unknown-producer"
    OUT_OF_DATE = "producer-epoch"


def judge(
    line: Line | None, epoch: int, sequence: int, count: int, digest: int
) -> tuple[Verdict, Done | None]:
    """Return the verdict on a section, and the original of a duplicate if it is still known.

    >>> judge(None, 0, 0, 10, 7)
    (<Verdict.NEXT: 'next'>, None)
    >>> line = Line(0, (Done(0, 10, 100, 5000, 9000, 7),))
    >>> judge(line, 0, 10, 5, 8)[0], judge(line, 0, 0, 10, 7)[0], judge(line, 0, 0, 10, 6)[0]
    (<Verdict.NEXT: 'next'>, <Verdict.DUPLICATE: 'duplicate'>, <Verdict.ANOTHER: 'sequence-reused'>)
    >>> judge(line, 0, 11, 5, 8)[0]
    <Verdict.OUT_OF_ORDER: 'out-of-sequence'>
    >>> judge(None, 0, 10, 5, 8)[0]
    <Verdict.UNKNOWN: 'unknown-producer'>
    """
    if line is None:
        # R47: the line may have been forgotten, so whether an earlier attempt was stored is
        # unknown.
        return (Verdict.UNKNOWN if sequence else Verdict.NEXT), None
    # A producer that started again resends nothing of its former start.
    if epoch > line.epoch:
        return (Verdict.NEXT if sequence == 0 else Verdict.OUT_OF_ORDER), None
    if epoch < line.epoch:
        return Verdict.OUT_OF_DATE, None
    if sequence == line.next:
        return Verdict.NEXT, None
    for done in line.done:
        if done.sequence == sequence:
            # Same sequence, other records: two producers share an id, or the client has a bug.
            # Answering "duplicate" would lose these records silently.
            if done.count != count or (done.digest and digest and done.digest != digest):
                return Verdict.ANOTHER, done
            return Verdict.DUPLICATE, done
    # Older than the five known sections: it was stored, since sequences have no gaps.
    if line.done and sequence + count <= line.done[0].sequence:
        return Verdict.DUPLICATE, None
    return Verdict.OUT_OF_ORDER, None


class Producers:
    """Both layers of all producers' lines."""

    def __init__(self) -> None:
        self._confirmed: dict[Key, Line] = {}
        self._pending: dict[Key, Line] = {}
        self._forgotten = 0

    def __len__(self) -> int:
        """Lines of the confirmed layer."""
        return len(self._confirmed)

    def line(self, key: Key) -> Line | None:
        """Return the line that the master uses: the pending one, else the confirmed one."""
        line = self._pending.get(key)
        if line is None:
            line = self._confirmed.get(key)
            # The control record is appended but not confirmed: binding on the master already (R48).
            if line is not None and line.end <= self._forgotten:
                return None
        return line

    @property
    def full(self) -> bool:
        """Whether no new line may begin: all lines may still be needed by retries."""
        return len(self._confirmed) + len(self._pending) >= LINES_MAX

    def follows(self, key: Key, epoch: int, sequence: int) -> bool:
        """Whether a section is the next of its line; then `judge` certainly returns NEXT."""
        line = self.line(key)
        if line is None:
            return sequence == 0 and not self.full
        return epoch == line.epoch and sequence == line.next

    def forget(self, below: int, *, confirmed: bool) -> None:
        """Forget lines whose last section ends at or below a log offset.

        In the pending layer until a cut or a new role; in the confirmed layer permanently.
        """
        if not confirmed:
            self._forgotten = max(self._forgotten, below)
        layer = self._confirmed if confirmed else self._pending
        for key in [key for key, line in layer.items() if line.end <= below]:
            del layer[key]

    def stale_below(self, idle: int, late: int) -> int:
        """Return the log offset for a `ForgetProducers` that is due now; 0 if none is.

        Args:
            idle: Log offset below which everything is older than `IDLE_SECONDS`.
            late: Log offset below which everything is older than `RETRY_SECONDS_MAX`.
        """
        count = len(self._confirmed)
        if count <= LINES_KEPT:
            return 0
        old = late if count > LINES_MANY else idle
        ends = sorted(line.end for line in self._confirmed.values())
        # Never more than needed: the newest LINES_KEPT lines stay whatever their age.
        below = min(old, ends[count - LINES_KEPT - 1])
        return below if ends[0] <= below else 0

    def append(self, key: Key, epoch: int, done: Done) -> Line | None:
        """Add a section to the pending layer; returns the previous line, for `restore`."""
        before = self._pending.get(key)
        line = before or self.line(key) or Line(epoch, ())
        self._pending[key] = line.with_done(epoch, done)
        return before

    def restore(self, key: Key, before: Line | None) -> None:
        """Undo one `append`; call it in reverse order."""
        if before is None:
            self._pending.pop(key, None)
        else:
            self._pending[key] = before

    def rebuild(self, key: Key, epoch: int, done: Done, *, confirmed: bool) -> bool:
        """Add a section found in the log, if it is that producer's next.

        Args:
            key: Producer, topic and queue.
            epoch: Producer epoch.
            done: The section.
            confirmed: Into the confirmed layer, else the pending one.

        Returns:
            Whether it was added.
        """
        line = self._confirmed.get(key) if confirmed else self.line(key)
        if judge(line, epoch, done.sequence, done.count, done.digest)[0] is not Verdict.NEXT:
            return False
        if not confirmed:
            self.append(key, epoch, done)
            return True
        self._confirmed[key] = (line or Line(epoch, ())).with_done(epoch, done)
        # The confirmed layer has caught up with the pending line; drop the copy.
        pending = self._pending.get(key)
        if pending is not None and pending.done[-1].end <= done.end:
            del self._pending[key]
        return True

    def forget_pending(self) -> None:
        """Drop the pending layer, after a cut or a role change."""
        self._pending.clear()
        self._forgotten = 0

    def confirmed(self) -> Iterator[tuple[Key, Line]]:
        """Yield the confirmed layer, for a snapshot."""
        yield from self._confirmed.items()

    def load(self, key: Key, line: Line) -> None:
        """Put a line of a snapshot into the confirmed layer."""
        self._confirmed[key] = line

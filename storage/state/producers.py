"""Which sections of idempotent producers are in the log already. Pure.

For each (producer, topic, queue) the last `KEPT` sections are known: first sequence, count, queue
offset, where it ends in the log, and a digest of its bodies. The rule on append:

* the sequence after the last one is *next* and accepted;
* a lower one is a *duplicate*: answered with the original's place if it is among the last five,
  else "stored, offset unknown"; with other bodies it is an error of its own;
* anything else (higher, overlapping) is *out of order*: nothing is stored, the producer resends in
  order from its first unanswered section;
* a sequence above 0 of a producer without a line is of an *unknown producer*: its line was
  forgotten. Nothing is stored, but whether an earlier attempt was is not known;
* a higher producer epoch starts again at sequence 0, a lower one is out of date.

Two layers. *Confirmed* holds what the dispatcher has passed, on every node; *pending* what lies
between that and the end, on the master. A rebuild from the log takes a section only when it is that
producer's next: a copy of a record with its old property changes nothing.

Nothing expires by a node's own clock. The master writes a control record that names a log offset
(`storage.state.controls.ForgetProducers`): lines whose last section ends at or below it are
forgotten, on the master from the append on, on every node when the dispatcher passes the record.
`Producers.stale_below` says when. The newest `LINES_KEPT` lines are never forgotten, others once
they were not used for `IDLE_SECONDS`, and with more than `LINES_MANY` once they were not used for
`RETRY_SECONDS_MAX`. No retry comes later than that, so what is forgotten cannot be stored twice.
When `LINES_MAX` lines are younger, there is no room for a new one: its producer is told ``busy``.

Sequences count records, per producer and queue, from 0.

Not here: where the sequence stands in a record (`storage.state.sections`).

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
"""Lines beyond which those that no retry can need any more are forgotten."""
LINES_MAX = 250_000
"""Lines beyond which no new one begins; 0.5 to 2 KiB of memory each."""
IDLE_SECONDS = 7 * 24 * 3600.0
"""How long a producer may pause while there are few."""
RETRY_SECONDS_MAX = 600.0
"""Longest time, from the first attempt on, in which a client may send a section again."""
Key = tuple[int, str, int]
"""(producer, topic, queue)."""


@dataclass(slots=True)
class Done:
    """One section that is in the log; a value that is not changed.

    Attributes:
        sequence: Number of its first record.
        count: Records.
        queue_offset: Of the first record.
        log_offset: Of the first record.
        end: Log offset after its batch; below confirm the section is.
        digest: Of its bodies; 0 when it was not computed.
    """

    sequence: int
    count: int
    queue_offset: int
    log_offset: int
    end: int
    digest: int


@dataclass(frozen=True, slots=True)
class Line:
    """What is known of one producer in one queue; ``done`` is oldest first."""

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
    """What a section is to its producer's line."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    ANOTHER = "sequence-reused"
    OUT_OF_ORDER = "out-of-sequence"
    UNKNOWN = "unknown-producer"
    OUT_OF_DATE = "producer-epoch"


def judge(
    line: Line | None, epoch: int, sequence: int, count: int, digest: int
) -> tuple[Verdict, Done | None]:
    """Return what a section is, and the original of a duplicate when it is still known.

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
        return (Verdict.UNKNOWN if sequence else Verdict.NEXT), None
    if epoch > line.epoch:
        return (Verdict.NEXT if sequence == 0 else Verdict.OUT_OF_ORDER), None
    if epoch < line.epoch:
        return Verdict.OUT_OF_DATE, None
    if sequence == line.next:
        return Verdict.NEXT, None
    for done in line.done:
        if done.sequence == sequence:
            if done.count != count or (done.digest and digest and done.digest != digest):
                return Verdict.ANOTHER, done
            return Verdict.DUPLICATE, done
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
        """Return what the master goes by: the pending line, else the confirmed one."""
        line = self._pending.get(key)
        if line is None:
            line = self._confirmed.get(key)
            if line is not None and line.end <= self._forgotten:
                return None
        return line

    @property
    def full(self) -> bool:
        """Whether no producer may begin a line: each is young enough to be needed by a retry."""
        return len(self._confirmed) + len(self._pending) >= LINES_MAX

    def follows(self, key: Key, epoch: int, sequence: int) -> bool:
        """Whether a section is the next of its line, so that `judge` says NEXT for sure."""
        line = self.line(key)
        if line is None:
            return sequence == 0 and not self.full
        return epoch == line.epoch and sequence == line.next

    def forget(self, below: int, *, confirmed: bool) -> None:
        """Forget lines whose last section ends at or below a log offset.

        In the pending layer it lasts until a cut or a new role; in the confirmed one for good.
        """
        if not confirmed:
            self._forgotten = max(self._forgotten, below)
        layer = self._confirmed if confirmed else self._pending
        for key in [key for key, line in layer.items() if line.end <= below]:
            del layer[key]

    def stale_below(self, idle: int, late: int) -> int:
        """Return the log offset that a `ForgetProducers` should name now; 0 for none.

        Args:
            idle: Log offset below which everything is older than `IDLE_SECONDS`.
            late: Log offset below which everything is older than `RETRY_SECONDS_MAX`.
        """
        count = len(self._confirmed)
        if count <= LINES_KEPT:
            return 0
        old = late if count > LINES_MANY else idle
        ends = sorted(line.end for line in self._confirmed.values())
        below = min(old, ends[count - LINES_KEPT - 1])
        return below if ends[0] <= below else 0

    def append(self, key: Key, epoch: int, done: Done) -> Line | None:
        """Note a section in the pending layer; returns the line before, for `restore`."""
        before = self._pending.get(key)
        line = before or self.line(key) or Line(epoch, ())
        self._pending[key] = line.with_done(epoch, done)
        return before

    def restore(self, key: Key, before: Line | None) -> None:
        """Undo one `append`; the latest first."""
        if before is None:
            self._pending.pop(key, None)
        else:
            self._pending[key] = before

    def rebuild(self, key: Key, epoch: int, done: Done, *, confirmed: bool) -> bool:
        """Take a section found in the log, if it is that producer's next.

        Args:
            key: Whose.
            epoch: Producer epoch.
            done: What was found.
            confirmed: Into the confirmed layer, else the pending one.

        Returns:
            Whether it was taken.
        """
        line = self._confirmed.get(key) if confirmed else self.line(key)
        if judge(line, epoch, done.sequence, done.count, done.digest)[0] is not Verdict.NEXT:
            return False
        if not confirmed:
            self.append(key, epoch, done)
            return True
        self._confirmed[key] = (line or Line(epoch, ())).with_done(epoch, done)
        pending = self._pending.get(key)
        if pending is not None and pending.done[-1].end <= done.end:
            del self._pending[key]
        return True

    def forget_pending(self) -> None:
        """Drop the pending layer: a cut, a new role."""
        self._pending.clear()
        self._forgotten = 0

    def confirmed(self) -> Iterator[tuple[Key, Line]]:
        """Yield the confirmed layer, for a snapshot."""
        yield from self._confirmed.items()

    def load(self, key: Key, line: Line) -> None:
        """Put a line of a snapshot into the confirmed layer."""
        self._confirmed[key] = line

"""Which sections of idempotent producers are in the log already. Pure.

For each (producer, topic, queue) the last `KEPT` sections are known: first sequence, count, queue
offset, where it ends in the log, and a digest of its bodies. The rule on append:

* the sequence after the last one is *next* and accepted;
* a lower one is a *duplicate*: answered with the original's place if it is among the last five,
  else "stored, offset unknown"; with other bodies it is an error of its own;
* anything else (higher, overlapping) is *out of order*: nothing is stored, the producer resends in
  order from its first unanswered section;
* a higher producer epoch starts anew at sequence 0, a lower one is out of date.

Two layers. *Confirmed* holds what the dispatcher has passed, on every node; *pending* what lies
between that and the end, on the master. A rebuild from the log takes a section only when it is that
producer's next: a copy of a record with its old property changes nothing.

Nothing expires by clock. The master writes a control record that names a log offset
(`storage.state.ForgetProducers`): lines whose last section ends at or below it are forgotten, on
the master from the append on, on every node when the dispatcher passes the record. `stale_below`
says when: more than `LINES_KEPT` lines, of those that nobody used for `KEEP_SECONDS`; and beyond
`LINES_MAX` all but the newest. A producer that comes back later begins anew with a new id.

Sequences count records, per producer and queue, from 0.

Not here: where the sequence stands in a record (`storage.sections`).

Sources: Kafka's ProducerStateManager (five batches, next sequence), protocol notes section 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

KEPT = 5
LINES_KEPT = 10_000
"""Lines that are never forgotten, however old."""
LINES_MAX = 100_000
"""Lines beyond which the oldest are forgotten however young; about 1 KiB of memory each."""
KEEP_SECONDS = 7 * 24 * 3600.0
"""How long a producer may pause."""
Key = tuple[int, str, int]
"""(producer, topic, queue)."""


@dataclass(slots=True)
class Done:
    """One section that is in the log; a value that nobody changes.

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
    """
    if line is None or epoch > line.epoch:
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


def follows(line: Line | None, epoch: int, sequence: int) -> bool:
    """Whether a section is the next of its line, so that `judge` would say NEXT without a doubt.

    >>> follows(None, 3, 0), follows(Line(1, (Done(0, 10, 0, 0, 9, 7),)), 1, 10)
    (True, True)
    >>> follows(Line(1, (Done(0, 10, 0, 0, 9, 7),)), 2, 0)
    False
    """
    if line is None:
        return sequence == 0
    return epoch == line.epoch and sequence == line.next


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

    def forget(self, below: int, *, confirmed: bool) -> None:
        """Forget lines whose last section ends at or below a log offset.

        In the pending layer it lasts until a cut or a new role; in the confirmed one for good.
        """
        if not confirmed:
            self._forgotten = max(self._forgotten, below)
        layer = self._confirmed if confirmed else self._pending
        for key in [key for key, line in layer.items() if line.end <= below]:
            del layer[key]

    def stale_below(self, old: int) -> int:
        """Return the log offset that a `ForgetProducers` should name now; 0 for none.

        Args:
            old: Log offset below which everything is older than `KEEP_SECONDS`.
        """
        count = len(self._confirmed)
        if count <= LINES_KEPT:
            return 0
        ends = sorted(line.end for line in self._confirmed.values())
        if count > LINES_MAX:
            return ends[count - LINES_KEPT - 1]
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

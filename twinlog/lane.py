"""One queue of a producer: its sections in order, from the open one to those under way.

A lane keeps the order. As soon as one section under way does not succeed it is *held*: nothing more
is sent until the other answers are in, then everything unanswered goes again, oldest first. When a
section was refused for good its number becomes free (a *gap*), and the later sections move up: they
are in no log, for a node stores only what follows directly.

Pure; used by ``twinlog.producer`` only.
"""

from __future__ import annotations

from collections import deque

from twinlog.inner_batches import InnerEncoder
from twinlog.outgoing import Section, State
from twinlog.record import RecordEncoder


class Lane:
    """See the module.

    Attributes:
        open: The section that takes records.
        waiting: Closed and not under way, in order.
        sent: Under way.
        ahead: Numbers of stored sections behind one that has no answer yet: the node must remember
            that one as well, so they count for the window.
        again: Answered without success, waiting for the answers of the rest.
        inner: What encodes instead of ``encoder`` where the queue is a batch queue.
        held: Nothing more may be sent now.
        gap: The number that a refused section left free.
        epoch: Producer epoch of new sections.
        sequence: Number of the next new section.
    """

    __slots__ = (
        "again",
        "ahead",
        "encoder",
        "epoch",
        "gap",
        "held",
        "inner",
        "open",
        "queue",
        "sent",
        "sequence",
        "waiting",
    )

    def __init__(
        self,
        queue: int,
        encoder: RecordEncoder,
        epoch: int = 0,
        inner: InnerEncoder | None = None,
    ) -> None:
        self.queue = queue
        self.encoder = encoder
        self.inner = inner
        self.open: Section | None = None
        self.waiting: deque[Section] = deque()
        self.sent: list[Section] = []
        self.again: list[Section] = []
        self.ahead: list[int] = []
        self.held = False
        self.gap: int | None = None
        self.epoch = epoch
        self.sequence = 0

    def unanswered(self) -> list[Section]:
        """Return the closed sections without a final answer, in order."""
        if not self.sent and not self.again:
            return list(self.waiting)
        begun = sorted([*self.sent, *self.again], key=lambda section: section.sequence)
        return [*begun, *self.waiting]

    @property
    def load(self) -> int:
        """Closed sections without a final answer."""
        return len(self.sent) + len(self.again) + len(self.waiting)

    def first(self) -> Section | None:
        """Return the oldest closed section without a final answer."""
        unanswered = self.unanswered()
        return unanswered[0] if unanswered else None

    def may_send(self, window: int) -> bool:
        """Say whether the next waiting section may go."""
        busy = len(self.sent) + len(self.ahead)
        return bool(self.waiting) and not self.held and busy < window

    def stored(self, section: Section) -> None:
        """Note that a section, no longer under way, is stored."""
        self.ahead.append(section.sequence)
        first = self.first()
        self.ahead = [number for number in self.ahead if first and number > first.sequence]

    def repeat(self, section: Section) -> None:
        """Have a section under way sent again, when its time comes."""
        self.sent.remove(section)
        self.again.append(section)
        self.held = True

    def release(self) -> bool:
        """Put what must go again first in line once no answer is outstanding; say if it may go."""
        if self.held and not self.sent:
            again = sorted(self.again, key=lambda section: section.sequence)
            for section in again:
                section.state = State.WAITING
            self.waiting.extendleft(reversed(again))
            self.again.clear()
            self.held = False
        return bool(self.waiting) and not self.held

    def close_gap(self) -> None:
        """Move the waiting sections up to the free number; the open one must be closed before."""
        assert self.gap is not None, "there is a gap"
        sequence, self.gap = self.gap, None
        for section in self.waiting:
            if section.sequence > sequence:
                section.renumber(self.epoch, sequence)
                sequence += section.records
        self.sequence = sequence

    def renew(self) -> None:
        """Forget everything unanswered and begin a new producer epoch at sequence 0."""
        self.waiting.clear()
        self.sent.clear()
        self.again.clear()
        self.ahead.clear()
        self.held, self.gap = False, None
        self.epoch += 1
        self.sequence = 0

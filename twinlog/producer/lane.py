"""The queues of a producer: of each its sections in order, and which queue is next.

A lane keeps the order. As soon as one section under way does not succeed it is *held*: nothing more
is sent until the other answers are in, then everything unanswered is sent again, oldest first. When
a section was refused for good its number becomes free (a *gap*), and the later sections move up:
they are in no log, for a node stores only what follows directly.

Pure; used by ``twinlog.producer.core`` only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from twinlog.errors import RecordRefused, TwinlogError
from twinlog.format.inner_batches import InnerEncoder
from twinlog.format.record import RecordEncoder, java_hash
from twinlog.format.system_topics import DELAY_TOPIC, HALF_TOPIC, TIMER_TOPIC
from twinlog.format.waiting.delay_levels import waiting_text
from twinlog.format.waiting.halves import half_text
from twinlog.format.waiting.timers import real_text
from twinlog.producer.new_message import PROPERTIES_MAX, NewMessage
from twinlog.producer.section import Section, State
from twinlog.producer.settings import Target
from twinlog.producer.transaction_name import TransactionName

_TIMED = 0
"""Number of the lane of messages that wait for a time, among those of delay levels."""
_HALF = -1
"""Likewise of messages that wait for the end of their transaction."""


class Lane:
    """See the module.

    Attributes:
        topic: Where its sections are stored.
        open: The section that takes records.
        waiting: Closed and not under way, in order.
        sent: Under way.
        ahead: Numbers of stored sections after one that has no answer yet: the node must remember
            that one as well, so they count against the window.
        again: Answered without success, waiting for the answers of the rest.
        inner: What encodes instead of ``encoder`` where the queue is a batch queue.
        held: Nothing more may be sent now.
        forgotten: What a node refused a section with that no longer knows the lane.
        gap: The number that a refused section left free.
        epoch: Producer epoch of new sections.
        sequence: Number of the next new section.
    """

    __slots__ = (
        "again",
        "ahead",
        "encoder",
        "epoch",
        "forgotten",
        "gap",
        "held",
        "inner",
        "open",
        "queue",
        "sent",
        "sequence",
        "topic",
        "waiting",
    )

    def __init__(
        self,
        topic: str,
        queue: int,
        encoder: RecordEncoder,
        epoch: int = 0,
        inner: InnerEncoder | None = None,
    ) -> None:
        self.topic = topic
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
        self.forgotten: TwinlogError | None = None
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
        # Only those after the oldest unanswered one count: until its retry a node must remember
        # them.
        self.ahead = [number for number in self.ahead if first and number > first.sequence]

    def repeat(self, section: Section) -> None:
        """Have a section under way sent again, when its time comes."""
        self.sent.remove(section)
        self.again.append(section)
        self.held = True

    def release(self) -> bool:
        """Put what must go again first in line once no answer is outstanding; say if it may go."""
        # Only with all answers in is it known which numbers are stored, so order can be kept.
        if self.held and not self.sent:
            again = sorted(self.again, key=lambda section: section.sequence)
            for section in again:
                section.state = State.WAITING
            # `extendleft` reverses, so the oldest ends up first.
            self.waiting.extendleft(reversed(again))
            self.again.clear()
            self.held = False
        return bool(self.waiting) and not self.held

    def close_gap(self) -> None:
        """Move the waiting sections up to the free number; the open one must be closed before."""
        assert self.gap is not None, "there is a gap"
        sequence, self.gap = self.gap, None
        for section in self.waiting:
            # Sections before the gap keep their numbers: they may be stored already.
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
        self.held, self.gap, self.forgotten = False, None, None
        self.epoch += 1
        self.sequence = 0


class Lanes:
    """The lanes of a topic, one for each queue, and whose turn it is.

    Messages that wait for a delay level first have a lane for each level: their sections are stored
    in `DELAY_TOPIC`, and the records say which queue they are for. Those that wait for a time have
    one lane, into `TIMER_TOPIC`; those of transactions one, into `HALF_TOPIC`.

    Attributes:
        current: The lane of records that name neither queue nor order key.
    """

    def __init__(self, target: Target, window: int) -> None:
        self._lanes = [_lane(target, target.topic, queue) for queue in range(target.queues)]
        self._open = self._lanes
        self._delayed: dict[int, Lane] = {}
        self._target, self._topic, self._window = target, target.topic, window
        self._turn = 0
        self.current: Lane = self._lanes[0]

    def has(self, message: NewMessage) -> bool:
        """Whether there is the queue that a message names."""
        queue = message.queue
        return type(queue) is not int or 0 <= queue < len(self._open)

    def resize(self, queues: int) -> None:
        """From now on the first ``queues`` queues take messages; at least one does.

        What is under way for others goes on: a node refuses it.
        """
        target, lanes = self._target, self._lanes
        lanes += [_lane(target, target.topic, queue) for queue in range(len(lanes), queues)]
        self._open = lanes[:queues]
        if self.current.queue >= queues:
            self.current = lanes[0]

    def __iter__(self) -> Iterator[Lane]:
        """Yield them by queue number, then those of delay levels."""
        return iter((*self._lanes, *self._delayed.values()) if self._delayed else self._lanes)

    def __getitem__(self, queue: int) -> Lane:
        """Return the lane of a queue."""
        return self._lanes[queue]

    def of(self, section: Section) -> Lane:
        """Return the lane of a section."""
        if section.topic == self._topic:
            return self._lanes[section.queue]
        kept = {TIMER_TOPIC: _TIMED, HALF_TOPIC: _HALF}
        return self._delayed[kept.get(section.topic, section.queue + 1)]

    def placed(self, message: NewMessage, now_ms: int) -> tuple[Lane, bytes]:
        """Return the lane that a message goes to and its stored properties.

        ``now_ms`` is the wall clock, ms since 1970.

        Raises:
            RecordRefused: There is no such queue, or it cannot be stored; see `NewMessage.text`.
            UsageError: An argument is of another type, or there is no such delay level.
        """
        text = message.text()
        return (
            self._wait(message, text, now_ms) if message.waits else (self.lane_for(message), text)
        )

    def _wait(self, message: NewMessage, text: bytes, now_ms: int) -> tuple[Lane, bytes]:
        """Return the lane of messages that wait, and the properties with what that adds."""
        target = self._target
        if target.batch:
            why = f"topic {self._topic} has batch queues: delayed messages cannot go to it"
            raise RecordRefused(why, record=0, reason="delay-level")
        queue = self.lane_for(message).queue
        if message.queue is None and message.order_key is None:
            queue = self._turn % len(self._open)
            self._turn = queue + 1
            if isinstance(message.transaction, TransactionName):
                queue = message.transaction.turn(self._topic, queue)
        if isinstance(message.transaction, TransactionName):
            message.transaction.place(self._topic, queue)
        level = _TIMED if message.delay_level is None else message.delay_level
        if message.transaction is not None:
            level = _HALF
            group, _, name = message.transaction.rpartition("/")
            text += half_text(group, name, self._topic, queue)
        elif level == _TIMED:
            text += message.due_text(now_ms) + real_text(self._topic, queue)
        else:
            text += waiting_text(level, self._topic, queue)
        if len(text) > PROPERTIES_MAX:
            why = f"the properties have {len(text)} bytes, at most {PROPERTIES_MAX} fit"
            raise RecordRefused(why, record=0, reason="properties")
        lane = self._delayed.get(level)
        if lane is None:
            own = {_TIMED: TIMER_TOPIC, _HALF: HALF_TOPIC}
            place = (own[level], 0) if level in own else (DELAY_TOPIC, level - 1)
            lane = self._delayed[level] = _lane(target, *place)
        return lane, text

    def lane_for(self, message: NewMessage) -> Lane:
        """Return the lane of a message: of its queue, of its order key, or whose turn it is.

        Raises:
            RecordRefused: There is no such queue.
        """
        queue, lanes = message.queue, self._open
        if queue is None:
            if message.order_key is None:
                return self.current
            return lanes[abs(java_hash(message.order_key)) % len(lanes)]
        if not 0 <= queue < len(lanes):
            text = f"{self._topic} has queues 0 to {len(lanes) - 1}, not {queue}"
            raise RecordRefused(text, record=0, reason="queue")
        return lanes[queue]

    def pass_turn(self, lane: Lane) -> None:
        """Choose the next queue with room in its window, if it was ``lane``'s turn."""
        if lane is not self.current:
            return
        lanes = self._open
        for step in range(1, len(lanes)):
            other = lanes[(lane.queue + step) % len(lanes)]
            if other.load < self._window:
                self.current = other
                return
        self.current = lanes[(lane.queue + 1) % len(lanes)]

    def linger_left(self, now: float) -> float | None:
        """Return the seconds until an open section has lingered enough; None: nothing to wait for.

        Sections that could not be sent then do not count.
        """
        due = [lane.open.due for lane in self if lane.open and lane.load < self._window]
        return max(0.0, min(due) - now) if due else None


def _lane(target: Target, topic: str, queue: int) -> Lane:
    encoder = RecordEncoder(topic, queue, family=target.family, born_host=target.born_host)
    inner = InnerEncoder(encoder, target.message_size_max) if target.batch else None
    epoch = target.first_epoch if target.epoch is None else target.epoch
    return Lane(topic, queue, encoder, epoch, inner)

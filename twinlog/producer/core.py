"""The producer: records in, sections out, each stored once and in order, whatever happens between.

Records are encoded into the open section of their queue (a *lane*). A section closes when it is
full, when its linger has passed, or on flush; from then on its bytes never change, and every
attempt to send it sends the same bytes. The node keeps the last sections of every lane, so an
attempt that had arrived after all is answered "duplicate", which is success here.

The order within a lane is kept through every failure. At most ``window`` sections of a lane are
under way. When one of them does not succeed, nothing more of the lane is sent until all answers are
in (or the connection is lost); then everything unanswered is sent again, oldest first. The outcomes
of a section:

* stored, duplicate: done;
* refused for now (not the master, too few in sync, busy, full disk), unknown, connection lost:
  sent again, until the section's deadline;
* out of sequence after a section that is sent again: sent again as well; as the first of its lane:
  the node does not have what this lane was acknowledged. What may have been stored by an earlier
  attempt is unknown, the rest is not stored, and the lane begins a new producer epoch;
* unknown producer: the node no longer knows the lane (it was idle for too long). What may have been
  stored by an earlier attempt is unknown; the rest is sent again in a new producer epoch;
* refused for good (a bad record, no such topic): reported; later sections take its number;
* at the deadline: not stored if no attempt can have arrived, else unknown. Either way the lane
  begins a new producer epoch, so no late attempt of the old one can be stored between later ones.

Pure. The shell calls `add`, `next_request`, `on_answer`, `on_lost`, `expire`, and looks at `full`,
`unrouted`, `retry_at`. Times are seconds of one monotonic clock; only records have wall time (ms).

Rules: docs/protocol.md R45 to R47. Source: KIP-98 (a window of 5, resent in order).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from twinlog.errors import (
    OutcomeUnknown,
    OutOfSequence,
    QuotaReached,
    RecordRefused,
    TwinlogError,
    Unavailable,
    UnknownProducer,
)
from twinlog.producer.call_backs import CallBacks
from twinlog.producer.lane import Lane, Lanes
from twinlog.producer.new_message import PLAIN, NewMessage, check_body
from twinlog.producer.outcomes import Outcome, Said, outcomes_of
from twinlog.producer.section import Section, State
from twinlog.producer.settings import SECTION_MAX, ProducerSettings, Statistics, Target
from twinlog.session.link import error_of
from twinlog.session.session import backoff
from twinlog.units import KiB
from twinlog.wire.frames import Frame, FrameError

FRAME_SIZE: Final = 256 * KiB
"""Small sections that wait at the same time share a frame up to this payload."""

RETRY_SECONDS: Final = 590.0
"""How long after its first attempt a section that may be stored is sent again: a node recognises it
for ten minutes at least (R47), and would store it a second time after it forgot it."""

FAILURES_MAX: Final = 1000
"""Sections without success that are kept for `collect`; the statistics count all of them."""

NO_LIGHT: Final = "messages of a batch topic go to no light queue"


@dataclass(slots=True)
class Request:
    """One APPEND: its fields, its payload in pieces, and until when an answer is of use."""

    number: int
    fields: dict[str, object]
    pieces: list[memoryview | bytes]
    deadline: float


class ProducerCore:
    """See the module.

    Args:
        target: Where the records go.
        settings: How.
        random: Numbers from 0 to 1 for the jitter of retries.
    """

    def __init__(
        self,
        target: Target,
        settings: ProducerSettings,
        *,
        random: Callable[[], float],
    ) -> None:
        self.target = target
        self.settings = settings
        self.statistics = Statistics()
        self.failures: list[Section] = []
        """Sections refused or unknown that were not collected yet."""
        self.unrouted = True
        """The master must be looked for before anything is sent."""
        self.refusal: TwinlogError | None = None
        """What the last node refused everything with."""
        self.retry_at = 0.0
        """Nothing is sent before this time."""
        self.narrowed = False
        """A queue was refused that takes no messages: it is to be asked which ones do."""
        self.due = False
        """A section has closed since the last `next_request`."""
        self.watched: CallBacks | None = None
        self._random = random
        self._batch = max(1, min(settings.batch, target.segment_size // 4))
        self._large = min(64 * KiB, target.message_size_max)
        self.lanes = Lanes(target, settings.window)
        self._turn: deque[Lane] = deque()
        self._requests: dict[int, list[Section]] = {}
        self._number = 0
        self._attempt = 0
        self._bytes = 0
        self._crowded: Lane | None = None
        self._ended: TwinlogError | None = None
        self._earliest = math.inf

    # ── records in ──────────────────────────────────────────────────────────────────────────────

    def add(
        self, body: bytes, message: NewMessage, now: float, now_ms: int, flags: int = 0
    ) -> Section:
        """Put one record into the open section of its queue and return that section.

        The record's number in the section is ``section.count - 1`` right after.

        Args:
            body: Of the record.
            message: What is said of it: its queue, properties, birth.
            now: Seconds.
            now_ms: Wall time, ms since 1970.
            flags: The system flag of a body that is compressed already.

        Raises:
            RecordRefused: The record cannot be stored; nothing was added.
            UsageError: An argument is of another type; nothing was added.
            TwinlogError: A section before it had no success, and the epoch was given.
        """
        self.check_open()
        if message is PLAIN:
            text, lane = b"", self.lanes.current
        else:
            lane, text = self.lanes.placed(message, now_ms)
        if type(body) is not bytes:
            check_body(body)
        if len(body) > self._large:
            self.make_room(lane, len(body), now)
        born = now_ms if message.born_ms is None else message.born_ms
        section = lane.open
        if lane.inner is not None:
            if message.light:
                raise RecordRefused(NO_LIGHT, record=0, reason="light-queues")
            section = lane.open = section or self.begin(lane, now)
            size = lane.inner.add(
                body, text, sys_flag=flags, born_timestamp=born, key=message.key, tag=message.tag
            )
        elif section is None:
            section = self.begin(lane, now)
            text += section.mark
            size = lane.encoder.add(body, properties=text, sys_flag=flags, born_timestamp=born)
            section.first(size, len(text))
            lane.open = section
        else:
            size = lane.encoder.add(body, properties=text, sys_flag=flags, born_timestamp=born)
        section.count += 1
        section.size += size
        if section.size >= self._batch or now >= section.due:
            self._ripe(lane, section, now)
        return section

    def check_open(self) -> None:
        """Raise what ended a producer whose epoch was given: nothing more is taken."""
        if self._ended is not None:
            raise self._ended

    def make_room(self, lane: Lane, size: int, now: float) -> None:
        """Refuse a body that is too large; close the open section if a large one would not fit."""
        limit = self.target.message_size_max
        if size > limit:
            text = f"the message has {size} bytes, at most {limit} fit"
            hint = "store large values elsewhere and send their address"
            raise RecordRefused(text, hint=hint, record=0, reason="size")
        if lane.open is not None and lane.open.size + size > SECTION_MAX - 64 * KiB:
            self._close(lane, lane.open, now)

    def begin(self, lane: Lane, now: float) -> Section:
        """Return a new section of a lane; `add` or the caller puts records into it."""
        return Section(
            lane.topic,
            lane.queue,
            producer=self.target.producer,
            epoch=lane.epoch,
            sequence=lane.sequence,
            due=now + self.settings.linger,
        )

    def _ripe(self, lane: Lane, section: Section, now: float) -> None:
        """Close a full section; an old one only once it can be sent, until then it may fill."""
        if section.size >= self._batch or lane.load < self.settings.window:
            self._close(lane, section, now)

    def _close(self, lane: Lane, section: Section, now: float) -> None:
        lane.open = None
        if lane.inner is None:
            section.seal(lane.encoder.take())
        else:
            data, records, size, text = lane.inner.take(section.mark)
            section.first(size, text)
            section.seal(data, records)
        self.limit(section, now + self.settings.timeout)
        lane.sequence += section.records
        lane.waiting.append(section)
        self._bytes += section.size
        self.statistics.records += section.count
        self.statistics.bytes += section.size
        self.statistics.sections += 1
        self.due = True
        if len(lane.waiting) == 1:
            self._turn.append(lane)
        elif len(lane.waiting) > self.settings.window:
            self._crowded = lane
        self.lanes.pass_turn(lane)

    def close(self, section: Section, now: float) -> None:
        """Close one section, unless it is closed already."""
        lane = self.lanes.of(section)
        if lane.open is section:
            self._close(lane, section, now)

    def close_all(self, now: float) -> None:
        """Close every open section: nothing waits for more records."""
        for lane in self.lanes:
            if lane.open is not None:
                self._close(lane, lane.open, now)

    def close_old(self, now: float) -> None:
        """Close the sections whose linger has passed."""
        for lane in self.lanes:
            if lane.open is not None and now >= lane.open.due:
                self._ripe(lane, lane.open, now)

    # ── how it stands ───────────────────────────────────────────────────────────────────────────

    @property
    def full(self) -> bool:
        """Whether the caller should wait before it adds more."""
        crowded = self._crowded
        if crowded is not None:
            if len(crowded.waiting) > self.settings.window:
                return True
            self._crowded = None
        return self._bytes >= self.settings.bytes_in_flight

    @property
    def idle(self) -> bool:
        """Whether every closed section has its final answer."""
        return self._bytes == 0

    @property
    def epoch(self) -> int:
        """The highest producer epoch that a lane has begun."""
        return max(lane.epoch for lane in self.lanes)

    @property
    def in_flight(self) -> int:
        """Requests that are sent and not answered."""
        return len(self._requests)

    @property
    def deadline(self) -> float:
        """A time before which no section's deadline passes; infinity when none is unanswered."""
        return self._earliest if self._bytes else math.inf

    def limit(self, section: Section, deadline: float) -> None:
        """Give a closed section a deadline of its own."""
        section.deadline = deadline
        self._earliest = min(self._earliest, deadline)

    # ── requests out, answers in ────────────────────────────────────────────────────────────────

    def next_request(self, now: float) -> Request | None:
        """Return the next APPEND to send, or None when nothing may go now.

        Its sections count as sent from here on; if it cannot be sent, call `on_lost`.
        """
        self.due = False
        if not self._turn or now < self.retry_at or self.unrouted:
            return None
        sections: list[Section] = []
        size = 0
        while self._turn:
            lane = self._turn[0]
            if not lane.may_send(self.settings.window):
                self._turn.popleft()
                continue
            section = lane.waiting[0]
            if sections and size + section.size > FRAME_SIZE:
                break
            lane.waiting.popleft()
            lane.sent.append(section)
            sections.append(section)
            size += section.size
            if lane.waiting:
                self._turn.rotate(-1)
            else:
                self._turn.popleft()
        return self._request(sections, now) if sections else None

    def _request(self, sections: list[Section], now: float) -> Request:
        self._number += 1
        left = min([section.deadline for section in sections]) - now
        for section in sections:
            self.statistics.resent += section.attempts > 0
            if not section.maybe:  # else the first doubtful attempt counts
                section.begun = now
            section.attempts += 1
            section.state = State.SENT
        self._requests[self._number] = sections
        self.statistics.requests += 1
        return self._message(self._number, sections, now + left, left)

    def _message(
        self, number: int, sections: list[Section], deadline: float, left: float
    ) -> Request:
        """Return the request that carries sections; ``left`` is what the node is given, seconds."""
        fields: dict[str, object] = {
            "ack": self.settings.acknowledge,
            "timeout_ms": max(1, int(left * 1000)),
            "sections": [section.row() for section in sections],
        }
        pieces: list[memoryview | bytes] = [memoryview(section.data) for section in sections]
        return Request(number, fields, pieces, deadline)

    def may_launch(self, lane: Lane, now: float) -> bool:
        """Say whether a section can be made and sent at once: nothing else is open or under way."""
        if self._bytes or self.unrouted or now < self.retry_at or lane.inner is not None:
            return False
        return lane.open is None and not lane.held and lane.gap is None

    def launch(self, lane: Lane, section: Section, deadline: float, now: float) -> Request:
        """Count a sealed section as sent, the only one; return its request.

        The same as to close it and take it from `next_request`. Requires `may_launch`.
        """
        lane.sequence += 1
        lane.sent.append(section)
        self.lanes.pass_turn(lane)
        section.deadline = self._earliest = deadline
        section.attempts, section.begun = 1, now
        self._bytes = section.size
        self._number += 1
        self._requests[self._number] = [section]
        statistics = self.statistics
        statistics.records += 1
        statistics.bytes += section.size
        statistics.sections += 1
        statistics.requests += 1
        return self._message(self._number, [section], deadline, deadline - now)

    def lone(self, number: int) -> Section | None:
        """Return the section of a request that is all there is in its lane; None: there is more."""
        sections = self._requests.get(number)
        if sections is None or len(sections) != 1:
            return None
        lane = self.lanes.of(sections[0])
        other = lane.held or lane.again or lane.waiting or lane.ahead
        return sections[0] if lane.sent == sections and not other else None

    def lone_stored(self, number: int, now: float) -> None:
        """Take note that the section of `lone` is stored; its offsets are set already."""
        (section,) = self._requests.pop(number)
        self.statistics.acknowledged += 1
        self._attempt = 0
        self.refusal = None
        self.lanes.of(section).sent.clear()
        self._settle(section, State.STORED, now)

    def on_answer(self, number: int, frame: Frame, now: float) -> None:
        """Take the answer to request ``number``.

        Raises:
            FrameError: It does not fit the request; close the connection and call `on_lost`.
        """
        sections = self._requests.pop(number, None)
        if sections is None:
            return
        try:
            if frame.is_error:
                self._refused_all(sections, error_of(frame), now)
                return
            said = outcomes_of(frame, len(sections))
        except FrameError:
            self._requests[number] = sections
            raise
        for section, outcome in zip(sections, said.rows, strict=True):
            section.confirmed_by, section.buffered = said.confirmed_by, said.buffered
            section.master_epoch = said.epoch
            self._result(section, outcome, now)

    def _refused_all(self, sections: list[Section], error: TwinlogError, now: float) -> None:
        """One refusal for a whole request."""
        for section in sections:
            if isinstance(error, OutcomeUnknown):
                self._doubt(section)
                self._repeat(section, now)
            else:
                self._refused(section, error, now)

    def _result(self, section: Section, outcome: Outcome, now: float) -> None:
        lane = self.lanes.of(section)
        if section not in lane.sent:
            return
        if outcome.error is not None:
            self._refused(section, outcome.error, now)
        elif outcome.said is Said.UNKNOWN:
            self._doubt(section)
            self._repeat(section, now)
        else:
            section.queue_offset, section.log_offset = outcome.queue_offset, outcome.log_offset
            self.statistics.duplicates += outcome.said is Said.DUPLICATE
            self.statistics.acknowledged += section.count
            self._attempt = 0
            self.refusal = None
            self._finish(lane, section, State.STORED, now)

    def _refused(self, section: Section, error: TwinlogError, now: float) -> None:
        """A definite no to this attempt; earlier ones may still have been stored."""
        lane = self.lanes.of(section)
        if section not in lane.sent:
            return
        if error.retryable:
            self.refusal = error
            self.unrouted = self.unrouted or error.code == "not-master"
            self._repeat(section, now)
            if isinstance(error, QuotaReached):  # asking earlier would be refused again
                self.retry_at = max(self.retry_at, now + error.retry_after)
        elif isinstance(error, UnknownProducer):
            lane.forgotten = error
            self._repeat(section, now)
        elif not isinstance(error, OutOfSequence):
            section.error = error
            self.narrowed = self.narrowed or error.code == "queue-closed"
            lane.gap = section.sequence if lane.gap is None else min(lane.gap, section.sequence)
            lane.held = True
            self._finish(lane, section, State.REFUSED, now)
        elif lane.gap is None and lane.first() is section:
            self._break(lane, error, now)
        else:
            self._repeat(section, now)

    def _doubt(self, section: Section) -> None:
        """Take note that an attempt may be in the log; a late retry would be stored twice."""
        section.maybe = True
        self.limit(section, min(section.deadline, section.begun + RETRY_SECONDS))

    def _repeat(self, section: Section, now: float) -> None:
        """Have a section sent again once the lane's other answers are in."""
        lane = self.lanes.of(section)
        if section not in lane.sent:
            return
        lane.repeat(section)
        if now >= self.retry_at:
            self.retry_at = now + backoff(self._attempt, self._random())
            self._attempt += 1
        self._release(lane, now)

    def _release(self, lane: Lane, now: float) -> None:
        ready = lane.release()
        if lane.forgotten is not None and not lane.held:
            self._begin_again(lane, lane.forgotten, now)
            ready = bool(lane.waiting)
        if lane.gap is not None and not lane.held:
            if lane.open is not None:
                self._close(lane, lane.open, now)
            lane.close_gap()
            ready = bool(lane.waiting)
        if ready and lane not in self._turn:
            self._turn.append(lane)

    def _finish(self, lane: Lane, section: Section, state: State, now: float) -> None:
        lane.sent.remove(section)
        if state is State.STORED:
            lane.stored(section)
        self._settle(section, state, now)
        self._release(lane, now)

    def _settle(self, section: Section, state: State, now: float) -> None:
        if section.error is not None and self.target.epoch is not None:
            self._ended = self._ended or section.error
        self._bytes -= section.size
        section.state, section.answered = state, now
        section.data = bytearray()
        if self.watched is not None:
            self.watched.settled(section)
        if state is State.REFUSED:
            self.statistics.refused += section.count
        elif state is State.UNKNOWN:
            self.statistics.unknown += section.count
        if section.error is not None and len(self.failures) < FAILURES_MAX:
            self.failures.append(section)

    def _begin_again(self, lane: Lane, error: TwinlogError, now: float) -> None:
        """Give the lane a new producer epoch: the node no longer knows the old one.

        Every attempt under way is answered or lost by now, so a section that is not in doubt is in
        no log: it gets a number of the new epoch and is sent again. One that an earlier attempt may
        have stored is unknown: the node that could have known forgot it.
        """
        if self.target.epoch is not None:  # never renewed here: its owner begins again
            self._break(lane, error, now)
            return
        if lane.open is not None:
            self._close(lane, lane.open, now)
        sections = lane.unanswered()
        lane.renew()
        for section in sections:
            if section.maybe:
                self._unknown(section, error.text, now)
            else:
                section.renumber(lane.epoch, lane.sequence)
                lane.sequence += section.records
                lane.waiting.append(section)

    def _unknown(self, section: Section, why: str, now: float) -> None:
        text = f"the section may or may not be stored: {why}"
        hint = "sending it again is safe when consumers can bear a duplicate"
        section.error = OutcomeUnknown(text, hint=hint, topic=section.topic)
        self._settle(section, State.UNKNOWN, now)

    def _break(self, lane: Lane, error: TwinlogError, now: float) -> None:
        """Give up what the lane has not got answered and begin a new producer epoch.

        A section that an earlier attempt may have stored is unknown, whatever its last attempt was
        answered: a node that no longer knows the producer refuses what it has stored.
        """
        if lane.open is not None:
            self._close(lane, lane.open, now)
        for section in lane.unanswered():
            # A refusal answers the attempt under way; then only an earlier one is in doubt.
            answered = isinstance(error, OutOfSequence | UnknownProducer)
            if section.maybe or (section.state is State.SENT and not answered):
                self._unknown(section, error.text if answered else "no node answered in time", now)
            else:
                section.error = error
                self._settle(section, State.REFUSED, now)
        lane.renew()

    def on_lost(self, now: float) -> None:
        """Take note that the connection ended: whatever was under way is sent again."""
        self.unrouted = True
        for sections in list(self._requests.values()):
            for section in sections:
                self._doubt(section)
                self._repeat(section, now)
        self._requests.clear()

    def postpone(self, now: float, error: TwinlogError) -> None:
        """Take note that no master could be reached because of ``error``; wait a little."""
        self.refusal = error
        self.retry_at = now + backoff(self._attempt, self._random())
        self._attempt += 1

    def expire(self, now: float) -> None:
        """Give up the sections whose deadline has passed, and with them their lane's later ones."""
        if now < self._earliest:
            return
        for lane in self.lanes:
            first = lane.first()  # the oldest: later ones cannot be stored before it
            if first is not None and now >= first.deadline:
                why = f": {self.refusal.text}" if self.refusal is not None else ""
                hint = self.refusal.hint if self.refusal is not None else None
                text = f"no node took the section in time{why}"
                self._break(lane, self._late(text, hint), now)
        for number, sections in list(self._requests.items()):
            if all(section.done for section in sections):
                del self._requests[number]  # its answer would change nothing any more
        firsts = [lane.first() for lane in self.lanes]
        self._earliest = min((first.deadline for first in firsts if first), default=math.inf)

    def _late(self, text: str, hint: str | None) -> TwinlogError:
        """Return the error of what was refused until its deadline."""
        refusal = self.refusal
        if isinstance(refusal, QuotaReached):
            wait_ms = round(refusal.retry_after * 1000)
            return QuotaReached(text, hint=hint, retry_after_ms=wait_ms)
        return Unavailable(text, hint=hint)

    def collect(self) -> list[Section]:
        """Return the sections that did not succeed since the last call."""
        found, self.failures = self.failures, []
        return found

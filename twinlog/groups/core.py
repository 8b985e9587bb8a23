"""A member of a group: what it asks for, what it holds, what became of it.

The member joins over each new connection to the master; under the same number if its session lasts,
under another one if not. Then one pop at a time is under way beside any number of outcomes. A pop
is known by its number, so one without an answer is repeated and brings the same lease; outcomes
are known by lease and range, so they are repeated, too. After a failover the member goes on where
it was.

Messages are fetched ahead as `Speed` allows. One whose lease has too little left when its turn
comes is given back unused. Outcomes are joined for `JOIN_SECONDS`; they leave at once with a pop,
and when the caller waits.

Pure: no clock, socket or thread. The shell calls `requests`, `on_sent`, `on_answer`, `on_lost`,
`take`, `settle`, and looks at `unrouted`, `retry_at`, `wake`. Times are seconds of one monotonic
clock.

Sources: KIP-932 (share groups); RocketMQ's PopConsumer, whose receipts these leases stand for.
"""

from __future__ import annotations

import math
from typing import Final, cast

from twinlog.errors import (
    CorruptionError,
    LeaseLost,
    NotMember,
    OutcomeUnknown,
    TwinlogError,
    Unavailable,
)
from twinlog.groups.leases import HANDED, READY, SETTLED, Held, leased
from twinlog.groups.outcomes import URGENT, Outcomes, Told
from twinlog.groups.ready import Ready
from twinlog.groups.renewal import Renewals
from twinlog.groups.requests import Counts, Request, join_fields, lost, pop_fields
from twinlog.groups.settings import ORDERED, SESSION_SECONDS, WAIT_SECONDS, GroupSettings
from twinlog.groups.speed import Speed
from twinlog.session.link import error_of
from twinlog.wire.frames import Frame
from twinlog.wire.groups import DONE, LEAVING, What
from twinlog.wire.schema import check
from twinlog.wire.types import Type

JOIN_SECONDS: Final = 0.005
"""How long outcomes wait for others to leave with."""

SETTLES_MAX: Final = 16
"""Requests with outcomes under way; further ones are joined."""

CLOSE_SECONDS: Final = 5.0
"""How long leaving a group may take."""

LAST_POP_SECONDS: Final = 0.25
"""How long a member that has left waits for the answer to its last pop."""

LOST_MAX: Final = 1000
"""Outcomes without success that are kept for the caller; the statistics count all of them."""

DAMAGE_SECONDS: Final = 15.0
"""How long a node may take to replace damaged messages; then the loop ends with the error. A node
that finds no whole copy gives its role up after 10 s."""

DAMAGE_PAUSE_SECONDS: Final = 0.5
"""Pause before a pop that met damage is repeated."""

PATIENCE_SECONDS: Final = 2.0
"""How long a master may take for an answer, beyond what it was allowed to wait; then the other
nodes are asked who is master."""


class GroupCore:
    """See the module.

    Args:
        settings: Which group, and how.
        started: Now.

    Attributes:
        member: Number; 0 before it has joined.
        generation: Of the group's assignment.
        unrouted: The master must be looked for before anything is asked.
        refusal: What the last node refused everything with.
        retry_at: Nothing is asked before this time.
        waiting: The body waits for a message.
        closing: The member is leaving.
        producer: Id of the producer of what is sent together; 0: none was asked yet.
        producer_epoch: Of the last step.
        local: The member's own (IP address, port).
        segment_size: Bytes of one log file.
        lost: Outcomes without success that were not collected.
        counts: What was done.
    """

    def __init__(self, settings: GroupSettings, started: float) -> None:
        self.settings = settings
        self.invisible = settings.invisible or 60.0
        self.member = 0
        self.generation = 0
        self.unrouted = True
        self.refusal: TwinlogError | None = None
        self.retry_at = 0.0
        self.waiting = False
        self.closing = False
        self.left = False
        self.producer = 0
        self.producer_epoch = 0
        self.local: tuple[str, int] = ("127.0.0.1", 0)
        self.segment_size = 1 << 30
        self.lost: list[LeaseLost] = []
        self.counts = Counts()
        self.speed = Speed(settings.batch)
        self._joined = False
        self._ready = Ready(ordered=settings.mode == ORDERED)
        self._handed: dict[tuple[int, int, int], Held] = {}
        self._outcomes = Outcomes()
        self._under_way: dict[int, Request] = {}
        self._pop: Request | None = None
        self._step: Request | None = None
        self._step_answer: Frame | TwinlogError | None = None
        self._pop_number = 0
        self._pop_at = self._popped = 0.0
        self._most = 0
        self._ahead = False
        self._seconds = WAIT_SECONDS
        self._spoke = self._progress = started
        self._close_by = math.inf
        self._left_at = self._damaged_at = math.inf
        self._renewals = Renewals()

    # ── messages out ────────────────────────────────────────────────────────────────────────────

    def take(self, now: float) -> Held | None:
        """Return the next message for the body, now its own; None: nothing is here yet."""
        needed = self.speed.needed(self.invisible)
        for old in self.handed if self._ready.ordered else ():
            if old.ends <= now:  # no word came in time: it comes again, and what follows it too
                del self._handed[old.share, old.n, old.offset]
                self._give_back_rest(old, now)
        while (held := self._ready.take(self._busy)) is not None:
            if held.ends - now <= needed:
                self._give_back(held, now)
                self._give_back_rest(held, now)
                continue
            held.state, held.begun = HANDED, now
            self._handed[held.share, held.n, held.offset] = held
            self._renewals.begun(held, self.invisible)
            self.counts.handed += 1
            self.waiting = False
            return held
        return None

    def _give_back(self, held: Held, now: float) -> None:
        held.state = SETTLED
        self.counts.unused += 1
        self._outcomes.note(held.share, held.n, held.offset, Told(What.UNUSED), now)

    def _give_back_rest(self, held: Held, now: float) -> None:
        """Give back what comes after a message of an ordered queue that is to come again."""
        for other in self._ready.cut(held.share, held.offset, self._pop_number):
            self._give_back(other, now)
        if self._ready.ordered:
            self.urge()

    @property
    def _busy(self) -> set[int]:
        """The queues of an ordered group of which the body has a message."""
        return {share for share, _, _ in self._handed} if self._ready.ordered else set()

    @property
    def blocked(self) -> bool:
        """Whether all that is here comes after messages that the body has not settled."""
        return bool(self._ready) and not self._ready.beyond(self._busy)

    @property
    def renew_at(self) -> float:
        """When the first lease of a body is to be extended."""
        return self._renewals.at

    @property
    def ready(self) -> int:
        """Messages that were fetched ahead."""
        return len(self._ready)

    @property
    def handed(self) -> list[Held]:
        """Messages that the body has and that are not settled, oldest first."""
        return list(self._handed.values())

    def wait(self, now: float, *, most: int = 0, seconds: float = WAIT_SECONDS) -> None:
        """Say that the caller waits from now on.

        The time that it took before does not count as silence of the nodes.

        Args:
            now: Seconds.
            most: How many messages it wants at a time; 0: one after the other.
            seconds: How long it waits.
        """
        if not self.waiting:
            self.waiting, self._progress = True, now
        self._most, self._seconds = most, min(seconds, WAIT_SECONDS)
        self._ahead = not most

    def go_on(self) -> None:
        """Say that the caller waits no more."""
        self.waiting, self._most, self._seconds = False, 0, WAIT_SECONDS

    def answers(self, began: float, end: float, now: float) -> bool:
        """Say whether a pop since ``began``, kept until ``end`` at most, may still be answered."""
        if self._pop is None and self._popped < began and self._room():
            return now < end + PATIENCE_SECONDS  # the member joins first
        pop = self._pop
        return pop is not None and pop.sent >= began and now < end + PATIENCE_SECONDS

    @property
    def low(self) -> bool:
        """Whether it is time to fetch more."""
        return self._ahead and self._pop is None and self._room() > 0

    # ── outcomes in ─────────────────────────────────────────────────────────────────────────────

    def settle(self, held: Held, told: Told, now: float) -> bool:
        """Note what became of a message; False when that was said before.

        An extension says nothing about that; the lease lasts longer once the node has taken it.
        """
        if held.state != HANDED:
            return False
        if told.what == What.EXTEND:
            held.extending = True
            held.ends = min(held.ends, now + told.number / 1000)  # an earlier end counts at once
        else:
            held.state = SETTLED
            self._handed.pop((held.share, held.n, held.offset), None)
            self.speed.took(now - held.begun)
            if now >= held.ends:
                told = told._replace(late=True)
        self._outcomes.note(held.share, held.n, held.offset, told, now)
        if told.late or told.what not in (What.ACK, What.EXTEND):
            self._give_back_rest(held, now)
        return True

    def settled_elsewhere(self, held: Held) -> None:
        """Take note that a message was settled with a step."""
        held.state = SETTLED
        self._handed.pop((held.share, held.n, held.offset), None)
        self.counts.settled += 1

    def begin(self, request: Request) -> None:
        """Have a step sent, and repeated until it is answered."""
        self._step, self._step_answer = request, None

    def answered(self, deadline: float, now: float) -> Frame | None:
        """Return the answer to the step; None: there is none yet.

        Raises:
            TwinlogError: What it was refused with.
            OutcomeUnknown: The deadline has passed.
        """
        answer, request = self._step_answer, self._step
        if answer is not None:
            self._step = self._step_answer = None
        elif now >= deadline and request is not None:
            self._step = None
            if not request.sent:
                raise Unavailable("no master took the step in time; nothing of it was done")
            text = "the step may or may not have been carried out: no node answered in time"
            raise OutcomeUnknown(text, hint="its messages come again unless it was")
        if isinstance(answer, TwinlogError):
            raise answer
        return answer

    @property
    def settled(self) -> bool:
        """Whether every outcome so far is answered."""
        return not self._settles and not self._outcomes

    def late(self) -> LeaseLost | None:
        """Return, once, an outcome without success that came after its lease had ended here."""
        for error in self.lost:
            if error.facts.get("late"):
                self.lost.remove(error)
                return error
        return None

    def collect(self) -> list[LeaseLost]:
        """Return the outcomes without success since the last call."""
        found, self.lost = self.lost, []
        return found

    def urge(self) -> None:
        """Have what is noted sent with the next look, however young it is."""
        self._outcomes.since = URGENT

    def close(self, now: float, failed: Told) -> None:
        """Begin to leave: what the body has gets the outcome ``failed``, the rest is given back."""
        if self.closing:
            return
        self.closing, self._close_by = True, now + CLOSE_SECONDS
        for held in self.handed:
            self.settle(held, failed, now)
        for held in self._ready.clear():
            self._give_back(held, now)
        self.urge()

    def closed(self, now: float) -> bool:
        """Whether the member has left, or has tried for long enough."""
        if not self.closing:
            return False
        gone = self.left or not (self._joined or self._asked(Type.JOIN))
        quiet = self.settled and gone
        if quiet and self._asked(Type.POP):  # what it leased just before is given back
            quiet = now >= self._left_at + LAST_POP_SECONDS
        return quiet or now >= self._close_by

    def limit(self, deadline: float) -> float:
        """Return ``deadline``, or when the member must have left if that comes first."""
        return min(deadline, self._close_by)

    # ── requests out ────────────────────────────────────────────────────────────────────────────

    def requests(self, now: float) -> list[Request]:
        """Return what is to be sent now, in order; each counts as sent by `on_sent` only."""
        if self.unrouted or now < self.retry_at or self.left:
            return []
        if not self._joined:
            asked = any(request.type == Type.JOIN for request in self._under_way.values())
            return [] if asked or (self.closing and self.settled) else [self._join()]
        for held in self._renewals.due(self.handed, self.invisible, self.settings.renew, now):
            self.settle(held, Told(What.EXTEND, round(self.invisible * 1000)), now)
            self.urge()
        pop = None if self.closing else self._next_pop(now)
        found: list[Request] = []
        if self._outcomes and self._settles < SETTLES_MAX and (pop is not None or self._ripe(now)):
            rows = self._outcomes.take()
            found.append(Request(Type.SETTLE, self._own({"rows": [row.wire() for row in rows]})))
            found[-1].rows = rows
        if self.closing:
            if self.settled and not found and not self._asked(Type.BEAT):
                found.append(self._beat(leave=True))
            return found
        if self._step is not None and not self._asked(Type.TOGETHER):
            self._step.fields |= self._own({"generation": self.generation})
            found.append(self._step)
        if pop is not None and not self._giving_back(found):
            # After the outcomes: the node decides both in one turn.
            found.append(pop)
        if not found and now >= self._spoke + SESSION_SECONDS / 3 and not self._asked(Type.BEAT):
            found.append(self._beat())
        return found

    def _asked(self, kind: Type) -> bool:
        return any(request.type == kind for request in self._under_way.values())

    @property
    def _settles(self) -> int:
        return sum(bool(request.rows) for request in self._under_way.values())

    def _giving_back(self, found: list[Request]) -> bool:
        """Whether the node has to know first, in an ordered group, what of a queue comes again."""
        if not self._ready.ordered:
            return False
        rows = (row for request in (*found, *self._under_way.values()) for row in request.rows)
        return self._outcomes.urgent or any(
            row.told.what not in (What.ACK, What.EXTEND) for row in rows
        )

    def _ripe(self, now: float) -> bool:
        """Say whether the outcomes leave now."""
        return (self.waiting and not self._settles) or now >= self._outcomes.since + JOIN_SECONDS

    def _own(self, fields: dict[str, object]) -> dict[str, object]:
        return {"group": self.settings.group, "member": self.member, **fields}

    def _join(self) -> Request:
        return Request(Type.JOIN, self._own(join_fields(self.settings)))

    def _beat(self, *, leave: bool = False) -> Request:
        fields: dict[str, object] = {"generation": self.generation, "finished": [], "wait_ms": 0}
        if leave:
            fields["leave"] = True
        return Request(Type.BEAT, self._own(fields))

    def _next_pop(self, now: float) -> Request | None:
        if self._pop is not None:
            return None if self._asked(Type.POP) or now < self._pop_at else self._pop
        most = self._room()
        if not most or now < self._pop_at:
            return None
        self._pop_number += 1
        wait = self._seconds
        fields = pop_fields(self.settings, self._pop_number, most, self.invisible, wait)
        self._pop = Request(Type.POP, self._own(fields), wait=wait)
        return self._pop

    def _room(self) -> int:
        """Return how many messages to ask for now; 0: enough is held."""
        if self._most:
            return self._most if self.waiting and not self._ready else 0
        allowed = self.speed.allowance(self.invisible)
        room = allowed - len(self._ready) - len(self._handed)
        if self.waiting and not self._ready:
            return max(1, room)
        return room if self._ahead and 2 * room >= allowed else 0

    def wake(self, now: float) -> float:
        """Return when to look again, if nothing comes before, seconds."""
        if now < self.retry_at:
            return min(self.retry_at, max(now, self._close_by))
        times = [self._close_by, self._left_at + LAST_POP_SECONDS]
        if self._joined and not self.closing and not self._asked(Type.BEAT):
            times.append(self._spoke + SESSION_SECONDS / 3)
        if self._joined and self.settings.renew:
            times.append(self.renew_at)
        if self._joined and self._outcomes and self._settles < SETTLES_MAX:
            times.append(self._outcomes.since + JOIN_SECONDS)
        if self._pop is not None and now < self._pop_at:
            times.append(self._pop_at)
        times += [request.overdue for request in self._under_way.values()]
        return max(now, min(times))

    def silent(self, now: float) -> bool:
        """Whether an answer is overdue: the node may be paused, or master no longer."""
        return any(now >= request.overdue for request in self._under_way.values())

    def patient(self, now: float) -> None:
        """Wait once more for what is overdue: the node is still master by all accounts."""
        for request in self._under_way.values():
            request.overdue = max(request.overdue, now + PATIENCE_SECONDS)

    # ── what came of them ───────────────────────────────────────────────────────────────────────

    def on_sent(self, number: int, request: Request, now: float) -> None:
        """Say that a request went out under ``number``."""
        request.sent = self._spoke = now
        request.overdue = now + request.wait + PATIENCE_SECONDS
        self._under_way[number] = request

    def unsent(self, request: Request) -> None:
        """Say that a request could not be sent after all."""
        if request.rows:
            self._outcomes.back(request.rows)

    def on_lost(self, now: float, why: TwinlogError, pause: float) -> None:
        """Take note that the connection ended; the master is looked for after ``pause`` seconds.

        Raises:
            TwinlogError: ``why``, when no node has answered for too long.
        """
        self._forget()
        self.unrouted, self.retry_at = True, now + pause
        self.expire(now, why)

    def routed(self, *, fresh: bool) -> None:
        """Say that a connection to the master is open."""
        self.unrouted, self.refusal = False, None
        if fresh:
            self._forget()

    def _forget(self) -> None:
        """Nothing that is under way will be answered: it is asked again."""
        self._joined = False
        for request in reversed(self._under_way.values()):
            if request.rows:
                self._outcomes.back(request.rows)
        self._under_way.clear()

    def expire(self, now: float, why: TwinlogError) -> None:
        """Raise ``why`` when no node has answered for too long."""
        if not self.closing and now - self._progress > self.settings.timeout:
            raise Unavailable(
                f"group {self.settings.group} is not served: {why.text}", hint=why.hint
            )

    def on_answer(self, number: int, frame: Frame, now: float, pause: float) -> None:
        """Take an answer.

        Args:
            number: As given to `on_sent`.
            frame: The answer.
            now: Seconds.
            pause: How long to wait before asking again a node that refused for now.

        Raises:
            TwinlogError: The member cannot go on: the group is unknown, differs, is forbidden.
            FrameError: The node left the rules of the wire.
        """
        request = self._under_way.get(number)
        if request is None:
            return
        check(frame)
        del self._under_way[number]
        if frame.is_error:
            self._refused(request, error_of(frame), now, pause)
            return
        self._progress = now
        match request.type:
            case Type.JOIN:
                self._on_join(frame)
            case Type.POP:
                self._on_pop(request, frame, now)
            case Type.SETTLE:
                self._on_settled(request, frame)
            case Type.TOGETHER:
                self._step_answer = frame
            case _:
                if self.closing and self.settled:
                    self.left, self._left_at = True, now
                elif self.closing:  # a pop was answered meanwhile: join again to give that back
                    self._joined = False

    def _on_join(self, frame: Frame) -> None:
        fields, before = frame.fields, self.member
        self.member = cast("int", fields["member"])
        self.generation = cast("int", fields["generation"])
        if self.settings.invisible is None:
            self.invisible = max(cast("int", fields["invisible_ms"]) / 1000, 0.001)
        self._joined = True
        if self.member != before:
            # The pop under way was another member's; what it leased ends by time.
            self._pop, self._pop_number = None, 0
            self._ready.forget()
            self.counts.joined += 1

    def _on_pop(self, request: Request, frame: Frame, now: float) -> None:
        self._pop, self._popped, self._damaged_at = None, request.sent, math.inf
        found = leased(frame, request.sent, now)
        for held in self._ready.add(found, cast("int", request.fields["pop"])):
            self._give_back(held, now)
            self._give_back_rest(held, now)
        for held in self._ready.clear() if self.closing else ():
            self._give_back(held, now)
            if self.left:
                self.left, self._joined, self._left_at = False, False, math.inf

    def _on_settled(self, request: Request, frame: Frame) -> None:
        answers = cast("list[list[object]]", frame.fields["rows"])
        for row, answer in zip(request.rows, answers, strict=False):
            count, taken = row.last - row.first + 1, answer[0] == DONE
            if row.told.what == What.EXTEND:
                self._renewals.answered(
                    row, self._handed, request.sent, self.invisible, taken=taken
                )
                if answer[0] == LEAVING:  # it lasts as long as it would have
                    continue
            elif taken:
                self.counts.settled += count
            if taken:
                continue
            # Given back twice because the first answer was lost, it may be out again by now.
            if row.told.what == What.UNUSED or (row.again and row.told.what == What.RELEASE):
                continue
            self.counts.lost += count
            if len(self.lost) < LOST_MAX:
                self.lost.append(lost(row, str(answer[0])))

    def _refused(self, request: Request, error: TwinlogError, now: float, pause: float) -> None:
        if request.rows:
            self._outcomes.back(request.rows)
        if isinstance(error, NotMember):
            if request.type == Type.JOIN:
                self.member = 0
            self._joined = False
            return
        if isinstance(error, CorruptionError) and request.type == Type.POP and not self.closing:
            self._damaged(error, now, pause)
            return
        if not error.retryable and not isinstance(error, OutcomeUnknown):
            if request.type == Type.TOGETHER:  # the step was refused, the member goes on
                self._step_answer = error
                return
            if self.closing:  # nothing more can be said to the group
                self.left, self._outcomes = True, Outcomes()
                return
            raise error
        after = error.facts.get("retry_after_ms")
        again = now + max(pause, after / 1000 if isinstance(after, int) else 0.0)
        if error.code == "not-master":
            self._forget()
            self.unrouted, self.refusal, self.retry_at = True, error, now
        elif isinstance(error, OutcomeUnknown):
            self.retry_at = again
        elif request.type == Type.POP and error.code not in ("not-ready", "not-enough-in-sync"):
            self._pop_at = again
        else:
            self.retry_at = again
        self.expire(now, error)

    def _damaged(self, error: CorruptionError, now: float, pause: float) -> None:
        """Ask again: a node replaces a damaged batch by another node's copy, if there is one."""
        self._damaged_at = min(self._damaged_at, now)
        if now >= self._damaged_at + DAMAGE_SECONDS:
            raise error
        self._pop_at = now + max(pause, DAMAGE_PAUSE_SECONDS)


__all__ = ["CLOSE_SECONDS", "READY", "Counts", "GroupCore", "Request"]

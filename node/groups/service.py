"""Work queues of one node: requests in, one record of rows a turn, answers out at its confirm.

Requests of one round of the sockets are decided together, in the order in which they came, then
what time has brought, then parked pops. Decisions of a turn see each other (`Scratch`); their rows
are appended in one record. An answer leaves when that record is confirmed, so what a client was
told outlives any failover; an append that is refused undoes the turn.

Groups are served by an active master that has read all it inherited (docs/protocol.md R62). A
master that steps down answers everything that waits ``not-master``; everything may be repeated to
the next one.

Synchronous; its owner calls `run` after requests, `look` at the end of every turn and `tick`
at `next_deadline`. Limits: `node.leases.limits`. Not here: sockets, threads, what rows mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from node.delivery.rescue import Rescue
from node.delivery.service import Deliveries, DeliveryCounts
from node.delivery.sources import Levels, Timers
from node.groups.context import ANSWER_SECONDS, Context, Done, Turn
from node.groups.dead_letters import DeadLetters
from node.groups.joining import Joining, Request
from node.groups.orders import Fetch as Looks
from node.groups.orders import Orders
from node.groups.parked import Asker
from node.groups.pops import Fetch, Pops
from node.groups.positions import Commits, commit
from node.groups.requests import parse_commits, parse_join, parse_settles
from node.groups.together import Together, TogetherFields
from node.leases.due import over
from node.leases.leasing import Leasing
from node.leases.ordering import unused_tail
from node.leases.scratch import Scratch
from node.leases.settles import Dying, Settle, Settling
from node.transactions.checks import CheckSettings
from node.transactions.service import Transactions, parse_end
from storage.messaging.fold import MEMBER_SIGN
from storage.messaging.share import LEASED, WAITING, Run, Share
from storage.state.sections import Outcome
from storage.state.sections import Together as Appended
from twinlog.errors import Busy, CorruptionError, TwinlogError, Unavailable, UsageError
from twinlog.format.group_rows import ReleaseRow
from twinlog.wire.groups import RECEIPT_EXPIRED
from twinlog.wire.types import Type

LEAVING_SECONDS = 1.0
"""Between two looks at what waits in a log file that is to leave."""
RETRY_SECONDS = 0.1
"""A turn that time brought and the log refused is tried again after this."""


class WorkQueues:
    """See the module.

    Args:
        context: The node.
        fetch: Has cold records fetched in a thread.
        looks: Has times of messages looked up in a thread.
        observed: Role, node and age for answers of GROUP.
        timer_late: The same of messages that wait for a time.
        late: Given how late, in seconds, each delivery of delayed messages was.
        enabled: False: every request is refused.
        transactions: When producers are asked about transactions.
    """

    def __init__(
        self,
        context: Context,
        *,
        fetch: Fetch,
        looks: Looks,
        observed: Callable[[], Mapping[str, object]],
        late: Callable[[float], None] = lambda seconds: None,
        timer_late: Callable[[float], None] = lambda seconds: None,
        enabled: bool = True,
        transactions: CheckSettings | None = None,
    ) -> None:
        self.context = context
        self._observed = observed
        self._enabled = enabled
        self.epoch = 0
        """The reign in which groups are served; 0: none."""
        self.waiting = 0
        """Requests that wait for their confirm."""
        self._requests: list[Request] = []
        self._decisions: list[Callable[[Turn], None]] = []
        self._commits = Commits()
        self._grace_until = self._not_before = self._leaving_at = 0.0
        self._full: dict[int, str] = {}
        """Shares that were met full, with their groups."""
        self._seen = 0
        self._leaps = 0
        self._running = False
        self.moved = True
        """Whether `next_deadline` may have changed; who asks it clears this."""
        self.joining = Joining(context, self._requests_again)
        self.pops = Pops(context, self._decide, fetch, lambda: self.epoch)
        self.dead = DeadLetters(context, fetch)
        self.orders = Orders(context, observed, looks)
        self.together = Together(context)
        counts = DeliveryCounts(late)
        self.delays = Deliveries(context, fetch, Levels(context.messaging), counts)
        counts = DeliveryCounts(timer_late)
        self._timed = Timers(context, counts)
        self.timers = Deliveries(context, fetch, self._timed, counts)
        self.transactions = Transactions(context, fetch, self._requests_again, transactions)
        self.rescue = Rescue(context, fetch)

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    @property
    def pending(self) -> bool:
        """Whether `run` has something to do."""
        return bool(self._requests or self._decisions)

    @property
    def serves(self) -> bool:
        """Whether requests about groups are served now."""
        return self._enabled and self.epoch > 0

    @property
    def parked(self) -> int:
        """Pops that wait for messages now."""
        return self.context.parked.count

    def handle(
        self,
        kind: int,
        fields: Mapping[str, object],
        payload: memoryview,
        asker: Asker,
        address: str,
        done: Done,
    ) -> None:
        """Take a request whose fields have the right shape, for the next `run`.

        Raises:
            TwinlogError: It makes no sense, or a limit is reached; ``done`` is not called.
        """
        context = self.context
        if not self._enabled:
            hint = "set enabled in [messaging] on all nodes"
            raise UsageError("this node serves no groups", code="unsupported", hint=hint)
        waiting = self.waiting + context.parked.count + self.joining.waiting + len(self._commits)
        waiting += self.transactions.asking.parked
        if waiting >= context.limits.waiting_max:
            text = f"{waiting} requests of groups wait already (waiting_max)"
            raise Busy(text, limit="waiting_max")
        match kind:
            case Type.POP:
                turn = partial(self.pops.pop, fields, asker, done)
            case Type.SETTLE:
                rows = parse_settles(fields["rows"])
                turn = partial(self._settle, fields, rows, done)
            case Type.JOIN:
                asked = parse_join(fields, context.limits)
                turn = partial(self.joining.join, asked, asker, address, done)
            case Type.BEAT:
                turn = partial(self.joining.beat, fields, asker, done)
            case Type.COMMIT:
                commits = parse_commits(fields["rows"])
                turn = partial(self._commit, fields, commits, asker, done)
                if self.epoch and self._commits.add((turn, done), context.seconds()):
                    self.moved = True
                    return
            case Type.CANCEL:
                turn = partial(self._timed.cancel, fields, done)
            case Type.END:
                turn = partial(self.transactions.end, parse_end(fields, address), done)
            case Type.CHECKS:
                turn = partial(self.transactions.asking.checks, fields, asker, done)
            case Type.WAITING if fields["what"] != "halves":
                self.orders.waiting.answer(fields, asker, done)
                return
            case Type.WAITING:
                done({**self.transactions.waiting(fields), **self._observed()})
                return
            case Type.TOGETHER:
                together = TogetherFields.of(fields, payload)
                turn = partial(self.together.decide, together, asker, done)
            case _:
                self.orders.order(fields, self._requests_again, asker, done)
                return
        self._requests.append((turn, done))

    def _requests_again(self, request: Request) -> None:
        self._requests.append(request)

    def _decide(self, decision: Callable[[Turn], None]) -> None:
        self._decisions.append(decision)

    def consumers(self, topic: str) -> list[str]:
        """Return the names of the groups that consume a topic, sorted."""
        context = self.context
        shares = context.messaging.ahead if self.epoch else context.messaging.confirmed
        found = {
            name.partition(MEMBER_SIGN)[0]
            for name in shares.names()
            if any(share.topic == topic for share in shares.shares_of(name))
        }
        return sorted(found | {one.group for one in context.members.on(topic)})

    def dismiss(self, topic: str) -> None:
        """End the sessions of members who consume a topic, if it is not there any more.

        Joining again, they learn that it was deleted.
        """

        def decide(turn: Turn) -> None:
            if self.context.records.queues(topic) is None:
                for session in self.context.members.on(topic):
                    self.joining.end(session, turn)

        if self.epoch:
            self._decide(decide)

    def forget(self, asker: Asker) -> None:
        """Drop the parked pops of a connection that is gone; its members stay."""
        for pop in self.context.parked.drain(asker):
            pop.answer(Unavailable("the connection is gone"))
        self.transactions.asking.forget(asker)

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def run(self, now: float) -> None:
        """Decide everything that was asked since, append its rows, answer later."""
        if self._running:
            return
        self._running = self.moved = True
        try:
            self._run(now)
        finally:
            self._running = False

    def _run(self, now: float) -> None:
        refused = self._reign(now)
        requests, self._requests = self._commits.take() + self._requests, []
        if refused is not None:
            error = self.context.refusal(*refused)
            for _, done in requests:
                done(error)
            for pop in self.context.parked.over(now):
                pop.answer(None, int((now - pop.arrived) * 1000))
            self.transactions.asking.over(now)
            self._not_before = now + RETRY_SECONDS
            return
        self.context.due.tidy(self.context.messaging.ahead.share)
        turn = self._turn(now)
        decisions, self._decisions = self._decisions, []
        for decision in decisions:
            decision(turn)
        for decide, done in requests:
            try:
                decide(turn)
            except TwinlogError as error:
                done(error)
        self._pass_time(turn)
        for group in sorted(turn.stirred):
            self.pops.serve(group, turn)
        self._finish(turn)
        for append in turn.together:
            append()
        self.dead.work(now)
        self.delays.work(now)
        self.timers.work(now)
        self.transactions.work(now)
        self.rescue.work(now)

    def _turn(self, now: float) -> Turn:
        context = self.context
        now_ms = context.clock.read(context.wall_ms(), now)
        if (leaps := context.clock.leaps) != self._leaps:
            self._leaps, seconds = leaps, round(context.clock.leapt_ms / 1000, 1)
            context.tell("clock_jumped", "warning", seconds=seconds)
        scratch = Scratch(context.messaging.ahead)
        leasing = Leasing(
            scratch, context.due, context.records, context.messaging, now_ms, context.limits,
            context.turns, -1 if now < self._grace_until else None,
        )  # fmt: skip
        settling = Settling(
            scratch, context.due, now_ms, context.counts.settled, self.dead.add, self._border
        )
        return Turn(now, now_ms, scratch, leasing, settling)

    def _pass_time(self, turn: Turn) -> None:
        """Make what time has brought available, and end what is over."""
        context, grace = self.context, turn.now < self._grace_until
        for entry in context.due.passed(turn.now_ms):
            share = turn.scratch.share(entry[1])
            group = context.messaging.group(share.group) if share is not None else None
            if share is None or group is None:
                continue
            runs = over(share, entry, turn.now_ms)
            if group.mode == "ordered" and not grace:
                self._give_back_unused(share, runs, turn)
                runs = over(turn.scratch.share(share.id) or share, entry, turn.now_ms)
            for run in runs:
                if grace and run.state == LEASED:
                    left = int((self._grace_until - turn.now) * 1000) + 1
                    context.due.add(turn.now_ms + left, share.id, run.n, run.first, run.last)
                elif run.attempt >= group.attempts:
                    dying = Dying(
                        group.name, share.id, run.n, run.first, run.last, "attempts", run.attempt
                    )
                    self.dead.add(dying, None)
                else:
                    context.due.ready(group.name, (run.until, share.id, run.n, run.first, run.last))
                    turn.stirred.add(group.name)
        self.joining.forget_silent(turn)
        below = context.driver.retention.held_for_groups
        if below and turn.now >= self._leaving_at:
            self._leaving_at = turn.now + LEAVING_SECONDS
            self._let_go(below, turn)
        for pop in context.parked.over(turn.now):
            pop.answer(None, int((turn.now - pop.arrived) * 1000))
        turn.stirred.update([self._full.pop(number) for number in self._roomy()])
        turn.stirred |= context.freed
        context.freed.clear()
        if context.parked.count and (context.records.dispatched != self._seen or self._seen == 0):
            self._seen = context.records.dispatched
            turn.stirred |= self.pops.stirred()

    def _border(self, share: Share) -> int:
        """Return below which offset of a queue the records' log file is about to leave."""
        below = self.context.driver.retention.held_for_groups
        if not below:
            return 0
        try:
            return self.context.messaging.offset_at_log(share.topic, share.queue, below)
        except CorruptionError:  # the store is quarantined by now, and the reign ends
            return 0

    def _give_back_unused(self, share: Share, runs: list[Run], turn: Turn) -> None:
        """Give back what a member of an ordered group can not have begun before its lease ended."""
        for run in unused_tail(share, runs):
            turn.scratch.write(ReleaseRow(share.id, run.n, run.first, run.last, turn.now_ms, 1))

    def _let_go(self, below: int, turn: Turn) -> None:
        """Make dead letters of what waits in a log file that is to leave; leases hold it."""
        messaging = self.context.messaging
        for number in {share.id for share, _ in messaging.holding(below)}:
            share = turn.scratch.share(number)
            if share is None:
                continue
            try:
                border = messaging.offset_at_log(share.topic, share.queue, below)
            except CorruptionError:
                return  # the store is quarantined by now, and the reign ends
            for run in share.runs:
                if run.state == WAITING and run.first < border:
                    last, why = min(run.last, border - 1), "retention"
                    dying = Dying(share.group, number, run.n, run.first, last, why, run.attempt)
                    self.dead.add(dying, None)

    def _finish(self, turn: Turn) -> None:
        """Append what was decided and let the answers wait."""
        context, rows = self.context, turn.scratch.rows
        for share in turn.leasing.full:
            self._note_full(share)
        context.counts.redelivered += turn.leasing.redelivered
        if not rows and not turn.answers:
            for answer in turn.appended:
                answer(None)
            return
        self.waiting += len(turn.answers)
        said: list[TwinlogError | None] = []

        def reply(done: Appended, by: str | None) -> None:
            self.waiting -= len(turn.answers)
            error = self._error(done)
            said.append(error)
            if done.outcome is Outcome.REFUSED:
                self._restore()
                self._not_before = turn.now + RETRY_SECONDS
            for answer in turn.answers:
                answer(error)

        context.driver.append_rows(
            turn.now, rows, deadline=turn.now + ANSWER_SECONDS, reply=reply, size=turn.size
        )
        failed = said[0] if said else None
        if failed is None:
            counts = context.counts.rows
            for row in rows:
                counts[type(row)] += 1
        for answer in turn.appended:
            answer(failed)

    def _error(self, done: Appended) -> TwinlogError | None:
        if done.outcome in (Outcome.STORED, Outcome.DUPLICATE):
            return None
        if done.outcome is Outcome.REFUSED:
            return self.context.refusal(done.code, done.text)
        if not self.epoch or not self.context.driver.reign()[0]:
            return self.context.refusal("not-master", "")
        return Unavailable("not confirmed in time; it may be repeated", code="unconfirmed")

    def _restore(self) -> None:
        """A turn was refused: what it took from the line of due messages is there again."""
        messaging = self.context.messaging
        names = list(messaging.groups())
        self.context.due.begin(share for name in names for share in messaging.ahead.shares_of(name))

    def _note_full(self, share: Share) -> None:
        if share.id not in self._full:
            self._full[share.id] = share.group
            group, topic, queue = share.group, share.topic, share.queue
            self.context.tell("share_full", "warning", group=group, topic=topic, queue=queue)

    def _roomy(self) -> list[int]:
        """Return the shares that were full and have room again, whatever made it."""
        ahead, limits = self.context.messaging.ahead, self.context.limits
        return [
            number
            for number in self._full
            if (share := ahead.share(number)) is None
            or not share.full(limits.span_max, limits.runs_max)
        ]

    # ── settles and positions ───────────────────────────────────────────────────────────────────

    def _settle(
        self, fields: Mapping[str, object], rows: list[Settle], done: Done, turn: Turn
    ) -> None:
        context = self.context
        group = context.group(str(fields["group"]))
        session = context.members.get(group.name, cast("int", fields["member"]))
        if session is not None:
            session.heard_at = turn.now
        answer = _SettleAnswer(len(rows), done, lambda: context.clock.ms)
        for number, row in enumerate(rows):
            found = turn.settling.settle(group, row, partial(answer.late, number))
            if found is None:
                answer.left += 1
            else:
                answer.rows[number] = list(found)
        late = [row[0] for row in answer.rows].count(RECEIPT_EXPIRED)
        if late:
            context.too_late(group.name, cast("int", fields["member"]), late)
        turn.answers.append(answer.confirmed)
        if group.mode == "ordered":
            for number in {row.share for row in rows}:
                context.settled(group, turn.scratch.share(number))

    def _commit(
        self,
        fields: Mapping[str, object],
        commits: list[tuple[int, int]],
        asker: Asker,
        done: Done,
        turn: Turn,
    ) -> None:
        context = self.context
        group = context.group(str(fields["group"]))
        session = context.session(group.name, cast("int", fields["member"]), asker)
        session.heard_at = turn.now
        rows = commit(context, session, turn, commits)

        def answer(error: TwinlogError | None) -> None:
            done(error or {"rows": rows})

        turn.answers.append(answer)

    # ── reigns ──────────────────────────────────────────────────────────────────────────────────

    def _reign(self, now: float) -> tuple[str, str] | None:
        """Begin or end a reign as the driver says; return why groups are not served now."""
        epoch, refused = self.context.driver.reign()
        if self.epoch and epoch != self.epoch:
            self._end()
        if refused is None and not self.epoch:
            self._begin(epoch, now)
        return refused

    def _begin(self, epoch: int, now: float) -> None:
        context, fold = self.context, self.context.messaging.confirmed
        self.epoch, self.moved = epoch, True
        context.clock.begin(context.wall_ms(), now, context.records.timestamp)
        context.due.begin(iter(fold.shares()))
        names = context.messaging.groups()
        members = [(name, one) for name in names for one in fold.members(name).values()]
        context.members.begin(members, now, context.limits.session_seconds)
        self._grace_until = now + context.limits.grace_seconds
        self._not_before = self._seen = 0
        context.tell(
            "messaging_ready", "info", epoch=epoch, groups=len(context.messaging.groups()),
            shares=len(fold), members=len(context.members),
        )  # fmt: skip

    def _end(self) -> None:
        context = self.context
        self.epoch, self.moved = 0, True
        error = context.refusal("not-master", "")
        for _, done in self._commits.take():
            done(error)
        for pop in context.parked.drain():
            pop.answer(error)
        self.joining.drain(error)
        self.dead.clear(error)
        self.delays.clear()
        self.timers.clear()
        self.transactions.clear(error)
        self.rescue.clear()
        self._decisions.clear()
        context.members.clear()
        context.due.clear()
        context.turns.clear()
        context.late_at.clear()
        context.freed.clear()
        self._full.clear()

    def wants(self, now: float) -> bool:
        """Whether `look` has something to do; asked at the end of every turn."""
        context = self.context
        leading = context.driver.core.leading
        if (leading.epoch if leading is not None else 0) != self.epoch:
            return True
        if not self.epoch:
            return False
        if self._requests or self._decisions or context.freed or self.dead.ready:
            return True
        if self.delays.ready or self.timers.ready or self.transactions.ready or self.rescue.ready:
            return True
        if context.parked.count and (context.records.dispatched != self._seen or self._roomy()):
            return True
        return now >= self._leaving_at and context.driver.retention.held_for_groups > 0

    def look(self, now: float) -> None:
        """See what moved: the role, or the queues of parked pops."""
        leading = self.context.driver.core.leading
        changed = (leading.epoch if leading is not None else 0) != self.epoch
        if changed and self._reign(now) is not None and not self._requests:
            return
        if self.epoch and self.wants(now):
            self.run(now)

    def tick(self, now: float) -> None:
        """Do what is due; call at `next_deadline`."""
        self.moved = True
        self.joining.beats(now)
        if self.epoch and now >= self._not_before:
            self.run(now)

    def next_deadline(self, now: float) -> float:
        """Return when `tick` has something to do, seconds of the loop's clock."""
        context = self.context
        if not self.epoch:
            return float("inf")
        at = min(
            context.parked.next_deadline(),
            context.members.next_deadline(),
            self.joining.next_deadline(),
            self.delays.next_deadline(now),
            self._commits.deadline,
            self.timers.next_deadline(now),
            self.transactions.next_deadline(now),
            self.rescue.next_deadline(),
        )
        due = context.due.next_ms()
        if due is not None:
            at = min(at, now + max(0, due - context.clock.read(context.wall_ms(), now)) / 1000)
        return max(at, self._not_before)


class _SettleAnswer:
    """The answer to a SETTLE: leaves once all rows are in the log, late ones too."""

    def __init__(self, rows: int, done: Done, now_ms: Callable[[], int]) -> None:
        self.rows: list[list[object]] = [["", 0]] * rows
        self.left = 1
        """What it waits for: the confirm of the turn, and late rows."""
        self._done = done
        self._now_ms = now_ms
        self._said = False

    def confirmed(self, error: TwinlogError | None) -> None:
        """The rows of the turn are confirmed, or not."""
        if error is not None and not self._said:
            self._said = True
            self._done(error)
        self._one()

    def late(self, number: int, outcome: str | TwinlogError) -> None:
        """A row whose messages became dead letters has its code."""
        if isinstance(outcome, TwinlogError):
            self.confirmed(outcome)
            return
        self.rows[number] = [outcome, 0]
        self._one()

    def _one(self) -> None:
        self.left -= 1
        if not self.left and not self._said:
            self._said = True
            self._done({"rows": self.rows, "now_ms": self._now_ms()})

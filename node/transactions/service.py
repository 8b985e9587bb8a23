"""Ends transactions on the acting master: each message is delivered once, or never.

Which messages wait for the end of their transaction is part of the fold
(`storage.messaging.halves`). An end is one batch of the log: copies of all its messages, the rows
that say that they are settled, and RocketMQ's record that says the same. So a commit of several
messages is in the log as a whole or not at all, and a master that has a copy has the row and does
not make it again.

A row binds from its append, because ends go by what is appended; an end is answered at its confirm.
Asked again, it answers the same; the other outcome is refused. Producers are asked about what
nothing ends (`node.transactions.asking`). What they cannot tell, asked often enough, and what is
open for too long is given up: copied to `GIVEN_UP_TOPIC`, where operators find it.

Records that are not in memory are read in a thread, and what was found out before is judged again.

Synchronous; part of `node.groups.service`, which knows the reign. Not here: what the copies look
like (`storage.messaging.copies`).

Sources: RocketMQ 5.3 (``EndTransactionProcessor``, ``TransactionalMessageServiceImpl``). There,
copy and settlement are two writes, and the second end of a message stores it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from node.clients.lookups import Asked
from node.delivery.aside import PASSING, Aside, NoAsker
from node.groups.context import ANSWER_SECONDS, Context
from node.transactions.asking import BYTES_MAX, Asking, within
from node.transactions.checks import CheckSettings
from storage.append.own_records import TOGETHER_MAX
from storage.messaging.copies import UNDELIVERABLE, Copy, deliveries, given_up
from storage.messaging.halves import OPEN, Half, Halves, HalvesAhead
from storage.read.lookups import OffLoopLookup
from storage.state.sections import Outcome, Section, Together
from twinlog.errors import (
    Busy,
    OutcomeUnknown,
    TransactionSettled,
    TwinlogError,
    UsageError,
)
from twinlog.format.group_rows import COMMIT, GIVEN_UP, ROLLBACK, HalfRow
from twinlog.format.system_topics import GIVEN_UP_TOPIC
from twinlog.format.waiting.halves import HALVES_MAX
from twinlog.units import MiB

if TYPE_CHECKING:
    from node.groups.context import Done, Turn
    from node.groups.pops import Fetch

ROW_BYTES = 64
"""What says of one message that it is settled: its share of two records at most."""
OWN_BYTES = 1_024
"""The rest of these records."""
GIVEN_UP_RECORDS = 256
"""Messages that are given up together."""
GIVEN_UP_BYTES = MiB
"""Bytes likewise, but at least one message."""
RETRY_SECONDS = 0.2
"""Pause after a refusal that passes."""
HELD_SECONDS = 5.0
"""Pause after one that does not, and after records that cannot be read."""
WHY_MAX = 200
"""Characters of why an operator ends a transaction."""
LISTED_MAX = 1_000
"""Rows of one answer."""
OUTCOMES = {COMMIT: "commit", ROLLBACK: "rollback", GIVEN_UP: "given-up"}
"""How users name them."""

_Request = tuple["Callable[[Turn], None]", "Done"]


@dataclass(frozen=True, slots=True)
class End:
    """What an END says.

    Attributes:
        group: Who asks; must be the producers of the messages.
        halves: Queue offsets of all messages of the transaction.
        outcome: `COMMIT` or `ROLLBACK`.
        why: Why an operator ends it; empty: its producer does.
        who: The address that asks.
    """

    group: str
    halves: tuple[int, ...]
    outcome: int
    why: str = ""
    who: str = ""


def parse_end(fields: Mapping[str, object], who: str = "") -> End:
    """Return what the fields of an END say.

    Raises:
        UsageError: It makes no sense.
    """
    halves = tuple(sorted(set(cast("list[int]", fields["halves"]))))
    outcome = cast("int", fields["outcome"])
    if not 0 < len(halves) <= HALVES_MAX:
        text = f"an end of {len(halves)} messages: 1 to {HALVES_MAX} are of one transaction"
        raise UsageError(text, code="fields")
    if outcome not in (COMMIT, ROLLBACK):
        text = f"a transaction ends with {COMMIT} (commit) or {ROLLBACK} (rollback), not {outcome}"
        raise UsageError(text, code="fields")
    return End(str(fields["group"]), halves, outcome, str(fields.get("why") or "")[:WHY_MAX], who)


@dataclass(slots=True)
class TransactionCounts:
    """Messages whose end is confirmed, since the start; never falls."""

    committed: int = 0
    rolled_back: int = 0
    given_up: int = 0


class Transactions:
    """See the module.

    Args:
        context: The node.
        fetch: Has cold records fetched in a thread.
        again: Takes a request for the next turn.
        settings: When producers are asked, and when transactions are given up.
    """

    def __init__(
        self,
        context: Context,
        fetch: Fetch,
        again: Callable[[_Request], None],
        settings: CheckSettings | None = None,
    ) -> None:
        self._context = context
        self._fetch = fetch
        self._again = again
        self._aside = Aside(context, fetch)
        self._settings = settings or CheckSettings()
        self.asking = Asking(context, self._read, self._settings)
        self.counts = TransactionCounts()
        self.clear()

    def clear(self, error: TwinlogError | None = None) -> None:
        """A reign has ended, or begins: nothing is known; requests are answered with the error."""
        self._seen, self._not_before = -1, 0.0
        self._busy = self._told = False
        self._aside.clear()
        self.asking.clear(error)

    # ── ends ────────────────────────────────────────────────────────────────────────────────────

    def end(self, asked: End, done: Done, turn: Turn) -> None:
        """Decide an END.

        Raises:
            TransactionSettled: It has ended otherwise.
            UsageError: Nothing is known of one of the messages (code ``unknown-transaction``), or
                others may settle it (``producer-group``).
            Busy: One of them is not dispatched yet.
        """
        halves = self._judged(asked)
        if halves:
            settle = self._settling(asked, done)
            if asked.outcome == ROLLBACK:  # its records are not needed
                turn.together.append(lambda: settle(halves, ()))
            else:
                turn.together.append(lambda: self._read(halves, settle, done))
            return
        epoch = self._context.driver.reign()[0]

        def answer(error: TwinlogError | None) -> None:
            done(error or {"outcome": asked.outcome, "epoch": epoch})

        turn.answers.append(answer)  # after the rows that it repeats

    def _judged(self, asked: End) -> list[Half]:
        """Return which of the messages are open; raise where the end is refused."""
        halves, found = self._context.messaging.ahead.halves, list[Half]()
        for number in asked.halves:
            outcome, half = halves.outcome(number), halves.get(number)
            if outcome is None and number >= halves.end:
                raise Busy("the message is not in its queue yet", hint="ask again")
            if outcome is None:
                text = f"nothing is known of message {number} of a transaction"
                hint = "twinlog transaction list shows those that are open"
                raise UsageError(text, code="unknown-transaction", hint=hint)
            if half is None and outcome != asked.outcome:
                named = OUTCOMES[outcome]
                text = f"message {number} of the transaction has ended: {named}"
                raise TransactionSettled(text, outcome=named)
            if half is not None and half.group != asked.group:
                text = f"message {number} is of producer group {half.group}, not {asked.group}"
                raise UsageError(text, code="producer-group")
            if half is not None:
                found.append(half)
        return found

    def _settling(
        self, asked: End, done: Done
    ) -> Callable[[Sequence[Half], Sequence[memoryview]], None]:
        """Return what settles messages once their records are there."""

        def settle(halves: Sequence[Half], pieces: Sequence[memoryview]) -> None:
            try:
                self._settle(asked, halves, pieces, done)
            except TwinlogError as error:
                done(error)

        return settle

    def _settle(
        self, asked: End, halves: Sequence[Half], pieces: Sequence[memoryview], done: Done
    ) -> None:
        context = self._context
        if self._judged(asked) != halves:
            raise Busy("the transaction is being settled", hint="ask again")
        copies: Sequence[Copy] = ()
        if asked.outcome == COMMIT:
            copies = self._copies(halves, pieces)

        def reply(outcome: Together, by: str | None) -> None:
            if outcome.outcome is Outcome.STORED:
                self._count(asked.outcome, halves)
                if asked.why:
                    context.tell(
                        "transaction_ended", "warning", group=asked.group, messages=len(halves),
                        first=halves[0].number, outcome=OUTCOMES[asked.outcome], why=asked.why,
                        who=asked.who,
                    )  # fmt: skip
                done({"outcome": asked.outcome, "epoch": context.driver.reign()[0]})
            elif outcome.outcome is Outcome.REFUSED:
                done(context.refusal(outcome.code, outcome.text))
            else:
                done(OutcomeUnknown("it may or may not have ended; end it again: it is done once"))

        self._append(halves, asked.outcome, copies, reply)

    def _copies(self, halves: Sequence[Half], pieces: Sequence[memoryview]) -> Sequence[Copy]:
        context = self._context
        most = context.driver.store.settings.batch_length_max
        copies, taken = deliveries(
            pieces, context.messaging.destination, family=context.family, sections=TOGETHER_MAX,
            size=most - OWN_BYTES - ROW_BYTES * len(halves),
        )  # fmt: skip
        if taken < len(halves):
            text = f"{len(halves)} messages: a batch holds {most} bytes for {TOGETHER_MAX} queues"
            raise UsageError(text, code="too-large", hint="roll back; send fewer in a transaction")
        homeless = any(copy.topic == UNDELIVERABLE for copy in copies)
        if homeless and context.messaging.destination(UNDELIVERABLE) is None:
            raise UsageError("a topic or queue of the transaction is gone", code="unknown-topic")
        return copies

    def _append(
        self,
        halves: Sequence[Half],
        outcome: int,
        copies: Sequence[Copy],
        reply: Callable[[Together, str | None], None],
    ) -> None:
        context, now = self._context, self._context.seconds()
        sections = [
            Section(one.topic, one.queue, one.records, one.data, own=True) for one in copies
        ]
        rows = [HalfRow(half.number, outcome) for half in halves]
        context.driver.append_rows(
            now, rows, sections=sections, deadline=now + ANSWER_SECONDS, reply=reply
        )

    def _count(self, outcome: int, halves: Sequence[Half]) -> None:
        counts, answers = self.counts, self.asking.counts
        messages, checked = len(halves), sum(half.checks > 0 for half in halves)
        if outcome == COMMIT:
            counts.committed += messages
            answers.committed += checked
        elif outcome == ROLLBACK:
            counts.rolled_back += messages
            answers.rolled_back += checked
        else:
            counts.given_up += messages
            answers.none += checked

    # ── what is open ────────────────────────────────────────────────────────────────────────────

    def waiting(self, fields: Mapping[str, object]) -> Mapping[str, object]:
        """Return the answer to a WAITING: messages of open transactions, from one on.

        A node that is not the master answers, too, as far as it has dispatched.

        Raises:
            UsageError: It asks for something else.
        """
        if fields["what"] != "halves":
            raise UsageError(f"{fields['what']!r} cannot be listed: halves can", code="fields")
        first, limit = cast("int", fields["first"]), cast("int", fields["limit"])
        messaging, (epoch, refused) = self._context.messaging, self._context.driver.reign()
        found: Halves | HalvesAhead = messaging.ahead.halves
        if refused is not None:
            found = messaging.confirmed.halves
        rows, after = list[list[object]](), -1
        for half in found.open():
            if half.number < first:
                continue
            if len(rows) == min(max(limit, 1), LISTED_MAX):
                after = half.number
                break
            due = 0 if half.checks >= self._settings.checks else self._settings.due(half)
            rows.append([*half[:6], half.checks, due])
        return {"rows": rows, "next": after, "now_ms": self._context.wall_ms(), "epoch": epoch}

    # ── what nothing ends ───────────────────────────────────────────────────────────────────────

    @property
    def ready(self) -> bool:
        """Whether `work` may have something to do whatever the time: more was dispatched."""
        halves = self._context.messaging.confirmed.halves
        return halves.count > 0 and self._seen != halves.changes

    def next_deadline(self, now: float) -> float:
        """Return when `work` has something to do, seconds of the loop's clock."""
        now_ms = self._now_ms(now)
        at, over = self.asking.next_deadline(now), self.asking.due.exhausted_ms()
        if not self._context.messaging.confirmed.halves.count or self._busy or self._aside.busy:
            return at
        oldest = next(self._context.messaging.ahead.halves.open(), None)
        if oldest is None:
            return at
        keep = oldest.stored_ms + self._settings.keep_ms
        left = keep - now_ms if over is None else min(keep, over) - now_ms
        return min(at, max(now + max(0, left) / 1000, self._not_before))

    def _now_ms(self, now: float) -> int:
        return self._context.clock.read(self._context.wall_ms(), now)

    def work(self, now: float) -> None:
        """Ask producers about what is due, and give up what is over, a batch a turn."""
        known, now_ms = self._context.messaging.confirmed.halves, self._now_ms(now)
        self._seen = known.changes
        self.asking.due.follow(self._context.messaging.ahead.halves, known.count)
        self.asking.work(now, now_ms)
        if not known.count or self._busy or self._aside.busy or now < self._not_before:
            return
        ahead = self._context.messaging.ahead.halves
        due = self._kept_too_long(now_ms)
        taken = [] if due else self.asking.due.exhausted(now_ms, ahead)
        if not due and not taken:
            return
        if self._context.messaging.destination(GIVEN_UP_TOPIC) is None:
            self._aside.create(now, GIVEN_UP_TOPIC, lambda made: self._created(now, made))
            return
        self._busy = True
        try:
            self._read(due or within(taken, BYTES_MAX), self._give_up, self._failed)
        except TwinlogError as error:
            self._failed(error)

    def _kept_too_long(self, now_ms: int) -> list[Half]:
        """Return the oldest messages that are open for too long, as many as one batch takes."""
        due, size = list[Half](), 0
        for half in self._context.messaging.ahead.halves.open():
            size += half.size
            if half.stored_ms > now_ms - self._settings.keep_ms or len(due) == GIVEN_UP_RECORDS:
                break
            if due and size > GIVEN_UP_BYTES:
                break
            due.append(half)
        return due

    def _give_up(self, halves: Sequence[Half], pieces: Sequence[memoryview]) -> None:
        self._busy = False
        ahead, now = self._context.messaging.ahead.halves, self._context.seconds()
        if any(ahead.outcome(half.number) != OPEN for half in halves):
            return  # one was ended meanwhile: the next turn looks again
        refused: list[Together] = []

        def reply(outcome: Together, by: str | None) -> None:
            if outcome.outcome is Outcome.REFUSED:
                refused.append(outcome)
            elif outcome.outcome is Outcome.STORED:
                self._told = False
                self._count(GIVEN_UP, halves)
                for group in sorted({half.group for half in halves}):
                    self._context.tell(
                        "transaction_given_up", "warning", group=group,
                        messages=sum(half.group == group for half in halves), topic=GIVEN_UP_TOPIC,
                    )  # fmt: skip

        copies = [given_up(pieces, family=self._context.family)]
        self._append(halves, GIVEN_UP, copies, reply)
        if refused and refused[0].code in PASSING:
            self._not_before = now + RETRY_SECONDS
        elif refused:
            self._hold(refused[0].code, refused[0].text)

    def _failed(
        self, outcome: Mapping[str, object] | TwinlogError, payload: Sequence[memoryview] = ()
    ) -> None:
        if isinstance(outcome, TwinlogError):
            self._busy = False
            self._hold(outcome.code, str(outcome))

    def _hold(self, code: str, why: str) -> None:
        """What is due to be given up cannot be now: it stays open, and is tried again later."""
        self._not_before = self._context.seconds() + HELD_SECONDS
        if not self._told:
            self._told = True
            self._context.tell("transaction_held", "error", code=code, why=why)

    def _created(self, now: float, made: bool) -> None:
        self._seen = -1
        if not made:
            self._not_before = now + RETRY_SECONDS

    # ── records ─────────────────────────────────────────────────────────────────────────────────

    def _read(
        self,
        halves: Sequence[Half],
        then: Callable[[Sequence[Half], Sequence[memoryview]], None],
        done: Done,
    ) -> None:
        """Call ``then`` with the records: at once, or in a turn after a thread has fetched them."""
        context = self._context
        try:
            read = context.records.stretches([(half.offset, half.size) for half in halves])
        except TwinlogError as error:
            done(error)
            return
        if not isinstance(read, OffLoopLookup):
            then(halves, read)
            return

        def finish(
            outcome: list[memoryview] | Exception,
        ) -> tuple[Mapping[str, object], Sequence[memoryview]]:
            found = context.records.looked_at(read, outcome)
            self._again((lambda turn: turn.together.append(lambda: then(halves, found)), done))
            return {}, ()

        def failed(
            outcome: Mapping[str, object] | TwinlogError, payload: Sequence[memoryview] = ()
        ) -> None:
            if isinstance(outcome, TwinlogError):
                done(outcome)

        self._fetch(Asked(read, finish), NoAsker(), failed)

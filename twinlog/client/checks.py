"""Answers the master's questions about transactions that nothing has ended, for both clients.

A producer that died leaves its transactions open. The master asks the other producers of its group:
those that wait in ``Client.answer_checks``. What they answer ends the transaction, as its own
producer would have done.

The steps are pure (`Answering`); `answer` and `answer_async` carry them out.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, cast

from twinlog.client.calls import Calls
from twinlog.errors import (
    OutcomeUnknown,
    TransactionSettled,
    TwinlogError,
    UsageError,
)
from twinlog.format.group_rows import COMMIT, ROLLBACK
from twinlog.format.messages import Message, messages_of
from twinlog.format.waiting.delay_levels import destination
from twinlog.format.waiting.halves import NAME
from twinlog.producer.new_message import check_transaction
from twinlog.session.session import MASTER, Pause, Session, Steps
from twinlog.wire.frames import Type

if TYPE_CHECKING:
    from twinlog.session.aio_caller import AsyncCaller
    from twinlog.session.caller import Caller

WAIT_SECONDS: Final = 20.0
"""How long one request waits for a question."""
ANSWER_SECONDS: Final = 10.0
"""How long its answer may take besides."""
AGAIN_SECONDS: Final = 0.5
"""Pause after a failure that may pass."""
TRANSACTIONS: Final = 16
"""Questions of one answer."""
OUTCOMES: Final[Mapping[object, int | None]] = {"commit": COMMIT, "rollback": ROLLBACK, None: None}
"""What an answer may be; None: not known now, ask later."""

Decide = Callable[["Check"], str | None]
"""Says what became of a transaction: ``"commit"``, ``"rollback"``, or None: ask later."""
AsyncDecide = Callable[["Check"], "str | Awaitable[str | None] | None"]
"""The same, and its answer may be awaited."""


@dataclass(frozen=True, slots=True)
class Check:
    """A question: what became of this transaction?

    Attributes:
        group: Its producer group.
        transaction: Its name.
        messages: Those of its messages that are open, in the order of the sends. Their topic and
            queue are where a commit delivers them; their queue offset is the number by which
            ``twinlog transaction`` knows them.
        checks: How often that was asked, this time included.
    """

    group: str
    transaction: str
    messages: tuple[Message, ...]
    checks: int

    @property
    def key(self) -> str | None:
        """Key of the first message."""
        return self.messages[0].key

    @property
    def topic(self) -> str:
        """Topic of the first message."""
        return self.messages[0].topic

    @property
    def body(self) -> bytes:
        """Body of the first message."""
        return self.messages[0].body

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties of the first message."""
        return self.messages[0].properties


class Answering:
    """What both clients do: asks for questions and ends what was answered.

    Args:
        session: Of the client.
        group: Producer group.
        timeout: Seconds that may pass without an answer of a master.
        duration: Seconds after which no more questions are asked for; None: never.

    Raises:
        UsageError: No producer group has that name.
    """

    def __init__(
        self, session: Session, group: str, timeout: float, duration: float | None
    ) -> None:
        check_transaction(f"{group}/x")
        self._session, self._calls = session, Calls(session)
        self._group, self._timeout, self._duration = group, timeout, duration
        self._end: float | None = None
        self.ended = 0
        """Transactions that were ended."""

    def ask(self) -> Steps[list[Check]]:
        """Return the next questions; none: the time is over.

        Raises:
            TwinlogError: No master answered for ``timeout``, or it refuses for good.
        """
        session, heard, first = self._session, self._session.now, self._end is None
        if self._end is None:
            forever = float("inf")
            self._end = session.now + (forever if self._duration is None else self._duration)
        while first or session.now < self._end:
            first, wait = False, max(0.0, min(WAIT_SECONDS, self._end - session.now))
            fields = {"group": self._group, "max": TRANSACTIONS, "wait_ms": round(wait * 1000)}
            deadline = session.now + wait + ANSWER_SECONDS
            try:
                answer = yield from session.call(
                    Type.CHECKS, fields, deadline=deadline, to=MASTER, repeat=False
                )
            except TwinlogError as error:
                passes = error.retryable or isinstance(error, OutcomeUnknown)
                if not passes or session.now - heard > self._timeout:
                    raise
                yield Pause(AGAIN_SECONDS)
                continue
            heard = session.now
            found = self._checks(answer.fields, answer.payload)
            if found:
                return found
        return []

    def _checks(self, fields: Mapping[str, object], payload: bytes | memoryview) -> list[Check]:
        asked: dict[int, int] = dict(cast("list[Any]", fields["rows"]))
        messages = [delivered(one) for one in messages_of(payload)]
        return [
            Check(self._group, name, each := tuple(found), max(asked[each[0].queue_offset], 1))
            for name, found in groupby(messages, name_of)
        ]

    def end(self, check: Check, said: object) -> Steps[None]:
        """End a transaction as its answer says; where it has ended meanwhile, that stays.

        Raises:
            UsageError: The answer is another one.
            TwinlogError: It may or may not have ended; it is asked about again if not.
        """
        if said not in OUTCOMES:
            text = f"an answer is 'commit', 'rollback' or None, not {said!r}"
            raise UsageError(text, code="usage")
        outcome = OUTCOMES[said]
        if outcome is None:
            return
        numbers = [one.queue_offset for one in check.messages]
        try:
            yield from self._calls.end(self._group, numbers, outcome, self._timeout)
        except TransactionSettled:
            return
        except UsageError as error:
            if error.code != "unknown-transaction":
                raise
            return
        self.ended += 1


def delivered(half: Message) -> Message:
    """Return a message that waits, as it stands where a commit delivers it."""
    place = destination(half.properties)
    if place is None:
        return half
    return Message(
        place.topic, place.queue, half.queue_offset, half.log_offset, half.body,
        half.born_timestamp, half.store_timestamp, half.stored,
    )  # fmt: skip


def name_of(half: Message) -> str:
    """Return the name of a message's transaction; RocketMQ's have the message's id."""
    return half.properties.get(NAME) or half.properties.get("UNIQ_KEY", "")


def answer(caller: Caller, answering: Answering, decide: Decide) -> int:
    """See `Client.answer_checks`."""
    while found := caller.run(answering.ask()):
        for check in found:
            caller.run(answering.end(check, decide(check)))
    return answering.ended


async def answer_async(
    caller: AsyncCaller,
    answering: Answering,
    decide: Callable[[Check], str | Awaitable[str | None] | None],
) -> int:
    """See `AsyncClient.answer_checks`."""
    while found := await caller.run(answering.ask()):
        for check in found:
            said = decide(check)
            if inspect.isawaitable(said):
                said = await said
            await caller.run(answering.end(check, said))
    return answering.ended

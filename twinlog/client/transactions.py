"""Transactions of a client: several messages that are delivered together, or never.

Each message is stored when it is sent, as a *half* that no consumer sees. `Transaction.commit` has
the master deliver all of them in one batch of its log; `Transaction.rollback` has it drop them.
Both may be repeated after a failure: the second end of a transaction answers as the first.

Not here: what the master does (``node.transactions``), how halves are stored
(`twinlog.format.waiting.halves`).

Source: RocketMQ's ``TransactionMQProducer``, whose transactions have one message.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self, Unpack

from twinlog.client.arguments import Duration, seconds_of
from twinlog.client.calls import Calls
from twinlog.errors import OutcomeUnknown, TwinlogError, UsageError
from twinlog.format.group_rows import COMMIT, ROLLBACK
from twinlog.format.messages import Receipt
from twinlog.format.waiting.halves import HALVES_MAX, IMMUNITY
from twinlog.producer.new_message import MessageFields, NewMessage, check_transaction
from twinlog.producer.settings import SECTION_MAX
from twinlog.producer.transaction_name import TransactionName
from twinlog.session.session import Steps
from twinlog.units import KiB

BYTES_MAX: Final = SECTION_MAX - 256 * KiB
"""Bodies and properties of one transaction: its commit is one batch of the log."""
RECORD_BYTES: Final = 128
"""What a record has besides body and properties, and more."""


class Sent:
    """What was sent in a transaction, and whether it has ended; what both kinds share. Pure.

    Attributes:
        name: Producer group, ``/`` and a name that no other transaction has.
        receipts: Where each message waits, in the order of the sends.
        ended: ``commit``, ``rollback`` or None.
    """

    def __init__(self, group: str, check_after: Duration | None = None) -> None:
        self._immunity: dict[str, str] = {}
        if check_after is not None:
            self._immunity[IMMUNITY] = str(math.ceil(seconds_of(check_after)))
        self.name = TransactionName(f"{group}/{uuid.uuid4().hex}")
        check_transaction(self.name)
        self.receipts: list[Receipt] = []
        self.ended: str | None = None
        self._group = group
        self._bytes = self._count = 0
        self._unknown: TwinlogError | None = None

    def take(self, body: bytes, message: MessageFields) -> None:
        """Note a message before it is sent, and add what it says of its transaction.

        Raises:
            UsageError: The transaction has ended, or would be more than one batch holds.
        """
        if self.ended is not None:
            raise UsageError(f"the transaction has ended: {self.ended}", code="settled")
        message["transaction"] = self.name
        if self._immunity:
            message["properties"] = {**(message.get("properties") or {}), **self._immunity}
        said = NewMessage(**message)
        size = self._bytes + len(body) + len(said.text()) + len(self.name) + RECORD_BYTES
        if size > BYTES_MAX or self._count == HALVES_MAX:
            text = f"a transaction holds {HALVES_MAX} messages of {BYTES_MAX} bytes together"
            raise UsageError(text, code="too-large", hint="commit it, and begin another one")
        self._bytes, self._count = size, self._count + 1

    def sent(self, receipt: Receipt) -> Receipt:
        """Note where a message waits."""
        if receipt.queue_offset < 0:
            self.lost(OutcomeUnknown("it is stored, and its place is no longer known"))
        self.receipts.append(receipt)
        return receipt

    def lost(self, error: TwinlogError) -> None:
        """Note that a message may be stored, at a place that is not known."""
        if isinstance(error, OutcomeUnknown):
            self._unknown = error

    def end(self, calls: Calls, outcome: int, seconds: float) -> Steps[None]:
        """Have the master end it; nothing was sent: it ends at once.

        Raises:
            OutcomeUnknown: It may or may not have ended, and may be ended again; or, for a commit,
                a message of it may or may not be stored: then it can only be rolled back.
            TransactionSettled: It has ended otherwise.
        """
        if outcome == COMMIT and self._unknown is not None:
            text = "a message of the transaction may not be stored; roll it back"
            raise OutcomeUnknown(text) from self._unknown
        halves = [one.queue_offset for one in self.receipts if one.queue_offset >= 0]
        if halves:
            yield from calls.end(self._group, halves, outcome, seconds)
        self.ended = "commit" if outcome == COMMIT else "rollback"


class Transaction:
    """A transaction of a blocking client; made by `Client.transaction`, used by ``with``.

    The end of the block commits. A block that is left by an error rolls back; where that fails,
    the messages stay unseen, and operators see them (``twinlog transaction list``).

    Args:
        messages: What was sent.
        send: Sends one message.
        end: Ends it.
    """

    def __init__(
        self,
        messages: Sent,
        send: Callable[..., Receipt],
        end: Callable[[Sent, int, Duration | None], None],
    ) -> None:
        self.messages = messages
        self._send = send
        self._end = end

    @property
    def name(self) -> str:
        """Producer group, ``/`` and a name that no other transaction has."""
        return self.messages.name

    def send(self, topic: str, body: bytes, **message: Unpack[MessageFields]) -> Receipt:
        """Store a message that is delivered by the commit; arguments as of `Client.send`.

        Returns:
            Where it waits; the delivered message has a place of its own.

        Raises:
            UsageError: The transaction has ended, or would be too large: in bytes, messages or
                queues that it writes to.
            OutcomeUnknown: It may or may not be stored: the transaction can only be rolled back.
            TwinlogError: It is not stored.
        """
        self.messages.take(body, message)
        try:
            return self.messages.sent(self._send(topic, body, **message))
        except TwinlogError as error:
            self.messages.lost(error)
            raise
        except BaseException:
            self.messages.lost(OutcomeUnknown("the send was interrupted"))
            raise

    def commit(self, *, timeout: Duration | None = None) -> None:
        """Deliver all messages: on return they are confirmed; repeated, it does nothing.

        Raises:
            TransactionSettled: It was rolled back, or given up.
            OutcomeUnknown: It may or may not be committed; commit again.
        """
        self._end(self.messages, COMMIT, timeout)

    def rollback(self, *, timeout: Duration | None = None) -> None:
        """Have none of the messages delivered; repeated, it does nothing.

        Raises:
            TransactionSettled: It was committed.
            OutcomeUnknown: It may or may not be rolled back; do it again.
        """
        self._end(self.messages, ROLLBACK, timeout)

    def __enter__(self) -> Self:
        """Return the transaction."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Commit, or roll back after an error; nothing where it was ended in the block."""
        if self.messages.ended is not None:
            return
        if error is None:
            self.commit()
            return
        try:
            self.rollback()
        except TwinlogError as failed:
            error.add_note(f"the transaction {self.name} could not be rolled back: {failed}")


class AsyncTransaction:
    """As `Transaction`, for `AsyncClient`.

    Cancelled, a block rolls back where that is still possible: else its messages stay unseen.
    """

    def __init__(
        self,
        messages: Sent,
        send: Callable[..., Awaitable[Receipt]],
        end: Callable[[Sent, int, Duration | None], Awaitable[None]],
    ) -> None:
        self.messages = messages
        self._send = send
        self._end = end

    @property
    def name(self) -> str:
        """See `Transaction.name`."""
        return self.messages.name

    async def send(self, topic: str, body: bytes, **message: Unpack[MessageFields]) -> Receipt:
        """Store a message that is delivered by the commit; as `Transaction.send`.

        Cancelled, the message may or may not be stored: the transaction can only be rolled back.
        """
        self.messages.take(body, message)
        try:
            return self.messages.sent(await self._send(topic, body, **message))
        except TwinlogError as error:
            self.messages.lost(error)
            raise
        except BaseException:
            self.messages.lost(OutcomeUnknown("the send was cancelled"))
            raise

    async def commit(self, *, timeout: Duration | None = None) -> None:
        """Deliver all messages; as `Transaction.commit`. Cancelled, it may be committed."""
        await self._end(self.messages, COMMIT, timeout)

    async def rollback(self, *, timeout: Duration | None = None) -> None:
        """Have none delivered; as `Transaction.rollback`. Cancelled, it may be rolled back."""
        await self._end(self.messages, ROLLBACK, timeout)

    async def __aenter__(self) -> Self:
        """Return the transaction."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Commit, or roll back after an error; nothing where it was ended in the block."""
        if self.messages.ended is not None:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except TwinlogError as failed:
            error.add_note(f"the transaction {self.name} could not be rolled back: {failed}")

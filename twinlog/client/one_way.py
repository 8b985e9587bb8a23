"""One-way sends of a client: one producer for each topic and acknowledgement.

At most `SENDERS_MAX` are kept; the least recently used one that waits for nothing is closed for the
next (``twinlog.producer.single_sends``).

Not here: what a one-way message promises (``twinlog.producer.one_way.blocking``).
"""

from __future__ import annotations

import threading
import time
from typing import Unpack

from twinlog.client.arguments import Duration, seconds_of
from twinlog.errors import Unavailable
from twinlog.format.compression import parse_compression
from twinlog.producer.call_backs import OnResult
from twinlog.producer.new_message import PLAIN, MessageFields, NewMessage, packed
from twinlog.producer.one_way.accounts import CLOSE_SECONDS, Account, one_way_settings
from twinlog.producer.one_way.blocking import OneWayProducer
from twinlog.producer.single_sends import SENDERS_MAX, Senders
from twinlog.session.caller import Caller


class OneWay:
    """The one-way producers of a blocking client; for its threads."""

    def __init__(self, caller: Caller, timeout: float) -> None:
        self._caller, self._timeout = caller, timeout
        self._account = Account()
        self.forget()

    def forget(self) -> None:
        """Close all of them at once; nothing is waited for."""
        for producer in getattr(self, "_producers", ()):
            producer.close()
        self._producers: Senders[OneWayProducer] = Senders()
        self._lock = threading.Lock()

    def post(
        self, topic: str, acknowledge: str, body: bytes, compress: str | None,
        on_result: OnResult | None, message: MessageFields,
    ) -> None:  # fmt: skip
        """Send one message; see `OneWaySends.send_one_way`."""
        said = NewMessage(**message) if message else PLAIN
        stored, flags = packed(parse_compression(compress), body)
        with self._lock:
            producer = self._producers.get(topic, acknowledge) or self._made(topic, acknowledge)
            self._producers.take(topic, acknowledge)
        try:
            producer.post(self._timeout, stored, said, flags, on_result)
        finally:
            with self._lock:
                self._producers.give_back((topic, acknowledge))

    def _made(self, topic: str, acknowledge: str) -> OneWayProducer:
        if self._producers.full:
            oldest = self._producers.remove_oldest(lambda producer: producer.idle)
            if oldest is None:
                text = f"it was not sent: messages to {SENDERS_MAX} topics are under way already"
                raise Unavailable(text, hint="send to fewer topics at a time")
            self._account.add(oldest.drain(0.0))
            oldest.close()
        settings = one_way_settings(acknowledge, self._timeout)
        origin = self._producers.origin(acknowledge)
        producer = OneWayProducer(self._caller, topic, settings, origin=origin)
        self._producers.add(topic, acknowledge, producer)
        return producer

    def flush(self, seconds: float) -> None:
        """Wait up to ``seconds`` for all answers, and raise what `Account.problem` says."""
        end = time.monotonic() + seconds
        with self._lock:
            producers = list(self._producers)
            account, self._account = self._account, Account()
        try:
            for producer in producers:
                account.add(producer.drain(max(0.0, end - time.monotonic())))
        except BaseException:  # interrupted: what was counted belongs to the next report
            with self._lock:
                self._account.add(account.unseen())
            raise
        problem = account.problem()
        if problem is not None:
            raise problem

    def close(self) -> None:
        """Flush within `CLOSE_SECONDS`, then close."""
        try:
            self.flush(min(self._timeout, CLOSE_SECONDS))
        finally:
            self.forget()


class OneWaySends:
    """What a blocking client offers for messages whose answer is not waited for."""

    timeout: float
    _one_way: OneWay

    def send_one_way(
        self,
        topic: str,
        body: bytes,
        *,
        acknowledge: str = "written",
        compress: str | None = None,
        on_result: OnResult | None = None,
        **message: Unpack[MessageFields],
    ) -> None:
        """Send one message and do not wait for an answer; it may be lost.

        What could not be stored is counted, and `flush` and `close` say so. Messages that no node
        took are sent again when the client is used for one-way messages the next time, until its
        timeout; beyond 1 MiB without an answer to a topic, messages are counted and not sent.
        A process that ends without `flush` or `close` loses what is under way.

        The first message to a topic waits until a node said how many queues it has. Later ones take
        at most 0.25 s, and that only when the master has gone, or takes no bytes.

        Args:
            topic: Name.
            body: The message.
            acknowledge: What the nodes do before the message counts as stored; as `send`.
            compress: As `send`.
            on_result: Called once with the outcome: a `Receipt` or a `TwinlogError`; as
                `Producer.send`.
            message: The fields of `NewMessage`, as `send`.

        Raises:
            RecordRefused, UsageError: It can never be stored; nothing was taken.
            Unavailable, UnknownTopic: Of the first message to a topic: nothing was taken.
        """
        self._own_process()
        self._one_way.post(topic, acknowledge, body, compress, on_result, message)

    def flush(self, timeout: Duration | None = None) -> None:
        """Wait until every one-way message has its answer.

        Args:
            timeout: Instead of the client's.

        Raises:
            OutcomeUnknown: Some may or may not be stored, or have no answer yet (``left`` of
                ``facts``; they stay under way). ``facts`` count all kinds since the last flush.
            Unavailable: Some are not stored; ``facts`` and the text say how many, and why the
                first one is not.
        """
        self._one_way.flush(self.timeout if timeout is None else seconds_of(timeout))

    def _own_process(self) -> None:
        raise NotImplementedError

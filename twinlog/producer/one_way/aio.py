"""One-way sends, awaiting: a producer whose caller never waits for an answer.

Its tasks send what was taken, take answers, and send again what had no success, until its deadline.

Not here: what is counted and told (``twinlog.producer.one_way.accounts``), which topics
(``twinlog.client.aio_one_way``).
"""

from __future__ import annotations

import time

import anyio

from twinlog.producer.aio import AsyncProducer
from twinlog.producer.blocking import complain
from twinlog.producer.call_backs import OnResult, watching
from twinlog.producer.new_message import NewMessage
from twinlog.producer.one_way.accounts import Account, Ledger, left_of, unanswered


class AsyncOneWayProducer(AsyncProducer):
    """See the module."""

    _ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        """What counts its messages."""
        self._ledger = self._ledger or Ledger()
        return self._ledger

    @property
    def idle(self) -> bool:
        """Whether nothing waits for an answer, or to be sent."""
        core = self._core
        return core is None or (core.idle and all(lane.open is None for lane in core.lanes))

    def post(
        self, body: bytes, message: NewMessage, flags: int = 0, on_result: OnResult | None = None
    ) -> None:
        """Take one message, to be sent by the producer's task.

        Raises:
            RecordRefused, UsageError: It cannot be sent; nothing was taken.
        """
        core = self._started
        if core.full:
            dropped = self.ledger.drop()
            if on_result is not None:
                core.watched = watching(core.watched, dropped, on_result, complain)
                core.watched.tell()
            return
        now = anyio.current_time()
        section = core.add(body, message, now, time.time_ns() // 1_000_000, flags)
        if on_result is not None:
            core.watched = watching(core.watched, section, on_result, complain)
        self._wake.set()

    async def drain(self, seconds: float) -> Account:
        """Wait until all taken so far is answered, at most ``seconds``; return what became of it.

        The account is that since the last one.
        """
        core = self._core
        if core is None or self._closed:
            return Account()
        core.close_all(anyio.current_time())
        waiting = unanswered(core)
        self._wake.set()
        with anyio.move_on_after(seconds):
            while left_of(waiting) and not self._closed:
                await self._moved.wait()
        return self.ledger.report(core, left_of(waiting))

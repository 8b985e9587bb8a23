"""One-way sends, blocking: a producer whose caller never waits for an answer.

A message leaves with the call that takes it, as long as the window has room; what a full window
held back leaves with a later call. Answers that have come are taken by later calls, and what had no
success is sent again then, until its deadline: a producer has no thread. When the master is not
there, a call looks for it from time to time, and that takes at most `LOOK_SECONDS`.

Not here: what is counted and told (``twinlog.producer.one_way.accounts``), which topics
(``twinlog.client.one_way``).
"""

from __future__ import annotations

import time
from typing import Final

from twinlog.producer.blocking import Producer, complain
from twinlog.producer.call_backs import OnResult, watching
from twinlog.producer.core import ProducerCore
from twinlog.producer.master_link import PATIENCE_SECONDS
from twinlog.producer.new_message import NewMessage
from twinlog.producer.one_way.accounts import Account, Ledger, left_of, unanswered

LOOK_SECONDS: Final = 0.25
"""The longest that one call looks for the master, or hands bytes to a node that takes none."""

TURN_SECONDS: Final = 0.05
"""How long one turn of `OneWayProducer.drain` keeps other threads out."""


class OneWayProducer(Producer):
    """See the module; threads take turns."""

    send_seconds = LOOK_SECONDS

    def __init__(self, *args: object, **named: object) -> None:
        super().__init__(*args, **named)  # type: ignore[arg-type]  # as `Producer`
        self._ledger = Ledger()

    @property
    def idle(self) -> bool:
        """Whether nothing waits for an answer, or to be sent."""
        core = self._core
        return core is None or (core.idle and all(lane.open is None for lane in core.lanes))

    def post(
        self,
        timeout: float,
        body: bytes,
        message: NewMessage,
        flags: int = 0,
        on_result: OnResult | None = None,
    ) -> None:
        """Take one message and send it; do not wait for its answer.

        ``timeout`` bounds what is asked before the first message, seconds.

        Raises:
            RecordRefused, UsageError: It cannot be sent; nothing was taken.
            Unavailable, UnknownTopic: The first message only: what must be known was not answered.
        """
        with self._lock:
            core = self._core
            if core is None or self._closed:
                core = self._start(timeout)
            self._catch_up(core)
            now = time.monotonic()
            if core.full:
                dropped = self._ledger.drop()
                if on_result is not None:
                    core.watched = watching(core.watched, dropped, on_result, complain)
            else:
                section = core.add(body, message, now, time.time_ns() // 1_000_000, flags)
                if on_result is not None:
                    core.watched = watching(core.watched, section, on_result, complain)
                if core.due and not core.unrouted:
                    self._send_ready(core, now)
        self._tell(core)

    def drain(self, seconds: float) -> Account:
        """Wait until all taken so far is answered, at most ``seconds``; return what became of it.

        The account is that since the last one.
        """
        core, end = self._core, time.monotonic() + seconds
        if core is None or self._closed:
            return Account()
        with self._lock:
            core.close_all(time.monotonic())
            waiting = unanswered(core)
        while left_of(waiting) and (now := time.monotonic()) < end:
            with self._lock:
                self._step(core, min(end, now + TURN_SECONDS))
            self._tell(core)
            time.sleep(0)  # a thread that waits for its turn gets it
        self._tell(core)
        with self._lock:
            return self._ledger.report(core, left_of(waiting))

    def _catch_up(self, core: ProducerCore) -> None:
        """Take what has come, look for the master if need be, send what waits; never wait long."""
        now = time.monotonic()
        core.expire(now)
        while core.in_flight and not core.unrouted and self._take(core, 0.0):
            pass
        if core.idle:
            return
        if core.unrouted and now >= core.retry_at:
            self._caller.run(self._link.route(now + LOOK_SECONDS), self._own)
        connection = self._own.connection
        silent = core.in_flight and now >= self._link.heard + PATIENCE_SECONDS
        if silent and connection is not None and not core.unrouted:
            doubt = self._link.doubt(connection.address, now + LOOK_SECONDS)
            if self._caller.run(doubt):
                self._drop()
        if not core.unrouted:
            self._send_ready(core, now)

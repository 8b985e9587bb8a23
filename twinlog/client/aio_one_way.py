"""One-way sends of an awaiting client; as ``twinlog.client.one_way``, with tasks for threads."""

from __future__ import annotations

from typing import Unpack

import anyio
from anyio.abc import TaskGroup

from twinlog.client.arguments import Duration, seconds_of
from twinlog.errors import Unavailable
from twinlog.format.compression import parse_compression
from twinlog.producer.aio import packed_aside
from twinlog.producer.call_backs import OnResult
from twinlog.producer.new_message import PLAIN, MessageFields, NewMessage
from twinlog.producer.one_way.accounts import CLOSE_SECONDS, Account, one_way_settings
from twinlog.producer.one_way.aio import AsyncOneWayProducer
from twinlog.producer.single_sends import SENDERS_MAX, Senders
from twinlog.session.aio_caller import AsyncCaller


class AsyncOneWay:
    """The one-way producers of an awaiting client; they run in its group of tasks."""

    def __init__(self, caller: AsyncCaller, group: TaskGroup, timeout: float) -> None:
        self._caller, self._group, self._timeout = caller, group, timeout
        self._account = Account()
        self._producers: Senders[AsyncOneWayProducer] = Senders()
        self._starting = anyio.Lock()

    async def post(
        self, topic: str, acknowledge: str, body: bytes, compress: str | None,
        on_result: OnResult | None, message: MessageFields,
    ) -> None:  # fmt: skip
        """Send one message; see `OneWaySends.send_one_way`."""
        said = NewMessage(**message) if message else PLAIN
        stored, flags = await packed_aside(parse_compression(compress), body)
        producer = self._producers.get(topic, acknowledge)
        if producer is None:
            async with self._starting:
                producer = self._producers.get(topic, acknowledge)
                producer = producer or await self._made(topic, acknowledge)
        producer.post(stored, said, flags, on_result)

    async def _made(self, topic: str, acknowledge: str) -> AsyncOneWayProducer:
        if self._producers.full:
            oldest = self._producers.remove_oldest(lambda producer: producer.idle)
            if oldest is None:
                text = f"it was not sent: messages to {SENDERS_MAX} topics are under way already"
                raise Unavailable(text, hint="send to fewer topics at a time")
            self._account.add(await oldest.drain(0.0))
            await oldest.leave()
        settings = one_way_settings(acknowledge, self._timeout)
        origin = self._producers.origin(acknowledge)
        producer = AsyncOneWayProducer(self._caller, topic, settings, origin=origin)
        await self._group.start(producer.serve)
        self._producers.add(topic, acknowledge, producer)
        return producer

    async def flush(self, seconds: float) -> None:
        """Wait up to ``seconds`` for all answers, and raise what `Account.problem` says."""
        end = anyio.current_time() + seconds
        producers = list(self._producers)
        account, self._account = self._account, Account()
        try:
            for producer in producers:
                account.add(await producer.drain(max(0.0, end - anyio.current_time())))
        except BaseException:  # cancelled: what was counted belongs to the next report
            self._account.add(account.unseen())
            raise
        problem = account.problem()
        if problem is not None:
            raise problem

    async def close(self) -> None:
        """Flush within `CLOSE_SECONDS`."""
        await self.flush(min(self._timeout, CLOSE_SECONDS))


class AsyncOneWaySends:
    """What an awaiting client offers for messages whose answer is not waited for."""

    timeout: float
    _one_way: AsyncOneWay

    async def send_one_way(
        self,
        topic: str,
        body: bytes,
        *,
        acknowledge: str = "written",
        compress: str | None = None,
        on_result: OnResult | None = None,
        **message: Unpack[MessageFields],
    ) -> None:
        """Send one message and do not wait for an answer; as `Client.send_one_way`.

        Tasks of the client send again what had no success. ``on_result`` is called by one of them
        and must not block; it is no coroutine function.
        """
        await self._one_way.post(topic, acknowledge, body, compress, on_result, message)

    async def flush(self, timeout: Duration | None = None) -> None:
        """Wait until every one-way message has its answer; as `Client.flush`."""
        await self._one_way.flush(self.timeout if timeout is None else seconds_of(timeout))

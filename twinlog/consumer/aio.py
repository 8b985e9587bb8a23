"""Reading, awaiting: carries out a `Fetching` over a connection of its own.

Not here: which node, how long, and what an answer means (``twinlog.consumer.core``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable

import anyio

from twinlog.consumer.core import Cursor, ReaderCore, ReadSettings, Source
from twinlog.consumer.fetching import Fetching
from twinlog.format.messages import Message
from twinlog.session.aio_caller import AsyncCaller
from twinlog.session.session import Steps


class AsyncMessages(AsyncIterator[Message]):
    """The messages of a read, in order within a queue, and who served them last.

    Nothing is asked before the first message is; the first asks where the queues begin. Closing it,
    as ``contextlib.aclosing`` does, closes its connection.

    Args:
        caller: Of the client.
        settings: What is read.
        begin: Returns the call that finds the cursors.
    """

    def __init__(
        self, caller: AsyncCaller, settings: ReadSettings, begin: Callable[[], Steps[list[Cursor]]]
    ) -> None:
        self._caller, self._settings, self._begin = caller, settings, begin
        self._core: ReaderCore | None = None
        self._messages = self._read()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Return what yields the messages; the same every time."""
        return self._messages

    async def __anext__(self) -> Message:
        """Return the next message; errors as of `Client.read`. Cancelled, the read has ended."""
        return await anext(self._messages)

    async def aclose(self) -> None:
        """Close the connection; what was not read is not read any more."""
        await self._messages.aclose()

    @property
    def source(self) -> Source:
        """Who served the last answer, and how old its data may be."""
        return Source() if self._core is None else self._core.last

    async def _read(self) -> AsyncGenerator[Message, None]:
        caller = self._caller
        cursors = await caller.run(self._begin())
        core = ReaderCore(self._settings, cursors, caller.session.table, anyio.current_time())
        self._core = core
        fetching, own = Fetching(caller.session, core), caller.own()
        try:
            while (messages := await caller.run(fetching.fetch(), own)) is not None:
                for message in messages:
                    yield message
                core.consumed(anyio.current_time())
        finally:
            await own.close()

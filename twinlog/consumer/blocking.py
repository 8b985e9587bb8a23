"""Reading, blocking: carries out a `Fetching` over a connection of its own.

Not here: which node, how long, and what an answer means (``twinlog.consumer.core``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from types import GeneratorType

from twinlog.consumer.core import Cursor, ReaderCore, ReadSettings, Source
from twinlog.consumer.fetching import Fetching
from twinlog.errors import UsageError
from twinlog.format.messages import Message
from twinlog.session.caller import Caller
from twinlog.session.session import Steps


class Messages(Iterator[Message]):
    """The messages of a read, in order within a queue, and who served them last.

    Nothing is asked before the first message is; the first asks where the queues begin. Closing it
    closes its connection. It belongs to one thread at a time.

    Args:
        caller: Of the client.
        settings: What is read.
        begin: Returns the call that finds the cursors.
    """

    def __init__(
        self, caller: Caller, settings: ReadSettings, begin: Callable[[], Steps[list[Cursor]]]
    ) -> None:
        self._caller, self._settings, self._begin = caller, settings, begin
        self._core: ReaderCore | None = None
        read = self._read()
        assert isinstance(read, GeneratorType), "what a function that yields returns"
        self._messages: GeneratorType[Message, None, None] = read

    def __iter__(self) -> Iterator[Message]:
        """Return what yields the messages; the same every time.

        Raises:
            UsageError: Another thread reads from it at this moment.
        """
        if self._messages.gi_running:
            raise _two_threads()
        return self._messages

    def __next__(self) -> Message:
        """Return the next message.

        Raises:
            UsageError: Another thread reads from it at this moment.
            TwinlogError: See `Client.read`.
        """
        if self._messages.gi_running:
            raise _two_threads()
        return next(self._messages)

    def close(self) -> None:
        """Close the connection; what was not read is not read any more."""
        self._messages.close()

    @property
    def source(self) -> Source:
        """Who served the last answer, and how old its data may be."""
        return Source() if self._core is None else self._core.last

    def _read(self) -> Generator[Message, None, None]:
        caller = self._caller
        cursors = caller.run(self._begin())
        core = ReaderCore(self._settings, cursors, caller.session.table, time.monotonic())
        self._core = core
        fetching, own = Fetching(caller.session, core), caller.own()
        try:
            while (messages := caller.run(fetching.fetch(), own)) is not None:
                yield from messages
                core.consumed(time.monotonic())
        finally:
            own.close()


def _two_threads() -> UsageError:
    hint = "begin a read in each thread: client.read(topic)"
    return UsageError("two threads use one read at the same time", code="threads", hint=hint)

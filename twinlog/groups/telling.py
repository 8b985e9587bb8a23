"""The history of one group, as both clients tell it: which rows are read, what is its own. Pure.

Not here: what a row says (`twinlog.format.group_history`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, cast

from twinlog.consumer.core import Source
from twinlog.errors import UnknownGroup
from twinlog.format.group_history import History, Step
from twinlog.format.messages import Message
from twinlog.ranges import parse_range
from twinlog.session.session import ANY, SLAVE


class Telling:
    """Tells one group.

    Args:
        group: Name.
        since: ``start``, or a time.

    Attributes:
        range: Of the rows, for a read.
        missing: Why nothing could be asked about the group as it is now.

    Raises:
        RangeError: ``since`` is not a time.
    """

    def __init__(self, group: str, since: str) -> None:
        self.range = "start:" if since == "start" else f"@{since.removeprefix('@')}:"
        parse_range(self.range)
        self.missing: UnknownGroup | None = None
        self._group = group
        self._history = History()
        self._found = False

    def know(self, answer: Mapping[str, object]) -> None:
        """Take the answer to GROUP ``show``."""
        document = answer.get("group")
        if isinstance(document, dict):
            self._history.know(cast("Mapping[str, object]", document))

    def steps(self, record: Message) -> Iterator[Step]:
        """Yield the group's steps of one record of rows."""
        for step in self._history.told(record.body, record.store_timestamp):
            if step.group == self._group:
                self._found = True
                yield step

    def end(self) -> None:
        """Raise the error of a group that neither exists nor did anything."""
        if self.missing is not None and not self._found:
            raise self.missing


class Rows(Protocol):
    """Records of rows as they are read, and who served the last of them."""

    def __iter__(self) -> Iterator[Message]:
        """Yield them."""
        ...

    @property
    def source(self) -> Source:
        """Who served the last one, and how old its data may be."""
        ...


class GroupSteps(Iterator[Step]):
    """The history of a group as it is read; see ``Client.history``.

    Args:
        told: Tells it.
        rows: Is read on the way.
    """

    def __init__(self, told: Telling, rows: Rows) -> None:
        self._told, self._rows = told, rows
        self._steps = self._read()

    def __next__(self) -> Step:
        """Return the next step.

        Raises:
            UnknownGroup: There is no such group, and nothing told of it.
            TwinlogError: See ``Client.read``.
        """
        return next(self._steps)

    @property
    def source(self) -> Source:
        """Who served the last rows, and how old its data may be."""
        return self._rows.source

    def _read(self) -> Iterator[Step]:
        for record in self._rows:
            yield from self._told.steps(record)
        self._told.end()


def asked_node(read_from: str) -> str:
    """Return whom to ask for the group as it is now: any node knows its queues."""
    return ANY if read_from == SLAVE else read_from

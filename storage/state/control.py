"""What every control record is: one class each, and what it may ask of the state. Pure.

Not here: the kinds (`storage.state.controls`, `storage.state.group_controls`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Protocol, Self

from storage.messaging.groups import Group
from storage.state.access import Access
from storage.state.producers import Producers
from storage.state.topics import Gone, State, Topic
from twinlog.levels import FIRST


class Known(Protocol):
    """The topics of both layers; see `storage.state.layers.Layers`."""

    def existing(self, name: str) -> tuple[Topic, int] | None:
        """Return the topic and the log offset whose confirm makes it binding (0: it is binding)."""
        ...

    def gone(self, name: str) -> Gone | None:
        """Return the last deletion of a topic, whether or not it was made again."""
        ...

    @property
    def gone_topics(self) -> int:
        """How many names of topics were ever deleted."""
        ...

    def group(self, name: str) -> tuple[Group, int] | None:
        """Return the group and the log offset whose confirm makes it so (0: it is)."""
        ...

    @property
    def groups(self) -> int:
        """How many groups there are."""
        ...

    @property
    def access(self) -> Access:
        """Users and rules as of the end of the log."""
        ...


class Control(ABC):
    """One control record.

    Attributes:
        KIND: Its name in the record. ``LEVEL``: of the group that may have it (R74).
    """

    __slots__ = ()
    KIND: ClassVar[str]
    LEVEL: ClassVar[int] = FIRST

    @classmethod
    @abstractmethod
    def read(cls, fields: Mapping[str, object]) -> Self | None:
        """Return the control of a record's fields; None if they do not fit this kind."""

    @abstractmethod
    def fields(self) -> Mapping[str, object]:
        """Return the fields of the record, without its kind."""

    @abstractmethod
    def refusal(self, known: Known) -> tuple[str, str] | None:
        """Return (code, text) when the master must not append it; None when it may."""

    @abstractmethod
    def apply(self, state: State, end: int) -> bool:
        """Change the confirmed state, or a copy; return whether anything changed. Never raises.

        ``end`` is the log offset after the record's batch.
        """

    @abstractmethod
    def forget(self, producers: Producers, at: int, *, confirmed: bool) -> None:
        """Change a layer of producers; the record is at log offset ``at``."""

    def repeated(self, known: Known) -> int | None:
        """Return the end of the record that has done all of it already; None when none has."""
        return None

    @property
    def topic(self) -> Topic | None:
        """The topic that it creates, if any."""
        return None

    @property
    def deleted(self) -> str:
        """The topic that it deletes, with all that groups have consumed of it; empty: none."""
        return ""

    @property
    def altered(self) -> str:
        """The topic that it alters; empty: none."""
        return ""

    @property
    def dropped(self) -> Collection[str]:
        """The groups that are deleted with it, with all that they have consumed."""
        return ()


def texts(values: Sequence[object]) -> bool:
    """Whether all of them are texts."""
    return all(isinstance(value, str) for value in values)

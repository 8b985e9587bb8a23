"""Finding messages by key, for both clients: which node, how often, what the answers mean.

Pure: `find` is a generator of steps, as in ``twinlog.session``. A node answers with as many records
as fit; the next question goes on below the last of them. All questions of one search go to the same
kind of node; what is found is confirmed, so no two nodes disagree but in how far they are.

Times are ms since 1970. Not here: the search itself (``storage.key_query``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from twinlog.errors import Unavailable, UsageError
from twinlog.messages import Message, messages_of
from twinlog.record import UNIQUE_ID
from twinlog.session import SLAVE, Session, Step
from twinlog.wire import Frame, Type

FOUND_DEFAULT = 32
"""RocketMQ's default."""
FOUND_MAX = 10_000
"""Messages that one search returns at most; each may have megabytes."""

WAIT_SHARE = 0.9
"""Of the time that is left a node may search so much: its answer has to travel."""


@dataclass(frozen=True, slots=True)
class Search:
    """What to look for.

    Attributes:
        topic: Name.
        key: One key, or a unique id.
        begin: Stored at or after, ms.
        end: Stored at or before, ms; None: no limit.
        most: So many messages at most.
        unique: Only unique ids count, no keys.
    """

    topic: str
    key: str
    begin: int = 0
    end: int | None = None
    most: int = FOUND_DEFAULT
    unique: bool = False

    def __post_init__(self) -> None:
        """Check what a node would refuse.

        Raises:
            UsageError: No key, a key that no message can have, or a number out of its limits.
        """
        if not self.key or (not self.unique and " " in self.key):
            hint = "a message has several keys when spaces separate them; look for one"
            raise UsageError(f"{self.key!r} is no key", code="key", hint=hint)
        if not 1 <= self.most <= FOUND_MAX:
            raise UsageError(f"a search finds 1 to {FOUND_MAX} messages", code="fields")
        if self.begin < 0 or (self.end is not None and self.end < self.begin):
            raise UsageError("a search ends at or after its begin", code="fields")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a search found.

    Attributes:
        messages: Newest first.
        complete: False: the index had too many entries of that key to look at all of them.
        node: Who answered.
        age_ms: How long ago it had heard from its master.
    """

    messages: tuple[Message, ...]
    complete: bool
    node: str
    age_ms: int

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages, newest first."""
        return iter(self.messages)

    def __len__(self) -> int:
        """Return how many were found."""
        return len(self.messages)


def find(
    session: Session, search: Search, *, read_from: str, deadline: float
) -> Generator[Step, Frame | None, Finding]:
    """Search until enough is found or there is no more.

    Args:
        session: Of the client.
        search: What for.
        read_from: ``master``, ``any``, ``slave`` or a node's name.
        deadline: On the session's clock.

    Raises:
        UnknownTopic: There is no such topic.
        Unavailable: Nobody could answer; code ``index-off``: never will.
        Corrupt: Records are damaged.
    """
    found: list[Message] = []
    last: int | None = None
    to = read_from
    if to == SLAVE:
        to = yield from _a_slave(session, deadline)
    while True:
        fields: dict[str, object] = {
            "topic": search.topic,
            "key": search.key,
            "max": search.most - len(found),
            "begin": search.begin,
            "end": search.end,
            "before": last,
            "unique": search.unique,
            "timeout_ms": max(round((deadline - session.now()) * 1000 * WAIT_SHARE), 1),
        }
        answer = yield from session.call(Type.FIND, fields, deadline=deadline, to=to)
        page = messages_of(answer.payload)
        last = page[-1].log_offset if page else last
        found += with_key(page, search)
        said = answer.fields
        if len(found) >= search.most or not page or said["more"] is not True:
            age, complete = said["age_ms"], said["complete"] is True
            assert isinstance(age, int), "the shape of the answer was checked"
            return Finding(tuple(found[: search.most]), complete, str(said["node"]), age)


def with_key(messages: Sequence[Message], search: Search) -> list[Message]:
    """Return what was found, of an inner batch the messages that have the key, newest first.

    The key may be the batch's own: then they are all of it.
    """
    found: list[Message] = []
    for _, group in groupby(messages, lambda message: message.log_offset):
        together = list(group)
        if len(together) > 1:
            named = [one for one in together if _has_key(one, search)]
            together = (named or together)[::-1]
        found += together
    return found


def _has_key(message: Message, search: Search) -> bool:
    if message.properties.get(UNIQUE_ID) == search.key:
        return True
    return not search.unique and search.key in (message.key or "").split(" ")


def _a_slave(session: Session, deadline: float) -> Generator[Step, Frame | None, str]:
    """Return the name of a slave.

    Raises:
        Unavailable: There is none.
    """
    route = yield from session.route(deadline)
    for node in route.nodes:
        if node.role == SLAVE:
            return node.name
    raise Unavailable("the cluster has no slave now", hint="read from the master")

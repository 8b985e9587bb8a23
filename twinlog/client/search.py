"""Finding messages, for both clients: by key, and by log offset; what the answers mean.

Pure: `find` is a generator of steps, as in ``twinlog.session.session``. A node answers with as many
records as fit; the next question goes on below the last of them. All questions of one search go to
the same kind of node; what is found is confirmed, so no two nodes disagree but in how far they are.

Times are ms since 1970. Not here: the search itself (``storage.key_index.search``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from twinlog.errors import NotYetConfirmed, UsageError
from twinlog.format.messages import Message, messages_of
from twinlog.format.record import UNIQUE_ID
from twinlog.session.reading import AS_CONFIGURED, Staleness, ask_reader
from twinlog.session.session import Session, Steps
from twinlog.wire.frames import Frame, Type

FOUND_DEFAULT = 32
"""RocketMQ's default."""
FOUND_MAX = 10_000
"""Messages that one search returns at most; each may have megabytes."""

WAIT_SHARE = 0.9
"""The share of the remaining time that a node may search: its answer has to travel."""


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
        UsageError.check_text("topic", self.topic)
        UsageError.check_text("key", self.key)
        if not self.key or (not self.unique and " " in self.key):
            hint = "a message has several keys when spaces separate them; look for one"
            raise UsageError(f"{self.key!r} is not a key", code="key", hint=hint)
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
        role: ``master`` or ``slave``.
        settled: False: newer messages may exist that the node does not know, as on a slave.
    """

    messages: tuple[Message, ...]
    complete: bool
    node: str
    age_ms: int
    role: str = "master"
    settled: bool = True

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages, newest first."""
        return iter(self.messages)

    def __len__(self) -> int:
        """Return how many were found."""
        return len(self.messages)


def find(
    session: Session,
    search: Search,
    *,
    read_from: str,
    deadline: float,
    staleness: Staleness = AS_CONFIGURED,
) -> Steps[Finding]:
    """Search until enough is found or there is no more.

    Args:
        session: Of the client.
        search: What for.
        read_from: ``master``, ``any``, ``slave`` or a node's name.
        deadline: See `Session.now`.
        staleness: How old the data may be.

    Raises:
        UnknownTopic: There is no such topic.
        Unavailable: No node could answer; code ``index-off``: never will.
        Corrupt: Records are damaged.
    """
    found: list[Message] = []
    last: int | None = None
    while True:
        fields: dict[str, object] = {
            "topic": search.topic,
            "key": search.key,
            "max": search.most - len(found),
            "begin": search.begin,
            "end": search.end,
            "before": last,
            "unique": search.unique,
            "max_age_ms": staleness.max_age_ms,
            "timeout_ms": max(round((deadline - session.now) * 1000 * WAIT_SHARE), 1),
        }
        answer = yield from ask_reader(
            session, Type.FIND, fields, read_from=read_from, deadline=deadline, staleness=staleness
        )
        page = messages_of(answer.payload)
        last = page[-1].log_offset if page else last
        found += with_key(page, search)
        said = answer.fields
        if len(found) >= search.most or not page or said["more"] is not True:
            age, complete = said["age_ms"], said["complete"] is True
            assert isinstance(age, int), "the shape of the answer was checked"
            settled = said.get("settled") is not False
            node, role = str(said["node"]), str(said["role"])
            return Finding(tuple(found[: search.most]), complete, node, age, role, settled)


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


def message_at(answer: Frame, log_offset: int) -> Message:
    """Return the message that GET found at ``log_offset``.

    Raises:
        NotYetConfirmed: It is stored but not confirmed.
        UsageError: No record begins there.
    """
    match answer.fields["status"]:
        case "found":
            return messages_of(answer.payload)[0]
        case "above-confirm":
            raise NotYetConfirmed(f"log offset {log_offset} is not confirmed yet")
        case "other-host":
            stored_by = answer.fields.get("stored_by")
            text = f"the record at log offset {log_offset} was stored by {stored_by}, "
            raise UsageError(
                text + "and the id names another node",
                code="other-host",
                hint="the id is of another store; a unique id is found with: "
                "twinlog message find TOPIC --id ID",
                stored_by=stored_by,
                log_offset=log_offset,
            )
        case _:
            hint = "log offsets are printed by: twinlog message send"
            text = f"no record begins at log offset {log_offset}"
            raise UsageError(text, code="none", hint=hint)

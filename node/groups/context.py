"""What the parts of work queues share: the node they serve on, and what one turn decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol

from node.groups.members import Members, Session
from node.groups.parked import Asker, Parked
from node.leases.clock import MessagingClock
from node.leases.due import Due
from node.leases.leasing import Leasing
from node.leases.limits import GroupLimits
from node.leases.scratch import Scratch
from node.leases.settles import SettleCounts, Settling
from storage.messaging.groups import Group
from twinlog.errors import NotMember, TwinlogError, UnknownGroup

if TYPE_CHECKING:
    from replication.driver.driver import Driver
    from storage.progress import StoreMessaging
    from storage.reads import StoreReads

ANSWER_SECONDS = 30.0
"""How long an answer waits for its confirm; then the client has to ask again."""


class Done(Protocol):
    """Answers a request; called once. A connection that is gone swallows it."""

    def __call__(
        self, outcome: Mapping[str, object] | TwinlogError, payload: Sequence[memoryview] = ()
    ) -> None:
        """Answer with fields and payload, or with an error."""
        ...


@dataclass(slots=True)
class GroupCounts:
    """What happened since the start; never falls.

    Attributes:
        leased: Messages handed out, by group.
        redelivered: Messages handed out again.
        dead: Dead letters, by group.
        dropped: Messages that failed for good in groups without dead letters.
        rows: Rows appended, by kind.
        settled: Messages by what became of them.
    """

    leased: dict[str, int] = field(default_factory=dict[str, int])
    redelivered: int = 0
    dead: dict[str, int] = field(default_factory=dict[str, int])
    dropped: int = 0
    rows: dict[str, int] = field(default_factory=dict[str, int])
    settled: SettleCounts = field(default_factory=SettleCounts)


@dataclass(slots=True)
class Context:
    """The node and the present reign.

    Attributes:
        driver: Appends.
        records: The store's records.
        messaging: The store's folds and groups.
        limits: See `GroupLimits`.
        refusal: Makes the error for a refusal that concerns the node.
        missing: Makes the error for a topic that is not there.
        wall_ms: The wall clock.
        tell: Reports an event.
        draw: Makes the number of a new member: random, 53 bits.
        family: Address family of the cluster's store hosts, 4 or 6.
        seconds: The loop's clock.
    """

    driver: Driver
    records: StoreReads
    messaging: StoreMessaging
    limits: GroupLimits
    refusal: Callable[[str, str], TwinlogError]
    missing: Callable[[str], TwinlogError]
    wall_ms: Callable[[], int]
    tell: Callable[..., None]
    draw: Callable[[], int]
    family: int
    seconds: Callable[[], float]
    counts: GroupCounts = field(default_factory=GroupCounts)
    members: Members = field(default_factory=Members)
    parked: Parked = field(default_factory=Parked)
    due: Due = field(default_factory=Due)
    clock: MessagingClock = field(default_factory=MessagingClock)
    turns: dict[str, int] = field(default_factory=dict[str, int])

    def group(self, name: str) -> Group:
        """Return a confirmed group that is not being deleted.

        Raises:
            UnknownGroup: There is no such group.
        """
        found = self.messaging.defined(name)
        if found is None or found[1]:
            raise self.unknown(name)
        return found[0]

    def unknown(self, name: str) -> UnknownGroup:
        """Return the error for a group that is not there, with the nearest name that is."""
        near = get_close_matches(name, list(self.messaging.groups())[:10_000], 1)
        hint = f"is it {near[0]}? " if near else ""
        text = f"{hint}create it: twinlog group create {name}"
        return UnknownGroup(f"there is no group {name}", hint=text, group=name)

    def session(self, group: str, member: int, asker: Asker) -> Session:
        """Return the session of a member that speaks from its own connection.

        Raises:
            NotMember: Its session is over, or it joined on another connection.
        """
        session = self.members.get(group, member)
        if session is None or session.peer is not asker:
            raise NotMember(f"{member} is no member of group {group} on this connection")
        return session


@dataclass(slots=True)
class Turn:
    """What one turn decides; see `node.leases.scratch`.

    Attributes:
        now: The loop's clock, seconds. ``now_ms``: the messaging clock.
        answers: Called with None when the rows are confirmed, else with an error.
        appended: Likewise, when they are appended.
        together: Called after the turn's rows are appended: batches of their own.
        size: Bytes that the answers hold until then.
        stirred: Groups in which messages may have become available.
    """

    now: float
    now_ms: int
    scratch: Scratch
    leasing: Leasing
    settling: Settling
    answers: list[Callable[[TwinlogError | None], None]] = field(
        default_factory=list[Callable[[TwinlogError | None], None]]
    )
    appended: list[Callable[[TwinlogError | None], None]] = field(
        default_factory=list[Callable[[TwinlogError | None], None]]
    )
    together: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    size: int = 0
    stirred: set[str] = field(default_factory=set[str])

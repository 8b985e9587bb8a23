"""What the parts of work queues share: the node they serve on, and what one turn decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol

from node.leases.clock import MessagingClock
from node.leases.due import Due
from node.leases.leasing import Leasing
from node.leases.limits import GroupLimits
from node.leases.ordering import holder
from node.leases.scratch import Scratch
from node.leases.settles import SettleCounts, Settling
from node.turns.members import Members, Session
from node.turns.parked import Asker, Parked
from storage.messaging.groups import Group
from storage.messaging.share import Share
from twinlog.errors import NotMember, NotYetConfirmed, TwinlogError, UnknownGroup, UnknownTopic

if TYPE_CHECKING:
    from node.clients.lookups import Asked
    from node.topics.quotas import Quotas
    from replication.driver.driver import Driver
    from storage.progress import StoreMessaging
    from storage.reads import StoreReads
    from twinlog.format.group_rows import Row

ANSWER_SECONDS = 30.0
"""How long an answer waits for its confirm; then the client has to ask again."""


LATE_SECONDS = 10.0
"""Between two reports that outcomes of a group came too late."""


class Done(Protocol):
    """Answers a request; called once. A connection that is gone swallows it."""

    def __call__(
        self, outcome: Mapping[str, object] | TwinlogError, payload: Sequence[memoryview] = ()
    ) -> None:
        """Answer with fields and payload, or with an error."""
        ...


Fetch = Callable[["Asked[Any]", Asker, Done], None]
"""Has records fetched in a thread, then answered."""


@dataclass(slots=True)
class GroupCounts:
    """What happened since the start; never falls. Of deleted groups nothing is kept by name.

    Attributes:
        leased: Messages handed out, by group.
        redelivered: Messages handed out again.
        dead: Dead letters, by group.
        dropped: Messages that failed for good in groups without dead letters.
        rows: Rows appended, by kind.
        settled: Messages by group and what became of them, and how long they were held.
    """

    settled: SettleCounts
    leased: dict[str, int] = field(default_factory=dict[str, int])
    redelivered: int = 0
    dead: dict[str, int] = field(default_factory=dict[str, int])
    dropped: int = 0
    rows: Counter[type[Row]] = field(default_factory=Counter["type[Row]"])

    def forget(self, group: str) -> None:
        """Keep nothing by the name of a group: it was deleted."""
        self.leased.pop(group, None)
        self.dead.pop(group, None)
        settled = self.settled.settled
        for key in [key for key in settled if key[0] == group]:
            del settled[key]


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
        counts: What happened since the start.
        freed: Ordered groups in which a queue may have become free since the last turn.
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
    counts: GroupCounts
    members: Members = field(default_factory=Members)
    parked: Parked = field(default_factory=Parked)
    due: Due = field(default_factory=Due)
    clock: MessagingClock = field(default_factory=MessagingClock)
    freed: set[str] = field(default_factory=set[str])
    turns: dict[str, int] = field(default_factory=dict[str, int])
    starts: dict[tuple[str, int, str, int], int] = field(
        default_factory=dict[tuple[str, int, str, int], int]
    )
    """Where groups begin by time: by group, time, topic and queue."""
    quotas: Quotas | None = None
    """Those of the node's clients; None: none are kept."""
    late_at: dict[str, float] = field(default_factory=dict[str, float])
    """By group: when it was last told that an outcome came too late."""

    def too_late(self, group: str, member: int, rows: int) -> None:
        """Tell that outcomes came after others were given the messages, now and then."""
        now = self.seconds()
        if now < self.late_at.get(group, -LATE_SECONDS) + LATE_SECONDS:
            return
        self.late_at[group] = now
        session = self.members.get(group, member)
        name = session.name if session is not None else ""
        self.tell("member_fenced", "warning", group=group, member=member, name=name, rows=rows)

    def group(self, name: str) -> Group:
        """Return a confirmed group that is not being deleted; what alters it binds at once.

        Raises:
            UnknownGroup: There is no such group.
        """
        found = self.messaging.standing(name)
        if found is None:
            raise self.unknown(name)
        return found

    def settled(self, group: Group, share: Share | None) -> None:
        """Look at the parked pops of an ordered group where a queue has become free for one."""
        if group.mode != "ordered" or share is None:
            return
        session = self.members.get(group.name, holder(share))
        if session is None or session.parked:
            self.freed.add(group.name)

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
        ends: See `end`.
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
    ends: dict[tuple[str, int], int | None] = field(
        default_factory=dict[tuple[str, int], int | None]
    )

    def end(self, records: StoreReads, share: Share) -> int | None:
        """Return the end of a share's queue, asked once a turn; None: there is no such queue."""
        place = share.topic, share.queue
        if place not in self.ends:
            try:
                self.ends[place] = records.queue_range(*place)[1]
            except (UnknownTopic, NotYetConfirmed):
                self.ends[place] = None
        return self.ends[place]

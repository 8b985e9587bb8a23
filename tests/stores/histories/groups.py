"""A history in which groups consume, and the judge of what is known of them afterwards.

The state of groups must be the fold of the rows in the log: of those that the log holds, and before
them of those that retention has deleted since, which the history remembers.

Not here: the rest of the history, and of the judge (`tests.stores.histories`).
"""

from __future__ import annotations

from storage import Outcome, Store
from storage.messaging.fold import Messaging
from storage.messaging.groups import Group
from storage.messaging.share import SETTLED
from storage.state.control import Control
from storage.state.controls import decode_control
from storage.state.group_controls import CreateGroups, DeleteGroups
from tests.fakes.disk import FakeDisk
from tests.stores.histories.history import History
from tests.stores.workbench import TOPIC, log_records, section, settle, token
from twinlog.format.group_rows import (
    DEAD_LETTER,
    DROPPED,
    AckRow,
    ExtendRow,
    ForgottenRow,
    GivenUpRow,
    LeaseRow,
    MemberRow,
    PositionRow,
    ReleaseRow,
    ResetRow,
    Row,
    ShareRow,
    UnknownRow,
    decode_rows,
)
from twinlog.format.record import Record
from twinlog.format.system_topics import SYSTEM_TOPIC_GROUP, SYSTEM_TOPIC_META


class GroupHistory(History):
    """Leases, settles, gives back, resets, deletes; beside sections, and in one batch with them."""

    def __init__(self, disk: FakeDisk) -> None:
        super().__init__(disk)
        self.told: list[Record] = []

    def step(self, number: int) -> None:
        """One step, and what groups do in it, if this master may write rows already."""
        super().step(number)
        store = self.store
        assert store is not None
        if not store.messaging.ready:
            return
        name = f"g{number % 3}"
        if store.messaging.defined(name) is None:
            self.control(CreateGroups((Group(name),)))
        elif number % 9 == 8:
            self.control(DeleteGroups((name,)))
            return
        rows = self.draw(store, name, number)
        part = section(2, queue=3, mark=number)
        if number % 2:
            done = store.append_together(token(self.epoch), [part], rows, wall_ms=2000).outcome
        else:
            done = store.append_rows(token(self.epoch), rows, wall_ms=2000).outcome
        assert done is Outcome.STORED
        self.note()

    def control(self, change: Control) -> None:
        """Append a control record."""
        assert self.store is not None
        self.store.append_control(token(self.epoch), change, wall_ms=1000)
        self.note()

    def note(self) -> None:
        """Also which rows and control records there are."""
        super().note()
        assert self.store is not None
        self.told = remembered(self.told, self.store)

    def draw(self, store: Store, name: str, number: int) -> list[Row]:
        """Some of everything, by the number of the step."""
        ahead, rows = store.messaging.ahead, list[Row]()
        share = ahead.find(name, TOPIC, 0)
        if share is None:
            rows.append(ShareRow(ahead.next_share(), name, TOPIC, 0, 0, 0))
            rows.append(LeaseRow(ahead.next_share(), 1, 0, 4, 1, number, 9000, 1))
            return rows
        rows.append(LeaseRow(share.id, share.n + 1, share.next + 1, 3, 1, number, 9000, 1))
        for run in share.runs[number % 2 :: 2]:
            if run.state == SETTLED:
                continue
            match (number + run.first) % 4:
                case 0 | 1:
                    rows.append(AckRow(share.id, run.n, run.first, run.first))
                case 2:
                    rows.append(ReleaseRow(share.id, run.n, run.last, run.last, 9500, number % 2))
                case _:
                    rows.append(ExtendRow(share.id, run.n, run.first, run.last, 9900 + number))
        given = next(
            (run for run in share.runs if run.state != SETTLED and run.last > run.first), None
        )
        if number % 5 == 1 and given is not None:  # with the copies of dead letters, or without
            how = DEAD_LETTER if number % 2 else DROPPED
            rows.append(GivenUpRow(share.id, given.n, given.last, given.last, how))
        self.broadcast(store, number, rows)
        if number % 7 == 6:
            rows.append(ResetRow(share.id, share.next, "reset"))
        rows.append(MemberRow(name, number // 2, f"w{number}", number % 2))
        return rows

    def broadcast(self, store: Store, number: int, rows: list[Row]) -> None:
        """A member with a position of its own, which rises, and is forgotten now and then."""
        ahead = store.messaging.ahead
        share = ahead.find("g0~m", TOPIC, 1)
        if share is None:
            free = max(
                [ahead.next_share(), *(row.share + 1 for row in rows if isinstance(row, ShareRow))]
            )
            rows.append(ShareRow(free, "g0~m", TOPIC, 0, 1, 0))
        elif number % 11 == 10:
            rows.append(ForgottenRow(share.id))
        else:
            rows.append(PositionRow(share.id, 1, 0, share.next + 1))

    def retain(self, *, erase: bool) -> None:
        """Settle what is out, for it holds its files; then as ever."""
        store = self.store
        assert store is not None
        settle(store)
        rows = [
            AckRow(share.id, run.n, run.first, run.last)
            for name in store.messaging.ahead.names()
            for share in store.messaging.ahead.shares_of(name)
            for run in share.runs
            if run.state != SETTLED
        ]
        done = store.append_rows(token(self.epoch), rows, wall_ms=2000)
        assert done.outcome is Outcome.STORED, done
        self.note()
        super().retain(erase=erase)


KINDS = {
    ShareRow, LeaseRow, AckRow, GivenUpRow, ReleaseRow, ExtendRow, PositionRow, ResetRow,
    ForgottenRow, MemberRow,
}  # fmt: skip
"""The rows that the history has."""


def rows_in(record: Record) -> list[Row | UnknownRow]:
    """The rows of a record of the history."""
    return decode_rows(record.body) if record.topic == SYSTEM_TOPIC_GROUP else []


def remembered(known: list[Record], store: Store) -> list[Record]:
    """Records of groups that the log no longer has, and those that it has up to confirm."""
    gone = [one for one in known if one.log_offset < store.start]
    topics = (SYSTEM_TOPIC_GROUP, SYSTEM_TOPIC_META)
    return gone + [one for one in log_records(store) if one.topic in topics]


def examine_groups(history: GroupHistory, store: Store) -> None:
    """What is known of groups is the fold of the log, and snapshots and restarts change nothing."""
    fold, groups = Messaging(), dict[str, Group]()
    for one in remembered(history.told, store):
        start, end = one.log_offset, one.log_offset + one.size
        if one.topic == SYSTEM_TOPIC_GROUP:
            fold.apply_body(one.body, one.store_timestamp, start, end)
            continue
        match change := decode_control(one.body):
            case CreateGroups():
                groups |= {group.name: group for group in change.groups}
            case DeleteGroups():
                for name in change.names:
                    groups.pop(name, None)
                fold.drop_all(change.names, "", start, end)
            case _:
                pass
    assert store.dispatched == store.confirm
    assert store.messaging.confirmed.values() == fold.values()
    assert set(store.messaging.groups()) == set(groups)

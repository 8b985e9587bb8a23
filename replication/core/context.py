"""State shared by the parts of the core: identity, promise, settings, queue of commands.

Not here: decisions. The core is the only one that changes ``promise``, ``session`` and ``newest``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from replication.core.commands import Changed, Command, Tell
from replication.core.roles import ROLES, Machine, Role, RoleInput
from replication.pacing import Jitter
from replication.register.group_state import GroupState
from replication.register.operations import Operation
from replication.settings import ReplicationSettings
from storage import BootSummary, Promise
from twinlog.format.epoch_history import Epoch


class Log(Protocol):
    """Read access of the core to the log; only commands change the log.

    Within one event every value stays the same, because commands are executed between events. So a
    decision always sees the log as it was when the event began, never half-way through its own
    commands.
    """

    @property
    def start(self) -> int:
        """First byte kept."""
        ...

    @property
    def end(self) -> int:
        """First byte not written."""
        ...

    @property
    def committed(self) -> int:
        """Everything below is in the file, with its batch entries."""
        ...

    @property
    def flushed(self) -> int:
        """Everything below is flushed, with its batch entries."""
        ...

    @property
    def confirm(self) -> int:
        """The confirm offset."""
        ...

    @property
    def epochs(self) -> Sequence[Epoch]:
        """The epoch history."""
        ...

    @property
    def last_epoch(self) -> int:
        """Epoch of the last byte, 0 of an empty log."""
        ...

    def chain_crc(self, start: int, end: int) -> int:
        """CRC-32C over the entries between two borders."""
        ...

    def border_at_or_below(self, offset: int) -> int:
        """The last batch border at or below ``offset``."""
        ...


@dataclass(frozen=True, slots=True)
class Node:
    """The identity of this node and of this start.

    Attributes:
        name: Of the replica.
        names_crc: CRC of the names of cluster and group, sent in every frame.
        family: 4 or 6: length of the host in every record.
        segment_size: Bytes of a log file, the same in the whole group.
        store: Store id. ``start``: random id of this process start. ``known``: all start ids of
            the store.
        clean: No acknowledged record can be missing (R26). ``why``: else, why.
        damage: Damage that recovery found; None without.
    """

    name: str
    names_crc: int
    family: int
    segment_size: int
    store: str
    start: str
    known: tuple[str, ...]
    clean: bool
    why: str = ""
    damage: str | None = None

    @classmethod
    def started(
        cls, boot: BootSummary, name: str, names_crc: int, *, family: int, segment_size: int
    ) -> Node:
        """Return the identity from the summary of the start."""
        return cls(
            name=name,
            names_crc=names_crc,
            family=family,
            segment_size=segment_size,
            store=boot.store_id,
            start=boot.start_id,
            known=(*boot.unseen, boot.start_id),
            clean=boot.clean,
            why=boot.why_unclean,
            damage=boot.damage.what if boot.damage is not None else None,
        )


ALARMS_KEPT = 256
"""Alarms remembered as reported; when there are more, all may be reported again."""


class Context:
    """See the module.

    Attributes:
        quality: Meaning of an acknowledgement, ``received`` or ``durable``: a fact of the group, or
        the configured one before the group state is known. ``level``: the group's (R74), 0 before.
        lacking: Why this node must tell the register that it lacks records it acknowledged; else
        empty.
        promise: The durable promise.
        session: Our registered session; 0 before.
        newest: The newest group state seen, maybe not durable yet.
        out: Commands not yet executed.
        role: The role machine. ``jitter``: the only randomness, from the seed.
        damage: Why this log is damaged or divergent; None normally.
        want_revision: (revision, tag) that a master showed and that must become durable here.
        want_read: The group state may have changed and must be read.
        cutting: A cut is running; no role changes until it is done.
        notes: Operations that complete the history, sent when nothing else is due.
    """

    def __init__(
        self,
        node: Node,
        settings: ReplicationSettings,
        log: Log,
        promise: Promise,
        seed: int,
    ) -> None:
        self.jitter = Jitter(seed)
        self.node = node
        self.settings = settings
        self.log = log
        self.promise = promise
        self.session = 0
        self.newest: GroupState | None = None
        self.out: deque[Command] = deque()
        self.role: Machine[Role, RoleInput] = Machine(ROLES)
        self.damage: str | None = node.damage
        self.want_revision: tuple[int, int] = (0, 0)
        self.want_read = False
        self.cutting = False
        self.lacking = ""
        self.quality: str = settings.ack
        self.level = 0
        self.notes: deque[Operation] = deque(maxlen=64)
        self._conn = 0
        self._alarms: set[str] = set()

    def do(self, command: Command) -> None:
        """Queue a command."""
        self.out.append(command)

    def tell(self, name: str, level: str = "info", /, **facts: object) -> None:
        """Log an event."""
        self.out.append(Tell(name, level, facts))

    def alarm(self, name: str, /, **facts: object) -> None:
        """Log an alarm, once until its facts change."""
        key = f"{name} {facts}"
        if key not in self._alarms:
            if len(self._alarms) > ALARMS_KEPT:
                self._alarms.clear()
            self._alarms.add(key)
            self.tell(name, "alarm", **facts)

    def repair(self) -> None:
        """Take the damage back. Where this node still counts, the register hears of it first."""
        state, name = self.newest, self.node.name
        if state is not None and (name in state.isr or name in state.elr or state.leader == name):
            self.lacking = f"was quarantined: {self.damage}"
        self.damage = None
        self.role.move(RoleInput.REPAIRED)
        self.tell("quarantine-ended", "warning")
        self.do(Changed())

    def next_conn(self) -> int:
        """Return a number for a link to dial: 1, 2, ...; accepted links are numbered outside."""
        self._conn += 1
        return self._conn

    @property
    def counts_flushed(self) -> bool:
        """Whether this node's bytes count only once they are flushed."""
        return self.quality == "durable" or self.settings.flush_first

    def own_end(self) -> int:
        """Return the end that this node would acknowledge, by the quality in force (R27)."""
        return self.log.flushed if self.counts_flushed else self.log.committed

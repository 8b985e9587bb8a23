"""What the parts of the core share: who we are, what we promised, where commands go.

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
    """What the core may ask of the log. It changes nothing here: only orders change the log.

    Within one event every answer is the same, because orders are carried out between events. So a
    decision reads the log as it was when the event began, never one that is half-way through what
    the decision itself ordered.
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
        """Everything below is in the file, with its entries."""
        ...

    @property
    def flushed(self) -> int:
        """Everything below is on the disk, with its entries."""
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
    """Who this node is.

    Attributes:
        name: Of the replica.
        names_crc: CRC of cluster and group, in every frame.
        family: 4 or 6: length of the host in every record.
        segment_size: Of the group, bytes.
        store: Store id. ``start``: random id of this process start. ``known``: all start ids of
            the store.
        clean: Nothing acknowledged can be missing. ``why``: else, why.
        damage: What recovery found; None for a sound log.
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
        """Return who this node is by what its start found."""
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
"""Alarms remembered as reported; beyond, they are reported again."""


class Context:
    """See the module.

    Attributes:
        quality: What an acknowledgement says, ``received`` or ``durable``: a fact of the group,
            before its state is known what the configuration says.
        lacking: Why this node must say to the register that it lacks what it acknowledged; else
            empty.
        promise: The promise that is on the disk.
        session: Our registered session; 0 before.
        newest: The newest group state seen, maybe not yet on the disk.
        out: Commands not yet carried out.
        role: The role machine. ``jitter``: the only randomness, from the seed.
        damage: Why this log must not be trusted; None while it may.
        want_revision: (revision, tag) that a master showed and that must reach our disk.
        want_read: Something says that the group state has moved on.
        cutting: A cut is under way; no role changes until it is done.
        notes: Operations that complete the history, to be sent when there is time.
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
        self.notes: deque[Operation] = deque(maxlen=64)
        self._conn = 0
        self._alarms: set[str] = set()

    def do(self, command: Command) -> None:
        """Have a command carried out after those before it."""
        self.out.append(command)

    def tell(self, name: str, level: str = "info", /, **facts: object) -> None:
        """Log an event."""
        self.out.append(Tell(name, level, facts))

    def alarm(self, name: str, /, **facts: object) -> None:
        """Log what a person must know, once until its facts change."""
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
        """Return the number of a link that we dial: 1, 2, ...; accepted ones come from outside."""
        self._conn += 1
        return self._conn

    @property
    def counts_flushed(self) -> bool:
        """Whether what this node has counts from its flush on."""
        return self.quality == "durable" or self.settings.flush_first

    def own_end(self) -> int:
        """Return what our own acknowledgement would say, by the quality in force."""
        return self.log.flushed if self.counts_flushed else self.log.committed

"""What the parts of the core share: who we are, what we promised, where commands go.

Not here: decisions. The core is the only one that changes ``promise``, ``session`` and ``newest``.
"""

from __future__ import annotations

from collections import deque

from replication.commands import Command, Tell
from replication.events import Log, Node
from replication.group_state import GroupState
from replication.pacing import Jitter
from replication.register_ops import Operation
from replication.roles import ROLES, Machine, Role, RoleInput
from replication.settings import ReplicationSettings
from storage import Promise

COMPARED = 1 << 63
"""Beyond any log: all of ours has been compared with a master's, or came from one since."""


class Context:
    """See the module.

    Attributes:
        compared: Log offset from which on a handshake compares our entries with the master's: what
            was flushed when the process started, later `COMPARED`, or what we confirmed when a
            reign of ours ended. Without it a node that has run for weeks would have both sides
            walk over weeks of entries at every handshake, with everybody waiting.
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
        self.compared = log.flushed
        self.notes: deque[Operation] = deque(maxlen=64)
        self._conn = 0

    def do(self, command: Command) -> None:
        """Have a command carried out after those before it."""
        self.out.append(command)

    def tell(self, name: str, level: str = "info", /, **facts: object) -> None:
        """Log an event."""
        self.out.append(Tell(name, level, facts))

    def next_conn(self) -> int:
        """Return the number of a link that we dial: 1, 2, ...; accepted ones come from outside."""
        self._conn += 1
        return self._conn

    def own_end(self) -> int:
        """Return what our own acknowledgement would say, by the quality in force."""
        return self.log.flushed if self.settings.ack == "durable" else self.log.committed

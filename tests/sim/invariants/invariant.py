"""What an invariant is: a class whose methods are the moments at which it is checked.

Not here: the invariants (`tests.sim.invariants`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tests.sim.judge.ledger import Batch, Shadow, Violation

if TYPE_CHECKING:
    from tests.sim.judge.contents import Stored
    from tests.sim.machines.node import SimNode
    from tests.sim.profiles.delays import DelayBatch
    from tests.sim.profiles.group_log import Row, ShareLog
    from tests.sim.profiles.groups import GroupBatch
    from tests.sim.profiles.transactions import SettledBatch
    from tests.sim.users.members import Member
    from tests.sim.world import World
    from twinlog.groups.leases import Held
    from twinlog.wire.frames import Frame


class Invariant:
    """Base: every moment, doing nothing."""

    rules: ClassVar[str] = ""
    """Numbers of docs/protocol.md that it holds."""
    of_rotten: ClassVar[bool] = False
    """Whether its `booted` also looks at a node on whose disk a bit has flipped."""

    def __init__(self, world: World) -> None:
        self.world = world

    def fail(self, text: str) -> None:
        """Raise the violation of this invariant."""
        raise Violation(type(self).__name__, text)

    def settled_batch(self, batch: SettledBatch) -> None:
        """A confirmed batch settles halves, has copies of them, or counts questions."""

    def ended(self, name: int, outcome: int) -> None:
        """A producer is told how its transaction ended."""

    def booted(self, node: SimNode, shadow: Shadow) -> None:
        """A node's store is open again; the shadow still shows it as it was before."""

    def grew(self, node: SimNode, shadow: Shadow, batches: list[Batch]) -> None:
        """A store's log became longer."""

    def cut(self, node: SimNode, shadow: Shadow, end: int) -> None:
        """A store's log will be cut in the shadow; in the store it is."""

    def flushed(self, node: SimNode, shadow: Shadow, flushed: int) -> None:
        """A store says that more is flushed; the shadow has the old value."""

    def confirmed(self, node: SimNode, shadow: Shadow, confirm: int) -> None:
        """A store's confirm offset moved; the shadow has the old value."""

    def started(self, node: SimNode, start: int) -> None:
        """A store's log begins later than it did."""

    def served(self, node: SimNode, topic: str, row: Stored) -> None:
        """A node has given this record of the confirmed log to a reader of the topic."""

    def canon_grew(self) -> None:
        """A master confirmed more than anybody before."""

    def register_changed(self) -> None:
        """The coordinator's state changed."""

    def acked(self, node: SimNode, epoch: int, end: int, flushed: int) -> None:
        """A slave puts an acknowledgement on the wire."""

    def began_again(self, node: SimNode) -> None:
        """A store has deleted its log and begins at its master's seed."""

    def leads(self, node: SimNode) -> None:
        """A new master takes writes from now on."""

    def weakly_acknowledged(self, node: SimNode, epoch: int) -> None:
        """A master of ``epoch`` gives an acknowledgement weaker than ``confirmed``."""

    def late_write(self, node: SimNode) -> None:
        """Somebody holds a token of this process that has ended, and writes."""

    def asked(self, wrong: str) -> None:
        """A reader believes an answer that lacks what was acknowledged before it asked."""

    def row(self, batch: GroupBatch, row: Row, share: ShareLog | None) -> None:
        """A row about groups is confirmed; the account does not have it yet."""

    def vain_row(self, row: Row) -> None:
        """A confirmed row about groups has changed nothing."""

    def group_batch(self, batch: GroupBatch) -> None:
        """A confirmed batch settled messages, or has what was sent with that."""

    def delay_batch(self, batch: DelayBatch) -> None:
        """A confirmed batch has copies of delayed messages, or says how far they are delivered."""

    def cancelled(self, name: bytes) -> None:
        """A message that waits was taken back: that was answered."""

    def leased(self, node: SimNode, request: Frame, row: list[int]) -> None:
        """A node answers a POP whose leases are to be confirmed, with this lease."""

    def body(self, member: Member, held: Held) -> None:
        """A member of a group begins with a message."""

    def pop_stands(self, node: SimNode, what: str) -> None:
        """A parked pop was left alone for a second, although there is something for it."""

    def sample(self, node: SimNode) -> None:
        """A good moment for what costs the length of a log; the node is alive and idle."""

    def finished(self) -> None:
        """The run is over and healed."""

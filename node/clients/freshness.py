"""How current a node's answers are at this moment: its role, the age of its data.

Every answer to a reader carries the age, and `settled = false` if there may be confirmed records
that this node does not know (R53). Pure.

Units: seconds inside, milliseconds on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replication.core.view import RoleView
from twinlog.errors import TwinlogError
from twinlog.format.epoch_history import Epoch
from twinlog.wire.schema import AGE_UNKNOWN_MS


@dataclass(frozen=True, slots=True)
class Freshness:
    """The state of a node at the moment of an answer."""

    node: str
    role: str
    age_seconds: float
    """Age of its data, seconds: 0 on a master that hears its in-sync members, infinite on a node
    that has not heard from a master."""
    redirect: str | None
    """On a master: an in-sync slave that can serve cold data instead; None elsewhere."""
    epoch: int
    """Epoch of the role; without a role the promised one."""

    silent: bool = False
    """On a master: a member of the in-sync set has not been heard from for too long. It may have
    been elected meanwhile, so what this node knows may be out of date."""

    @classmethod
    def of(cls, view: RoleView, node: str, *, silence_max: float = float("inf")) -> Freshness:
        """Return the freshness of node ``node`` from its view.

        Only a member of the recorded in-sync set can be elected in place of this master, and it
        leaves the set with the coordinator's consent alone. So a master whose in-sync members have
        all been heard from less than ``silence_max`` seconds ago has not been deposed for longer
        than that; one with a silent member may have been, and its data is as old as the silence.
        """
        if view.role != "master":
            age = float("inf") if view.age_seconds is None else view.age_seconds
            return cls(node, view.role, age, None, view.epoch)
        members = [peer for peer in view.peers if peer.in_sync]
        silences = [
            float("inf") if peer.contact_seconds is None else peer.contact_seconds
            for peer in members
        ]
        silence = max(silences, default=0.0)
        silent = silence > silence_max or not view.sure
        redirect = min((peer.name for peer in members), default=None)
        return cls(node, view.role, silence if silent else 0.0, redirect, view.epoch, silent)

    @property
    def leads(self) -> bool:
        """Whether this node is master, without a sign that it may have been deposed."""
        return self.role == "master" and not self.silent

    def knows(self, epochs: Sequence[Epoch], confirm: int) -> bool:
        """Whether everything acknowledged before this moment is below ``confirm``.

        A new master has every acknowledged record, but knows which are confirmed only once the
        record that opens its epoch is: until then its confirm offset may be below what has been
        acknowledged. A deposed master knows nothing of what its successor acknowledges.

        Args:
            epochs: Epochs of the node's log, oldest first.
            confirm: Its confirm offset, now or when the answer was begun.
        """
        if not self.leads or not epochs:
            return False
        newest = epochs[-1]
        return newest.epoch == self.epoch and newest.start < confirm

    def doubted(self, error: TwinlogError) -> TwinlogError:
        """Return the error for something missing, marked if it may exist on another node.

        A client that needs a definite answer then asks again.
        """
        facts: dict[str, object] = {"age_ms": self.age_ms}
        if not self.leads:
            facts["settled"] = False
        error.facts = {**error.facts, **facts}
        return error

    def within(self, limit: float) -> bool:
        """Whether the data is at most ``limit`` seconds old.

        An unknown age is within a limit of `AGE_UNKNOWN_MS` and more: any age is accepted.
        """
        return self.age_ms <= limit * 1000

    @property
    def age_ms(self) -> int:
        """The age as sent to clients; `AGE_UNKNOWN_MS` if it is unknown."""
        return round(min(self.age_seconds * 1000, AGE_UNKNOWN_MS))

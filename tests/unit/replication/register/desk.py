"""A register and who is registered there, for short tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from replication.register import operations as ops
from replication.register.group_state import GroupState
from replication.register.operations import Report, Seed
from replication.register.register import Answer, Register

SEED = Seed(("n1", "n2", "n3"), 2, "n1", {"n3": 5})


class Desk:
    """A register and who is registered there, for short tests."""

    def __init__(self, seed: Seed = SEED) -> None:
        self.register = Register("r1")
        self.seed = seed
        self.tag = 100
        self.known: dict[str, tuple[str, ...]] = {}

    @property
    def state(self) -> GroupState:
        """The present state."""
        return self.register.state

    def do(self, op: ops.Operation) -> Answer:
        """Apply with a fresh tag."""
        self.tag += 1
        return self.register.apply(op, wall_ms=1, tag=self.tag)

    def sign_in(self, node: str, start: str = "", **changes: Any) -> Answer:
        """Register a node; each call is another start unless it is named."""
        start = start or f"{node}-start-{len(self.known.get(node, ()))}"
        known = self.known[node] = (*self.known.get(node, ()), start)
        op = ops.RegisterNode(
            node=node,
            store=f"store-{node}",
            start=start,
            known=known,
            clean=True,
            empty=True,
            last_epoch=0,
            end=0,
            promised=0,
            seed=self.seed,
        )
        return self.do(replace(op, **changes))

    def elect(self, node: str, **changes: Any) -> Answer:
        """Stand with the registered session."""
        return self.do(
            replace(ops.Elect(node, self.state.session_of(node), self.state.epoch + 1), **changes)
        )

    def alter(self, add: dict[str, int] | None = None, remove: tuple[str, ...] = ()) -> Answer:
        """The leader changes the set."""
        state = self.state
        assert state.leader is not None
        return self.do(
            ops.AlterInSync(
                state.leader, state.leader_session, state.epoch, state.revision, add or {}, remove
            )
        )

    def report(self, node: str) -> Report:
        """What a node that saw the newest state reports."""
        state = self.state
        session = state.session_of(node)
        return Report(node, state.register_id, state.revision, state.tag, session)


def check_rules(state: GroupState) -> None:
    """What holds in every state; see ``group_state``."""
    assert state.leader is None or state.leader in state.isr
    assert not set(state.isr) & set(state.elr)
    if len(state.isr) >= state.min_isr:
        assert not state.elr
    for members in (state.isr, state.elr, state.suspect):
        for name, session in members.items():
            assert session == state.session_of(name)

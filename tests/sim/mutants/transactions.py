"""Mutants of transactions: ends, batches, questions.

Not here: how they are hunted (`tests.sim.mutants`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from node.transactions.asking import Asking
from node.transactions.checks import Ask
from node.transactions.service import Transactions
from storage.messaging.halves import HalvesAhead
from tests.sim.machines.group_port import Connection
from tests.sim.mutants.mutant import Mutant
from tests.sim.patches import Patches
from tests.sim.swarm import Plan
from twinlog.errors import TransactionSettled


def _transactions(**rates: float) -> Callable[[Plan], None]:
    """Many transactions, and exactly these faults."""

    def change(plan: Plan) -> None:
        plan.rates = dict(rates)
        plan.members, plan.delayed, plan.deletions = 0, 0.0, 0.0
        plan.transactions = True
        plan.weather.damage_share = 0.0

    return change


def _end_twice(patches: Patches) -> None:
    patches.set(HalvesAhead, "apply", lambda self, row: True)


def _end_other_outcome(patches: Patches) -> None:
    judged = Transactions._judged

    def agreeing(self: Transactions, asked: Any) -> Any:
        try:
            return judged(self, asked)
        except TransactionSettled:
            return []

    patches.set(Transactions, "_judged", agreeing)


def _halves_in_two_batches(patches: Patches) -> None:
    whole = Transactions._append

    def apart(self: Transactions, halves: Any, outcome: int, copies: Any, reply: Any) -> None:
        for copy in copies:
            whole(self, [], outcome, [copy], lambda *_: None)
        whole(self, halves, outcome, (), reply)

    patches.set(Transactions, "_append", apart)


def _check_counts_unasked(patches: Patches) -> None:
    work = Asking.work

    def alone(self: Asking, now: float, now_ms: int) -> None:
        work(self, now, now_ms)
        ask = Ask(Connection(), "shop", 1, now, now, lambda *_: None)
        found = self._gather(ask, now_ms)
        if found:
            self._hand(ask, found)

    patches.set(Asking, "work", alone)


MUTANTS = (
    Mutant(
        "end_twice", "R76: an end binds from its append", _end_twice, _transactions(),
        alone="SettledOnce",
    ),
    Mutant(
        "end_other_outcome", "R76: another outcome is refused", _end_other_outcome,
        _transactions(), alone="SettledOnce",
    ),
    Mutant(
        "halves_in_two_batches", "R76: an end is one batch", _halves_in_two_batches,
        _transactions(), alone="CommitWhole",
    ),
    Mutant(
        "commit_without_row", "R76: what is delivered is settled in the same batch",
        _halves_in_two_batches, _transactions(), alone="HalfUnseen",
    ),
    Mutant(
        "check_counts_unasked", "R77: a question counts when a producer hears it",
        _check_counts_unasked, _transactions(), alone="QuestionsAreHeard",
    ),
)  # fmt: skip
"""Every mutant of transactions."""

"""What must never happen to transactions.

Asked for every confirmed batch that settles some (`tests.sim.profiles.transactions`), before the
account counts it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.sim.invariants.invariant import Invariant
from tests.sim.profiles.transactions import COMMIT, GIVE_UP

if TYPE_CHECKING:
    from tests.sim.profiles.transactions import SettledBatch


class SettledOnce(Invariant):
    """A half is settled by one row, once; its producer is told what the log says."""

    rules = "R76"

    def settled_batch(self, batch: SettledBatch) -> None:
        account = self.world.transactions
        for number, times in Counter(number for number, _ in batch.rows).items():
            if times > 1 or number in account.outcomes:
                self.fail(f"half {number} is settled again: {batch.rows}")

    def ended(self, name: int, outcome: int) -> None:
        account = self.world.transactions
        for number in account.messages[name]:  # the batch of this very moment comes later
            if account.outcomes.get(number, outcome) != outcome:
                self.fail(f"half {number}: {account.outcomes[number]}, it is told {outcome}")

    def finished(self) -> None:
        account = self.world.transactions
        for name, outcome in account.told.items():
            found = {account.outcomes.get(number) for number in account.messages[name]}
            if found != {outcome}:
                self.fail(f"transaction {name} ended {found}, its producer was told {outcome}")


class CommitWhole(Invariant):
    """The messages of a transaction that are delivered are all of it, in one batch with the rows
    that say so; the same holds of those that are given up."""

    rules = "R61, R76"

    def settled_batch(self, batch: SettledBatch) -> None:
        account = self.world.transactions
        for outcome, copies in ((COMMIT, batch.copies), (GIVE_UP, batch.given_up)):
            settled = [account.halves[number] for number, how in batch.rows if how == outcome]
            if sorted(settled) != sorted(copies):
                self.fail(f"rows settle {sorted(settled)}, copies are of {sorted(copies)}")
        for name in {name for name, _ in batch.copies}:
            whole = sorted(account.halves[number] for number in account.messages[name])
            if sorted(one for one in batch.copies if one[0] == name) != whole:
                self.fail(f"transaction {name} has {whole}, the batch {sorted(batch.copies)}")


class HalfUnseen(Invariant):
    """No message is delivered of which the same batch does not say that it is committed."""

    rules = "R76"

    def settled_batch(self, batch: SettledBatch) -> None:
        account = self.world.transactions
        committed = {account.halves[number] for number, how in batch.rows if how == COMMIT}
        if unseen := set(batch.copies) - committed:
            self.fail(f"{sorted(unseen)} are delivered, and not committed")


class QuestionsAreHeard(Invariant):
    """No more questions are counted than producers waited for."""

    rules = "R77"

    def settled_batch(self, batch: SettledBatch) -> None:
        account = self.world.transactions
        if account.counted > account.asked:
            self.fail(f"{account.counted} questions are counted, {account.asked} were waited for")


OF_TRANSACTIONS = (SettledOnce, CommitWhole, HalfUnseen, QuestionsAreHeard)

"""Each tale ends well with the rules of production in force, and badly without its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.mutants.hunt import MUTANTS, hunt
from tests.sim.mutants.mutant import Mutant
from tests.sim.stories.tales import TALES

pytestmark = pytest.mark.sim

TOLD = [mutant for mutant in MUTANTS if mutant.tale is not None]


@pytest.mark.parametrize("tale", TALES, ids=lambda tale: tale.__name__)
def test_a_tale_ends_well(tale: Callable[[], None]) -> None:
    """No invariant is broken on the way, and the group works in the end."""
    tale()


@pytest.mark.parametrize("mutant", TOLD, ids=lambda mutant: mutant.name)
def test_without_its_rule_it_does_not(mutant: Mutant) -> None:
    """The mutant is killed by its tale."""
    assert hunt(mutant) is not None


def test_every_tale_is_about_a_rule() -> None:
    """Some mutant names it."""
    assert {mutant.tale for mutant in TOLD} == set(TALES)

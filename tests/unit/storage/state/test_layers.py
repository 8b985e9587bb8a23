"""Which groups may be served while changes of them wait for their confirm."""

from __future__ import annotations

from dataclasses import replace

from storage.messaging.groups import Group
from storage.state.group_controls import AlterGroups, CreateGroups, DeleteGroups
from storage.state.layers import Layers

GROUP = Group("g", attempts=3)


def attempts(layers: Layers) -> int | None:
    """What tells the group from another of its name; None: it may not be served."""
    found = layers.standing_group("g")
    return found.attempts if found is not None else None


def test_a_group_stands_from_its_confirm_to_its_deletion() -> None:
    """A creation binds from its confirm, an alteration and a deletion from their append."""
    layers = Layers()
    layers.append(100, CreateGroups((GROUP,)))
    assert attempts(layers) is None
    layers.confirm(100)
    assert attempts(layers) == 3
    layers.append(200, AlterGroups((replace(GROUP, attempts=9),)))
    assert attempts(layers) == 9
    layers.append(300, DeleteGroups(("g",)))
    assert attempts(layers) is None
    layers.append(400, CreateGroups((GROUP,)))
    assert attempts(layers) is None, "it is another group of that name"
    layers.confirm(300)
    assert attempts(layers) is None
    layers.confirm(400)
    assert attempts(layers) == 3


def test_what_is_cut_changes_nothing() -> None:
    """The group stands again as it was."""
    layers = Layers()
    layers.append(100, CreateGroups((GROUP,)))
    layers.confirm(100)
    layers.append(200, DeleteGroups(("g",)))
    layers.cut(100)
    assert attempts(layers) == 3

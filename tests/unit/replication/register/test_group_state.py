"""The state of a group as it travels: odd shapes are refused by name."""

from __future__ import annotations

import pytest

from replication.register.group_state import Fields, GroupState
from tests.dialogues.world import World
from twinlog.errors import ProtocolError


@pytest.mark.parametrize(
    "change",
    [
        {"isr": {"n1": "one"}},
        {"isr": [1]},
        {"replicas": [1]},
        {"reg": {"n1": [1, 2]}},
        {"unclean": [[1]]},
        {"seeded": 1},
        {"replicas": "n1"},
        {"leader": 5},
    ],
)
def test_a_state_of_another_shape_is_refused(world: World, change: dict[str, object]) -> None:
    """By a ProtocolError that names the field."""
    with pytest.raises(ProtocolError):
        GroupState.from_json({**world.register.state.to_json(), **change})


def test_lists_and_maps_from_peers_are_bounded() -> None:
    """A list that is too long and a map with odd keys are refused."""
    take = Fields({"long": [0] * 5, "map": {1: 2}}, "test")
    with pytest.raises(ProtocolError):
        take.items("long", most=4)
    with pytest.raises(ProtocolError):
        take.mapping("map")

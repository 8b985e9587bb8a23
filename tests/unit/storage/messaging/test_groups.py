"""Definitions of groups: what can be one, and how it is read from a record."""

from __future__ import annotations

import pytest

from storage.messaging.groups import (
    FILTER_LENGTH_MAX,
    FILTERS_MAX,
    Group,
    Retry,
    group_fields,
    group_from,
)


def test_delays() -> None:
    """RocketMQ's table, and one that grows; the last and the longest stay."""
    assert [Retry().delay_ms(attempt) for attempt in (0, 1, 2, 16, 17)] == [
        10_000, 10_000, 30_000, 7_200_000, 7_200_000,
    ]  # fmt: skip
    growing = Retry((5_000, 60_000), 2)
    assert [growing.delay_ms(attempt) for attempt in (0, 1, 2, 3, 9, 999)] == [
        5_000, 5_000, 10_000, 20_000, 60_000, 60_000,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "group",
    [
        Group(""),
        Group("a", retry=Retry(())),
        Group("a", retry=Retry((-1,))),
        Group("a", retry=Retry((1, 2), 101)),
        Group("a", filters={f"t{number}": "x" for number in range(FILTERS_MAX + 1)}),
        Group("a", filters={"t": "x" * (FILTER_LENGTH_MAX + 1)}),
    ],
)
def test_what_no_group_can_be(group: Group) -> None:
    """Each limit by itself."""
    assert group.refusal() is not None


def test_a_group_may_begin_to_keep_order() -> None:
    """And end it; a broadcast group stays one."""
    shared, ordered, broadcast = (Group("a", mode) for mode in ("shared", "ordered", "broadcast"))
    assert shared.keeps_mode(ordered)
    assert ordered.keeps_mode(shared)
    assert not shared.keeps_mode(broadcast)
    assert not broadcast.keeps_mode(ordered)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": 7}, {"start": "end"}, {"attempts": True}, {"delays": 7}, {"delays": ["x"]},
        {"filters": []}, {"filters": {"t": 1}}, {"filters": {1: "t"}},
    ],
)  # fmt: skip
def test_a_definition_of_another_shape_is_not_read(wrong: dict[str, object]) -> None:
    """The record is kept for a version that knows more."""
    group = Group("billing", "broadcast", filters={"t": "a = 1"}, dead_letter=False)
    assert group_from(group_fields(group)) == group
    assert group_from({**group_fields(group), **wrong}) is None

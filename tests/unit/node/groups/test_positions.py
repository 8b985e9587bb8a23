"""Positions wait for each other while many come, and only then."""

from __future__ import annotations

from typing import Any

from node.groups.positions import JOIN_SECONDS, JOINED_MAX, OFTEN, OFTEN_SECONDS, Commits


def request(number: int) -> Any:
    """A request that is known by its number."""
    return number, None


def test_few_are_decided_at_once() -> None:
    """Nineteen in a tenth of a second, and one a little later than that."""
    commits = Commits()
    times = [number * OFTEN_SECONDS / (OFTEN - 1) * 1.01 for number in range(60)]
    assert not any(commits.add(request(0), at) for at in times)
    assert commits.take() == []
    assert commits.deadline == float("inf")


def test_many_wait_for_each_other_in_their_order() -> None:
    """From the twentieth on; the first of them says until when."""
    commits = Commits()
    assert not any(commits.add(request(number), 1.0) for number in range(OFTEN - 1))
    assert all(commits.add(request(number), 1.0 + number / 1000) for number in range(5))
    assert commits.deadline == 1.0 + JOIN_SECONDS
    assert len(commits) == 5
    assert [number for number, _ in commits.take()] == [0, 1, 2, 3, 4]
    assert commits.deadline == float("inf")
    assert not commits.add(request(0), 9.0), "it is quiet again"


def test_as_many_as_there_may_be_wait() -> None:
    """The next one is decided at once, and all others with it."""
    commits = Commits()
    added = [commits.add(request(number), 1.0) for number in range(OFTEN + JOINED_MAX)]
    assert added == [False] * (OFTEN - 1) + [True] * JOINED_MAX + [False]

"""How many clients a node takes follows from what the system grants."""

from __future__ import annotations

import resource

import pytest

from node.clients.counts import ClientCounts
from node.clients.limits import (
    QUEUE_DESCRIPTORS_MAX,
    QUEUE_DESCRIPTORS_MIN,
    connections_that_fit,
    queue_descriptors_that_fit,
)


@pytest.mark.parametrize(
    ("limits", "fit"),
    [((1024, 1024), 384), ((1024, 20_000), 4096), ((1024, resource.RLIM_INFINITY), 4096)],
)
def test_three_eighths_of_the_descriptors_at_most_are_clients(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], fit: int
) -> None:
    """The rest is the store's; the process first asks for all it may have."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, wanted: asked.append(wanted))
    assert connections_that_fit(4096) == fit
    assert asked == ([(limits[1], limits[1])] if limits[0] != limits[1] else [])


def test_a_limit_that_is_named_and_not_granted_leaves_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As macOS does."""

    def refuse(which: int, wanted: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert connections_that_fit(4096) == 96


@pytest.mark.parametrize(
    ("hard", "fit"),
    [
        (64, QUEUE_DESCRIPTORS_MIN),
        (1024, 576),
        (20_000, 11_250),
        (1 << 20, QUEUE_DESCRIPTORS_MAX),
        (resource.RLIM_INFINITY, QUEUE_DESCRIPTORS_MAX),
    ],
)
def test_most_descriptors_are_for_queue_files(
    monkeypatch: pytest.MonkeyPatch, hard: int, fit: int
) -> None:
    """With what clients may have, something is left for the log."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (hard, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, wanted: None)
    assert queue_descriptors_that_fit() == fit
    if hard >= 1024 and hard != resource.RLIM_INFINITY:
        assert fit + connections_that_fit(1 << 30) <= hard - hard // 16


def test_counts() -> None:
    """Each kind by itself."""
    counts = ClientCounts()
    counts.answered("send", "stored")
    counts.answered("send", "stored")
    counts.closed("oversized")
    counts.limit_reached("waiting")
    assert counts.answers == {("send", "stored"): 2}
    assert (counts.closings, counts.limits) == ({"oversized": 1}, {"waiting": 1})

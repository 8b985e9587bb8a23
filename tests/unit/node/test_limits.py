"""How many clients a node takes follows from what the system grants."""

from __future__ import annotations

import resource

import pytest

from node.limits import connections_that_fit


@pytest.mark.parametrize(
    ("limits", "fit"),
    [((1024, 1024), 512), ((1024, 20_000), 4096), ((1024, resource.RLIM_INFINITY), 4096)],
)
def test_half_of_the_descriptors_at_most_are_clients(
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
    assert connections_that_fit(4096) == 128

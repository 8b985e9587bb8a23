"""The fuzzer's targets hold for the inputs that fuzzing begins with, whole and damaged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.targets import TARGETS, Target, remove_directory


@pytest.fixture(scope="module", autouse=True)
def tidy() -> Iterator[None]:
    """Remove the directory that one target made."""
    yield
    remove_directory()


@pytest.mark.parametrize("target", TARGETS, ids=lambda one: one.name)
def test_seeds_hold(target: Target) -> None:
    """Whole, cut at any of a few places, with a bit flipped, followed by more."""
    for seed in target.seeds():
        target.read(seed)
        target.read(seed + seed)
        for at in range(0, len(seed), max(len(seed) // 8, 1)):
            target.read(seed[:at])
            flipped = bytearray(seed)
            flipped[at] ^= 0x10
            target.read(bytes(flipped))

"""Engines and a store for the jobs of archives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.stores.sample import Ours
from twinlog.spark.engine.engine import PlainEngine

T = TypeVar("T")


R = TypeVar("R")

PLAIN = {"TWINLOG_SPARK_ENGINE": "plain"}


def ours(root: Path) -> Path:
    """A store of ours over several files."""
    made = Ours()
    for epoch in (1, 2):
        made.open_epoch(epoch)
        for number in range(40):
            made.batch(b"x" * 100, b"%d" % number, topic=f"t{number % 3}", queue=number % 2)
    made.write(root, confirm=made.end)
    return root


class Stopping(PlainEngine):
    """Raises at the n-th segment, before or after its work."""

    def __init__(self, at: int, *, after: bool, error: BaseException) -> None:
        self._at, self._after, self._error = at, after, error

    def spread(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """See `PlainEngine`."""
        found = list[R]()
        for item in items:
            self._at -= 1
            if self._at == 0 and not self._after:
                raise self._error
            found.append(work(item))
            if self._at == 0:
                raise self._error
        return found


class Racing(PlainEngine):
    """Lets another run happen after its first work, once.

    Args:
        other: The other run, as a whole.
    """

    def __init__(self, other: Callable[[], object]) -> None:
        self._other: Callable[[], object] | None = other

    def spread(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """See `PlainEngine`."""
        found = super().spread(work, items)
        other, self._other = self._other, None
        if other is not None:
            other()
        return found

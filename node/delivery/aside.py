"""What the master's own services have done aside: a topic made, records fetched in a thread.

At most one at a time for each service. What a reign began is not told to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from node.clients.lookups import Asked
from node.turns.context import ANSWER_SECONDS
from storage.state.controls import CreateTopic
from storage.state.sections import Outcome, SectionResult
from twinlog.errors import TwinlogError

if TYPE_CHECKING:
    from node.clients.reads import ReadAnswer
    from node.turns.context import Context
    from storage.read.lookups import OffLoopLookup

T = TypeVar("T")
PASSING = frozenset({"disk-full", "busy", "not-ready", "not-enough-in-sync", "not-master"})
"""Refusals of the log that pass by themselves."""


class NoAsker:
    """Who records are fetched for: it never goes away and takes them at once."""

    gone = False
    congested = False

    def sees(self, thing: str, name: str) -> bool:
        """The store may know of everything."""
        return True

    def broke(self, error: Exception) -> None:
        """A defect is not lost."""
        raise error

    async def taken(self) -> None:
        """They are taken already."""

    def read_answered(self, request: int, answer: ReadAnswer) -> None:
        """It reads nothing by itself."""

    def read_failed(self, request: int, error: TwinlogError) -> None:
        """It reads nothing by itself."""


class Aside:
    """See the module.

    Args:
        context: The node.
        fetch: Has cold records fetched in a thread.

    Attributes:
        busy: Whether something is under way.
        reign: Rises with each reign; an answer that belongs to another one is void.
    """

    def __init__(self, context: Context, fetch: Callable[[Asked[Any], Any, Any], None]) -> None:
        self._context = context
        self._fetch = fetch
        self.busy = False
        self.reign = 0

    def clear(self) -> None:
        """A reign has ended, or begins."""
        self.busy = False
        self.reign += 1

    def create(self, now: float, topic: str, then: Callable[[bool], None]) -> None:
        """Create a topic with one queue; ``then`` gets whether it is there."""
        self.busy, reign = True, self.reign

        def reply(results: list[SectionResult], by: str | None) -> None:
            if reign == self.reign:
                self.busy = False
                then(results[0].outcome in (Outcome.STORED, Outcome.DUPLICATE))

        change = CreateTopic(topic, 1, self._context.wall_ms())
        self._context.driver.control(now, change, deadline=now + ANSWER_SECONDS, reply=reply)

    def fetch(
        self,
        look: OffLoopLookup[T],
        judge: Callable[[T | Exception], Any],
        then: Callable[[Any], None],
        failed: Callable[[TwinlogError], None],
    ) -> None:
        """Have records fetched.

        Args:
            look: Fetches them in a thread.
            judge: Says what of it may be used, or raises.
            then: Given that.
            failed: Given the error instead.
        """
        self.busy, reign = True, self.reign

        def finish(outcome: T | Exception) -> tuple[Mapping[str, object], Sequence[memoryview]]:
            found = judge(outcome)
            if reign == self.reign:
                self.busy = False
                then(found)
            return {}, ()

        def done(
            outcome: Mapping[str, object] | TwinlogError, payload: Sequence[memoryview] = ()
        ) -> None:
            if isinstance(outcome, TwinlogError) and reign == self.reign:
                self.busy = False
                failed(outcome)

        self._fetch(Asked(look, finish), NoAsker(), done)

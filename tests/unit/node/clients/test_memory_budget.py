"""Memory of answers: a total, a share for each client, and nobody waits for somebody's share."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from node.clients.memory_budget import Budget


class Line:
    """Takes in tasks of its own and notes who was granted, in order."""

    def __init__(self, budget: Budget, nursery: trio.Nursery) -> None:
        self.budget = budget
        self.granted: list[str] = []
        self.left: list[str] = []
        self._nursery = nursery

    async def take(self, client: str, size: int) -> None:
        """Ask, and let the loop settle."""
        self._nursery.start_soon(self._take, client, size)
        await trio.testing.wait_all_tasks_blocked()

    async def give(self, client: str, size: int) -> None:
        """Give back, and let the loop settle."""
        self.budget.give(client, size)
        await trio.testing.wait_all_tasks_blocked()

    async def _take(self, client: str, size: int) -> None:
        (self.granted if await self.budget.take(client, size) else self.left).append(client)


async def test_who_is_slow_keeps_nobody_else_waiting() -> None:
    """One client holds its share and asks for more; the next one passes it."""
    async with trio.open_nursery() as nursery:
        line = Line(Budget(16, share=4, line_max=99), nursery)
        for _ in range(3):
            await line.take("slow", 4)
        await line.take("other", 4)
        assert line.granted == ["slow", "other"]
        assert (line.budget.held, line.budget.waiting) == (8, 2)
        await line.give("slow", 4)
        assert line.granted == ["slow", "other", "slow"]
        nursery.cancel_scope.cancel()


async def test_memory_is_granted_in_the_order_of_asking() -> None:
    """A large wish is not passed by small ones for ever."""
    async with trio.open_nursery() as nursery:
        line = Line(Budget(10, share=10, line_max=99), nursery)
        await line.take("a", 6)
        await line.take("large", 8)
        await line.take("small", 3)
        assert line.granted == ["a"]
        await line.give("a", 6)
        assert line.granted == ["a", "large"]
        await line.give("large", 8)
        assert line.granted == ["a", "large", "small"]
        await line.give("small", 3)
        assert line.budget.held == 0


async def test_one_that_is_larger_than_all_there_is_comes_alone() -> None:
    """Larger than the share: when its client holds nothing; larger than all: when nobody does."""
    async with trio.open_nursery() as nursery:
        line = Line(Budget(10, share=4, line_max=99), nursery)
        await line.take("a", 8)
        await line.take("b", 50)
        assert line.granted == ["a"]
        await line.give("a", 8)
        assert line.granted == ["a", "b"]
        assert line.budget.held == 50
        line.budget.give("b", 50)


async def test_a_client_that_leaves_is_out_of_the_line() -> None:
    """Its tasks end without memory, and those behind it are looked at again."""
    async with trio.open_nursery() as nursery:
        line = Line(Budget(10, share=10, line_max=99), nursery)
        await line.take("a", 6)
        await line.take("gone", 8)
        await line.take("b", 4)
        line.budget.leave("gone")
        await trio.testing.wait_all_tasks_blocked()
        assert (line.granted, line.left) == (["a", "b"], ["gone"])
        assert line.budget.waiting == 0
        line.budget.leave("nobody")


async def test_a_cancelled_wait_holds_nothing() -> None:
    """Neither in the line nor when it was granted in the same moment."""
    budget = Budget(10, share=10, line_max=99)
    assert await budget.take("a", 8)
    async with trio.open_nursery() as nursery:
        for size in (8, 9):
            nursery.start_soon(budget.take, "b", size)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        budget.give("a", 8)
    assert (budget.held, budget.waiting) == (0, 0)


@pytest.mark.parametrize(("clients", "most"), [(["a"] * 9, 2), (list("abcdefghijk"), 8)])
async def test_the_line_has_a_length_and_one_client_a_quarter_of_it(
    clients: list[str], most: int
) -> None:
    """Whoever finds no place is refused at once."""
    async with trio.open_nursery() as nursery:
        budget = Budget(1, share=1, line_max=8)
        line = Line(budget, nursery)
        await line.take("first", 1)
        for client in clients:
            if budget.has_place(client):
                await line.take(client, 1)
        assert budget.waiting == most
        nursery.cancel_scope.cancel()

"""A node asks the other machines for a batch that is damaged on its disk.

What comes back is what one of them has, damaged on the way at times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from twinlog.errors import TwinlogError

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode


def ask_others(
    node: SimNode, start: int, length: int, delay: float, tell: Callable[..., None]
) -> None:
    """Have the driver told, about as late as two frames and a read take."""
    after = node.world.schedule.after
    after(0.002 + delay, _answer, node, node.incarnation, start, length, tell)


def _answer(
    node: SimNode, incarnation: int, start: int, length: int, tell: Callable[..., None]
) -> None:
    if incarnation != node.incarnation or node.driver is None:
        return
    data = None
    for other in node.world.nodes.values():
        store = other.store if other is not node and other.alive and not other.paused else None
        if data is not None or store is None or not store.start <= start < store.confirm:
            continue
        with contextlib.suppress(TwinlogError, IndexError):
            piece = store.reads.raw(start, length)
            data = node.world.network.damaged(piece.copy()) if piece is not None else None
    tell(node.driver.on_copy, start, data, "a node" if data is not None else "nobody has it")

"""A service whose links are quiet sends the due notice at once, not when its timer looks."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from replication.replica_service import ReplicaService


@pytest.mark.parametrize(
    ("due", "ticks"), [(None, 0), (1000.0, 0), (0.0, 1)], ids=["nothing told", "too early", "due"]
)
async def test_a_pause_sends_the_notice_that_is_due(due: float | None, ticks: int) -> None:
    """And nothing where a batch has carried the confirm offset, or may still carry it."""
    ticked: list[float] = []
    leading = (
        None
        if due is None
        else SimpleNamespace(slaves=SimpleNamespace(notice_at=trio.current_time() + due))
    )

    def tick(now: float) -> None:
        assert leading is not None
        assert now >= leading.slaves.notice_at
        leading.slaves.notice_at = None
        ticked.append(now)

    driver: Any = SimpleNamespace(
        core=SimpleNamespace(leading=leading), on_tick=tick, start=lambda now: None,
        next_deadline=lambda: None, jobs=SimpleNamespace(more=False),
    )  # fmt: skip
    register: Any = SimpleNamespace(run=trio.sleep_forever)
    service = ReplicaService(peers=lambda name: None, tell=lambda *_: None, moved=lambda: None)
    service.attach(driver, register)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run, listener)
            for _ in range(2):
                service.outbox.readiness.turn(service.outbox.readiness.idle)
            nursery.cancel_scope.cancel()
    assert len(ticked) == ticks

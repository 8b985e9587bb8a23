"""What systemd hears of a node."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import trio

from node.observe import systemd


def test_a_state_is_one_datagram(tmp_path: Path) -> None:
    """Without a socket, or with one that is gone, nothing happens."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(path))
        heard.settimeout(60)
        systemd.report("READY=1", {"NOTIFY_SOCKET": str(path)})
        assert heard.recv(100) == b"READY=1"
    systemd.report("READY=1", {"NOTIFY_SOCKET": str(path)})
    systemd.report("READY=1", {})


async def test_signs_of_life_come_three_times_a_period(tmp_path: Path) -> None:
    """None for another process's watchdog."""
    path = tmp_path / "notify"
    own = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}
    await systemd.beat({**own, "WATCHDOG_PID": "1"})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(path))
        heard.settimeout(60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(systemd.beat, own)
            for _ in range(3):
                assert await trio.to_thread.run_sync(heard.recv, 100) == b"WATCHDOG=1"
            nursery.cancel_scope.cancel()

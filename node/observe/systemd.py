"""What a service of systemd with ``Type=notify`` reports: ready, stopping, and that it is alive.

A datagram to the socket that ``NOTIFY_SOCKET`` names; without it nothing is done. With
``WatchdogSec`` systemd ends a process whose event loop does not turn any more.

Sources: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

import trio

BEATS = 3
"""Signs of life in one period of the watchdog: one that is late does not end the node."""


def report(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Report a state, such as ``READY=1``; a socket that cannot take it changes nothing."""
    path = environment.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.sendto(state.encode(), address)


def watchdog_seconds(environment: Mapping[str, str], pid: int) -> float | None:
    """Return the period of the watchdog; None: this process has no watchdog.

    >>> watchdog_seconds({"WATCHDOG_USEC": "30000000"}, 7)
    30.0
    >>> watchdog_seconds({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, 7)
    """
    text, own = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(pid))
    return int(text) / 1e6 if text.isascii() and text.isdigit() and own == str(pid) else None


async def beat(environment: Mapping[str, str] = os.environ) -> None:
    """Report that the event loop turns, until cancelled; returns at once without a watchdog."""
    seconds = watchdog_seconds(environment, os.getpid())
    while seconds is not None:
        report("WATCHDOG=1", environment)
        await trio.sleep(seconds / BEATS)

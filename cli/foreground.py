"""Running a node or the coordinator in this process: the only place that imports the event loop.

``ready`` prints what was found and where it listens, so that the first lines of a process say what
it is.  TERM and Ctrl-C stop in order; a second Ctrl-C stops at once.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from cli.context import Context
from cli.failures import Exit
from cli.fields import table
from cli.supervisor import read_json
from twinlog.units import format_duration

if TYPE_CHECKING:
    from node.config import ClusterConfig


def run_node(config: ClusterConfig, name: str, context: Context) -> int:
    """Run node ``name`` until it is told to stop.

    Raises:
        TwinlogError, OSError: It could not start, with the reason; nothing was changed.
    """
    import trio
    from node.node import run

    own = config.node(name)
    started = time.monotonic()

    def ready() -> None:
        ports = table((read_json(own.data / "twinlog" / "run.json") or {}).get("ports"))
        serves = f"clients {own.address}:{ports.get('clients')}"
        serves += f" · slaves {own.address}:{ports.get('slaves')}"
        if ports.get("http"):
            serves += f" · http://{own.address}:{ports.get('http')}"
        seconds = format_duration(time.monotonic() - started)
        context.printer.note(f"{name} serves {serves}\nready in {seconds}")

    context.printer.note(f"{name} · data {own.data}")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    trio.run(lambda: run(config, name, ready=ready))
    return Exit.OK


def run_coordinator(config: ClusterConfig, context: Context) -> int:
    """Run the coordinator of ``config`` until it is told to stop.

    Raises:
        TwinlogError, OSError: It could not start, with the reason.
    """
    import trio
    from replication.coordinator_service import run

    own = config.coordinator
    context.printer.note(f"coordinator of {config.name} · data {own.data}")
    trio.run(lambda: run(config))
    return Exit.OK

"""Running a node or the coordinator in this process: the only place that imports the event loop.

The first lines of a process say what it found and where it listens.  TERM stops in order and ends
with 0; Ctrl-C stops in order and ends with 130; a second one stops at once.

Not here: what a node is made of (``node.node``, ``replication.coordinator.process``).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from cli.cluster.picture import Pictures
from cli.context import Context
from cli.failures import NOTHING_LEFT, Exit, Interrupted
from cli.fields import flag, table, text, whole
from twinlog.session.routing import Address
from twinlog.units import format_duration, format_size

if TYPE_CHECKING:
    from node.config.config import ClusterConfig


def run_node(
    config: ClusterConfig, name: str, context: Context, overrides: Mapping[str, object]
) -> int:
    """Run node ``name`` until it is stopped; SIGHUP reads the file again, with ``overrides``.

    Raises:
        TwinlogError, OSError: It could not start, with the reason; nothing was changed.
        Interrupted: Ctrl-C stopped it, in order.
    """
    import trio

    from node.config.config import load
    from node.node import run

    own = config.node(name)
    started = time.monotonic()

    def ready(document: Mapping[str, object]) -> None:
        for line in _found(document, own.address):
            context.printer.note(line)
        context.printer.note(f"ready in {format_duration(time.monotonic() - started)}")

    context.printer.note(f"{name} · data {own.data}")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the node listens for it

    def read() -> ClusterConfig:
        return load(config.path, context.environment, overrides)

    picture = Pictures(config, name, context)
    stopped_by = trio.run(lambda: run(config, name, ready=ready, read=read, picture=picture))
    return _ended(stopped_by)


def _found(document: Mapping[str, object], host: str) -> list[str]:
    """What the node found on disk and where it serves, for a person."""
    lines: list[str] = []
    boot = table(document.get("boot")) or document
    segments = whole(boot, "found_segments")
    if segments is not None:
        clean = flag(boot, "clean")
        stop = (
            "nothing acknowledged was lost"
            if clean
            else text(boot, "why_unclean") or "not stopped cleanly"
        )
        cut = whole(boot, "cut_bytes")
        tail = f", cut {format_size(cut)} of a torn tail" if cut else ""
        what = f"{segments} segments" if segments else "an empty directory"
        lines.append(f"  found    {what}, {stop}{tail}")
    ports = table(document.get("ports"))
    clients, slaves, http = (
        Address(host, whole(ports, name) or 0) for name in ("clients", "slaves", "http")
    )
    serves = f"clients {clients} · slaves {slaves}"
    if http.port:
        serves += f" · http://{http}"
    return [*lines, f"  serves   {serves}"]


def _ended(stopped_by: int | None) -> int:
    if stopped_by == signal.SIGINT:
        raise Interrupted(NOTHING_LEFT)
    return Exit.OK


def run_coordinator(config: ClusterConfig, context: Context, number: int = 1) -> int:
    """Run the coordinator of ``config`` until it is stopped; ``number``: which address is its own.

    Raises:
        TwinlogError, OSError: It could not start, with the reason.
        Interrupted: Ctrl-C stopped it, in order.
    """
    import trio

    from node.observe.logs import NodeLog
    from replication.coordinator.process import run

    host = config.coordinator.endpoints[number - 1][0]
    try:
        release = version("twinlog")
    except PackageNotFoundError:
        release = "0"
    log = NodeLog(node="coordinator")

    def ready(port: int) -> None:
        context.printer.note(f"  serves   {Address(host, port)}\nready")

    own = config.coordinator.folder(number)
    context.printer.note(f"coordinator of {config.name} · data {own}")
    if config.coordinator.etcd:
        members = " · ".join(str(Address(*one)) for one in config.coordinator.etcd)
        context.printer.note(f"  register in etcd at {members}; waits for its seat")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that closes is no order to stop
    stopped_by = trio.run(
        lambda: run(config, ready=ready, event=log, version=release, number=number)
    )
    return _ended(stopped_by)

"""A cluster of one command: a temporary directory, its processes, and questions to them.

The demo and the drills have one.  Processes belong to a supervisor that dies with the command
(unless the cluster is kept), so nothing is left running however the command ends.

Waiting has a limit with a name; what was waited for is in the error.  Times are seconds, offsets
bytes.

Not here: what the command does with it (``cli.demo``, ``cli.drill``).
"""

from __future__ import annotations

import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cli.cluster.change import order_failover, plan_failover
from cli.cluster.view import ClusterView, NodeView, look
from cli.config_file import read_config
from cli.context import Context
from cli.dev.supervisor import mark_made
from cli.dev.supervisor_client import SupervisorClient
from cli.failures import Exit, Failure
from twinlog.client.blocking import Client
from twinlog.errors import TwinlogError

if TYPE_CHECKING:
    from node.config.pages import Local

LOOK_SECONDS = 0.05
CLIENT_SECONDS = 30.0


class PrivateCluster:
    """One coordinator and its nodes in a directory of their own.

    Args:
        context: Of the command.
        command: Its name, for the directory and for errors.
    """

    def __init__(self, context: Context, command: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"twinlog-{command}-"))
        self._command = command
        options = replace(context.options, config=self.path, endpoints=(), timeout=None)
        self.context = replace(context, options=options)
        self.processes = SupervisorClient(self.directory)

    @property
    def path(self) -> Path:
        """The cluster file."""
        return self.directory / "cluster.toml"

    def write(self, local: Local) -> None:
        """Write the cluster file; its data lies beside it."""
        from node.config.pages import write_local

        write_local(self.path, replace(local, cluster=self._command, data="."))
        mark_made(self.directory)

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start everything and wait until every process is ready.

        Args:
            environment: Variables for all processes besides our own.
        """
        self.processes.launch(keep=False, environment=environment)

    def keep(self) -> None:
        """Let the processes live on after the command."""
        self.processes.request("keep")

    def close(self, *, remove: bool = True) -> None:
        """Stop every process; harmless when none runs."""
        try:
            self.processes.down()
        finally:
            if remove:
                shutil.rmtree(self.directory, ignore_errors=True)

    def client(self, timeout: float = CLIENT_SECONDS) -> Client:
        """A client that knows every node."""
        return self.context.client(timeout=timeout)

    def look(self) -> ClusterView | None:
        """The cluster as it is now; None when there was no answer."""
        try:
            return look(self.context)
        except (Failure, TwinlogError):
            return None

    def wait(
        self, what: str, done: Callable[[ClusterView], bool], seconds: float = 20.0
    ) -> ClusterView:
        """Look until ``done`` says yes.

        Raises:
            Failure: It did not within ``seconds``; the command cannot tell (exit 2).
        """
        until = time.monotonic() + seconds
        while True:
            view = self.look()
            if view is not None and done(view):
                return view
            if time.monotonic() > until:
                raise Failure(
                    Exit.UNDECIDED,
                    f"the {self._command} waited {seconds:g} s for this: {what}",
                    facts=[] if view is None else [_told(node) for node in view.nodes],
                    hints=(f"what the processes said: {self.processes.own}/*.log",),
                )
            time.sleep(LOOK_SECONDS)

    def wait_in_sync(self, seconds: float = 20.0) -> ClusterView:
        """Wait until there is a master and every node is in sync and in state."""
        return self.wait("a master, and every node in sync", _all_in_sync, seconds)

    def wait_equal(self, seconds: float = 20.0) -> ClusterView:
        """Wait until every node has confirmed everything it has, at the same offset."""
        return self.wait("every node at the same confirmed end", _all_equal, seconds)

    def kill(self, name: str) -> None:
        """SIGKILL a node."""
        self.processes.request("kill", name)

    def restart(self, name: str) -> None:
        """Start a node again and wait until it listens."""
        self.processes.request("start", name)

    def failover(self, dead: str) -> str:
        """Do what an operator does: ask the coordinator for another master.

        Returns:
            The name of the new master; it may not serve yet.
        """
        view = self.wait(
            f"{dead} to be seen as gone", lambda now: not now.node(dead).reachable, 10.0
        )
        plan = plan_failover(view, None)
        order_failover(plan, self.context)
        return plan.target.name

    def data(self) -> dict[str, Path]:
        """The data directory of each node."""
        config = read_config(self.path, {})
        return {node.name: node.data for node in config.nodes}


def _told(node: NodeView) -> str:
    return (
        f"{node.name}: {node.role or '?'} {node.state}, epoch {node.epoch}, end {node.end}, "
        f"confirmed {node.confirm}, in sync {node.in_sync} {node.reason}"
    )


def _all_in_sync(view: ClusterView) -> bool:
    master = view.master
    if master is None or not master.writable:
        return False
    slaves = [node for node in view.nodes if node is not master]
    return all(node.reachable and node.in_sync for node in slaves)


def _all_equal(view: ClusterView) -> bool:
    ends = {(node.end, node.confirm, node.epoch) for node in view.nodes}
    return _all_in_sync(view) and len(ends) == 1 and all(n.end == n.confirm for n in view.nodes)


LOG_FOLDER = "commitlog"
BLOCK = 1 << 20


def first_difference(folders: list[Path], end: int) -> int | None:
    """Compare the logs in data directories byte for byte below ``end``; None: they are equal.

    They may begin with different files, where retention is further in one of them.

    Reads the files themselves, so it trusts no index and no node.

    Returns:
        The log offset of the first difference, which may be a file that one of them lacks.
    """
    each = [
        sorted(path.name for path in (folder / LOG_FOLDER).iterdir() if path.name.isdigit())
        for folder in folders
    ]
    first = max((names[0] for names in each if names), default="")
    for name in each[0]:
        start = int(name)
        if start >= end:
            break
        if name < first:
            continue
        files = [folder / LOG_FOLDER / name for folder in folders]
        if not all(file.exists() for file in files):
            return start
        found = _difference_in(files, min(end - start, files[0].stat().st_size))
        if found is not None:
            return start + found
    return None


def _difference_in(files: list[Path], length: int) -> int | None:
    opened = [file.open("rb") for file in files]
    try:
        at = 0
        while at < length:
            blocks = [file.read(min(BLOCK, length - at)) for file in opened]
            if any(block != blocks[0] for block in blocks):
                for index, values in enumerate(zip(*blocks, strict=False)):
                    if len(set(values)) > 1:
                        return at + index
                return at + min(len(block) for block in blocks)
            if not blocks[0]:
                return at
            at += len(blocks[0])
        return None
    finally:
        for file in opened:
            file.close()


def free_ports(nodes: int) -> int:
    """Return a base port such that the coordinator's and every node's ports are free now.

    Below the range from which the system gives ports to others, which begins at 16,000 or 1,024
    on some machines; there is nothing below the last one, so any port will have to do.
    """
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(given.read_text().split()[0]) if given.exists() else 32_768
    most = first - 100 if first > 12_000 else 30_000
    chance = random.SystemRandom()
    for _ in range(200):
        base = chance.randrange(10_000, min(most, 30_000), 100)
        wanted = [base + k for k in range(10)]  # coordinators and members of etcd
        wanted += [base + 10 * n + k for n in range(1, nodes + 1) for k in range(3)]
        if all(is_free(port) for port in wanted):
            return base
    raise Failure(Exit.UNAVAILABLE, "this machine has no free ports between 10000 and 30000")


def is_free(port: int) -> bool:
    """Whether nothing listens on a port of this machine now."""
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

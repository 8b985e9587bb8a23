"""The cluster file as commands need it: read, with mistakes as one failure, and as addresses.

A port of 0 in the file means that the system chose one; what a running node got stands in its run
file, which lies beside its data on this machine.

Not here: what the keys mean (``node.config.config``), commands about the file (``config``).
"""

from __future__ import annotations

import fcntl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cli.failures import Exit, Failure
from twinlog.run_file import running_port
from twinlog.session.routing import Address

if TYPE_CHECKING:
    from node.config.config import ClusterConfig, ConfigError, NodeConfig

COORDINATOR = "coordinator"
"""The coordinator's name among the processes of a cluster, and the name of its port."""


def read_config(
    path: Path, environment: Mapping[str, str], overrides: Mapping[str, object] | None = None
) -> ClusterConfig:
    """Read and check the cluster file.

    Raises:
        Failure: It has mistakes, all of them listed (exit 78), or it does not exist (exit 66).
    """
    from node.config.config import ConfigError, load

    if not path.exists():
        raise Failure(
            Exit.MISSING, f"there is no {path}", hints=("make one: twinlog config init --local",)
        )
    try:
        return load(path, environment, overrides)
    except ConfigError as error:
        raise mistakes(error) from None


def mistakes(error: ConfigError) -> Failure:
    """Every mistake of the file as one failure."""
    found = [
        Failure(
            Exit.CONFIG,
            f"{mistake.place}  {mistake.text}",
            hints=(mistake.hint,) if mistake.hint else (),
        )
        for mistake in error.mistakes
    ]
    return Failure(found[0].exit, found[0].text, hints=found[0].hints, more=found[1:])


def is_supervised(folder: Path) -> bool:
    """Whether a ``dev up`` owns the processes of this folder now: it holds the lock."""
    try:
        with open(folder / "dev" / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def node_of(config: ClusterConfig, name: str) -> NodeConfig:
    """The node called ``name``.

    Raises:
        Failure: The file has no such node (exit 66).
    """
    from node.config.config import ConfigError

    try:
        return config.node(name)
    except ConfigError as error:
        mistake = error.mistakes[0]
        hints = (mistake.hint,) if mistake.hint else ()
        raise Failure(Exit.MISSING, mistake.text, hints=hints) from None


def node_address(node: NodeConfig) -> str:
    """Where clients reach a node."""
    port = node.listen.clients or running_port(node.data, "clients") or 0
    return str(Address(node.address, port))


def client_endpoints(config: ClusterConfig) -> tuple[str, ...]:
    """The client addresses of all nodes; those whose port is not known are left out."""
    found = [node_address(node) for node in config.nodes]
    known = tuple(address for address in found if not address.endswith(":0"))
    if not known:
        raise Failure(
            Exit.UNAVAILABLE,
            "no node of the cluster file runs on this machine",
            facts=("its ports are 0, so only a running node knows them",),
            hints=("start it: twinlog dev up",),
        )
    return known


def coordinator_endpoints(config: ClusterConfig) -> tuple[str, ...]:
    """Where the coordinator listens, or each of its processes would."""
    found: list[str] = []
    for number, (host, port) in enumerate(config.coordinator.endpoints, 1):
        got = port or running_port(config.coordinator.folder(number), COORDINATOR) or 0
        found.append(str(Address(host, got)))
    return tuple(found)

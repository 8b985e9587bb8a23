"""etcd of ``dev up --coordinator etcd``: three members on this machine, in ``DIR/etcd``.

Their ports follow those of the coordinators: with base port B, member n serves clients on
B + 2 + 2 n and its peers on the port after that.

Not here: what the coordinators keep there (``replication.coordinator.etcd_store``), starting
processes (``supervisor``).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from cli.failures import Exit, Failure

if TYPE_CHECKING:
    from node.config.config import ClusterConfig

MEMBERS = 3
COORDINATORS = 2
PROGRAM = "etcd"


def prepare(directory: Path, base_port: int) -> None:
    """Make the folder of the members, which says that they belong to this cluster.

    Raises:
        Failure: etcd is not installed, a port of the system's choice was asked for, or the
            cluster was made with another coordinator; nothing was changed.
    """
    if shutil.which(PROGRAM) is None:
        raise Failure(
            Exit.MISSING,
            "the program etcd is not installed",
            hints=("install it (Debian: etcd-server)", "or leave --coordinator etcd out"),
        )
    if not base_port:
        raise Failure(Exit.USAGE, "--base-port 0 cannot be used with --coordinator etcd")
    folder = _folder(directory)
    if (directory / "cluster.toml").exists() and not folder.exists():
        raise Failure(
            Exit.USAGE,
            f"{directory} was made with another coordinator",
            hints=("choose another folder with --data",),
        )
    folder.mkdir(parents=True, exist_ok=True)


def addresses(directory: Path, base_port: int) -> tuple[str, ...]:
    """Return the client addresses of the members; none where `prepare` was not called."""
    if not _folder(directory).exists():
        return ()
    return tuple(f"127.0.0.1:{base_port + 2 + 2 * number}" for number in range(1, MEMBERS + 1))


def programs(directory: Path, config: ClusterConfig) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return name, client port and command of each member that this directory owns."""
    folder = _folder(directory)
    if not folder.exists():
        return {}
    ports = [port for _, port in config.coordinator.etcd]
    cluster = ",".join(f"etcd-{n}={_url(port + 1)}" for n, port in enumerate(ports, 1))
    return {
        f"etcd-{number}": (port, _command(folder, number, port, cluster))
        for number, port in enumerate(ports, 1)
    }


def _command(folder: Path, number: int, port: int, cluster: str) -> tuple[str, ...]:
    client, peer = _url(port), _url(port + 1)
    return (
        PROGRAM, "--name", f"etcd-{number}", "--data-dir", str(folder / str(number)),
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", cluster, "--log-level", "warn",
    )  # fmt: skip


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _folder(directory: Path) -> Path:
    return directory / "etcd"

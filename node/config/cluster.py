"""What the cluster file says, checked and frozen: nodes, coordinator, and what holds for all.

Not here: how it is read and checked (``node.config.config``).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from node.clients.limits import Limits
from node.config.sections import (
    AccessSection,
    GroupsSection,
    ListenSection,
    LogSection,
    MessagingSection,
    MetricsSection,
    ReadSection,
    ReplicationSection,
    TlsSection,
    TransactionsSection,
)
from node.config.sources import ConfigError, Mistake, Origin, listed, nearest
from node.config.storage_sections import ArchiveSection, RetentionSection, StorageSection
from twinlog.run_file import running_port
from twinlog.session.tls_files import NOTHING, EtcdShown, Tls, TlsSettings


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Everything one node needs to start. Paths are absolute."""

    name: str
    address: str
    data: Path
    log_folders: tuple[Path, ...]
    log_folders_closed: frozenset[Path]
    role: str
    priority: int
    listen: ListenSection
    storage: StorageSection
    retention: RetentionSection
    replication: ReplicationSection
    read: ReadSection
    limits: Limits
    messaging: MessagingSection
    groups: GroupsSection
    transactions: TransactionsSection
    log: LogSection
    metrics: MetricsSection

    @property
    def bind(self) -> str:
        """The host to listen on: the node's address, or every interface."""
        if self.listen.bind == "address":
            return self.address
        return "::" if ":" in self.address else "0.0.0.0"


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """The coordinator: where it listens and keeps its register."""

    endpoints: tuple[tuple[str, int], ...]
    data: Path
    etcd: tuple[tuple[str, int], ...] = ()
    """Members of etcd that keep the register; empty: a file in ``data``."""
    etcd_shown: EtcdShown = NOTHING
    """What is shown to them."""

    def folder(self, number: int) -> Path:
        """Return the data folder of the process whose address is ``number``, from 1."""
        return self.data if number == 1 else self.data.with_name(f"{self.data.name}-{number}")

    def folders(self) -> dict[str, Path]:
        """Return the data folder of each process by its name; ``coordinator-2`` is the second."""
        last = len(self.endpoints) if self.etcd else 1
        names = {1: "coordinator"} | {n: f"coordinator-{n}" for n in range(2, last + 1)}
        return {name: self.folder(number) for number, name in names.items()}

    def found(self) -> tuple[tuple[str, int], ...]:
        """Return the endpoints as they are now: port 0 is looked up in the run file.

        An endpoint whose coordinator does not run on this machine (yet) is left out.
        """
        found: list[tuple[str, int]] = []
        for number, (host, port) in enumerate(self.endpoints, 1):
            running = port or running_port(self.folder(number), "coordinator")
            if running:
                found.append((host, running))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The whole file, checked. ``origins`` maps ``storage.flush`` or ``n1.storage.flush``."""

    path: Path
    name: str
    id: str | None
    group: str
    nodes: tuple[NodeConfig, ...]
    coordinator: CoordinatorConfig
    log: LogSection
    """For processes other than nodes, mainly the coordinator."""
    archive: ArchiveSection
    """For the archiver; nodes do not read it."""
    in_sync_min: int
    after_power_loss: Literal["wait", "best"]
    failover: Literal["manual", "automatic"]
    family: int
    tls: TlsSection
    access: AccessSection
    origins: Mapping[str, Origin]
    values: Mapping[str, object]
    """Every setting by its dotted name, as `origins` names it; for ``config show``."""

    def node(self, name: str) -> NodeConfig:
        """Return the node called ``name``.

        Raises:
            ConfigError: The file has no such node.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        names = [node.name for node in self.nodes]
        text = f'{self.path.name} has no node named "{name}"; it defines {listed(names, "and")}'
        hint = nearest(name, names) or "add a [[node]] table, or start one of those"
        raise ConfigError([Mistake(self.path.name, None, text, hint)], file=self.path.name)

    def tls_of(self, name: str) -> TlsSettings | None:
        """Return the files of the process ``name``, absolute; None: no TLS.

        ``name`` is a node's, ``coordinator`` (``coordinator-2`` and so on), or ``operator``.
        """
        tls, home = self.tls, self.path.parent
        if tls.authority is None:
            return None
        own, key = (one.replace("{name}", name) for one in (tls.certificate, tls.private_key))
        others = None if tls.clients_authority is None else str(home / tls.clients_authority)
        files = Tls(str(home / tls.authority), str(home / own), str(home / key))
        return TlsSettings(files, tls.clients == "certificate", others)

    @property
    def insecure(self) -> bool:
        """Whether something listens beyond loopback without TLS."""
        hosts = [host for host, _ in self.coordinator.endpoints]
        nodes = [node.bind for node in self.nodes]
        return self.tls.authority is None and not all(map(is_loopback, [*hosts, *nodes]))


def is_loopback(address: str) -> bool:
    """Whether an address, or a host's name, is that of this machine alone."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"

"""``cluster.toml``: one file for the whole cluster, checked as a whole, frozen.

`load` merges four sources (default < file < environment < flag), checks every value, and either
returns a `ClusterConfig` or raises one `ConfigError` that lists **all** mistakes, each with file
and line and, where one is near, the known key or value that was meant. Unknown keys are refused; a
key of a later version is refused with a sentence of its own, because a setting must not be accepted
and then do nothing (docs/decisions/0016).

Sizes are bytes, durations are seconds (float), written in the file as strings with units. Relative
paths are relative to the folder of the file. Not here: the keys with units, limits and reasons
(``node.config.sections``), reading the sources and origins (``node.config.sources``), the generated
file and the reference page (``node.config.pages``).
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeVar

from pydantic import ValidationError

from node.clients.limits import Limits
from node.config.cluster import ClusterConfig, CoordinatorConfig, NodeConfig, is_loopback
from node.config.section import Section
from node.config.sections import (
    GROUP_FACTS,
    NODE_SECTIONS,
    SECTIONS,
    AccessSection,
    ClusterSection,
    CoordinatorSection,
    FailoverSection,
    GroupsSection,
    LimitsSection,
    ListenSection,
    LogSection,
    MessagingSection,
    MetricsSection,
    NodeSection,
    ReadSection,
    ReplicationSection,
    TlsSection,
    TransactionsSection,
    explain,
    keys_of,
    later_sentence,
)
from node.config.sources import (
    DEFAULT,
    ConfigError,
    Document,
    Given,
    Mistake,
    Origin,
    listed,
    nearest,
    read_document,
)
from node.config.storage_sections import ArchiveSection, RetentionSection, StorageSection
from twinlog.session.session import ANY, MASTER, SLAVE
from twinlog.session.tls_files import AUTHORITY, NOTHING, EtcdShown, Tls
from twinlog.units import parse_whole

ROLE_WORDS = frozenset({MASTER, SLAVE, ANY})
"""Words that commands accept where they also accept a node's name, so no node may have one."""

__all__ = ["ClusterConfig", "ConfigError", "CoordinatorConfig", "Mistake", "NodeConfig", "load"]


def load(
    path: Path,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> ClusterConfig:
    """Read and check ``cluster.toml``.

    Args:
        path: The file.
        env: The environment (``os.environ``); None: none.
        overrides: Flags by dotted name, such as ``{"storage.flush": "sync"}``.

    Raises:
        ConfigError: With every mistake found.
    """
    known = {name: keys_of(section) for name, section in SECTIONS.items()}
    document = read_document(path, env or {}, overrides or {}, known)
    return _Check(document, path.resolve()).run()


S = TypeVar("S", bound=Section)
_Layers = list[dict[str, Given]]


class _Check:
    """One pass over a document: checks each section in each scope, then their combinations."""

    def __init__(self, document: Document, path: Path) -> None:
        self.document = document
        self.path = path
        self.origins: dict[str, Origin] = {}
        self.values: dict[str, object] = {}

    def run(self) -> ClusterConfig:
        """Return the checked whole or raise every mistake."""
        self._unknown_sections()
        cluster = self._section("cluster", ClusterSection, None)
        coordinator = self._section("coordinator", CoordinatorSection, None)
        failover = self._section("failover", FailoverSection, None)
        log = self._section("log", LogSection, None)
        archive = self._section("archive", ArchiveSection, None)
        tls = self._section("tls", TlsSection, None)
        access = self._section("access", AccessSection, None)
        for name in NODE_SECTIONS:
            if name != "log":
                self._section(name, SECTIONS[name], None)
        nodes = [self._node(number) for number in range(len(self.document.nodes))]
        if not self.document.nodes:
            hint = "add one: [[node]] with name and address"
            self.document.add(Origin("file", self.path.name), "no [[node]] is defined", hint)
        sound = [node for node in nodes if node is not None]
        endpoints = self._endpoints("endpoints", coordinator.endpoints) if coordinator else ()
        etcd = self._etcd(coordinator) if coordinator else ()
        shown = self._etcd_shown(coordinator) if coordinator else NOTHING
        self._coordinator_reach(endpoints, etcd)
        self._together(sound, self._coordinators(coordinator, endpoints) if coordinator else {})
        in_sync_min = self._in_sync_min(len(nodes))
        if not (cluster and coordinator and log and archive and tls and access):
            raise ConfigError(self.document.mistakes, file=self.path.name)
        if self.document.mistakes:
            raise ConfigError(self.document.mistakes, file=self.path.name)
        home = self.path.parent
        families = {_family(node.address) for node in sound} - {None}
        return ClusterConfig(
            path=self.path,
            name=cluster.name,
            id=cluster.id,
            group=cluster.group,
            nodes=tuple(sound),
            coordinator=CoordinatorConfig(endpoints, home / coordinator.data, etcd, shown),
            log=log,
            archive=archive,
            in_sync_min=in_sync_min,
            after_power_loss=self._after_power_loss(len(nodes)),
            failover=failover.mode if failover else "automatic",
            family=families.pop() or 4 if families else 4,
            tls=tls,
            access=access,
            origins=MappingProxyType(self.origins),
            values=MappingProxyType(self.values),
        )

    def _unknown_sections(self) -> None:
        for scope in (self.document.sections, self.document.outside):
            for name, keys in scope.items():
                if name in SECTIONS:
                    continue
                first = next((given.origin for given in keys.values()), Origin("file"))
                origin = self.document.headers.get(name, first)
                hint = nearest(name, [*SECTIONS, "node"])
                self.document.add(origin, f'there is no section "{name}"', hint)

    def _section(self, name: str, model: type[S], number: int | None) -> S | None:
        """Check one section as the cluster (None) or node ``number`` sees it."""
        layers: _Layers = [self.document.sections.get(name, {})]
        if number is not None:
            layers.append(self.document.node_sections[number].get(name, {}))
        layers.append(self.document.outside.get(name, {}))
        given = {key: value for layer in layers for key, value in layer.items()}
        where = self.document.headers.get(name, Origin("file", self.document.file))
        checked = self._validate(model, given, f"[{name}]", where)
        if checked is not None and number is None:
            self._record(name, checked, given)
        elif checked is not None and number is not None:
            own = {**layers[1]}
            own_given = {key: value for key, value in own.items() if given[key] is value}
            node = self._name(number)
            self._record(f"{node}.{name}", checked, own_given, only_given=True)
        return checked

    def _record(
        self, prefix: str, checked: Section, given: Mapping[str, Given], *, only_given: bool = False
    ) -> None:
        for field, info in type(checked).model_fields.items():
            key = info.alias or field
            if only_given and key not in given:
                continue
            self.values[f"{prefix}.{key}"] = getattr(checked, field)
            self.origins[f"{prefix}.{key}"] = given[key].origin if key in given else DEFAULT

    def _validate(
        self, model: type[S], given: Mapping[str, Given], title: str, where: Origin
    ) -> S | None:
        sound = True
        values: dict[str, object] = {}
        for key, one in given.items():
            later = later_sentence(model, key, one.value)
            if later is not None:
                self.document.add(one.origin, later, "leave the key out for this version")
                sound = False
            elif key:
                values[key] = one.value
        try:
            checked = model.model_validate(values)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                key = str(detail["loc"][0]) if detail["loc"] else ""
                origin = given[key].origin if key in given else where
                written = given[key].value if key in given else None
                text, hint = explain(model, title, key, detail, written)
                self.document.add(origin, text, hint)
            return None
        return checked if sound else None

    def _node(self, number: int) -> NodeConfig | None:
        given = self.document.nodes[number]
        start = given[""].origin
        for name, keys in self.document.node_sections[number].items():
            self._node_section_allowed(name, keys, start)
        node = self._validate(NodeSection, given, "[[node]]", start)
        limits = self._section("limits", LimitsSection, number)
        parts = (
            self._section("listen", ListenSection, number),
            self._section("storage", StorageSection, number),
            self._section("retention", RetentionSection, number),
            self._section("replication", ReplicationSection, number),
            self._section("read", ReadSection, number),
            self._section("messaging", MessagingSection, number),
            self._section("groups", GroupsSection, number),
            self._section("transactions", TransactionsSection, number),
            self._section("log", LogSection, number),
            self._section("metrics", MetricsSection, number),
        )
        (
            listen, storage, retention, replication, read, messaging, groups, transactions, log,
            metrics,
        ) = parts  # fmt: skip
        if node is None or limits is None or listen is None or storage is None:
            return None
        if (
            retention is None or replication is None or read is None or messaging is None
            or groups is None or transactions is None or log is None or metrics is None
        ):  # fmt: skip
            return None
        self._record(node.name, node, given)
        return NodeConfig(
            name=node.name,
            address=node.address,
            data=self.path.parent / (node.data or f"data/{node.name}"),
            log_folders=tuple(self.path.parent / folder for folder in node.log_folders),
            log_folders_closed=frozenset(
                self.path.parent / folder for folder in node.log_folders_closed
            ),
            role=node.role,
            priority=node.priority,
            listen=listen,
            storage=storage,
            retention=retention,
            replication=replication,
            read=read,
            limits=_limits(limits, read),
            messaging=messaging,
            groups=groups,
            transactions=transactions,
            log=log,
            metrics=metrics,
        )

    def _name(self, number: int) -> str:
        given = self.document.nodes[number].get("name")
        return f"node {number + 1}" if given is None else str(given.value)

    def _node_section_allowed(self, name: str, keys: Mapping[str, Given], start: Origin) -> None:
        origin = next((given.origin for given in keys.values()), start)
        if name not in NODE_SECTIONS:
            hint = f"a node may repeat {listed(NODE_SECTIONS)}"
            self.document.add(origin, f"[node.{name}] cannot differ between nodes", hint)
        for key, given in keys.items():
            if f"{name}.{key}" in GROUP_FACTS:
                text = f"{key} is the same for every node of the group"
                self.document.add(given.origin, text, f"move it to [{name}]")

    def _endpoints(self, key: str, endpoints: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
        found: list[tuple[str, int]] = []
        for text in endpoints:
            host, _, port = text.rpartition(":")
            number = parse_whole(port)
            if host and number is not None and number <= 65535:
                found.append((host.strip("[]"), number))
                continue
            origin = self.origins.get(f"coordinator.{key}", DEFAULT)
            self.document.add(origin, f'"{text}" is not HOST:PORT', 'write it like "10.0.0.1:7400"')
        return tuple(found)

    def _etcd(self, coordinator: CoordinatorSection) -> tuple[tuple[str, int], ...]:
        """Return etcd's members; there are any if and only if the register is kept there."""
        found = self._endpoints("etcd", coordinator.etcd)
        if (coordinator.kind == "etcd") is bool(coordinator.etcd):
            return found
        if coordinator.etcd:
            text, hint = 'etcd has addresses, but kind is "embedded"', 'set kind = "etcd"'
        else:
            text, hint = 'kind is "etcd", but no member is named', 'etcd = ["10.0.0.1:2379", ...]'
        self.document.add(self.origins.get("coordinator.kind", DEFAULT), text, hint)
        return ()

    def _etcd_shown(self, coordinator: CoordinatorSection) -> EtcdShown:
        """Return what is shown to etcd; keys that need another one are refused without it."""
        given = {
            "etcd_authority": coordinator.etcd_authority,
            "etcd_certificate": coordinator.etcd_certificate,
            "etcd_private_key": coordinator.etcd_private_key,
            "etcd_user": coordinator.etcd_user,
            "etcd_password_file": coordinator.etcd_password_file,
        }
        for key, other in (
            ("etcd_certificate", "etcd_authority"),
            ("etcd_private_key", "etcd_certificate"),
            ("etcd_user", "etcd_password_file"),
            ("etcd_password_file", "etcd_user"),
        ):
            if given[key] and not given[other]:
                origin = self.origins.get(f"coordinator.{key}", DEFAULT)
                self.document.add(origin, f"{key} needs {other}", f"set {other}")
        if any(given.values()) and not coordinator.etcd:
            key = next(key for key, value in given.items() if value)
            origin = self.origins.get(f"coordinator.{key}", DEFAULT)
            self.document.add(origin, f"{key} is set, and no member of etcd", "leave it out")
        home = self.path.parent
        paths = {key: str(home / value) if value else "" for key, value in given.items()}
        files = (
            Tls(
                paths["etcd_authority"],
                paths["etcd_certificate"] or None,
                paths["etcd_private_key"] or None,
            )
            if given["etcd_authority"]
            else None
        )
        return EtcdShown(files, coordinator.etcd_user or "", paths["etcd_password_file"])

    def _in_sync_min(self, nodes: int) -> int:
        given = self.values.get("replication.in_sync_min")
        if not isinstance(given, int):
            self.values["replication.in_sync_min"] = min(2, max(nodes, 1))
            return min(2, max(nodes, 1))
        if nodes and given > nodes:
            origin = self.origins["replication.in_sync_min"]
            text = f"in_sync_min is {given}, but there {_are(nodes)}: no write would be accepted"
            self.document.add(origin, text, f"use at most {nodes}")
        return given

    def _after_power_loss(self, nodes: int) -> Literal["wait", "best"]:
        given = self.values.get("failover.after_power_loss")
        if given is None:
            given = self.values["failover.after_power_loss"] = "best" if nodes == 1 else "wait"
        return "best" if given == "best" else "wait"

    def _coordinators(
        self, coordinator: CoordinatorSection, endpoints: tuple[tuple[str, int], ...]
    ) -> dict[object, str]:
        """Return what the coordinator uses: its folder and its ports."""
        taken: dict[object, str] = dict.fromkeys(endpoints, "coordinator.endpoints")
        taken["data", _same(self.path.parent / coordinator.data)] = "coordinator.data"
        return taken

    def _together(self, nodes: list[NodeConfig], taken: dict[object, str]) -> None:
        """Check combinations of settings; ``taken``: folders and ports of other processes."""
        names = [node.name for node in nodes]
        for node in nodes:
            if names.count(node.name) > 1:
                text = f'name is "{node.name}" more than once'
                self.document.add(self._origin(node, "name"), text, "every node has its own")
            if node.name in ROLE_WORDS:
                text = f'name is "{node.name}", which commands take for a role'
                self.document.add(self._origin(node, "name"), text, "use another one, such as n1")
            self._once(taken, node, "data", ("data", _same(node.data)), f"data folder {node.data}")
            self._folders(taken, node)
            ports = (node.listen.clients, node.listen.slaves, node.listen.http)
            for key, port in zip(("clients", "slaves", "http"), ports, strict=True):
                if port:
                    what = f"port {port} at {node.address}"
                    self._once(taken, node, f"listen.{key}", (node.address, port), what)
            self._reach(node)
            self._levels(node)
        masters = [node for node in nodes if node.role == "master"]
        for node in masters[1:]:
            text = f'role is "master" twice: {masters[0].name} and {node.name}'
            self.document.add(self._origin(node, "role"), text, 'use "auto" or "slave" for one')
        families = {_family(node.address) for node in nodes} - {None}
        if len(families) > 1:
            text = "IPv4 and IPv6 addresses are mixed; records store one length of host"
            self.document.add(self._origin(nodes[-1], "address"), text, "use one family")

    def _folders(self, taken: dict[object, str], node: NodeConfig) -> None:
        """Check the log folders: each belongs to one store, and one of them takes new files."""
        for number, folder in enumerate(node.log_folders):
            what = f"log folder {folder}"
            self._once(taken, node, f"log_folders[{number}]", ("data", _same(folder)), what)
        every = {node.data / "commitlog", *node.log_folders}
        for folder in sorted(node.log_folders_closed - every):
            text = f"{folder} is closed, but it is not a log folder of {node.name}"
            hint = f"name it under log_folders as well, or name {node.data / 'commitlog'}"
            self.document.add(self._origin(node, "log_folders_closed"), text, hint)
        if every <= node.log_folders_closed:
            text = f"every log folder of {node.name} is closed: there is no place for new files"
            self.document.add(self._origin(node, "log_folders_closed"), text, "leave one out")

    def _once(
        self, taken: dict[object, str], node: NodeConfig, key: str, thing: object, what: str
    ) -> None:
        other = taken.setdefault(thing, f"{node.name}.{key}")
        if other == f"{node.name}.{key}":
            return
        hint = "config init --local writes folders and ports that differ"
        text = f"{what} is already used as {other}"
        self.document.add(self._origin(node, key), text, hint)

    def _reach(self, node: NodeConfig) -> None:
        """Refuse to listen beyond loopback unless that is set explicitly (docs/decisions/0017)."""
        if self._secured or node.listen.insecure or is_loopback(node.bind):
            return
        where = "every interface" if node.listen.bind == "all" else node.address
        text = f"{node.name} would listen on {where}, not only on loopback, without encryption"
        key = "listen.bind" if node.listen.bind == "all" else "address"
        self.document.add(self._origin(node, key), text, _SECURE)

    @property
    def _secured(self) -> bool:
        return self.values.get("tls.authority") is not None

    def _coordinator_reach(
        self, endpoints: tuple[tuple[str, int], ...], etcd: tuple[tuple[str, int], ...]
    ) -> None:
        """Apply the same rule to the coordinator: its port can do more than the nodes'."""
        if self.values.get("listen.insecure") is True:
            return
        away = [host for host, _ in etcd if not is_loopback(host)]
        if away and self.values.get("coordinator.etcd_authority") is None:
            text = f"the coordinator would speak to etcd at {away[0]} without encryption"
            hint = "set etcd_authority, or insecure = true under [listen] in a trusted network"
            self.document.add(self.origins.get("coordinator.etcd", DEFAULT), text, hint)
        if self._secured:
            return
        outside = [host for host, _ in endpoints if not is_loopback(host)]
        if not outside:
            return
        text = f"the coordinator would listen on {outside[0]}, not only on loopback, "
        origin = self.origins.get("coordinator.endpoints", DEFAULT)
        self.document.add(origin, text + "without encryption", _SECURE)

    def _levels(self, node: NodeConfig) -> None:
        """Check that the three levels of a full disk rise."""
        storage = node.storage
        if storage.disk_clean <= storage.disk_force <= storage.disk_refuse:
            return
        text = "disk_clean, disk_force and disk_refuse must rise in this order"
        key = "disk_force" if storage.disk_clean > storage.disk_force else "disk_refuse"
        hint = 'the defaults are "75 %", "85 %" and "90 %"'
        self.document.add(self._origin(node, f"storage.{key}"), text, hint)

    def _origin(self, node: NodeConfig, key: str) -> Origin:
        """Return the origin of a node's value: its own table, its section, or the cluster's."""
        key = key.partition("[")[0]
        for name in (f"{node.name}.{key}", key):
            origin = self.origins.get(name)
            if origin is not None and origin.kind != "default":
                return origin
        return self.origins.get(f"{node.name}.name", DEFAULT)


_SECURE = (
    f'add [tls] with authority = "{AUTHORITY}" and run twinlog certificates init, '
    "or set insecure = true under [listen] if the network is trusted"
)


def _are(nodes: int) -> str:
    return "is 1 node" if nodes == 1 else f"are {nodes} nodes"


def _limits(limits: LimitsSection, read: ReadSection) -> Limits:
    return Limits(
        connections_max=limits.connections_max,
        requests_in_flight_max=limits.requests_in_flight_max,
        response_size_max=limits.response_size_max,
        producers_waiting_max=limits.producers_waiting_max,
        spin_seconds=limits.spin,
        long_poll_seconds_max=read.long_poll,
    )


def _same(folder: Path) -> str:
    """Return the one spelling of a folder that is written in several ways."""
    return os.path.normpath(folder)


def _family(address: str) -> int | None:
    """Return 4 or 6, or None for a host name."""
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return None

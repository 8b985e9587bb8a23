"""Where a drill takes place: a cluster of its own, or one that the user names.

A `Stage` is what faults and workload need of a cluster.  `OwnStage` starts one in a temporary
directory, with proxies before its ports and injected disk faults where the drill needs them, and
removes it afterwards.  `NamedStage` uses a cluster that is there: it gives orders that any operator
gives, and signals only through the supervisor of a ``twinlog dev up``, whose processes these are.

Times are seconds.

Not here: which faults when (``run``), how they are done (``faults``).
"""

from __future__ import annotations

import json
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from cli.cluster.view import ClusterView, look
from cli.config_file import (
    COORDINATOR,
    client_endpoints,
    coordinator_endpoints,
    is_supervised,
    read_config,
)
from cli.context import Context
from cli.dev import etcd_members
from cli.dev.private_cluster import PrivateCluster, free_ports
from cli.dev.supervisor_client import SupervisorClient
from cli.drill.network import CLIENTS, Network
from cli.drill.scenario import Fault, Scenario
from cli.failures import Exit, Failure
from twinlog.client.blocking import Client
from twinlog.errors import TwinlogError
from twinlog.units import MiB

LOOK_SECONDS = 0.5
"""How long one look waits for a node that does not answer."""
PAUSE_SECONDS = 0.05
STOP_SECONDS = 20.0
SEGMENT_SIZE = 4 * MiB
"""One log file of a drill's cluster: small, so that a drill has sealed files."""


class Stage(Protocol):
    """A cluster for a drill.

    Attributes:
        context: Of commands about this cluster.
        nodes: Names of its nodes.
        coordinators, members: Names of the coordinator's processes, and of the members of etcd.
        network: Its proxies; None: without any.
    """

    context: Context
    nodes: tuple[str, ...]
    coordinators: tuple[str, ...]
    members: tuple[str, ...]
    network: Network | None

    @abstractmethod
    def impossible(self, fault: Fault) -> str:
        """Why a fault cannot be done here; empty when it can."""
        ...

    @abstractmethod
    def client(self, timeout: float) -> Client:
        """A client as users have one; close it."""
        ...

    @abstractmethod
    def processes(self) -> SupervisorClient:
        """Who owns the processes; only where signals are possible."""
        ...

    @abstractmethod
    def data(self, name: str) -> Path:
        """The data directory of a process; only where it is the drill's own."""
        ...

    @abstractmethod
    def disk_faults(self, name: str, faults: Mapping[str, object]) -> None:
        """Have a node's disk or clock be wrong in this way; empty: no longer."""
        ...

    @abstractmethod
    def lose_power(self, name: str) -> int:
        """Have the files of a killed process be as after a loss of power; bytes that were lost."""
        ...

    @abstractmethod
    def serving(self) -> str:
        """The coordinator that serves now, else the first one."""
        ...

    @abstractmethod
    def logs(self) -> dict[str, Path]:
        """What each process said, where that is a file here."""
        ...


def quick_look(context: Context) -> ClusterView | None:
    """The cluster as it is now; None when there was no answer within `LOOK_SECONDS`."""
    options = replace(context.options, timeout=LOOK_SECONDS)
    own = replace(context, options=options, started=context.clock())
    try:
        return look(own)
    except (Failure, TwinlogError, OSError):
        return None


def wait_for(
    stage: Stage, what: str, done: Callable[[ClusterView], bool], seconds: float
) -> ClusterView:
    """Look until ``done`` says yes.

    Raises:
        Failure: It did not within ``seconds``; the drill cannot tell (exit 2).
    """
    until = time.monotonic() + seconds
    while True:
        view = quick_look(stage.context)
        if view is not None and done(view):
            return view
        if time.monotonic() > until:
            facts = [] if view is None else [
                f"{node.name}: {node.role or '?'} {node.state}, epoch {node.epoch}, end {node.end}"
                f" {node.reason}" for node in view.nodes
            ]  # fmt: skip
            told = f"the drill waited {seconds:g} s for this: {what}"
            raise Failure(Exit.UNDECIDED, told, facts=facts)
        time.sleep(PAUSE_SECONDS)


def all_in_sync(view: ClusterView) -> bool:
    """Whether there is one master that takes writes, and every other node is in sync with it."""
    master = view.master
    if master is None or not master.writable or not view.coordinator.answers:
        return False
    return view.leader == master.name and all(
        node.reachable and node.in_sync for node in view.nodes if node is not master
    )


def all_equal(view: ClusterView) -> bool:
    """Whether every node has confirmed everything it has, at the same offset."""
    ends = {(node.end, node.confirm, node.epoch) for node in view.nodes}
    return all_in_sync(view) and len(ends) == 1 and all(n.end == n.confirm for n in view.nodes)


class OwnStage:
    """A cluster that lives as long as the drill."""

    def __init__(self, context: Context, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._cluster = PrivateCluster(context, "drill")
        self.context = self._cluster.context
        self.nodes = tuple(f"n{number + 1}" for number in range(scenario.cluster.nodes))
        self.coordinators: tuple[str, ...] = (COORDINATOR,)
        self.members: tuple[str, ...] = ()
        self.network = Network(seed) if scenario.network else None
        self._endpoints: tuple[str, ...] = ()
        self._data: dict[str, Path] = {}

    @property
    def directory(self) -> Path:
        """Everything of the cluster."""
        return self._cluster.directory

    def start(self) -> None:
        """Start everything; returns when every process is ready."""
        from node.config.pages import Local

        shape = self._scenario.cluster
        base = free_ports(shape.nodes)
        local = Local(
            nodes=shape.nodes,
            base_port=base,
            segment_size=SEGMENT_SIZE,
            failover=shape.failover,
        )
        if shape.coordinator == "etcd":
            etcd_members.prepare(self.directory, base)
            etcd = etcd_members.addresses(self.directory, base)
            local = replace(local, etcd=etcd, coordinators=etcd_members.COORDINATORS)
            self.members = tuple(f"etcd-{number}" for number in range(1, len(etcd) + 1))
        self._cluster.write(local)
        if self._scenario.cluster.in_sync_min is not None:
            self._edit("in_sync_min = ", f"in_sync_min = {shape.in_sync_min} #")
        if self.network is not None:
            self._stand_between(self.network, base)
        environment = {
            f"TWINLOG_{key.upper().replace('.', '_')}": value
            for key, value in shape.settings.items()
        }
        if self._scenario.disk:
            environment["TWINLOG_STORAGE_DRILL_FAULTS"] = "true"
        for name, own in shape.node.items():
            text = self._cluster.path.read_text(encoding="utf-8")
            (self.directory / f"{name}.toml").write_text(with_settings(text, own), encoding="utf-8")
        config = read_config(self._cluster.path, {})
        self._data = {node.name: node.data for node in config.nodes} | config.coordinator.folders()
        self.coordinators = tuple(config.coordinator.folders())
        if not self._endpoints:
            self._endpoints = client_endpoints(config)
        self._cluster.start(environment)

    def _edit(self, old: str, new: str) -> None:
        path = self._cluster.path
        text = path.read_text(encoding="utf-8")
        assert old in text, old
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    def _stand_between(self, network: Network, base: int) -> None:
        """Put a proxy before every port, and its own file before the coordinator."""
        path = self._cluster.path
        real = path.read_text(encoding="utf-8")
        (self.directory / f"{COORDINATOR}.toml").write_text(real, encoding="utf-8")
        proxy = network.before(COORDINATOR, base, named=True)
        self._edit(f'endpoints = ["127.0.0.1:{base}"]', f'endpoints = ["127.0.0.1:{proxy}"]')
        endpoints: list[str] = []
        for number, name in enumerate(self.nodes, 1):
            port = base + 10 * number
            clients = network.before(name, port, named=False)
            slaves = network.before(name, port + 1, named=True)
            told = f"clients_advertised = {clients}\nslaves_advertised = {slaves}"
            self._edit(f"slaves = {port + 1}\n", f"slaves = {port + 1}\n{told}\n")
            endpoints.append(f"127.0.0.1:{clients}")
        self._endpoints = tuple(endpoints)
        # The drill's own looks ask the coordinator itself.
        options = replace(self.context.options, config=self.directory / f"{COORDINATOR}.toml")
        self.context = replace(self.context, options=options)
        network.start()

    def close(self, *, remove: bool) -> None:
        """Stop every process; harmless when none runs."""
        try:
            self._cluster.close(remove=remove)
        finally:
            if self.network is not None:
                self.network.close()

    def impossible(self, fault: Fault) -> str:
        """See `Stage`: everything is possible here."""
        return ""

    def client(self, timeout: float) -> Client:
        """See `Stage`."""
        return self.context.open_client(
            self._endpoints, timeout, self.context.named(), self.context.tls()
        )

    def processes(self) -> SupervisorClient:
        """See `Stage`."""
        return self._cluster.processes

    def data(self, name: str) -> Path:
        """See `Stage`."""
        return self._data[name]

    def disk_faults(self, name: str, faults: Mapping[str, object]) -> None:
        """See `Stage`."""
        from storage.disk.drill_faults import PATH

        path = self._data[name] / PATH
        if not faults:
            path.unlink(missing_ok=True)
            return
        aside = path.with_suffix(".new")
        aside.write_text(json.dumps(dict(faults)), encoding="utf-8")
        aside.replace(path)

    def lose_power(self, name: str) -> int:
        """See `Stage`. A coordinator flushes each change before it answers, so it loses nothing."""
        from storage.disk.drill_faults import lose_power

        return lose_power(self._data[name]) if name in self.nodes else 0

    def serving(self) -> str:
        """See `Stage`."""
        return serving_of(self.context)

    def logs(self) -> dict[str, Path]:
        """See `Stage`."""
        own = self._cluster.processes.own
        names = (*self.nodes, *self.coordinators, *self.members)
        return {name: own / f"{name}.log" for name in names}

    def logs_equal(self, below: int) -> int | None:
        """Compare the nodes' logs byte for byte; the first difference, or None."""
        from cli.dev.private_cluster import first_difference

        return first_difference([self._data[name] for name in self.nodes], below)


class NamedStage:
    """A cluster that was there before, and will be there afterwards."""

    network: Network | None = None

    def __init__(self, context: Context) -> None:
        self.context = context
        config = context.config()
        self._folder = config.path.parent
        self.supervised = is_supervised(self._folder)
        self.name = config.name
        self.coordinators = tuple(config.coordinator.folders())
        self.members = tuple(f"etcd-{n}" for n, _ in enumerate(config.coordinator.etcd, 1))
        self.nodes = tuple(node.name for node in config.nodes)

    def impossible(self, fault: Fault) -> str:
        """See `Stage`."""
        if fault.kind.orders or (fault.kind.dev and self.supervised):
            return ""
        if fault.kind.dev:
            return f"{fault.do} needs processes of twinlog dev up, or of the drill's own cluster"
        return f"{fault.do} needs a cluster of the drill's own"

    def breaks(self, scenario: Scenario, topic: str) -> Sequence[str]:
        """What the drill may break or leave here, in words."""
        load = scenario.load
        count = int(load.rate * scenario.seconds)
        told = [f"It makes the topic {topic} and sends about {count} messages of {load.size} bytes "
                "to it; they stay."]  # fmt: skip
        told += [
            f"It does this to the running cluster: {fault.text()}" for fault in scenario.faults
        ]
        if scenario.faults:
            told.append("Producers and readers of this cluster are held up each time.")
        return told

    def client(self, timeout: float) -> Client:
        """See `Stage`."""
        return self.context.client(timeout=timeout)

    def processes(self) -> SupervisorClient:
        """See `Stage`."""
        return SupervisorClient(self._folder)

    def data(self, name: str) -> Path:
        """See `Stage`: its files are not ours."""
        raise Failure(Exit.USAGE, f"the files of {name} are not the drill's own")

    def disk_faults(self, name: str, faults: Mapping[str, object]) -> None:
        """See `Stage`: its disks are not ours."""
        raise Failure(Exit.USAGE, f"the disk of {name} is not the drill's own")

    def lose_power(self, name: str) -> int:
        """See `Stage`: its disks are not ours."""
        raise Failure(Exit.USAGE, f"the disk of {name} is not the drill's own")

    def serving(self) -> str:
        """See `Stage`."""
        return serving_of(self.context)

    def logs(self) -> dict[str, Path]:
        """See `Stage`."""
        found: dict[str, Path] = {}
        if self.supervised:
            own = self.processes().own
            with suppress(OSError):
                found = {path.stem: path for path in own.glob("*.log")}
        return found


def serving_of(context: Context) -> str:
    """The name of the coordinator that answers now; the first one when none does."""
    view = quick_look(context)
    config = context.config()
    names = dict(zip(coordinator_endpoints(config), config.coordinator.folders(), strict=False))
    address = view.coordinator.address if view is not None else ""
    return names.get(address, COORDINATOR)


def with_settings(text: str, settings: Mapping[str, str]) -> str:
    r"""Return a cluster file with other values; text unless they are numbers or true or false.

    >>> with_settings('[a]\nb = "1"  # so\nc = 2\n', {"a.b": "x", "a.d": "3"})
    '[a]\nd = 3\nb = "x"\nc = 2\n'
    """
    for dotted, value in settings.items():
        section, _, key = dotted.rpartition(".")
        plain = value in ("true", "false") or value.isdecimal()
        line = f"{key} = {value}" if plain else f"{key} = {json.dumps(value)}"
        head, mark, rest = text.partition(f"[{section}]\n")
        if not mark:
            text = f"{text}\n[{section}]\n{line}\n"
            continue
        body, follows, tail = rest.partition("\n[")
        new, count = re.subn(rf"^{key} *=.*$", line.replace("\\", r"\\"), body, flags=re.MULTILINE)
        text = head + mark + (new if count else f"{line}\n{body}") + follows + tail
    return text


def stop_process(stage: Stage, name: str) -> None:
    """Stop a process in order and wait until it has ended.

    Raises:
        Failure: It did not within `STOP_SECONDS`; the drill cannot tell (exit 2).
    """
    processes = stage.processes()
    processes.request("stop", name)
    until = time.monotonic() + STOP_SECONDS
    while processes.process(name).get("pid"):
        if time.monotonic() > until:
            raise Failure(Exit.UNDECIDED, f"{name} did not stop within {STOP_SECONDS:g} s")
        time.sleep(PAUSE_SECONDS)


__all__ = ["CLIENTS", "NamedStage", "OwnStage", "Stage", "quick_look", "stop_process", "wait_for"]

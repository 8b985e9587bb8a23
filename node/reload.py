"""SIGHUP: the file is read again; what may change while a node runs is taken, the rest is named.

The log level and the content of the certificates' files are taken. Every other setting that differs
from what the node was started with is named in the event, so that a restart brings no surprise; a
file with mistakes changes nothing.

Not here: the signal (``node.node``), what each setting means (``node.config``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

import trio

from node.config.config import ClusterConfig
from node.config.sources import ConfigError
from node.observe.logs import NodeLog
from replication.net.certificates import Certificates, renew

TAKEN = ("log.level",)
"""Settings that a running node takes, also where they are written for this node alone."""


FIRST_START = (
    "failover.after_power_loss", "failover.mode", "replication.ack", "replication.in_sync_min",
)  # fmt: skip
"""Facts of the group: taken from the file at its first start, later changed by ``cluster set``."""

STARTED_FILE = "twinlog/started.json"
"""Below the data directory: the settings that the node was started with, while it runs."""


def differences(before: ClusterConfig, after: ClusterConfig, name: str) -> list[str]:
    """Return the dotted names of settings that differ for node ``name``, sorted."""
    others = [node.name for one in (before, after) for node in one.nodes if node.name != name]
    return differing(before.values, after.values, others)


def differing(
    before: Mapping[str, object], after: Mapping[str, object], others: Iterable[str]
) -> list[str]:
    """Return the dotted names of settings that differ, sorted, without those of ``others``."""
    prefixes = tuple(f"{name}." for name in others)
    return sorted(
        key
        for key in before.keys() | after.keys()
        if _plain(before.get(key)) != _plain(after.get(key)) and not key.startswith(prefixes)
    )


def _plain(value: object) -> object:
    return json.loads(json.dumps(value, default=str))


def takes_effect(key: str, name: str) -> str:
    """Return what makes a changed setting of node ``name`` count: reload, restart, cluster set."""
    bare = key.removeprefix(f"{name}.")
    if bare in TAKEN:
        return "reload"
    return "cluster set" if bare in FIRST_START else "restart"


def started_with(config: ClusterConfig) -> bytes:
    """Return the content of `STARTED_FILE`."""
    return json.dumps(dict(config.values), default=str).encode()


class Reload:
    """Reads the file again for one node.

    Args:
        started: What the node was started with.
        name: Of the node.
        log: Receives the new level, and the event.
        read: Reads and checks the file, with the options of the command that started the node.
        certificates: Those in use; None: no TLS is spoken.
    """

    def __init__(
        self,
        started: ClusterConfig,
        name: str,
        log: NodeLog,
        read: Callable[[], ClusterConfig],
        certificates: Certificates | None = None,
    ) -> None:
        self._certificates = certificates
        self._started = started
        self._name = name
        self._log = log
        self._read = read

    async def run(self) -> None:
        """Take what may change and name the rest; cancelled, nothing is taken."""
        if self._certificates is not None:
            await renew(self._certificates, self._log)
        try:
            found = await trio.to_thread.run_sync(self._read)
            level = found.node(self._name).log.level
        except (ConfigError, OSError) as error:
            self._log("reload_refused", "error", why=str(error))
            return
        self._log.set_level(level)
        changed = differences(self._started, found, self._name)
        when = {key: takes_effect(key, self._name) for key in changed}
        restart = [key for key in changed if when[key] == "restart"]
        others = [key for key in changed if when[key] not in ("restart", "reload")]
        severity = "warning" if restart or others else "info"
        self._log("reloaded", severity, level_now=level, restart=restart, not_taken=others)

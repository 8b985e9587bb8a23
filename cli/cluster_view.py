"""The cluster as one picture: every node asked at the same time, the coordinator too.

A node that does not answer stays in the picture with ``state: unreachable`` and the reason, and so
does one at whose address another node answers; the list is never shorter than the cluster.  What
only the master knows of a slave (lag, last contact, whether it is in sync) comes from the master's
status.

Lag is three numbers: bytes, age of the oldest record the slave lacks, and time since the last word.
Bytes are log offsets, times are seconds.

Not here: words and tables (``cluster``), changing anything (``cluster_change``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cli.config_file import coordinator_endpoints, node_address
from cli.context import Context, Fields
from cli.failures import Exit, Failure
from cli.fields import flag, number, table, tables, text, texts, whole
from node.status import Asked, cluster_status
from twinlog.errors import TwinlogError
from twinlog.routing import Address
from twinlog.wire import Type

if TYPE_CHECKING:
    from node.config import ClusterConfig

NODE_SECONDS = 2.0
"""How long one node is waited for: a stopped process must not hold up the picture of the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node; ``document`` is its whole status, empty when it did not answer.

    ``refused``: nobody listens at its address, which is more than no answer: it does not run.
    """

    name: str
    address: str
    role: str | None = None
    state: str = "unreachable"
    reason: str = ""
    refused: bool = False
    epoch: int | None = None
    end: int | None = None
    flushed: int | None = None
    confirm: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    contact_seconds: float | None = None
    in_sync: bool | None = None
    version: str | None = None
    uptime_seconds: float | None = None
    document: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)

    @property
    def reachable(self) -> bool:
        """Whether it answered."""
        return bool(self.document)

    @property
    def master(self) -> bool:
        """Whether it says that it is master."""
        return self.role == "master"

    def fields(self) -> Fields:
        """The node as machines see it."""
        return {
            "name": self.name,
            "address": self.address,
            "role": self.role,
            "state": self.state,
            "reason": self.reason or None,
            "epoch": self.epoch,
            "end_offset": self.end,
            "flushed_offset": self.flushed,
            "confirm_offset": self.confirm,
            "lag_bytes": self.lag_bytes,
            "lag_seconds": self.lag_seconds,
            "contact_seconds": self.contact_seconds,
            "in_sync": self.in_sync,
            "twinlog": self.version,
            "uptime_seconds": self.uptime_seconds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Everything that could be learned about the cluster now."""

    name: str
    group: str
    nodes: Sequence[NodeView]
    coordinator_address: str = ""
    coordinator: Mapping[str, object] = field(default_factory=dict[str, object])
    coordinator_reason: str = ""

    @property
    def master(self) -> NodeView | None:
        """The master of the newest epoch that answers; None when there is none."""
        masters = [node for node in self.nodes if node.master and node.reachable]
        return max(masters, key=lambda node: node.epoch or 0, default=None)

    @property
    def epoch(self) -> int:
        """The newest epoch anybody named."""
        known = [node.epoch or 0 for node in self.nodes]
        return max([whole(self.coordinator, "epoch") or 0, *known])

    @property
    def leader(self) -> str | None:
        """Who is master by the coordinator's word, or by the nodes' when it is away."""
        if self.coordinator:
            return text(self.coordinator, "leader")
        return self.master.name if self.master is not None else None

    @property
    def confirm(self) -> int | None:
        """The largest confirm offset anybody reported, bytes."""
        known = [node.confirm for node in self.nodes if node.confirm is not None]
        return max(known, default=None)

    @property
    def in_sync(self) -> list[str]:
        """Names in the in-sync set, the master included."""
        named = table(self.coordinator.get("isr"))
        if named:
            return sorted(named)
        master = self.master
        return texts(master.document.get("in_sync")) if master is not None else []

    @property
    def eligible(self) -> list[str]:
        """Names that have everything confirmed: the in-sync set and those that left it whole."""
        return sorted({*self.in_sync, *table(self.coordinator.get("elr"))})

    def status(self, time: str) -> Fields:
        """The document that everybody who asks for the cluster's status gets."""
        answers = [Asked(n.name, n.document or None, n.reason or None) for n in self.nodes]
        return cluster_status(self.name, time, answers, self.coordinator or None)

    def node(self, name: str) -> NodeView:
        """The node called ``name``.

        Raises:
            Failure: The cluster has none (exit 66).
        """
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise Failure(
            Exit.MISSING,
            f'{self.name} has no node named "{name}"',
            facts=(f"its nodes are {known}",),
        )


_Reply = tuple[Fields, str, bool]
"""Fields, none where nobody answered; then why not, and whether the connection was refused."""


@dataclass(frozen=True, slots=True)
class _Members:
    name: str
    group: str
    addresses: dict[str, str]
    coordinator: tuple[str, ...]


def look(context: Context) -> ClusterView:
    """Ask every node and the coordinator, all at the same time.

    Raises:
        Failure: Nobody answered at all (exit 69).
    """
    members = _members(context)
    seconds = context.left(NODE_SECONDS)
    with ThreadPoolExecutor(max_workers=len(members.addresses) + 1) as pool:
        asked = {
            name: pool.submit(_try, context, address, Type.STATUS, seconds)
            for name, address in members.addresses.items()
        }
        state = pool.submit(_first, context, members.coordinator, Type.CO_READ, seconds)
        answers = {name: _checked(members, name, one.result()) for name, one in asked.items()}
        register, why = state.result()
    if not register and not any(found for found, _, _ in answers.values()):
        addresses = ", ".join(members.addresses.values())
        raise Failure(
            Exit.UNAVAILABLE,
            "no node answered",
            facts=(f"asked {addresses}", *sorted({reason for _, reason, _ in answers.values()})),
            hints=("start a cluster on this machine: twinlog dev up",),
        )
    return ClusterView(
        name=members.name,
        group=members.group,
        nodes=_nodes(members.addresses, answers, register),
        coordinator_address=members.coordinator[0] if members.coordinator else "",
        coordinator=register,
        coordinator_reason=why,
    )


def _checked(members: _Members, name: str, reply: _Reply) -> _Reply:
    """Return a node's reply; none, with the reason, where another node answers at its address."""
    node, cluster = text(reply[0], "node"), text(reply[0], "cluster")
    if node in (None, name) and cluster in (None, members.name):
        return reply
    return {}, f"{members.addresses[name]} is {node or 'a node'} of {cluster or '?'}", False


def coordinator_of(context: Context) -> tuple[str, ...]:
    """The coordinator's addresses, from the cluster file or from a node.

    Raises:
        Failure: Neither knows one (exit 78).
    """
    found = _members(context).coordinator
    if not found:
        raise Failure(
            Exit.CONFIG,
            "nobody says where the coordinator is",
            hints=("name the cluster file: twinlog -c FILE ...",),
        )
    return found


def _members(context: Context) -> _Members:
    if context.options.endpoints:
        return _members_by_asking(context)
    return _members_of(context.config())


def _members_of(config: ClusterConfig) -> _Members:
    addresses = {node.name: node_address(node) for node in config.nodes}
    return _Members(config.name, config.group, addresses, coordinator_endpoints(config))


def _members_by_asking(context: Context) -> _Members:
    reasons: list[str] = []
    for endpoint in context.options.endpoints:
        seconds = context.left(NODE_SECONDS)
        found, why, _ = _try(context, endpoint, Type.METADATA, seconds, {"topics": []})
        if not found:
            reasons.append(why)
            continue
        addresses = {
            text(node, "name") or "?": str(
                Address(text(node, "host") or "?", whole(node, "client_port") or 0)
            )
            for node in tables(found.get("nodes"))
        }
        coordinator = tuple(texts(found.get("coordinator")))
        path = None if coordinator else context.config_path()
        if path is not None:
            coordinator = coordinator_endpoints(context.config())
        return _Members(
            text(found, "cluster") or "?", text(found, "group") or "?", addresses, coordinator
        )
    raise Failure(Exit.UNAVAILABLE, "no node answered", facts=reasons)


def _try(
    context: Context, address: str, kind: int, seconds: float | None, fields: Fields | None = None
) -> _Reply:
    if address.endswith(":0"):
        return {}, "it is not running", True
    try:
        return context.ask(address, kind, fields or {}, seconds), "", False
    except (TwinlogError, OSError) as error:
        return {}, getattr(error, "text", "") or str(error), _is_refused(error)


def _is_refused(error: BaseException | None) -> bool:
    """Whether the connection was refused: then no process listens there."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__
    return error is not None


def _first(
    context: Context, addresses: Sequence[str], kind: int, seconds: float | None
) -> tuple[Fields, str]:
    """The first answer of several addresses of one service."""
    why = "its address is not known"
    for address in addresses:
        found, why, _ = _try(context, address, kind, seconds)
        if found:
            inner = table(found.get("state"))
            return inner or found, ""
    return {}, why


def _nodes(
    addresses: Mapping[str, str],
    answers: Mapping[str, _Reply],
    register: Mapping[str, object],
) -> list[NodeView]:
    masters = [found for found, _, _ in answers.values() if text(found, "role") == "master"]
    nobody: Fields = {}
    master = max(masters, key=lambda found: whole(found, "epoch") or 0, default=nobody)
    peers = {text(peer, "name") or "": peer for peer in tables(master.get("peers"))}
    in_sync = set(texts(master.get("in_sync"))) or set(table(register.get("isr")))
    return [
        _node(name, address, answers[name], peers.get(name, {}), in_sync)
        for name, address in addresses.items()
    ]


def _node(
    name: str,
    address: str,
    answer: _Reply,
    peer: Mapping[str, object],
    in_sync: set[str],
) -> NodeView:
    found, reason, refused = answer
    if not found:
        return NodeView(
            name=name, address=address, reason=reason, refused=refused, in_sync=name in in_sync
        )
    role = text(found, "role")
    mine = role == "master"
    member = flag(peer, "in_sync")
    offsets = table(found.get("offsets"))
    return NodeView(
        name=name,
        address=address,
        role=role,
        state=text(found, "state") or "running",
        reason="; ".join(texts(found.get("reasons"))) or text(peer, "why") or "",
        epoch=whole(found, "epoch"),
        end=whole(offsets, "end"),
        flushed=whole(offsets, "flushed"),
        confirm=whole(offsets, "confirm"),
        lag_bytes=None if mine else whole(peer, "lag_bytes"),
        lag_seconds=None if mine else number(peer, "lag_seconds"),
        contact_seconds=None if mine else number(peer, "contact_seconds"),
        in_sync=None if mine else (name in in_sync if member is None else member),
        version=text(found, "twinlog"),
        uptime_seconds=number(found, "uptime_seconds"),
        document=found,
    )

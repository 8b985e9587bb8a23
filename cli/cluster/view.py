"""The cluster as one picture: every node asked at the same time, the coordinator too.

A node that does not answer stays in the picture with ``state: unreachable`` and the reason, and so
does one at whose address another node answers; the list is never shorter than the cluster.  What
only the master knows of a slave (lag, last contact, whether it is in sync) comes from the master's
status.  Documents are decoded here, once; everything above works with `NodeView` and
`CoordinatorView`.

Lag is three numbers: bytes, age of the oldest record the slave lacks, and time since the last
contact.  Bytes are log offsets, times are seconds.

Not here: what is wrong (``health``), tables (``status``), changing anything (``change``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from cli.config_file import coordinator_endpoints, is_supervised, node_address
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, flag, number, table, tables, text, texts, whole
from twinlog.errors import Denied, TwinlogError, Unavailable
from twinlog.session.routing import Address
from twinlog.session.tls_files import BAD_FILES, NOTHING, REFUSED, EtcdShown
from twinlog.wire.frames import Type

if TYPE_CHECKING:
    from node.config.config import ClusterConfig

ETCD_SECONDS = 1.0
"""How long each member of etcd may take to say whether it has a majority."""

NODE_SECONDS = 2.0
"""How long one node is waited for: a stopped process must not hold up the picture of the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node; ``document`` is its whole status, empty when it did not answer.

    Attributes:
        reason: Why it did not answer, or what is wrong by its own word or its master's.
        refused: Nothing listens at its address, which is more than no answer: it does not run.
        stranger: Who answers at its address instead; empty when it is the node itself.
        admission: Code with which the master refuses writes now; None when it takes them.
        in_sync: None for the master itself.
        round_trip_seconds, unacknowledged_bytes: How long its acknowledgements take, and what its
            master has sent and waits for; None where they are not known.
        slow: Confirmed writes wait for it.
        data: Its data directory, where the cluster file is known.
    """

    name: str
    address: str
    role: str | None = None
    state: str = "unreachable"
    reason: str = ""
    refused: bool = False
    stranger: str = ""
    epoch: int | None = None
    end: int | None = None
    flushed: int | None = None
    confirm: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    contact_seconds: float | None = None
    in_sync: bool | None = None
    round_trip_seconds: float | None = None
    unacknowledged_bytes: int | None = None
    slow: bool = False
    version: str | None = None
    uptime_seconds: float | None = None
    pid: int | None = None
    writable: bool = False
    admission: str | None = None
    quarantined: str | None = None
    repairing: int = 0
    register_id: str = ""
    revision: int | None = None
    in_sync_names: tuple[str, ...] = ()
    in_sync_min: int | None = None
    last_epoch: int | None = None
    data: Path | None = None
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
            "start_offset": whole(table(self.document.get("offsets")), "start"),
            "end_offset": self.end,
            "flushed_offset": self.flushed,
            "confirm_offset": self.confirm,
            "lag_bytes": self.lag_bytes,
            "lag_seconds": self.lag_seconds,
            "contact_seconds": self.contact_seconds,
            "age_seconds": number(self.document, "age_seconds"),
            "round_trip_seconds": self.round_trip_seconds,
            "unacknowledged_bytes": self.unacknowledged_bytes,
            "slow": self.slow,
            "in_sync": True if self.in_sync is None and self.master else self.in_sync,
            "twinlog": self.version,
            "uptime_seconds": self.uptime_seconds,
        }


@dataclass(frozen=True, slots=True)
class HoldView:
    """Who keeps something automatic from happening, why, and since and until when (ms)."""

    who: str
    why: str
    since_ms: int
    until_ms: int

    @classmethod
    def of(cls, value: object) -> Self | None:
        """A hold as the register writes it; None for anything else."""
        match value:
            case [str() as who, str() as why, int() as since_ms, int() as until_ms]:
                return cls(who, why, since_ms, until_ms)
            case _:
                return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorView:
    """The coordinator and the group state it keeps; `answers` is False when it did not answer.

    Attributes:
        reason: Why it did not answer.
        cluster: The cluster it belongs to; None when it did not say.
        leader: The master by its register; None while it names none.
        in_sync, eligible: Names that hold every confirmed record: the in-sync set, and with
            ``eligible`` also those that left it whole.
        members: Names of the full members.
        seeded: The first registration has happened.
        read_only: Why the register refuses every change; None while it does not.
        waiting_for: Members whose reports it awaits before it makes a change.
        state: The whole group state, as the coordinator sent it.
    """

    address: str = ""
    answers: bool = False
    reason: str = ""
    cluster: str | None = None
    register_id: str = ""
    revision: int | None = None
    epoch: int = 0
    leader: str | None = None
    in_sync: tuple[str, ...] = ()
    eligible: tuple[str, ...] = ()
    priorities: Mapping[str, int] = field(default_factory=dict[str, int])
    min_in_sync: int | None = None
    members: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    seeded: bool = True
    read_only: str | None = None
    waiting_for: tuple[str, ...] = ()
    state: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)

    @property
    def pause(self) -> HoldView | None:
        """Who paused automatic failover; None while it is not."""
        return HoldView.of(self.state.get("pause"))

    @property
    def maintenance(self) -> dict[str, HoldView]:
        """Members that are not elected until they are released."""
        held = table(self.state.get("maintenance"))
        found = {name: HoldView.of(value) for name, value in sorted(held.items())}
        return {name: hold for name, hold in found.items() if hold is not None}

    @property
    def suspect(self) -> frozenset[str]:
        """Members that left the sets because they may lack what they acknowledged."""
        return frozenset(table(self.state.get("suspect")))

    @property
    def other_directory(self) -> frozenset[str]:
        """Those of `suspect` that came back with another directory or an old copy of their own."""
        return frozenset(texts(self.state.get("wiped")))


def coordinator_view(
    address: str, state: Mapping[str, object], why: str, own: Mapping[str, object]
) -> CoordinatorView:
    """Decode what the coordinator answered: its group state and its own figures."""
    in_sync = tuple(sorted(table(state.get("isr"))))
    priorities = table(state.get("priorities"))
    return CoordinatorView(
        address=address,
        answers=bool(state),
        reason=why,
        cluster=text(own, "cluster"),
        register_id=text(state, "register_id") or "",
        revision=whole(state, "revision"),
        epoch=whole(state, "epoch") or 0,
        leader=text(state, "leader"),
        in_sync=in_sync,
        eligible=tuple(sorted({*in_sync, *table(state.get("elr"))})),
        priorities={name: whole(priorities, name) or 0 for name in priorities},
        min_in_sync=whole(state, "min_isr"),
        members=tuple(texts(state.get("replicas"))),
        learners=tuple(texts(state.get("learners"))),
        seeded=flag(state, "seeded") is not False,
        read_only=text(own, "read_only"),
        waiting_for=tuple(texts(own.get("waiting_for"))),
        state=state,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Everything that could be learned about the cluster now.

    ``dev`` is None unless ``dev up`` runs these nodes; then the option that names its folder.
    ``etcd_away`` names the members of etcd when no coordinator answers because etcd does not.
    """

    name: str
    group: str
    nodes: Sequence[NodeView]
    coordinator: CoordinatorView = field(default_factory=CoordinatorView)
    dev: str | None = None
    etcd_away: str = ""

    @property
    def master(self) -> NodeView | None:
        """The master of the newest epoch that answers; None: no node says that it is master."""
        masters = [node for node in self.nodes if node.master and node.reachable]
        return max(masters, key=lambda node: node.epoch or 0, default=None)

    @property
    def epoch(self) -> int:
        """The newest epoch that the coordinator or a node named."""
        return max([self.coordinator.epoch, *[node.epoch or 0 for node in self.nodes]])

    @property
    def leader(self) -> str | None:
        """The master by the coordinator's register, or by the nodes when it is away."""
        if self.coordinator.answers:
            return self.coordinator.leader
        return self.master.name if self.master is not None else None

    @property
    def confirm(self) -> int | None:
        """The largest confirm offset any node reported, bytes."""
        return max((n.confirm for n in self.nodes if n.confirm is not None), default=None)

    @property
    def in_sync(self) -> list[str]:
        """Names in the in-sync set, the master included."""
        if self.coordinator.answers:
            return list(self.coordinator.in_sync)
        return list(self.master.in_sync_names) if self.master is not None else []

    @property
    def eligible(self) -> list[str]:
        """Names that hold everything confirmed: the in-sync set and those that left it whole."""
        return sorted({*self.in_sync, *self.coordinator.eligible})

    def is_stranger_to_group(self, name: str) -> bool:
        """Whether the coordinator's register, which has begun, does not know the node."""
        register = self.coordinator
        known = (*register.members, *register.learners)
        return bool(register.members) and name not in known

    def node(self, name: str) -> NodeView:
        """The node called ``name``.

        Raises:
            Failure: The cluster has no such node (exit 66).
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


@dataclass(frozen=True, slots=True)
class _Reply:
    """Fields; empty: ``why`` not. ``refused``: nothing listens; ``denied``: not to who asks."""

    fields: Fields
    why: str = ""
    refused: bool = False
    stranger: str = ""
    denied: Denied | None = None


@dataclass(frozen=True, slots=True)
class _Members:
    name: str
    group: str
    addresses: dict[str, str]
    coordinator: tuple[str, ...]
    data: Mapping[str, Path] = field(default_factory=dict[str, Path])
    dev: str | None = None
    etcd: tuple[tuple[str, int], ...] = ()
    etcd_shown: EtcdShown = NOTHING


def look(context: Context, config: ClusterConfig | None = None) -> ClusterView:
    """Ask every node and the coordinator, all at the same time.

    Args:
        context: How to ask.
        config: The cluster that is asked; None: the one that the call names.

    Raises:
        Failure: No node and no coordinator answered (exit 69).
        Denied: Nodes answer, and none of them tells who asks: their state is not known.
    """
    members = _members(context) if config is None else _members_of(config)
    seconds = context.left(NODE_SECONDS)
    with ThreadPoolExecutor(max_workers=len(members.addresses) + 2) as pool:
        asked = {
            name: pool.submit(_try, context, address, Type.STATUS, seconds)
            for name, address in members.addresses.items()
        }
        state = pool.submit(_first, context, members.coordinator, Type.CO_READ, seconds)
        figures = pool.submit(_first, context, members.coordinator, Type.CO_STATUS, seconds)
        answers = {name: _checked(members, name, one.result()) for name, one in asked.items()}
        (register, why, address), (own, *_) = state.result(), figures.result()
    if text(own, "cluster") not in (None, members.name):
        register, why = {}, "it belongs to another cluster"  # what it holds is not about us
    whys = {reply.why for reply in answers.values()}
    denied = [reply.denied for reply in answers.values() if reply.denied is not None]
    if denied and not any(reply.fields for reply in answers.values()):
        raise denied[0]
    if not register and not any(reply.fields for reply in answers.values()):
        raise Failure(
            Exit.UNAVAILABLE,
            f"no node of {members.name} answers",
            facts=(f"asked {', '.join(members.addresses.values())}", *sorted(whys)),
            hints=(
                "start its processes: twinlog coordinator start, twinlog node start NAME",
                "or start a cluster on this machine: twinlog dev up",
            ),
        )
    return ClusterView(
        name=members.name,
        group=members.group,
        nodes=_nodes(members, answers, register),
        coordinator=coordinator_view(address, register, why, own),
        dev=members.dev,
        etcd_away="" if register else _silent_etcd(members.etcd, members.etcd_shown),
    )


def _silent_etcd(members: tuple[tuple[str, int], ...], shown: EtcdShown) -> str:
    """Return the addresses of etcd's members when none answers a read that a majority confirms.

    Whether they answer is not known where the coordinator's files for etcd are not there.
    """
    files = () if shown.files is None else shown.files.files()
    if not members or not all(map(os.path.exists, files)):
        return ""
    from replication.coordinator.etcd_gateway import EtcdGateway, GatewayRefused

    gateway = EtcdGateway(members, replace(shown, user="", password_file=""), seconds=ETCD_SECONDS)
    try:
        with closing(gateway), suppress(GatewayRefused):  # it answers, to those that it knows
            gateway.ask("kv/range", {"key": "AA=="})
    except TwinlogError:
        return ", ".join(str(Address(*one)) for one in members)
    return ""


def _checked(members: _Members, name: str, reply: _Reply) -> _Reply:
    """Return a node's reply; none, with the reason, where another node answers at its address."""
    node, cluster = text(reply.fields, "node"), text(reply.fields, "cluster")
    if node in (None, name) and cluster in (None, members.name):
        return reply
    stranger = f"{node or 'a node'} of {cluster or '?'}"
    return _Reply({}, f"{members.addresses[name]} is {stranger}", stranger=stranger)


def coordinator_of(context: Context) -> tuple[str, ...]:
    """The coordinator's addresses, from the cluster file or from a node.

    Raises:
        Failure: Neither names one (exit 78).
    """
    found = _members(context).coordinator
    if not found:
        raise Failure(
            Exit.CONFIG,
            "the coordinator's address is unknown",
            hints=("name the cluster file: twinlog -c FILE ...",),
        )
    return found


def ask_coordinator(context: Context, kind: int) -> tuple[Fields, str]:
    """Put a question to the coordinator, at whichever of its addresses answers.

    Returns:
        The fields of the answer, and the address.

    Raises:
        Failure: Its address is unknown (exit 78).
        TwinlogError: As `Context.ask`, of the last address.
    """
    *others, last = coordinator_of(context)
    for address in others:
        with suppress(Unavailable):
            return context.ask(address, kind, {}, context.left(NODE_SECONDS)), address
    return context.ask(last, kind, {}, context.left()), last


def _members(context: Context) -> _Members:
    if context.options.endpoints:
        return _members_by_asking(context)
    return _members_of(context.config())


def _members_of(config: ClusterConfig) -> _Members:
    folder = config.path.parent
    return _Members(
        config.name,
        config.group,
        {node.name: node_address(node) for node in config.nodes},
        coordinator_endpoints(config),
        {node.name: node.data for node in config.nodes},
        _dev_option(folder) if is_supervised(folder) else None,
        config.coordinator.etcd,
        config.coordinator.etcd_shown,
    )


def _dev_option(folder: Path) -> str:
    """The option that names this folder to commands of ``dev``; empty when it is the default."""
    return "" if folder.resolve() == Path("data").resolve() else f" --data {folder}"


def _members_by_asking(context: Context) -> _Members:
    reasons: list[str] = []
    for endpoint in context.options.endpoints:
        seconds = context.left(NODE_SECONDS)
        reply = _try(context, endpoint, Type.METADATA, seconds, {"topics": []})
        found = reply.fields
        if not found:
            reasons.append(reply.why)
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
    raise Failure(
        Exit.UNAVAILABLE,
        "no node answered",
        facts=reasons,
        hints=("check the addresses, or start a cluster on this machine: twinlog dev up",),
    )


def _try(
    context: Context, address: str, kind: int, seconds: float | None, fields: Fields | None = None
) -> _Reply:
    if address.endswith(":0"):
        return _Reply({}, "it is not running", refused=True)
    try:
        return _Reply(context.ask(address, kind, fields or {}, seconds))
    except (TwinlogError, OSError) as error:
        why = getattr(error, "text", "") or str(error)
        if getattr(error, "code", "") in (BAD_FILES, REFUSED):
            why = f"{why}; {getattr(error, 'hint', '')}"
        denied = error if isinstance(error, Denied) else None
        return _Reply({}, why, refused=_is_refused(error), denied=denied)


def _is_refused(error: BaseException | None) -> bool:
    """Whether the connection was refused: then no process listens there."""
    return error is not None and (
        isinstance(error, ConnectionRefusedError) or _is_refused(error.__cause__)
    )


def _first(
    context: Context, addresses: Sequence[str], kind: int, seconds: float | None
) -> tuple[Fields, str, str]:
    """The first answer of several addresses of one service, or why no one answered; the address."""
    why = "its address is not known"
    for address in addresses:
        reply = _try(context, address, kind, seconds)
        if reply.fields:
            return table(reply.fields.get("state")) or reply.fields, "", address
        why = reply.why
    return {}, why, addresses[0] if addresses else ""


def _nodes(
    members: _Members, answers: Mapping[str, _Reply], register: Mapping[str, object]
) -> list[NodeView]:
    masters = [r.fields for r in answers.values() if text(r.fields, "role") == "master"]
    unknown: Fields = {}
    master = max(masters, key=lambda found: whole(found, "epoch") or 0, default=unknown)
    peers = {text(peer, "name") or "": peer for peer in tables(master.get("peers"))}
    in_sync = set(texts(master.get("in_sync"))) or set(table(register.get("isr")))
    return [
        _node(name, members, answers[name], peers.get(name, {}), in_sync)
        for name in members.addresses
    ]


def _node(
    name: str, members: _Members, reply: _Reply, peer: Mapping[str, object], in_sync: set[str]
) -> NodeView:
    """Decode one node's status; what the master says of it stands in ``peer``."""
    found, address, data = reply.fields, members.addresses[name], members.data.get(name)
    if not found:
        return NodeView(
            name=name,
            address=address,
            reason=reply.why,
            refused=reply.refused,
            stranger=reply.stranger,
            in_sync=name in in_sync,
            lag_bytes=whole(peer, "lag_bytes"),
            lag_seconds=number(peer, "lag_seconds"),
            contact_seconds=number(peer, "contact_seconds"),
            data=data,
        )
    mine = text(found, "role") == "master"
    why = "; ".join(texts(found.get("reasons"))) or text(found, "why") or text(peer, "why") or ""
    peer = {} if mine else peer
    member = flag(peer, "in_sync")
    offsets = table(found.get("offsets"))
    epochs = tables(found.get("epochs"))
    register = table(found.get("coordinator"))
    return NodeView(
        name=name,
        address=address,
        role=text(found, "role"),
        state=text(found, "state") or "running",
        reason=why,
        epoch=whole(found, "epoch"),
        end=whole(offsets, "end"),
        flushed=whole(offsets, "flushed"),
        confirm=whole(offsets, "confirm"),
        lag_bytes=whole(peer, "lag_bytes"),
        lag_seconds=number(peer, "lag_seconds"),
        contact_seconds=number(peer, "contact_seconds"),
        in_sync=None if mine else (name in in_sync if member is None else member),
        round_trip_seconds=number(peer, "round_trip_seconds"),
        unacknowledged_bytes=whole(peer, "unacknowledged_bytes"),
        slow=flag(peer, "slow") is True,
        version=text(found, "twinlog"),
        uptime_seconds=number(found, "uptime_seconds"),
        pid=whole(found, "pid"),
        writable=flag(found, "writable") is True,
        admission=text(found, "admission"),
        quarantined=str(found["quarantined"]) if found.get("quarantined") else None,
        repairing=whole(table(found.get("scrub")), "waiting") or 0,
        register_id=text(register, "register_id") or "",
        revision=whole(register, "revision"),
        in_sync_names=tuple(texts(found.get("in_sync"))),
        in_sync_min=whole(found, "in_sync_min"),
        last_epoch=whole(epochs[-1], "epoch") if epochs else whole(found, "epoch"),
        data=data,
        document=found,
    )

"""What a node says about itself: one document, built the same way for everybody who asks.

`node_status` builds the document behind the STATUS frame, ``GET /status`` and ``node show``;
`cluster_status` puts the documents of all nodes together for ``cluster status``. `not_ready` says
why a node may not take traffic, for ``/readyz``.

Documents have ``kind`` and ``version``; within a version fields are only added. None says "does not
apply". Offsets are bytes of the log, ends exclusive; durations are seconds. A number that is not
known is None, never 0. A node that did not answer stays in the list, with ``state`` unreachable and
a reason.

Pure: what it needs arrives as arguments. Not here: asking nodes (``cli``), HTTP
(``node.http_server``), figures for Prometheus (``node.metrics``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

Document = dict[str, object]


class Peer(Protocol):
    """What a node knows of another one; ``replication.view.PeerView``."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def acked(self) -> int | None: ...
    @property
    def flushed(self) -> int | None: ...
    @property
    def lag_bytes(self) -> int | None: ...
    @property
    def lag_seconds(self) -> float | None: ...
    @property
    def contact_seconds(self) -> float | None: ...
    @property
    def in_sync(self) -> bool: ...
    @property
    def state(self) -> str: ...
    @property
    def why(self) -> str | None: ...


class View(Protocol):
    """What a node's driver shows; ``replication.view.RoleView``."""

    @property
    def role(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def leader(self) -> str | None: ...
    @property
    def session(self) -> int: ...
    @property
    def in_sync(self) -> Sequence[str]: ...
    @property
    def min_in_sync(self) -> int: ...
    @property
    def effective(self) -> Sequence[str]: ...
    @property
    def confirm(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def flushed(self) -> int: ...
    @property
    def peers(self) -> Sequence[Peer]: ...
    @property
    def quarantined(self) -> object: ...
    @property
    def admission(self) -> str | None: ...
    @property
    def age_seconds(self) -> float | None: ...
    @property
    def why(self) -> str | None: ...
    @property
    def register_id(self) -> str: ...
    @property
    def revision(self) -> int: ...


class Positions(Protocol):
    """The positions of a store, bytes; ``storage.Store``."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def committed(self) -> int: ...
    @property
    def flushed(self) -> int: ...
    @property
    def checkpointed(self) -> int: ...
    @property
    def confirm(self) -> int: ...
    @property
    def dispatched(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What neither driver nor store knows.

    Attributes:
        node, cluster, group: Names.
        time: Now, RFC 3339 in UTC.
        version: Of twinlog.
        pid: Of the process.
        uptime_seconds: Since the node began to start.
        addresses: Host and ports: host, client_port, slave_port, http_port.
        coordinator_seconds: Since the coordinator last answered; None: never.
        topics: Name to number of queues.
        disk_free, disk_size: Bytes of the file system; None: not known.
        boot: How the store was found at the start (clean, why not, what was cut).
        counters: Plain numbers that only rise, by name.
        staleness_max_seconds: How old a slave's data may be for it to be ready.
        retention: What is kept: limit, what waits and why, what went.
    """

    node: str
    cluster: str
    group: str
    time: str
    version: str
    pid: int
    uptime_seconds: float
    addresses: Mapping[str, object]
    coordinator_seconds: float | None
    topics: Mapping[str, int]
    disk_free: int | None
    disk_size: int | None
    boot: Mapping[str, object]
    counters: Mapping[str, object]
    staleness_max_seconds: float
    retention: Mapping[str, object] = field(default_factory=dict[str, object])


def node_status(view: View, positions: Positions, facts: Facts) -> Document:
    """Return the status document of one node (kind NodeStatus, version 1)."""
    reasons = not_ready(view, facts.staleness_max_seconds)
    master = view.role == "master"
    return {
        "kind": "NodeStatus",
        "version": 1,
        "node": facts.node,
        "cluster": facts.cluster,
        "group": facts.group,
        "time": facts.time,
        "twinlog": facts.version,
        "pid": facts.pid,
        "uptime_seconds": round(facts.uptime_seconds, 3),
        "addresses": dict(facts.addresses),
        "role": view.role,
        "state": view.state,
        "why": view.why,
        "epoch": view.epoch,
        "leader": view.leader,
        "session": view.session,
        "ready": not reasons,
        "reasons": reasons,
        "writable": master and view.admission is None,
        "admission": view.admission,
        "age_seconds": _rounded(view.age_seconds),
        "in_sync": list(view.in_sync) if master else None,
        "in_sync_effective": list(view.effective) if master else None,
        "in_sync_min": view.min_in_sync,
        "quarantined": _quarantine(view.quarantined),
        "offsets": {
            "start": positions.start,
            "checkpointed": positions.checkpointed,
            "flushed": positions.flushed,
            "dispatched": positions.dispatched,
            "confirm": positions.confirm,
            "committed": positions.committed,
            "end": positions.end,
        },
        "peers": [_peer(peer) for peer in view.peers],
        "topics": dict(sorted(facts.topics.items())),
        "retention": dict(facts.retention),
        "disk": {"free_bytes": facts.disk_free, "size_bytes": facts.disk_size},
        "coordinator": {
            "contact_seconds": _rounded(facts.coordinator_seconds),
            "register_id": view.register_id,
            "revision": view.revision,
        },
        "boot": dict(facts.boot),
        "counters": dict(facts.counters),
    }


def not_ready(view: View, staleness_max: float) -> list[str]:
    """Return why the node may not take traffic; empty when it may.

    A master that refuses writes for lack of slaves is ready: it serves reads, and taking it out
    of a load balancer would not bring a slave back. ``/status`` says ``writable``.
    """
    reasons: list[str] = []
    if view.quarantined:
        reasons.append("quarantined: the log is damaged; see twinlog log verify")
    if view.role not in ("master", "slave"):
        reasons.append(f"no role yet: {view.why or view.state}")
    elif view.leader is None:
        reasons.append("no master is known")
    elif view.role == "slave":
        age = view.age_seconds
        if age is None:
            reasons.append(f"has not heard of the master {view.leader} yet")
        elif age > staleness_max:
            reasons.append(f"data is {age:.1f} s old, the limit is {staleness_max:g} s")
    return reasons


def role_matches(
    document: Mapping[str, object],
    role: str,
    *,
    max_lag: int | None = None,
    max_age: float | None = None,
) -> str | None:
    """Return None when the node has ``role`` and is close enough, else why not.

    Args:
        document: A NodeStatus document.
        role: ``master``, ``slave`` or ``readable`` (either, and ready).
        max_lag: Slaves: bytes between confirm and end of its own log at most.
        max_age: Slaves: age of its data at most, seconds.
    """
    own = document["role"]
    if role == "readable":
        return None if document["ready"] else "; ".join(cast("list[str]", document["reasons"]))
    if own != role:
        return f"{document['node']} is {own}"
    if role == "slave":
        age = document["age_seconds"]
        if max_age is not None and (not isinstance(age, (int, float)) or age > max_age):
            return f"data is {age} s old, the limit asked for is {max_age:g} s"
        offsets = cast("Mapping[str, int]", document["offsets"])
        lag = offsets["end"] - offsets["confirm"]
        if max_lag is not None and lag > max_lag:
            return f"{lag} bytes are not confirmed, the limit asked for is {max_lag}"
    return None


def _peer(peer: Peer) -> Document:
    return {
        "name": peer.name,
        "role": peer.role,
        "state": peer.state,
        "why": peer.why,
        "in_sync": peer.in_sync,
        "acked": peer.acked,
        "flushed": peer.flushed,
        "lag_bytes": peer.lag_bytes,
        "lag_seconds": _rounded(peer.lag_seconds),
        "contact_seconds": _rounded(peer.contact_seconds),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _quarantine(found: object) -> object:
    """Return None when sound; what is damaged as text or map otherwise."""
    if not found:
        return None
    return cast("object", found) if isinstance(found, (str, dict)) else str(found)


@dataclass(frozen=True, slots=True)
class Asked:
    """One node's answer to the question for its status: a document, or why there is none."""

    name: str
    document: Mapping[str, object] | None
    why: str | None = None


def cluster_status(
    cluster: str, time: str, answers: Sequence[Asked], state: Mapping[str, object] | None
) -> Document:
    """Return the status of a cluster (kind ClusterStatus, version 1).

    Args:
        cluster: Its name.
        time: Now, RFC 3339 in UTC.
        answers: One for each node of the file, in its order.
        state: The coordinator's group state; None: nobody answered, or it is empty.

    ``health`` is ``healthy`` (a master that takes writes, everybody in sync), ``degraded`` (it
    takes writes, somebody is missing) or ``unavailable`` (nobody takes writes).
    """
    best = _newest_master(answers)
    master = None if best is None else str(best["node"])
    epoch = best["epoch"] if best is not None else (state["epoch"] if state else None)
    peers = _peers_of(best)
    nodes = [_node_row(answer, best, peers) for answer in answers]
    reasons = _cluster_reasons(best, nodes, state)
    writable = best is not None and best["writable"] is True
    health = "unavailable" if not writable else "degraded" if reasons else "healthy"
    offsets: Mapping[str, object] = {}
    if best is not None:
        offsets = cast("Mapping[str, object]", best["offsets"])
    seen: Mapping[str, object] = state or {}
    return {
        "kind": "ClusterStatus",
        "version": 1,
        "cluster": cluster,
        "time": time,
        "health": health,
        "reasons": reasons,
        "epoch": epoch,
        "master": master,
        "confirm_offset": offsets.get("confirm"),
        "in_sync_min": best["in_sync_min"] if best is not None else seen.get("min_isr"),
        "coordinator": "answers" if state is not None else "unreachable",
        "nodes": nodes,
    }


def _newest_master(answers: Sequence[Asked]) -> Mapping[str, object] | None:
    """Return the document of the master with the largest epoch: an older one is deposed."""
    masters = [a.document for a in answers if a.document and a.document.get("role") == "master"]
    return max(masters, key=lambda document: cast("int", document["epoch"]), default=None)


def _peers_of(master: Mapping[str, object] | None) -> dict[str, Mapping[str, object]]:
    rows = cast("Sequence[Mapping[str, object]]", master["peers"]) if master is not None else ()
    return {str(row["name"]): row for row in rows}


def _node_row(
    answer: Asked,
    master: Mapping[str, object] | None,
    peers: Mapping[str, Mapping[str, object]],
) -> Document:
    document, seen = answer.document, peers.get(answer.name, {})
    in_sync = cast("Sequence[str]", (master or {}).get("in_sync") or ())
    leads = master is not None and answer.name == master["node"]
    row: Document = {
        "name": answer.name,
        "role": None,
        "state": "unreachable",
        "epoch": None,
        "end_offset": None,
        "lag_bytes": None if leads else seen.get("lag_bytes"),
        "lag_seconds": None if leads else seen.get("lag_seconds"),
        "contact_seconds": None if leads else seen.get("contact_seconds"),
        "in_sync": None if master is None else answer.name in in_sync,
        "reason": answer.why,
    }
    if document is not None:
        offsets = cast("Mapping[str, object]", document["offsets"])
        reasons = cast("Sequence[str]", document["reasons"])
        row["role"] = document["role"]
        row["state"] = document["state"]
        row["epoch"] = document["epoch"]
        row["end_offset"] = offsets["end"]
        row["reason"] = "; ".join(reasons) or document["why"] or seen.get("why")
    return row


def _cluster_reasons(
    master: Mapping[str, object] | None,
    nodes: Sequence[Mapping[str, object]],
    state: Mapping[str, object] | None,
) -> list[str]:
    reasons: list[str] = []
    if master is None:
        reasons.append("no node is master")
    elif master["admission"] is not None:
        reasons.append(f"{master['node']} refuses writes: {master['admission']}")
    for node in nodes:
        if node["state"] == "unreachable":
            reasons.append(f"{node['name']} is unreachable: {node['reason']}")
        elif master is not None and not node["in_sync"]:
            why = f": {node['reason']}" if node["reason"] else ""
            reasons.append(f"{node['name']} is not in sync{why}")
    if state is None:
        reasons.append("the coordinator does not answer: roles cannot change")
    return reasons

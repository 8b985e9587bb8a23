"""The status of a node, as a document.

`node_status` builds the document behind the STATUS frame, ``GET /status`` and ``node show``;
``cluster status`` combines the documents of all nodes. `not_ready` says why a node may not take
traffic, for ``/readyz``.

Documents have ``kind`` and ``version``; within a version fields are only added. None means "does
not apply" or "unknown"; an unknown number is never 0. Offsets are bytes of the log, ends exclusive;
durations are seconds.

Pure: everything arrives as arguments. Not here: asking nodes (``cli``), HTTP
(``node.observe.http_server``), the counters in the document (``node.observe.metrics``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from twinlog.levels import LEVEL

if TYPE_CHECKING:
    from replication.core.view import PeerView, RoleView

Document = dict[str, object]


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts for the status document, in addition to the view of the role.

    Attributes:
        node, cluster, group: Names.
        time: Now, RFC 3339 in UTC.
        version: Version of twinlog.
        pid: Process id.
        uptime_seconds: Time since the node began to start.
        addresses: Host and ports: host, client_port, slave_port, http_port.
        offsets: Positions in the log, bytes, by name.
        coordinator_seconds: Time since the coordinator last answered; None: never.
        topics: How many confirmed topics there are.
        disk_free, disk_size: Bytes of the file system; None: unknown.
        folders_passed_over: Log folders that take no files though they should, and why.
        boot: State of the store at the start (clean or why not, what was cut).
        unlocked_bytes: Memory that should be locked but may not be.
        staleness_max_seconds: Largest age of a slave's data with which it counts as ready.
        retention: See ``replication.driver.retention``; empty: retention is off.
        scrub: See ``replication.driver.scrubbing``.
        insecure: Whether a port of the cluster is open beyond loopback without TLS.
        certificate_until: When this process's certificate expires, seconds since 1970; None: no
            TLS.
    """

    node: str
    cluster: str
    group: str
    time: str
    version: str
    pid: int
    uptime_seconds: float
    addresses: Mapping[str, object]
    offsets: Mapping[str, int]
    coordinator_seconds: float | None
    topics: int
    disk_free: int | None
    disk_size: int | None
    boot: Mapping[str, object]
    staleness_max_seconds: float
    unlocked_bytes: int = 0
    folders_passed_over: Mapping[str, str] = field(default_factory=dict[str, str])
    retention: Mapping[str, object] = field(default_factory=dict[str, object])
    scrub: Mapping[str, object] = field(default_factory=dict[str, object])
    insecure: bool = False
    certificate_until: float | None = None


def node_status(view: RoleView, facts: Facts, counters: Mapping[str, object]) -> Document:
    """Return the status document of one node (kind NodeStatus, version 1).

    Its size does not depend on what users store: topics are counted, not listed.
    """
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
        "level": LEVEL,
        "pid": facts.pid,
        "uptime_seconds": round(facts.uptime_seconds, 3),
        "addresses": dict(facts.addresses),
        "insecure": facts.insecure,
        "certificate_until": facts.certificate_until,
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
        "quarantined": view.quarantined or None,
        "quality": view.quality,
        "offsets": dict(facts.offsets),
        "peers": [_peer(peer) for peer in view.peers],
        "topics": facts.topics,
        "retention": dict(facts.retention),
        "scrub": dict(facts.scrub),
        "disk": {
            "free_bytes": facts.disk_free,
            "size_bytes": facts.disk_size,
            "folders_passed_over": dict(facts.folders_passed_over),
        },
        "coordinator": {
            "contact_seconds": _rounded(facts.coordinator_seconds),
            "register_id": view.register_id,
            "revision": view.revision,
        },
        "boot": dict(facts.boot),
        "counters": dict(counters),
    }


def not_ready(view: RoleView, staleness_max: float) -> list[str]:
    """Return why the node may not take traffic; empty if it may.

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
            reasons.append(f"has not heard from the master {view.leader} yet")
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
    """Return None if the node has ``role`` and is current enough, else why not.

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


def _peer(peer: PeerView) -> Document:
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
        "round_trip_seconds": _rounded(peer.round_trip_seconds, 6),
        "unacknowledged_bytes": peer.unacknowledged_bytes,
        "slow": peer.slow,
    }


def _rounded(seconds: float | None, digits: int = 3) -> float | None:
    return None if seconds is None else round(seconds, digits)

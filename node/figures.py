"""A node's present numbers under the names of ``node.metrics``.

`figures` reads the status document and the counters that the parts keep, and returns what one
scrape shows. Pure. A figure that does not apply now (the lag of a slave on a slave) is left out;
one that is not known is left out, too, never shown as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from node.metrics import ROLES

Labels = tuple[str, ...]
Rows = dict[Labels, float]


def _none() -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, slots=True)
class Counters:
    """What only rises, as the parts count it, and three numbers of now.

    Attributes:
        answers: Answers to clients by (kind, outcome).
        closings, limits: By kind of frame error (or what else ended it), by name of the limit.
        appended, appended_bytes, read, read_bytes: By topic.
        links_closed: Links between nodes closed for a frame, by kind.
        events: Log events by (name, level).
        accepted: Client connections since the start.
        connections, in_flight, long_polls: Now.
        cold_bytes, cold_waiting: Memory of copied answers, and how many wait for it, now.
        unlocked: Bytes of memory that should be locked and may not be.
    """

    answers: Mapping[tuple[str, str], int]
    closings: Mapping[str, int]
    limits: Mapping[str, int]
    accepted: int
    connections: int
    in_flight: int
    long_polls: int
    unlocked: int = 0
    cold_bytes: int = 0
    cold_waiting: int = 0
    events: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    appended: Mapping[str, int] = field(default_factory=_none)
    appended_bytes: Mapping[str, int] = field(default_factory=_none)
    read: Mapping[str, int] = field(default_factory=_none)
    read_bytes: Mapping[str, int] = field(default_factory=_none)
    links_closed: Mapping[str, int] = field(default_factory=_none)


def figures(
    document: Mapping[str, object], counters: Counters, *, python: str
) -> dict[str, float | Mapping[Labels, float]]:
    """Return every present figure.

    Args:
        document: A NodeStatus document (``node.status``).
        counters: See `Counters`.
        python: Version of Python.
    """
    role = str(document["role"])
    found: dict[str, float | Mapping[Labels, float]] = {
        "twinlog_build": {(str(document["twinlog"]), python): 1.0},
        "twinlog_node_role": {(name,): float(name == role) for name in ROLES},
        "twinlog_node_epoch": _number(document["epoch"]) or 0.0,
        "twinlog_writable": float(document["writable"] is True),
        "twinlog_ready": float(document["ready"] is True),
        **_offsets(cast("Mapping[str, int]", document["offsets"])),
        **_counted(counters),
    }
    _put(found, "twinlog_disk_free_bytes", _of(document, "disk", "free_bytes"))
    _put(found, "twinlog_disk_size_bytes", _of(document, "disk", "size_bytes"))
    found |= _retention(cast("Mapping[str, object]", document.get("retention") or {}))
    contact = _of(document, "coordinator", "contact_seconds")
    _put(found, "twinlog_coordinator_contact_age_seconds", contact)
    if role == "master":
        found |= _replication(document)
    return found


def _offsets(offsets: Mapping[str, int]) -> dict[str, float | Mapping[Labels, float]]:
    found: dict[str, float | Mapping[Labels, float]] = {
        f"twinlog_log_{name}_offset_bytes": offsets[name]
        for name in ("start", "end", "flushed", "confirm", "dispatched")
    }
    found["twinlog_log_flush_behind_bytes"] = offsets["end"] - offsets["flushed"]
    found["twinlog_log_dispatch_behind_bytes"] = max(0, offsets["confirm"] - offsets["dispatched"])
    found["twinlog_log_size_bytes"] = offsets["end"] - offsets["start"]
    return found


def _retention(kept: Mapping[str, object]) -> dict[str, float | Mapping[Labels, float]]:
    """Return what retention did; nothing of a document from before it."""
    found: dict[str, float | Mapping[Labels, float]] = {}
    if kept:
        found["twinlog_retention_files"] = _by(cast("Mapping[str, int]", kept["deleted"]))
        for name in ("leaving", "forced", "overtaken"):
            metric = "leaving_files" if name == "leaving" else name
            _put(found, f"twinlog_retention_{metric}", _number(kept[name]))
        _put(found, "twinlog_disk_used_ratio", _number(kept["disk_used"]))
        _put(found, "twinlog_disk_refuses", _number(kept["refuses"]))
    return found


def _counted(counters: Counters) -> dict[str, float | Mapping[Labels, float]]:
    return {
        "twinlog_requests": {key: float(n) for key, n in counters.answers.items()},
        "twinlog_connections_closed": _by(counters.closings),
        "twinlog_limit_reached": _by(counters.limits),
        "twinlog_records_appended": _by(counters.appended),
        "twinlog_appended_bytes": _by(counters.appended_bytes),
        "twinlog_records_read": _by(counters.read),
        "twinlog_read_bytes": _by(counters.read_bytes),
        "twinlog_replication_links_closed": _by(counters.links_closed),
        "twinlog_events": {key: float(n) for key, n in counters.events.items()},
        "twinlog_connections_accepted": counters.accepted,
        "twinlog_connections": counters.connections,
        "twinlog_requests_in_flight": counters.in_flight,
        "twinlog_long_polls_waiting": counters.long_polls,
        "twinlog_memory_unlocked_bytes": counters.unlocked,
        "twinlog_cold_answers_bytes": counters.cold_bytes,
        "twinlog_cold_answers_waiting": counters.cold_waiting,
    }


def _replication(document: Mapping[str, object]) -> dict[str, float | Mapping[Labels, float]]:
    """Return what only a master knows: its slaves."""
    peers = cast("Sequence[Mapping[str, object]]", document["peers"])
    in_sync = cast("Sequence[str]", document["in_sync"] or ())
    return {
        "twinlog_replication_lag_bytes": _peers(peers, "lag_bytes"),
        "twinlog_replication_lag_seconds": _peers(peers, "lag_seconds"),
        "twinlog_replication_contact_age_seconds": _peers(peers, "contact_seconds"),
        "twinlog_replication_in_sync": {
            (str(peer["name"]),): float(peer["in_sync"] is True) for peer in peers
        },
        "twinlog_replication_in_sync_nodes": len(in_sync),
        "twinlog_replication_in_sync_min": _number(document["in_sync_min"]) or 0.0,
    }


def _peers(peers: Sequence[Mapping[str, object]], key: str) -> Rows:
    numbers = {(str(peer["name"]),): _number(peer[key]) for peer in peers}
    return {name: number for name, number in numbers.items() if number is not None}


def _by(counts: Mapping[str, int]) -> Rows:
    return {(name,): float(count) for name, count in counts.items()}


def _of(document: Mapping[str, object], section: str, key: str) -> float | None:
    return _number(cast("Mapping[str, object]", document[section])[key])


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _put(found: dict[str, float | Mapping[Labels, float]], name: str, number: float | None) -> None:
    if number is not None:
        found[name] = number

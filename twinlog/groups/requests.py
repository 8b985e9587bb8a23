"""What a member asks a node, what it counts, and the error of an outcome that changed nothing.

Pure. Not here: when something is asked (``twinlog.groups.core``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twinlog.errors import LeaseLost
from twinlog.groups.outcomes import Row
from twinlog.groups.settings import ANSWER_BYTES, SESSION_SECONDS, GroupSettings
from twinlog.wire.types import Type


@dataclass(slots=True)
class Counts:
    """What a member has done so far; numbers only grow.

    Attributes:
        handed: Messages that the body was given.
        unused: Messages that were fetched ahead and given back.
        settled: Messages whose outcome is confirmed.
        lost: Messages whose lease was over when their outcome came.
        joined: How often it joined under a new number.
    """

    handed: int = 0
    unused: int = 0
    settled: int = 0
    lost: int = 0
    joined: int = 0


@dataclass(slots=True)
class Request:
    """One request: its type, its fields, and what the core must know when it is answered."""

    type: Type
    fields: dict[str, object]
    wait: float = 0.0
    rows: list[Row] = field(default_factory=list[Row])
    payload: bytes = b""
    sent: float = 0.0
    overdue: float = 0.0
    """From when on the node's silence means something, seconds."""


def join_fields(settings: GroupSettings) -> dict[str, object]:
    """Return what a JOIN says besides group and member."""
    fields: dict[str, object] = {
        "name": settings.member,
        "topics": list(settings.topics),
        "mode": settings.mode,
        "session_ms": round(SESSION_SECONDS * 1000),
    }
    if settings.wanted is not None:
        fields["filters"] = dict.fromkeys(settings.topics, settings.wanted)
    return fields


def pop_fields(
    settings: GroupSettings, number: int, most: int, invisible: float, wait: float
) -> dict[str, object]:
    """Return what a POP says besides group and member; times in seconds."""
    return {
        "pop": number,
        "topics": list(settings.topics),
        "max_records": most,
        "max_bytes": ANSWER_BYTES,
        "invisible_ms": round(invisible * 1000),
        "wait_ms": round(wait * 1000),
        "lease": settings.lease,
        "places": False,
    }


def lost(row: Row, code: str) -> LeaseLost:
    """Return the error of an outcome that a node did not take."""
    many = f" to {row.last}" if row.last > row.first else ""
    what, late = row.told.what.name.lower(), row.told.late
    hint: str | None
    text = f"{what} of offset {row.first}{many} changed nothing: the lease was over"
    hint = "another member has it by now, or the group was reset"
    if late:
        hint = "ask for longer leases (invisible=), or extend them while the body runs"
    if code not in ("receipt-expired", "receipt-unknown"):
        text, hint = f"{what} of offset {row.first}{many} was refused: {code}", None
    return LeaseLost(text, code=code, hint=hint, first=row.first, last=row.last, late=late)

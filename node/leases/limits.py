"""What one node lets the members of groups use: every queue has a limit with a name.

Settings of ``[groups]`` in ``cluster.toml``, and bounds that are no setting. Times are seconds
where the name says so, else milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from storage.messaging.share import RUNS_MAX, SPAN_MAX

INVISIBLE_MS_MIN: Final = 1_000
INVISIBLE_MS_MAX: Final = 12 * 3_600_000
SESSION_MS_MIN: Final = 1_000
SESSION_MS_MAX: Final = 3_600_000
DELAY_MS_MAX: Final = 366 * 86_400_000
"""Longest time after which a message that was given back is visible again."""

LOOKS_MAX: Final = 16
"""Stretches without a wanted message that one POP passes over before others have their turn."""

DEAD_BYTES_MAX: Final = 1 << 20
"""Bytes of dead letters in one batch, unless the first message alone is larger."""

MEMBER_NAME_MAX: Final = 255
"""Characters of the name of a member."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The limits of groups; defaults are those of ``cluster.toml``."""

    auto_create: bool = True
    """Whether a group is made by the first member that joins it."""

    session_seconds: float = 10.0
    """A member that says nothing for this long has left, unless it asked for another time."""

    invisible_ms: int = 60_000
    """How long a lease of a new group lasts."""

    attempts: int = 16
    """How often a message of a new group is handed out before it becomes a dead letter."""

    span_max: int = SPAN_MAX
    """Offsets of a share between the first that is not settled and the last handed out."""

    runs_max: int = RUNS_MAX
    """Runs of a share."""

    groups_max: int = 10_000
    """Groups of a store."""

    members_max: int = 10_000
    """Members of all groups."""

    lease: str = "confirmed"
    """When a POP that does not say so is answered: at the ``confirmed`` or ``fast``."""

    records_max: int = 4_096
    """Messages in the answer to one POP."""

    bytes_max: int = 8 << 20
    """Bytes in the answer to one POP."""

    pops_parked_max: int = 16
    """Pops of one member that wait for messages; one more is refused ``busy``."""

    waiting_max: int = 20_000
    """Requests of groups that wait, for messages or for their confirm; the next is ``busy``."""

    long_poll_seconds_max: float = 30.0
    """Longest time that a POP waits for messages."""

    grace_seconds: float = 5.0
    """From the beginning of a reign on no lease counts as over for this long: consumers come back
    and acknowledge."""

    dead_max: int = 4_096
    """Messages that wait to become dead letters at a time; others keep their leases meanwhile."""

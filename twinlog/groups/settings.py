"""How a member of a group consumes.

Times are seconds, sizes bytes. Pure. Not here: what the numbers do (``twinlog.groups``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twinlog.consumer.core import parse_tags, parse_where
from twinlog.errors import UsageError
from twinlog.units import MiB

SHARED: Final = "shared"
"""The mode of groups in which each message goes to one member."""

ORDERED: Final = "ordered"
"""The same, and the messages of a queue are handled one after the other."""

BATCH_MAX: Final = 4096
"""Messages of one pop; more would wait for the same body, not arrive sooner."""

TOPICS_MAX: Final = 64
"""Topics of one member."""

INVISIBLE_MIN: Final = 1.0
INVISIBLE_MAX: Final = 12 * 3600.0
"""Lengths of a lease that a node takes, seconds."""

SESSION_SECONDS: Final = 10.0
"""A member that says nothing for this long is no longer one; it joins again by itself."""

WAIT_SECONDS: Final = 4.0
"""How long a node keeps a pop for messages that do not exist yet: each is a sign of life, so it is
well below `SESSION_SECONDS`."""

RENEW_SECONDS: Final = 3600.0
"""How long the awaiting consumer extends the lease of one message, if nothing else is said."""

ANSWER_BYTES: Final = 4 * MiB
"""Records of one pop, bytes."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Which group, and how.

    Attributes:
        group: Name.
        topics: Whose messages; light queues are topics.
        member: Name of the member, for people.
        batch: At most this many messages are held at a time.
        invisible: How long a lease is, seconds; None: the group's.
        wanted: The group's filter of these topics (`filter_text`); None: whatever it has.
        lease: ``confirmed``: a message is handed out when its lease cannot be lost any more;
            ``fast``: at once, so a failover may hand it out twice.
        renew: Leases of messages that a body has are extended for this long, seconds; 0: only when
            asked.
        timeout: How long no master may answer, seconds.
        mode: `SHARED` or `ORDERED`; the group's, or that of the group that this member makes.
    """

    group: str
    topics: tuple[str, ...]
    member: str = ""
    batch: int = 64
    invisible: float | None = None
    wanted: str | None = None
    lease: str = "confirmed"
    renew: float = 0.0
    timeout: float = 30.0
    mode: str = SHARED

    def __post_init__(self) -> None:
        """Check what can be checked without a node; raises UsageError."""
        if not self.topics or len(self.topics) > TOPICS_MAX:
            raise _wrong(f"a member consumes 1 to {TOPICS_MAX} topics, not {len(self.topics)}")
        if not 1 <= self.batch <= BATCH_MAX:
            raise _wrong(f"batch is {self.batch}; it must be 1 to {BATCH_MAX}")
        if self.invisible is not None and not INVISIBLE_MIN <= self.invisible <= INVISIBLE_MAX:
            raise _wrong(f"invisible is {self.invisible:g} s; 1 s to 12 h can be leased")
        if self.lease not in ("confirmed", "fast"):
            raise _wrong(f'lease is "{self.lease}"; there are confirmed and fast')
        if self.mode not in (SHARED, ORDERED):
            raise _wrong(f'mode is "{self.mode}"; a consumer has {SHARED} or {ORDERED}')
        if not self.timeout > 0:
            raise _wrong("timeout must be above 0 s")


def _wrong(text: str, hint: str | None = None) -> UsageError:
    return UsageError(text, code="fields", hint=hint)


def filter_text(tag: str | None, where: str | None) -> str | None:
    """Return a filter as groups keep it: of tags, or over properties; None: neither was named.

    Raises:
        FilterError, UsageError: It is not a filter, or both were named.

    >>> filter_text("sent || paid", None)
    'tags: paid || sent'
    """
    tags, parsed = sorted(parse_tags(tag)), parse_where(where)
    if tags and parsed is not None:
        hint = "name the tag in the filter: TAGS = 'paid' AND price > 9"
        raise _wrong("a group filters by tag or by where, not by both", hint)
    if parsed is not None:
        return parsed.text
    return f"tags: {' || '.join(tags)}" if tags else None

"""What the core wants done. The driver does it at once, in order, and reports what came of it.

Values without behaviour that nobody changes; those that every record needs are not frozen, for that
doubles what it costs to make one. Offsets are bytes. Not here: how (``driver``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from replication import frames
from replication.register_ops import Operation
from storage import Promise, Token


@dataclass(slots=True)
class Send:
    """Send a message on a link."""

    conn: int
    message: frames.Message


@dataclass(slots=True)
class Ship:
    """Send whole batches from ``start`` in one frame; reported by ``ReplicaCore.on_shipped``."""

    conn: int
    start: int


@dataclass(slots=True)
class Receive:
    """Store received batches; reported by ``on_received``, ``on_bad_batch``, ``on_full`` ..."""

    conn: int
    append: frames.Append


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to a node's slave port; answered by ``on_dialed`` or ``on_closed``."""

    conn: int
    peer: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close a link; nothing more is heard of it."""

    conn: int
    why: str


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Ask the register; answered by ``on_answer``."""

    call: int
    op: Operation


@dataclass(frozen=True, slots=True)
class SavePromise:
    """Fsync a promise; answered by ``on_promised``."""

    promise: Promise


@dataclass(frozen=True, slots=True)
class TakeToken:
    """Make the log ours to write; whoever had it writes no more, beyond the end all is zero."""

    token: Token


@dataclass(frozen=True, slots=True)
class DropToken:
    """Nobody writes the log."""


@dataclass(frozen=True, slots=True)
class AppendEpoch:
    """Append the first record of an epoch and flush it; reported by ``on_epoch_appended``."""

    epoch: int
    session: int
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class RebuildPending:
    """Scan what is above the confirmed layer, so that numbering goes on behind it."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Flush the log soon; reported by ``on_flushed``."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut the log to ``to``, durably; reported by ``on_cut``."""

    to: int


@dataclass(slots=True)
class Confirm:
    """The confirm offset is ``offset``."""

    offset: int


@dataclass(slots=True)
class Release:
    """Answer these requests: what they waited for has happened."""

    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Answer these requests: nobody knows yet whether it will be confirmed."""

    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verify:
    """Check our own copy of a batch; reported by ``on_verified``."""

    conn: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Registered:
    """The coordinator answered the registration."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Remember on disk that this log must not be trusted."""

    start: int
    length: int
    what: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a switchover or a stop; ``code`` is ``ok``, ``unknown`` or a reason."""

    request: int
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Log an event; ``alarm`` is the level for what a person must look at."""

    name: str
    level: str
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Changed:
    """Role, epoch, links or in-sync set moved."""


Command = (
    Send
    | Ship
    | Receive
    | Dial
    | Close
    | Coordinate
    | SavePromise
    | TakeToken
    | DropToken
    | AppendEpoch
    | RebuildPending
    | Flush
    | Cut
    | Confirm
    | Release
    | GiveUp
    | Verify
    | Registered
    | Quarantine
    | Answer
    | Tell
    | Changed
)

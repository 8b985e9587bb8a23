"""The commands of the core. The driver executes them in order; each has at most one answer.

An answer is an event of `ReplicaCore`, delivered after all commands of the event before it have
been executed. Plain values, to be treated as immutable; those made for every record are not frozen,
because freezing doubles the cost of making one. Offsets are bytes. Not here: the execution
(``driver``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from replication.core import messages
from replication.register.operations import Operation
from storage import Promise, Token


@dataclass(slots=True)
class Send:
    """Send a message on a link."""

    conn: int
    message: messages.Message


@dataclass(slots=True)
class Ship:
    """Send one frame of whole batches from ``append.offset``; answered by ``on_shipped``.

    ``append`` has no entries, payload or time: the driver adds them. At the end of the log it stays
    without batches, a notice.
    """

    conn: int
    append: messages.Append


@dataclass(frozen=True, slots=True)
class Stored:
    """The batches are stored, with their entries."""


@dataclass(frozen=True, slots=True)
class BatchDamaged:
    """The batch at ``start`` does not match its CRC; the batches before it are stored."""

    start: int
    length: int
    reason: str


@dataclass(frozen=True, slots=True)
class NoSpace:
    """The disk has no space for the batches; nothing was stored."""

    why: str


@dataclass(frozen=True, slots=True)
class NotTaken:
    """The store refuses the batches: stale writer, other offset, or invalid bytes."""

    why: str


Received = Stored | BatchDamaged | NoSpace | NotTaken
"""The outcome of a `Receive`."""

STORED = Stored()
"""The shared instance: this outcome is needed for every record."""


@dataclass(slots=True)
class Receive:
    """Store received batches as the writer ``token``; answered by ``on_received``."""

    conn: int
    token: Token
    append: messages.Append


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to a node's slave port; answered by ``on_dialed`` or ``on_closed``."""

    conn: int
    peer: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close a link; no event of it follows."""

    conn: int
    why: str


@dataclass(frozen=True, slots=True)
class MakeSeed:
    """Make the seed of a slave that lacks deleted bytes; answered by ``on_seed``."""

    conn: int


@dataclass(frozen=True, slots=True)
class BeginAgain:
    """Delete the log and begin it again at the seed's offset; answered by ``on_cut``."""

    seed: bytes


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
    """Become the only writer of the log: other tokens become stale, bytes after the end zero."""

    token: Token


@dataclass(frozen=True, slots=True)
class DropToken:
    """Stop being the writer of the log."""


@dataclass(frozen=True, slots=True)
class AppendEpoch:
    """Append the first record of an epoch and flush it; answered by ``on_epoch_appended``."""

    token: Token
    epoch: int
    session: int
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class RebuildPending:
    """Rebuild the pending layer of the store, so that numbering continues after it (R49)."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Flush the log soon; answered by ``on_flushed``."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut the log to ``to``, durably; answered by ``on_cut``."""

    to: int


@dataclass(slots=True)
class Confirm:
    """Set the confirm offset."""

    offset: int


@dataclass(slots=True)
class Release:
    """Answer these requests: they are acknowledged."""

    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Answer these requests as unknown: they may still be confirmed."""

    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verify:
    """Check our own copy of a batch; answered by ``on_verified``."""

    conn: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Registered:
    """The coordinator answered the registration."""


@dataclass(frozen=True, slots=True)
class SetFacts:
    """Take facts of the group: the quality of acknowledgements, durably before the next command
    (R26, R27), and the level of what may be appended (R74)."""

    quality: str
    level: int


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Record durably that this log is quarantined."""

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
    """Log an event; level ``alarm`` needs a person."""

    name: str
    level: str
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Changed:
    """Role, epoch, links or in-sync set have changed."""


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
    | MakeSeed
    | BeginAgain
    | Confirm
    | Release
    | GiveUp
    | Verify
    | Registered
    | SetFacts
    | Quarantine
    | Answer
    | Tell
    | Changed
)

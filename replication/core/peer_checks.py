"""Checks of a peer's messages before they have any effect: pure functions of values.

The master checks a HELLO; the slave checks a HELLO_OK and every APPEND. Before one byte of the
slave's log is cut (R40):

* the frame is of this node's epoch and session and of the recorded leader;
* the point equals the one computed here from both histories;
* the point is not below this node's confirm offset, unless the group state records a newer unclean
election;
* the entries before the point have the same chain of CRCs on both sides.

A difference means quarantine: one of the two logs is wrong; nothing is cut.

*Where to continue.* A node that returns as a slave may hold bytes that the new master never had.
They must be cut, and not one byte more. `twinlog.format.epoch_history.consistent_point` returns the
offset up to which two logs are equal; `point_for` also considers what both sides still keep. Both
sides compute it.

*Which epochs are sent.* A history is unbounded, a frame is not: it has at most `EPOCHS_SENT_MAX`
entries. The newest shared epoch is never newer than the newest of either side, so each side sends
the part of its history around the newest epoch of the other (`part_around`).

Units: bytes, ends are exclusive. Not here: links and logs (``following``, ``leading``), the cut
itself (``storage``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from replication.core import messages
from replication.core.context import Log
from replication.register.group_state import GroupState
from replication.settings import CHAIN_CHECK_BYTES, EPOCHS_SENT_MAX, VERSION
from twinlog.format.epoch_history import Epoch, HistoriesDiffer, consistent_point

# -- where to continue


def point_for(
    slave: Sequence[Epoch],
    slave_range: tuple[int, int],
    master: Sequence[Epoch],
    master_range: tuple[int, int],
) -> int | None:
    """Return the log offset where a slave continues; None if it must begin again (R57).

    Args:
        slave: The slave's epoch history.
        slave_range: Start and end of its log.
        master: The master's epoch history.
        master_range: Start and end of its log.

    Raises:
        HistoriesDiffer: A shared epoch begins at different offsets.

    An empty log continues at its own end, if the master still has that byte:

    >>> point_for([], (0, 0), [Epoch(1, 0)], (0, 50))
    0
    >>> point_for([], (0, 0), [Epoch(1, 0)], (40, 50)) is None
    True
    """
    start, end = slave_range
    if start == end:
        # After a reseed (R57) the log is empty and its one offset is that of the seed, not 0.
        point: int | None = end
    else:
        point = consistent_point(slave, end, master, master_range[1])
    # Below one of the starts the bytes are deleted: equal or not, nothing can be streamed.
    if point is None or point < master_range[0] or end < master_range[0] or point < start:
        return None
    return point


def part_around(epochs: Sequence[Epoch], newest: int) -> tuple[Epoch, ...]:
    """Return the part of a history needed to compare it with one that ends with ``newest``.

    It has entries up to ``newest``, among which the shared epoch must be, and some after it,
    because an epoch ends where the next one begins.

    >>> history = [Epoch(number, number * 10) for number in range(1, 4000)]
    >>> part = part_around(history, 1500)
    >>> (len(part), part[0].epoch, part[-1].epoch)
    (1000, 1001, 2000)
    """
    if len(epochs) <= EPOCHS_SENT_MAX:
        return tuple(epochs)
    known = bisect_right(epochs, newest, key=lambda epoch: epoch.epoch)
    first = max(0, min(known - EPOCHS_SENT_MAX // 2, len(epochs) - EPOCHS_SENT_MAX))
    return tuple(epochs[first : first + EPOCHS_SENT_MAX])


def newest_shared(master: Sequence[Epoch], slave: Sequence[Epoch]) -> int:
    """Return the newest epoch of both histories, which decides; without one the slave's newest.

    >>> newest_shared([Epoch(7, 0), Epoch(9, 40)], [Epoch(7, 0), Epoch(8, 40)])
    7
    """
    ours = {epoch.epoch for epoch in master}
    shared = (epoch.epoch for epoch in reversed(slave) if epoch.epoch in ours)
    return next(shared, slave[-1].epoch if slave else 0)


def is_part(epochs: Sequence[Epoch], log_start: int) -> bool:
    """Whether older entries of a history are missing: a complete one covers the log's start."""
    return bool(epochs) and epochs[0].start > log_start


def epoch_before(epochs: Sequence[Epoch], offset: int) -> int:
    """Return the epoch of the byte before ``offset``, 0 at the beginning.

    >>> epoch_before([Epoch(1, 0), Epoch(4, 100)], 100)
    1
    """
    # The usual case, asked for each frame: it is at the end of the log.
    if epochs and epochs[-1].start < offset:
        return epochs[-1].epoch
    # Less one: an epoch that begins at `offset` is not that of the byte before.
    at = bisect_right(epochs, offset - 1, key=lambda epoch: epoch.start)
    return epochs[at - 1].epoch if at else 0


def chain_start(hello: messages.Hello, point: int, log: Log, segment_size: int) -> int:
    """Return where the chain of CRCs begins: at a file's head, at least 64 MiB before ``point``.

    Each file's first record carries the CRC of the entries of the file before it (R10), and a slave
    checks it. So entries that are equal from one head on prove everything before that head.
    """
    # Less one: at the border of two files the file before it counts, else the chain would be empty.
    head = (point - 1) // segment_size * segment_size if point else 0
    if point - head < CHAIN_CHECK_BYTES:
        head = log.border_at_or_below(max(log.start, point - CHAIN_CHECK_BYTES))
    # Retention may have deleted more on one side: only what both keep can be compared.
    return min(max(min(head, hello.border), log.start, hello.start), point)


# -- what a master checks


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a HELLO is refused.

    Attributes:
        reread: The master's group state may be older than the slave's.
        newest: With code ``PART``: the epoch around which the slave's history is needed.
    """

    code: str
    text: str
    reread: bool = False
    newest: int | None = None


@dataclass(frozen=True, slots=True)
class Master:
    """The master's side of a comparison with a HELLO.

    Attributes:
        acknowledged: End that this slave has acknowledged to this master, by the quality in force,
            on any link since its store was last registered as clean.
    """

    name: str
    epoch: int
    family: int
    segment_size: int
    start: int
    end: int
    epochs: Sequence[Epoch]
    state: GroupState
    acknowledged: int = 0


def check_hello(hello: messages.Hello, master: Master) -> Refusal | None:
    """Return why the slave is refused, in the order of the protocol; None if it is accepted."""
    if not hello.least_version <= VERSION <= hello.version:
        spoken = f"{hello.least_version} to {hello.version}"
        return Refusal("BAD_VERSION", f"the slave speaks versions {spoken}, this master {VERSION}")
    # Epochs first: the verdicts below condemn a node, and only the current master may do that.
    if is_newer_epoch(hello, master):
        return Refusal("NEWER_EPOCH", f"the slave is in epoch {hello.epoch}", reread=True)
    if is_older_epoch(hello, master):
        return Refusal("FENCED", f"the slave is in epoch {hello.epoch}, this is {master.epoch}")
    if hello.register_id != master.state.register_id:
        text = f"the slave belongs to register {hello.register_id}"
        return Refusal("OTHER_REGISTER", text)
    # R38: a former process or store may still send; its log must not count for the new one.
    if not is_registered(hello, master.state):
        text = f"session {hello.session} of {hello.node} is not the registered one"
        return Refusal("UNKNOWN_REPLICA", text, reread=True)
    if (hello.family, hello.segment_size) != (master.family, master.segment_size):
        text = (
            f"the slave has segments of {hello.segment_size} bytes and IPv{hello.family} hosts, "
            f"the group {master.segment_size} and IPv{master.family}"
        )
        return Refusal("OTHER_LAYOUT", text)
    if is_branched(hello, master.state):
        text = f"the slave knows another tag of revision {hello.revision}"
        return Refusal("OTHER_REGISTER", text)
    # Its acknowledgements would mean something else than the master counts (R27).
    if hello.quality != master.state.ack:
        text = f"the slave acknowledges what is {hello.quality}, the group {master.state.ack}"
        return Refusal("OTHER_QUALITY", text, reread=True)
    # Last: this verdict takes a member out of the sets, so every mistake of addressing comes
    # before.
    if lacks_acknowledged(hello, master):
        text = f"the slave ends at {hello.end}, and has acknowledged {master.acknowledged}"
        return Refusal("INCOMPLETE", text)
    return None


def is_branched(hello: messages.Hello, state: GroupState) -> bool:
    """Whether slave and master have seen different states under one revision (R14)."""
    return hello.revision == state.revision and hello.tag != state.tag


def lacks_acknowledged(hello: messages.Hello, master: Master) -> bool:
    """Whether the slave has less than it acknowledged, although it registered as clean.

    Its acknowledgements count for the confirm offset as long as it is a member. A node that lost
    acknowledged bytes must register as unclean and leave the sets (R38).
    """
    return hello.end < master.acknowledged


def is_of_group(hello: messages.Hello, state: GroupState) -> bool:
    """Whether the sender is a store that is registered under its name."""
    known = state.reg.get(hello.node)
    if known is None or hello.register_id != state.register_id:
        return False
    return known.store == hello.store and hello.node != state.leader


def is_newer_epoch(hello: messages.Hello, master: Master) -> bool:
    """Whether the slave has seen a later master than this one."""
    return hello.epoch > master.epoch


def is_older_epoch(hello: messages.Hello, master: Master) -> bool:
    """Whether the slave has not yet seen this master's epoch."""
    return hello.epoch < master.epoch


def is_registered(hello: messages.Hello, state: GroupState) -> bool:
    """Whether (session, store) are those of the last registration of a follower."""
    known = state.reg.get(hello.node)
    # The name of the leader is our own: a second process that uses our configuration.
    if known is None or hello.node not in state.followers or hello.node == state.leader:
        return False
    return (known.session, known.store) == (hello.session, hello.store)


def find_point(hello: messages.Hello, master: Master) -> int | Refusal:
    """Return where the slave continues, or why it cannot."""
    ours = master.epochs
    older = [epoch.epoch for epoch in ours if hello.epochs and epoch.epoch < hello.epochs[0].epoch]
    shared = {epoch.epoch for epoch in hello.epochs} & {epoch.epoch for epoch in ours}
    if older and not shared and is_part(hello.epochs, hello.start):
        # The part sent by the slave does not reach back to an epoch of this history:
        # nothing can be compared yet. The slave is asked for another part.
        text = f"the epochs sent begin at {hello.epochs[0].epoch}; send those around {older[-1]}"
        return Refusal("PART", text, newest=older[-1])
    try:
        point = point_for(
            hello.epochs, (hello.start, hello.end), master.epochs, (master.start, master.end)
        )
    except HistoriesDiffer as difference:
        return Refusal("DIVERGED", str(difference))
    if point is None:
        text = (
            f"the slave's log {hello.start}..{hello.end} shares no byte with the kept log "
            f"{master.start}..{master.end}: it must begin again"
        )
        return Refusal("RESEED", text)
    return point


# -- what a slave checks


@dataclass(slots=True)
class Place:
    """The slave's side of a comparison with an APPEND; treat as immutable."""

    epoch: int
    session: int
    end: int


@dataclass(slots=True)
class Own(Place):
    """The slave's side of a comparison with a HELLO_OK."""

    leader: str
    start: int
    confirm: int
    epochs: Sequence[Epoch]


@dataclass(frozen=True, slots=True)
class Drop:
    """The frame is for another node, epoch or session: ignore it, close the link."""

    why: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """One of the two logs is wrong: cut nothing, quarantine this one."""

    what: str


@dataclass(frozen=True, slots=True)
class Agreed:
    """Both logs are equal up to ``point``."""

    point: int


Verdict = Agreed | Drop | Divergence


def judge_hello_ok(ok: messages.HelloOk, own: Own, state: GroupState, chain: int | None) -> Verdict:
    """Return the verdict on a HELLO_OK.

    Args:
        ok: The master's answer.
        own: The slave's side.
        state: The newest group state.
        chain: The CRC chain over our own entries from ``ok.chain_start`` to ``ok.point``; None if
            one of the two is not a batch border here.
    """
    if not is_for_us(ok, own):
        return Drop(f"HELLO_OK of {ok.leader}, epoch {ok.epoch}, session {ok.session}")
    try:
        point = point_for(own.epochs, (own.start, own.end), ok.epochs, (ok.start, ok.end))
    except HistoriesDiffer as difference:
        return Divergence(str(difference))
    # Two independent computations: a bug or a corrupt history on one side must not cut a log.
    if point is None or not is_same_point(point, ok.point):
        return Divergence(f"the master says {ok.point}, the histories say {point}")
    # The last line of defence: whatever led here, confirmed records are not cut (mutant
    # cut_below_confirm).
    if not keeps_confirmed(point, own, state):
        return Divergence(f"the point {point} is below our confirm offset {own.confirm}")
    if ok.chain_start < own.start:
        # Retention deleted our oldest files after HELLO: part of the chain's range is gone here.
        return Drop(f"the chain begins at {ok.chain_start}, our log now at {own.start}")
    if not is_same_chain(chain, ok):
        return Divergence(f"the batches from {ok.chain_start} to {ok.point} differ")
    return Agreed(point)


def is_for_us(ok: messages.HelloOk, own: Own) -> bool:
    """Whether epoch, sender and session are ours."""
    return (ok.epoch, ok.leader, ok.session) == (own.epoch, own.leader, own.session)


def is_same_point(ours: int, theirs: int) -> bool:
    """Whether both sides compute the same point."""
    return ours == theirs


def keeps_confirmed(point: int, own: Own, state: GroupState) -> bool:
    """Whether no confirmed byte would be cut, or an operator accepted its loss (R40)."""
    own_last = own.epochs[-1].epoch if own.epochs else 0
    # Newer than our last epoch: an older unclean election is a part of this log and excuses no cut.
    return point >= own.confirm or state.last_unclean() > own_last


def is_same_chain(chain: int | None, ok: messages.HelloOk) -> bool:
    """Whether the entries before the point are equal on both sides."""
    return chain == ok.chain


def may_begin_again(state: GroupState, name: str) -> bool:
    """Whether this node is a member of neither set, so that its log may be deleted (R57)."""
    return not state.counts(name)


def judge_append(append: messages.Append, own: Place, last_epoch: int) -> str | None:
    """Return why an APPEND is refused; None if its batches continue our log (R42)."""
    if not is_of_epoch(append, own):
        return f"APPEND of epoch {append.epoch}, promised is {own.epoch}"
    if append.session != own.session:
        return f"APPEND of session {append.session}, ours is {own.session}"
    if append.offset != own.end:
        return f"APPEND at {append.offset}, our end is {own.end}"
    # R11: the same offset and the same epoch of the byte before mean the same bytes up to here.
    if not continues_epoch(append, last_epoch):
        return f"APPEND after epoch {append.prev_epoch}, our last is {last_epoch}"
    return None


def is_of_epoch(append: messages.Append, own: Place) -> bool:
    """Whether the APPEND is of the promised epoch."""
    return append.epoch == own.epoch


def continues_epoch(append: messages.Append, last_epoch: int) -> bool:
    """Whether the byte before it is of the same epoch on both sides."""
    return append.prev_epoch == last_epoch

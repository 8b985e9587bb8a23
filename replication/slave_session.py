"""The slave's side of one link: handshake, cut, follow.

    DIALING -> HANDSHAKE -> STREAMING       and CUTTING in between, when our log is ahead

The checks of a HELLO_OK and of an APPEND are functions from values to an answer. What must be true
before one byte of ours is cut:

* the frame is of our epoch, of the recorded leader, of our session;
* the point is the one that we compute ourselves from both histories;
* the point is not below our own confirm offset, unless the group state records a newer unclean
  election;
* the entries below the point have the same CRC chain on both sides.

A difference is a quarantine: either the master is wrong or this log is; nothing is cut.

Units: bytes, seconds. Not here: dialing and writing (``following``, ``driver``).
Sources: replication.md G.7, protocol.md 2 and 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replication import consistency, frames
from replication.group_state import GroupState
from storage import Epoch


@dataclass(slots=True)
class Place:
    """Where a slave stands when it judges batches; a value that nobody changes."""

    epoch: int
    session: int
    end: int


@dataclass(slots=True)
class Own(Place):
    """What a slave knows of itself when it judges a HELLO_OK."""

    leader: str
    start: int
    confirm: int
    epochs: Sequence[Epoch]


@dataclass(frozen=True, slots=True)
class Drop:
    """The frame is not for us: ignore it, close the link."""

    why: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """One of the two logs is wrong: cut nothing, quarantine."""

    what: str


@dataclass(frozen=True, slots=True)
class Agreed:
    """Both logs are equal up to ``point``."""

    point: int


Verdict = Agreed | Drop | Divergence


def judge_hello_ok(ok: frames.HelloOk, own: Own, state: GroupState, chain: int | None) -> Verdict:
    """Return what a HELLO_OK means for our log.

    Args:
        ok: The master's answer.
        own: Our side.
        state: The newest group state.
        chain: The CRC chain over our own entries from ``ok.chain_start`` to ``ok.point``; None when
            one of the two is no batch border of ours.
    """
    if not is_for_us(ok, own):
        return Drop(f"HELLO_OK of {ok.leader}, epoch {ok.epoch}, session {ok.session}")
    try:
        point = consistency.point_for(
            own.epochs, (own.start, own.end), ok.epochs, (ok.start, ok.end)
        )
    except consistency.HistoriesDiffer as difference:
        return Divergence(str(difference))
    if point is None or not is_same_point(point, ok.point):
        return Divergence(f"the master says {ok.point}, the histories say {point}")
    if not keeps_confirmed(point, own, state):
        return Divergence(f"the point {point} lies below our confirm offset {own.confirm}")
    if ok.chain_start < own.start:
        # Our oldest files left after HELLO: what the master took the chain over is not all here.
        return Drop(f"the chain begins at {ok.chain_start}, our log at {own.start} by now")
    if not is_same_chain(chain, ok):
        return Divergence(f"the batches from {ok.chain_start} to {ok.point} differ")
    return Agreed(point)


def is_for_us(ok: frames.HelloOk, own: Own) -> bool:
    """Whether epoch, sender and session are ours."""
    return (ok.epoch, ok.leader, ok.session) == (own.epoch, own.leader, own.session)


def is_same_point(ours: int, theirs: int) -> bool:
    """Whether both sides compute the same point."""
    return ours == theirs


def keeps_confirmed(point: int, own: Own, state: GroupState) -> bool:
    """Whether nothing below our confirm offset would be cut, or an operator chose to lose it."""
    own_last = own.epochs[-1].epoch if own.epochs else 0
    return point >= own.confirm or state.last_unclean() > own_last


def is_same_chain(chain: int | None, ok: frames.HelloOk) -> bool:
    """Whether the entries before the point are equal on both sides."""
    return chain == ok.chain


def judge_append(append: frames.Append, own: Place, last_epoch: int) -> str | None:
    """Return why an APPEND is not taken; None when its batches continue our log."""
    if not is_of_epoch(append, own):
        return f"APPEND of epoch {append.epoch}, promised is {own.epoch}"
    if append.session != own.session:
        return f"APPEND of session {append.session}, ours is {own.session}"
    if append.offset != own.end:
        return f"APPEND at {append.offset}, our end is {own.end}"
    if not continues_epoch(append, last_epoch):
        return f"APPEND after epoch {append.prev_epoch}, our last is {last_epoch}"
    return None


def is_of_epoch(append: frames.Append, own: Place) -> bool:
    """Whether the APPEND is of the epoch that we promised."""
    return append.epoch == own.epoch


def continues_epoch(append: frames.Append, last_epoch: int) -> bool:
    """Whether the byte before is of the same epoch on both sides."""
    return append.prev_epoch == last_epoch

"""The group state: one small value with the master, the in-sync set and the registrations.

The coordinator keeps it and changes it one operation at a time (``replication.register.register``);
nodes see copies and never change them. Every change gives it a higher revision and a random tag.

Rules that hold in every state of the register:

* ``leader`` is unset or a member of ``isr``; a learner is no replica, and in neither set (R70);
* ``isr`` and ``elr`` (eligible though not in sync) are disjoint; ``elr`` is empty while the in-sync
  set has at least ``min_isr`` members;
* the session in ``isr``, ``elr`` and ``suspect`` is the registered one;
* ``epoch`` and ``revision`` never fall.

Units: times are milliseconds of the wall clock, for people only. Not here: the rules by which it
changes. Rules: docs/protocol.md R17 to R25.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from twinlog.errors import ProtocolError
from twinlog.levels import FIRST

STARTS_KEPT = 16
"""Earlier start ids kept per store; no call is delayed over more restarts than that."""

UNCLEAN_KEPT = 8
"""Newest unclean elections kept; the history of the coordinator has all of them."""

REMARK_KEPT = 200
"""Bytes of an operator's remark in the state, as JSON; the history has the whole text."""

RETIRED_KEPT = 32
"""Removed replicas whose last session is kept by name; the largest of all others is the floor."""

RETIRED_FLOOR = "*"
"""Key of that floor in ``retired``; no node has this name."""

STATE_BYTES_MAX = 30_000
"""Bytes of a state as JSON. Nodes keep it in a slot of 32 KiB of ``twinlog/promise``, beside a few
numbers; a larger one could not be promised, so the register refuses to make one."""

FAILOVER = ("manual", "automatic")
"""Who ends the leadership of a master that is gone: an operator, or the coordinator (R59)."""

POWER_LOSS = ("wait", "best")
"""What the register does when no node is known to have everything: wait for an operator, or elect
the node with the greatest log once all replicas have reported their ends (R56)."""

ACKS = ("received", "durable")
"""Meaning of a member's acknowledgement: in the page cache of its file, or flushed."""


def shortened(text: str) -> str:
    """Return the beginning of ``text`` that takes at most `REMARK_KEPT` bytes as JSON."""
    while len(json.dumps(text)) > REMARK_KEPT:
        text = text[: len(text) * REMARK_KEPT // len(json.dumps(text))]
    return text


@dataclass(frozen=True, slots=True)
class Registration:
    """The last registration of a replica.

    Attributes:
        session: Grows with each registration; identifies the process in every message.
        store: Store id, made with the data directory; another one means another disk.
        start: Random id of the process start; the same start registers once.
        earlier: Start ids of this store before it, newest last.
        empty: The log was empty then.
        last_epoch: Epoch of the last record then.
        end: End of the log then, bytes.
        promised: Largest epoch the store had promised then.
        clean: No acknowledged record could be missing then (R26).
    """

    session: int
    store: str
    start: str
    earlier: tuple[str, ...] = ()
    empty: bool = True
    last_epoch: int = 0
    end: int = 0
    promised: int = 0
    clean: bool = True


@dataclass(frozen=True, slots=True)
class End:
    """The reported end of a replica's log, while the register is vacant (R56)."""

    session: int
    last_epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class Unclean:
    """An operator's decision that may have lost confirmed records; texts are `shortened`."""

    epoch: int
    who: str
    why: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Hold:
    """An operator's hold on something automatic (R68); texts are `shortened`.

    ``until_ms``: when it ends by itself, by the coordinator's wall clock; 0: when it is released.
    """

    who: str
    why: str
    since_ms: int
    until_ms: int = 0


def _none() -> Mapping[str, int]:
    return {}


def _no_holds() -> Mapping[str, Hold]:
    return {}


def _no_ends() -> Mapping[str, End]:
    return {}


def _unregistered() -> Mapping[str, Registration]:
    return {}


@dataclass(frozen=True, slots=True)
class GroupState:
    """See the module. Names of the fields are those of the JSON form.

    Attributes:
        register_id: Random id of the register; another id means another history.
        revision: Number of changes; ``tag`` is the random 64-bit number of this one.
        epoch: Number of the mastership, 0 before the first.
        leader: The master, None without one (never elected, deposed, transferred).
        leader_session: Its session when it was elected.
        previous: The last master, and the session it had as such, while there is no other.
        isr: In-sync set, name to session. ``elr`` and ``suspect`` alike.
        wiped: Those of ``suspect`` whose store was lost, with its records.
        vacant: Revision since which there is neither a leader nor a member of a set; 0 otherwise.
        ends: Ends that replicas reported since then.
        after_power_loss: One of `POWER_LOSS`. ``failover``: One of `FAILOVER`.
        reg: Last registrations.
        retired: Last sessions of replicas that were removed.
        replicas: Full members, in the order of the file.
        learners: Nodes that copy the log and serve reads, and count nowhere (R70).
        priorities: Name to priority, larger stands first; absent means 0.
        min_isr: Least members of the in-sync set for writes.
        ack: Meaning of every member's acknowledgement, the master's own part included; one of
        `ACKS`. A fact of the group: members that differ could lose confirmed records.
        transfer_to: Only this node may stand now (planned switchover).
        first: The node whose configuration says ``role = "master"``; None when no node does.
        reason, by: Why and by whom the present epoch was begun; repeated in its epoch record.
        pause: No master is deposed automatically while this holds; None while none does.
        maintenance: Replicas that are not elected until they are released.
        unclean: The newest `UNCLEAN_KEPT` unclean elections, oldest first.
        seeded: The first registration has happened.
        level: Which records the log may hold (R74); see ``twinlog.levels``. ``levels``:
        name to the highest level that the registered process knows.
    """

    register_id: str = ""
    revision: int = 0
    tag: int = 0
    epoch: int = 0
    leader: str | None = None
    leader_session: int = 0
    previous: str | None = None
    previous_session: int = 0
    isr: Mapping[str, int] = field(default_factory=_none)
    elr: Mapping[str, int] = field(default_factory=_none)
    suspect: Mapping[str, int] = field(default_factory=_none)
    wiped: tuple[str, ...] = ()
    vacant: int = 0
    ends: Mapping[str, End] = field(default_factory=_no_ends)
    after_power_loss: str = "wait"
    failover: str = "manual"
    reg: Mapping[str, Registration] = field(default_factory=_unregistered)
    retired: Mapping[str, int] = field(default_factory=_none)
    replicas: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    priorities: Mapping[str, int] = field(default_factory=_none)
    min_isr: int = 1
    ack: str = "received"
    transfer_to: str | None = None
    first: str | None = None
    reason: str = ""
    by: str = ""
    unclean: tuple[Unclean, ...] = ()
    seeded: bool = False
    pause: Hold | None = None
    maintenance: Mapping[str, Hold] = field(default_factory=_no_holds)
    level: int = FIRST
    levels: Mapping[str, int] = field(default_factory=_none)

    def session_of(self, node: str) -> int:
        """Return the registered session of ``node``, 0 if it never registered."""
        known = self.reg.get(node)
        return known.session if known is not None else 0

    @property
    def followers(self) -> tuple[str, ...]:
        """All nodes that copy the log: full members, then learners."""
        return (*self.replicas, *self.learners)

    def counts(self, node: str) -> bool:
        """Whether ``node`` may be elected cleanly: in either set, with its registered session."""
        # R22: the session, not only the name: another start of the node may lack records.
        session = self.isr.get(node, self.elr.get(node, 0))
        return session > 0 and session == self.session_of(node)

    def may_lead(self, node: str) -> bool:
        """Whether ``node`` may be elected cleanly now: it `counts`, and is not in maintenance."""
        return self.counts(node) and node not in self.maintenance

    def last_unclean(self) -> int:
        """Return the newest epoch of an unclean election, 0 for none."""
        return self.unclean[-1].epoch if self.unclean else 0

    def bytes(self) -> int:
        """Return the size of the state as nodes keep it: JSON, bytes."""
        return len(json.dumps(self.to_json(), sort_keys=True))

    def to_json(self) -> dict[str, object]:
        """Return the state as plain values; `from_json` reads it back."""
        return {
            "register_id": self.register_id,
            "revision": self.revision,
            "tag": self.tag,
            "epoch": self.epoch,
            "leader": self.leader,
            "leader_session": self.leader_session,
            "previous": self.previous,
            "previous_session": self.previous_session,
            "isr": dict(self.isr),
            "elr": dict(self.elr),
            "suspect": dict(self.suspect),
            "wiped": list(self.wiped),
            "vacant": self.vacant,
            "ends": {name: [e.session, e.last_epoch, e.end] for name, e in self.ends.items()},
            "after_power_loss": self.after_power_loss,
            "failover": self.failover,
            "reg": {name: _registration(reg) for name, reg in self.reg.items()},
            "retired": dict(self.retired),
            "replicas": list(self.replicas),
            "learners": list(self.learners),
            "priorities": dict(self.priorities),
            "min_isr": self.min_isr,
            "ack": self.ack,
            "transfer_to": self.transfer_to,
            "first": self.first,
            "reason": self.reason,
            "by": self.by,
            "unclean": [[u.epoch, u.who, u.why, u.at_ms] for u in self.unclean],
            "seeded": self.seeded,
            "pause": _hold(self.pause) if self.pause is not None else None,
            "maintenance": {name: _hold(hold) for name, hold in self.maintenance.items()},
            "level": self.level,
            "levels": dict(self.levels),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> GroupState:
        """Return the state in ``value``.

        Raises:
            ProtocolError: A field is missing or of another shape; unknown fields are ignored.
        """
        take = Fields(value, "group state")
        return cls(
            register_id=take.text("register_id"),
            revision=take.number("revision"),
            tag=take.number("tag"),
            epoch=take.number("epoch"),
            leader=take.name("leader"),
            leader_session=take.number("leader_session"),
            previous=take.name("previous"),
            previous_session=take.number("previous_session"),
            isr=take.numbers("isr"),
            elr=take.numbers("elr"),
            suspect=take.numbers("suspect"),
            wiped=take.names("wiped"),
            vacant=take.number("vacant"),
            ends={name: _as_end(item) for name, item in sorted(take.mapping("ends").items())},
            after_power_loss=take.text("after_power_loss"),
            failover=take.text("failover"),
            reg={
                name: _as_registration(item) for name, item in sorted(take.mapping("reg").items())
            },
            retired=take.numbers("retired") if take.raw("retired") is not None else {},
            replicas=take.names("replicas"),
            learners=take.names("learners"),
            priorities=take.numbers("priorities", least=-(1 << 31)),
            min_isr=take.number("min_isr"),
            ack=take.text("ack"),
            transfer_to=take.name("transfer_to"),
            first=take.name("first"),
            reason=take.text("reason"),
            by=take.text("by"),
            unclean=tuple(_as_unclean(item) for item in take.items("unclean")),
            seeded=take.flag("seeded"),
            # Absent in documents of a coordinator that knew no holds.
            pause=_as_hold(take.raw("pause")) if take.raw("pause") is not None else None,
            maintenance={
                name: _as_hold(item) for name, item in sorted(take.mapping("maintenance").items())
            }
            if take.raw("maintenance") is not None
            else {},
            # Not a value of the registrations: older nodes would not read those.
            level=take.optional("level") or FIRST,
            levels=take.numbers("levels", least=1) if take.raw("levels") is not None else {},
        )


_WITHOUT_CLEAN = 8
"""Values of a registration in documents that predate `Registration.clean`."""


def _registration(reg: Registration) -> list[object]:
    return [
        reg.session,
        reg.store,
        reg.start,
        list(reg.earlier),
        reg.empty,
        reg.last_epoch,
        reg.end,
        reg.promised,
        reg.clean,
    ]


def _as_registration(item: object) -> Registration:
    values = cast("list[object]", item) if isinstance(item, list) else []
    match [*values, True] if len(values) == _WITHOUT_CLEAN else values:
        case [
            int() as session,
            str() as store,
            str() as start,
            list(),
            bool() as empty,
            int() as last_epoch,
            int() as end,
            int() as promised,
            bool() as clean,
        ]:
            earlier = cast("list[object]", values[3])
            starts = tuple(str(name) for name in earlier)
            return Registration(
                session, store, start, starts, empty, last_epoch, end, promised, clean
            )
        case _:
            raise ProtocolError(f"a registration is {item!r}", code="fields")


def _as_end(item: object) -> End:
    match item:
        case [int() as session, int() as last_epoch, int() as end]:
            return End(session, last_epoch, end)
        case _:
            raise ProtocolError(f"an end is {item!r}", code="fields")


def _as_unclean(item: object) -> Unclean:
    match item:
        case [int() as epoch, str() as who, str() as why, int() as at_ms]:
            return Unclean(epoch, who, why, at_ms)
        case _:
            raise ProtocolError(f"an unclean election is {item!r}", code="fields")


def _hold(hold: Hold) -> list[object]:
    return [hold.who, hold.why, hold.since_ms, hold.until_ms]


def _as_hold(item: object) -> Hold:
    match item:
        case [str() as who, str() as why, int() as since_ms, int() as until_ms]:
            return Hold(who, why, since_ms, until_ms)
        case _:
            raise ProtocolError(f"a hold is {item!r}", code="fields")


class Fields:
    """Reads typed values from a map that a peer sent; anything else is a ProtocolError."""

    __slots__ = ("_value", "_what")

    def __init__(self, value: Mapping[str, object], what: str) -> None:
        self._value = value
        self._what = what

    def _odd(self, key: str, wanted: str) -> ProtocolError:
        shown = repr(self._value.get(key))[:80]
        return ProtocolError(f"{self._what}: {key} is {shown}, not {wanted}", code="fields")

    def number(self, key: str, *, least: int = 0, most: int = (1 << 64) - 1) -> int:
        """Return an integer within the bounds."""
        value = self._value.get(key)
        if type(value) is int and least <= value <= most:
            return value
        raise self._odd(key, f"a number from {least} to {most}")

    def integers(self, *keys: str, most: int = (1 << 64) - 1) -> list[int]:
        """Return the integers of several keys, each from 0 to ``most``."""
        value, found = self._value, list[int]()
        for key in keys:
            one = value.get(key)
            if type(one) is not int or not 0 <= one <= most:
                raise self._odd(key, f"a number from 0 to {most}")
            found.append(one)
        return found

    def optional(self, key: str) -> int | None:
        """Return a number, or None when the value is null or absent."""
        return None if self._value.get(key) is None else self.number(key)

    def raw(self, key: str) -> object:
        """Return the value as it is, None if absent."""
        return self._value.get(key)

    def flag(self, key: str) -> bool:
        """Return a truth value."""
        value = self._value.get(key)
        if type(value) is bool:
            return value
        raise self._odd(key, "true or false")

    def text(self, key: str, *, most: int = 1024) -> str:
        """Return a string of at most ``most`` characters."""
        value = self._value.get(key)
        if isinstance(value, str) and len(value) <= most:
            return value
        raise self._odd(key, f"a text of at most {most} characters")

    def name(self, key: str) -> str | None:
        """Return a string, or None when the value is null or absent."""
        return None if self._value.get(key) is None else self.text(key)

    def data(self, key: str, *, most: int) -> bytes:
        """Return bytes of at most ``most``."""
        value = self._value.get(key)
        if type(value) is bytes and len(value) <= most:
            return value
        raise self._odd(key, f"at most {most} bytes")

    def items(self, key: str, *, most: int = 1 << 16) -> list[object]:
        """Return a list of at most ``most`` items of any kind."""
        value = self._value.get(key)
        if isinstance(value, (list, tuple)):
            found = cast("Sequence[object]", value)
            if len(found) <= most:
                return list(found)
        raise self._odd(key, f"a list of at most {most}")

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of strings."""
        found = self.items(key)
        if not all(isinstance(item, str) for item in found):
            raise self._odd(key, "a list of names")
        return tuple(str(item) for item in found)

    def mapping(self, key: str) -> dict[str, object]:
        """Return a map with string keys."""
        value = self._value.get(key)
        if isinstance(value, Mapping):
            found = cast("Mapping[object, object]", value)
            if all(isinstance(name, str) for name in found):
                return {str(name): item for name, item in found.items()}
        raise self._odd(key, "a map")

    def numbers(self, key: str, *, least: int = 0) -> dict[str, int]:
        """Return a map of names to integers of at least ``least``, sorted by name."""
        found: dict[str, int] = {}
        for name, value in sorted(self.mapping(key).items()):
            if type(value) is not int or value < least:
                raise self._odd(key, f"numbers from {least}")
            found[name] = value
        return found

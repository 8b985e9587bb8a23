"""The operations of the register: one frozen class each, and their form on the wire.

On the wire an operation is a map ``{"op": name, field: value, ..., "report": [node, register id,
revision, tag, session]}``. `to_wire` writes it, `parse_op` reads it from a peer that may send
anything. A field is declared once, in its class; its annotation says how it is read (`_READERS`).

``report`` names the newest state that the caller has seen, so that the register notices if it went
back (R18). An operator's command has no node and reports nothing.

Not here: what the operations do (``replication.register.register``). Rules:
docs/protocol.md R17 to R25.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import cast

from replication.register.group_state import ACKS, FAILOVER, POWER_LOSS, Fields, GroupState
from twinlog.errors import ProtocolError

NAMES_MAX = 16
"""Nodes named in one operation, and members of a group, at most."""

ID_BYTES_MAX = 64
"""Bytes of a node's name, a store id or a start id; the group state holds many of them."""

KNOWN_MAX = 256
"""Start ids that a store may name when it registers."""

REMARK_MAX = 500
"""Characters of ``who`` and of ``why``: they stay in the history permanently."""

Remark = str
"""Who or why, in an operator's words; at most `REMARK_MAX` characters."""

Priority = int
"""Larger stands first; may be negative."""

Count = int
"""From 1 to `NAMES_MAX`."""

Optional = int
"""A number that may be omitted: 0 then."""

Id = str
"""A name or a random id, at most `ID_BYTES_MAX` bytes."""

Ids = tuple[str, ...]
"""At most `KNOWN_MAX` of them."""


@dataclass(frozen=True, slots=True)
class Report:
    """The caller, and the register's id, revision and tag that it last saw ("", 0, 0: none).

    ``session`` is the calling process's session, 0 before it registered: without one a report
    proves nothing (see `Register`).
    """

    node: str | None = None
    register_id: str = ""
    revision: int = 0
    tag: int = 0
    session: int = 0


NOTHING = Report()


@dataclass(frozen=True, slots=True)
class Seed:
    """The facts from ``cluster.toml`` for the first registration of a group (R20)."""

    replicas: tuple[str, ...]
    min_isr: int
    first: str | None = None
    priorities: Mapping[str, int] = field(default_factory=lambda: dict[str, int]())
    ack: str = "received"
    after_power_loss: str = "wait"
    failover: str = "manual"


@dataclass(frozen=True, slots=True)
class Read:
    """Read the state; counts as a report."""

    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class RegisterNode:
    """A process started on a store.

    Attributes:
        node: Who.
        store: Store id.
        start: Random id of this process start.
        known: Start ids the store remembers, this one included.
        clean: No acknowledged record can be missing (R26).
        empty, last_epoch, end, promised: See ``Registration``.
        seed: Used when the register is empty.
        session: The session that this process last got; 0: none that it knows of.
        level: The highest level that it knows; 0: it is of a release without levels.
    """

    node: Id
    store: Id
    start: Id
    known: Ids
    clean: bool
    empty: bool
    last_epoch: int
    end: int
    promised: int
    seed: Seed | None = None
    report: Report = NOTHING
    session: Optional = 0
    level: Optional = 0


@dataclass(frozen=True, slots=True)
class Elect:
    """Stand for master of ``epoch``, the one after the newest that the candidate saw.

    A copy that was delayed in the network names an epoch that has begun since: it is refused (R22).
    ``overdue``: the target of a switchover did not stand in time.
    """

    node: str
    session: int
    epoch: int
    overdue: bool = False
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class AlterInSync:
    """The master changes the in-sync set: ``add`` name to session, ``remove`` names."""

    leader: str
    session: int
    epoch: int
    revision: int
    add: Mapping[str, int]
    remove: tuple[str, ...]
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Transfer:
    """The master hands over to ``to``, which has everything.

    ``leaving``: it stops, and is no member of the in-sync set from then on.
    """

    leader: str
    session: int
    epoch: int
    to: str
    who: Remark = ""
    leaving: bool = False
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Annotate:
    """A node completes the history of an epoch: its start, or the bytes that were cut of it."""

    node: str
    epoch: int
    start: int | None = None
    lost: int | None = None
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class ReportEnd:
    """A replica without a role reports the end of its log, while the register is vacant (R56).

    Attributes:
        node, session: The replica, as registered.
        revision: Revision of the newest state that it made durable: from then on it takes no part
        in an older epoch.
        last_epoch, end: Last epoch and end of its log.
    """

    node: str
    session: int
    revision: int
    last_epoch: int
    end: int
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Depose:
    """The coordinator or an operator ends a leadership; ``session`` 0 means the present one."""

    leader: str
    session: int
    who: Remark
    why: Remark
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Failover:
    """Depose and elect in one: ``to``, or the best of those that have everything.

    ``epoch`` is the newest one when the operator decided: a late confirmation cannot depose the
    master of a newer epoch, which the operator never saw.
    """

    to: str | None
    epoch: int
    who: Remark
    why: Remark
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class UncleanElect:
    """An operator elects a node that may lack confirmed records; recorded permanently.

    ``epoch``: as in `Failover`.
    """

    to: str
    epoch: int
    who: Remark
    why: Remark
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Adopt:
    """An operator chooses the node whose log becomes the group's, before the first election."""

    node: str
    who: Remark
    why: Remark
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Vouch:
    """An operator vouches that absent replicas have seen nothing newer; recorded."""

    nodes: tuple[str, ...]
    who: Remark
    why: Remark
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Voice:
    """A node's durable promise; see ``storage.marks.promise``."""

    node: str
    register_id: str
    revision: int
    tag: int
    promised: int
    session: int
    last_epoch: int


@dataclass(frozen=True, slots=True)
class Recover:
    """An operator rebuilds the register from the nodes' promises (R58).

    Attributes:
        state: The newest state that a node has shown.
        voices: The promises of all nodes that answered.
        absent: Nodes that the operator excludes.
    """

    state: GroupState
    voices: tuple[Voice, ...]
    absent: tuple[str, ...]
    who: Remark
    why: Remark
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class ClearAlarm:
    """An operator says that the alarm was false: no replica has seen more than the register has.

    The register again waits for the reports of more than half, as after a start; if the alarm was
    true, the first of them raises it again.
    """

    who: Remark
    why: Remark
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class AddReplica:
    """An operator adds a full member; it joins the in-sync set once it has caught up.

    A learner becomes a full member by it. ``learner``: it is added as a learner instead (R70).
    """

    node: Id
    priority: Priority
    who: Remark
    learner: bool = False
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class RemoveReplica:
    """An operator removes a member that is not the master."""

    node: str
    who: Remark
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Change:
    """An operator changes a fact of the group: ``in_sync_min``, ``ack``, ``failover``,
    ``after_power_loss``, ``level``.

    All members must agree on the facts, because a difference could lose data; a node's file only
    seeds them.
    """

    name: str
    value: str
    who: Remark
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Pause:
    """An operator pauses automatic failover for ``seconds`` (R68)."""

    seconds: int
    who: Remark
    why: Remark
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Resume:
    """An operator, or the coordinator when the time is over, ends the pause."""

    who: Remark
    why: Remark
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Maintain:
    """An operator takes a replica into maintenance, or releases it (R68)."""

    node: str
    on: bool
    who: Remark
    why: Remark
    report: Report = NOTHING


Operation = (
    Read
    | RegisterNode
    | Elect
    | AlterInSync
    | Transfer
    | Annotate
    | ReportEnd
    | Depose
    | Failover
    | UncleanElect
    | Adopt
    | Vouch
    | Recover
    | ClearAlarm
    | AddReplica
    | RemoveReplica
    | Change
    | Pause
    | Resume
    | Maintain
)

_CLASSES: Mapping[str, type[Operation]] = {
    "read": Read,
    "register": RegisterNode,
    "elect": Elect,
    "alter-in-sync": AlterInSync,
    "transfer": Transfer,
    "annotate": Annotate,
    "report-end": ReportEnd,
    "depose": Depose,
    "failover": Failover,
    "unclean-elect": UncleanElect,
    "adopt": Adopt,
    "vouch": Vouch,
    "add-replica": AddReplica,
    "remove-replica": RemoveReplica,
    "recover": Recover,
    "clear-alarm": ClearAlarm,
    "change": Change,
    "pause": Pause,
    "resume": Resume,
    "maintain": Maintain,
}
_NAMES: Mapping[type, str] = {operation: name for name, operation in _CLASSES.items()}


def to_wire(op: Operation) -> dict[str, object]:
    """Return the operation as a map of plain values."""
    wire: dict[str, object] = {"op": _NAMES[type(op)]}
    for name in op.__slots__:
        value: object = getattr(op, name)
        if isinstance(value, Report):
            value = [value.node, value.register_id, value.revision, value.tag, value.session]
        elif isinstance(value, GroupState):
            value = value.to_json()
        elif name == "voices":
            value = [list(astuple(voice)) for voice in cast("tuple[Voice, ...]", value)]
        elif isinstance(value, Seed):
            names, priorities = list(value.replicas), dict(value.priorities)
            value = [
                names, value.min_isr, value.first, priorities, value.ack, value.after_power_loss,
                value.failover,
            ]  # fmt: skip
        elif isinstance(value, tuple):
            value = list(value)  # pyright: ignore
        elif isinstance(value, Mapping):
            value = dict(value)  # pyright: ignore
        wire[name] = value
    return wire


def parse_op(wire: Mapping[str, object]) -> Operation:
    """Return the operation in ``wire``.

    Raises:
        ProtocolError: ``fields``: no such operation, or a field has the wrong type; nothing is
            kept.
    """
    name = wire.get("op")
    cls = _CLASSES.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ProtocolError(f"the register has no operation {str(name)[:40]!r}", code="fields")
    take = Fields(wire, f"operation {name}")
    # The annotations are text (see the import at the top), so they are keys of a table as they are.
    values = {item.name: _READERS[str(item.type)](take, item.name) for item in fields(cls)}
    return cls(**values)  # type: ignore[arg-type]  # each reader returns its annotation's type


def _report(value: object) -> Report:
    match value:
        case None:
            return NOTHING
        case [
            str() | None as node,
            str() as register_id,
            int() as revision,
            int() as tag,
            int() as session,
        ] if min(revision, tag, session) >= 0:
            return Report(node, register_id, revision, tag, session)
        case _:
            text = "a report is [node, register id, revision, tag, session]"
            raise ProtocolError(text, code="fields")


def _seed(value: object) -> Seed | None:
    match value:
        case None:
            return None
        case [
            list(),
            int() as least,
            str() | None as first,
            dict(),
            str() as ack,
            str() as after_power_loss,
            str() as failover,
        ]:
            seed = cast("list[object]", value)
            parts = {"replicas": seed[0], "priorities": seed[3]}
            take = Fields(parts, "seed")
            names = take.names("replicas")
            if not 0 < len(names) <= NAMES_MAX or not 0 < least <= len(names):
                raise ProtocolError("a seed names replicas and a reachable min_isr", code="fields")
            known = (ack in ACKS, after_power_loss in POWER_LOSS, failover in FAILOVER)
            if not all(known):
                text = "a seed names an unknown ack, after_power_loss or failover"
                raise ProtocolError(text, code="fields")
            if any(len(name.encode()) > ID_BYTES_MAX for name in names):
                raise ProtocolError("a seed names nodes of short names", code="fields")
            priorities = take.numbers("priorities", least=-(1 << 31))
            return Seed(names, least, first, priorities, ack, after_power_loss, failover)
        case _:
            text = "a seed is [replicas, min_isr, first, priorities, ack, power loss, failover]"
            raise ProtocolError(text, code="fields")


def _voices(take: Fields, key: str) -> tuple[Voice, ...]:
    found: list[Voice] = []
    for item in take.items(key, most=NAMES_MAX):
        match item:
            case [
                str() as node,
                str() as register_id,
                int() as revision,
                int() as tag,
                int() as promised,
                int() as session,
                int() as last_epoch,
            ] if min(revision, tag, promised, session, last_epoch) >= 0:
                seen = (revision, tag, promised, session, last_epoch)
                found.append(Voice(node, register_id, *seen))
            case _:
                text = "a voice is [node, register id, revision, tag, promised, session, epoch]"
                raise ProtocolError(text, code="fields")
    return tuple(found)


def _id(take: Fields, key: str) -> str:
    value = take.text(key, most=ID_BYTES_MAX)
    if len(value.encode("utf-8", "surrogatepass")) > ID_BYTES_MAX:
        raise ProtocolError(f"{key} has more than {ID_BYTES_MAX} bytes", code="fields")
    return value


def _ids(take: Fields, key: str) -> tuple[str, ...]:
    values = take.names(key)
    if len(values) > KNOWN_MAX:
        raise ProtocolError(f"{key} has more than {KNOWN_MAX} ids", code="fields")
    return tuple(_id(Fields({key: value}, "an id"), key) for value in values)


_READERS: Mapping[str, Callable[[Fields, str], object]] = {
    "str": Fields.text,
    "str | None": Fields.name,
    "int": Fields.number,
    "int | None": Fields.optional,
    "bool": Fields.flag,
    "tuple[str, ...]": Fields.names,
    "Mapping[str, int]": Fields.numbers,
    "Remark": lambda take, key: take.text(key, most=REMARK_MAX),
    "Priority": lambda take, key: take.number(key, least=-(1 << 31)),
    "Count": lambda take, key: take.number(key, least=1, most=NAMES_MAX),
    "Id": _id,
    "Ids": _ids,
    "GroupState": lambda take, key: GroupState.from_json(take.mapping(key)),
    "tuple[Voice, ...]": _voices,
    "Optional": lambda take, key: take.optional(key) or 0,
    "Report": lambda take, key: _report(take.raw(key)),
    "Seed | None": lambda take, key: _seed(take.raw(key)),
}
"""How the value of a field is read, by the field's annotation; each raises a ProtocolError."""

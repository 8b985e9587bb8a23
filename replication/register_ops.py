"""What can be asked of the register: one frozen class per operation, and its form on the wire.

On the wire an operation is a map ``{"op": name, field: value, ..., "report": [node, register id,
revision, tag]}``. `to_wire` writes it, `parse_op` reads it from a peer that may send anything.

``report`` is what the caller knows of the register (its newest state); it proves to the register
that it has not gone back. An operator's command has no node and reports nothing.

Not here: what the operations do (``replication.register``). Sources: replication.md G.2,
protocol.md 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from replication.group_state import Fields
from twinlog.errors import ProtocolError

NAMES_MAX = 64
"""Most nodes named in one operation; a group has a handful."""

REMARK_MAX = 500
"""Characters of ``who`` and of ``why``: they stay in the history for good."""


@dataclass(frozen=True, slots=True)
class Report:
    """Who calls, and the register's id, revision and tag it last saw ("", 0, 0: none)."""

    node: str | None = None
    register_id: str = ""
    revision: int = 0
    tag: int = 0


NOTHING = Report()


@dataclass(frozen=True, slots=True)
class Seed:
    """What ``cluster.toml`` says when the group registers for the first time."""

    replicas: tuple[str, ...]
    min_isr: int
    first: str | None = None
    priorities: Mapping[str, int] = field(default_factory=lambda: dict[str, int]())


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
        clean: Nothing that was acknowledged can be missing.
        empty, last_epoch, end, promised: See ``Registration``.
        seed: Used when the register is empty.
        session: What this process was given last; 0: nothing that it knows of.
    """

    node: str
    store: str
    start: str
    known: tuple[str, ...]
    clean: bool
    empty: bool
    last_epoch: int
    end: int
    promised: int
    seed: Seed | None = None
    report: Report = NOTHING
    session: int = 0


@dataclass(frozen=True, slots=True)
class Elect:
    """Stand for master. ``overdue``: the target of a switchover did not stand in its time."""

    node: str
    session: int
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
    """The master hands over to ``to``, which has everything."""

    leader: str
    session: int
    epoch: int
    to: str
    who: str = ""
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Annotate:
    """A node completes the history of an epoch: where it began, or what was cut of it (bytes)."""

    node: str
    epoch: int
    start: int | None = None
    lost: int | None = None
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Depose:
    """An operator ends a mastership; ``session`` 0 stands for the present one."""

    leader: str
    session: int
    who: str
    why: str
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Failover:
    """Depose and elect in one: ``to``, or the best of those that have everything."""

    to: str | None
    who: str
    why: str
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class UncleanElect:
    """An operator elects a node that may lack confirmed records; recorded for ever."""

    to: str
    who: str
    why: str
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Adopt:
    """An operator chooses the node whose log becomes the group's, before the first election."""

    node: str
    who: str
    why: str
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class Vouch:
    """An operator says that absent replicas have seen nothing newer; recorded."""

    nodes: tuple[str, ...]
    who: str
    why: str
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class AddReplica:
    """An operator adds a full member; it joins the in-sync set when it has caught up."""

    node: str
    priority: int
    who: str
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class RemoveReplica:
    """An operator removes a member that is not the master."""

    node: str
    who: str
    report: Report = NOTHING


@dataclass(frozen=True, slots=True)
class SetMinInSync:
    """An operator changes the least in-sync members."""

    least: int
    who: str
    report: Report = NOTHING


Operation = (
    Read
    | RegisterNode
    | Elect
    | AlterInSync
    | Transfer
    | Annotate
    | Depose
    | Failover
    | UncleanElect
    | Adopt
    | Vouch
    | AddReplica
    | RemoveReplica
    | SetMinInSync
)

_NAMES: Mapping[type, str] = {
    Read: "read",
    RegisterNode: "register",
    Elect: "elect",
    AlterInSync: "alter-in-sync",
    Transfer: "transfer",
    Annotate: "annotate",
    Depose: "depose",
    Failover: "failover",
    UncleanElect: "unclean-elect",
    Adopt: "adopt",
    Vouch: "vouch",
    AddReplica: "add-replica",
    RemoveReplica: "remove-replica",
    SetMinInSync: "set-min-in-sync",
}


def to_wire(op: Operation) -> dict[str, object]:
    """Return the operation as a map of plain values."""
    wire: dict[str, object] = {"op": _NAMES[type(op)]}
    for name in op.__slots__:
        value: object = getattr(op, name)
        if isinstance(value, Report):
            value = [value.node, value.register_id, value.revision, value.tag]
        elif isinstance(value, Seed):
            value = [list(value.replicas), value.min_isr, value.first, dict(value.priorities)]
        elif isinstance(value, tuple):
            value = list(value)  # pyright: ignore
        elif isinstance(value, Mapping):
            value = dict(value)  # pyright: ignore
        wire[name] = value
    return wire


def parse_op(wire: Mapping[str, object]) -> Operation:
    """Return the operation in ``wire``.

    Raises:
        ProtocolError: ``fields``: no such operation, or a field of another shape; nothing is kept.
    """
    name = wire.get("op")
    reader = _READERS.get(name) if isinstance(name, str) else None
    if reader is None:
        raise ProtocolError(f"the register knows no operation {str(name)[:40]!r}", code="fields")
    return reader(Fields(wire, f"operation {name}"), _report(wire.get("report")))


def _report(value: object) -> Report:
    match value:
        case None:
            return NOTHING
        case [str() | None as node, str() as register_id, int() as revision, int() as tag] if (
            revision >= 0 and tag >= 0
        ):
            return Report(node, register_id, revision, tag)
        case _:
            raise ProtocolError("a report is [node, register id, revision, tag]", code="fields")


def _seed(value: object) -> Seed | None:
    match value:
        case None:
            return None
        case [list(), int() as least, str() | None as first, dict()]:
            seed = cast("list[object]", value)
            parts = {"replicas": seed[0], "priorities": seed[3]}
            take = Fields(parts, "seed")
            names = take.names("replicas")
            if not 0 < len(names) <= NAMES_MAX or not 0 < least <= len(names):
                raise ProtocolError("a seed names replicas and a reachable min_isr", code="fields")
            return Seed(names, least, first, take.numbers("priorities", least=-(1 << 31)))
        case _:
            raise ProtocolError("a seed is [replicas, min_isr, first, priorities]", code="fields")


def _register(take: Fields, report: Report, wire_seed: object) -> RegisterNode:
    return RegisterNode(
        node=take.text("node"),
        store=take.text("store"),
        start=take.text("start"),
        known=take.names("known"),
        clean=take.flag("clean"),
        empty=take.flag("empty"),
        last_epoch=take.number("last_epoch"),
        end=take.number("end"),
        promised=take.number("promised"),
        seed=_seed(wire_seed),
        report=report,
        session=take.optional("session") or 0,
    )


def _annotate(take: Fields, report: Report) -> Annotate:
    return Annotate(
        take.text("node"),
        take.number("epoch"),
        take.optional("start"),
        take.optional("lost"),
        report,
    )


def _alter(take: Fields, report: Report) -> AlterInSync:
    return AlterInSync(
        take.text("leader"),
        take.number("session"),
        take.number("epoch"),
        take.number("revision"),
        take.numbers("add"),
        take.names("remove"),
        report,
    )


def _transfer(take: Fields, report: Report) -> Transfer:
    leader, to = take.text("leader"), take.text("to")
    session, epoch = take.number("session"), take.number("epoch")
    return Transfer(leader, session, epoch, to, take.text("who", most=REMARK_MAX), report)


def _depose(take: Fields, report: Report) -> Depose:
    return Depose(
        take.text("leader"),
        take.number("session"),
        take.text("who", most=REMARK_MAX),
        take.text("why", most=REMARK_MAX),
        report,
    )


_READERS: Mapping[str, Callable[[Fields, Report], Operation]] = {
    "read": lambda take, report: Read(report),
    "register": lambda take, report: _register(take, report, take.raw("seed")),
    "elect": lambda take, report: Elect(
        take.text("node"), take.number("session"), take.flag("overdue"), report
    ),
    "alter-in-sync": _alter,
    "transfer": _transfer,
    "annotate": _annotate,
    "depose": _depose,
    "failover": lambda take, report: Failover(
        take.name("to"),
        take.text("who", most=REMARK_MAX),
        take.text("why", most=REMARK_MAX),
        report,
    ),
    "unclean-elect": lambda take, report: UncleanElect(
        take.text("to"),
        take.text("who", most=REMARK_MAX),
        take.text("why", most=REMARK_MAX),
        report,
    ),
    "adopt": lambda take, report: Adopt(
        take.text("node"),
        take.text("who", most=REMARK_MAX),
        take.text("why", most=REMARK_MAX),
        report,
    ),
    "vouch": lambda take, report: Vouch(
        take.names("nodes"),
        take.text("who", most=REMARK_MAX),
        take.text("why", most=REMARK_MAX),
        report,
    ),
    "add-replica": lambda take, report: AddReplica(
        take.text("node"),
        take.number("priority", least=-(1 << 31)),
        take.text("who", most=REMARK_MAX),
        report,
    ),
    "remove-replica": lambda take, report: RemoveReplica(
        take.text("node"), take.text("who", most=REMARK_MAX), report
    ),
    "set-min-in-sync": lambda take, report: SetMinInSync(
        take.number("least", least=1, most=NAMES_MAX), take.text("who", most=REMARK_MAX), report
    ),
}

"""One drill as it is written down: a small TOML file.

    [drill]     title, about, rounds, limit
    [cluster]   nodes, failover, in_sync_min, coordinator, settings, node.NAME (settings of one)
    [load]      writers, rate, size, acknowledge, readers, again, workers, before, after
    [[fault]]   at, do, to, and where the kind needs it: from, direction, amount, for
    [promise]   what must be true afterwards

Durations and sizes are text with a unit.  Every mistake of a file is found at once.  The kinds of
faults are `KINDS`; ``to`` and ``from`` name processes by role at the moment of the fault (`ROLES`)
or by name.

Pure.  Not here: doing any of it (``run``, ``faults``), what the shipped files say (``scenarios/``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from cli.failures import Exit, Failure, nearest
from cli.fields import table, tables, texts
from twinlog.units import UnitError, parse_duration, parse_size

ROLES = ("master", "slave", "slaves", "nodes", "coordinator", "clients", "all")
"""``slave`` is the first slave by name, ``slaves`` all of them, ``coordinator`` the serving one,
``all`` nodes and coordinators.  Members of etcd are ``etcd-1``, ``etcd-2``, ``etcd-3``."""

COORDINATORS = ("embedded", "etcd")


@dataclass(frozen=True, slots=True)
class Kind:
    """What one kind of fault needs.

    Attributes:
        about: What it does, for ``drill show`` and the page.
        amount: What ``amount`` means: ``duration``, ``rate``, ``share``, ``file``, or empty: none.
        link: It is about the bytes between ``from`` and ``to``.
        orders: It is an order that any cluster takes; the others need processes of the drill's own
            or, with ``dev``, of ``twinlog dev up``.
        dev: A supervisor of ``twinlog dev up`` can do it.
        disk: It needs nodes that are started with a file of injected faults.
        lasts: It has an end; without ``for`` that is the end of the round.
    """

    about: str
    amount: str = ""
    link: bool = False
    orders: bool = False
    dev: bool = False
    disk: bool = False
    lasts: bool = True


KINDS: Mapping[str, Kind] = {
    "kill": Kind("SIGKILL; started again at the end", dev=True),
    "stop": Kind("SIGTERM: stopped in order; started again at the end", dev=True),
    "pause": Kind("SIGSTOP; SIGCONT at the end", dev=True),
    "power": Kind("killed, what it had not flushed is lost, as when power fails; started again at "
                  "the end", disk=True),
    "wipe": Kind("killed, its data directory deleted, started on an empty one", lasts=False),
    "old-copy": Kind("killed, its directory replaced by a copy from the round's begin, started",
                     lasts=False),
    "swap": Kind("two slaves killed, their data directories exchanged, both started; put back at "
                 "the end"),
    "flip": Kind("one bit changed in a log file, `sealed` or `active`", "file", lasts=False),
    "forget": Kind("what its page cache holds of older log files is dropped", lasts=False),
    "cut": Kind("bytes do not arrive, connections stay open", link=True),
    "reset": Kind("connections are closed, and new ones refused", link=True),
    "delay": Kind("bytes arrive later", "duration", link=True),
    "loss": Kind("this share of the pieces arrives 200 ms late, as when TCP sends again", "share",
                 link=True),
    "bandwidth": Kind("at most this many bytes arrive in a second", "rate", link=True),
    "disk-slow": Kind("each flush takes this much longer", "duration", disk=True),
    "disk-error": Kind("each flush and each new file ends with EIO", disk=True),
    "disk-full": Kind("each new file ends with ENOSPC, and the disk shows as full", disk=True),
    "clock": Kind("the node's wall clock is ahead by this much", "duration", disk=True),
    "switchover": Kind("`twinlog cluster switchover` to the next slave", orders=True, lasts=False),
    "failover": Kind("`twinlog cluster failover`", orders=True, lasts=False),
}  # fmt: skip
"""Every kind of fault."""

DIRECTIONS = ("both", "to", "from")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong; times are seconds since the round began."""

    at: float
    do: str
    to: str
    source: str = "all"
    direction: str = "both"
    amount: float = 0.0
    where: str = ""
    lasts: float | None = None

    @property
    def kind(self) -> Kind:
        """Its row of `KINDS`."""
        return KINDS[self.do]

    def text(self) -> str:
        """The fault in words.

        >>> Fault(at=1, do="pause", to="master", lasts=5).text()
        'at 1 s: pause master for 5 s'
        """
        told = f"at {self.at:g} s: {self.do} {self.to}"
        if self.kind.link:
            arrow = {"both": "and", "to": "from", "from": "towards"}[self.direction]
            told = f"at {self.at:g} s: {self.do} {self.to} {arrow} {self.source}"
        if self.where:
            told += f" ({self.where})"
        if self.kind.amount == "duration":
            told += f" by {self.amount:g} s"
        elif self.kind.amount == "share":
            told += f", {self.amount:.0%}"
        elif self.kind.amount == "rate":
            told += f", {self.amount:.0f} bytes/s"
        return told + (f" for {self.lasts:g} s" if self.lasts is not None else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What writes and reads while things go wrong; times are seconds.

    ``workers`` are members of one group, which handle each message and acknowledge it; ``again``
    are clients that read everything from its start again and again.
    """

    writers: int = 4
    rate: float = 200.0
    size: int = 200
    acknowledge: str = "confirmed"
    readers: int = 1
    again: int = 0
    workers: int = 0
    before: float = 1.0
    after: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The drill's own cluster.

    ``settings`` are keys of the cluster file by dotted name, ``node`` those of single nodes,
    each of which then has a file of its own.  ``coordinator`` is one of `COORDINATORS`: ``etcd`` is
    three members of etcd and two coordinators.
    """

    nodes: int = 3
    failover: str = "automatic"
    in_sync_min: int | None = None
    coordinator: str = "embedded"
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    node: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What must be true afterwards.

    Attributes:
        lost_max: Acknowledged messages that may be missing; None: any number, they are counted.
        write_gap_max: Longest time without an acknowledgement around a fault, seconds.
        refused_max: Sends that may be refused; None: any number.
        in_sync_within: Every node is in sync this many seconds after the last fault ended; None: it
            is not waited for.
        equal: Every node's log has the same bytes at the end.
        master: ``stays``, ``changes`` or ``any``.
        says: Codes of sentences that `cluster status` must show meanwhile.
        sent_on: Those that read again got messages of a slave: the master sent them on, because it
            would have had to wait for its disk.
        deleted: Messages may have been deleted by retention: those before the first one that any
            node still has count as deleted, not as lost.
    """

    lost_max: int | None = 0
    write_gap_max: float | None = None
    refused_max: int | None = None
    in_sync_within: float | None = 30.0
    equal: bool = True
    master: str = "any"
    says: tuple[str, ...] = ()
    sent_on: bool = False
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A drill; ``text`` is its file."""

    name: str
    title: str
    about: str = ""
    rounds: int = 1
    limit: float = 60.0
    cluster: Shape = field(default_factory=Shape)
    load: Load = field(default_factory=Load)
    faults: tuple[Fault, ...] = ()
    promises: Promises = field(default_factory=Promises)
    text: str = ""

    @property
    def network(self) -> bool:
        """Whether it needs a proxy before every port."""
        return any(fault.kind.link for fault in self.faults)

    @property
    def disk(self) -> bool:
        """Whether it needs nodes with a file of injected faults."""
        return any(fault.kind.disk for fault in self.faults)

    @property
    def seconds(self) -> float:
        """About how long it takes: start and end of the cluster, load, and each round's faults."""
        ends = [fault.at + (fault.lasts or 0.0) for fault in self.faults]
        passed = self.load.before + max(ends, default=0.0) + 1.0 + self.load.after
        return 8.0 + self.rounds * passed


def shipped() -> tuple[str, ...]:
    """Names of the drills that come with twinlog."""
    folder = files("cli.drill").joinpath("scenarios")
    names = [one.name for one in folder.iterdir() if one.name.endswith(".toml")]
    return tuple(sorted(name.removesuffix(".toml") for name in names))


def find(name: str) -> Scenario:
    """Return a shipped drill.

    Raises:
        Failure: No drill has this name (exit 66).
    """
    known = shipped()
    if name not in known:
        hints = (*nearest(name, known), "all of them: twinlog drill list")
        raise Failure(Exit.MISSING, f'there is no drill "{name}"', hints=hints)
    path = files("cli.drill").joinpath("scenarios", f"{name}.toml")
    return parse(path.read_text(encoding="utf-8"), name)


def parse(text: str, name: str) -> Scenario:
    """Read a drill's file.

    Raises:
        Failure: With every mistake found (exit 78).
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Failure(Exit.CONFIG, f"{name} is no TOML: {error}") from None
    reading = _Reading(name, document)
    found = reading.scenario(text)
    if reading.mistakes:
        first, *more = [Failure(Exit.CONFIG, f"{name}: {one}") for one in reading.mistakes]
        raise Failure(first.exit, first.text, more=more)
    return found


class _Reading:
    """One pass over a document; mistakes are gathered, wrong values are left at their default."""

    def __init__(self, name: str, document: Mapping[str, object]) -> None:
        self.name = name
        self.document = document
        self.mistakes: list[str] = []

    def scenario(self, text: str) -> Scenario:
        """Return the whole drill."""
        known = {"drill", "cluster", "load", "fault", "promise"}
        self._unknown("the file", self.document, known)
        head = self._section("drill", {"title", "about", "rounds", "limit"})
        title = self._text(head, "title", "")
        if not title:
            self.mistakes.append("[drill] needs a title")
        faults = [self._fault(one) for one in tables(self.document.get("fault"))]
        return Scenario(
            name=self.name,
            title=title,
            about=self._text(head, "about", "").strip(),
            rounds=self._whole(head, "rounds", 1, 1, 10_000) or 1,
            limit=self._seconds(head, "limit", 60.0) or 60.0,
            cluster=self._shape(),
            load=self._load(),
            faults=tuple(sorted((one for one in faults if one), key=lambda one: one.at)),
            promises=self._promises(),
            text=text,
        )

    def _shape(self) -> Shape:
        given = self._section(
            "cluster", {"nodes", "failover", "in_sync_min", "coordinator", "settings", "node"}
        )
        single = {name: table(value) for name, value in table(given.get("node")).items()}
        return Shape(
            nodes=self._whole(given, "nodes", 3, 1, 9) or 3,
            failover=self._choice(given, "failover", "automatic", ("automatic", "manual")),
            in_sync_min=self._whole(given, "in_sync_min", None, 1, 9),
            coordinator=self._choice(given, "coordinator", "embedded", COORDINATORS),
            settings={key: str(value) for key, value in table(given.get("settings")).items()},
            node={name: {key: str(value) for key, value in own.items()}
                  for name, own in single.items()},
        )  # fmt: skip

    def _load(self) -> Load:
        given = self._section(
            "load",
            {
                "writers", "rate", "size", "acknowledge", "readers", "again", "workers", "before",
                "after",
            },
        )  # fmt: skip
        plain = Load()
        words = ("written", "flushed", "replicated", "confirmed")
        return Load(
            writers=self._whole(given, "writers", plain.writers, 1, 16) or 1,
            rate=float(self._whole(given, "rate", int(plain.rate), 1, 100_000) or 1),
            size=int(self._unit(given, "size", float(plain.size), parse_size)),
            acknowledge=self._choice(given, "acknowledge", plain.acknowledge, words),
            readers=self._whole(given, "readers", plain.readers, 0, 8) or 0,
            again=self._whole(given, "again", plain.again, 0, 8) or 0,
            workers=self._whole(given, "workers", plain.workers, 0, 8) or 0,
            before=self._seconds(given, "before", plain.before) or 0.0,
            after=self._seconds(given, "after", plain.after) or 0.0,
        )

    def _fault(self, given: Mapping[str, object]) -> Fault | None:
        self._unknown("[[fault]]", given, {"at", "do", "to", "from", "direction", "amount", "for"})
        do = self._choice(given, "do", "", tuple(KINDS))
        if not do:
            return None
        kind = KINDS[do]
        amount, where = self._amount(given, do, kind)
        source = self._text(given, "from", "all")
        if not kind.link and ("from" in given or "direction" in given):
            self.mistakes.append(f'fault "{do}" is not about a link: leave "from" out')
        if not kind.lasts and "for" in given:
            self.mistakes.append(f'fault "{do}" has no end: leave "for" out')
        return Fault(
            at=self._seconds(given, "at", 0.0) or 0.0,
            do=do,
            to=self._text(given, "to", "master"),
            source=source,
            direction=self._choice(given, "direction", "both", DIRECTIONS),
            amount=amount,
            where=where,
            lasts=self._seconds(given, "for", None),
        )

    def _amount(self, given: Mapping[str, object], do: str, kind: Kind) -> tuple[float, str]:
        if kind.amount and "amount" not in given:
            self.mistakes.append(f'fault "{do}" needs an amount')
            return 0.0, ""
        match kind.amount:
            case "":
                if "amount" in given:
                    self.mistakes.append(f'fault "{do}" takes no amount')
                return 0.0, ""
            case "duration":
                return self._seconds(given, "amount", 0.0) or 0.0, ""
            case "rate":
                return self._unit(given, "amount", 1.0, parse_size), ""
            case "share":
                value = given.get("amount")
                if not isinstance(value, float) or not 0 < value <= 1:
                    self.mistakes.append(f"amount is {value!r}; it is a share, 0.01 to 1.0")
                    return 0.0, ""
                return value, ""
            case _:
                return 0.0, self._choice(given, "amount", "active", ("sealed", "active"))

    def _promises(self) -> Promises:
        given = self._section(
            "promise",
            {
                "lost", "write_gap", "refused", "in_sync_within", "equal", "master", "says",
                "deleted", "sent_on",
            },
        )  # fmt: skip
        plain = Promises()
        return Promises(
            lost_max=self._count(given, "lost", plain.lost_max),
            write_gap_max=self._seconds(given, "write_gap", plain.write_gap_max),
            refused_max=self._count(given, "refused", plain.refused_max),
            in_sync_within=self._seconds(given, "in_sync_within", plain.in_sync_within),
            equal=given.get("equal", True) is True,
            master=self._choice(given, "master", plain.master, ("any", "stays", "changes")),
            says=tuple(texts(given.get("says"))),
            sent_on=given.get("sent_on") is True,
            deleted=given.get("deleted") is True,
        )

    # ── values ──────────────────────────────────────────────────────────────────────────────────

    def _section(self, name: str, keys: set[str]) -> Mapping[str, object]:
        found = table(self.document.get(name))
        self._unknown(f"[{name}]", found, keys)
        return found

    def _unknown(self, where: str, given: Mapping[str, object], keys: set[str]) -> None:
        for key in given:
            if key not in keys:
                hint = "; ".join(nearest(key, keys))
                self.mistakes.append(f'{where} has no key "{key}"' + (f": {hint}" if hint else ""))

    def _text(self, given: Mapping[str, object], key: str, default: str) -> str:
        value = given.get(key, default)
        if isinstance(value, str):
            return value
        self.mistakes.append(f"{key} is {value!r}; it is text")
        return default

    def _choice(
        self, given: Mapping[str, object], key: str, default: str, allowed: tuple[str, ...]
    ) -> str:
        value = self._text(given, key, default)
        if value in allowed:
            return value
        hint = "; ".join(nearest(value, allowed))
        told = f'{key} is "{value}"; it can be {", ".join(allowed)}'
        self.mistakes.append(told + (f": {hint}" if hint else ""))
        return default

    def _whole(
        self, given: Mapping[str, object], key: str, default: int | None, least: int, most: int
    ) -> int | None:
        value = given.get(key, default)
        if value is None or (type(value) is int and least <= value <= most):
            return value
        self.mistakes.append(f"{key} is {value!r}; it can be {least} to {most}")
        return default

    def _count(self, given: Mapping[str, object], key: str, default: int | None) -> int | None:
        """A number, or ``any``: no limit."""
        value = given.get(key, "unset")
        if value == "unset":
            return default
        return None if value == "any" else self._whole(given, key, default, 0, 1 << 40)

    def _seconds(
        self, given: Mapping[str, object], key: str, default: float | None
    ) -> float | None:
        value = given.get(key)
        if value is None or value == "any":
            return default if value is None else None
        return self._unit(given, key, default or 0.0, parse_duration)

    def _unit(self, given: Mapping[str, object], key: str, default: float, read: object) -> float:
        value = given.get(key)
        if value is None:
            return default
        try:
            if not isinstance(value, str):
                raise UnitError(f"{value!r} has no unit", "write it as text with a unit")
            return float(parse_size(value) if read is parse_size else parse_duration(value))
        except UnitError as error:
            self.mistakes.append(f"{key}: {error}")
            return default

"""Asking for data instead of for the cluster: which copies will do, and how old they may be.

A reader is content with the master's copy, with any, or with a slave's. Without a word from it a
node answers only while its data is not older than the node's own limit (``read.staleness_max``);
`Staleness` says what the reader accepts instead. Everything a node serves is confirmed, so copies
differ only in how far they reach: a reader that meets a damaged one asks the next.

Pure: dialogues as in ``twinlog.session.session``. Not here: reading queues
(``twinlog.consumer.core``).

Units: seconds inside, milliseconds on the wire.
Rules: docs/protocol.md R52, R53.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from twinlog.errors import CorruptionError, TwinlogError, Unavailable, UnavailableError, UsageError
from twinlog.session.routing import RoutingTable
from twinlog.session.session import (
    ANY,
    ATTEMPT_SECONDS,
    MASTER,
    SLAVE,
    Pause,
    Session,
    Steps,
)
from twinlog.units import format_duration
from twinlog.wire.frames import Frame, Type
from twinlog.wire.schema import AGE_UNKNOWN_MS

NO_MASTER_SECONDS: Final = 3.0
"""How long a reader looks for a master that it could do without."""

STALE_HINT: Final = 'read a copy as it is: --stale-ok, in Python max_staleness="any"'


@dataclass(frozen=True, slots=True)
class Staleness:
    """How old the data may be that a reader accepts.

    Attributes:
        seconds: Age; infinite: any age, an unknown one too. None: what each node is configured to.
    """

    seconds: float | None = None

    def __post_init__(self) -> None:
        """Check the age; raises UsageError."""
        if self.seconds is not None and not self.seconds >= 0:
            raise UsageError(f"max_staleness is {self.seconds:g} s; it must be at least 0")

    @property
    def given(self) -> bool:
        """Whether the reader accepts what a slave alone may say."""
        return self.seconds is not None

    @property
    def max_age_ms(self) -> int | None:
        """The limit as requests carry it."""
        if self.seconds is None:
            return None
        return AGE_UNKNOWN_MS if math.isinf(self.seconds) else round(self.seconds * 1000)


AS_CONFIGURED: Final = Staleness()
"""What each node is configured to serve."""


def age_text(age_ms: int) -> str:
    """Return an age for a person.

    >>> age_text(12_000), age_text(1 << 40)
    ('12 s old', 'of unknown age')
    """
    if age_ms >= AGE_UNKNOWN_MS:
        return "of unknown age"
    return f"{format_duration(age_ms / 1000)} old"


def too_old(ages: Mapping[str, int], table: RoutingTable) -> Unavailable:
    """Return the error of a reader whose nodes all have data that is older than it accepts.

    Args:
        ages: Age of the data by node, ms.
        table: Says whether a master answers.
    """
    node, age = min(ages.items(), key=lambda item: item[1])
    text, hint = f"the newest data is {age_text(age)} (node {node})", STALE_HINT
    if table.master is None or table.suspected(table.master):
        text = f"no master answers, and {text}"
        hint = f"{hint}; or make a master: twinlog cluster failover --to NODE"
    return Unavailable(text, code="stale", hint=hint, node=node, age_ms=age)


def told_of_copies(error: UnavailableError) -> UnavailableError:
    """Return the error of a reader that found no master, its hint naming what reads a copy."""
    error.hint = f"{error.hint}; or {STALE_HINT}" if error.hint else STALE_HINT
    return error


def ask_reader(
    session: Session,
    kind: Type,
    fields: Mapping[str, object],
    *,
    read_from: str,
    deadline: float,
    staleness: Staleness,
) -> Steps[Frame]:
    """Ask for data until a node has a good answer.

    Args:
        session: Of the client.
        kind: Type of the request.
        fields: Its fields.
        read_from: ``master``, ``any``, ``slave`` or a node's name. With an age given, ``master``
            means the master while there is one, then any copy.
        deadline: See `Session.now`.
        staleness: What is accepted.

    Raises:
        CorruptionError: Every copy that could be asked is damaged.
        Unavailable: No node could answer; code ``stale``: their data is too old.
        TwinlogError: What a node refused it with.
    """
    if read_from not in (MASTER, ANY, SLAVE):
        return (yield from session.call(kind, fields, deadline=deadline, to=read_from))
    if read_from == MASTER:
        # A reader that accepts old data must not spend its whole deadline on a missing master.
        until = min(deadline, session.now + NO_MASTER_SECONDS) if staleness.given else deadline
        try:
            return (yield from session.call(kind, fields, deadline=until, to=MASTER))
        except CorruptionError:
            pass  # another copy of the same record will do
        except UnavailableError as error:
            if not staleness.given:
                raise told_of_copies(error) from None
    return (yield from _any_copy(session, kind, fields, read_from, deadline))


def _any_copy(
    session: Session, kind: Type, fields: Mapping[str, object], read_from: str, deadline: float
) -> Steps[Frame]:
    """Ask the nodes in turn, the master first, until one has a good answer."""
    attempt = 0
    ages: dict[str, int] = {}
    last: TwinlogError | None = None
    while True:
        damaged: TwinlogError | None = None
        only_damaged = True
        try:
            route = yield from session.route(deadline)
        except UnavailableError as error:
            raise (too_old(ages, session.table) if ages else last or error) from None
        nodes = [node for node in route.nodes if node.address is not None]
        if read_from == SLAVE:
            nodes = [node for node in nodes if node.role == SLAVE]
            if not nodes:
                raise Unavailable("the cluster has no slave now", hint="read from the master")
        # The master has the newest data; among slaves, the one that published itself last.
        nodes.sort(key=lambda node: (node.role == SLAVE, node.age))
        for node in nodes:
            # A paused node must not use up the deadline; a search takes as long as it takes.
            patience = math.inf if kind == Type.FIND else session.now + ATTEMPT_SECONDS
            until = min(deadline, patience)
            if last is not None and session.now >= deadline:
                only_damaged = False  # of those that were asked
                break  # that no time was left to ask it would hide why the others did not do
            try:
                return (yield from session.call(kind, fields, deadline=until, to=node.name))
            except CorruptionError as error:
                damaged = error
            except UnavailableError as error:
                last, only_damaged = error, False
                age = error.facts.get("age_ms")
                if error.code == "stale" and isinstance(age, int):
                    ages[node.name] = age
        # Damage is final only when every copy is damaged: a stale or silent node may have a whole
        # one.
        if damaged is not None and only_damaged:
            raise damaged
        seconds = session.pause(attempt)
        # An attempt without time left would only hide the real reason.
        if session.now + 2 * seconds >= deadline:
            if ages:
                raise too_old(ages, session.table)
            raise damaged or last or Unavailable("no node serves clients now")
        yield Pause(seconds)
        attempt += 1
